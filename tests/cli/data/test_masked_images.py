"""Images with masks for `--task patchgd-segmentation`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import MASKED, write_masked_images
from PIL import Image

import train
from tfbig import SourceError, sources
from tfbig.cli.data import masked_images
from tfbig.cli.data.splits import SPLITS


def settings_of(folder: Path, *flags: str) -> Any:
    return train.settings_of([*MASKED, "--data", str(folder), *flags])


def test_folder(tmp_path: Path) -> None:
    """Images without a mask are no data, gray ones become RGB, and instance numbers of 16 bits are one class."""
    write_masked_images(tmp_path, 10)
    Image.new("RGB", (20, 20)).save(tmp_path / "without.png")
    Image.new("L", (40, 24), 7).save(tmp_path / "0.png")
    numbers = np.zeros((24, 40), np.uint16)
    numbers[2:4] = 300
    Image.fromarray(numbers).save(tmp_path / "masks" / "0.png")
    data = masked_images.load(settings_of(tmp_path, "--shares", "60", "20", "20"))
    assert [len(getattr(data, split).items) for split in SPLITS] == [6, 2, 2]
    images = {i.name: i for split in SPLITS for i in getattr(data, split).items}
    assert len(images) == 10
    first = images["0.png"].padded(32)
    assert (first.image.shape, first.labels.shape) == ((32, 64, 3), (32, 64, 1))
    assert (first.image.read(0, 32)[:24, :40] == 7).all()
    np.testing.assert_array_equal(np.unique(np.nonzero(first.labels.read(0, 32))[0]), [2, 3])


def test_table_and_downscale(tmp_path: Path) -> None:
    """A pixel of a smaller mask is 1 where most of it is."""
    write_masked_images(tmp_path, 3)
    lines = [f"{n}.png,masks/{n}.png,{split}" for n, split in enumerate(SPLITS)]
    (tmp_path / "images.csv").write_text("\n".join(["image,mask,split", *lines]))
    data = masked_images.load(settings_of(tmp_path, "--downscale", "4", "--confine"))
    (image,) = data.val.items
    assert (image.name, image.image.shape) == ("1.png", (12, 12, 3))
    mask = np.asarray(Image.open(tmp_path / "masks" / "1.png")) > 0
    shares = mask.reshape(12, 4, 12, 4).mean((1, 3))
    small = image.labels.read(0, 12)[..., 0]
    assert set(np.unique(small)) == {0, 1}
    np.testing.assert_array_equal(small[shares == 1], 1)
    np.testing.assert_array_equal(small[shares == 0][:3], 0)


def test_without_test_images_an_evaluation_is_of_those_for_validation(tmp_path: Path) -> None:
    write_masked_images(tmp_path, 3)
    lines = [f"{n}.png,masks/{n}.png,{split}" for n, split in enumerate(("train", "val", "val"))]
    (tmp_path / "images.csv").write_text("\n".join(["image,mask,split", *lines]))
    data = masked_images.load(settings_of(tmp_path, "--test-only", str(tmp_path)))
    assert [image.name for image in data.test.items] == ["1.png", "2.png"]


def test_batches(tmp_path: Path) -> None:
    write_masked_images(tmp_path, 8)
    settings = settings_of(tmp_path, "--batch-size", "2", "--shares", "6", "1", "1")
    data = masked_images.load(settings)
    batches = masked_images.dataset(data.train, settings, learns=True)
    first, second = ([x.numpy().tolist() for x, _ in batches] for _ in range(2))
    assert [len(batch) for batch in first] == [2, 2, 2]
    assert first != second
    assert masked_images.steps(data.train, settings) == 3
    handle = first[0][0].decode()
    assert sources.resolve(handle).shape == (64, 64, 3)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (None, "has neither images.csv nor images NAME.* with masks/NAME"),
        ("image,mask,split\na.png,,train\n", "line 2: has no mask"),
        ("image,split\na.png,train\n", "line 1: has no column 'mask'; expected a table"),
        (
            "image,mask,split\na.png,a.png,train\n",
            "none of 1 images of 1 cases is in split 'val'. Correct the column",
        ),
        (
            "image,mask,split\n" + "".join(f"a.png,b.png,{split}\n" for split in SPLITS),
            r"b.png: is 9 x 8 pixels of 1 channel; expected 8 x 9 of 1",
        ),
    ],
)
def test_errors(table: str | None, message: str, tmp_path: Path) -> None:
    Image.new("RGB", (9, 8)).save(tmp_path / "a.png")
    Image.new("L", (8, 9)).save(tmp_path / "b.png")
    if table:
        (tmp_path / "images.csv").write_text(table)
    with pytest.raises(SourceError, match=message):
        masked_images.load(settings_of(tmp_path))


def test_no_folder() -> None:
    with pytest.raises(SourceError, match="--data FOLDER is missing"):
        masked_images.load(train.settings_of(MASKED))


def test_confine(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images.csv").write_text("image,mask,split\n../a.png,../b.png,train\n")
    with pytest.raises(SourceError, match="lies outside of"):
        masked_images.load(settings_of(tmp_path / "data", "--confine"))


def test_masks_beside_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are found by name as Cellpose writes them; images without one are counted."""
    for number in range(12):
        Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / f"{number}.png")
        if number < 10:
            mask = np.full((16, 16), number % 2, np.uint8)
            Image.fromarray(mask).save(tmp_path / f"{number}_cp_masks.png")
    flags = ["--task", "patchgd-segmentation", "--data", str(tmp_path), "--patch", "16"]
    data = masked_images.load(train.settings_of(flags))
    images = [image for split in SPLITS for image in getattr(data, split).items]
    assert sorted(image.name for image in images) == [f"{n}.png" for n in range(10)]
    assert all(image.labels.read(0, 16).max() == int(image.name[0]) % 2 for image in images)
    expected = f"{tmp_path}: images without a mask are left out: 2, such as 10.png\n"
    assert capsys.readouterr().out == expected
