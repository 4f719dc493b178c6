"""Slides of a table: labels, files, splits and resolution."""

import numpy as np
import pytest
from cli_runs import cohort_settings, write_cohort_slide, write_table

from tfbig import SourceError
from tfbig.cli.data import cohort
from tfbig.cli.data.tile_selection import Selection


def test_named_labels_and_subfolders(cohort_data):
    slides = cohort.read(cohort_settings(cohort_data))
    assert slides.classes == ("purple", "red")
    assert [row["label"] for row in slides.table.rows] == [0, 1] * 5 + [1]
    assert slides.table.rows[4]["path"] == cohort_data.parent / "centre 1" / "s4.tif"
    assert slides.table.rows[10]["path"] is None
    assert len(slides.table.of_split("train")) == 7
    assert cohort.read(cohort_settings(cohort_data.parent)).table.rows == slides.table.rows


@pytest.mark.parametrize("folds", [None, 5])
def test_splits_do_not_depend_on_which_files_are_there(folds, cohort_data):
    """Otherwise, a run that is resumed when a file was added could test on slides that it was trained on."""
    read = cohort.read(cohort_settings(cohort_data, folds=folds)).table.rows
    read[3]["path"].unlink()
    again = cohort.read(cohort_settings(cohort_data, folds=folds)).table.rows
    assert again[3]["path"] is None
    assert [row["split"] for row in again] == [row["split"] for row in read]


def test_slides_without_a_row_are_counted(cohort_data, capsys):
    folder = cohort_data.parent
    cohort.read(cohort_settings(cohort_data, slides=str(folder)))
    assert capsys.readouterr().out == ""
    write_cohort_slide(folder / "masks" / "s0.tif", (1, 2, 3))
    write_cohort_slide(folder / "s0_mask.tif", (1, 2, 3))
    write_cohort_slide(folder / "s10.tif", (1, 2, 3))
    rows = [
        {"slide_id": f"s{n}", "label": n % 2, "path": f"centre {n % 2}/s{n}.tif"} for n in range(10)
    ]
    placed = write_table(folder / "placed.csv", rows)
    cohort.read(cohort_settings(placed, slides=str(folder)))
    expected = f"{folder}: 1 slide has no row in {placed}, such as s10.tif\n"
    assert capsys.readouterr().out == expected


def test_paths_and_numeric_labels(cohort_data, tmp_path):
    write_cohort_slide(tmp_path / "elsewhere.tif", (130, 70, 160))
    rows = [{"slide_id": "s0", "label": 2, "path": tmp_path / "elsewhere.tif"}]
    rows += [{"slide_id": "s9", "label": 0, "path": "centre 0/s9.tif"}]  # relative to the table
    rows += [{"slide_id": f"s{n}", "label": n % 2, "path": ""} for n in range(2, 9)]
    slides = cohort.read(cohort_settings(write_table(cohort_data.parent / "own.csv", rows)))
    assert slides.classes == ("0", "1", "2")
    assert slides.table.rows[0]["path"] == tmp_path / "elsewhere.tif"
    assert slides.table.rows[1]["path"] == cohort_data.parent / "centre 0" / "s9.tif"
    assert slides.table.rows[2]["path"].name == "s2.tif"
    assert {row["split"] for row in slides.table.rows} >= {"train", "test"}


def test_uncertain_tissue_is_reported(tmp_path, capsys):
    base = np.full((800, 400, 3), 243, np.uint8)
    base[100:300, 100:300] = (150, 80, 160)
    base[500:700, 100:300] = (238, 222, 236)  # pale
    np.save(tmp_path / "a.npy", base)
    slides = cohort.Opener(cohort_settings(tmp_path, slide_mpp=8.0, mpp=8.0))
    slides.tiles(tmp_path / "a.npy", Selection(64, "colour", 0.5))
    assert "a: tissue (uncertain: --tissue colour and otsu agree by 67%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": None}, "slides need --data FILE"),
        ({"data": "none.csv"}, "no such file"),
        ({"slides": "."}, "holds none of the 11 slides"),
        (
            {"splits": "none.csv"},
            r"no such file; expected a table with columns train, val, test. Check --splits",
        ),
        ({"folds": 2}, "expected 3 folds or more"),
        ({"folds": 5, "fold": 5}, "a fold from 0"),
        ({"folds": 30}, "11 cases are too few for 30 folds"),
    ],
)
def test_invalid_tables_and_flags(change, message, cohort_data, tmp_path):
    if change.get("slides"):
        change = {"slides": str(tmp_path / "empty")}
        (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=message):
        cohort.read(cohort_settings(cohort_data, **change))


