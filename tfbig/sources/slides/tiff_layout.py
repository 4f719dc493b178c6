"""Location of the samples of a TIFF page, and checks that it can be decoded in strips."""

from __future__ import annotations

import itertools
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tifffile

from tfbig.errors import Advice, SourceError, SourceWarning, reason_of
from tfbig.sources.files import File
from tfbig.sources.resolution import Resolution, ome_pixels, resolution_from_tiff
from tfbig.sources.slides import decoded_size, tiff_tags
from tfbig.sources.slides.georeference import Georeference, georeference_of_page
from tfbig.units import counted, format_bytes

_MAX_BAND_BYTES: Final = 2**30
_PHOTOGRAPHS: Final = frozenset({"thumbnail", "label", "macro", "map", "overview"})
"""Names of images beside the scan, in SVS and others."""
_YCBCR_DECODED_TO_RGB: Final = frozenset({6, 7, 33007, 34892})  # the JPEG family


class StackError(SourceError):
    """Raised for files that hold a stack of pages, which `tiff_stack` reads."""


class UndecodableError(SourceError):
    """Raised for intact TIFF files whose colours or compression are not decoded here, but maybe by another reader."""


@dataclass(frozen=True)
class TiffLayout:
    """Location of the samples of one page, and how its segments (tiles or strips) are decoded.

    A *band* is a row of tiles, or one strip.

    Attributes:
        shape: `(rows, columns, channels)`, without alpha.
        samples: Samples of a pixel, including alpha.
        stored: Dtype in the byte order of the file.
        nodata: Value of missing tiles.
        planes: Number of separately stored channels; 1 if the channels of a pixel are interleaved.
        segment_shape: Rows and columns of a segment.
        offsets: Offset of every segment in the file.
        counts: Bytes of every segment; 0 if it is missing.
        decode: `decode(data, segment)` returns `[1, rows, columns, samples]`, position and shape.
        declared_size: `declared_size(data)` returns the rows and columns declared in compressed
            data, or None if its format does not declare them.
        rows_at: Offset of the rows if they are stored uncompressed one after the other, else None.
        facts: Description for people.
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
    declared_size: Callable[[bytearray], tuple[int, int] | None]
    rows_at: int | None
    facts: str

    @property
    def num_bands(self) -> int:
        """Number of bands of a plane."""
        return math.ceil(self.shape[0] / self.segment_shape[0])

    @property
    def num_across(self) -> int:
        """Number of segments of a band."""
        return math.ceil(self.shape[1] / self.segment_shape[1])

    @property
    def band_bytes(self) -> int:
        """Size of a decoded band in bytes; its last segment is decoded whole."""
        columns = self.num_across * self.segment_shape[1]
        return self.segment_shape[0] * columns * self.shape[2] * self.stored.itemsize

    def corner(self, segment: int) -> tuple[int, int, int]:
        """The plane, first row and first column of a segment, by its number."""
        plane, place = divmod(segment, self.num_bands * self.num_across)
        band, across = divmod(place, self.num_across)
        return plane, band * self.segment_shape[0], across * self.segment_shape[1]

    def inside(self, segment: int) -> tuple[int, int]:
        """The number of rows and columns of a segment inside the image."""
        _, top, left = self.corner(segment)
        height, width = self.segment_shape
        return min(height, self.shape[0] - top), min(width, self.shape[1] - left)

    def stored_segments(self) -> npt.NDArray[np.bool_]:
        """Tell whether the file stores a segment, in any plane except alpha, `[num_bands, num_across]`."""
        shape = self.planes, self.num_bands, self.num_across
        counts = np.array(self.counts[: math.prod(shape)]).reshape(shape)
        stored: npt.NDArray[np.bool_] = (counts[: self.shape[2]] != 0).any(0)
        return stored

    def segments(self, band: int, across: Iterable[int]) -> list[int]:
        """The segments at the places `across` of a band, in all planes except alpha."""
        planes = min(self.planes, self.shape[2])
        first = [(plane * self.num_bands + band) * self.num_across for plane in range(planes)]
        return [start + place for start in first for place in across]


@dataclass(frozen=True)
class TiffPyramid:
    """Levels of the image of a TIFF file, the largest of those that it holds.

    Attributes:
        levels: Rows and columns of each level.
        resolution: Resolution of level 0.
        georeference: Georeference of level 0, or None.
        channel_names: Names of the channels, or an empty tuple if one has none.
    """

    levels: tuple[tuple[int, int], ...]
    resolution: Resolution
    georeference: Georeference | None
    channel_names: tuple[str, ...] = ()


def read_layout(file: File, level: int) -> tuple[TiffPyramid, TiffLayout]:
    """Read the levels of a TIFF file and the layout of one of them.

    Raises:
        SourceError: The file cannot be read in strips, as in `TiffSource`.
    """
    try:
        with opened(file) as (tiff, series):
            levels = _levels(file.path, series)
            page = _page(file.path, levels, level)
            layout = layout_of_page(file, page)
            return pyramid_of(tiff, levels), layout
    except SourceError:
        raise
    except Exception as error:  # tifffile's exceptions, struct.error, ValueError, IndexError, ...
        raise unreadable(file, error) from error


@contextmanager
def opened(file: File) -> Iterator[tuple[tifffile.TiffFile, tifffile.TiffPageSeries]]:
    """Yield an open TIFF file and its image, which is checked; no other file that it names is opened.

    Raises:
        SourceError: It has no complete image, declares more images than bytes, or says of its samples or of their place
            what is not applied here.
    """
    with tifffile.TiffFile(file.path, _multifile=False) as tiff:
        if not len(tiff.pages):
            raise SourceError(f"{file.path}: {_NO_IMAGE}")
        _check_stack(file, tiff.pages.first)
        _check_end(file, tiff)
        if not tiff.series or not tiff.series[0].axes:
            raise SourceError(f"{file.path}: {_NO_IMAGE}")
        image = _image(file.path, tiff)
        _check_image(file.path, tiff, image)
        yield tiff, image


def unreadable(file: File, error: Exception) -> SourceError:
    """The error of a file that tifffile cannot read."""
    return SourceError(
        f"{file.path}: cannot be read as TIFF ({reason_of(error)}; {file.num_bytes} bytes); expected a "
        "TIFF file or a slide in a TIFF dialect. Check that it is one and was copied completely."
    )


def pyramid_of(tiff: tifffile.TiffFile, levels: Sequence[tifffile.TiffPageSeries]) -> TiffPyramid:
    """Describe levels: their sizes, and resolution and georeference of the first."""
    sizes = tuple((one.keyframe.imagelength, one.keyframe.imagewidth) for one in levels)
    georeference = georeference_of_page(levels[0].keyframe)
    page = levels[0].keyframe
    return TiffPyramid(
        sizes, resolution_from_tiff(tiff, page), georeference, _channel_names(tiff, page)
    )


def _channel_names(tiff: tifffile.TiffFile, page: tifffile.TiffPage) -> tuple[str, ...]:
    """Read the names of the channels in OME-XML or of ImageJ, or an empty tuple."""
    if not tiff.is_ome or not tiff.ome_metadata:
        labels = (tiff.imagej_metadata or {}).get("Labels")
        return tuple(map(str, labels)) if isinstance(labels, list) else ()
    pixels = ome_pixels(tiff.ome_metadata, page)
    channels = [] if pixels is None else pixels.findall("{*}Channel")
    names = [channel.get("Name") or channel.get("Fluor") or "" for channel in channels]
    if len(names) == 1 and channels[0].get("SamplesPerPixel", "1") != "1":
        names = names[0].split(", ")  # as `write_ome_tiff` names the planes of a page
    return tuple(names) if all(names) else ()


def layout_of_page(file: File, page: tifffile.TiffPage | tifffile.TiffFrame) -> TiffLayout:
    """Read the layout of a page.

    Raises:
        SourceError: It cannot be decoded in strips, or is truncated.
    """
    first = page.keyframe
    assert first is not None  # of other frames, tifffile keeps only the places of the samples
    _check_decodable(file.path, first)
    layout = _layout(file.path, first)
    if isinstance(page, tifffile.TiffFrame):
        layout = _at_other_place(layout, page)
    _check_segments(file, layout)
    return layout


def _at_other_place(layout: TiffLayout, frame: tifffile.TiffFrame) -> TiffLayout:
    """The layout of a page like another one whose samples are elsewhere."""
    offsets = tuple(map(operator.index, frame.dataoffsets))
    counts = tuple(map(operator.index, frame.databytecounts))
    follow = all(a + n == b for a, n, b in zip(offsets, counts, offsets[1:], strict=False))
    rows_at = offsets[0] if layout.rows_at is not None and follow else None
    return replace(layout, offsets=offsets, counts=counts, rows_at=rows_at)


def _image(path: str, tiff: tifffile.TiffFile) -> tifffile.TiffPageSeries:
    """Choose the image of a file: most rows times columns, the first of equals; warn of others of its size."""
    named = [series for series in tiff.series if series.axes]
    images = [each for each in named if each.name.lower() not in _PHOTOGRAPHS] or named
    largest = max(images, key=lambda series: _size(series)[0] * _size(series)[1])
    rows, columns = _size(largest)
    others = [
        f"{height} x {width}"
        for each, (height, width) in ((each, _size(each)) for each in images)
        if each is not largest
        and not each.keyframe.is_reduced
        and 2 * height > rows
        and 2 * width > columns
    ]
    if others:
        warnings.warn(
            f"{path}: holds {len(others) + 1} images of a similar size; the one of {rows} x {columns} is read, not "
            f"{', '.join(others)}. Save each in a file of its own.",
            SourceWarning,
            stacklevel=2,
        )
    return largest


def _size(series: tifffile.TiffPageSeries) -> tuple[int, int]:
    """The rows and columns of the pages of a series."""
    return series.keyframe.imagelength, series.keyframe.imagewidth


def _levels(path: str, series: tifffile.TiffPageSeries) -> list[tifffile.TiffPageSeries]:
    if series.axes not in ("YX", "YXS", "SYX"):
        raise StackError(
            f"{path}: holds a stack of images, shape {series.shape} with axes '{_name(series.axes)}'; "
            "expected one image, 'YX' (gray) or 'YXS' (RGB). Open it with open_slide, which reads channels and planes; "
            "an RGB image must be written with photometric='rgb'."
        )
    return list(series.levels)


def _check_stack(file: File, page: tifffile.TiffPage) -> None:
    """Raise SourceError for OME-XML of more images than the file has bytes: tifffile would list all of them."""
    description = page.description if page.is_ome else ""
    for pixels in re.findall(r"<(?:\w+:)?Pixels\s[^>]*>", description):
        sizes = [int(size) for size in re.findall(r'\bSize[ZCT]\s*=\s*["\'](\d+)', pixels)]
        if math.prod(sizes) > file.num_bytes:
            raise SourceError(
                f"{file.path}: its OME-XML declares {counted(math.prod(sizes), 'image')}, but the file has "
                f"{file.num_bytes} bytes. It is damaged or forged; write it again."
            )


def _check_end(file: File, tiff: tifffile.TiffFile) -> None:
    """Raise SourceError if the list of pages goes on after the end of the file, where tifffile ends it silently."""
    if len(tiff.pages) and not tiff.is_ndpi:  # offsets of NDPI are in two parts
        place = tiff.pages.next_page_offset
        data = file.read(place, tiff.tiff.offsetsize) if place else b""
        following = int.from_bytes(data, "little" if tiff.byteorder == "<" else "big")
        if following >= file.num_bytes:
            raise SourceError(
                f"{file.path}: its list of pages goes on at byte {following}, but the file has {file.num_bytes}. It is "
                "truncated; copy it again."
            )


def _check_image(path: str, tiff: tifffile.TiffFile, image: tifffile.TiffPageSeries) -> None:
    """Check what the tags of an image say about its samples and their place, see `tfbig.sources.slides.tiff_tags`.

    Raises:
        SourceError: It is stored rotated or mirrored, or a level is larger.
        ScaledError: Its values are not what is stored.
        UndecodableError: Tiles are missing that OpenSlide paints from other levels.
    """
    page = image.keyframe
    tiff_tags.check(path, tiff, page)
    rows, columns = _size(image)
    for number, (height, width) in enumerate(map(_size, image.levels)):
        if height * width > rows * columns:
            raise SourceError(
                f"{path}: its image, {rows} x {columns}, is a reduced copy of level {number}, {height} x {width}; "
                "expected the image first. Write the pages again in decreasing size."
            )
    if tiff.is_svs and any(0 in level.keyframe.databytecounts for level in image.levels):
        raise UndecodableError(
            f"{path}: its scanner stored no data for some tiles, which OpenSlide paints from other levels.",
            Advice.OPENSLIDE,
        )


def _page(path: str, levels: list[tifffile.TiffPageSeries], level: int) -> tifffile.TiffPage:
    pages = [one.keyframe for one in levels]
    if not 0 <= level < len(pages):
        sizes = ", ".join(f"{page.imagelength} x {page.imagewidth}" for page in pages)
        raise SourceError(
            f"{path}: level {level} requested, but the file has {len(pages)} ({sizes}), counted "
            "from 0. If you expected more, the file may be truncated."
        )
    return pages[level]


def _check_decodable(path: str, page: tifffile.TiffPage) -> None:
    """Raise UndecodableError for colours and compressions that fail to decode, or do not decode to RGB."""
    decoded_to_rgb = page.compression in _YCBCR_DECODED_TO_RGB
    # A palette of a map only colours its numbers, which are classes.
    is_map = page.photometric == 3 and page.is_geotiff
    is_decoded = page.photometric == 6 and decoded_to_rgb
    if page.photometric not in (1, 2) and not is_map and not is_decoded:
        raise UndecodableError(
            f"{path}: its colours are stored as {_name(page.photometric)}; expected gray (0 is "
            "black), RGB, or YCbCr in JPEG. Convert it to RGB."
        )
    try:
        if page.compression == 33003:  # decodes to YCbCr, which nothing else in the file indicates
            raise KeyError("JPEG 2000 in YCbCr is not converted to RGB")
        tifffile.TIFF.DECOMPRESSORS[page.compression]
    except KeyError as error:
        raise UndecodableError(
            f"{path}: is compressed with {_name(page.compression)}, which cannot be decoded here "
            f"({_name(error.args[0])}). Install the imagecodecs package, or convert the file to a tiled "
            "TIFF with JPEG, deflate or zstd compression."
        ) from error


def _name(value: Any) -> str:
    """TIFF's name for the value of a tag, or the value if tifffile does not know it: of damaged files, any text."""
    return reason_of(getattr(value, "name", value))


