"""Slides changed alike everywhere: blur, colours, flips and rotation with one set of numbers for a bag or an image."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from skimage.color import hsv2rgb, rgb2hsv

from tfbig.errors import SourceError
from tfbig.sources.bags.bag import Bag, Indices
from tfbig.sources.source import Rows, Source, View

Image = npt.NDArray[np.float32]
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Of ITU-R BT.601."""
SAMPLED_BANDS, BAND_ROWS, SAMPLED_COLUMNS = 16, 16, 1024

_sampling = threading.Lock()
_samples: WeakKeyDictionary[Source, npt.NDArray[np.uint8]] = WeakKeyDictionary()
"""Pixels of images that were changed, so that they are read once and not for each change."""


@dataclass(frozen=True)
class Augmentation:
    """One set of numbers; by default nothing is changed.

    Args:
        sigma: of a Gaussian blur of 3 x 3 pixels; 0 for none.
        brightness: factor of every number.
        contrast: factor of the distance from the mean luma of the tile.
        saturation: factor of the distance from the luma of the pixel.
        hue: turn of the hue, as a share of the circle.
        flip_rows, flip_columns: whether to flip.
        quarter_turns: of 90 degrees.
    """

    sigma: float = 0.0
    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0
    flip_rows: bool = False
    flip_columns: bool = False
    quarter_turns: int = 0

    @classmethod
    def draw(cls, seed: int) -> Augmentation:
        """Numbers as in Big-Layers, appendix and code: sigma 0.1 to 2; factors 0.5 to 1.5; hue up to 0.3 of the circle
        either way; flips of either axis with probability 1/2; rotation by -90, 0 or 90 degrees."""
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
        """A tile `[H, W, C]` changed: blur, brightness, contrast, saturation, hue, flips, rotation, in this order.

        Tiles of one channel have neither saturation nor hue.

        Args:
            tile: of uint8.
            mean: luma, 0 to 1, that contrast leaves as it is; by default the mean of the tile, made brighter.
        """
        x: Image = tile.astype(np.float32) / np.float32(255)
        if self.sigma:
            x = ndimage.gaussian_filter(
                x, (self.sigma, self.sigma, 0), mode="mirror", radius=(1, 1, 0)
            )
        x = np.clip(x * self.brightness, 0, 1)
        gray = x @ LUMA if x.shape[-1] == 3 else x[..., 0]
        middle = np.float32(gray.mean(dtype=np.float32) if mean is None else mean)
        x = np.clip(middle + (x - middle) * self.contrast, 0, 1)
        if x.shape[-1] == 3:
            x = _saturated(x, self.saturation)
            x = _turned(x, self.hue) if self.hue else x
        x = x[::-1] if self.flip_rows else x
        x = x[:, ::-1] if self.flip_columns else x
        found: npt.NDArray[np.uint8] = np.round(np.rot90(x, self.quarter_turns) * 255).astype(
            np.uint8
        )
        return found


@final
class Augmented(Bag):
    """A bag whose tiles are changed, all alike, as they are read.

    Args:
        bag: Tiles `[n, H, W, C]` of uint8, C 1 or 3.
        change: What is done to each; one that turns needs tiles that are as high as wide.

    Raises:
        SourceError: The bag holds something else.
    """

    def __init__(self, bag: Bag, change: Augmentation) -> None:
        shape = bag.shape
        fits = len(shape) == 4 and bag.dtype == np.uint8 and shape[3] in (1, 3)
        if not fits or (change.quarter_turns % 2 and shape[1] != shape[2]):
            raise SourceError(
                f"{bag.name}: is {shape} {bag.dtype}; augmentation takes square tiles [n, H, H, 1 or 3] of uint8."
            )
        super().__init__(shape, bag.dtype, bag.name, bag.coords, bag.labels)
        self._inner, self._change = bag, change

    def _read(self, start: int, stop: int) -> Rows:
        return np.stack([self._change(tile) for tile in self._inner.read(start, stop)])

    def _take(self, places: Indices) -> Rows:
        return np.stack([self._change(tile) for tile in self._inner.take(places)])

    def close(self) -> None:
        self._inner.close()


@final
class AugmentedImage(View):
    """An image that is changed as it is read, alike everywhere: one set of numbers for a slide.

    Every pixel is what `change` makes of it in the whole image, but that contrast leaves the mean luma of some pixels
    of 16 bands of rows as it is, so that the image is not read whole for it.

    Args:
        source: `[H, W, 1 or 3]` of uint8.
        change: what is done; images that are not square are not turned.

    Raises:
        SourceError: The image is something else.
    """

    def __init__(self, source: Source, change: Augmentation) -> None:
        rows, columns, channels = source.shape
        if source.dtype != np.uint8 or channels not in (1, 3):
            raise SourceError(
                f"{source.name}: is {source.shape} {source.dtype}; augmentation takes images [H, W, 1 or 3] of uint8."
            )
        super().__init__(source, source.shape, np.uint8, source.name)
        self.change = change if rows == columns else replace(change, quarter_turns=0)
        self.mean = _mean_luma(source, change.brightness)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        rows, columns = self.shape[:2]
        change = self.change
        for _ in range(change.quarter_turns % 4):  # back to where the pixels were before the turn
            start, stop, left, right = left, right, columns - stop, columns - start
        if change.flip_columns:
            left, right = columns - right, columns - left
        if change.flip_rows:
            start, stop = rows - stop, rows - start
        halo = 1 if change.sigma else 0
        top, side = max(start - halo, 0), max(left - halo, 0)
        below, beyond = min(stop + halo, rows), min(right + halo, columns)
        window = self._inner.read_window((top, below), (side, beyond))
        straight = replace(change, flip_rows=False, flip_columns=False, quarter_turns=0)
        own = np.s_[start - top : stop - top, left - side : right - side]
        found = straight(window, self.mean)[own]
        found = found[::-1] if change.flip_rows else found
        found = found[:, ::-1] if change.flip_columns else found
        return np.ascontiguousarray(np.rot90(found, change.quarter_turns))


def _mean_luma(source: Source, brightness: float) -> float:
    """Of some pixels of an image, made brighter, 0 to 1."""
    with _sampling:
        sample = _samples.get(source)
        if sample is None:
            sample = _samples[source] = _sampled(source)
    bright = np.clip(sample.astype(np.float32) / 255 * brightness, 0, 1)
    return float((bright @ LUMA if bright.shape[-1] == 3 else bright).mean(dtype=np.float64))


def _sampled(source: Source) -> npt.NDArray[np.uint8]:
    """`SAMPLED_BANDS` bands of rows, and of each some columns, `[pixels, C]`."""
    rows, columns, channels = source.shape
    starts = sorted({n * rows // SAMPLED_BANDS for n in range(SAMPLED_BANDS)})
    every = -(-columns // SAMPLED_COLUMNS)
    bands = [source.read(i, min(i + BAND_ROWS, rows))[:, ::every] for i in starts]
    return np.concatenate([band.reshape(-1, channels) for band in bands])


def _saturated(x: Image, factor: float) -> Image:
    gray = (x @ LUMA)[..., None]
    return np.clip(gray + (x - gray) * factor, 0, 1)


def _turned(x: Image, turn: float) -> Any:
    hsv = rgb2hsv(x)
    hsv[..., 0] = (hsv[..., 0] + turn) % 1
    return hsv2rgb(hsv)
