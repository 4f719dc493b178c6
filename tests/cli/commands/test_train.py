"""`train.py` from the command line to the run folder, on small slides."""

import keras
import pytest
import yaml
from cli_runs import history, metrics, predictions, run_segmentation

import train
from tfbig.cli.data import slides_and_masks
from tfbig.cli.data.background import Masking

FILES = {
    ".tfbig-files",
    "c.png",
    "checkpoints",
    "config.yaml",
    "history.csv",
    "learning_curve.png",
    "metrics.json",
    "model.keras",
    "plan.txt",
    "predictions.csv",
    "rates.json",
    "report.html",
    "MODEL_CARD.md",
    "versions.json",
    "views",
}


def test_dry_run(data, tmp_path, capsys):
    assert run_segmentation(data, tmp_path / "out", "--dry-run") == 0
    assert "Plan for an image of 1 x 128 x 256 x 1\nsweep" in capsys.readouterr().out


def test_dry_run_of_plain_keras(data, tmp_path, capsys):
    """A plan of plain Keras has no sweeps and no budget."""
    assert run_segmentation(data, tmp_path / "out", "--dry-run", "--mode", "unified") == 0
    out = capsys.readouterr().out
    assert "unified memory: the CPU has no memory of its own, so this is plain Keras" in out
    assert "1 x 128 x 256 x 1: plain Keras, without strips. A training step holds whole" in out
    assert "sweep" not in out and "budget" not in out
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_modes_agree(data, tmp_path):
    offload, device = tmp_path / "offload", tmp_path / "device"
    assert run_segmentation(data, offload, "--mode", "offload", "--device-memory", "1MB") == 0
    assert run_segmentation(data, device, "--mode", "device") == 0
    for folder in (offload, device):
        assert {p.name for p in folder.iterdir()} == FILES
        assert yaml.safe_load((folder / "config.yaml").read_text())["seed"] == 4
        assert (folder / "c.png").read_bytes().startswith(b"\x89PNG")
        assert [r["epoch"] for r in history(folder)] in ([0, 1], [1, 2])
    a, b = metrics(offload), metrics(device)
    for key in ("loss", "val_loss"):
        assert abs(a[key] - b[key]) <= 1e-5
    assert abs(a["val_dice"] - b["val_dice"]) <= 1e-4  # a pixel at 0.5 may fall to either side
    assert a["planned_bytes"] > a["base_bytes"]
    assert a["tested_on"] == "val"
    assert "`test_` is of the validation images" in (offload / "MODEL_CARD.md").read_text()
    loaded = keras.saving.load_model(offload / "model.keras")
    assert loaded.count_params() == 4492


@pytest.mark.slow
def test_beside(segmentation_run, tmp_path, capsys):
    """Modes have the same loss; time and memory of both runs are in metrics and report."""
    data, offload, unified = segmentation_run.data, segmentation_run.folder, tmp_path / "unified"
    assert run_segmentation(data, unified, "--mode", "unified", "--beside", str(offload)) == 0
    assert "unified memory: " in capsys.readouterr().out
    a, b = metrics(offload), metrics(unified)
    assert {p.name for p in unified.iterdir()} == FILES
    assert b["beside"]["loss_difference"] == abs(a["loss"] - b["loss"]) <= 1e-5
    for key in ("mode", "loss", "seconds_per_step", "peak_bytes"):
        assert b["beside"][key] == a[key]
    page = (unified / "report.html").read_text()
    assert "Comparison with another run" in page
    assert f"{a['loss']:.6f}" in page
    assert f"{b['loss']:.6f}" in page


def test_beside_unfinished_run(data, tmp_path, capsys):
    (tmp_path / "none").mkdir()
    assert run_segmentation(data, tmp_path / "out", "--beside", str(tmp_path / "none")) == 1
    assert "has no metrics.json" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_existing_run_is_refused_first(data, tmp_path, capsys):
    """Nothing is read, built or printed before a used --out is refused."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.yaml").write_text("task: segmentation\n")
    assert run_segmentation(tmp_path / "none", tmp_path / "out") == 1
    output = capsys.readouterr()
    assert "out: already contains a run. Resume it with --resume" in output.err
    assert output.out == ""


@pytest.mark.parametrize("share", ["1.01", "-0.1", "nan", "60"])
def test_share_of_tissue(share, tmp_path, capsys):
    assert train.main(["--task", "mil", "--bags", "slides", "--min-tissue", share]) == 2
    assert f"--min-tissue: '{share}' must be a share from 0 to 1" in capsys.readouterr().err


def test_budget_below_one_strip(data, tmp_path, capsys):
    assert run_segmentation(data, tmp_path / "out", "--device-memory", "1KB") == 1
    message = capsys.readouterr().err
    assert "smallest tile needs" in message
    assert "Raise --device-memory to" in message
    assert not (tmp_path / "out" / "metrics.json").exists()


@pytest.mark.slow
def test_background_is_skipped(skipping_run, capsys):
    """Flags that say where background is are enough; the run says what it computed."""
    assert skipping_run.code == 0
    folder, data = skipping_run.folder, skipping_run.data
    assert "background has one colour; share of the foreground: a.tif 0.3" in skipping_run.out
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["background"], config["tissue"], config["dilation"]) == ("skip", "grey", None)
    (row,) = predictions(folder)
    assert 0.3 < float(row["foreground"]) < 0.4
    assert float(row["computed"]) == 1.0  # the network sees more than the whole slide
    assert metrics(folder)["test_foreground"] == float(row["foreground"])
    assert "foreground" in (folder / "report.html").read_text()
    slide = slides_and_masks.open_slide(data / "c.tif", masking=Masking("grey"))
    assert slide.image.background.share == float(row["foreground"])
    again = ["--data", str(data), "--out", str(folder), "--resume", "--tissue", "otsu"]
    assert train.main(again) == 2
    assert "tissue grey -> otsu" in capsys.readouterr().err


def test_background_of_other_tasks(tmp_path, capsys):
    assert train.main(["--task", "mil", "--background", "skip"]) == 2
    assert "unrecognized arguments: --background skip" in capsys.readouterr().err
    for flags in (["--mode", "patchgd", "--images", "slides"], ["--mode", "offload"]):
        assert train.main(["--task", "images", *flags, "--dilation", "3"]) == 2
        assert (
            "--dilation: background is skipped only on --images slides" in capsys.readouterr().err
        )
