"""Choice of the reader of a file, and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import EpsImagePlugin, Image
from slide_files import PANCREAS, SMALL_SVS, image, read_all

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources import ArraySource, OnDisk, TiffSource, open_slide
from tfbig.sources.slides import opening


def test_open_by_type(tiffs: dict[str, Path]) -> None:
    source = sources.open(tiffs["jpeg_tiles"])
    assert isinstance(source, TiffSource)
    assert sources.open(source) is source
    assert isinstance(sources.open(image(3, 4)), ArraySource)


def test_level(tmp_path: Path) -> None:
    path, base = tmp_path / "pyramid.tif", image(200, 150, 3)
    with tifffile.TiffWriter(path) as writer:
        writer.write(base, subifds=1, photometric="rgb", tile=(64, 64))
        writer.write(base[::2, ::2], subfiletype=1, photometric="rgb", tile=(64, 64))
    for source in (sources.open(path, 1), OnDisk(path, 1)):
        np.testing.assert_array_equal(read_all(source), base[::2, ::2])
    np.save(tmp_path / "a.npy", base)
    with pytest.raises(
        SourceError, match=r"a\.npy: level 1 requested, but the slide has 1 \(200 x 150\)"
    ):
        sources.open(tmp_path / "a.npy", 1)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_shape_of_picture(tmp_path: Path, mode: str) -> None:
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.new(mode, (7, 5)).save(tmp_path / f"a.{suffix}")
    source = sources.open(tmp_path / f"a.{suffix}")
    assert opening.shape_of_file(tmp_path / f"a.{suffix}") == (source.shape, source.dtype)


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
    assert opening.shape_of_file(tmp_path / "a.png") == (expected.shape, np.uint16)


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
    assert opening.shape_of_file(tmp_path / name)[0] == turns[orientation].shape


def test_postscript_called_png_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ghostscript(*_: object, **__: object) -> None:
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    Image.fromarray(image(12, 17, 3)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(SourceError, match=r"a\.png: cannot be decoded as a picture"):
        sources.open(tmp_path / "a.png")
    with pytest.raises(SourceError, match=r"a\.png: cannot be decoded as a picture"):
        opening.shape_of_file(tmp_path / "a.png")


def test_damaged_pictures(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG but no more")
    with pytest.raises(SourceError, match=r"a\.png: cannot be decoded as a picture .* tiled TIFF"):
        sources.open(tmp_path / "a.png")


@pytest.mark.parametrize("name", ["a.tif", "a.npy", "a.png", "a.svs", "a.xyz"])
def test_missing_files(tmp_path: Path, name: str) -> None:
    for function in (sources.open, lambda path: sources.resolve(str(path))):
        with pytest.raises(SourceError, match=rf"{name}: there is no such file\. Check the path"):
            function(tmp_path / name)


def test_folder_instead_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.tif").mkdir()
    with pytest.raises(SourceError, match=r"a\.tif: cannot be"):
        sources.open(tmp_path / "a.tif")


def test_unknown_formats(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_bytes(b"?")
    with pytest.raises(SourceError, match=r"unknown suffix '\.xyz'; .*\.npy, .*\.tif,"):
        sources.open(tmp_path / "a.xyz")
    with pytest.raises(TypeError, match="type list; expected a path, a NumPy array or"):
        sources.open([[1, 2]])  # type: ignore[arg-type]


def test_unknown_reader(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"reader 'bioio'; expected one of tifffile, openslide, zarr"
    ):
        open_slide(SMALL_SVS, reader="bioio")
    with pytest.raises(ValueError, match=r"received mpp=-1; expected micrometres per pixel"):
        open_slide(SMALL_SVS, mpp=-1)


def test_openslide_reads_svs_that_tifffile_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> Any:
        raise SourceError(f"{path}: refused")

    monkeypatch.setattr(opening, "_open_by_tifffile", refuse)
    assert open_slide(SMALL_SVS).reader == "OpenSlide (aperio)"
    with pytest.raises(SourceError, match="refused"):
        open_slide(PANCREAS)
