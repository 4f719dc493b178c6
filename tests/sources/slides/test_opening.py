"""Choice of the reader of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from slide_files import PANCREAS, SMALL_SVS, image, read_all

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources import ArraySource, OnDisk, TiffSource, open_slide
from tfbig.sources.slides import opening
from tfbig.sources.slides.tiff_layout import UndecodableError


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
    def refuse(path: str, z: object) -> Any:
        raise UndecodableError(f"{path}: refused")

    monkeypatch.setattr(opening, "_open_by_tifffile", refuse)
    assert open_slide(SMALL_SVS).reader == "OpenSlide (aperio)"
    with pytest.raises(SourceError, match="refused"):
        open_slide(PANCREAS)


def test_openslide_is_not_tried_on_damaged_svs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, z: object) -> Any:
        raise SourceError(f"{path}: is damaged")

    monkeypatch.setattr(opening, "_open_by_tifffile", refuse)
    with pytest.raises(SourceError, match="is damaged"):
        open_slide(SMALL_SVS)