def test_class_names_of_a_run(cohort_data):
    """Class names of a run hold for a table with one of them; other labels are errors."""
    settings = cohort_settings(cohort_data, class_names=["purple", "red"])
    fewer = write_table(cohort_data.parent / "fewer.csv", [{"slide_id": "s3", "label": "red"}])
    assert (
        cohort.read(cohort_settings(fewer, class_names=settings.class_names)).table.rows[0]["label"]
        == 1
    )
    other = write_table(cohort_data.parent / "other.csv", [{"slide_id": "s3", "label": "blue"}])
    with pytest.raises(
        SourceError, match=r"other\.csv: line 2: label 'blue'; expected one of purple, red"
    ):
        cohort.read(cohort_settings(other, class_names=settings.class_names))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("s0,red\ns2,purple\ns0,purple", "slide s0 is in line 2 and line 4"),
        ("s0,red\ns2,", "line 3: has no label"),
        ("s0,red\ns2,red", "has only one label: red"),
        ("s0,red\ns2,1", r"line 3: label '1', but line 2 has 'red'; expected names, or numbers"),
        ("s0,0\ns2,1\ns4,1000000", r"wrong\.csv: line 4: label 1000000, but no line has label 2"),
        ("s0,1\ns2,2", r"wrong\.csv: line 2: label 1, but no line has label 0; expected 0, 1, 2"),
        (",red\ns2,purple", r"wrong\.csv: line 2: has no slide_id\. Add one, or remove the line"),
    ],
)
def test_suspicious_tables(lines, message, cohort_data):
    table = cohort_data.parent / "wrong.csv"
    table.write_text(f"slide_id,label\n{lines}\n")
    with pytest.raises(SourceError, match=message):
        cohort.read(cohort_settings(table))


