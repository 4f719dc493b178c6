"""One training or evaluation step whose loss is computed strip by strip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine import keras_variables, read_ahead
from tfbig.engine.program import Program
from tfbig.geometry.background import Background
from tfbig.network import objective
from tfbig.streaming import labels
from tfbig.streaming.model_inputs import ModelInputs, Shape
from tfbig.streaming.program_cache import Compiled, Programs


@dataclass(frozen=True)
class LossStep:
    """A step on data, prepared to run.

    Args:
        program: Program that computes loss and metrics.
        objective: Loss and metrics.
        tensors: Inputs of the model, then the labels that the program needs.
        shapes: Shapes of the first of them, as far as they are known.
    """

    program: Program
    objective: objective.Objective
    tensors: list[tf.Tensor]
    shapes: list[Shape | None]

    @property
    def image_shapes(self) -> dict[int, tuple[int, ...]]:
        """Shapes of the images among the inputs of the program, by value id; for eager data."""
        unread = self.tensors[len(self.shapes) :]
        shapes = [*self.shapes, *map(read_ahead.shape_of, unread)]
        return keras_variables.image_shapes(self.program, shapes)  # type: ignore[arg-type]

    @property
    def backgrounds(self) -> dict[int, Background]:
        """Background of the images among the inputs of the program, by value id; for eager data."""
        return keras_variables.backgrounds_of(self.program, self.tensors)

    @property
    def runs_plain(self) -> bool:
        """True if the plain model runs instead, because it fits."""
        return keras_variables.runs_plain(self.program, self.tensors)

    @property
    def batch(self) -> tf.Tensor:
        """N, int32 scalar."""
        return tf.shape(self.tensors[0])[0]

    def forward(self) -> dict[int, Any]:
        """Compute loss and metrics; return results by value id."""
        inputs = keras_variables.arguments(self.program, self.tensors)
        return self.program.forward(inputs, keras_variables.weights(self.program))

    def loss_and_gradients(self, scale: tf.Tensor) -> tuple[dict[int, Any], list[Any]]:
        """Compute loss, metrics and gradients, and update moving statistics.

        Args:
            scale: Factor of the gradients.

        Returns:
            Results by value id, and a gradient per weight of the graph; None for a weight without one.
        """
        inputs = keras_variables.arguments(self.program, self.tensors)
        weights = keras_variables.weights(self.program)
        results, gradients = self.program.loss_and_gradients(inputs, weights, scale)
        used = objective.weights_with_gradient(self.program.graph)
        return results, [g if i in used else None for i, g in enumerate(gradients)]

    def loss(self, results: dict[int, Any]) -> tf.Tensor:
        """Return the loss among the results."""
        return results[self.program.graph.outputs[0]]

    def track(self, results: dict[int, Any]) -> None:
        """Update the metrics with the results."""
        values = [results[v] for v in self.program.graph.outputs[1:]]
        self.objective.track(values, self.tensors[0].shape[0])


def prepare(
    programs: Programs, reader: ModelInputs, compiled: Compiled, data: Any, training: bool
) -> LossStep:
    """Return the step on data.

    Args:
        programs: Programs of the model.
        reader: Reader of its inputs.
        compiled: What `compile` has set.
        data: `(x, y)` or `(x, y, sample_weight)`.
        training: Whether to compute a training step.
    """
    x, *pair = keras.utils.unpack_x_y_sample_weight(data)
    inputs = reader.read(x)
    pair = list(programs.labels.prepare(*pair))
    program, goal, taken = programs.loss(training, inputs.tensors, pair, compiled)
    flat = [t for structure in pair for t in labels.flatten(structure)]
    tensors = inputs.tensors + [flat[i] for i in taken]
    return LossStep(program, goal, tensors, inputs.shapes)
