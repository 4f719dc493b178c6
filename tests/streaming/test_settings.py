"""Settings: checked, saved with a model, and the same for `stream`, `StreamedModel` and `MIL`."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import keras
import pytest
from streamed_pairs import segmenter

import tfbig
from tfbig.streaming.settings import Settings

SETTINGS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "budget": ({"budget": "1GB"}, TypeError, r"expected budget=tfbig.Budget\(host=...\)"),
    "no budget": ({"budget": 0}, TypeError, r"expected budget=tfbig.Budget\(host=...\)"),
    "rows": ({"strip_rows": 0}, ValueError, "strip_rows=0: expected a positive number"),
    "store": ({"store": "int8"}, ValueError, "store='int8': expected None or one of"),
    "source": ({"source_dtype": "rgb"}, ValueError, "source_dtype='rgb': expected one of bool"),
    "device": (
        {"devices": "GPU:99"},
        ValueError,
        "devices='GPU:99': no such device; expected one of",
    ),
    "no devices": ({"devices": []}, ValueError, "expected one device or several different ones"),
    "a device twice": (
        {"devices": ["CPU:0", "/CPU:0"]},
        ValueError,
        "expected one device or several different ones",
    ),
    "no device": ({"devices": "fast"}, ValueError, "devices='fast': no such device"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_invalid_settings(name: str) -> None:
    options, kind, message = SETTINGS[name]
    with pytest.raises(kind, match=message):
        tfbig.stream(segmenter(), **options)


CHANGED = Settings(
    tfbig.Budget(host="3GB", device="1MB"),
    strip_rows=7,
    devices=["CPU:0"],
    source_dtype="uint16",
    store="float16",
    upto="last",
    unsupported="device",
    plain_if_small=False,
)
"""Settings of which none has its default."""


def test_arguments_of_stream_are_the_settings() -> None:
    """Their defaults are equal too, but for the budget: None stands for the memory of the machine."""
    parameters = list(inspect.signature(tfbig.stream).parameters.values())[1:]
    names = [field.name for field in fields(Settings) if field.name != "replicas"]
    assert [each.name for each in parameters] == names
    defaults = {each.name: each.default for each in parameters if each.name != "budget"}
    assert defaults == {name: getattr(Settings(), name) for name in defaults}


def test_stream_passes_every_setting() -> None:
    arguments = {field.name: getattr(CHANGED, field.name) for field in fields(Settings)}
    del arguments["replicas"]
    x = start = keras.Input((None, None, 1))
    x = keras.layers.Conv2D(1, 3, name="last")(x)
    assert tfbig.stream(keras.Model(start, x), **arguments).settings == CHANGED


def test_saved_settings_are_read_again() -> None:
    config = CHANGED.get_config()
    assert config["budget"] == CHANGED.budget.get_config()
    assert Settings(**{**config, "budget": tfbig.Budget(**config["budget"])}) == CHANGED
    assert all(config[name] != value for name, value in Settings().get_config().items())


def test_unknown_arguments_go_to_keras() -> None:
    assert tfbig.StreamedModel(segmenter(), strip_rows=3, name="big").name == "big"
    with pytest.raises((TypeError, ValueError), match="strip_row"):
        tfbig.StreamedModel(segmenter(), strip_row=3)
