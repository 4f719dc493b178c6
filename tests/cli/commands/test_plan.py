"""`tfbig plan`."""

import re

import keras
import numpy as np
import pytest
import tifffile
from skipped_background import small_tiles

from tfbig.cli.main import main


@pytest.mark.slow
def test_run_file_and_network(segmentation_run, tmp_path, capsys):
    run = segmentation_run.folder
    assert main(["plan", str(run), "4096x8192", "--host-memory", "2GB"]) == 0
    output = capsys.readouterr().out
    assert "Plan for an image of 1 x 4096 x 8192 x 1" in output
    assert "It fits: a training step takes" in output
    assert main(["plan", str(run), str(segmentation_run.data / "a.tif"), "--inference"]) == 0
    output = capsys.readouterr().out
    assert "1 x 256 x 384 x 1" in output
    assert "a prediction takes" in output
    image = keras.Input((None, None, 3))
    plain = keras.Model(image, keras.layers.Conv2D(2, 3, padding="same")(image))
    plain.save(tmp_path / "own.keras")
    assert main(["plan", str(tmp_path / "own.keras"), "512x512", "--batch-size", "2"]) == 0
    assert "2 x 512 x 512 x 3" in capsys.readouterr().out
    assert main(["plan", "MobileNet", "256x320", "--inference"]) == 0
    assert "1 x 256 x 320 x 3" in capsys.readouterr().out


@pytest.mark.slow
def test_a_budget_that_does_not_do(segmentation_run, capsys):
    run = segmentation_run.folder
    assert main(["plan", str(run), "65536x65536", "--host-memory", "100MB", "--disk", "0"]) == 1
    assert "Raise --host-memory to" in capsys.readouterr().err


def test_errors(tmp_path, capsys):
    image = keras.Input((None, None, 1))
    model = keras.Model(image, keras.layers.Conv2D(1, 3)(image))
    model.save(tmp_path / "own.keras")
    assert main(["plan", str(tmp_path / "own.keras"), "0x12"]) == 1
    assert "0x12: is not a size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet50", "Did you mean ResNet50?"),
        ("ResNet500", "Did you mean ResNet50 or ResNet50V2?"),
        ("runs/none", "Such networks are ResNet50 and MobileNetV3Large; see https://keras.io"),
    ],
)
def test_unknown_network(name, expected, capsys):
    """The error is one line with the networks that are most like the name."""
    assert main(["plan", name, "512x512"]) == 1
    error = capsys.readouterr().err
    assert (
        f"{name}: is not a run folder, a .keras file or a network of keras.applications. " in error
    )
    assert expected in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_volumes_and_equal_sides(tmp_path, capsys):
    """A volume has three axes, in the order of the model; one number stands for equal sides; a file for its own."""
    volume = keras.Input((None, None, None, 1))
    plain = keras.Model(volume, keras.layers.Conv3D(2, 3, padding="same")(volume))
    plain.save(tmp_path / "own.keras")
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image(np.zeros((7, 6, 5), np.float32), np.eye(4))
    nibabel.save(image, tmp_path / "scan.nii.gz")
    sizes = {"16x32x48": "16 x 32 x 48 x 1", "24": "24 x 24 x 24 x 1"}
    sizes[str(tmp_path / "scan.nii.gz")] = "5 x 6 x 7 x 1"
    for size, expected in sizes.items():
        assert main(["plan", str(tmp_path / "own.keras"), size]) == 0
        assert f"1 x {expected}" in capsys.readouterr().out
    assert main(["plan", str(tmp_path / "own.keras"), "16x32"]) == 1
    assert "16x32: is not a size; expected planes x rows x columns" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "own.keras"), str(tmp_path / "none.nii.gz")]) == 2
    assert "none.nii.gz: no such file or folder" in capsys.readouterr().err
    assert main(["plan", "MobileNet", "256", "--inference"]) == 0
    assert "1 x 256 x 256 x 3" in capsys.readouterr().out


@pytest.mark.slow
def test_bags(mil_run, capsys):
    assert main(["plan", str(mil_run.folder), "5000"]) == 0
    assert "5000" in capsys.readouterr().out
    assert main(["plan", str(mil_run.folder), "512x512"]) == 1
    assert "expected tiles of a bag" in capsys.readouterr().err


@pytest.mark.slow
def test_background(tmp_path, monkeypatch, capsys):
    """A masked slide is planned with its active share; a size has no background."""
    image = np.full((1200, 1600, 3), 240, np.uint8)
    image[300:600, 400:800] = (150, 80, 160)
    tifffile.imwrite(tmp_path / "a.tif", image, photometric="rgb", tile=(128, 128))
    small_tiles(monkeypatch, 16)
    flags = ["plan", "MobileNet", str(tmp_path / "a.tif"), "--inference"]
    assert main(flags) == 0
    assert "is computed, in" not in capsys.readouterr().out
    assert main([*flags, "--tissue", "otsu"]) == 0
    output = capsys.readouterr().out
    assert "Plan for an image of 1 x 1200 x 1600 x 3" in output
    assert " active\n" in output
    share = float(re.search(r"([0-9.]+) of the image is computed, in", output)[1])
    assert 0.06 < share < 0.9
    assert main([*flags, "--background", "skip", "--batch-size", "2"]) == 2
    assert "--batch-size 2: a slide whose background is skipped" in capsys.readouterr().err
    assert main(["plan", "MobileNet", "256x320", "--dilation", "8"]) == 2
    assert "--dilation: 256x320 is no slide" in capsys.readouterr().err
