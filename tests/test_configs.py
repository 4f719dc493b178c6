"""Every saved class of tfbig gets all of its arguments back from its config."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import tfbig
from tfbig import mil
from tfbig.mil import target_losses, target_metrics
from tfbig.models import (
    clam,
    convnext_v2,
    dtfd,
    latent,
    pooling,
    self_attention,
    swin_transformer,
    transmil,
    vision_transformer,
)
from tfbig.network.attention_pooling import AttentionPooling
from tfbig.network.instances import Instances
from tfbig.patchgd import latent_grid, segmentation

VIT = vision_transformer
OPTIONS = {"name": "other"}


def encoder(shape: tuple[int, ...] = (8, 8, 1)) -> keras.Model:
    return keras.Sequential([keras.Input(shape), layers.Flatten(), layers.Dense(4)])


def image_model() -> keras.Model:
    image = keras.Input((None, None, 1))
    inner = layers.Conv2D(2, 3, padding="same", name="first")(image)
    return keras.Model(image, layers.Conv2D(1, 3, padding="same")(inner))


def decoder() -> keras.Model:
    """Return a model from windows of three codes by three to masks of 24 x 24."""
    codes = keras.Input((3, 3, 4))
    return keras.Model(codes, layers.Conv2DTranspose(1, 8, strides=8)(codes))


BUDGET = {"budget": tfbig.Budget(host="1GB", device="1MB"), "devices": ["CPU:0"]}
PATCHES = {
    "sampling": 2,
    "inner_steps": 3,
    "accumulate": 2,
    "sampler": "replacement",
    "filling_norm": "frozen",
    "patches_at_once": 5,
    "source_dtype": "float32",
    "latent_on_host": True,
    "seed": 7,
}
MAKE: dict[str, Callable[[], Any]] = {
    "ABMIL": lambda: mil.ABMIL(
        classes=3, hidden=5, gated=True, activation="relu", widths=[6], **OPTIONS
    ),
    "ABMILX": lambda: mil.ABMILX(
        classes=3,
        width=8,
        heads=2,
        plus=False,
        mlp=True,
        normalise=False,
        rate=0.5,
        block=16,
        **OPTIONS,
    ),
    "AttentionGate": lambda: pooling.Gate(5, False, "relu", **OPTIONS),
    "Attention": lambda: VIT.Attention(heads=2, **OPTIONS),
    "BagHead": lambda: latent.BagHead(mil.MeanPooling(3), positions=True, **OPTIONS),
    "CLAM": lambda: mil.CLAM(
        classes=3, width=8, hidden=4, per_class=True, samples=2, gated=False, rate=0.5, **OPTIONS
    ),
    "DSMIL": lambda: mil.DSMIL(classes=3, hidden=5, values=True, **OPTIONS),
    "DTFDMIL": lambda: mil.DTFDMIL(
        classes=3,
        width=8,
        hidden=5,
        groups=2,
        distillation="MaxS",
        blocks=1,
        instances=2,
        joint=False,
        shuffle=False,
        seed=7,
        **OPTIONS,
    ),
    "Gate": lambda: VIT.Gate(**OPTIONS),
    "GlobalResponseNorm": lambda: convnext_v2.GlobalResponseNorm(**OPTIONS),
    "InstanceLoss": lambda: clam.InstanceLoss("svm", True, **OPTIONS),
    "LayerScale": lambda: VIT.LayerScale(0.5, **OPTIONS),
    "MaxPooling": lambda: mil.MaxPooling(3, **OPTIONS),
    "MeanPooling": lambda: mil.MeanPooling(3, **OPTIONS),
    "NystromAttention": lambda: transmil.NystromAttention(
        8, heads=2, landmarks=4, iterations=3, kernel=5, rate=0.5, **OPTIONS
    ),
    "PoolTokens": lambda: VIT.PoolTokens("average", prefix=2, **OPTIONS),
    "PseudoBagLoss": lambda: dtfd.PseudoBagLoss("mean", **OPTIONS),
    "Query": lambda: VIT.Query(4, **OPTIONS),
    "RelativePositionBias": lambda: swin_transformer.RelativePositionBias(3, **OPTIONS),
    "SelfAttention": lambda: self_attention.SelfAttention(8, heads=2, block=16, **OPTIONS),
    "SelfAttentionMIL": lambda: mil.SelfAttentionMIL(
        3, width=8, heads=2, depth=2, block=16, mlp=1, **OPTIONS
    ),
    "Tokens": lambda: VIT.Tokens(
        registers=2, class_token=False, prefix_positions=False, resampling="bicubic", **OPTIONS
    ),
    "TransMIL": lambda: mil.TransMIL(3, width=8, landmarks=2, **OPTIONS),
    "TransformerMIL": lambda: mil.TransformerMIL(
        3, width=8, heads=2, depth=1, block=16, mlp=2, **OPTIONS
    ),
    "AttentionPooling": lambda: AttentionPooling(5, gated=False, activation="relu", **OPTIONS),
    "ClassDice": lambda: tfbig.metrics.ClassDice(3, dtype="float64", **OPTIONS),
    "Concordance": lambda: target_metrics.Concordance(3, dtype="float64", **OPTIONS),
    "ConfusionMatrix": lambda: tfbig.metrics.ConfusionMatrix(
        3, threshold=0.3, from_logits=True, dtype="float64", **OPTIONS
    ),
    "CoupledAdam": lambda: tfbig.optimizers.CoupledAdam(0.1, 0.2, 0.3, 0.4, 0.5, **OPTIONS),
    "CoxLoss": lambda: target_losses.CoxLoss(**OPTIONS),
    "DemonAdamW": lambda: tfbig.optimizers.DemonAdamW(0.1, 9, 0.3, 0.4, 0.5, 0.6, 0.7, **OPTIONS),
    "Dice": lambda: tfbig.metrics.Dice(threshold=0.3, dtype="float64", **OPTIONS),
    "DiceCrossentropy": lambda: tfbig.losses.DiceCrossentropy(
        0.1, True, 0.3, 0.4, reduction="sum", **OPTIONS
    ),
    "DiscreteTimeLoss": lambda: target_losses.DiscreteTimeLoss(0.3, **OPTIONS),
    "Instances": lambda: Instances(encoder(), norm_slice=2, **OPTIONS),
    "LabelAUC": lambda: target_metrics.LabelAUC(3, 2, dtype="float64", **OPTIONS),
    "LabelCrossEntropy": lambda: target_losses.LabelCrossEntropy(**OPTIONS),
    "LatentGrid": lambda: latent_grid.LatentGrid(
        encoder(),
        (8, 8),
        (4, 4),
        sampling=2,
        patches_at_once=3,
        encoder_scale="unbiased",
        filling_norm="frozen",
        seed=7,
        **OPTIONS,
    ),
    "LookaheadRAdam": lambda: tfbig.optimizers.LookaheadRAdam(0.1, 0.2, 0.3, 4, 0.5, **OPTIONS),
    "MIL": lambda: mil.MIL(
        encoder(),
        mil.MeanPooling(3),
        2,
        instance_shape=(8, 8, 1),
        norm="frozen",
        mode="published",
        source_dtype="float32",
        store="bfloat16",
        **BUDGET,
        **OPTIONS,
    ),
    "Mask": lambda: segmentation.Mask(decoder(), (8, 8), context=1, **OPTIONS),
    "PatchGD": lambda: tfbig.PatchGD(
        encoder(),
        mil.MeanPooling(3),
        (8, 8),
        (4, 4),
        encoder_scale="unbiased",
        image_shape=(16, 16, 1),
        **PATCHES,
        **OPTIONS,
    ),
    "PatchGDSegmentation": lambda: tfbig.patchgd.PatchGDSegmentation(
        encoder(),
        decoder(),
        (8, 8),
        context=1,
        scale="unbiased",
        fill_mask=False,
        label_dtype="uint16",
        **PATCHES,
        **OPTIONS,
    ),
    "QuadraticWeightedKappa": lambda: tfbig.metrics.QuadraticWeightedKappa(3, **OPTIONS),
    "RAdam": lambda: tfbig.optimizers.RAdam(0.1, 0.2, 0.3, 0.4, 0.5, **OPTIONS),
    "ScaledError": lambda: target_metrics.ScaledError(0.3, dtype="float64", **OPTIONS),
    "SideBySide": lambda: latent_grid.SideBySide(2, **OPTIONS),
    "StreamedModel": lambda: tfbig.StreamedModel(
        image_model(),
        strip_rows=3,
        source_dtype="float32",
        store="bfloat16",
        upto="first",
        unsupported="device",
        plain_if_small=False,
        **BUDGET,
        **OPTIONS,
    ),
}
"""An object of each class, all arguments unlike their defaults."""
NOT_SAVED = {"DiceCrossentropy": {"dtype"}}
"""Arguments that Keras does not save for its own losses either."""


def registered() -> dict[str, type]:
    """Return the classes that tfbig registers, by name, but those of `tfbig.layers`, which copy their Keras twins."""
    for module in pkgutil.walk_packages(tfbig.__path__, "tfbig."):
        if not module.name.startswith("tfbig.cli"):
            importlib.import_module(module.name)
    found = keras.saving.get_custom_objects().items()
    return {
        name.split(">")[1]: kind
        for name, kind in found
        if name.startswith("tfbig") and kind.__module__ not in ("tfbig.layers", __name__)
    }


def arguments(kind: type) -> list[str]:
    """Return the names of the arguments that a class of tfbig has itself."""
    if not kind.__init__.__module__.startswith("tfbig"):
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(kind.__init__).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.name != "self"]


def test_all_classes_are_here() -> None:
    assert set(registered()) == set(MAKE)


def test_no_two_classes_have_one_name() -> None:
    """Else a file loads as the class that was imported last."""
    registered()
    modules = [module for name, module in sys.modules.items() if name.startswith("tfbig.")]
    for kind in {k for module in modules for k in vars(module).values() if isinstance(k, type)}:
        name = keras.saving.get_registered_name(kind)
        if name.startswith("tfbig"):
            assert keras.saving.get_registered_object(name) is kind, f"{name}: {kind}"


def plain(value: Any) -> Any:
    """Return a config with lists for tuples, as in the file of a model."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return np.float64(value).item() if isinstance(value, np.floating) else value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MAKE)
def test_config_has_every_argument(name: str) -> None:
    made = MAKE[name]()
    kind, config = type(made), made.get_config()
    names = set(arguments(kind)) - NOT_SAVED.get(name, set())
    if not issubclass(kind, keras.layers.Layer | keras.losses.Loss | keras.Optimizer):
        names -= {"dtype"}  # checked below: `Metric` saves its policy
    assert names <= set(config), f"missing: {names - set(config)}"
    defaults = inspect.signature(kind.__init__).parameters
    for argument in names & set(config):
        assert config[argument] != defaults[argument].default, f"{argument} is the default"
    saved = keras.saving.serialize_keras_object(made)
    again = keras.saving.deserialize_keras_object(saved)
    assert type(again) is kind
    assert plain(again.get_config()) == plain(config)
    assert getattr(again, "dtype", None) == getattr(made, "dtype", None)
