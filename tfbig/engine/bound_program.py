"""A program with its inputs, connected to Keras: it reads variables, draws seeds and assigns updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfbig.engine import backgrounds, read_ahead
from tfbig.engine.program import Program
from tfbig.geometry.background import Background
from tfbig.network.graph import Graph
from tfbig.sources.handles import TURNED
from tfbig.system import keras_internals, tensorflow_internals

Results = dict[int, Any]
"""Results of a program by value id."""


@dataclass(frozen=True)
class BoundProgram:
    """A program with its inputs.

    Args:
        program: The program.
        tensors: Inputs in the order of the model, then labels that the program needs: tensors, or string handles `[N]`.
    """

    program: Program
    tensors: Sequence[tf.Tensor]

    @property
    def graph(self) -> Graph:
        """Graph of the program."""
        return self.program.graph

    @property
    def image_shapes(self) -> dict[int, tuple[int, ...]]:
        """Shape `(N, rows, ..., C)` of each image among the inputs, by value id; of eager inputs."""
        graph = self.graph
        return {
            i: tuple(read_ahead.shape_of(t)[axis] for axis in graph.permutation)
            for i, t in self._untransposed.items()
            if graph.values[i].image
        }

    @property
    def backgrounds(self) -> dict[int, Background]:
        """Background of the images among the inputs that have one, by value id; of eager inputs."""
        return backgrounds.expected(self._images)

    @property
    def runs_plain(self) -> bool:
        """True if the plain model is to run instead, because it fits."""
        return self.program.layouts.is_plain(self._images)

    def outputs(self) -> list[Any]:
        """Run the program and update the moving statistics; return the outputs, differentiable."""
        weights = weights_of(self.graph)
        results = self.program.run(self._arguments(), weights, self._watched)
        self.update(results)
        graph = self.graph
        axes = graph.inverse_permutation
        return [
            _transposed(results[v], axes) if graph.values[v].image else results[v]
            for v in graph.outputs
        ]

    def forward(self, sinks: dict[int, tf.Tensor] | None = None) -> Results:
        """Run the program without gradients. Args and result: as in `Program.forward`."""
        return self.program.forward(self._arguments(), weights_of(self.graph), sinks)

    def loss_and_gradients(self, scale: tf.Tensor) -> tuple[Results, list[Any]]:
        """Compute the results, and the gradients of `scale` times the first one, see `Program.loss_and_gradients`."""
        return self.program.loss_and_gradients(self._arguments(), weights_of(self.graph), scale)

    def update(self, results: Results) -> None:
        """Assign the moving statistics that a step changes.

        Args:
            results: Results of the program.
        """
        for variable, value, function in self.graph.updates:
            variable.assign(function(raw(variable), results[value]))

    @property
    def _untransposed(self) -> dict[int, tf.Tensor]:
        """Inputs by value id, without seeds, in the order of axes of the model."""
        seeds = [value for value, _ in self.graph.seeds]
        of_data = [i for i in self.graph.inputs if i not in seeds]
        return dict(zip(of_data, self.tensors, strict=True))

    @property
    def _inputs(self) -> dict[int, tf.Tensor]:
        """Inputs by value id, without seeds, in the order of axes of the graph."""
        values, axes = self.graph.values, self.graph.permutation
        return {
            i: _transposed(t, axes) if values[i].image else t for i, t in self._untransposed.items()
        }

    @property
    def _images(self) -> dict[int, tf.Tensor]:
        """Images among the inputs, by value id."""
        return {i: t for i, t in self._inputs.items() if self.graph.values[i].image}

    def _arguments(self) -> dict[int, tf.Tensor]:
        """Return the inputs by value id, and a new seed for every dropout layer."""
        seeds = {v: tf.cast(generator.next(), tf.int64) for v, generator in self.graph.seeds}
        return self._inputs | seeds

    @property
    def _watched(self) -> list[int]:
        """Input images that a gradient tape watches; no gradient is computed for the others."""
        pairs = zip(self.graph.inputs, self.tensors, strict=False)
        return [i for i, t in pairs if t.dtype.is_floating and tensorflow_internals.is_watched(t)]


def weights_of(graph: Graph) -> list[tf.Tensor]:
    """Return the values of the variables of a graph."""
    return [raw(v) for v in graph.weights]


def raw(variable: Any) -> tf.Tensor:
    """Return the value of a Keras variable in the dtype of the variable.

    Inside `stateless_call` it is the value that was passed for the variable. `variable.value` would be cast inside the
    autocast scope of a mixed-precision layer, and gradients of strips would then add up in the narrow type.
    """
    value = None
    if keras_internals.in_stateless_scope():
        value = keras_internals.get_stateless_scope().get_current_value(variable)
    return tf.convert_to_tensor(keras_internals.tensor_of(variable) if value is None else value)


def _transposed(image: tf.Tensor, axes: tuple[int, ...]) -> tf.Tensor:
    """Return an image, or the handles of images, with the axes in another order."""
    if list(axes) == sorted(axes):
        return image
    if image.dtype == tf.string:
        order = "".join(str(axis - 1) for axis in axes[1:-1])
        return tf.strings.join([image, f"{TURNED}{order}"])
    return tf.transpose(image, axes)
