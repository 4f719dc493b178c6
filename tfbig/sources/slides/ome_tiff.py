"""Pyramidal OME-TIFF, written strip by strip."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import tifffile

from tfbig.sources.arrays import from_memmap, map_npy
from tfbig.sources.files import File, PathLike
from tfbig.sources.slides.georeference import Georeference
from tfbig.sources.source import RowArray, Source
from tfbig.sources.writing import NpyWriter, atomic_write, write_npy
from tfbig.system import output_folder
from tfbig.units import ceil_div, counted

TILE: Final = 512
SMALLEST: Final = 1024
"""Levels are added until neither side has more pixels than this."""
COMPRESSIONS: Final = ("deflate", "zstd", "lzw", "jpeg", "none")

Progress = Callable[[int, int], None]
"""Called with the number of strips that are written and the number of all strips."""


def write_ome_tiff(
    path: PathLike,
    image: Source,
    *,
    labels: bool = False,
    compression: str = "deflate",
    channel_names: Sequence[str] | None = None,
    georeference: Georeference | None = None,
    ticked: Progress | None = None,
) -> None:
    """Write an image as a tiled, compressed BigTIFF pyramid with OME-XML.

    Each level has half the rows and columns of the previous one: the mean of two by two pixels, or for labels their
    upper left pixel. One channel is stored as gray, three channels of uint8 as RGB, others as separate planes. The
    pixel size is `image.mpp`, if known. The file gets its name when it is complete; until then the smaller levels are
    in a temporary folder next to it, uncompressed, a third of the size of the image.

    Args:
        path: The file, `*.ome.tif` or `*.ome.tiff`: programs recognise OME-TIFF by this suffix.
        image: Image `[H, W, C]`, read once per plane.
        labels: Whether the samples are class numbers, which must not be averaged.
        compression: "deflate", "zstd", "lzw", "jpeg" or "none". JPEG is lossy, and requires uint8 with one or three
            channels.
        channel_names: Names of the channels, which viewers show. Three channels of uint8 with three names are planes.
            OME-XML has one name for all planes of an image: theirs, with commas between.
        georeference: Georeference of the pixels; the file is then a GeoTIFF too.
        ticked: Called with the number of strips of level 0 that are written and the number of all strips.

    Raises:
        ValueError: The suffix or the compression is not supported, or JPEG not for this dtype or number of channels,
            or there is another number of names than of channels.
        SourceError: The image cannot be read, or the file cannot be written.

    Example:
        >>> image = tfbig.open(np.full((40, 30, 3), 200, "uint8"))
        >>> image.mpp = (0.5, 0.5)
        >>> tfbig.sources.write_ome_tiff("slide.ome.tif", image)
        >>> slide = tfbig.open_slide("slide.ome.tif")
        >>> slide.shape, slide.mpp
        ((40, 30, 3), (0.5, 0.5))
    """
    target = Path(path)
    if not target.name.lower().endswith((".ome.tif", ".ome.tiff")):
        raise ValueError(
            f"{path}: expected a name that ends in .ome.tif, by which programs recognise OME-TIFF."
        )
    storage = _Storage(image, compression, channel_names, georeference)
    with (
        atomic_write(target) as part,
        TemporaryDirectory(prefix=output_folder.part_prefix(), dir=target.parent) as folder,
    ):
        _write(part, _Levels(image, labels, Path(folder)), storage, ticked)


class _Storage:
    """Options of the file: whether samples are gray, RGB or separate planes, and how they are compressed."""

    def __init__(
        self,
        image: Source,
        compression: str,
        channel_names: Sequence[str] | None,
        georeference: Georeference | None,
    ) -> None:
        byte = image.dtype == np.uint8
        self.rgb = byte and image.shape[2] == 3 and len(channel_names or [""]) == 1
        self.planar = image.shape[2] > 1 and not self.rgb
        if compression not in COMPRESSIONS or (compression == "jpeg" and (not byte or self.planar)):
            raise ValueError(
                f"{image.name}: compression='{compression}' for {counted(image.shape[2], 'channel')} of {image.dtype}; "
                f"expected one of {', '.join(COMPRESSIONS)}, jpeg only for uint8 with one or three channels."
            )
        count = 1 if self.rgb else image.shape[2]
        if channel_names is not None and len(channel_names) != count:
            raise ValueError(
                f"{image.name}: received {len(channel_names)} channel names, {list(channel_names)}; expected {count}."
            )
        self.metadata: dict[str, Any] = {"Creator": f"tfbig {version('tfbig')}"}
        if channel_names is not None:
            # planes of one page are one channel of OME-XML with several samples
            self.metadata["Channel"] = {"Name": ", ".join(channel_names)}
        self.options: dict[str, Any] = {
            "dtype": image.dtype,
            "tile": (TILE, TILE),
            "photometric": "rgb" if self.rgb else "minisblack",
            "compression": None if compression == "none" else compression,
        }
        if self.planar:
            self.options["planarconfig"] = "separate"
        if compression in ("deflate", "zstd", "lzw") and image.dtype.kind in "ui":
            self.options["predictor"] = 2
        self.tags = [] if georeference is None else georeference.tags()
        self.axes = "YXS" if self.rgb else "SYX" if self.planar else "YX"

    def shape(self, rows: int, columns: int, channels: int) -> tuple[int, ...]:
        """The shape in the order of `axes`."""
        if self.rgb:
            return rows, columns, channels
        return (channels, rows, columns) if self.planar else (rows, columns)


class _Levels:
    """Levels of a pyramid; each is computed from the rows of the previous one while those are read.

    Args:
        image: Level 0.
        labels: Whether the upper left of four pixels stands for them.
        folder: Folder of the smaller levels.
    """

    def __init__(self, image: Source, labels: bool, folder: Path) -> None:
        self.image, self.labels, self.folder = image, labels, folder
        count = max(math.ceil(math.log2(max(image.shape[:2]) / SMALLEST)), 0) + 1
        rows, columns, channels = image.shape
        self.shapes = [
            (ceil_div(rows, 2**n), ceil_div(columns, 2**n), channels) for n in range(count)
        ]

    def strips(self, level: int, planar: bool) -> Iterator[RowArray]:
        """Yield strips `[r, W, C]` of a level, plane after plane; the first plane also writes the next level."""
        source = self.image if level == 0 else from_memmap(map_npy(File(self._path(level))))
        for plane in range(source.shape[2] if planar else 1):
            part = slice(plane, plane + 1) if planar else slice(None)
            with ExitStack() as stack:
                writer: NpyWriter | None = None
                if plane == 0 and level + 1 < len(self.shapes):
                    halves = write_npy(self._path(level + 1), self.shapes[level + 1], source.dtype)
                    writer = stack.enter_context(halves)
                for start in range(0, source.shape[0], TILE):
                    rows = source.read(start, min(start + TILE, source.shape[0]))
                    if writer is not None:
                        writer.write(start // 2, halved(rows, self.labels))
                    yield rows[..., part]

    def _path(self, level: int) -> Path:
        return self.folder / f"level{level}.npy"


def _write(path: Path, levels: _Levels, storage: _Storage, ticked: Progress | None) -> None:
    mpp = levels.image.mpp
    metadata: dict[str, Any] = {"axes": storage.axes, **storage.metadata}
    if mpp is not None:
        for axis, size in zip("YX", mpp, strict=True):
            metadata |= {f"PhysicalSize{axis}": size, f"PhysicalSize{axis}Unit": "\u00b5m"}
    with tifffile.TiffWriter(path, bigtiff=True, ome=True) as writer:
        for level, shape in enumerate(levels.shapes):
            level_options: dict[str, Any] = {
                "subifds": len(levels.shapes) - 1,
                "metadata": metadata,
                "extratags": storage.tags,
            }
            if level:
                level_options = {"subfiletype": 1, "metadata": None}
            if mpp is not None:
                rows, columns = (10000 / (size * 2**level) for size in mpp)
                level_options |= {"resolution": (columns, rows), "resolutionunit": "CENTIMETER"}
            strips = levels.strips(level, storage.planar)
            if ticked is not None and level == 0:
                strips = _counted(strips, ceil_div(shape[0], TILE), ticked)
            tiles = _tiles(strips, storage.rgb)
            # tifffile wraps the iterator and closes it after the last tile; without `chain` that would close `tiles`
            # itself, before the next level is complete
            writer.write(
                chain(tiles), shape=storage.shape(*shape), **storage.options, **level_options
            )
            next(tiles, None)


def _counted(strips: Iterator[RowArray], count: int, ticked: Progress) -> Iterator[RowArray]:
    for number, rows in enumerate(strips, start=1):
        yield rows
        ticked(min(number, count), count)


def _tiles(strips: Iterator[RowArray], rgb: bool) -> Iterator[RowArray]:
    """Yield the tiles of all strips from left to right, those at the edges filled up with zeros."""
    for rows in strips:
        for left in range(0, rows.shape[1], TILE):
            part = rows[:, left : left + TILE]
            tile = np.zeros((TILE, TILE, rows.shape[2]), rows.dtype)
            tile[: part.shape[0], : part.shape[1]] = part
            yield tile if rgb else tile[..., 0]


def halved(rows: RowArray, labels: bool) -> RowArray:
    """Halve the size of an image `[r, W, C]`, or of labels.

    Two by two pixels become their mean, rounded, or for labels the first of them. An odd last row or column counts
    twice.
    """
    if labels:
        return np.ascontiguousarray(rows[::2, ::2])
    odd = [(0, n % 2) for n in rows.shape[:2]]
    even = np.pad(rows, (*odd, (0, 0)), mode="edge")
    height, width, channels = even.shape
    quads = even.reshape(height // 2, 2, width // 2, 2, channels)
    if rows.dtype.kind == "f":
        means: RowArray = quads.mean((1, 3), dtype=rows.dtype)
        return means
    rounded: RowArray = ((quads.sum((1, 3), dtype=np.int64) + 2) // 4).astype(rows.dtype)
    return rounded
