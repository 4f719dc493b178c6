"""Augmentation with one set of parameters for a whole bag or image: blur, colours, flips and rotation."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from skimage.color import hed_from_rgb, hsv2rgb, rgb2hsv, rgb_from_hed

from tfbig.errors import SourceError
from tfbig.geometry import cells
from tfbig.geometry.background import Background
from tfbig.geometry.windows import Interval
from tfbig.sources.background import cells_of_window, colour_of, read_foreground
from tfbig.sources.bags.bag import Bag, Indices
from tfbig.sources.source import RowArray, Source, View
from tfbig.units import ceil_div

Image = npt.NDArray[np.float32]
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in ITU-R BT.601."""
_JITTER = 1
"""Second part of the seed of stains, so that other parameters are drawn from other numbers."""
_DARKEST = 1e-6
"""Intensity below which optical density does not grow, as in scikit-image."""
SAMPLED_BANDS, BAND_ROWS, SAMPLED_COLUMNS = 16, 16, 1024

_sampling = threading.Lock()
_samples: WeakKeyDictionary[Source, npt.NDArray[np.uint8]] = WeakKeyDictionary()
"""Sampled pixels of augmented images, read once per image and not for every augmentation."""
_moved: WeakKeyDictionary[Source, tuple[Background, tuple[Any, ...], Background]] = (
    WeakKeyDictionary()
)
"""Background of each image, the change that moved it last, and the result, since every strip resolves a handle."""


