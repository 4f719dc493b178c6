"""Layers whose first arguments are models, saved and loaded."""

import keras
import numpy as np
import pytest

from tfbig.system.parts import WithParts


@keras.saving.register_keras_serializable(package="tests")
class Both(WithParts, keras.layers.Layer):
    """Sum of two layers, times a factor."""

    PARTS = ("first", "second")

    def __init__(self, first, second, factor=1, **options):
        super().__init__(**options)
        self.first, self.second, self.factor = first, second, factor

    def call(self, x):
        return self.factor * (self.first(x) + self.second(x))

    def get_config(self):
        return super().get_config() | {"factor": self.factor} | self.parts_config()


def test_parts_are_saved_in_their_order(tmp_path):
    x = np.ones((1, 2), "float32")
    layer = Both(keras.layers.Dense(2), keras.layers.Activation("relu"), 3, name="both")
    model = keras.Sequential([keras.Input((2,)), layer])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(x), model(x))
    assert again.layers[0].factor == 3


def test_a_config_is_not_changed_and_needs_all_parts():
    config = Both(keras.layers.ReLU(), keras.layers.ReLU()).get_config()
    copy = dict(config)
    Both.from_config(config)
    assert config == copy
    del config["second"]
    with pytest.raises(KeyError, match="second"):
        Both.from_config(config)
