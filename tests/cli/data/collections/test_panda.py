"""Tables of PANDA: grades, splits, and what is missing."""

import pytest
from dataset_folders import write_lines

from tfbig import SourceError
from tfbig.cli.data.collections import panda


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def labels(table):
    return {row["slide_id"]: row["label"] for row in table.rows}


def splits(table):
    return {row["slide_id"]: row["split"] for row in table.rows}


def counts(table):
    return [len(table.of_split(split)) for split in ("train", "val", "test")]


def test_panda(tmp_path):
    lines = [f"p{n:03},karolinska,{n % 6},3+3" for n in range(120)]
    write_lines(tmp_path / "train.csv", "image_id,data_provider,isup_grade,gleason_score", *lines)
    touch(tmp_path, *(f"train_images/p{n:03}.tiff" for n in range(119)))
    found = panda.read(tmp_path, 0)
    slides, patchgd = found.tables
    assert labels(slides) == {f"p{n:03}": f"ISUP {n % 6}" for n in range(119)}
    assert found.missing == ["train_images/p119.tiff"]
    assert (counts(slides), counts(patchgd)) == ([95, 12, 12], [86, 9, 24])
    assert splits(panda.read(tmp_path, 1).tables[0]) != splits(slides)
    for split, names in (("train", "p000 p001"), ("val", "p002"), ("test", "p003.tiff p119")):
        write_lines(tmp_path / "splits" / f"{split}.csv", "slide_id", *names.split())
    found = panda.read(tmp_path, 0)
    published, patchgd = found.tables
    assert splits(published) == {"p000": "train", "p001": "train", "p002": "val", "p003": "test"}
    assert len(patchgd.rows) == 119
    assert "without 115 slides that it leaves out" in found.notes[0]
    write_lines(tmp_path / "train.csv", "image_id,isup_grade", "p000,0", "p001,7")
    with pytest.raises(SourceError, match=r"train\.csv: line 3: ISUP grade '7'; expected 0 to 5"):
        panda.read(tmp_path, 0)
    write_lines(tmp_path / "train.csv", "image_id,grade", "p000,0")
    with pytest.raises(SourceError, match=r"line 1: has no column 'isup_grade'; expected a table"):
        panda.read(tmp_path, 0)