@dataclass(frozen=True)
class Augmentation:
    """Parameters of an augmentation; by default nothing changes.

    Calling it augments one tile: stains, blur, brightness, contrast, saturation, hue, flips, rotation, in this order.

    Args:
        sigma: Standard deviation of a Gaussian blur over 3 x 3 pixels; 0 for no blur.
        brightness: Factor of every sample.
        contrast: Factor of the distance from the mean luma of the tile.
        saturation: Factor of the distance from the luma of the pixel.
        hue: Shift of the hue, as a fraction of the colour circle.
        flip_rows: Whether to reverse the rows.
        flip_columns: Whether to reverse the columns.
        quarter_turns: Counterclockwise rotation in units of 90 degrees.
        stain_scale: Factors of hematoxylin, eosin and DAB, separated as by `skimage.color.rgb2hed`.
        stain_shift: Optical density, by natural logarithms, that is then added to each.

    Example:
        >>> tile = np.arange(4, dtype="uint8").reshape(2, 2, 1)
        >>> tfbig.sources.Augmentation(flip_columns=True)(tile)[..., 0].tolist()
        [[1, 0], [3, 2]]
        >>> tfbig.sources.Augmentation.draw(seed=3).quarter_turns in (-1, 0, 1)
        True
    """

    sigma: float = 0.0
    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0
    flip_rows: bool = False
    flip_columns: bool = False
    quarter_turns: int = 0
    stain_scale: tuple[float, ...] = (1.0, 1.0, 1.0)
    stain_shift: tuple[float, ...] = (0.0, 0.0, 0.0)

    def with_jitter(self, sigma: float, seed: int) -> Augmentation:
        """Add random stains to the augmentation, as HED jitter.

        Factors are drawn from 1 - sigma to 1 + sigma, shifts from -sigma to sigma. Tellez et al., "Whole-slide mitosis
        detection in H&E breast histology using PHH3 as a reference" (IEEE TMI 2018), with sigma 0.05.

        Args:
            sigma: Largest change; 0 returns the augmentation unchanged.
            seed: Seed; the same seed draws the same stains.
        """
        if not sigma:
            return self
        drawn = np.random.default_rng((seed, _JITTER)).uniform(-sigma, sigma, (2, 3))
        scale, shift = (tuple(map(float, row)) for row in (1 + drawn[0], drawn[1]))
        return replace(self, stain_scale=scale, stain_shift=shift)

    @property
    def changes_stains(self) -> bool:
        """True if the augmentation changes the stains."""
        return self.stain_scale != (1.0, 1.0, 1.0) or self.stain_shift != (0.0, 0.0, 0.0)

    @classmethod
    def draw(cls, seed: int | tuple[int, int]) -> Augmentation:
        """Draw random parameters as in Big-Layers, appendix and code.

        sigma 0.1 to 2; factors 0.5 to 1.5; hue up to 0.3 of the circle either way; flips of either axis with
        probability 1/2; rotation by -90, 0 or 90 degrees.

        Args:
            seed: Seed of one or two numbers; the same seed draws the same parameters.
        """
        rng = np.random.default_rng(seed)
        return cls(
            sigma=float(rng.uniform(0.1, 2)),
            brightness=float(rng.uniform(0.5, 1.5)),
            contrast=float(rng.uniform(0.5, 1.5)),
            saturation=float(rng.uniform(0.5, 1.5)),
            hue=float(rng.uniform(-0.3, 0.3)),
            flip_rows=bool(rng.integers(2)),
            flip_columns=bool(rng.integers(2)),
            quarter_turns=int(rng.integers(-1, 2)),
        )

    def __call__(
        self, tile: npt.NDArray[np.uint8], mean: float | None = None
    ) -> npt.NDArray[np.uint8]:
        """Augment a tile.

        Stains, saturation and hue do not apply to tiles with one channel.

        Args:
            tile: `[H, W, 1]` or `[H, W, 3]`, uint8.
            mean: Luma, 0 to 1, that contrast leaves unchanged; by default the mean of the tile after brightness.

        Returns:
            `[H, W, C]`, or `[W, H, C]` after a quarter turn, uint8.
        """
        x: Image = self.stained(tile.astype(np.float32) / np.float32(255))
        if self.sigma:
            x = ndimage.gaussian_filter(
                x, (self.sigma, self.sigma, 0), mode="mirror", radius=(1, 1, 0)
            )
        x = np.clip(x * self.brightness, 0, 1)
        gray = x @ LUMA if x.shape[-1] == 3 else x[..., 0]
        middle = np.float32(gray.mean(dtype=np.float32) if mean is None else mean)
        x = np.clip(middle + (x - middle) * self.contrast, 0, 1)
        if x.shape[-1] == 3:
            x = _scale_saturation(x, self.saturation)
            x = _shift_hue(x, self.hue) if self.hue else x
        x = x[::-1] if self.flip_rows else x
        x = x[:, ::-1] if self.flip_columns else x
        augmented: npt.NDArray[np.uint8] = np.round(np.rot90(x, self.quarter_turns) * 255).astype(
            np.uint8
        )
        return augmented

    def stained(self, x: Image) -> Image:
        """Return pixels `[..., C]` from 0 to 1 with changed stains: `-log(y) = (-log(x) H^-1 * scale + shift) H`."""
        if x.shape[-1] != 3 or not self.changes_stains:
            return x
        change = hed_from_rgb * np.array(self.stain_scale) @ rgb_from_hed
        added = np.array(self.stain_shift) @ rgb_from_hed
        density = -np.log(np.maximum(x, np.float32(_DARKEST)))
        density = density @ change.astype(np.float32) + added.astype(np.float32)
        stained: Image = np.clip(np.exp(-density), 0, 1)
        return stained


@final
class Augmented(Bag):
    """A bag whose tiles are augmented as they are read, all with the same parameters.

    Args:
        bag: Tiles `[n, H, W, C]`, uint8, C 1 or 3.
        change: Augmentation of each tile. A rotation by 90 degrees requires square tiles.

    Raises:
        SourceError: The bag has another shape or dtype.

    Example:
        >>> bag = tfbig.sources.ArrayBag(np.arange(8, dtype="uint8").reshape(2, 2, 2, 1))
        >>> flipped = tfbig.sources.Augmented(bag, tfbig.sources.Augmentation(flip_rows=True))
        >>> flipped.read(0, 1)[0, ..., 0].tolist()
        [[2, 3], [0, 1]]
    """

    def __init__(self, bag: Bag, change: Augmentation) -> None:
        _check_tiles(bag, change.quarter_turns)
        super().__init__(bag.shape, bag.dtype, bag.name, bag.coords, bag.labels)
        self._inner, self._change = bag, change

    def _read(self, start: int, stop: int) -> RowArray:
        return np.stack([self._change(tile) for tile in self._inner.read(start, stop)])

    def _take(self, places: Indices) -> RowArray:
        return np.stack([self._change(tile) for tile in self._inner.take(places)])

    def close(self) -> None:
        """Close the bag that is augmented."""
        self._inner.close()


