"""Detection of tissue on slides: labels of every pixel, as for the gigapixel U-Net, and masks for tiling.

Labels: Remedios et al., "Exploring shared memory architectures for end-to-end gigapixel deep learning",
MIDL 2023, section 2: "Labels were created by cropping, downsampling by 8, tiling into
non-overlapping 1 x 1 tiles, thresholding tiles with mean intensity over 230 to 0, conversion to
grayscale, thresholding non-zero pixels to 255, median blurring, erosion, dilation, hole filling,
upsampling to the original resolution, re-thresholding values above 0 to 255, and binarizing."
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from skimage import color, filters, morphology

from tfbig.choices import TISSUE_METHODS
from tfbig.errors import Advice, SourceError
from tfbig.metrics.confusion import Confusion
from tfbig.sources import PackedMask, Slide, Source, Upsampled
from tfbig.sources.resolution import is_plausible
from tfbig.units import ceil_div, counted

__all__ = ["BlockMeans", "Tissue", "find_tissue", "tissue_mask"]

COLOUR: Final = 5.0
"""Distance in a and b of CIELAB from the colour of glass from which on a pixel is tissue: JPEG tiles differ by 4."""
NOISE: Final = 4.0
"""Distance from which on a pixel is tissue on noisy slides, as a multiple of the median distance of glass."""
SEED: Final = 1.6
"""Distance that at least one pixel of a region must have, as a multiple of that from which on a pixel is tissue."""
GLASS: Final = 0.8
"""Smallest grey value of glass, as a share of the brightest pixels (their 99th percentile)."""
NEUTRAL: Final = 10.0
"""Largest distance of the colour of glass from grey, in a and b of CIELAB."""
GREY: Final = (3, 230)
"""Range of the grey values of tissue, both ends excluded, from the Big-Layers papers (section 4)."""
MPP: Final = 8.0
"""Micrometres per pixel of the image that a mask is computed from, if the pixel size of the slide is known."""
MASK_SIDE: Final = 2048
"""Longer side of the image that a mask is computed from, in pixels, if the pixel size of the slide is unknown."""
DARK: Final = 64
"""Median grey value below which the background of a slide is not glass."""
_STRIP_ROWS: Final = 512

Mask = npt.NDArray[np.bool_]


def tissue_mask(
    source: Source,
    factor: int = 8,
    white: int = 230,
    *,
    median: int = 3,
    erosion: int = 2,
    dilation: int = 4,
) -> Source:
    """Label every pixel of a slide as tissue (1) or background (0).

    The slide is read once, in strips, and only the mask at `1 / factor` is kept; labels at full
    size are enlarged from it as they are read.

        small = mean of each factor x factor block and of the channels
        mask  = 0 < small <= white
        mask  = fill_holes(dilate(erode(median(mask))))
        label[i, j] = mask[i // factor, j // factor]

    `factor` and `white` are from the paper, which does not specify how the slide was downsampled
    or the sizes of the median, the erosion and the dilation. Here blocks are averaged (those at
    the bottom and right edge over the pixels they have), and the sizes were chosen by eye on
    stained sections at about 2 and 0.26 um per pixel: the median and the erosion remove dust and
    single cells, the dilation restores the rim of the tissue and closes narrow gaps, so that small
    lumina become holes and are filled. Exact zeros are background, as in the paper; this also
    covers tiles missing from a slide.

    Args:
        source: The slide `[H, W, 1]` or `[H, W, 3]`, uint8, with a bright background.
        factor: Side of a block in pixels.
        white: Blocks with a mean above this are background.
        median: Radius of the median filter over squares of `2 median + 1` blocks; 0 for none.
        erosion: Radius of the erosion disk in blocks; 0 for none.
        dilation: Radius of the dilation disk in blocks; 0 for none.

    Returns:
        A source of 0 and 1, `[H, W, 1]`, uint8.

    Raises:
        SourceError: The slide is not uint8, has another number of channels, or cannot be read.
        ValueError: `factor` is below 1, or a size is negative.

    Memory:
        At most about `H W (4 C / factor + 9) / factor**2` bytes plus one strip of 512 rows while
        it runs; `H W / factor**2` bytes afterwards.

    Example:
        >>> slide = np.full((64, 64, 3), 240, "uint8")
        >>> slide[16:48, 16:64] = 120
        >>> from tfbig.tissue import tissue_mask
        >>> mask = tissue_mask(tfbig.open(slide), factor=4, median=0, erosion=0, dilation=0)
        >>> mask.read(20, 21)[0, ::8, 0].tolist()
        [0, 0, 1, 1, 1, 1, 1, 1]
    """
    _check(source, factor, (median, erosion, dilation))
    return BlockMeans.of(source, factor).labels(white, median, erosion, dilation)


@dataclass(frozen=True, eq=False)
class BlockMeans:
    """Means of the blocks of a slide, from which `tissue_mask` computes labels for any threshold.

    Args:
        name: Name of the slide.
        shape: Rows and columns of the slide.
        factor: Side of a block in pixels.
        means: Mean of each block and its channels, rounded up, which compares with a whole number as the mean itself
            does, `[ceil(H / factor), ceil(W / factor)]`, uint8.
    """

    name: str
    shape: tuple[int, int]
    factor: int
    means: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, source: Source, factor: int = 8) -> BlockMeans:
        """Read a slide once, in strips."""
        rows, columns = source.shape[:2]
        return cls(source.name, (rows, columns), factor, _block_means(source, factor))

    def labels(
        self, white: int = 230, median: int = 3, erosion: int = 2, dilation: int = 4
    ) -> Source:
        """Label the slide, with arguments as of `tissue_mask`."""
        dark = (self.means > 0) & (self.means <= white)
        small = _cleaned(dark, median, erosion, dilation)
        return Upsampled(PackedMask(small, f"tissue of {self.name}"), self.factor, self.shape)


@dataclass(frozen=True)
class Tissue:
    """A mask of the tissue of a slide.

    Args:
        mask: Boolean `[h, w]` over the whole slide.
        shape: Rows and columns of the slide at level 0.
        agreement: Dice coefficient of the masks of the methods "colour" and "otsu". Where it is low, tissue is pale, or
            something else on the slide is coloured.
        note: What is to be said of outlines that the mask was read from, in one line, or nothing.
    """

    mask: Mask
    shape: tuple[int, int]
    agreement: float = 1.0
    note: str = ""

    @property
    def share(self) -> float:
        """Fraction of the slide that is tissue, 0 to 1."""
        return float(self.mask.mean())

    def shares(self, coords: npt.ArrayLike, size: float) -> npt.NDArray[np.float64]:
        """The fraction of tissue in squares of the slide.

        Args:
            coords: x and y of the upper left corner of each square in pixels of level 0, `[n, 2]`.
            size: Side of the squares in pixels of level 0.

        Returns:
            `[n]`, float64, from 0 to 1. Pixels outside the slide count as background.
        """
        corners = np.asarray(coords, np.float64).reshape(-1, 2)
        sums = np.zeros([n + 1 for n in self.mask.shape])
        sums[1:, 1:] = self.mask.cumsum(0).cumsum(1)
        steps = [n / m for n, m in zip(self.shape, self.mask.shape, strict=True)]
        ends = [[corners[:, 1 - axis] + side for side in (0, size)] for axis in (0, 1)]
        scaled = [[end / step for end in pair] for pair, step in zip(ends, steps, strict=True)]
        area = size * size / (steps[0] * steps[1])
        (top, bottom), (left, right) = scaled
        total = _interpolate(sums, bottom, right) - _interpolate(sums, top, right)
        total -= _interpolate(sums, bottom, left) - _interpolate(sums, top, left)
        shares: npt.NDArray[np.float64] = np.clip(total / area, 0, 1)
        return shares


def find_tissue(
    slide: Slide,
    method: str = "colour",
    *,
    dark: bool = False,
    smallest: float = 64.0,
    holes: float = 64.0,
) -> Tissue:
    """Separate tissue from glass, on an image of the slide at 8 um per pixel.

    Args:
        slide: The slide, uint8 with one or three channels.
        method: "colour": tissue differs in colour from the glass of the slide, however pale it is; grey shadows and
            dust do not; "otsu": tissue is more saturated (HSV) than Otsu's threshold (1979), as CAMELYON is tiled
            (Zhang et al., 2022); "grey": tissue has a grey value above 3 and below 230, as PANDA is tiled.
        dark: Whether the background is dark, as in fluorescence: tissue is then brighter than Otsu's threshold of the
            grey values. So is tissue on one channel darker.
        smallest: Regions of fewer pixels of that image are removed as dirt.
        holes: Holes of fewer pixels of that image are filled.

    Returns:
        The mask.

    Raises:
        ValueError: `method` is unknown, or is "grey" with a dark background.
        SourceError: The slide has another dtype or number of channels, cannot be read, or has a dark background
            although `dark` is False.

    Example:
        >>> image = np.full((300, 200, 3), 240, "uint8")
        >>> image[100:200, 50:150] = (150, 80, 160)
        >>> np.save("slide.npy", image)
        >>> from tfbig.tissue import find_tissue
        >>> tissue = find_tissue(tfbig.open_slide("slide.npy"))
        >>> tissue.mask.shape, round(tissue.share, 2)
        ((300, 200), 0.17)
    """
    if method not in TISSUE_METHODS or (dark and method == "grey"):
        raise ValueError(
            f"received method '{method}', dark={dark}; expected 'colour' or 'otsu', or 'grey' with dark=False."
        )
    if slide.dtype != np.uint8 or slide.shape[2] not in (1, 3):
        raise SourceError(
            f"{slide.name}: has {counted(slide.shape[2], 'channel')} of {slide.dtype}; tissue is found in 1 or 3 "
            "channels of uint8.",
            Advice.NO_TISSUE,
        )
    small = slide.scaled(small_step(slide))
    image = small.read(0, small.shape[0])
    rows, columns = slide.shape[:2]
    if method == "grey":
        return Tissue(_without_small(in_grey_range(image), smallest, holes), (rows, columns))
    otsu = _without_small(_otsu_mask(image, dark, slide.name), smallest, holes)
    if dark or image.shape[2] == 1:
        return Tissue(otsu, (rows, columns))
    colour = _without_small(_colour_mask(image), smallest, holes)
    mask = colour if method == "colour" else otsu
    return Tissue(mask, (rows, columns), _dice(colour, otsu))


def _without_small(mask: Mask, smallest: float, holes: float) -> Mask:
    """Remove small regions and holes from a mask."""
    cleaned = morphology.remove_small_objects(mask, max_size=math.ceil(smallest) - 1)
    filled: Mask = morphology.remove_small_holes(cleaned, max_size=math.ceil(holes) - 1)
    return filled


def _dice(first: Mask, second: Mask) -> float:
    """Dice of two masks, 1 if both are empty."""
    seen = Confusion.empty(2)
    seen.add(first, second)
    dice = seen.dice()[1]
    return 1.0 if dice is None else dice


def _check(source: Source, factor: int, sizes: tuple[int, int, int]) -> None:
    if source.dtype != np.uint8 or source.shape[2] not in (1, 3):
        raise SourceError(
            f"{source.name}: has {counted(source.shape[2], 'channel')} of {source.dtype}; expected a slide of "
            "1 or 3 channels of uint8. Convert it first."
        )
    if factor < 1 or min(sizes) < 0:
        raise ValueError(
            f"tissue_mask received factor {factor} and (median, erosion, dilation) {sizes}; "
            "expected a factor of at least 1 and sizes of at least 0. Use 0 to omit a step."
        )


def _block_means(source: Source, factor: int) -> npt.NDArray[np.uint8]:
    """Mean of each block, rounded up, `[ceil(H / factor), ceil(W / factor)]`."""
    num_rows, num_columns, _ = source.shape
    means = np.zeros((math.ceil(num_rows / factor), math.ceil(num_columns / factor)), np.uint8)
    strip_rows = max(1, _STRIP_ROWS // factor) * factor
    for start in range(0, num_rows, strip_rows):
        rows = source.read(start, min(start + strip_rows, num_rows))
        sums, counts = _block_sums(rows, factor)
        first = start // factor
        means[first : first + len(sums)] = ceil_div(sums.astype(np.int64), counts)
    return means


def _block_sums(rows: npt.NDArray[Any], factor: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Sum and number of samples of each block of uint8 `[r, W, C]`, each `[r / factor, ...]`."""
    num_rows, num_columns, num_channels = rows.shape
    whole = num_rows - num_rows % factor
    tall = rows[:whole].reshape(-1, factor, num_columns * num_channels).sum(1, dtype=np.uint32)
    if whole < num_rows:
        tall = np.concatenate([tall, rows[whole:].reshape(1, -1, tall.shape[1]).sum(1, np.uint32)])
    starts = np.arange(0, num_columns, factor) * num_channels
    sums = np.add.reduceat(tall, starts, axis=1, dtype=np.uint64)
    counts = np.outer(_block_sizes(num_rows, factor), _block_sizes(num_columns, factor))
    return sums, counts * num_channels


def _block_sizes(extent: int, factor: int) -> npt.NDArray[np.int64]:
    """The sizes of blocks along an axis, `[factor, factor, ..., remainder]`, which add up to `extent`."""
    starts = np.arange(0, extent, factor)
    return np.minimum(starts + factor, extent) - starts


def _cleaned(mask: Mask, median: int, erosion: int, dilation: int) -> Mask:
    """Apply median, erosion, dilation and hole filling; borders of the image are neutral."""
    majority = _majority(mask, 2 * median + 1)
    if erosion:
        majority = ndimage.binary_erosion(majority, _disk(erosion), border_value=1)
    if dilation:
        majority = ndimage.binary_dilation(majority, _disk(dilation))
    filled: Mask = ndimage.binary_fill_holes(majority)
    return filled


def _majority(mask: Mask, size: int) -> Mask:
    """Filter a mask by the median over squares of odd size, which is a count."""
    counts = mask.astype(np.int32)
    for axis in (0, 1):
        counts = ndimage.correlate1d(counts, np.ones(size, np.int32), axis, mode="nearest")
    return np.asarray(2 * counts > size * size, bool)


def _disk(radius: int) -> Mask:
    """A disk as a mask `[2 radius + 1, 2 radius + 1]`."""
    rows, columns = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    inside: Mask = rows**2 + columns**2 <= radius**2
    return inside


def small_step(slide: Slide) -> float:
    """The width of a pixel of the image that a mask is computed from, in pixels of level 0."""
    if slide.mpp is not None and is_plausible(slide.mpp):
        return max(2 * MPP / sum(slide.mpp), 1.0)
    return max(max(slide.shape[:2]) / MASK_SIDE, 1.0)


def _otsu_mask(image: npt.NDArray[Any], dark: bool, name: str) -> Mask:
    """Find the tissue of an image `[H, W, C]` by Otsu's threshold."""
    if not dark and np.median(gray(image)) < DARK:
        raise SourceError(
            f"{name}: its background is dark, with a median grey value of {np.median(gray(image)):.0f}; expected a "
            "bright background.",
            Advice.DARK,
        )
    if dark or image.shape[2] == 1:
        grey = ndimage.median_filter(gray(image), 3)
        return np.asarray(grey > _otsu(grey) if dark else grey < _otsu(grey), bool)
    padding = _padding(image)
    saturation = ndimage.median_filter(_by_strips(image, _saturation), 3)
    return np.asarray((saturation > _otsu(saturation[~padding])) & ~padding, bool)


def _colour_mask(image: npt.NDArray[Any]) -> Mask:
    """Find the pixels of an RGB image `[H, W, 3]` that differ in colour from glass, `[H, W]`.

    Regions in which no pixel differs clearly are left out.
    """
    smooth = ndimage.median_filter(image, (3, 3, 1))
    padding = _padding(image)
    colours = _by_strips(smooth, _ab)
    glass = _glass(smooth, colours, padding)
    colour = np.median(colours[glass], axis=0) if glass.any() else 0.0
    distance = np.hypot(*np.moveaxis(colours - colour, -1, 0))
    noise = float(np.median(distance[glass])) if glass.any() else 0.0
    distance[padding] = 0
    least = max(COLOUR, NOISE * noise)
    mask: Mask = filters.apply_hysteresis_threshold(distance, least, SEED * least)  # type: ignore[no-untyped-call]
    return mask


def _glass(image: npt.NDArray[Any], colours: npt.NDArray[Any], padding: Mask) -> Mask:
    """Find glass: at the most frequent grey value of bright pixels without much colour.

    There may be none, if tissue covers all of the image.
    """
    values = np.rint(_by_strips(image, gray)).astype(np.uint8)
    bright = values >= GLASS * np.percentile(values, 99)
    candidates = bright & ~padding & (np.hypot(colours[..., 0], colours[..., 1]) < NEUTRAL)
    level = np.bincount(values[candidates], minlength=1).argmax()
    return np.asarray(candidates & (values == level), bool)


def _padding(image: npt.NDArray[Any]) -> Mask:
    """Find the black padding that scanners add."""
    return np.asarray(image.max(2) <= GREY[0], bool)


def _by_strips(
    image: npt.NDArray[Any], function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
) -> npt.NDArray[np.float32]:
    """Apply a function to each pixel, strip by strip: conversions of colours need many times the bytes of an image."""
    starts = range(0, len(image), _STRIP_ROWS)
    strips = [function(image[i : i + _STRIP_ROWS]).astype(np.float32) for i in starts]
    return np.concatenate(strips)


def _saturation(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The saturation of an RGB image, 0 to 255."""
    saturation: npt.NDArray[Any] = np.rint(color.rgb2hsv(image)[..., 1] * 255)
    return saturation


def _ab(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The channels a and b of an RGB image in CIELAB, `[H, W, 2]`."""
    colours: npt.NDArray[Any] = color.rgb2lab(image)[..., 1:]
    return colours


def _otsu(values: npt.NDArray[Any]) -> float:
    """Otsu's threshold; for constant values the value itself, so that nothing is above it."""
    if not values.size:
        return 0.0
    return float(filters.threshold_otsu(values))  # type: ignore[no-untyped-call]


def in_grey_range(image: npt.NDArray[Any]) -> Mask:
    """Mask the pixels `[H, W]` of an image `[H, W, C]`, uint8, with a grey value above 3 and below 230."""
    values = gray(image)
    return (values > GREY[0]) & (values < GREY[1])


def gray(image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The luma (ITU-R BT.601) of an RGB image, or the channel of a gray one, `[H, W, 3 or 1]`, as `[H, W]`."""
    weights = (0.299, 0.587, 0.114) if image.shape[-1] == 3 else (1.0,)
    luma: npt.NDArray[np.float32] = image.astype(np.float32) @ np.array(weights, np.float32)
    return luma


def _interpolate(sums: npt.NDArray[Any], rows: Any, columns: Any) -> npt.NDArray[np.float64]:
    """Sum the mask above and left of positions between pixels.

    `sums` is the integral image of the mask; linear interpolation of it is exact.
    """
    positions = np.stack(
        [np.clip(p, 0, n - 1) for p, n in zip((rows, columns), sums.shape, strict=True)]
    )
    values: npt.NDArray[np.float64] = ndimage.map_coordinates(
        sums, positions, order=1, mode="nearest"
    )
    return values
