"""Figures: positions of instances, attention maps and confusion matrices."""

import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tfbig import sources
from tfbig.results import figures
from tfbig.sources import ArrayBag, ArraySource, Tiles
from tfbig.tissue.masks import Tissue


def bag(count=6, side=8, **options):
    tiles = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((side, side, 3))
    return ArrayBag(tiles.astype(np.uint8), "slide", **options)


def test_thumbnail_takes_the_memory_of_a_strip(tmp_path):
    """It is every k-th pixel, and keeps nothing of the strips that were read."""
    pixels = np.random.default_rng(0).integers(0, 256, (8000, 400, 3), np.uint8)
    np.save(tmp_path / "a.npy", pixels)
    source = sources.open(tmp_path / "a.npy")
    tracemalloc.start()
    try:
        small = figures.thumbnail(source, 100)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(small, pixels[::80, ::80])
    strip = figures._STRIP_ROWS * 400 * 3
    assert peak < 2.5 * strip < pixels.nbytes / 5


def test_places_from_coordinates():
    """Tiles of 256 pixels of level 0 at a distance of 256; one is missing."""
    coords = np.array([[512, 256], [768, 256], [512, 512], [1024, 512], [768, 768], [1024, 768]])
    places, side = figures._places(bag(coords=coords), 300)
    assert side == 64
    assert (places // side).tolist() == [[0, 0], [0, 1], [1, 0], [1, 2], [2, 1], [2, 2]]


def test_places_without_coordinates():
    places, side = figures._places(bag(7), 30)
    assert side == 10
    assert (places // side).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0]]


@pytest.mark.parametrize(
    "count",
    [1, 400, pytest.param(5, marks=pytest.mark.slow), pytest.param(3000, marks=pytest.mark.slow)],
)
def test_attention_map_of_any_number_of_tiles(count, tmp_path):
    path = tmp_path / "map.png"
    attention = np.random.default_rng(0).random(count)
    labels = np.arange(count) % 100 == 1  # drawing a frame takes longest
    figures.attention_map(path, bag(count, 4, labels=labels), attention / attention.sum(), "bag")
    with Image.open(path) as image:
        assert min(image.size) > 200


def test_attention_map_of_features_and_zeros(tmp_path):
    features = ArrayBag(np.ones((5, 7), "float32"))
    figures.attention_map(tmp_path / "map.png", features, np.zeros(5), "features")
    with Image.open(tmp_path / "map.png") as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(2**24)}
    assert (200, 200, 200) in colours


def test_attention_map_refuses_attention_of_another_bag(tmp_path):
    with pytest.raises(ValueError, match=r"slide: attention has shape \(5,\); expected \(6,\)"):
        figures.attention_map(tmp_path / "map.png", bag(), np.ones(5), "bag")
    assert not list(Path(tmp_path).iterdir())


def test_confusion_matrix(tmp_path):
    figures.confusion(tmp_path / "c.png", [[3, 1], [0, 4]], ("no", "yes"), "8 bags")
    with Image.open(tmp_path / "c.png") as image:
        assert image.size[0] == image.size[1]


@pytest.mark.parametrize(
    ("last", "ticks"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (30, [*range(0, 31, 5)])]
)
def test_epochs_are_whole_numbers(last, ticks, tmp_path, monkeypatch):
    """Training and validation can both be seen where they are equal, also of a single epoch."""
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    history = [{"epoch": n, "loss": 0.5, "val_loss": 0.5} for n in range(1, last + 1)]
    figures.learning_curve(tmp_path / "a.png", history, {"loss": "loss"})
    (axes,) = drawn[0].axes
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == ticks
    training, validation = axes.lines
    assert validation.get_markerfacecolor() == "none"
    assert validation.get_markersize() > training.get_markersize() + 2


def test_curves_of_runs_show_their_mean(tmp_path, monkeypatch):
    """The mean goes as far as the shortest run, and is that of the values in the files, which are text."""
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    losses = {"seed 0": [3.0, 2.0, 1.0], "seed 4": [5.0, 2.0], "fold 7": [4.0, 5.0, 0.5, 0.1]}
    histories = {
        run: [{"epoch": str(n + 1), "val_loss": str(v)} for n, v in enumerate(values)]
        for run, values in losses.items()
    }
    figures.run_curves(tmp_path / "a.png", histories, {"loss": "loss"}, "validation bags")
    (axes,) = drawn[0].axes
    *each, mean = axes.lines
    assert [line.get_ydata().tolist() for line in each] == [*losses.values()]
    assert [line.get_label() for line in each] == list(losses)
    assert mean.get_xdata().tolist() == [1, 2]
    assert mean.get_ydata().tolist() == [4, 3]
    assert axes.get_xlim()[1] > 4  # the longest run
    (band,) = axes.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.round(6).tolist()}
    assert {(1, 3), (1, 5), (2, round(3 - 3**0.5, 6)), (2, round(3 + 3**0.5, 6))} <= corners


def colour_of(drawn):
    """Return the colour of the edges of what is drawn, as bytes."""
    return tuple(np.rint(255 * np.atleast_2d(drawn.get_edgecolor())[0, :3]).astype(int))


@pytest.mark.parametrize("with_tissue", [True, False])
def test_tiles_have_a_legend(with_tissue, tmp_path, monkeypatch):
    """Its colours are those of the lines: a square for each tile, and the border of the tissue."""
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    np.save(tmp_path / "a.npy", np.full((100, 160, 3), 255, np.uint8))
    mask = np.zeros((10, 16), bool)
    mask[2:8, 4:12] = True
    tissue = Tissue(mask, (100, 160)) if with_tissue else None
    coords = sources.Coords("a", np.array([[40, 20], [80, 40]]), 40, 1.0)
    with closing(sources.open_slide(tmp_path / "a.npy")) as slide:
        figures.tiles(tmp_path / "a.png", slide, coords, "a: 2 tiles", tissue)
    (axes,), (legend,) = drawn[0].axes, drawn[0].legends
    *outlines, squares = axes.collections
    names = ["tissue", "tile"] if with_tissue else ["tile"]
    lines = dict(zip(names, map(colour_of, (*outlines, squares)), strict=True))
    texts = [text.get_text() for text in legend.get_texts()]
    assert dict(zip(texts, map(colour_of, legend.get_patches()), strict=True)) == lines
    assert len(set(lines.values())) == len(lines)
    corners = squares.get_paths()[0].vertices[:4] + 0.5
    assert corners.tolist() == [[40, 20], [80, 20], [80, 60], [40, 60]]


def test_tiles_at_the_edge_overlap_their_neighbours():
    """The last tile of a row is closer to the previous one; this leaves no gaps in the figure."""
    corners = [(row, column) for row in (0, 64, 120) for column in (0, 64, 128, 150)]
    slide = ArraySource(np.full((184, 214, 3), 90, np.uint8))
    tiled = Tiles(slide, corners, 64, np.array(corners)[:, ::-1])
    canvas, places, side = figures.instances(tiled, 214)
    assert side == 64 * 214 // (150 + 64)
    assert (canvas == 90).all()
    heat = figures.paint_instances(places, side, np.arange(12.0))
    assert heat.shape == canvas.shape[:2]
    assert heat[-1, -1] == 11
    assert np.isfinite(heat).all()
    lone = bag(12, coords=np.array(corners)[:, ::-1])
    assert (figures._places(lone, 214)[0] == places).all()
