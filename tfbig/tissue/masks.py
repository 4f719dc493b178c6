"""Where the tissue of a slide is: labels of every pixel, made as the gigapixel U-Net's were, or a mask to tile by.

Labels: Remedios et al., "Exploring shared memory architectures for end-to-end gigapixel deep learning",
MIDL 2023, section 2: "Labels were created by cropping, downsampling by 8, tiling into
non-overlapping 1 x 1 tiles, thresholding tiles with mean intensity over 230 to 0, conversion to
grayscale, thresholding non-zero pixels to 255, median blurring, erosion, dilation, hole filling,
upsampling to the original resolution, re-thresholding values above 0 to 255, and binarizing."
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from skimage import color, filters, morphology

from tfbig.errors import SourceError
from tfbig.sources import ArraySource, Slide, Source, Upsampled

__all__ = ["Tissue", "find_tissue", "tissue_mask"]

METHODS: Final = ("otsu", "grey")
GREY: Final = (3, 230)
"""Grey values of tissue, without the two themselves: the range of the Big-Layers papers (section 4)."""
MPP: Final = 8.0
"""Of the picture on which a mask is found, where that of the slide is known; else its longer side has `SIDE` pixels."""
SIDE: Final = 2048
DARK: Final = 64
"""Grey value below which the ground of a slide is no glass."""
_STRIP_ROWS: Final = 512

Mask = npt.NDArray[np.bool_]


def tissue_mask(
    source: Source,
    factor: int = 8,
    white: float = 230,
    *,
    median: int = 3,
    erosion: int = 2,
    dilation: int = 4,
) -> Source:
    """Labels every pixel of a slide as tissue (1) or background (0).

    The slide is read once, by strips, and only the mask at `1 / factor` is kept; the label of
    full size is enlarged from it row by row as it is read.

        small = mean of each factor x factor block and of the channels
        mask  = 0 < small <= white
        mask  = fill_holes(dilate(erode(median(mask))))
        label[i, j] = mask[i // factor, j // factor]

    The paper gives `factor` and `white`. It does not give how the slide was downsampled, nor the
    sizes of the median, the erosion and the dilation. Here blocks are averaged (those at the
    bottom and right edge over the pixels they have), and the sizes were chosen by eye on stained
    sections at about 2 and 0.26 um per pixel: the median and the erosion remove dust and single
    cells, the dilation gives the tissue its rim back and closes narrow gaps, so that small lumina
    become holes and are filled. Exact zeros are background, as in the paper, which also covers
    tiles that a slide leaves out.

    Args:
        source: The slide `[H, W, 1]` or `[H, W, 3]`, uint8, bright background: not inverted.
        factor: Side of a block in pixels.
        white: Blocks with a mean above this are background.
        median: The median is taken over squares of `2 median + 1` small pixels; 0 for none.
        erosion: Radius of the disk of the erosion in small pixels; 0 for none.
        dilation: Radius of the disk of the dilation in small pixels; 0 for none.

    Returns:
        A source of 0 and 1, uint8 `[H, W, 1]`.

    Raises:
        SourceError: The slide is not uint8, has another number of channels, or cannot be read.
        ValueError: `factor` is below 1, or a size is negative.

    Memory:
        While it runs about `H W (4 C / factor + 8) / factor**2` bytes at most, beside one strip
        of 512 rows; then `H W / factor**2` bytes.
    """
    _check(source, factor, (median, erosion, dilation))
    small = _cleaned(_dark_blocks(source, factor, white), median, erosion, dilation)
    labels = ArraySource(small.astype(np.uint8), name=f"tissue of {source.name}")
    rows, columns = source.shape[:2]
    return Upsampled(labels, factor, (rows, columns))


@dataclass(frozen=True)
class Tissue:
    """A mask of tissue.

    Attributes:
        mask: `[h, w]`, over the whole slide.
        shape: rows and columns of the slide at level 0.
    """

    mask: Mask
    shape: tuple[int, int]

    @property
    def share(self) -> float:
        """Of the slide that is tissue."""
        return float(self.mask.mean())

    def shares(self, coords: npt.ArrayLike, size: float) -> npt.NDArray[np.float64]:
        """Of squares of the slide, how much is tissue.

        Args:
            coords: x and y of their upper left corners at level 0, `[n, 2]`.
            size: their sides, in pixels of level 0.

        Returns:
            `[n]`, from 0 to 1. What is outside the slide is no tissue.
        """
        corners = np.asarray(coords, np.float64).reshape(-1, 2)
        sums = np.zeros([n + 1 for n in self.mask.shape])
        sums[1:, 1:] = self.mask.cumsum(0).cumsum(1)
        steps = [n / m for n, m in zip(self.shape, self.mask.shape, strict=True)]
        at = [[corners[:, 1 - axis] + side for side in (0, size)] for axis in (0, 1)]
        places = [[p / step for p in pair] for pair, step in zip(at, steps, strict=True)]
        area = size * size / (steps[0] * steps[1])
        (top, bottom), (left, right) = places
        total = _within(sums, bottom, right) - _within(sums, top, right)
        total -= _within(sums, bottom, left) - _within(sums, top, left)
        found: npt.NDArray[np.float64] = np.clip(total / area, 0, 1)
        return found


def find_tissue(
    slide: Slide,
    method: str = "otsu",
    *,
    dark: bool = False,
    smallest: float = 64.0,
    holes: float = 64.0,
) -> Tissue:
    """Tells tissue from glass, on a picture at 8 um a pixel.

    Args:
        slide: uint8, of one or three channels.
        method: "otsu": what is more coloured than Otsu's threshold (1979) of the saturation of HSV, as CAMELYON is
            tiled (Zhang et al., 2022), of one channel what is darker; "grey": what has a grey value above 3 and below
            230, as PANDA is.
        dark: the ground is dark, as in fluorescence: tissue is what is brighter than Otsu's threshold of the grey
            values.
        smallest: parts of fewer pixels of the small picture are dirt.
        holes: holes of fewer are tissue.

    Raises:
        ValueError: there is no such method, or "grey" is asked for on a dark ground.
        SourceError: the slide has other samples or channels, cannot be read, or has a dark ground where a bright one
            is expected.
    """
    if method not in METHODS or (dark and method == "grey"):
        raise ValueError(
            f"tissue by '{method}'{' on a dark ground' if dark else ''}; expected 'otsu', or 'grey' on a bright one."
        )
    if slide.dtype != np.uint8 or slide.shape[2] not in (1, 3):
        raise SourceError(
            f"{slide.name}: has {slide.shape[2]} channels of {slide.dtype}; tissue is found on 1 or 3 channels of "
            "uint8. Convert it first, or tile without a mask (--tissue none)."
        )
    small = slide.scaled(_factor(slide))
    picture = small.read(0, small.shape[0])
    found = _by_otsu(picture, dark, slide.name) if method == "otsu" else in_grey_range(picture)
    cleaned = morphology.remove_small_objects(found, max_size=math.ceil(smallest) - 1)
    cleaned = morphology.remove_small_holes(cleaned, max_size=math.ceil(holes) - 1)
    rows, columns = slide.shape[:2]
    return Tissue(cleaned, (rows, columns))


def _check(source: Source, factor: int, sizes: tuple[int, int, int]) -> None:
    if source.dtype != np.uint8 or source.shape[2] not in (1, 3):
        raise SourceError(
            f"{source.name}: has {source.shape[2]} channels of {source.dtype}; tissue_mask expects "
            "a slide of 1 or 3 channels of uint8. Convert it first."
        )
    if factor < 1 or min(sizes) < 0:
        raise ValueError(
            f"tissue_mask was given factor {factor} and (median, erosion, dilation) {sizes}; "
            "expected a factor of at least 1 and sizes of at least 0. Use 0 to leave a step out."
        )


def _dark_blocks(source: Source, factor: int, white: float) -> Mask:
    """Whether the mean of each block is above 0 and at most `white`: `[ceil(H / factor), ...]`."""
    num_rows, num_columns, _ = source.shape
    mask = np.zeros((math.ceil(num_rows / factor), math.ceil(num_columns / factor)), bool)
    strip_rows = max(1, _STRIP_ROWS // factor) * factor
    for start in range(0, num_rows, strip_rows):
        rows = source.read(start, min(start + strip_rows, num_rows))
        sums, counts = _block_sums(rows, factor)
        first = start // factor
        mask[first : first + len(sums)] = (sums > 0) & (sums <= white * counts)
    return mask


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
    """`[factor, factor, ..., what is left]`, adding up to `extent`."""
    starts = np.arange(0, extent, factor)
    return np.minimum(starts + factor, extent) - starts


def _cleaned(mask: Mask, median: int, erosion: int, dilation: int) -> Mask:
    """Median, erosion, dilation and hole filling; what is outside the image changes nothing."""
    majority = ndimage.median_filter(mask.view(np.uint8), 2 * median + 1, mode="nearest") > 0
    if erosion:
        majority = ndimage.binary_erosion(majority, _disk(erosion), border_value=1)
    if dilation:
        majority = ndimage.binary_dilation(majority, _disk(dilation))
    filled: Mask = ndimage.binary_fill_holes(majority)
    return filled


def _disk(radius: int) -> Mask:
    """The pixels within `radius` of the middle of `[2 radius + 1, 2 radius + 1]`."""
    rows, columns = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    inside: Mask = rows**2 + columns**2 <= radius**2
    return inside


def _factor(slide: Slide) -> float:
    """How many pixels of level 0 one of the small picture is wide."""
    if slide.mpp is not None:
        return max(2 * MPP / sum(slide.mpp), 1.0)
    return max(max(slide.shape[:2]) / SIDE, 1.0)


def _by_otsu(picture: npt.NDArray[Any], dark: bool, name: str) -> Mask:
    if not dark and np.median(gray(picture)) < DARK:
        raise SourceError(
            f"{name}: its ground is dark, with a median grey value of {np.median(gray(picture)):.0f}; tissue is found "
            "as what is more coloured or darker than a bright one. Pass dark=True (--dark)."
        )
    if dark or picture.shape[2] == 1:
        grey = ndimage.median_filter(gray(picture), 3)
        return np.asarray(grey > _otsu(grey) if dark else grey < _otsu(grey), bool)
    padding = picture.max(2) <= GREY[0]  # of scanners, black
    saturation = ndimage.median_filter(np.rint(color.rgb2hsv(picture)[..., 1] * 255), 3)
    return np.asarray((saturation > _otsu(saturation[~padding])) & ~padding, bool)


def _otsu(values: npt.NDArray[Any]) -> float:
    """Otsu's threshold; that of one value is the value, so nothing is above it."""
    if not values.size:
        return 0.0
    return float(filters.threshold_otsu(values))  # type: ignore[no-untyped-call]


def in_grey_range(picture: npt.NDArray[Any]) -> Mask:
    """Pixels of `[H, W, C]`, uint8, with a grey value above 3 and below 230, `[H, W]`."""
    values = gray(picture)
    return (values > GREY[0]) & (values < GREY[1])


def gray(picture: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Luma of `[H, W, 3]` (ITU-R BT.601), or the one channel; `[H, W]`."""
    weights = (0.299, 0.587, 0.114) if picture.shape[-1] == 3 else (1.0,)
    found: npt.NDArray[np.float32] = picture.astype(np.float32) @ np.array(weights, np.float32)
    return found


def _within(sums: npt.NDArray[Any], rows: Any, columns: Any) -> npt.NDArray[np.float64]:
    """The sum over the mask above and left of places between its pixels, by linear interpolation: exact."""
    places = np.stack(
        [np.clip(p, 0, n - 1) for p, n in zip((rows, columns), sums.shape, strict=True)]
    )
    found: npt.NDArray[np.float64] = ndimage.map_coordinates(sums, places, order=1, mode="nearest")
    return found