def _layout(path: str, page: tifffile.TiffPage) -> TiffLayout:
    planes, depth, rows, columns, contiguous = page.shaped
    if page.dtype is None or depth != 1:
        raise SourceError(
            f"{path}: has {_name(page.bitspersample)} bits a sample (format {_name(page.sampleformat)}) and "
            f"depth {depth}; expected 8 or 16 bits and depth 1. Convert it to 8 or 16 bits."
        )
    if page.is_tiled:
        kind, height, width = "tiles", page.tilelength, page.tilewidth
    else:
        kind, height, width = "strips", min(page.rowsperstrip, rows), columns
    samples = planes * contiguous
    bits = page.tags.get(258)
    if bits is not None and bits.count not in (1, samples):
        raise SourceError(
            f"{path}: declares {samples} samples a pixel, but the bits of {bits.count}. The file is damaged; write or "
            "copy it again."
        )
    shape = (rows, columns, _num_colours(page, samples))
    if min(*shape, height, width) < 1:
        raise SourceError(
            f"{path}: declares {shape[0]} x {shape[1]} pixels with {counted(shape[2], 'channel')} in {kind} of "
            f"{height} x {width}. The file is damaged; write or copy it again."
        )
    return TiffLayout(
        shape=shape,
        samples=samples,
        stored=np.dtype(page.dtype).newbyteorder(page.parent.byteorder),
        nodata=page.nodata,
        planes=planes,
        segment_shape=(height, width),
        offsets=tuple(map(operator.index, page.dataoffsets)),  # refuses numbers with a fraction
        counts=tuple(map(operator.index, page.databytecounts)),
        decode=_decoder(page),
        declared_size=_DECLARED_SIZE.get(int(page.compression), _no_declared_size),
        rows_at=page.dataoffsets[0] if page.is_final and planes == 1 else None,
        facts=f"{kind} of {height} x {width}, {_name(page.compression)}",
    )


