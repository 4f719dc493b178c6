"""Pictures of every mode, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import EpsImagePlugin, Image
from resource_limits import cheap
from slide_files import image, read_all

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources.slides import opening, pictures


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_shape_of_picture(tmp_path: Path, mode: str) -> None:
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.new(mode, (7, 5)).save(tmp_path / f"a.{suffix}")
    source = sources.open(tmp_path / f"a.{suffix}")
    assert opening.header_of_file(tmp_path / f"a.{suffix}")[:2] == (source.shape, source.dtype)


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("RGBA", 3), ("L", 1), ("LA", 1)])
def test_pictures(tmp_path: Path, mode: str, channels: int) -> None:
    bands = len(Image.new(mode, (1, 1)).getbands())
    array = image(12, 17, bands) if bands > 1 else image(12, 17)
    Image.fromarray(array).save(tmp_path / "a.png")
    source = sources.open(tmp_path / "a.png")
    assert source.shape == (12, 17, channels)
    np.testing.assert_array_equal(read_all(source), array.reshape(12, 17, -1)[..., :channels])


@pytest.mark.parametrize(("mode", "name"), [("P", "a.png"), ("CMYK", "a.jpg"), ("1", "a.bmp")])
def test_pictures_of_other_modes(tmp_path: Path, mode: str, name: str) -> None:
    Image.fromarray(image(12, 17, 3)).convert(mode).save(tmp_path / name)
    expected = np.asarray(Image.open(tmp_path / name).convert("1" if mode == "1" else "RGB"))
    np.testing.assert_array_equal(read_all(sources.open(tmp_path / name)).squeeze(), expected)


NUMBERS = np.array([[0, 1, 2], [2, 15, 255]], np.uint8)


@pytest.mark.parametrize(
    "form", ["palette", "gray", "gray in RGB", "gray and alpha", "TIFF palette"]
)
def test_labels(tmp_path: Path, form: str) -> None:
    """VOC and Cellpose save palettes, whose indices are the numbers; Pillow reads them in mode P."""
    path = tmp_path / ("a.tif" if form.startswith("TIFF") else "a.png")
    picture = Image.fromarray(NUMBERS)
    if form == "palette":
        picture.putpalette(list(range(255, -1, -1)) * 3)
        assert picture.mode == "P"
    elif form == "gray in RGB":
        picture = picture.convert("RGB")
    elif form == "gray and alpha":
        picture = picture.convert("LA")
    if form == "TIFF palette":
        table = np.random.default_rng(0).integers(0, 2**16, (3, 256), np.uint16)
        tifffile.imwrite(path, NUMBERS, photometric="palette", colormap=table, metadata=None)
    else:
        picture.save(path)
    for source in (sources.open_labels(path), sources.OnDisk(path, reader=sources.LABELS)):
        np.testing.assert_array_equal(read_all(source)[..., 0], NUMBERS)
        assert source.shape == (2, 3, 1)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_shape_of_labels(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only colours, which may be gray, are decoded for it."""
    path = tmp_path / "a.png"
    Image.new(mode, (7, 5)).save(path)
    source = sources.open_labels(path)
    assert opening.header_of_file(path, labels=True)[:2] == (source.shape, source.dtype)
    monkeypatch.setattr(pictures, "_decoded", lambda *_: pytest.fail("decoded"))
    if mode in ("L", "LA", "P"):
        assert sources.OnDisk(path, reader=sources.LABELS).shape == (5, 7, 1)


def test_labels_in_colours(tmp_path: Path) -> None:
    Image.fromarray(image(12, 17, 3)).save(tmp_path / "a.png")
    with pytest.raises(SourceError, match=r"a\.png: is a picture of colours; expected numbers of"):
        sources.open_labels(tmp_path / "a.png")


def test_jpeg_pictures(tmp_path: Path) -> None:
    Image.fromarray(image(12, 17, 3)).save(tmp_path / "a.jpg")
    expected = np.asarray(Image.open(tmp_path / "a.jpg"))
    np.testing.assert_array_equal(read_all(sources.open(tmp_path / "a.jpg")), expected)


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_pictures_of_16_bits(tmp_path: Path, channels: int) -> None:
    """Pillow would reduce them to 8 bits; alpha is dropped."""
    array = image(12, 17, channels).astype(np.uint16) * 257 + 3
    (tmp_path / "a.png").write_bytes(imagecodecs.png_encode(array))
    source = sources.open(tmp_path / "a.png")
    expected = array[..., : 1 if channels == 2 else 3]
    np.testing.assert_array_equal(read_all(source), expected)
    assert opening.header_of_file(tmp_path / "a.png")[:2] == (expected.shape, np.uint16)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_pictures_are_turned_as_their_exif_data_say(
    tmp_path: Path, name: str, orientation: int
) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(image(12, 17, 3)).save(tmp_path / name, exif=exif)
    stored = np.asarray(Image.open(tmp_path / name))
    turns = {
        1: stored,
        2: stored[:, ::-1],
        3: stored[::-1, ::-1],
        4: stored[::-1],
        5: stored.transpose(1, 0, 2),
        6: stored.transpose(1, 0, 2)[:, ::-1],
        7: stored.transpose(1, 0, 2)[::-1, ::-1],
        8: stored.transpose(1, 0, 2)[::-1],
    }
    np.testing.assert_array_equal(read_all(sources.open(tmp_path / name)), turns[orientation])
    assert opening.header_of_file(tmp_path / name)[0] == turns[orientation].shape


def test_postscript_called_png_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ghostscript(*_: object, **__: object) -> None:
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    Image.fromarray(image(12, 17, 3)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(SourceError, match=r"a\.png: cannot be decoded as a picture"):
        sources.open(tmp_path / "a.png")
    with pytest.raises(SourceError, match=r"a\.png: cannot be decoded as a picture"):
        opening.header_of_file(tmp_path / "a.png")


def test_damaged_pictures(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG but no more")
    advice = r"a\.png: cannot be decoded as a picture \(.*\)\. The file is damaged or in another format; copy"
    with pytest.raises(SourceError, match=advice):
        sources.open(tmp_path / "a.png")
    Image.fromarray(image(120, 170, 3)).save(tmp_path / "b.png")
    whole = (tmp_path / "b.png").read_bytes()
    (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=advice.replace("a", "b", 1)):
        sources.open(tmp_path / "b.png")


def test_pictures_that_pillow_refuses_are_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(image(120, 170, 3)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(SourceError, match=r"exceeds limit .*; convert a large one to a tiled TIFF"):
        sources.open(tmp_path / "a.png")


@pytest.mark.slow
def test_memory_of_a_large_picture(tmp_path: Path) -> None:
    """Pillow's copy takes 4 bytes a pixel and the array 3; both together are a part of the limit."""
    side = 6000
    Image.new("RGB", (side, side), (200, 10, 10)).save(tmp_path / "a.png")
    with cheap(20, 9e-6 * side * side):
        source = sources.open(tmp_path / "a.png")
    assert source.read(side - 1, side)[0, -1].tolist() == [200, 10, 10]


def test_picture_of_too_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_MAX_BYTES", 12 * 17 * 6 - 1)
    (tmp_path / "a.png").write_bytes(
        imagecodecs.png_encode(image(12, 17, 3).astype(np.uint16) * 257)
    )
    with pytest.raises(SourceError, match=r"a\.png: is a picture of 12 x 17, .* 1\.2 KiB;.* tiled"):
        sources.open(tmp_path / "a.png")
