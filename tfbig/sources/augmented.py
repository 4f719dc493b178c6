"""Tiles of a slide changed all alike: blur, colours, flips and rotation with one set of numbers for a bag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from skimage.color import hsv2rgb, rgb2hsv

from tfbig.errors import SourceError
from tfbig.sources.bags import Bag, Indices
from tfbig.sources.source import Rows

Image = npt.NDArray[np.float32]
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Of ITU-R BT.601."""


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

    def __call__(self, tile: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """A tile `[H, W, C]` changed: blur, brightness, contrast, saturation, hue, flips, rotation, in this order.

        Tiles of one channel have neither saturation nor hue.
        """
        x: Image = tile.astype(np.float32) / np.float32(255)
        if self.sigma:
            x = ndimage.gaussian_filter(
                x, (self.sigma, self.sigma, 0), mode="mirror", radius=(1, 1, 0)
            )
        x = np.clip(x * self.brightness, 0, 1)
        gray = x @ LUMA if x.shape[-1] == 3 else x[..., 0]
        mean = gray.mean(dtype=np.float32)
        x = np.clip(mean + (x - mean) * self.contrast, 0, 1)
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


def _saturated(x: Image, factor: float) -> Image:
    gray = (x @ LUMA)[..., None]
    return np.clip(gray + (x - gray) * factor, 0, 1)


def _turned(x: Image, turn: float) -> Any:
    hsv = rgb2hsv(x)
    hsv[..., 0] = (hsv[..., 0] + turn) % 1
    return hsv2rgb(hsv)
