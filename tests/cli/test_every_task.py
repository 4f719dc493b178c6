"""What every task of `--task` has in common: a run is trained, resumed, evaluated, predicted with and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import skimage.io
import tifffile
from cli_runs import history, metrics, predictions
from task_data import DATA

import train
from tfbig.cli.commands import predict
from tfbig.cli.data import splits
from tfbig.cli.main import main
from tfbig.cli.settings import request
from tfbig.cli.settings.flag import to_save
from tfbig.results import run_folder
from tfbig.tasks import TASKS


def test_every_task_has_data_here() -> None:
    assert DATA.keys() == TASKS.keys()


@pytest.mark.parametrize("name", TASKS)
def test_the_folder_of_a_run_says_what_predictions_need(name: str, tmp_path: Path) -> None:
    """Model, settings and table of a run are read, without training it."""
    (tmp_path / "data").mkdir()
    data, flags, new = DATA[name](tmp_path / "data")
    settings: Any = train.settings_of(["--task", name, "--data", str(data), *flags])
    task, run = TASKS[name].new_trainer(), tmp_path / "run"
    run.mkdir()
    loaded = task.load(task.resolved(settings))
    settings = type(settings)(**{**vars(task.resolved(settings)), **loaded.decided})
    task.models(settings, loaded).twin.save(run / run_folder.MODEL)
    run_folder.write_yaml(run / run_folder.CONFIG, to_save(settings))
    splits.write_tables(loaded.table, loaded.failed, run)
    words = ["predict", str(run), str(new), "--out", str(tmp_path / "out"), "--dry-run"]
    work = predict.work(request.parse(words).settings)
    assert work.name == "predict"
    assert main(words) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_from_training_to_the_report(name: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    data, flags, new = DATA[name](tmp_path / "data")
    run, again, out = (tmp_path / each for each in ("run", "again", "out"))
    words = ["--task", name, "--data", str(data), *flags, "--epochs", "1", "--quiet"]
    assert train.main([*words, "--out", str(run)]) == 0
    (first,) = history(run)
    results = metrics(run)
    assert len(predictions(run)) == results.get(TASKS[name].items, len(predictions(run))) > 0
    assert results.get("tested_on", "test") in ("test", "val")
    assert train.main([*words, "--epochs", "2", "--resume", "--out", str(run)]) == 0
    assert history(run)[0] == first and len(history(run)) == 2
    assert main(["evaluate", str(run), "--quiet", "--out", str(again)]) == 0
    assert predictions(again) == predictions(run)
    assert "tested_on" not in metrics(again)
    assert main(["predict", str(run), str(new), "--quiet", "--out", str(out)]) == 0
    assert len(predictions(out)) == 1
    for folder in (run, again, out):
        assert main(["report", str(folder)]) == 0
        assert "</html>" in (folder / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_without_test_rows(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run on data without test rows trains, and judges the validation rows; so does its evaluation."""
    (tmp_path / "data").mkdir()
    data, flags, _ = DATA[name](tmp_path / "data")
    shares: tuple[str, ...] = ()
    table = next((tmp_path / "data").rglob("*.csv"), None)
    if table is not None:
        rows = table.read_text().splitlines()
        table.write_text("\n".join(row for row in rows if not row.endswith(",test")))
    elif name != "segmentation":
        shares = ("--shares", "100", "100", "1")
    run, again = tmp_path / "run", tmp_path / "again"
    words = ["--task", name, "--data", str(data), *flags, *shares, "--epochs", "1", "--quiet"]
    assert train.main([*words, "--out", str(run)]) == 0
    output = capsys.readouterr().out
    items = TASKS[name].items
    assert f"no {items} to test on: results will be those of the validation {items}" in output
    assert metrics(run)["tested_on"] == "val"
    assert "There were no test images" in output
    assert main(["evaluate", str(run), "--quiet", "--out", str(again)]) == 0
    assert predictions(again) == predictions(run)


def test_one_class_is_said_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Masks of one class, of slides, images, instances and volumes."""
    blank = {
        "segmentation": ("slide", "tissue"),
        "patchgd-segmentation": ("image", "object"),
        "instances": ("image", "instance"),
        "volume-segmentation": ("volume", "artery, vein"),
    }
    for name, (kind, missing) in blank.items():
        folder = tmp_path / name
        folder.mkdir()
        data, flags, _ = DATA[name](folder)
        blank_masks(name, data)
        task = TASKS[name].new_trainer()
        settings: Any = train.settings_of(["--task", name, "--data", str(data), *flags])
        task.load(task.resolved(settings))
        lines = capsys.readouterr().err
        text = f"warning: none of the {kind}s to train on has the class {missing}, which cannot be"
        assert text in lines, name
        assert f"none of the {kind}s in val has the class {missing}" in lines, name


def blank_masks(name: str, data: Path) -> None:
    """Replace all labels by background."""
    if name == "segmentation":
        (data / "masks").mkdir()
        for path in data.glob("*.tif"):
            tifffile.imwrite(
                data / "masks" / path.name, np.zeros(tifffile.imread(path).shape[:2], np.uint8)
            )
    elif name == "volume-segmentation":
        for path in (data / "labelsTr").iterdir():
            image = nibabel.load(path)
            zeros = np.zeros(image.shape, np.uint8)
            nibabel.save(nibabel.Nifti1Image(zeros, image.affine, image.header), path)
    else:
        for path in (data / "masks").iterdir():
            pixels = np.zeros(
                skimage.io.imread(path).shape, np.uint16 if name == "instances" else np.uint8
            )
            skimage.io.imsave(path, pixels, check_contrast=False)
