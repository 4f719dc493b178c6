"""Behaviour that the models of PatchGD share: saving, frozen weights, mixed precision, settings."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from exactness import assert_same
from patch_models import (
    LABELS,
    encoder,
    entropy,
    head,
    images,
)

from tfbig.patchgd import PatchGD


@pytest.mark.slow
def test_saving_and_resuming(tmp_path: Any) -> None:
    x, y = images(12, 16, count=4), LABELS[:4]
    model = PatchGD(
        encoder(norm=True), head(), 4, (4, 3), 0.3, accumulate=2, filling_norm="frozen", seed=4
    )
    model.compile("adam", entropy(), run_eagerly=True)
    model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    settings = model.get_config().keys() - {"encoder", "head"}
    assert all(loaded.get_config()[key] == model.get_config()[key] for key in settings)
    assert_same(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    for each in (model, loaded):
        each.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    assert_same(
        loaded.get_weights(), model.get_weights()
    )  # also the sets of patches and the moments of Adam


@pytest.mark.slow
def test_frozen_weights_do_not_change() -> None:
    net = encoder()
    net.layers[1].trainable = False
    model = PatchGD(net, head(), 4, sampling=0.5)
    before = net.layers[1].get_weights()
    model.compile(keras.optimizers.AdamW(weight_decay=0.1), entropy())
    model.fit(images(12, 16), LABELS, verbose=0)
    assert_same(net.layers[1].get_weights(), before)
    net.trainable = False
    model = PatchGD(net, head(), 4, sampling=0.5)
    model.compile("adam", entropy(), run_eagerly=True)
    model.fit(images(12, 16), LABELS, verbose=0)
    assert_same(net.layers[1].get_weights(), before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "at_once"),
    [
        ("mixed_bfloat16", 2),
        *(pytest.param("mixed_float16", n, marks=pytest.mark.slow) for n in (None, 2)),
    ],
)
def test_mixed_precision(policy: str, at_once: Any) -> None:
    """The loss of a step is near that in float32, and its weights change."""
    losses = []
    for dtype, eager in (("float32", True), (policy, False)):
        keras.config.set_dtype_policy(dtype)
        options = {"sampling": 0.5, "patches_at_once": at_once, "seed": 0}
        model = PatchGD(encoder(norm=True), head(), 4, **options)
        model.compile("adam", entropy(), run_eagerly=eager)
        before = model.get_weights()
        losses += model.fit(images(12, 16), LABELS, shuffle=False, verbose=0).history["loss"]
        assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


@pytest.mark.parametrize("on_host", [True, False])
def test_latent_on_host(on_host: bool) -> None:
    """The operations that gather and change Z are placed on the host; the encoder is not placed."""
    model = PatchGD(encoder(), head(), 4, sampling=3, latent_on_host=on_host)
    model.compile("sgd", entropy())

    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> Any:
        return model.train_step((x, y))

    graph = step.get_concrete_function(tf.zeros([2, 12, 16, 2]), tf.constant([0, 1])).graph
    definition = graph.as_graph_def()
    nodes = [
        *definition.node,
        *(n for function in definition.library.function for n in function.node_def),
    ]
    devices = {n.op: n.device for n in nodes if not n.name.startswith("gradient_tape")}
    for operation in ("TensorListReserve", "TensorScatterUpdate"):
        assert ("CPU:0" in devices[operation]) == on_host
    convolutions = [n.device for n in nodes if n.op == "Conv2D"]
    assert convolutions
    assert not any(convolutions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": 0}, "sampling=0: expected a number of patches"),
        ({"sampling": 1.5}, "sampling=1.5: expected a number of patches"),
        ({"sampling": True}, "sampling=True: expected a number of patches"),
        (
            {"sampler": "all"},
            "sampler='all': expected one of 'shuffle', 'replacement', 'attention'",
        ),
        (
            {"encoder_scale": "exact"},
            "scale='exact': expected one of 'published', 'unbiased'",
        ),
        ({"filling_norm": "none"}, "filling_norm='none': expected one of 'published', 'frozen'"),
        ({"inner_steps": 0}, "inner_steps=0: expected a number, 1 or more"),
        ({"accumulate": 0.5}, "accumulate=0.5: expected a number, 1 or more"),
        ({"patches_at_once": -1}, "patches_at_once=-1: expected a number, 1 or more"),
        ({"stride": 5}, "leaves pixels out"),
        ({"patch": (4, 4, 4)}, "patch=.*one for each of 2 axes"),
        ({"sampler": "attention"}, "head 'head' has no method"),
    ],
)
def test_invalid_settings(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PatchGD(encoder(), head(), **{"patch": 4} | options)
