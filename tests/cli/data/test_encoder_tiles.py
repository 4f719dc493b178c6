"""Tiles as encoders of pathology read them, against torchvision's transforms in Pillow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from tfbig.cli.data import encoder_tiles
from tfbig.models.pathology_encoders import PATHOLOGY_ENCODERS
from tfbig.sources import ArrayBag


def test_sizes() -> None:
    assert encoder_tiles.size_of("conch-1.5") == 448
    assert encoder_tiles.size_of("resnet50") is None


PUBLISHED = {
    **dict.fromkeys(
        ("uni", "uni2-h", "phikon-v2", "h-optimus-0", "h-optimus-1"), (224, "BILINEAR", 224)
    ),
    **dict.fromkeys(("virchow", "virchow2"), (224, "BICUBIC", 224)),
    "prov-gigapath": (256, "BICUBIC", 224),
    "phikon": ((224, 224), "BILINEAR", 224),
    "conch-1.5": (448, "BILINEAR", 448),
}
"""What torchvision's `Resize` gets in TRIDENT for each encoder, and what `CenterCrop` gets."""


def published(picture: np.ndarray, resize: Any, interpolation: str, crop: int) -> np.ndarray:
    """Resize and cut a picture as torchvision does, in the words of its documentation."""
    image = Image.fromarray(picture)
    width, height = image.size
    if isinstance(resize, int):
        short, long = min(width, height), max(width, height)
        new_long = int(resize * long / short)
        sides = (resize, new_long) if width <= height else (new_long, resize)
    else:
        sides = resize
    if sides != image.size:
        image = image.resize(sides, Image.Resampling[interpolation])
    top, left = round((sides[1] - crop) / 2.0), round((sides[0] - crop) / 2.0)
    return np.asarray(image.crop((left, top, left + crop, top + crop)))


@pytest.mark.parametrize("name", sorted(PATHOLOGY_ENCODERS))
@pytest.mark.parametrize("shape", [(300, 420), (517, 301), (256, 256), (224, 224), (100, 90)])
def test_preprocessing_is_the_published_one(name: str, shape: tuple[int, int]) -> None:
    """Pictures need not be square, or of the size of the encoder."""
    picture = np.random.default_rng(3).integers(0, 256, (*shape, 3)).astype("uint8")
    bag = encoder_tiles.prepared(ArrayBag(picture[None]), name)
    entry = PATHOLOGY_ENCODERS[name]
    assert bag.shape == (1, entry.size, entry.size, 3)
    np.testing.assert_array_equal(bag.read(0, 1)[0], published(picture, *PUBLISHED[name]))
    assert entry.preprocessing.source.endswith("InferenceEncoder")


def test_tiles_of_the_default_size_are_not_resized() -> None:
    """Tiles for GigaPath are only cut."""
    for name, entry in PATHOLOGY_ENCODERS.items():
        tile = np.random.default_rng(4).integers(0, 256, (1, entry.tile, entry.tile, 3), "uint8")
        cut = (entry.tile - entry.size) // 2
        expected = tile[:, cut : cut + entry.size, cut : cut + entry.size]
        found = encoder_tiles.prepared(ArrayBag(tile), name).read(0, 1)
        np.testing.assert_array_equal(found, expected)
    assert PATHOLOGY_ENCODERS["prov-gigapath"].tile == 256
    bag = ArrayBag(np.zeros((1, 32, 32, 3), "uint8"))
    assert encoder_tiles.prepared(bag, "resnet50") is bag


@pytest.mark.parametrize("name", sorted(PATHOLOGY_ENCODERS))
def test_published_scale(name: str) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    if name.startswith("h-optimus"):
        mean, std = (0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517)
    assert (PATHOLOGY_ENCODERS[name].mean, PATHOLOGY_ENCODERS[name].std) == (mean, std)


def test_default_tiles() -> None:
    assert encoder_tiles.default_tiles("prov-gigapath", 100, 2.0) == (256, 0.5)
    assert encoder_tiles.default_tiles("conch-1.5", 100, 2.0) == (448, 0.5)
    assert encoder_tiles.default_tiles("resnet50", 100, 2.0) == (100, 2.0)
