"""Reading of Keras models into graphs: which models can be read, and the nodes that result."""

from __future__ import annotations

from typing import Any

import keras
import pytest
from keras import layers
from twins import assert_streams, images

import tfbig
from tfbig.network import keras_reader
from tfbig.network.graph import Local, Reduce, Whole


def image(channels: int = 4) -> Any:
    return keras.Input((None, None, channels), name="image")


def conv(x: Any, filters: int = 1) -> Any:
    return layers.Conv2D(filters, 3, padding="same")(x)


def base_of(op: object) -> type:
    """The kind of the operation: reductions are classes of their own below Reduce."""
    return Reduce if isinstance(op, Reduce) else type(op)


def test_nodes() -> None:
    """One node per step, in topological order, with values of the dtypes in which the inputs arrive."""
    start = image()
    x = layers.BatchNormalization(name="norm")(layers.Conv2D(3, 3, name="conv")(start))
    model = keras.Model(start, layers.Dense(2, name="dense")(layers.GlobalMaxPooling2D()(x)))
    graph = keras_reader.read(model, True, ["uint8"])
    assert [(n.name.split("/")[-1], base_of(n.op)) for n in graph.nodes] == [
        ("cast", Local),
        ("convolution", Local),
        ("moments", Reduce),
        ("normalise", Local),
        ("reduce", Reduce),
        (graph.nodes[5].name, Whole),
        ("dense", Whole),
    ]
    assert [graph.values[i].dtype for i in (graph.inputs[0], graph.nodes[0].output)] == [
        "uint8",
        "float32",
    ]
    assert graph.values[graph.nodes[1].output].channels == 3
    assert graph.outputs == [graph.nodes[-1].output]
    norm = model.get_layer("norm")
    assert [u[0] for u in graph.updates] == [norm.moving_mean, norm.moving_variance]


def test_output_that_is_an_input() -> None:
    start = image()
    graph = keras_reader.read(keras.Model(start, [start, layers.ReLU()(start)]), False)
    assert graph.outputs[0] not in graph.inputs
    assert graph.values[graph.outputs[0]].name == "image/output"


def test_kinds_of_nodes() -> None:
    """Nodes of equal layers have one kind; a layer in another mode, or with other constants, has another."""

    def kinds(model: keras.Model) -> list[Any]:
        return [n.kind for n in keras_reader.read(model, True).nodes]

    inputs = image()
    x = inputs
    for _ in range(2):
        x = layers.BatchNormalization()(layers.Conv2D(4, 3)(x))
    equal = kinds(keras.Model(inputs, x))
    assert equal[:3] == equal[3:]
    frozen = keras.Model(inputs, x)
    frozen.layers[2].trainable = False
    assert kinds(frozen)[1] != kinds(frozen)[4]
    first, second = kinds(keras.Model(inputs, [inputs * 2.0, inputs * 3.0]))
    assert first != second
    assert first != equal[0]


class Twice(keras.Model):
    def call(self, x: Any, training: Any = None, mask: Any = None) -> Any:
        return 2 * super().call(x, training=training)


class TwiceInARow(keras.Sequential):
    def call(self, x: Any, training: Any = None, mask: Any = None) -> Any:
        return 2 * super().call(x, training=training)


@pytest.mark.usefixtures("float64")
def test_model_with_own_call() -> None:
    """A functional or Sequential model that overrides `call` computes what that says, alone and inside another."""
    start = image(2)
    twice = Twice(start, conv(start))
    nested = keras.Model(start, conv(twice(start)))
    for model in (twice, nested, TwiceInARow([image(2), layers.Conv2D(1, 3)])):
        assert_streams(model, images(model, 2, 9, 7), 2, training=False)


def test_model_without_a_graph() -> None:
    class Subclassed(keras.Model):
        pass

    with pytest.raises(tfbig.UnsupportedLayerError, match="neither a graph nor a `call`"):
        keras_reader.as_functional(Subclassed())
    with pytest.raises(tfbig.UnsupportedLayerError, match="is not built"):
        keras_reader.as_functional(keras.Sequential([layers.ReLU()]))
