"""Plans of six models, compared with files: a change of the planner that alters a plan must alter its file too.

`python -m pytest tests/plan/test_golden_plans.py --update-plans` writes the files again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import keras
import pytest

import tfbig
from tfbig.models.gigapixel_unet import gigapixel_unet
from tfbig.models.resnet import resnet18
from tfbig.plan.plan import Plan

FILES = Path(__file__).parents[1] / "files" / "plans"


@cache
def network() -> keras.Model:
    """Return a ResNet-18, which all of its plans share."""
    return resnet18(classes=2)


def unet() -> Plan:
    budget = tfbig.Budget(device="512MB", host="758MB", disk="20GB")
    model = tfbig.stream(gigapixel_unet(), budget)
    model.compile("adam", "binary_crossentropy")
    return model.plan((1, 16384, 16384, 1))


def rematerialised() -> Plan:
    model = tfbig.stream(network(), tfbig.Budget(device="128MB", host="1200MB", disk=0))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model.plan((1, 2048, 2048, 3))


def inference() -> Plan:
    model = tfbig.stream(network(), tfbig.Budget(device="256MB", host="3GB", disk=0))
    return model.plan((2, 3000, 2000, 3), training=False)


def kept_on_device() -> Plan:
    budget = tfbig.Budget(device="1500MB", host="64GB", disk=0)
    model = tfbig.stream(network(), budget, devices="CPU:0")
    model.compile("adam", "sparse_categorical_crossentropy")
    return model.plan((1, 4096, 4096, 3))


def split() -> Plan:
    image = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(image)
    x = keras.layers.Conv2D(16, 3, strides=2, padding="same", name="last")(x)
    x = keras.layers.BatchNormalization(axis=1)(keras.layers.Resizing(32, 32)(x))
    x = keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(x))
    model = tfbig.stream(
        keras.Model(image, x), tfbig.Budget(device="192MB", host="8GB", disk=0), upto="last"
    )
    model.compile("adam", "mse")
    return model.plan((1, 1024, 2048, 3))


def bag() -> Plan:
    encoder = resnet18((64, 64, 3), include_top=False, pooling="avg")
    model = tfbig.mil.MIL(
        encoder, tfbig.mil.ABMIL(2), budget=tfbig.Budget(device="512MB", host="6GB", disk=0)
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    return model.plan((1, 800, 64, 64, 3))


def describe(plan: Plan) -> str:
    """Return the table of a plan, and the place of each of its stores."""
    stores = sorted(plan.timeline.spans)
    lines = [
        f"{s.kind} {s.value} {plan.layout.where(s)} {plan.addresses.get(s, '-')} {plan.image_bytes[s.value]}"
        for s in stores
    ]
    return "\n".join([str(plan), *lines, ""])


@pytest.mark.parametrize(
    "case", [unet, rematerialised, inference, kept_on_device, split, bag], ids=lambda f: f.__name__
)
def test_plans(case: Callable[[], Plan], request: pytest.FixtureRequest) -> None:
    text, file = describe(case()), FILES / f"{case.__name__}.txt"
    if request.config.getoption("--update-plans"):
        file.write_text(text)
    assert text == file.read_text()
