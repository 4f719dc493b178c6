"""Swin transformers: windows with a cyclic shift and masks, as in the paper, give the same; and so do strips."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from exactness import FLOAT64, assert_same
from twins import assert_streams, images

import tfbig
from tfbig.models.swin_transformer import (
    RelativePositionBias,
    Swin,
    relative_positions,
    swin_transformer,
    window_attention,
)

SMALL = Swin(patch=2, width=4, depths=(2, 2), heads=(1, 2), window=3)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def windows(x: np.ndarray, size: int) -> np.ndarray:
    """Return `[rows / size, columns / size, size ** 2, C]` of `[rows, columns, C]`."""
    rows, columns, width = x.shape
    cut = x.reshape(rows // size, size, columns // size, size, width)
    return cut.transpose(0, 2, 1, 3, 4).reshape(rows // size, columns // size, size**2, width)


def of_the_paper(
    x: np.ndarray, model: keras.Model, heads: int, size: int, shift: int
) -> np.ndarray:
    """Return windowed attention with a cyclic shift, whose tokens from other sides of the image are masked."""
    weights = {w.path.replace("/", "."): np.asarray(w.value) for w in model.weights}
    rows, columns, width = x.shape
    qkv = np.roll(
        x @ weights["attn.qkv.kernel"] + weights["attn.qkv.bias"], (-shift, -shift), (0, 1)
    )
    regions = np.zeros((rows, columns, 1))
    for number, ends in enumerate(
        (a, b)
        for a in (slice(-size), slice(-size, -shift), slice(-shift, None))
        for b in (slice(-size), slice(-size, -shift), slice(-shift, None))
    ):
        regions[ends] = number
    of_windows = windows(regions, size)[..., 0]
    cut = windows(qkv, size)
    q, k, v = (
        part.reshape(*cut.shape[:3], heads, -1).swapaxes(2, 3) for part in np.split(cut, 3, axis=-1)
    )
    table = weights["attn.relative_position_bias_table"]
    scores = q @ k.swapaxes(-1, -2) * (width // heads) ** -0.5
    for a in range(size**2):
        for b in range(size**2):
            down, right = a // size - b // size, a % size - b % size
            scores[..., a, b] += table[(down + size - 1) * (2 * size - 1) + right + size - 1]
    if shift:
        scores += np.where(of_windows[..., None, :] == of_windows[..., :, None], 0, -100)[
            :, :, None
        ]
    y = (softmax(scores) @ v).swapaxes(2, 3).reshape(*cut.shape[:2], size, size, width)
    y = np.roll(y.swapaxes(1, 2).reshape(rows, columns, width), (shift, shift), (0, 1))
    return y @ weights["attn.proj.kernel"] + weights["attn.proj.bias"]


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("shifted", [False, True])
def test_attention_of_the_paper(size: int, shifted: bool, float64: None) -> None:
    image = keras.Input((3 * size, 2 * size, 6))
    model = keras.Model(image, window_attention(image, 2, size, shifted))
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.weights])
    x = rng.normal(size=(2, *image.shape[1:]))
    expected = [of_the_paper(each, model, 2, size, size // 2 if shifted else 0) for each in x]
    assert_same(model.predict(x, verbose=0), np.stack(expected), FLOAT64)


def test_relative_positions() -> None:
    """Pairs of two by two tokens with equal offsets have equal numbers, and others have others."""
    found = relative_positions(2)
    assert found.tolist() == [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]


def test_tokens_outside_are_not_attended_to(float64: None) -> None:
    """A window that the image does not fill gives what the same tokens alone give."""
    image = keras.Input((5, 4, 6))
    model = keras.Model(image, window_attention(image, 2, 4))
    x = np.random.default_rng(1).normal(size=(1, 5, 4, 6))
    alone = keras.Input((4, 4, 6))
    rest = keras.Model(alone, window_attention(alone, 2, 4))
    rest.set_weights(model.get_weights())
    found = model.predict(x, verbose=0)
    assert_same(found[:, :4], rest.predict(x[:, :4], verbose=0), FLOAT64)
    same = np.repeat(x[:, 4:], 4, axis=1)  # without biases, equal rows weigh as one
    for network in (model, rest):
        table = network.get_layer("attn").relative_position_bias_table
        table.assign(np.zeros(table.shape))
    assert_same(model.predict(x, verbose=0)[:, 4], rest.predict(same, verbose=0)[:, 0], FLOAT64)


BEYOND = (16, 12, 3), SMALL  # of 8 x 6 and 4 x 3 tokens: windows reach beyond the image


@pytest.mark.parametrize(
    ("shape", "config", "rows"),
    [
        pytest.param((16, 12, 3), Swin(2, 4, (2,), (1,), 3), 3, id="beyond the image"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (*BEYOND, 7),
                (*BEYOND, 1),
                ((24, 12, 3), Swin(patch=2, width=4, depths=(1, 1), heads=(2, 2), window=2), 1),
                ((24, 12, 3), Swin(patch=2, width=4, depths=(1, 1), heads=(2, 2), window=2), 7),
                ((40, 24, 3), SMALL, 7),
                ((16, 12, 3), Swin(2, 4, (2,), (1,), 9), 3),
            )
        ),
    ],
)
def test_streams_exactly(shape: Any, config: Swin, rows: int, float64: None) -> None:
    network = swin_transformer(shape, config)
    assert_streams(network, images(network, 2, *shape[:2]), rows, training=True)


@pytest.mark.slow
def test_dropped_paths_stream_exactly(float64: None) -> None:
    network = swin_transformer((16, 12, 3), Swin(2, 4, (2, 2), (1, 2), 3, drop_path=0.5))
    assert_streams(network, images(network, 2, 16, 12), 3, training=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types(dtype: str) -> None:
    """Windows beyond the image give what float32 gives, to a few roundings."""
    image = keras.Input((5, 4, 6))
    network = keras.Model(image, window_attention(image, 2, 4, True))
    narrow = keras.Input((5, 4, 6))
    keras.config.set_dtype_policy(f"mixed_{dtype}")
    try:
        other = keras.Model(narrow, window_attention(narrow, 2, 4, True))
    finally:
        keras.config.set_dtype_policy("float32")
    other.set_weights(network.get_weights())
    x = np.random.default_rng(2).normal(size=(1, 5, 4, 6)).astype("float32")
    expected = network.predict(x, verbose=0)
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    found = other.predict(x, verbose=0).astype("float32")
    assert np.abs(found - expected).max() <= 16 * unit * np.abs(expected).max()


def test_sizes_of_the_paper() -> None:
    """Swin-T has 28,288,354 parameters with its head of 1000 classes; one window of the last stage is unshifted."""
    network = swin_transformer((224, 224, 3))
    assert network.count_params() == 28_288_354 - (768 * 1000 + 1000)
    biases = [layer for layer in network.layers if isinstance(layer, RelativePositionBias)]
    assert [layer.window for layer in biases] == [7] * 12
    assert not any(
        "blocks.1.attn.cropped" in layer.name
        for layer in network.layers
        if "layers.3" in layer.name
    )
    assert any("layers.2.blocks.1.attn.cropped" in layer.name for layer in network.layers)


def test_saved(tmp_path: Any) -> None:
    network = swin_transformer((16, 12, 3), SMALL)
    network.save(tmp_path / "swin.keras")
    again = keras.saving.load_model(tmp_path / "swin.keras")
    x = np.ones((1, 16, 12, 3))
    np.testing.assert_array_equal(again.predict(x, verbose=0), network.predict(x, verbose=0))


def test_memory_of_a_plan_grows_with_the_pixels() -> None:
    """No strip of a window attention needs more than windows; four times the pixels are four times the stores."""
    stored = []
    for side in (448, 896):
        plan = tfbig.stream(
            swin_transformer((side, side, 3), Swin(depths=(2,), heads=(3,))),
            tfbig.Budget("64MB"),
            plain_if_small=False,
        ).plan((1, side, side, 3))
        stored.append(plan.projected.host)
        assert plan.projected.device <= 64e6
    assert stored[1] == pytest.approx(4 * stored[0], rel=0.05)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: swin_transformer((30, 32, 3)), "multiples of 32"),
        (lambda: swin_transformer((None, 32, 3)), "expects a known height"),
        (lambda: Swin(depths=(2,), heads=(1, 2)), "one number for each stage"),
        (lambda: Swin(width=8, heads=(3, 3, 3, 3)), "expected divisors of the widths"),
    ],
)
def test_errors(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_layers_have_the_names_of_timm() -> None:
    names = {layer.name for layer in swin_transformer((16, 12, 3), SMALL).layers}
    assert {
        "patch_embed.proj",
        "layers.0.blocks.1.attn.qkv",
        "layers.0.blocks.1.mlp.fc2",
        "layers.1.downsample.reduction",
        "norm",
    } <= names
