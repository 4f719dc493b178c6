"""A Keras model that has the layers and variables of a plain one."""

from __future__ import annotations

from typing import Any

import keras

from tfbig.network import keras_reader
from tfbig.system import tf_errors, xla


class TwinModel(xla.Choice, tf_errors.Unwrapped, keras.Model):
    """A Keras model that runs another one in its own way.

    Args:
        model: The plain model.
        **kwargs: Arguments of `keras.Model`, such as `name`.

    Attributes:
        twin: The plain model, with the same layers and variables.
    """

    def __init__(self, model: keras.Model, **kwargs: Any) -> None:
        # The policy of the model decides whether `compile` scales the loss (mixed_float16).
        super().__init__(dtype=model.dtype_policy, **kwargs)
        self.twin = model
        self._functional_twin = keras_reader.as_functional(model)
        self.autocast = False  # every layer casts its inputs
        self.supports_jit = False  # strips come from the host

    @property
    def layers(self) -> list[Any]:
        """Layers of the plain model, so that the weight files of both models are interchangeable."""
        return list(self.twin.layers)

    @property
    def inputs(self) -> list[Any]:
        """Symbolic inputs of the plain model, as in `keras.Model`."""
        return list(self._functional_twin.inputs)

    @property
    def outputs(self) -> list[Any]:
        """Symbolic outputs of the plain model, as in `keras.Model`."""
        return list(self._functional_twin.outputs)

    @property
    def input(self) -> Any:
        """Symbolic input of the plain model, or several, as in `keras.Model`."""
        return self._functional_twin.input

    @property
    def output(self) -> Any:
        """Symbolic output of the plain model, or several, as in `keras.Model`."""
        return self._functional_twin.output

    @property
    def input_shape(self) -> Any:
        """Shape of the input of the plain model, or of each of several, as in `keras.Model`."""
        return self._functional_twin.input_shape

    @property
    def output_shape(self) -> Any:
        """Shape of the output of the plain model, or of each of several, as in `keras.Model`."""
        return self._functional_twin.output_shape

    @property
    def output_names(self) -> list[str] | None:
        """Names of the outputs, as in the plain model; None for one with a `call` of its own, as in Keras."""
        return getattr(self._functional_twin, "output_names", None)

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Export the plain model, which has the same weights and outputs, for serving.

        Strips are read by Python code, which a SavedModel cannot contain.

        Args:
            filepath: As in `keras.Model.export`.
            *args: As in `keras.Model.export`.
            **kwargs: As in `keras.Model.export`.
        """
        self.twin.export(filepath, *args, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        """Do nothing: the plain model is built."""
        self.built = True

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the output shape of the plain model."""
        return self.twin.compute_output_shape(input_shape)
