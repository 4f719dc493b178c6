"""Slides of `--task segmentation` by split: tables, and what is wrong with them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tifffile
from cli_runs import failures, metrics, predictions, rows_of, run_segmentation, write_table
from samples import tissue, write_slide

import train
from tfbig.cli.data import slide_splits, splits
from tfbig.cli.main import main
from tfbig.cli.settings.flag import to_save
from tfbig.cli.settings.tasks import SegmentationSettings
from tfbig.results import model_card, pixel_sizes, run_folder
from tfbig.tasks import TASKS

ROWS = [
    {"slide_id": "a", "split": "train"},
    {"slide_id": "b", "split": "train"},
    {"slide_id": "c", "split": "val"},
    {"slide_id": "d", "split": "val"},
    {"slide_id": "e", "split": "test"},
    {"slide_id": "f", "split": "test"},
    {"slide_id": "g", "split": "test"},
]


@pytest.fixture
def folder(tmp_path):
    """Return a folder of seven slides; a test writes their table."""
    for row in ROWS:
        write_slide(tmp_path / "data" / f"{row['slide_id']}.tif", ord(row["slide_id"]))
    return tmp_path / "data"


def refused(folder, rows, capsys, *flags):
    """Return the one line with which a run on a table ends."""
    write_table(folder / "slides.csv", rows)
    assert run_segmentation(folder, folder.parent / "out", *flags) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert not (folder.parent / "out").exists()
    return line


@pytest.mark.slow
def test_table(folder, tmp_path, capsys):
    """Slides are trained on whole, the best epoch is kept, all test slides count; an evaluation uses them only."""
    rows = [row | {"mask": ""} for row in ROWS[:-1]]
    rows.append({"slide_id": "missing", "split": "test", "mask": ""})
    masks = tmp_path / "masks"
    masks.mkdir()
    np.save(masks / "of_f.npy", np.ones((256, 384, 1), np.uint8))
    rows[5]["mask"] = str(masks / "of_f.npy")
    write_table(folder / "slides.csv", rows)
    out = tmp_path / "out"
    chosen = ["--crop", "whole", "--keep", "best", "--monitor", "dice", "--optimizer", "adamw"]
    chosen += ["--decay", "0.001", "--schedule", "constant", "--augment", "none", "--clip", "0"]
    assert run_segmentation(folder, out, *chosen) == 3  # one is missing
    printed = capsys.readouterr().out
    assert "training on all of a.tif, b.tif" in printed
    assert "validating on all of c.tif, d.tif" in printed
    assert [row["item"] for row in failures(out)] == ["missing"]
    assert [row["slide"] for row in predictions(out)] == ["e.tif", "f.tif"]
    saved = rows_of(out / "slides.csv")
    assert [(row["slide_id"], row["split"]) for row in saved[:6]] == [
        (row["slide_id"], row["split"]) for row in rows[:6]
    ]
    assert saved[5]["mask"] == rows[5]["mask"]
    dice = [float(row["dice"]) for row in predictions(out)]
    assert metrics(out)["test_dice"] == pytest.approx(np.mean(dice))
    assert metrics(out)["test_dice_std"] == pytest.approx(np.std(dice))
    assert {"e.png", "f.png"} <= {path.name for path in out.iterdir()}
    page = (out / "report.html").read_text()
    assert "e.tif" in page

    again = tmp_path / "again"
    assert main(["evaluate", str(out), "--out", str(again)]) == 3
    assert predictions(again) == predictions(out)


@pytest.mark.slow
def test_masks_of_a_table(folder, tmp_path, capsys):
    """The folder masks holds no slides; the run says which labels are computed, and names the object."""
    (folder / "masks").mkdir()
    for name in "bcdef":
        tifffile.imwrite(folder / "masks" / f"{name}.tif", np.ones((256, 384), np.uint8))
    outline = {"type": "Polygon", "coordinates": [[[0, 0], [300, 0], [300, 200], [0, 0]]]}
    (folder / "masks" / "g.geojson").write_text(json.dumps(outline))
    write_table(folder / "slides.csv", ROWS)
    out = tmp_path / "out"
    assert run_segmentation(folder, out, "--class-names", "normal", "tumour") == 0
    printed = capsys.readouterr().out
    assert "labels: 6 masks; computed tissue of a.tif" in printed
    view = next(iter((out / "views").glob("*.json"))).read_text()
    assert "tumour" in view and "tissue" not in view
    predicted = tmp_path / "predicted"
    assert main(["predict", str(out), str(folder / "a.tif"), "--out", str(predicted)]) == 0
    (row,) = rows_of(predicted / "predictions.csv")
    assert "share_tumour" in row


@pytest.mark.slow
def test_evaluation_of_another_table(segmentation_run, folder, tmp_path):
    """Without a column split all slides of the table are tested, but none that the run was trained on."""
    write_table(folder / "slides.csv", [{"slide_id": name} for name in "ab"])
    out = tmp_path / "out"
    assert (
        main(["evaluate", str(segmentation_run.folder), "--data", str(folder), "--out", str(out)])
        == 0
    )
    assert [row["slide"] for row in predictions(out)] == ["a.tif", "b.tif"]


def test_without_splits(folder, tmp_path, capsys):
    """Slides without a split are split by patient."""
    rows = [{"slide_id": row["slide_id"], "patient": f"p{n // 2}"} for n, row in enumerate(ROWS)]
    write_table(folder / "slides.csv", rows)
    assert run_segmentation(folder, tmp_path / "out", "--folds", "3", "--dry-run") == 0
    assert "testing on all of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (2, {"split": "validation"}, "line 4: split 'validation'; expected train, val or test"),
        (2, {"split": ""}, "line 4: split ''; expected train, val or test"),
        (3, {"slide_id": "a"}, "slide a is in line 2 and line 5"),
        (3, {"slide_id": ""}, "line 5: has no slide_id"),
        (1, {"mask": "none.png"}, "line 3: no such mask none.png of slide b"),
    ],
)
def test_wrong_line(folder, capsys, number, change, message):
    rows = [{"mask": "", **row} for row in ROWS]
    rows[number] |= change
    line = refused(folder, rows, capsys)
    assert str(folder / "slides.csv") in line
    assert message in line


def test_split_without_slides(folder, capsys):
    without = [row for row in ROWS if row["split"] != "val"]
    assert "slides of 5 cases is in split 'val'. Correct" in refused(folder, without, capsys)
    for name in "cd":
        (folder / f"{name}.tif").write_bytes(b"no slide")
    assert "none of the slides in split 'val' can be used (2 of 2 failed)" in refused(
        folder, ROWS, capsys
    )


def test_column_is_missing(folder, capsys):
    rows = [{"slide": row["slide_id"], "split": row["split"]} for row in ROWS]
    assert "line 1: has no column 'slide_id'; expected a table" in refused(folder, rows, capsys)


def test_mask_outside_of_the_folder(folder, tmp_path, capsys):
    np.save(tmp_path / "mask.npy", np.ones((256, 384, 1), np.uint8))
    rows = [row | {"mask": ""} for row in ROWS]
    rows[0]["mask"] = "../mask.npy"
    assert "--confine is set" in refused(folder, rows, capsys, "--confine")


def test_flags_without_a_table(folder, tmp_path, capsys):
    assert run_segmentation(folder, tmp_path / "out", "--folds", "3") == 2
    assert "--folds needs the table" in capsys.readouterr().err


def write_measured(folder, **sizes):
    """Write a slide of each name, of pixels of a size in micrometres."""
    for name, mpp in sizes.items():
        resolution = {"resolution": (1e4 / mpp, 1e4 / mpp), "resolutionunit": "CENTIMETER"}
        tifffile.imwrite(folder / f"{name}.tif", tissue(0), photometric="rgb", **resolution)


@pytest.mark.parametrize("task", ["segmentation", "patchgd-segmentation", "instances"])
def test_sizes_of_pixels_of_a_folder(task, tmp_path, capsys):
    """A run without a table has them too, its card says them, and predictions of other sizes are warned of."""
    data, run = tmp_path / "data", tmp_path / "run"
    (data / "masks").mkdir(parents=True)
    write_measured(data, **dict.fromkeys("abcdef", 0.25))
    for name in "abcdef":
        mask = np.zeros((256, 384), np.uint8)
        mask[32:64, 32:96] = 1
        tifffile.imwrite(data / "masks" / f"{name}.tif", mask)
    words = ["--task", task, "--data", str(data)]
    small = {
        "segmentation": ["--crop", "128x256", "--crops", "2"],
        "patchgd-segmentation": ["--patch", "32", "--latent", "8", "--downscale", "2"],
        "instances": ["--crop", "32x32", "--filters", "4", "--depth", "1", "--crops", "4"],
    }
    settings = train.settings_of([*words, *small[task]])
    trainer = TASKS[task].new_trainer()
    settings = trainer.resolved(settings)
    found = trainer.load(settings)
    settings = replace(settings, **found.decided)
    run.mkdir()
    trainer.models(settings, found).twin.save(run / run_folder.MODEL)
    run_folder.write_yaml(run / run_folder.CONFIG, to_save(settings))
    splits.write_tables(found.table, found.failed, run)
    expected = 0.5 if task == "patchgd-segmentation" else 0.25
    (pixel,) = pixel_sizes.trained_pixels(run)
    assert pixel == pytest.approx((expected, expected))
    run_folder.write_json(run / run_folder.METRICS, {"val_loss": 1.0})
    assert f"| size of pixels | {expected:g} um |" in model_card.write_card(run).read_text()
    new = tmp_path / "new"
    new.mkdir()
    write_measured(new, same=0.25, other=0.5)
    capsys.readouterr()
    assert main(["predict", str(run), str(new), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    error = capsys.readouterr().err
    assert (
        "another size of pixels than the run was trained on: 1 of 2 slides, such as other" in error
    )
    assert f"at {2 * expected:g} um, trained on {expected:g} um" in error


def test_sizes_of_pixels(tmp_path, capsys):
    """The table of a run has them, and slides that differ are said in one line; so are those of an evaluation."""
    write_measured(tmp_path, a=0.25, b=0.25, c=0.5)
    splits = {"a": "train", "b": "val", "c": "test"}
    rows = [{"slide_id": name, "split": split} for name, split in splits.items()]
    write_table(tmp_path / "slides.csv", rows)
    found = slide_splits.load(SegmentationSettings(data=str(tmp_path)))
    assert "different sizes of pixels, from 0.25 um (a.tif) to 0.5" in capsys.readouterr().err
    sizes = [float(row["mpp_rows"]) for row in found.table]
    assert sizes == pytest.approx([0.25, 0.25, 0.5])
    run = tmp_path / "run"
    run.mkdir()
    write_table(run / "slides.csv", list(found.table))
    slide_splits.load(SegmentationSettings(data=str(tmp_path), test_only=str(run)))
    error = capsys.readouterr().err
    assert (
        "another size of pixels than the run was trained on: 1 of 1 slide, such as c.tif" in error
    )
