"""Training with A3: crops of whole images, mixed, and the loss of single classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_runs import history, metrics, predictions
from PIL import Image
from samples import ROOT

import train
from tfbig.cli.data import images
from tfbig.cli.main import main
from tfbig.data.worker_shards import Shard
from tfbig.recipes import train_with_a3

SMALL = [
    *("--config", str(ROOT / "recipes/patchgd-imagenet100-as-published.yaml")),
    *("--encoder", "small", "--latent", "8", "--head", "smaller", "--head-width", "8"),
    *("--side", "38", "--batch-size", "4", "--patch", "16", "--patch-stride", "8"),
]
WITHOUT_PATCHES = SMALL[: SMALL.index("--patch")]


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    """Pictures of two classes, white outside of the middle."""
    lines = ["image,label,split"]
    for number in range(16):
        pixels = np.full((40, 80, 3), 10 * number, np.uint8)
        pixels[:, :20] = 255
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        split = "train" if number < 10 else "val" if number < 12 else "test"
        lines.append(f"{number}.png,{('cat', 'dog')[number % 2]},{split}")
    (tmp_path / "images.csv").write_text("\n".join(lines))
    return str(tmp_path)


def test_augmentation_and_aspect(pictures: str) -> None:
    """Crops come from whole images, and differ between epochs; the middle of test images is used."""
    options = train.settings_of([*SMALL, "--data", pictures])
    data = images.load(options)
    assert not any((image.read(0, 38) == 255).any() for image in data.test.images)
    first, second, again, rest = (
        [(x.numpy(), y.numpy()) for x, y in train_with_a3.augmented(data.train, options, 2, shard)]
        for shard in (Shard(0), Shard(1), Shard(1), Shard(1, 2))
    )
    assert first[0][0].shape == (4, 38, 38, 3)
    assert not np.array_equal(first[0][0], second[0][0])
    assert len(second) == 3
    for (x, y), (same_x, same_y) in zip([*second, second[2]], [*again, *rest], strict=True):
        np.testing.assert_array_equal(x, same_x)
        np.testing.assert_array_equal(y, same_y)
        np.testing.assert_allclose(y.sum(1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--monitor", "qwk"], "A3 mixes images of classes"),
        (["--class-weights"], "--class-weights: A3 augments and mixes"),
        (["--augment", "slide"], "--augment: A3 augments and mixes"),
    ],
)
def test_mistakes(
    flags: list[str], message: str, pictures: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_with_a3.main([*SMALL, "--data", pictures, *flags, "--dry-run"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["patchgd", "device"])
def test_train_resume_evaluate(mode: str, pictures: str, tmp_path: Path) -> None:
    """The loss begins near log 2, that of one class; the run is evaluated as any other."""
    run = tmp_path / "run"
    small = SMALL if mode == "patchgd" else WITHOUT_PATCHES
    command = [*small, "--data", pictures, "--mode", mode, "--quiet", "--out", str(run)]
    assert train_with_a3.main([*command, "--epochs", "1"]) == 0
    assert train_with_a3.main([*command, "--epochs", "2", "--resume"]) == 0
    assert 0.2 < history(run)[0]["val_loss"] < 1.2
    assert 0 <= history(run)[1]["val_accuracy"] <= 1
    assert np.sum(metrics(run)["confusion"]) == 4
    assert main(["evaluate", str(run), "--out", str(tmp_path / "again"), "--quiet"]) == 0
    for row, expected in zip(predictions(tmp_path / "again"), predictions(run), strict=True):
        assert row["predicted"] == expected["predicted"]