@final
class AugmentedEach(Bag):
    """A bag whose tiles are augmented as they are read, each by parameters of its own.

    The parameters of a tile are drawn from the seed and the place of the tile, so they do not depend on which tiles are
    read together.

    Args:
        bag: Square tiles `[n, H, H, C]`, uint8, C 1 or 3.
        seed: Seed of all parameters.

    Raises:
        SourceError: The bag has another shape or dtype.

    Example:
        >>> bag = tfbig.sources.ArrayBag(np.full((2, 8, 8, 3), 120, "uint8"))
        >>> tiles = tfbig.sources.AugmentedEach(bag, seed=1).read(0, 2)
        >>> bool((tiles[0] == tiles[1]).all())
        False
    """

    def __init__(self, bag: Bag, seed: int) -> None:
        _check_tiles(bag, 1)
        super().__init__(bag.shape, bag.dtype, bag.name, bag.coords, bag.labels)
        self._inner, self._seed = bag, seed

    def _read(self, start: int, stop: int) -> RowArray:
        return self._augmented(range(start, stop), self._inner.read(start, stop))

    def _take(self, places: Indices) -> RowArray:
        return self._augmented(places, self._inner.take(places))

    def _augmented(self, places: Iterable[int], tiles: RowArray) -> RowArray:
        pairs = zip(places, tiles, strict=True)
        return np.stack([Augmentation.draw((self._seed, int(n)))(tile) for n, tile in pairs])

    def close(self) -> None:
        """Close the bag that is augmented."""
        self._inner.close()


def _check_tiles(bag: Bag, quarter_turns: int) -> None:
    """Raise SourceError for bags that cannot be augmented: they are no tiles, or not square but turned."""
    shape = bag.shape
    fits = len(shape) == 4 and bag.dtype == np.uint8 and shape[3] in (1, 3)
    if not fits or (quarter_turns % 2 and shape[1] != shape[2]):
        raise SourceError(
            f"{bag.name}: is {shape} {bag.dtype}; augmentation expects square tiles [n, H, H, 1 or 3] of uint8."
        )


