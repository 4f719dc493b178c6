"""Tests of `tfbig.plan.activity`, against the plain network on a masked image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import keras
import numpy as np
import pytest
from graphs import read
from keras import layers
from skipped_background import mask_of, projected

from tfbig.geometry.background import Background
from tfbig.geometry.windows import partition
from tfbig.plan.activity import GAP, ActiveTiles, Activity
from tfbig.plan.sweeps import Layout, schedule

SIZE = (120, 96)


def encoder() -> keras.Model:
    x = start = keras.Input((None, None, 3))
    x = layers.Conv2D(4, 5, 2, padding="same")(x)
    x = layers.BatchNormalization()(x)
    return keras.Model(start, layers.Conv2D(4, 3, padding="same")(layers.MaxPooling2D()(x)))


def with_decoder() -> keras.Model:
    model = encoder()
    x = layers.Conv2DTranspose(2, 3, strides=2, padding="same")(model.output)
    return keras.Model(model.input, layers.Conv2D(2, 3)(layers.BatchNormalization()(x)))


def with_dropout() -> keras.Model:
    model = encoder()
    x = layers.BatchNormalization()(layers.Dropout(0.5)(model.output))
    return keras.Model(model.input, layers.Conv2D(2, 3)(x))


def activity_of(
    model: keras.Model, background: Background | None = None
) -> tuple[Activity, Layout]:
    graph = read(model)
    layout = Layout(tuple(schedule(graph)))
    sizes = graph.extents({graph.inputs[0]: SIZE})
    background = background or projected(mask_of(SIZE, 3))
    return Activity(graph, sizes, {graph.inputs[0]: background}, layout), layout


def tiles_of(active_tiles: ActiveTiles, value: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the tiles of an image that are computed as a mask, and its pattern as another."""
    size, columns = active_tiles.sizes[value], active_tiles.sweep.columns
    computed, pattern = np.zeros(size, bool), np.zeros(size, bool)
    width = len(columns)
    for line in active_tiles.table():
        part = tuple(
            slice(
                line[axis * width + columns["own start", value]],
                line[axis * width + columns["own stop", value]],
            )
            for axis in range(2)
        )
        (pattern if line[-1] else computed)[part] = True
    return computed, pattern


