"""One training or evaluation step whose loss is computed strip by strip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine.bound_program import BoundProgram, Results
from tfbig.network import objective
from tfbig.streaming import label_sizes, labels
from tfbig.streaming.model_inputs import ModelInputs
from tfbig.streaming.program_cache import Compiled, Programs


@dataclass(frozen=True)
class LossStep(BoundProgram):
    """A program that computes loss and metrics, with inputs and labels.

    Args:
        program: The program.
        tensors: Inputs of the model, then the labels that the program needs.
        objective: Loss and metrics.
        num_inputs: Number of inputs of the model among the tensors.
    """

    objective: objective.Objective
    num_inputs: int

    @property
    def inputs(self) -> list[tf.Tensor]:
        """Inputs of the model."""
        return list(self.tensors[: self.num_inputs])

    @property
    def batch(self) -> tf.Tensor:
        """N, int32 scalar."""
        return tf.shape(self.tensors[0])[0]

    def loss_and_gradients(self, scale: tf.Tensor) -> tuple[Results, list[Any]]:
        """Compute loss, metrics and gradients.

        Args:
            scale: Factor of the gradients.

        Returns:
            Results by value id, and a gradient per weight of the graph; None for a weight without one.
        """
        results, gradients = super().loss_and_gradients(scale)
        used = objective.weights_with_gradient(self.graph)
        return results, [g if i in used else None for i, g in enumerate(gradients)]

    def loss(self, results: Results) -> tf.Tensor:
        """Return the loss among the results."""
        return results[self.graph.outputs[0]]

    def track(self, results: Results) -> None:
        """Update the metrics with the results."""
        values = [results[v] for v in self.graph.outputs[1:]]
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

    Raises:
        ValueError: Targets or sample weights have another size than their output.
    """
    x, *pair = keras.utils.unpack_x_y_sample_weight(data)
    inputs = reader.read(x)
    pair = list(programs.labels.prepare(*pair))
    program, goal, before, taken = programs.loss(training, inputs, pair, compiled)
    targets, weights = (labels.flatten(structure) for structure in pair)
    used: list[objective.Term | objective.Scores] = [*goal.terms, *goal.scores]
    labelled = [
        (each.output, targets[each.target], None if each.weights is None else weights[each.weights])
        for each in used
    ]
    label_sizes.check(reader.name, label_sizes.outputs_of_graph(before, inputs), labelled)
    tensors = inputs + [[*targets, *weights][i] for i in taken]
    return LossStep(program, tensors, goal, len(inputs))