@final
class AugmentedImage(View):
    """An image augmented as it is read, with the same parameters everywhere.

    Windows equal those of the whole image augmented by `change`, except that contrast leaves the
    mean luma of sampled pixels, of 16 bands of rows, unchanged, so that the image does not
    have to be read whole. The background of the image is moved with its pixels. It is augmented
    once, so that rounding leaves it one colour.

    Args:
        source: Image `[H, W, 1 or 3]`, uint8.
        change: Augmentation; images that are not square are not rotated.

    Attributes:
        change: Augmentation, without the rotation if the image is not square.
        mean: Mean luma of the sampled pixels after brightness, 0 to 1.

    Raises:
        SourceError: The image has another number of channels or another dtype.

    Example:
        >>> image = tfbig.open(np.full((50, 40, 3), 100, "uint8"))
        >>> brighter = tfbig.sources.AugmentedImage(image, tfbig.sources.Augmentation(brightness=1.2))
        >>> brighter.read_window((49, 50), (0, 1)).tolist()
        [[[120, 120, 120]]]
    """

    def __init__(self, source: Source, change: Augmentation) -> None:
        rows, columns, channels = source.shape
        if source.dtype != np.uint8 or channels not in (1, 3):
            raise SourceError(
                f"{source.name}: is {source.shape} {source.dtype}; augmentation expects images [H, W, 1 or 3] of uint8."
            )
        super().__init__(source, source.shape, np.uint8, source.name)
        self.change = change if rows == columns else replace(change, quarter_turns=0)
        self.mean = _mean_luma(source, change)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        window = (start, stop, left, right)
        background = self.background
        if background is None or background.foreground.all():
            return self._augmented(*window)
        return read_foreground(self._augmented, background, self._fill, window)

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        background = self.background
        if background is None or cells_of_window(background, (start, stop, left, right)).any():
            return None
        return self._fill.copy()

    def _find_background(self) -> Background | None:
        background, change = self._inner.background, self.change
        if background is None:
            return None
        moves = (change.sigma > 0, change.flip_rows, change.flip_columns, change.quarter_turns)
        with _sampling:
            known = _moved.get(self._inner)
            if known is None or known[0] is not background or known[1] != moves:
                known = _moved[self._inner] = background, moves, self._move(background)
        return known[2]

    def _move(self, background: Background) -> Background:
        """Move the background of the image like its pixels."""
        change, shape = self.change, self.shape[:2]
        halo = 1 if change.sigma else 0
        is_moved = change.flip_rows or change.flip_columns or change.quarter_turns
        cell = cells.side_between(shape, background.cell, (halo, *(shape if is_moved else ())))
        rows, columns = (cells.intervals(n, cell) for n in shape)
        start, stop, left, right = self._before(*rows, *columns)
        foreground = background.touches(
            Interval(start - halo, stop + halo).clip(shape[0]),
            Interval(left - halo, right + halo).clip(shape[1]),
        )
        is_turned = change.quarter_turns % 2
        return Background(foreground.T if is_turned else foreground, cell)

    @cached_property
    def _fill(self) -> RowArray:
        """Colour of the background, augmented."""
        background = self._inner.background
        assert background is not None
        colour = np.tile(colour_of(self._inner, background), (3, 3, 1))
        filled: RowArray = self._straight(colour, self.mean)[1, 1]
        return filled

    @property
    def _straight(self) -> Augmentation:
        """The augmentation without flips and rotation."""
        return replace(self.change, flip_rows=False, flip_columns=False, quarter_turns=0)

    def _before(self, start: Any, stop: Any, left: Any, right: Any) -> tuple[Any, Any, Any, Any]:
        """Find the windows of the image that flips and rotation move to windows of this view."""
        rows, columns = self.shape[:2]
        for _ in range(self.change.quarter_turns % 4):
            start, stop, left, right = left, right, columns - stop, columns - start
        if self.change.flip_columns:
            left, right = columns - right, columns - left
        if self.change.flip_rows:
            start, stop = rows - stop, rows - start
        return start, stop, left, right

    def _augmented(self, start: int, stop: int, left: int, right: int) -> RowArray:
        """Augment a window, whose background is augmented like everything else."""
        change, (rows, columns) = self.change, self.shape[:2]
        start, stop, left, right = self._before(start, stop, left, right)
        halo = 1 if change.sigma else 0
        top, side = max(start - halo, 0), max(left - halo, 0)
        below, beyond = min(stop + halo, rows), min(right + halo, columns)
        window = self._inner.read_window((top, below), (side, beyond))
        without_halo = np.s_[start - top : stop - top, left - side : right - side]
        augmented = self._straight(window, self.mean)[without_halo]
        augmented = augmented[::-1] if change.flip_rows else augmented
        augmented = augmented[:, ::-1] if change.flip_columns else augmented
        return np.ascontiguousarray(np.rot90(augmented, change.quarter_turns))


def _mean_luma(source: Source, change: Augmentation) -> float:
    """The mean luma, 0 to 1, of sampled pixels after stains and brightness."""
    with _sampling:
        sample = _samples.get(source)
        if sample is None:
            sample = _samples[source] = _sample_pixels(source)
    stained = change.stained(sample.astype(np.float32) / np.float32(255))
    bright = np.clip(stained * change.brightness, 0, 1)
    return float((bright @ LUMA if bright.shape[-1] == 3 else bright).mean(dtype=np.float64))


def _sample_pixels(source: Source) -> npt.NDArray[np.uint8]:
    """Read some columns of `SAMPLED_BANDS` bands of rows as `[pixels, C]`."""
    rows, columns, channels = source.shape
    starts = sorted({n * rows // SAMPLED_BANDS for n in range(SAMPLED_BANDS)})
    every = ceil_div(columns, SAMPLED_COLUMNS)
    bands = [source.read(i, min(i + BAND_ROWS, rows))[:, ::every] for i in starts]
    return np.concatenate([band.reshape(-1, channels) for band in bands])


def _scale_saturation(x: Image, factor: float) -> Image:
    gray = (x @ LUMA)[..., None]
    return np.clip(gray + (x - gray) * factor, 0, 1)


def _shift_hue(x: Image, shift: float) -> Any:
    hsv = rgb2hsv(x)
    hsv[..., 0] = (hsv[..., 0] + shift) % 1
    return hsv2rgb(hsv)
