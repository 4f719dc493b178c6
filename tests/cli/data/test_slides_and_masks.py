"""Slides and masks of `--task segmentation` that cannot be used."""

import numpy as np
import pytest
import tifffile
from cli_runs import run_segmentation
from samples import tissue, write_slide

from tfbig.cli.main import main


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.tif", b"not an image", "b.tif"),
        ("b.png", b"nor this", "b.png"),
    ],
)
def test_file_that_is_not_an_image(data, tmp_path, capsys, name, content, message):
    (data / "b.tif").unlink()
    (data / name).write_bytes(content)
    assert run_segmentation(data, tmp_path / "out", "--strict") == 1
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_truncated_tiff(data, tmp_path, capsys):
    path = data / "b.tif"
    path.write_bytes(path.read_bytes()[:-2000])
    assert run_segmentation(data, tmp_path / "out", "--strict") == 1
    assert "b.tif" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_slide_smaller_than_the_stride(data, tmp_path, capsys):
    tifffile.imwrite(data / "b.tif", tissue(1)[:100], photometric="rgb")
    assert run_segmentation(data, tmp_path / "out", "--strict") == 1
    assert "expected at least 128 x 128, the stride" in capsys.readouterr().err


def test_mask_of_another_size(data, tmp_path, capsys):
    (data / "masks").mkdir()
    np.save(data / "masks" / "a.npy", np.ones((256, 200, 1), np.uint8))
    assert run_segmentation(data, tmp_path / "out", "--strict") == 1
    error = capsys.readouterr().err
    assert "256 x 200" in error
    assert "256 x 384" in error


def test_unreadable_slide_is_skipped(tmp_path, capsys):
    for number in (0, 2, 3):
        write_slide(tmp_path / "slides" / f"{number}.tif", number)
    (tmp_path / "slides" / "1.tif").write_bytes(b"II*\0 no slide")
    flags = ["--crop", "128x256", "--crops", "2", "--epochs", "1"]
    flags += ["--data", str(tmp_path / "slides")]
    assert main(["train", *flags, "--out", str(tmp_path / "again")]) == 3
    assert "skipped 1.tif" in capsys.readouterr().err
    assert "1.tif" in (tmp_path / "again" / "failed.csv").read_text()
    assert main(["train", *flags, "--strict", "--out", str(tmp_path / "strict")]) == 1
    for number in (2, 3):
        (tmp_path / "slides" / f"{number}.tif").write_bytes(b"")
    assert main(["train", *flags, "--out", str(tmp_path / "one")]) == 1
    assert "holds 1 slides" in capsys.readouterr().err
