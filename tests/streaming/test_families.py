"""Streamed models of every family of `keras.applications` equal plain Keras in float64.

Strips have 16 rows. Short models, with fewer blocks of each kind, run by default.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import pytest
from keras import applications
from keras.src.applications import convnext, efficientnet, nasnet
from twins import assert_streams, images, unlike_at_start

pytestmark = pytest.mark.usefixtures("float64")

STRIP_ROWS = 16
OPEN = {"weights": None, "include_top": False, "input_shape": (None, None, 3)}


def check(model: keras.Model, rows: int, columns: int, training: bool) -> None:
    unlike_at_start(model)
    assert_streams(model, images(model, 2, rows, columns), STRIP_ROWS, training)


def short_convnext() -> keras.Model:
    """Return a small ConvNeXt that drops half of all paths, the same ones as the plain model."""
    return convnext.ConvNeXt(
        depths=(1, 1, 1, 1), projection_dims=(6, 8, 10, 12), drop_path_rate=0.5, **OPEN
    )


def short_efficientnet() -> keras.Model:
    return efficientnet.EfficientNet(
        0.25, 0.1, 224, drop_connect_rate=0.5, name="efficientnetb0", weights_name="b0", **OPEN
    )


def short_nasnet() -> keras.Model:
    """Return a small NASNet of fixed size: with an open size, the paddings of plain Keras are wrong as well."""
    return nasnet.NASNet(
        input_shape=(64, 64, 3),
        penultimate_filters=96,
        num_blocks=1,
        stem_block_filters=8,
        skip_reduction=False,
        filter_multiplier=2,
        include_top=False,
        weights=None,
    )


@pytest.mark.parametrize(
    ("build", "training"),
    [
        pytest.param(build, training, marks=pytest.mark.slow)
        for build in (short_convnext, short_efficientnet)
        for training in (True, False)
    ],
)
def test_short(build: Callable[[], keras.Model], training: bool) -> None:
    check(build(), 75, 69, training)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_short_nasnet(training: bool) -> None:
    check(short_nasnet(), 64, 64, training)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("ConvNeXtTiny", 75, 69),
        ("DenseNet121", 75, 69),
        ("EfficientNetB0", 75, 69),
        ("EfficientNetV2B0", 75, 69),
        ("InceptionResNetV2", 113, 109),
        ("InceptionV3", 113, 109),
        ("MobileNet", 75, 69),
        ("MobileNetV2", 75, 69),
        ("MobileNetV3Large", 75, 69),
        ("MobileNetV3Small", 75, 69),
        ("ResNet50", 75, 69),
        ("ResNet50V2", 75, 69),
        ("VGG16", 41, 37),
        ("Xception", 75, 73),
    ],
)
def test_without_its_head(name: str, rows: int, columns: int, training: bool) -> None:
    """Models without their heads equal the plain models.

    At 81 x 77 InceptionResNetV2 ends in BatchNormalization of two numbers: a change of its input by one unit in the
    last place changes the plain model's output by 1.5e-9; by 8e-14 at 113 x 109, where each has eight numbers or more.
    """
    check(getattr(applications, name)(**OPEN), rows, columns, training)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize(
    "name",
    ["ConvNeXtTiny", "EfficientNetB0", "MobileNet", "MobileNetV3Small", "ResNet50", "VGG16"],
)
def test_with_its_head(name: str, training: bool) -> None:
    """Pooling, dropout and Dense; VGG flattens an image of fixed size."""
    build = getattr(applications, name)
    model = build(weights=None, include_top=True, input_shape=(75, 69, 3), classes=7)
    check(model, 75, 69, training)
