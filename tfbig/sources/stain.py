"""Stain normalisation: slides mapped to common colours, pixel by pixel, by statistics of the whole slide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources.source import Pointwise, RowArray, Source

Pixels: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = tuple[float, ...]
METHODS: Final = ("macenko", "reinhard")
LIGHT: Final = 240
"""Grey value of glass, Io in the code of Macenko et al."""
FAINTEST: Final = 0.15
"""Optical density of every channel below which a pixel is no tissue."""
TAIL: Final = 1.0
"""Percentage of the pixels that are left out at each end of the angles and of the amounts of a stain."""
SMALLEST_ANGLE: Final = 2.0
"""Degrees between two stains below which they are one; 22 between those of `Macenko.reference`."""
RGB_TO_XYZ: Final = np.array(
    [[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]]
)
WHITE: Final = np.array([0.95047, 1.0, 1.08883])
"""Illuminant D65 in XYZ."""


class Stains(Protocol):
    """Colours of a slide, from which its pixels are mapped to those of another one."""

    def mapped(self, pixels: Pixels, target: Any) -> Pixels:
        """Map pixels `[..., 3]` to the colours of `target`, which is of the same class."""


@dataclass(frozen=True)
class Macenko:
    """Two stains, and the amount of each in the darkest pixels.

    The optical density of a pixel is `-log((x + 1) / 240)`. The two stains are the extreme directions, at the 1st and
    the 99th percentile, in the plane of the largest two principal components of pixels with a density of 0.15 or more
    in all channels. The amount of a stain is its coefficient by least squares, and its scale the 99th percentile.

        density = log(240) - log(x + 1)
        amounts = pinv(stains) density * target.strongest / strongest
        y = 240 exp(-target.stains amounts)

    Macenko et al., "A method for normalizing histology slides for quantitative analysis" (ISBI 2009).

    Args:
        stains: Optical density of red, green and blue of hematoxylin and eosin, vectors of length 1.
        strongest: 99th percentile of the amount of each.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> slide = tfbig.sources.Macenko(((0.65, 0.70, 0.29), (0.07, 0.99, 0.11)), (1.5, 1.0))
        >>> pixels = 240 * np.exp(-rng.gamma(2, 0.4, (1000, 2)) @ np.array(slide.stains)) - 1
        >>> found = tfbig.sources.Macenko.of(pixels.clip(0).round().astype("uint8"))
        >>> bool(np.abs(np.array(found.stains) - slide.stains).max() < 0.05)
        True
    """

    stains: tuple[Numbers, Numbers]
    strongest: Numbers
    reference: ClassVar[Macenko]
    """The stains in the code of Macenko et al."""

    @classmethod
    def of(cls, pixels: Pixels) -> Macenko:
        """Estimate the colours of the stains from pixels of tissue.

        Args:
            pixels: Pixels `[n, 3]`, uint8.

        Raises:
            ValueError: The pixels have no stains, or one only.
        """
        density = -np.log((pixels.reshape(-1, 3).astype(np.float64) + 1) / LIGHT)
        stained = density[~(density < FAINTEST).any(1)]
        if len(stained) < 3:
            raise ValueError(
                f"has {len(stained)} stained pixels (optical density {FAINTEST} in every channel); expected 3 or more"
            )
        _, vectors = np.linalg.eigh(np.cov(stained.T))
        plane = vectors[:, 1:]
        angles = np.arctan2(*(stained @ plane).T[::-1])
        ends = np.percentile(angles, [TAIL, 100 - TAIL])
        first, second = (plane @ [np.cos(angle), np.sin(angle)] for angle in ends)
        if np.degrees(abs(ends[1] - ends[0])) < SMALLEST_ANGLE:
            raise ValueError(
                f"has one stain only (colours differ by less than {SMALLEST_ANGLE:g} degrees); expected two"
            )
        # Hematoxylin absorbs more red than eosin.
        stains = np.stack([first, second] if first[0] > second[0] else [second, first])
        strongest = np.percentile(density @ np.linalg.pinv(stains), 100 - TAIL, axis=0)
        if strongest.min() <= 0:
            raise ValueError("has one stain only (the other has no amount); expected two")
        return cls((_numbers(stains[0]), _numbers(stains[1])), _numbers(strongest))

    def mapped(self, pixels: Pixels, target: Macenko) -> Pixels:
        """Map pixels `[..., 3]` to the stains of `target`."""
        scale = np.array(target.strongest) / self.strongest
        change = np.linalg.pinv(np.array(self.stains)) * scale @ np.array(target.stains)
        density = _DENSITIES[pixels] @ change.astype(np.float32)
        return _rounded(LIGHT * np.exp(-density))


@dataclass(frozen=True)
class Reinhard:
    """Mean and standard deviation of the colours of a slide in CIELAB.

        y = (lab(x) - mean) / deviation * target.deviation + target.mean

    A channel that does not vary is only shifted. The original is in another space, which separates the channels alike:
    Reinhard et al., "Color transfer between images" (IEEE CG&A 2001); torchstain and StainTools use CIELAB too.

    Args:
        mean: Mean of L, a and b.
        deviation: Standard deviation of L, a and b.

    Example:
        >>> pixels = np.array([[100, 50, 120], [200, 150, 210]], "uint8")
        >>> slide = tfbig.sources.Reinhard.of(pixels)
        >>> slide.mapped(pixels, slide).tolist()
        [[100, 50, 120], [200, 150, 210]]
    """

    mean: Numbers
    deviation: Numbers
    reference: ClassVar[Reinhard]
    """Colours of `CMU-1-Small-Region.svs`, a public H&E slide of OpenSlide's test data, by `find_stains`."""

    @classmethod
    def of(cls, pixels: Pixels) -> Reinhard:
        """Measure pixels of tissue.

        Args:
            pixels: Pixels `[n, 3]`, uint8.

        Raises:
            ValueError: There are no pixels.
        """
        if not pixels.size:
            raise ValueError("has no tissue; expected some")
        lab = lab_of(pixels.reshape(-1, 3))
        return cls(_numbers(lab.mean(0, np.float64)), _numbers(lab.std(0, np.float64)))

    def mapped(self, pixels: Pixels, target: Reinhard) -> Pixels:
        """Map pixels `[..., 3]` to the mean and deviation of `target`."""
        own = np.array(self.deviation)
        varies = own > _CONSTANT
        scale = np.where(varies, np.array(target.deviation) / np.where(varies, own, 1), 1)
        shift = np.array(target.mean) - self.mean * scale
        return rgb_of(lab_of(pixels) * scale.astype(np.float32) + shift.astype(np.float32))


