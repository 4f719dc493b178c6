"""Rows of tables beside the slides: matched by one rule, and said if they match nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import cohort_settings, write_cohort_slide, write_table

from tfbig import SourceError
from tfbig.cli.data import cohort, side_tables, slide_folders
from tfbig.cli.main import main
from tfbig.sources import read_coords
from tfbig.sources.names import Names


def slides(*names: str) -> Names[str]:
    return Names((name, name) for name in names)


@pytest.mark.parametrize(
    ("rows", "of", "found", "said"),
    [
        ({"a": 1, "b": 2}, ("a.tif", "b.tif"), {"a.tif": 1, "b.tif": 2}, ""),
        ({"a.svs": 1}, ("a.tif", "b.tif"), {"a.tif": 1}, ""),
        ({"a": 1, "c1": 2}, ("a", "C1"), {"a": 1}, "t.csv: 1 of 2 names matches no slide, such as c1 (is it C1?)"),
        ({"x": 2, "c-1": 3}, ("a", "c_1"), {}, "t.csv: 2 of 2 names match no slide, such as c-1 (is it c_1"),
        ({"case1.2": 1}, ("case1.tif",), {}, "t.csv: 1 of 1 name matches no slide, such as case1.2 (is it case1.tif?)"),
        ({"7": 1, "zzz": 2}, ("7",), {"7": 1}, "t.csv: 1 of 2 names matches no slide, such as zzz"),
        ({"7.0": 1}, ("7.tif",), {"7.tif": 1}, "t.csv: 7.0: matched as whole numbers, which"),
        ({"7": 1, "8": 2, "9": 2}, ("7.0", "8.0", "9"), {"7.0": 1, "8.0": 2, "9": 2}, "t.csv: 7, and 1 other: matched"),
        ({"a.tif": 1, "a.svs": 2}, ("a.tif",), {"a.tif": 1}, "t.csv: 1 of 2 names matches no slide, such as a.svs"),
        ({"a.tif": 1, "a": 1}, ("a.tif",), {"a.tif": 1}, ""),
    ],
)  # fmt: skip
def test_assigned(
    rows: dict[str, int], of: tuple[str, ...], found: dict[str, int], said: str, capsys: Any
) -> None:
    assert side_tables.assigned("t.csv", rows, slides(*of)) == found
    err = capsys.readouterr().err
    assert err.startswith(said) if said else not err
    assert err.count("\n") == bool(said)


@pytest.mark.parametrize(
    ("rows", "of", "message"),
    [
        ({"a": 1}, ("a.tif", "a.svs"), r"a may be a\.tif or a\.svs\. Write the whole name"),
        ({"7.00": 1}, ("7", "7.0"), r"7\.00 may be 7 or 7\.0"),
        ({"7": "train", "7.0": "val"}, ("7",), r"7 and 7\.0 are both the slide 7, once with train"),
        ({"a": 1, "a.tif": 2}, ("a.tif",), r"a\.tif and a are both the slide a\.tif, once with 2"),
        ({"a.svs": 1, "a.npy": 2}, ("a.tif",), r"a\.npy and a\.svs are both the slide"),
    ],
)
def test_unclear_rows(rows: dict[str, Any], of: tuple[str, ...], message: str) -> None:
    with pytest.raises(SourceError, match=rf"t\.csv: {message}"):
        side_tables.assigned("t.csv", rows, slides(*of))


def splits_file(path: Path, names: list[str]) -> str:
    rows = [{"train": names[0], "val": names[1], "test": names[2]}]
    return str(
        write_table(path, rows + [{"train": name, "val": "", "test": ""} for name in names[3:]])
    )


def write_numbered(folder: Path, *ids: str) -> Path:
    """Slides called by numbers, and their table."""
    for number in range(5):
        write_cohort_slide(folder / f"{10001 + number}.tif", (130, 70, 160))
    rows = [{"slide_id": name, "label": n % 2} for n, name in enumerate(ids)]
    return write_table(folder / "slides.csv", rows)


IDS = [str(10001 + n) for n in range(5)]
FLOATS = [f"{name}.0" for name in IDS]


@pytest.mark.parametrize("of_table", [IDS, FLOATS, [*IDS[:4], FLOATS[4]]])
@pytest.mark.parametrize("of_splits", [IDS, FLOATS, [*IDS[:2], *FLOATS[2:]]])
def test_ids_of_spreadsheets(
    of_table: list[str], of_splits: list[str], tmp_path: Path, capsys: Any
) -> None:
    table = write_numbered(tmp_path / "data", *of_table)
    file = splits_file(tmp_path / "splits_0.csv", of_splits)
    found = cohort.read(cohort_settings(table, splits=file)).table.rows
    assert [Path(row["path"]).name for row in found] == [f"{name}.tif" for name in IDS]
    assert [row["split"] for row in found] == ["train", "val", "test", "train", "train"]
    lines = capsys.readouterr().err.splitlines()
    said = {line.partition(": ")[0] for line in lines}
    assert said == ({str(table)} if of_table != IDS else set()) | (
        {file} if of_splits != of_table else set()
    )
    assert all("matched as whole numbers" in line for line in lines)


def test_splits_that_name_no_slide_and_slides_without_a_split(tmp_path: Path, capsys: Any) -> None:
    table = write_numbered(tmp_path / "data", *IDS)
    file = splits_file(tmp_path / "s.csv", [IDS[0], IDS[1], "", "1000-3", "10004.svs"])
    found = cohort.read(cohort_settings(table, splits=file)).table.rows
    assert [row["slide_id"] for row in found] == [IDS[0], IDS[1], IDS[3]]
    assert capsys.readouterr().err.splitlines() == [
        f"{file}: 1 of 4 names matches no slide, such as 1000-3 (is it 10003?)",
        f"{file}: 2 of 5 slides have no split and are left out, such as 10003",
    ]
    wrong = splits_file(tmp_path / "w.csv", [IDS[0], FLOATS[0], IDS[2]])
    with pytest.raises(
        SourceError, match=r"10001 and 10001\.0 are both the slide 10001, once with"
    ):
        cohort.read(cohort_settings(table, splits=wrong))


def test_names_with_points_find_no_other_slide(tmp_path: Path, capsys: Any) -> None:
    """case1.2 is not case1.tif, of slides and of features, in training and by a table of predictions."""
    folder = tmp_path / "data"
    for name in ("case1.tif", "case2.1.tif", "case3.OME.TIF"):
        write_cohort_slide(folder / name, (130, 70, 160))
    ids = ["case1.2", "case2.1", "case3", "case2"]
    table = write_table(
        folder / "slides.csv", [{"slide_id": i, "label": n % 2} for n, i in enumerate(ids)]
    )
    found = cohort.read(cohort_settings(table)).table.rows
    expected = [None, folder / "case2.1.tif", folder / "case3.OME.TIF", None]
    assert [row["path"] for row in found] == expected
    assert [row.get("near") for row in found] == ["case1.tif", None, None, "case1.tif"]
    with pytest.raises(
        SourceError, match=r"no file of slide case1\.2 \(is it case1\.tif\?\)\. Check"
    ):
        slide_folders.slide_file(found[0])
    paths = [row["path"].name for row in cohort.slides_of_table(table)]
    assert paths == ["case1.2", "case2.1.tif", "case3.OME.TIF", "case2"]
    line = f"{table}: 2 of 4 names match no file, such as case1.2 (is it case1.tif?)\n"
    assert capsys.readouterr().err == line


def test_one_file_of_two_slides(tmp_path: Path) -> None:
    for name in ("a.tif", "b.tif"):
        write_cohort_slide(tmp_path / name, (130, 70, 160))
    rows = [{"slide_id": name, "label": n % 2} for n, name in enumerate(["a", "b", "a.tif"])]
    table = write_table(tmp_path / "slides.csv", rows)
    with pytest.raises(
        SourceError, match=r"line 4: slide a\.tif has the file .*, and so has a in li"
    ):
        cohort.read(cohort_settings(table))


def test_folders_in_names(tmp_path: Path) -> None:
    """Numbers of two centres are told apart by the folder."""
    for name in ("a/1.tif", "b/1.tif", "2.tif"):
        write_cohort_slide(tmp_path / name, (130, 70, 160))
    rows = [{"slide_id": name, "label": n % 2} for n, name in enumerate(["a/1", "b/1.tif", "c/1"])]
    table = write_table(tmp_path / "slides.csv", rows)
    found = [row["path"] for row in cohort.read(cohort_settings(table)).table.rows]
    assert found == [tmp_path / "a/1.tif", tmp_path / "b/1.tif", None]


@pytest.mark.parametrize("absolute", [True, False])
def test_sizes_of_pixels(
    absolute: bool, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of `--mpp-of` is of a slide by its name, in `tile` and in training; others are said."""
    monkeypatch.chdir(tmp_path)
    folder = (tmp_path if absolute else Path()) / "slides"
    for name in ("case1.tif", "case1.2.tif", "7.tif", "B.TIF"):
        write_cohort_slide(folder / name, (130, 70, 160))
    sizes = tmp_path / "mpp.csv"
    sizes.write_text("wsi,mpp\ncase1.2,0.25\n7.0,1\nb.tif,2\nB,0.25\ncase1.3,4\n")
    flags = ["--out", str(tmp_path / "out"), "--mpp", "1", "--tile", "16", "--mpp-of", str(sizes)]
    assert main(["tile", str(folder), *flags, "--tissue", "none"]) == 0
    steps = {p.stem: read_coords(p).step for p in sorted((tmp_path / "out").glob("*.h5"))}
    assert steps == {"7": 1, "B": 4, "case1": 2, "case1.2": 4}
    expected = [
        f"{sizes}: 2 of 5 names match no slide, such as case1.3 (is it case1.tif?)",
        f"{sizes}: 7.0: matched as whole numbers, which spreadsheets write with .0",
    ]
    assert [e for e in capsys.readouterr().err.splitlines() if str(sizes) in e] == expected
    rows = [{"slide_id": n, "label": i % 2} for i, n in enumerate(["case1", "case1.2", "7", "B"])]
    settings = cohort_settings(write_table(folder / "slides.csv", rows), mpp=1.0, mpp_of=str(sizes))
    read = cohort.read(settings).table.rows
    opener = cohort.Opener(settings, read)
    assert [opener.image(row["path"]).shape[0] for row in read] == [160, 80, 320, 80]
    assert [e for e in capsys.readouterr().err.splitlines() if str(sizes) in e] == expected


def test_masks_that_are_of_no_image(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "masks").mkdir()
    for name in ("a.npy", "Case2.npy", "masks/a.npy", "masks/case2.png", "masks/a.b.PNG"):
        np.save(tmp_path / name, np.zeros(1)) if name.endswith("npy") else (tmp_path / name).touch()
    images = [tmp_path / "a.npy", tmp_path / "Case2.npy"]
    masks = slide_folders.masks_of(images, (".npy", ".png"))
    assert masks == {images[0]: tmp_path / "masks/a.npy"}
    slide_folders.say_unused_masks(images, {*masks.values()}, (".npy", ".png"))
    line = (
        f"{tmp_path / 'masks'}: 2 of 3 names match no image, such as case2.png (is it Case2.npy?)\n"
    )
    assert capsys.readouterr().err == line
    assert slide_folders.file_of(tmp_path / "masks", "a.b", (".npy", ".png")).name == "a.b.PNG"
    assert slide_folders.file_of(tmp_path / "masks", "a.c", (".npy", ".png")) is None
