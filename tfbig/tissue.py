"""Tissue labels of a slide, made as the gigapixel U-Net's were.

Remedios et al., "Exploring shared memory architectures for end-to-end gigapixel deep learning",
MIDL 2023, section 2: "Labels were created by cropping, downsampling by 8, tiling into
non-overlapping 1 x 1 tiles, thresholding tiles with mean intensity over 230 to 0, conversion to
grayscale, thresholding non-zero pixels to 255, median blurring, erosion, dilation, hole filling,
upsampling to the original resolution, re-thresholding values above 0 to 255, and binarizing."
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tfbig.errors import SourceError
from tfbig.sources import ArraySource, Source, Upsampled

__all__ = ["tissue_mask"]

_STRIP_ROWS = 512

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
