"""Where the samples of a TIFF page are, and whether they can be decoded by strips."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import tifffile

from tfbig.errors import SourceError
from tfbig.sources.files import File
from tfbig.sources.resolution import Resolution, of_tiff
from tfbig.sources.slides import decoded_size
from tfbig.sources.slides.georeference import Georeference, of_page
from tfbig.units import format_bytes

_MAX_BAND_BYTES: Final = 2**30
_YCBCR_DECODED_TO_RGB: Final = frozenset({6, 7, 33007, 34892})  # the JPEG family


@dataclass(frozen=True)
class TiffLayout:
    """Where the samples of one page are and how its segments (tiles or strips) are decoded.

    A *band* is a row of tiles, or one strip. `planes` is the number of separately stored
    channels, 1 if the channels of a pixel are side by side; `samples` counts alpha, which `shape`
    does not. `stored` is the dtype in the file's byte order. `decode(data, segment)` gives
    `[1, rows, columns, samples]`, position and shape; `claimed(data)` gives the rows and columns that compressed data
    say they have, None where they do not. `rows_at` is the offset of plain
    uncompressed rows, or None.
    """

    shape: tuple[int, int, int]
    samples: int
    stored: np.dtype[Any]
    nodata: float
    planes: int
    segment_shape: tuple[int, int]
    offsets: tuple[int, ...]
    counts: tuple[int, ...]
    decode: Callable[..., Any]
    claimed: Callable[[bytearray], tuple[int, int] | None]
    rows_at: int | None
    facts: str

    @property
    def num_bands(self) -> int:
        return math.ceil(self.shape[0] / self.segment_shape[0])

    @property
    def num_across(self) -> int:
        return math.ceil(self.shape[1] / self.segment_shape[1])

    @property
    def band_bytes(self) -> int:
        return self.segment_shape[0] * self.shape[1] * self.shape[2] * self.stored.itemsize

    def corner(self, segment: int) -> tuple[int, int, int]:
        """Plane, first row and first column of a segment."""
        plane, rest = divmod(segment, self.num_bands * self.num_across)
        band, across = divmod(rest, self.num_across)
        return plane, band * self.segment_shape[0], across * self.segment_shape[1]

    def inside(self, segment: int) -> tuple[int, int]:
        """Rows and columns of a segment that are inside the image."""
        _, top, left = self.corner(segment)
        height, width = self.segment_shape
        return min(height, self.shape[0] - top), min(width, self.shape[1] - left)

    def segments(self, band: int, across: Iterable[int]) -> list[int]:
        """The segments of a band at some places in it, of all planes that are kept."""
        planes = min(self.planes, self.shape[2])
        first = [(plane * self.num_bands + band) * self.num_across for plane in range(planes)]
        return [start + place for start in first for place in across]


@dataclass(frozen=True)
class TiffPyramid:
    """What a TIFF file says of its first image: rows and columns of each level, and of its pixels."""

    levels: tuple[tuple[int, int], ...]
    resolution: Resolution
    georeference: Georeference | None


def read_layout(file: File, level: int) -> tuple[TiffPyramid, TiffLayout]:
    """The levels of a TIFF file, and the layout of one.

    Raises:
        SourceError: As `TiffSource` says.
    """
    try:
        with tifffile.TiffFile(file.path, _multifile=False) as tiff:  # no other file is opened
            levels = _levels(file.path, tiff)
            page = _page(file.path, levels, level)
            _check_decodable(file.path, page)
            layout = _layout(file.path, page)
            resolution, georeference = of_tiff(tiff), of_page(levels[0].keyframe)
        _check_segments(file, layout)
    except SourceError:
        raise
    except Exception as error:  # tifffile raises its own, struct's, ValueError, IndexError, ...
        raise SourceError(
            f"{file.path}: cannot be read as TIFF ({error}; {file.num_bytes} bytes); expected a "
            "TIFF file or a slide in a TIFF dialect. Check that it is one and was copied whole."
        ) from error
    sizes = tuple((one.keyframe.imagelength, one.keyframe.imagewidth) for one in levels)
    return TiffPyramid(sizes, resolution, georeference), layout


def _levels(path: str, tiff: tifffile.TiffFile) -> list[tifffile.TiffPageSeries]:
    if not tiff.series:
        raise SourceError(f"{path}: is a TIFF file without an image. Write or copy it again.")
    series = tiff.series[0]
    if series.axes not in ("YX", "YXS", "SYX"):
        raise SourceError(
            f"{path}: holds a stack of images, shape {series.shape} with axes '{series.axes}'; "
            "expected one image, 'YX' (gray) or 'YXS' (RGB). Save one image of the stack in a file "
            "of its own; an RGB image must be written with photometric='rgb'."
        )
    return list(series.levels)


def _page(path: str, levels: list[tifffile.TiffPageSeries], level: int) -> tifffile.TiffPage:
    pages = [one.keyframe for one in levels]
    if not 0 <= level < len(pages):
        sizes = ", ".join(f"{page.imagelength} x {page.imagewidth}" for page in pages)
        raise SourceError(
            f"{path}: level {level} was asked for, the file has {len(pages)} ({sizes}), counted "
            "from 0. If more were expected, the file may be truncated."
        )
    return pages[level]


def _check_decodable(path: str, page: tifffile.TiffPage) -> None:
    """Refuses colours and compressions that would fail, or give something else than RGB."""
    decoded_to_rgb = page.compression in _YCBCR_DECODED_TO_RGB
    if page.photometric not in (1, 2) and not (page.photometric == 6 and decoded_to_rgb):
        raise SourceError(
            f"{path}: its colours are stored as {_name(page.photometric)}; expected gray (0 is "
            "black), RGB, or YCbCr in JPEG. Convert it to RGB."
        )
    try:
        if page.compression == 33003:  # the codec gives YCbCr and nothing in the file says so
            raise KeyError("JPEG 2000 in YCbCr is not turned into RGB")
        tifffile.TIFF.DECOMPRESSORS[page.compression]
    except KeyError as error:
        raise SourceError(
            f"{path}: is compressed with {_name(page.compression)}, which cannot be decoded here "
            f"({error.args[0]}). Install the imagecodecs package, or convert the file to a tiled "
            "TIFF with JPEG, deflate or zstd compression."
        ) from error


def _name(value: int) -> str:
    """What TIFF calls the value of a tag, or the number if tifffile does not know it."""
    return str(getattr(value, "name", value))


def _layout(path: str, page: tifffile.TiffPage) -> TiffLayout:
    planes, depth, rows, columns, contiguous = page.shaped
    if page.dtype is None or depth != 1:
        raise SourceError(
            f"{path}: has {page.bitspersample} bits a sample (format {page.sampleformat}) and "
            f"depth {depth}; expected 8 or 16 bits and depth 1. Convert it to 8 or 16 bits."
        )
    if page.is_tiled:
        kind, height, width = "tiles", page.tilelength, page.tilewidth
    else:
        kind, height, width = "strips", min(page.rowsperstrip, rows), columns
    samples = planes * contiguous
    return TiffLayout(
        shape=(rows, columns, _num_colours(page, samples)),
        samples=samples,
        stored=np.dtype(page.dtype).newbyteorder(page.parent.byteorder),
        nodata=page.nodata,
        planes=planes,
        segment_shape=(height, width),
        offsets=tuple(page.dataoffsets),
        counts=tuple(page.databytecounts),
        decode=_decoder(page),
        claimed=_CLAIMED.get(int(page.compression), _nothing),
        rows_at=page.dataoffsets[0] if page.is_final and planes == 1 else None,
        facts=f"{kind} of {height} x {width}, {_name(page.compression)}",
    )


def _num_colours(page: tifffile.TiffPage, samples: int) -> int:
    """Samples before the first alpha sample (1 is associated, 2 is unassociated alpha)."""
    if page.photometric == 2 and samples == 4:
        return 3
    from_alpha = itertools.dropwhile(lambda kind: kind not in (1, 2), page.extrasamples)
    return samples - len(list(from_alpha))


def _decoder(page: tifffile.TiffPage) -> Callable[..., Any]:
    if page.compression in _YCBCR_DECODED_TO_RGB:
        return partial(page.decode, jpegtables=page.jpegtables, jpegheader=page.jpegheader)
    return page.decode


def _nothing(data: bytearray) -> None:
    """Of compressions whose data do not say their size."""


_CLAIMED: Final = dict.fromkeys((6, 7, 33007, 34892), decoded_size.jpeg_size) | dict.fromkeys(
    (33003, 33004, 33005, 34712), decoded_size.jpeg2000_size
)


def _check_segments(file: File, layout: TiffLayout) -> None:
    """Refuses a truncated file, and bands too large to decode at once."""
    if layout.rows_at is not None:
        num_samples = layout.shape[0] * layout.shape[1] * layout.samples
        file.check_length(layout.rows_at + num_samples * layout.stored.itemsize)
        return
    wanted = layout.num_bands * layout.num_across * layout.planes
    if min(len(layout.offsets), len(layout.counts)) < wanted:
        raise SourceError(
            f"{file.path}: lists {len(layout.offsets)} offsets and {len(layout.counts)} sizes for "
            f"{wanted} tiles or strips. The file is damaged; write or copy it again."
        )
    ends = (at + count for at, count in zip(layout.offsets, layout.counts, strict=False) if count)
    file.check_length(max(ends, default=0))
    if layout.band_bytes > _MAX_BAND_BYTES:
        raise SourceError(
            f"{file.path}: {layout.facts}: one must be decoded at once and takes "
            f"{format_bytes(layout.band_bytes)}; {format_bytes(_MAX_BAND_BYTES)} are allowed. Convert "
            "the file to tiles, say with tifffile.imwrite(..., tile=(512, 512))."
        )
