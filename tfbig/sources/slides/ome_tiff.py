"""Pyramidal OME-TIFF, written strip by strip."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import tifffile

from tfbig.errors import SourceError
from tfbig.sources.arrays import from_memmap, map_npy
from tfbig.sources.files import File, PathLike
from tfbig.sources.slides.georeference import Georeference
from tfbig.sources.source import Rows, Source
from tfbig.sources.writing import NpyWriter, beside, write_npy

TILE: Final = 512
SMALLEST: Final = 1024
"""Levels are added until both sides are at most so many pixels."""
COMPRESSIONS: Final = ("deflate", "zstd", "lzw", "jpeg", "none")

Ticked = Callable[[int, int], None]
"""Called with how many parts are done, and of how many."""


def write_ome_tiff(
    path: PathLike,
    image: Source,
    *,
    labels: bool = False,
    compression: str = "deflate",
    georeference: Georeference | None = None,
    ticked: Ticked | None = None,
) -> None:
    """Writes an image as a tiled, compressed BigTIFF pyramid with OME-XML.

    Each level is half the one before: the mean of two by two pixels, or of labels the upper left of them. One channel
    is gray, three of uint8 are RGB, others are planes of their own. The size of pixels is that of the image, where it
    is known. The file appears under its name when it is complete; levels wait beside it until then, uncompressed, a
    third of the size of the image.

    Args:
        path: the file, `*.ome.tif` or `*.ome.tiff`: programs know OME-TIFF by that ending.
        image: what is written, read once for each plane.
        labels: numbers of classes, of which no mean is taken.
        compression: one of `COMPRESSIONS`; jpeg loses a little, and is for uint8 of one or three channels.
        georeference: of its pixels; the file is then a GeoTIFF too.
        ticked: called with the strips of level 0 that are written, and all of them.

    Raises:
        ValueError: the ending or the compression is another one, or jpeg is asked for of other samples.
        SourceError: the image cannot be read, or the file not written.
    """
    target = Path(path)
    if not target.name.lower().endswith((".ome.tif", ".ome.tiff")):
        raise ValueError(
            f"{path}: expected a name that ends in .ome.tif, by which programs know OME-TIFF."
        )
    form = _Form(image, compression, georeference)
    try:
        with (
            TemporaryDirectory(prefix=".part-", dir=target.parent) as folder,
            beside(target) as part,
        ):
            _write(part, _Levels(image, labels, Path(folder)), form, ticked)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{path}: cannot be written: {error}.") from error


class _Form:
    """How samples lie in the file: gray, RGB, or each channel in a plane of its own."""

    def __init__(self, image: Source, compression: str, georeference: Georeference | None) -> None:
        byte = image.dtype == np.uint8
        self.rgb = byte and image.shape[2] == 3
        self.apart = image.shape[2] > 1 and not self.rgb
        if compression not in COMPRESSIONS or (compression == "jpeg" and (not byte or self.apart)):
            raise ValueError(
                f"{image.name}: compression='{compression}' of {image.shape[2]} channels of {image.dtype}; expected "
                f"one of {', '.join(COMPRESSIONS)}, jpeg for uint8 of one or three channels."
            )
        self.options: dict[str, Any] = {
            "dtype": image.dtype,
            "tile": (TILE, TILE),
            "photometric": "rgb" if self.rgb else "minisblack",
            "compression": None if compression == "none" else compression,
        }
        if self.apart:
            self.options["planarconfig"] = "separate"
        if compression in ("deflate", "zstd", "lzw") and image.dtype.kind in "ui":
            self.options["predictor"] = 2
        self.tags = [] if georeference is None else georeference.tags()
        self.axes = "YXS" if self.rgb else "SYX" if self.apart else "YX"

    def shape(self, rows: int, columns: int, channels: int) -> tuple[int, ...]:
        """As TIFF has it."""
        if self.rgb:
            return rows, columns, channels
        return (channels, rows, columns) if self.apart else (rows, columns)


class _Levels:
    """The levels of a pyramid; each is made from the rows of the one before as those are read.

    Args:
        image: level 0.
        labels: whether the upper left of four pixels stands for them.
        folder: where the smaller ones are kept.
    """

    def __init__(self, image: Source, labels: bool, folder: Path) -> None:
        self.image, self.labels, self.folder = image, labels, folder
        count = max(math.ceil(math.log2(max(image.shape[:2]) / SMALLEST)), 0) + 1
        rows, columns, channels = image.shape
        self.shapes = [(-(-rows // 2**n), -(-columns // 2**n), channels) for n in range(count)]

    def strips(self, level: int, apart: bool) -> Iterator[Rows]:
        """Strips `[r, W, C]` of a level, plane after plane; the first plane makes the next level."""
        source = self.image if level == 0 else from_memmap(map_npy(File(self._path(level))))
        for plane in range(source.shape[2] if apart else 1):
            part = slice(plane, plane + 1) if apart else slice(None)
            with ExitStack() as stack:
                writer: NpyWriter | None = None
                if plane == 0 and level + 1 < len(self.shapes):
                    halves = write_npy(self._path(level + 1), self.shapes[level + 1], source.dtype)
                    writer = stack.enter_context(halves)
                for start in range(0, source.shape[0], TILE):
                    rows = source.read(start, min(start + TILE, source.shape[0]))
                    if writer is not None:
                        writer.write(start // 2, _half(rows, self.labels))
                    yield rows[..., part]

    def _path(self, level: int) -> Path:
        return self.folder / f"level{level}.npy"


def _write(path: Path, levels: _Levels, form: _Form, ticked: Ticked | None) -> None:
    mpp = levels.image.mpp
    facts: dict[str, Any] = {"axes": form.axes}
    if mpp is not None:
        for axis, size in zip("YX", mpp, strict=True):
            facts |= {f"PhysicalSize{axis}": size, f"PhysicalSize{axis}Unit": "\u00b5m"}
    with tifffile.TiffWriter(path, bigtiff=True, ome=True) as writer:
        for level, shape in enumerate(levels.shapes):
            own: dict[str, Any] = {
                "subifds": len(levels.shapes) - 1,
                "metadata": facts,
                "extratags": form.tags,
            }
            if level:
                own = {"subfiletype": 1, "metadata": None}
            if mpp is not None:
                rows, columns = (10000 / (size * 2**level) for size in mpp)
                own |= {"resolution": (columns, rows), "resolutionunit": "CENTIMETER"}
            strips = levels.strips(level, form.apart)
            if ticked is not None and level == 0:
                strips = _counted(strips, -(-shape[0] // TILE), ticked)
            tiles = _tiles(strips, form.rgb)
            # `chain`, as a generator would be closed with what tifffile makes of it, before the next level is complete
            writer.write(chain(tiles), shape=form.shape(*shape), **form.options, **own)
            next(tiles, None)


def _counted(strips: Iterator[Rows], count: int, ticked: Ticked) -> Iterator[Rows]:
    for number, rows in enumerate(strips, start=1):
        yield rows
        ticked(min(number, count), count)


def _tiles(strips: Iterator[Rows], rgb: bool) -> Iterator[Rows]:
    """Tiles of all strips, left to right; those at the edges are filled with zeros."""
    for rows in strips:
        for left in range(0, rows.shape[1], TILE):
            part = rows[:, left : left + TILE]
            tile = np.zeros((TILE, TILE, rows.shape[2]), rows.dtype)
            tile[: part.shape[0], : part.shape[1]] = part
            yield tile if rgb else tile[..., 0]


def _half(rows: Rows, labels: bool) -> Rows:
    """Half of `[r, W, C]`: of each two by two pixels the mean, rounded, or the first; odd edges count twice."""
    if labels:
        return np.ascontiguousarray(rows[::2, ::2])
    odd = [(0, n % 2) for n in rows.shape[:2]]
    even = np.pad(rows, (*odd, (0, 0)), mode="edge")
    height, width, channels = even.shape
    quads = even.reshape(height // 2, 2, width // 2, 2, channels)
    if rows.dtype.kind == "f":
        means: Rows = quads.mean((1, 3), dtype=rows.dtype)
        return means
    found: Rows = ((quads.sum((1, 3), dtype=np.int64) + 2) // 4).astype(rows.dtype)
    return found