@pytest.mark.parametrize("build", [encoder, with_decoder])
@pytest.mark.parametrize("side", [4, 8])
def test_what_is_not_computed_repeats_the_pattern(
    build: Callable[[], keras.Model], side: int, float64: None
) -> None:
    """Images of a network with random weights, in inference, repeat the pattern outside the tiles."""
    mask = mask_of(SIZE, 3)
    model = build()
    activity, layout = activity_of(model, projected(mask))
    graph = activity.graph
    counts = [
        [max(min(activity.sizes[v][axis] // side for v in s.observed), 1) for axis in range(2)]
        for s in layout.sweeps
    ]
    all_tiles = activity.active_tiles(layout, counts)
    assert all_tiles is not None
    random = np.random.default_rng(0)
    image = np.where(mask[..., None], random.normal(size=(*SIZE, 3)), 0.7)[None]
    names = {graph.values[v].name: v for s in layout.sweeps for v in s.observed}
    skipped = 0
    for layer in model.layers:
        value = next((v for name, v in names.items() if name.split("/")[0] == layer.name), None)
        if value is None or value in graph.inputs or "normal" in layer.name:
            continue
        output = keras.Model(model.input, layer.output)(image)[0].numpy()
        if output.shape[:2] != activity.sizes[value]:
            continue
        active_tiles = next(v for v in all_tiles if value in v.sweep.observed)
        computed, pattern = tiles_of(active_tiles, value)
        steps = active_tiles.steps[value]
        rows, columns = np.nonzero(pattern)
        pattern = output[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert pattern.shape[:2] == steps
        repeated = np.tile(
            pattern, (*(-(-n // s) for n, s in zip(output.shape, steps, strict=False)), 1)
        )
        outside = ~computed
        same = repeated[: len(output), : output.shape[1]]
        np.testing.assert_allclose(output[outside], same[outside], atol=1e-12)
        skipped += int(outside.sum())
        copies = active_tiles.copies()[active_tiles.sweep.observed.index(value)]
        assert copies * np.prod(steps) == outside.sum()
    assert skipped > 0


def test_dropout_is_computed_everywhere_and_what_is_before_is_not() -> None:
    activity, layout = activity_of(with_dropout())
    assert activity.is_of_use
    active_tiles = activity.active_tiles(layout, [(8, 8)] * len(layout.sweeps))
    assert active_tiles is not None
    assert active_tiles[0].pattern is not None
    assert active_tiles[-1].pattern is None
    assert active_tiles[-1].active.all()
    assert active_tiles[-1].copies().tolist() == [0] * len(layout.sweeps[-1].observed)


def test_no_foreground_leaves_only_the_border() -> None:
    activity, layout = activity_of(encoder(), Background(np.zeros(SIZE, bool)))
    tiles = activity.tiles(layout.sweeps[0], (12, 12))
    assert tiles.active[0].all()
    assert not tiles.active[2:-2, 2:-2].any()


def test_all_foreground_is_computed() -> None:
    activity, layout = activity_of(encoder(), Background(np.ones(SIZE, bool)))
    active_tiles = activity.active_tiles(layout, [(6, 6)] * len(layout.sweeps))
    assert active_tiles is not None
    assert all(v.active.all() and v.pattern is None for v in active_tiles)
    assert [v.number for v in active_tiles] == [36] * len(layout.sweeps)


def test_shares_of_stores_count_tiles_and_a_pattern() -> None:
    activity, layout = activity_of(with_decoder())
    sweep = next(s for s in layout.sweeps if s.writes)
    (value, *_) = sweep.writes
    tiles = activity.tiles(sweep, (8, 6))
    pixels = tiles.owned_pixels(value) + np.prod(tiles.steps[value])
    share = activity.stored_shares(sweep, (8, 6))[value]
    gaps = (tiles.number + 1) * GAP / activity.graph.values[value].channels
    assert share == pytest.approx((pixels + gaps) / np.prod(activity.sizes[value]))


def test_tiles_begin_with_patterns() -> None:
    activity, layout = activity_of(with_decoder())
    sweep = layout.sweeps[-1]
    steps = activity.steps(sweep)
    assert max(max(s) for s in steps.values()) > 1
    for v in sweep.observed:
        size, step = activity.sizes[v][0], steps[v][0]
        starts = partition(size, 5, np.arange(5), step).start
        assert (starts % step == 0).all()


@pytest.mark.parametrize("joined", [1, 2, 3, 8])
def test_neighbours_are_joined(joined: int) -> None:
    """Joined tiles own and read the same pixels as single ones; each is a rectangle without gaps."""
    activity, layout = activity_of(with_decoder(), projected(mask_of(SIZE, 3), 2))
    sweep = layout.sweeps[-1]
    single, wide = (activity.tiles(sweep, (10, 8), n) for n in (1, joined))
    covered = np.zeros_like(wide.active)
    for top, bottom, first, last in wide.rectangles:
        assert (bottom - top + 1) * (last - first + 1) <= joined
        assert not covered[top : bottom + 1, first : last + 1].any()
        covered[top : bottom + 1, first : last + 1] = True
    np.testing.assert_array_equal(covered, wide.active)
    places = wide.rectangles[:, [0, 2]].tolist()
    assert places == sorted(places)
    for value in sweep.observed:
        np.testing.assert_array_equal(tiles_of(wide, value)[0], tiles_of(single, value)[0])


def test_runs_of_the_same_columns_are_joined_downwards() -> None:
    activity, layout = activity_of(encoder())
    tiles = activity.tiles(layout.sweeps[0], (8, 6))
    active = np.zeros((8, 6), bool)
    active[1:6, 0] = active[:, 3:5] = active[7, 0] = True
    found = replace(tiles, active=active, joined=4)
    assert found.rectangles.tolist() == [
        [0, 1, 3, 4],
        [1, 4, 0, 0],
        [2, 3, 3, 4],
        [4, 5, 3, 4],
        [5, 5, 0, 0],
        [6, 7, 3, 4],
        [7, 7, 0, 0],
    ]
