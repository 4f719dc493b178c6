"""A Keras model whose steps are traced once per layout, which is chosen from the data before a step is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine import traced_steps
from tfbig.streaming.model_inputs import ModelInputs
from tfbig.streaming.plain_steps import PlainSteps
from tfbig.streaming.twin_model import TwinModel
from tfbig.system import keras_internals, tf_errors


class LayoutModel(TwinModel):
    """A Keras model that chooses the layout of each step; subclasses define `_found`.

    Args:
        model: The plain model.
        **kwargs: Arguments of `keras.Model`, such as `name`.
    """

    _inputs_reader: ModelInputs

    def _found(self, data: Any, step_function: Callable[[Any], Any]) -> traced_steps.Found:
        """Return what a step on eager data runs."""
        raise NotImplementedError

    @property
    def _runs_as_keras(self) -> bool:
        """True if Keras traces the steps: eagerly, or under a distribution strategy."""
        return bool(self.run_eagerly) or keras_internals.strategy_of(self) is not None

    def _make_function(self, step_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the function that `fit` and `evaluate` call."""
        if self._runs_as_keras:
            return super()._make_function(step_function)
        return tf_errors.unwrapped(self.traced(step_function))

    def make_predict_function(self, force: bool = False) -> Any:
        """Make the function that `predict` calls. Args: as in `keras.Model`."""
        if self._runs_as_keras:
            return super().make_predict_function(force)
        if getattr(self, "predict_function", None) is None or force:
            step = self.traced(self.predict_step)
            self.predict_function = tf_errors.unwrapped(lambda batches: _joined(step, batches))
        return self.predict_function

    def traced(self, step_function: Callable[[Any], Any]) -> traced_steps.Traced:
        """Return a step of this model, traced once per layout.

        Args:
            step_function: `train_step`, `test_step`, `predict_step` or `compute_gradients`.
        """
        known, predicts = self._inputs_reader.traced_shape, step_function == self.predict_step

        def shape(found: tf.TensorShape) -> Sequence[int | None]:
            # Keras tells `predict` nothing of the data set, whose last batch may be smaller.
            return [None, *known(found)[1:]] if predicts else known(found)

        return PlainSteps(
            self,
            tf.autograph.experimental.do_not_convert(step_function),
            lambda data: self._found(data, step_function),
            shape,
            predicts,
        )


def _joined(step: traced_steps.Traced, batches: Sequence[Any]) -> Any:
    """Return the outputs of a step on several batches, joined."""
    outputs = [step.one(data) for data in batches]
    if len(outputs) == 1:
        return outputs[0]
    return keras.tree.map_structure(lambda *each: tf.concat(each, 0), *outputs)