def test_folders_of_classes(tmp_path, capsys):
    """Without a table, slides in a folder for each class are labelled by it; results and empty folders do not count."""
    for name in ("purple/s0.tif", "purple/deep/s2.tif", "red/s1.tif", "old/o.tif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_cohort_slide(tmp_path / name, (130, 70, 160))
    (tmp_path / "old/predict.yaml").touch()
    (tmp_path / "empty").mkdir()
    slides = cohort.read(cohort_settings(tmp_path, class_names=None))
    assert slides.classes == ("purple", "red")
    found = {row["slide_id"]: (row["label"], row["path"]) for row in slides.table.rows}
    assert found == {
        "s0": (0, tmp_path / "purple/s0.tif"),
        "s1": (1, tmp_path / "red/s1.tif"),
        "s2": (0, tmp_path / "purple/deep/s2.tif"),
    }
    assert capsys.readouterr().out == f"classes are the folders purple, red in {tmp_path}\n"
    write_cohort_slide(tmp_path / "red/s0.tif", (130, 70, 160))
    with pytest.raises(SourceError, match=r"slide s0 is in .*purple/s0\.tif and .*red/s0\.tif"):
        cohort.read(cohort_settings(tmp_path))


def test_folders_that_are_not_classes(tmp_path):
    for name in ("a.tif", "one/s0.tif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_cohort_slide(tmp_path / name, (130, 70, 160))
    wanted = r"slides\.csv: no such file; expected .* or instead a folder of slides for each of two"
    with pytest.raises(SourceError, match=wanted):
        cohort.read(cohort_settings(tmp_path))


def test_spreadsheet_table(cohort_data):
    """A byte order mark before the first column, and line ends of Windows."""
    table = cohort_data.parent / "sheet.csv"
    table.write_bytes(b"\xef\xbb\xbf" + cohort_data.read_bytes().replace(b"\n", b"\r\n"))
    rows, others = (cohort.read(cohort_settings(path)).table.rows for path in (table, cohort_data))
    assert rows == others


def test_all_slides_of_another_table_are_evaluated(cohort_data, tmp_path):
    """But for those that the run was trained on."""
    own = {"slide_id": "s0", "label": "purple", "split": "train"}
    write_table(tmp_path / "slides.csv", [own | {"path": cohort_data.parent / "centre 0/s0.tif"}])
    for eval_split, count in (("test", 2), ("all", 10)):
        changes = {"test_only": str(tmp_path), "eval_split": eval_split}
        slides = cohort.read(cohort_settings(cohort_data, **changes))
        tested = [row["slide_id"] for row in slides.table.of_split("test")]
        assert len(tested) == count and "s0" not in tested


def test_training_slides_that_were_moved_are_named(cohort_data, tmp_path, capsys):
    """They would be tested on as if they were new."""
    rows = [("s0", "train", "old/s0.tif"), ("s3.tif", "val", ""), ("s5", "test", "old/s5.tif")]
    rows = [{"slide_id": i, "label": "red", "split": s, "path": p} for i, s, p in rows]
    write_table(tmp_path / "slides.csv", rows)
    cohort.read(cohort_settings(cohort_data, test_only=str(tmp_path), eval_split="all"))
    assert capsys.readouterr().err == (
        f"warning: 2 of 10 slides to test on, such as s0, have the name of a slide that {tmp_path} learned from, at "
        "another path\n"
    )


def test_too_few_slides(cohort_data):
    rows = [{"slide_id": f"s{n}", "label": n % 2} for n in range(2)]
    slides = cohort.read(cohort_settings(write_table(cohort_data.parent / "few.csv", rows)))
    with pytest.raises(
        SourceError, match=r"few\.csv: none of 2 slides of 2 cases is in split 'val'\. Corr"
    ):
        slides.table.of_split("val", "slides")


def test_results_are_not_slides(cohort_data):
    (cohort_data.parent / "tiles").mkdir()
    (cohort_data.parent / "tiles" / "tile.yaml").write_text("size: 16\n")
    write_cohort_slide(cohort_data.parent / "tiles" / "s3.tif", (1, 2, 3))
    assert (
        cohort.read(cohort_settings(cohort_data)).table.rows[3]["path"]
        == cohort_data.parent / "centre 0" / "s3.tif"
    )


def test_two_files_of_one_slide(cohort_data):
    write_cohort_slide(cohort_data.parent / "again" / "other.tif", (1, 2, 3))
    write_cohort_slide(cohort_data.parent / "other.tif", (1, 2, 3))
    cohort.read(cohort_settings(cohort_data))
    write_cohort_slide(cohort_data.parent / "again" / "s3.tif", (1, 2, 3))
    with pytest.raises(SourceError, match="are both named 's3'"):
        cohort.read(cohort_settings(cohort_data))


def test_resolution(cohort_data):
    with pytest.raises(SourceError, match="--mpp, --magnification, --level"):
        cohort.Opener(cohort_settings(cohort_data, mpp=1.0, magnification=5))
    path = cohort_data.parent / "centre 0" / "s0.tif"
    assert cohort.Opener(cohort_settings(cohort_data)).image(path).shape == (320, 320, 3)
    assert cohort.Opener(cohort_settings(cohort_data, mpp=1.0)).image(path).shape == (160, 160, 3)
    sizes = cohort_data.parent / "sizes.csv"
    sizes.write_text("wsi,mpp\ns0.tif,0.25\n")
    settings = cohort_settings(cohort_data, mpp=1.0, mpp_of=str(sizes))
    opener = cohort.Opener(settings, cohort.read(settings).table.rows)
    assert opener.image(path).shape == (80, 80, 3)