@final
class StainNormalised(Pointwise):
    """A slide in the colours of another one.

    Every pixel is mapped by itself, so that windows equal those of the whole slide that was mapped, bit for bit.

    Args:
        source: Image `[H, W, 3]`, uint8.
        stains: Its colours, `Macenko` or `Reinhard`, such as `tfbig.tissue.find_stains` returns.
        target: Colours to map it to; by default the reference of the method.

    Raises:
        SourceError: The image has another number of channels or another dtype.

    Example:
        >>> image = tfbig.open(np.full((4, 4, 3), (150, 80, 160), "uint8"))
        >>> stains = tfbig.sources.Reinhard((50.0, 30.0, -20.0), (10.0, 8.0, 8.0))
        >>> tfbig.sources.StainNormalised(image, stains, target=stains).read(0, 1)[0, 0].tolist()
        [150, 80, 160]
    """

    def __init__(
        self, source: Source, stains: Macenko | Reinhard, target: Macenko | Reinhard | None = None
    ) -> None:
        if source.dtype != np.uint8 or source.shape[2] != 3:
            raise SourceError(
                f"{source.name}: is {source.shape} {source.dtype}; stain normalisation expects images [H, W, 3] of "
                "uint8. Leave it out."
            )
        super().__init__(source, source.shape, np.uint8, source.name)
        self.stains: Stains = stains
        self.target = target or stains.reference

    def _convert(self, pixels: RowArray) -> RowArray:
        return self.stains.mapped(pixels, self.target)


def lab_of(pixels: Pixels) -> npt.NDArray[np.float32]:
    """Convert pixels `[..., 3]` of sRGB, uint8, to CIELAB for illuminant D65."""
    xyz = _LINEAR[pixels] @ _TO_RELATIVE_XYZ
    x, y, z = np.moveaxis(
        np.where(xyz > 0.008856, np.cbrt(xyz), np.float32(7.787) * xyz + np.float32(16 / 116)),
        -1,
        0,
    )
    lab: npt.NDArray[np.float32] = np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)
    return lab


def rgb_of(lab: npt.NDArray[np.float32]) -> Pixels:
    """Convert CIELAB colours to pixels `[..., 3]` of sRGB, uint8, rounded; colours outside are clipped."""
    y = (lab[..., 0] + 16) / 116
    xyz = np.stack([lab[..., 1] / 500 + y, y, y - lab[..., 2] / 200], -1)
    xyz = np.where(xyz > 0.2068966, xyz**3, (xyz - np.float32(16 / 116)) / np.float32(7.787))
    rgb = xyz @ _FROM_RELATIVE_XYZ
    bright = 1.055 * np.maximum(rgb, 0.0031308) ** np.float32(1 / 2.4) - 0.055
    return _rounded(np.where(rgb > 0.0031308, bright, 12.92 * rgb) * 255)


def _rounded(values: npt.NDArray[Any]) -> Pixels:
    pixels: Pixels = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return pixels


def _numbers(values: npt.NDArray[Any]) -> Numbers:
    return tuple(float(value) for value in values)


def _linear() -> npt.NDArray[np.float32]:
    """The linear intensity of each value of sRGB, 0 to 1."""
    x = np.arange(256) / 255
    return np.where(x > 0.04045, ((x + 0.055) / 1.055) ** 2.4, x / 12.92).astype(np.float32)


_CONSTANT: Final = 1e-3
"""Deviation of a channel that does not vary, up to rounding."""
_LINEAR: Final = _linear()
_DENSITIES: Final = -np.log((np.arange(256) + 1) / LIGHT).astype(np.float32)
_TO_RELATIVE_XYZ: Final = (RGB_TO_XYZ.T / WHITE).astype(np.float32)
_FROM_RELATIVE_XYZ: Final = np.linalg.inv(RGB_TO_XYZ.T / WHITE).astype(np.float32)

Macenko.reference = Macenko(((0.5626, 0.7201, 0.4062), (0.2159, 0.8012, 0.5581)), (1.9705, 1.0308))
Reinhard.reference = Reinhard((55.219, 24.439, -10.638), (21.140, 12.618, 6.620))
