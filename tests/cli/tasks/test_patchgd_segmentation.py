"""`--task patchgd-segmentation` from the command line to the run folder, on small images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from cli_runs import MASKED, like_a_test, metrics, predictions, write_masked_images

import train
from tfbig import sources
from tfbig.cli.main import main
from tfbig.cli.tasks import patchgd_segmentation
from tfbig.patchgd import PatchGDSegmentation

FILES = {
    *("checkpoints", "config.yaml", "history.csv", "kept.weights.h5", "learning_curve.png"),
    *("mask_0.png", "mask_1.png", "metrics.json", "model.keras", "predictions.csv", "rates.json"),
    *("MODEL_CARD.md", "report.html", "slides.csv", "versions.json", "views", ".tfbig-files"),
}


def run(data: Path, out: Path, *flags: str) -> Any:
    return train.main([*MASKED, "--data", str(data), "--out", str(out), *flags])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked") / "data"
    write_masked_images(folder, 10)
    return folder


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    """A run of one epoch."""
    with like_a_test():
        assert run(data, data.parent / "run") == 0
    return data.parent / "run"


@pytest.mark.slow
def test_run_folder(trained: Path) -> None:
    assert {path.name for path in trained.iterdir()} == FILES
    results, rows = metrics(trained), predictions(trained)
    assert results["images"] == len(rows) == 2
    dices = [float(row["dice"]) for row in rows]
    assert results["test_dice"] == pytest.approx(np.mean(dices))
    assert results["test_dice_std"] == pytest.approx(np.std(dices))
    assert f"{rows[0]['image']}: Dice" in (trained / "report.html").read_text()
    loaded = keras.models.load_model(trained / "model.keras", compile=False)
    assert isinstance(loaded, PatchGDSegmentation)


@pytest.mark.slow
def test_evaluate(trained: Path, tmp_path: Path) -> None:
    """All images of another folder."""
    write_masked_images(tmp_path / "other", 3)
    flags = ["--data", str(tmp_path / "other"), "--out", str(tmp_path / "all")]
    assert main(["evaluate", str(trained), *flags]) == 0
    assert len(predictions(tmp_path / "all")) == 3


@pytest.mark.slow
def test_predict(data: Path, trained: Path, tmp_path: Path) -> None:
    """`tfbig predict` gives the mask that the run was evaluated with."""
    row = predictions(trained)[0]
    assert (
        main(["predict", str(trained), str(data / row["image"]), "--out", str(tmp_path / "out")])
        == 0
    )
    stem = Path(row["image"]).stem
    mask = sources.open(tmp_path / "out" / f"{stem}.ome.tif").read(0, 48)[..., 0] > 0
    labels = sources.open(data / "masks" / f"{stem}.png").read(0, 48)[..., 0] > 0
    dice = 2 * (mask & labels).sum() / (mask.sum() + labels.sum())
    assert dice == pytest.approx(float(row["dice"]))


@pytest.mark.slow
def test_start_from_low_resolution(data: Path, tmp_path: Path) -> None:
    """A first run on images of half the size gives the weights that the second one begins with."""
    assert run(data, tmp_path / "small", "--downscale", "2") == 0
    flags = ("--backbone", str(tmp_path / "small"), "--lr", "1e-12", "--context", "0")
    assert run(data, tmp_path / "out", *flags, "--skip-mask-filling") == 0
    small, large = (
        keras.models.load_model(tmp_path / name / "model.keras", compile=False)
        for name in ("small", "out")
    )
    for part in ("encoder", "decoder"):
        weights = zip(
            getattr(small, part).get_weights(), getattr(large, part).get_weights(), strict=True
        )
        for before, after in weights:
            np.testing.assert_allclose(before, after, atol=1e-6)


@pytest.mark.slow
def test_steps_learn(data: Path, tmp_path: Path) -> None:
    """Bright squares on dark noise are found after a few epochs, with the loss of the whole mask."""
    flags = ("--epochs", "20", "--loss", "dice", "--lr", "3e-3", "--inner-accumulate", "1")
    assert run(data, tmp_path / "out", *flags) == 0
    assert metrics(tmp_path / "out")["test_dice"] > 0.8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--loss", "dice", "--skip-mask-filling"), "--loss dice: is a loss of the whole mask"),
        (
            ("--accumulate", "2", "--inner-accumulate", "1"),
            "--accumulate 2: averages gradients over steps, but with --inner-accumulate 1",
        ),
        (("--strategy", "mirrored", "--inner-accumulate", "2"), "Use --inner-accumulate all."),
        (("--patch", "20"), "--patch 20: --encoder small makes a map of 2 x 2"),
    ],
)
def test_errors(
    flags: tuple[str, ...], message: str, data: Path, tmp_path: Path, capsys: Any
) -> None:
    assert run(data, tmp_path / "out", *flags) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_backbone_of_other_sizes(
    data: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(data, tmp_path / "out", "--backbone", str(trained), "--latent", "4") == 1
    assert "its encoder has other sizes" in capsys.readouterr().err


def test_patches_of_networks() -> None:
    """A map of a strided network has a 64th of the rows, and the decoder doubles them six times."""
    settings = train.settings_of(
        [*MASKED, "--encoder", "strided", "--patch", "64", "--context", "1"]
    )
    model = patchgd_segmentation.make_model(settings)
    assert model(np.zeros((1, 64, 128, 3), np.float32)).shape == (1, 64, 128, 1)