def _num_colours(page: tifffile.TiffPage, samples: int) -> int:
    """Count the samples before the first alpha sample (1 is associated, 2 is unassociated alpha).

    A sample of unspecified meaning is a band like others, such as near infrared.
    """
    from_alpha = itertools.dropwhile(lambda kind: kind not in (1, 2), page.extrasamples)
    return samples - len(list(from_alpha))


def _decoder(page: tifffile.TiffPage) -> Callable[..., Any]:
    if page.compression in _YCBCR_DECODED_TO_RGB:
        return partial(page.decode, jpegtables=page.jpegtables, jpegheader=page.jpegheader)
    return page.decode


def _no_declared_size(data: bytearray) -> None:
    """Declare no size, for compressions whose data have none."""


_NO_IMAGE: Final = "is a TIFF file without a complete image. Write or copy it again."

_DECLARED_SIZE: Final = dict.fromkeys((6, 7, 33007, 34892), decoded_size.jpeg_size) | dict.fromkeys(
    (33003, 33004, 33005, 34712), decoded_size.jpeg2000_size
)


def _check_segments(file: File, layout: TiffLayout) -> None:
    """Raise SourceError for a truncated file, and for bands too large to decode at once."""
    if any(not at and count for at, count in zip(layout.offsets, layout.counts, strict=False)):
        raise SourceError(
            f"{file.path}: has a tile or strip at byte 0, where its header is. The file is damaged; write or copy it "
            "again."
        )
    if layout.rows_at is not None:
        num_samples = layout.shape[0] * layout.shape[1] * layout.samples
        file.check_length(layout.rows_at + num_samples * layout.stored.itemsize)
        return
    if min(min(numbers, default=0) for numbers in (layout.offsets, layout.counts)) < 0:
        raise SourceError(
            f"{file.path}: has tiles or strips at negative places. The file is damaged; write or copy it again."
        )
    num_segments = layout.num_bands * layout.num_across * layout.planes
    if min(len(layout.offsets), len(layout.counts)) < num_segments:
        raise SourceError(
            f"{file.path}: lists {len(layout.offsets)} offsets and {len(layout.counts)} sizes for "
            f"{num_segments} tiles or strips. The file is damaged; write or copy it again."
        )
    ends = (at + count for at, count in zip(layout.offsets, layout.counts, strict=False) if count)
    file.check_length(max(ends, default=0))
    if layout.band_bytes > _MAX_BAND_BYTES:
        band = "one" if layout.num_across == 1 else f"a row of {layout.num_across}"
        raise SourceError(
            f"{file.path}: {layout.facts}: {band} must be decoded at once and takes "
            f"{format_bytes(layout.band_bytes)}; {format_bytes(_MAX_BAND_BYTES)} are allowed. Convert "
            "the file to smaller tiles, such as of 512 x 512 pixels."
        )
