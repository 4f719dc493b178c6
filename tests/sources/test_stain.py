"""Stain normalisation: torchstain's numbers, scikit-image's CIELAB, windows, and slides that it cannot normalise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from skimage import color

from tfbig import SourceError, sources
from tfbig.sources import Macenko, Reinhard, StainNormalised
from tfbig.sources.stain import lab_of, rgb_of

METHODS: dict[str, Any] = {"macenko": Macenko, "reinhard": Reinhard}
every_method = pytest.mark.parametrize("method", METHODS)


def slide(seed: int = 0, sides: tuple[int, int] = (40, 30)) -> Any:
    """Return an image of two stains in random amounts."""
    rng = np.random.default_rng(seed)
    stains = np.array([[0.65, 0.70, 0.29], [0.27, 0.85, 0.45]])
    density = rng.gamma(2.0, 0.35, (*sides, 2)) @ stains
    return (240 * np.exp(-density) - 1).clip(0, 255).round().astype("uint8")


TORCHSTAIN = {
    "stains": [
        [0.6307089462589325, 0.7146956215551294, 0.30235144060988667],
        [0.2948565377723597, 0.8463598480557737, 0.44354777615484015],
    ],
    "strongest": [2.6341160023892183, 2.48205100998664],
    "macenko": [[169, 125, 160], [185, 125, 156], [176, 144, 176], [219, 197, 211]],
    "mean": [45.956363677978516, 29.62131118774414, -12.692702293395996],
    "deviation": [14.846887588500977, 6.003631114959717, 10.65775203704834],
    "reinhard": [[137, 71, 118], [142, 59, 97], [154, 98, 141], [213, 152, 162]],
}
"""What torchstain gives for `slide()`, for Reinhard with `slide(1)` in reversed channels as its target."""
STAINS = [[0.637, 0.702, 0.317], [0.266, 0.851, 0.452]]


def test_macenko_finds_the_stains() -> None:
    found = Macenko.of(slide(sides=(300, 300)))
    np.testing.assert_allclose(found.stains, STAINS, atol=0.03)


@every_method
def test_statistics_of_the_result_are_those_of_the_target(method: str) -> None:
    kind = METHODS[method]
    first, second = slide(0, (200, 200)), slide(1, (200, 200))[..., ::-1].copy()
    target = kind.of(second)
    result = kind.of(kind.of(first).mapped(first, target))
    if method == "reinhard":
        np.testing.assert_allclose(result.mean, target.mean, atol=2.0)
        np.testing.assert_allclose(result.deviation, target.deviation, rtol=0.2)
    else:
        np.testing.assert_allclose(result.strongest, target.strongest, rtol=0.15)


def test_normalised_to_itself() -> None:
    image = slide()
    for kind in METHODS.values():
        stains = kind.of(image)
        difference = stains.mapped(image, stains).astype(int) - image
        # The model of Macenko takes 1 off every pixel, and has two of three dimensions.
        assert np.abs(difference).max() <= (0 if kind is Reinhard else 4)


def test_macenko_by_its_definition() -> None:
    """Least squares and exponential in float64, without the table and the joined product."""
    image = slide()
    stains = Macenko.of(image)
    density = -np.log((image.reshape(-1, 3).astype(float) + 1) / 240)
    amounts = np.linalg.lstsq(np.array(stains.stains).T, density.T, rcond=None)[0]
    np.testing.assert_allclose(np.percentile(amounts, 99, axis=1), stains.strongest)
    target = Macenko.reference
    amounts *= (np.array(target.strongest) / stains.strongest)[:, None]
    expected = 240 * np.exp(-np.array(target.stains).T @ amounts).T.reshape(image.shape)
    actual = stains.mapped(image, target)
    assert np.abs(actual - np.clip(expected, 0, 255)).max() <= 0.5 + 1e-3


def test_macenko_has_the_numbers_of_torchstain() -> None:
    """Recorded from torchstain 1.4.1 in NumPy, which rounds down."""
    stains = Macenko.of(slide())
    np.testing.assert_allclose(stains.stains, TORCHSTAIN["stains"], atol=1e-8)
    np.testing.assert_allclose(stains.strongest, TORCHSTAIN["strongest"], atol=1e-8)
    pixels = stains.mapped(slide(), Macenko.reference)[:2, :2].reshape(-1, 3)
    assert np.abs(pixels.astype(int) - TORCHSTAIN["macenko"]).max() <= 1


def test_reinhard_has_the_numbers_of_torchstain() -> None:
    target = Reinhard.of(slide(1)[..., ::-1])
    np.testing.assert_allclose(target.mean, TORCHSTAIN["mean"], atol=1e-3)
    np.testing.assert_allclose(target.deviation, TORCHSTAIN["deviation"], atol=1e-3)
    pixels = Reinhard.of(slide()).mapped(slide(), target)[:2, :2].reshape(-1, 3)
    assert np.abs(pixels.astype(int) - TORCHSTAIN["reinhard"]).max() <= 1


def test_cielab() -> None:
    """All grey values, and random colours, there and back."""
    rng = np.random.default_rng(0)
    pixels = np.concatenate(
        [np.repeat(np.arange(256)[:, None], 3, 1), rng.integers(0, 256, (999, 3))]
    )
    pixels = pixels.astype("uint8")
    np.testing.assert_allclose(lab_of(pixels), color.rgb2lab(pixels), atol=2e-3)
    np.testing.assert_array_equal(rgb_of(lab_of(pixels)), pixels)


@every_method
def test_windows_equal_the_whole(method: str) -> None:
    image = slide()
    stains = METHODS[method].of(image)
    whole = stains.mapped(image, stains.reference)
    view = StainNormalised(sources.open(image), stains)
    assert (view.shape, view.dtype) == (image.shape, np.uint8)
    np.testing.assert_array_equal(view.read(0, 40), whole)
    np.testing.assert_array_equal(view.read_window((7, 9), (3, 29)), whole[7:9, 3:29])
    assert (whole != image).any()


@every_method
@pytest.mark.parametrize("value", [0, 128, 255])
def test_pixels_unlike_tissue(method: str, value: int) -> None:
    """Glass stays bright, and black dark."""
    stains = METHODS[method].of(slide())
    pixel = stains.mapped(np.full((1, 1, 3), value, "uint8"), stains.reference)
    assert np.abs(pixel.astype(int) - value).max() < 100


def test_slides_without_two_stains() -> None:
    white = np.full((10, 10, 3), 255, "uint8")
    with pytest.raises(ValueError, match=r"has 0 stained pixels .* expected 3 or more"):
        Macenko.of(white)
    amounts = np.random.default_rng(0).gamma(2, 0.4, (500, 1))
    one = (240 * np.exp(-amounts @ [[0.65, 0.70, 0.29]]) - 1).clip(0).round().astype("uint8")
    with pytest.raises(ValueError, match="has one stain only"):
        Macenko.of(np.full((10, 10, 3), 100, "uint8"))
    try:
        stains = Macenko.of(one)
    except ValueError as error:
        assert "has one stain only" in str(error)
    else:
        assert np.isfinite(stains.mapped(one, Macenko.reference)).all()


def test_one_colour_is_shifted() -> None:
    stains = Reinhard.of(np.full((10, 10, 3), (150, 80, 160), "uint8"))
    pixel = stains.mapped(np.full((1, 3), (150, 80, 160), "uint8"), stains.reference)
    np.testing.assert_allclose(lab_of(pixel)[0], stains.reference.mean, atol=1.0)
    with pytest.raises(ValueError, match="has no tissue; expected some"):
        Reinhard.of(np.zeros((0, 3), "uint8"))


def test_images_of_other_kinds() -> None:
    for image in (np.zeros((4, 4, 1), "uint8"), np.zeros((4, 4, 3), "uint16")):
        with pytest.raises(SourceError, match="stain normalisation expects images"):
            StainNormalised(sources.open(image), Macenko.reference)
