"""Patches of an image as a bag: read one by one, or a few neighbours together, never the whole image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SmallImageError, SourceError
from tfbig.geometry.patch_grid import PatchGrid, per_axis
from tfbig.sources.bags.bag import Bag, Indices
from tfbig.sources.source import Readable, RowArray, Source


@final
class Patches(Bag):
    """The patches of an image `[H, W, C]`, or the chunks of a series `[L, C]`, on a regular grid.

    Args:
        image: A source, or a bag `[L, C]` as a series of L samples.
        patch: `(rows, columns)` of a patch, or one number for both; number of samples of a chunk.
        stride: Distance between patches along each axis; by default the size of a patch.

    Attributes:
        grid: Positions of the patches, a `tfbig.geometry.patch_grid.PatchGrid`.

    Raises:
        SourceError: The image is smaller than a patch, or the sizes do not match its number of axes.

    Example:
        >>> image = tfbig.open(np.arange(48, dtype="uint8").reshape(6, 8))
        >>> patches = tfbig.sources.Patches(image, 2, stride=2)
        >>> patches.shape, patches.read(1, 2)[0, ..., 0].tolist()
        ((12, 2, 2, 1), [[2, 3], [10, 11]])
    """

    def __init__(
        self,
        image: Readable,
        patch: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
    ) -> None:
        self.grid = patch_grid(image, patch, stride)
        shape = (self.grid.count, *self.grid.patch, image.shape[-1])
        coords = None
        if len(self.grid.cells) == 2:
            coords = self.grid.corners(np.arange(self.grid.count))[:, ::-1]
        super().__init__(shape, image.dtype, f"patches of {image.name}", coords)
        self._image = image

    def _read(self, start: int, stop: int) -> RowArray:
        return self._take(np.arange(start, stop))

    def _take(self, places: Indices) -> RowArray:
        return read_patches(self._image, self.grid, places)

    def close(self) -> None:
        """Close the image."""
        self._image.close()


def patch_grid(
    image: Readable, patch: int | Sequence[int], stride: int | Sequence[int] | None = None
) -> PatchGrid:
    """Lay the grid of patches over an image `[H, W, C]` or a series `[L, C]`, with sizes as in `Patches`.

    Raises:
        SourceError: The image is smaller than a patch, or the sizes do not match its number of axes.
    """
    extents = image.shape[:-1]
    try:
        sizes = per_axis(patch, len(extents), "patch")
        steps = sizes if stride is None else per_axis(stride, len(extents), "stride")
        return PatchGrid(extents, sizes, steps)
    except SmallImageError as error:
        problem = f"{image.name}: {error.problem}"
        raise SourceError(problem, *error.advice, **error.values) from error
    except ValueError as error:
        raise SourceError(f"{image.name}: {error}") from error


def read_patches(image: Readable, grid: PatchGrid, places: npt.ArrayLike) -> RowArray:
    """Read patches by their numbers `[k]`, as `[k, *patch, C]`, from an image `[H, W, C]` or a series `[L, C]`.

    Raises:
        SourceError: The file is damaged there.
    """
    return read_rectangles(image, grid.corners(places), grid.patch)


def read_rectangles(image: Readable, corners: Indices, size: Sequence[int]) -> RowArray:
    """Read rectangles of one size, `[k, *size, C]`; neighbours in a row are read together.

    The image is `[H, W, C]` or a series `[L, C]`; `corners` are the first pixels, `[k, axes]`.

    Raises:
        SourceError: The file is damaged there.
    """
    out: npt.NDArray[Any] = np.empty((len(corners), *size, image.shape[-1]), image.dtype)
    if not len(corners):
        return out
    steps = np.diff(corners, axis=0)
    along = (steps[:, :-1] == 0).all(1) & (steps[:, -1] >= 0) & (steps[:, -1] <= size[-1])
    for run in np.split(np.arange(len(corners)), np.flatnonzero(~along) + 1):
        first, last = corners[run[0]], corners[run[-1]]
        window = _read(image, first, last + size)
        for place in run:
            begin = int(corners[place, -1] - first[-1])
            out[place] = window[..., begin : begin + size[-1], :]
    return out


def _read(image: Readable, first: Indices, after: Indices) -> RowArray:
    """Read the rectangle between two corners."""
    ranges = [(int(a), int(b)) for a, b in zip(first, after, strict=True)]
    if isinstance(image, Source):
        return image.read_window(ranges[0], ranges[1])
    return image.read(*ranges[0])
