"""Attention laid over a bag, and confusion matrices: where tiles lie, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tfbig.results import figures
from tfbig.sources import ArrayBag, ArraySource, Tiles


def bag(count=6, side=8, **options):
    tiles = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((side, side, 3))
    return ArrayBag(tiles.astype(np.uint8), "slide", **options)


def test_tiles_lie_where_their_coordinates_say():
    """Level-0 pixels, tiles of 256 at a distance of 256; one is missing."""
    coords = np.array([[512, 256], [768, 256], [512, 512], [1024, 512], [768, 768], [1024, 768]])
    places, side = figures._places(bag(coords=coords), 300)
    assert side == 64
    assert (places // side).tolist() == [[0, 0], [0, 1], [1, 0], [1, 2], [2, 1], [2, 2]]


def test_without_coordinates_they_lie_in_rows():
    places, side = figures._places(bag(7), 30)
    assert side == 10
    assert (places // side).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0]]


@pytest.mark.parametrize("count", [1, 5, 3000])
def test_a_map_of_any_number_of_tiles(count, tmp_path):
    path = tmp_path / "map.png"
    attention = np.random.default_rng(0).random(count)
    labels = np.arange(count) % 2
    figures.attention_map(path, bag(count, 4, labels=labels), attention / attention.sum(), "bag")
    with Image.open(path) as picture:
        assert min(picture.size) > 200


def test_features_are_grey_and_attention_of_zero_is_drawn(tmp_path):
    features = ArrayBag(np.ones((5, 7), "float32"))
    figures.attention_map(tmp_path / "map.png", features, np.zeros(5), "features")
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_attention_of_another_bag_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"slide: attention of shape \(5,\) for 6 instances"):
        figures.attention_map(tmp_path / "map.png", bag(), np.ones(5), "bag")
    assert not list(Path(tmp_path).iterdir())


def test_a_confusion_matrix_is_drawn(tmp_path):
    figures.confusion(tmp_path / "c.png", [[3, 1], [0, 4]], ("no", "yes"), "8 bags")
    with Image.open(tmp_path / "c.png") as picture:
        assert picture.size[0] == picture.size[1]


def test_tiles_that_end_where_the_slide_does_lie_over_their_neighbours(tmp_path):
    """The last of a row is nearer to the one before; the picture has no gaps for it."""
    corners = [(row, column) for row in (0, 64, 120) for column in (0, 64, 128, 150)]
    image = ArraySource(np.full((184, 214, 3), 90, np.uint8))
    tiled = Tiles(image, corners, 64, np.array(corners)[:, ::-1])
    canvas, places, side = figures.instances(tiled, 214)
    assert side == 64 * 214 // (150 + 64)
    assert (canvas == 90).all()
    heat = figures.by_place(places, side, np.arange(12.0))
    assert heat.shape == canvas.shape[:2]
    assert heat[-1, -1] == 11
    assert np.isfinite(heat).all()
    lone = bag(12, coords=np.array(corners)[:, ::-1])
    assert (figures._places(lone, 214)[0] == places).all()
