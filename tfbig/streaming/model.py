"""`stream` and `StreamedModel`: a Keras model that runs strip by strip and shares the variables of the plain one."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tfbig import sources
from tfbig.engine import traced_steps
from tfbig.engine.bound_program import BoundProgram, Results
from tfbig.errors import UnsupportedLayerError
from tfbig.network import front_and_rest, user_code
from tfbig.network.graph import Graph
from tfbig.plan.plan import Plan
from tfbig.streaming import gradient_step, label_sizes, labels, loss_step, prediction, trackers
from tfbig.streaming.class_weights import ClassWeights
from tfbig.streaming.loss_step import LossStep
from tfbig.streaming.model_inputs import ModelInputs
from tfbig.streaming.plain_steps import PlainSteps
from tfbig.streaming.program_cache import Compiled, Programs
from tfbig.streaming.settings import Settings
from tfbig.streaming.twin_model import TwinModel
from tfbig.system import keras_internals, replication, tf_errors
from tfbig.system.backend import HOST
from tfbig.system.budget import Budget

STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")
"""Methods that a user's model may override and that `fit` would call."""

_SETTINGS = {field.name for field in dataclasses.fields(Settings)}

_do_not_convert = tf.autograph.experimental.do_not_convert


def stream(
    model: keras.Model,
    budget: Budget | None = None,
    strip_rows: int | None = None,
    *,
    devices: str | Sequence[str] | None = None,
    source_dtype: str = "uint8",
    store: str | None = None,
    upto: str | None = None,
    unsupported: str = "error",
    plain_if_small: bool = True,
) -> StreamedModel:
    """Run a Keras model on images that do not fit in memory, with the same weights, outputs and gradients.

    Results are bitwise equal to those of `model` where sums are exact (integers); otherwise they are equal up to the
    order of summation (float64: relative 1e-10).

    Args:
        model: Functional or Sequential model, channels last, for images of one, two or three dimensions. It stays
            usable: both models share variables. Of a streamed model, its plain model `twin` is streamed.
        budget: Bytes allowed; by default the memory of the machine. Replicas on one machine share it.
        strip_rows: Fixed strip height in rows of the input, for tests and tuning; by default the planner chooses it.
        devices: Devices that compute strips, `"GPU:0"` or `["GPU:0", "GPU:1"]`. Each computes a share of every sweep
            and may use the `device` bytes of the budget. By default the first accelerator, if there is one.
        source_dtype: Element type of images behind handles.
        store: Element type of stored images, such as `"bfloat16"`, which rounds them; by default their own, exact.
        upto: Name of the last layer that streams; layers that it does not depend on run on whole tensors, in plain
            Keras. By default the whole model streams.
        unsupported: `"error"` raises an error for a layer that cannot stream; `"device"` runs the model on whole
            tensors from the first such layer on.
        plain_if_small: Whether images run in plain Keras, in its time and with its results, if all tensors
            of `model` fit in the bytes for strips: in `Budget(device=)` if it is set, else in an eighth of the host
            memory. `plan` says so. Images always stream if `strip_rows`, `store` or `upto` is set.

    Returns:
        A `StreamedModel`, which is a `keras.Model`. As inputs and targets it accepts tensors and handles
        (`tfbig.open(path).handle`) of images on disk, which it reads strip by strip.

    Raises:
        UnsupportedLayerError: A layer has no rule, or the class of the model overrides `call` or a training method.
        ValueError: `upto` names no layer, or a setting has an invalid value.
        TypeError: `model` is no Keras model, such as a path, or a setting has the wrong type.
        BudgetError: By `plan` and the first step: the smallest tile, or the part that does not stream, is too large.

    Example:
        >>> image = keras.Input((None, None, 3))
        >>> model = keras.Model(image, keras.layers.Conv2D(4, 3, padding="same")(image))
        >>> big = tfbig.stream(model, tfbig.Budget(device="40KB"))
        >>> big.plan((1, 64, 48, 3)).strips > 1
        True
        >>> x = np.ones((1, 64, 48, 3), "float32")
        >>> np.allclose(big(x), model(x), rtol=1e-5)
        True
    """
    return StreamedModel(
        model.twin if isinstance(model, StreamedModel) else model,
        budget,
        strip_rows,
        devices=devices,
        source_dtype=source_dtype,
        store=store,
        upto=upto,
        unsupported=unsupported,
        plain_if_small=plain_if_small,
    )


@keras.saving.register_keras_serializable(package="tfbig")
class StreamedModel(ClassWeights, TwinModel):
    """A Keras model that runs strip by strip, as returned by `tfbig.stream`.

    `compile`, `fit`, `evaluate`, `predict`, `save` and custom training loops work as in Keras. Inputs and targets are
    tensors (`[N, L, C]`, `[N, H, W, C]` or `[N, D, H, W, C]`), or string tensors `[N]` of handles.

    Args:
        model: As in `tfbig.stream`.
        budget: As in `tfbig.stream`.
        strip_rows: As in `tfbig.stream`.
        **settings: Further arguments of `tfbig.stream`, and arguments of `keras.Model`, such as `name`.

    Attributes:
        twin: The plain model, with the same layers and variables.
        settings: The arguments of `tfbig.stream`.

    Raises:
        UnsupportedLayerError: As in `tfbig.stream`.
        ValueError: As in `tfbig.stream`; or `devices` was passed under a strategy with several replicas here.
        TypeError: As in `tfbig.stream`.

    Example:
        >>> image = keras.Input((None, None, 1))
        >>> model = keras.Model(image, keras.layers.Conv2D(1, 3, padding="same")(image))
        >>> big = tfbig.StreamedModel(model, strip_rows=4, name="big")
        >>> big.compile("sgd", "mse")
        >>> x = np.random.default_rng(0).random((2, 16, 12, 1), "float32")
        >>> history = big.fit(x, 2 * x, epochs=2, verbose=0)
        >>> history.history["loss"][1] < history.history["loss"][0]
        True
        >>> big.twin is model
        True
    """

    def __init__(
        self,
        model: keras.Model,
        budget: Budget | None = None,
        strip_rows: int | None = None,
        **settings: Any,
    ) -> None:
        _check_class(model)
        of_keras = {name: settings.pop(name) for name in [*settings] if name not in _SETTINGS}
        super().__init__(model, **{"name": f"streamed_{model.name}", **of_keras})
        replication.check()
        self.settings = Settings(Budget() if budget is None else budget, strip_rows, **settings)
        self._split = front_and_rest.find(
            self._functional_twin, self.settings.upto, self.settings.unsupported
        )
        self._plan_with(self.settings)
        self._inputs_reader = ModelInputs(self.name, self._functional_twin, self._programs.rank)
        self.built = True

    # ------------------------------------------------------------------ keras.Model

    @_do_not_convert
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the outputs for tensors or handles."""
        bound = self._forward(inputs, training)
        if bound.runs_plain:
            return self._plain_outputs(bound.tensors, training)
        outputs = bound.outputs()
        if self._split is not None:
            outputs = self._outputs_of_rest(self._split, bound.tensors, outputs, training)
        twin = self._functional_twin
        outputs = front_and_rest.restore_shapes(outputs, twin.outputs)
        return keras.tree.pack_sequence_as(keras_internals.output_structure(twin), outputs)

    @_do_not_convert
    def train_step(self, data: Any) -> dict[str, Any]:
        """Train on one batch and return the logs."""
        gradients, logs = self.compute_gradients(data)
        if gradients:
            gradient_step.apply_gradients(self, gradients)
        else:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        return logs

    @_do_not_convert
    def compute_gradients(self, data: Any) -> gradient_step.Gradients:
        """Return the gradients of a batch and its logs, see `tfbig.streaming.gradient_step`."""
        data = self._with_labels(data)
        if not self.outputs_stream:
            return gradient_step.keras_gradients(self, self._dense(data))
        step = self._loss_step(data, training=True)
        if step.runs_plain:
            with self._plainly(step, training=True):
                return gradient_step.keras_gradients(self, self._of_pixels(step, data))
        if not self.trainable_variables:
            return [], self._finish(step, step.forward())
        scale = self.optimizer.scale_loss(tf.constant(1.0 / gradient_step.replicas()))
        results, gradients = step.loss_and_gradients(scale)
        gradients, penalty = gradient_step.with_penalty(
            self,
            lambda: self.twin.losses,
            gradients[: len(self.trainable_variables)],
            step.loss(results).dtype,
        )
        step.update(results)
        return gradients, self._finish(step, results, penalty)

    @_do_not_convert
    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluate one batch and return the logs."""
        data = self._with_labels(data)
        if not self.outputs_stream:
            return super().test_step(self._dense(data))
        step = self._loss_step(data, training=False)
        if step.runs_plain:
            with self._plainly(step, training=False):
                return super().test_step(self._of_pixels(step, data))
        return self._finish(step, step.forward())

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

    @property
    def _runs_as_keras(self) -> bool:
        """True if Keras traces the steps: eagerly, or under a distribution strategy."""
        return bool(self.run_eagerly) or keras_internals.strategy_of(self) is not None

    def get_config(self) -> dict[str, Any]:
        """Return the config of the plain model and the settings."""
        model = keras.saving.serialize_keras_object(self.twin)
        return {"model": model, **self.settings.get_config(), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> StreamedModel:
        """Create a model from its config."""
        config = dict(config)
        model = keras.saving.deserialize_keras_object(config.pop("model"), custom_objects)
        return cls(model, Budget(**config.pop("budget")), **config)

    # ----------------------------------------------------------------------- tfbig

    @property
    def budget(self) -> Budget:
        """Budget, which cannot change: `tfbig.stream(model.twin, budget)` returns a model with the same weights."""
        return self.settings.budget

    @property
    def outputs_stream(self) -> bool:
        """True if every output is an image that streams; losses are then computed strip by strip."""
        return self._split is None and self._programs.images_out and not self._programs.bags

    def plan(self, image: Sequence[int] | sources.Source, training: bool = True) -> Plan:
        """Return the plan for one image size; nothing of that size is allocated.

        Args:
            image: Shape `(N, H, W, C)` of the first input, or `(N, L, C)` or `(N, D, H, W, C)`; or an image, whose
                background is skipped if it has any. Other inputs have the same size, and the same background.
            training: Whether to plan a training step; else an evaluation, or a prediction if no loss was compiled.

        Returns:
            A `tfbig.Plan`.

        Raises:
            ValueError: The model does not accept an image of this shape.
            TypeError: `image` is no shape, such as a number or an array.
            BudgetError: No plan fits the budget.
        """
        if training and self.compiled:
            trackers.build_optimizer(self)
        if isinstance(image, sources.Source):
            shape, background = (1, *image.shape), image.background
        else:
            shape, background = _shape_of(image), None
        self._inputs_reader.check_image(shape)
        streams = self.outputs_stream and (training or self.compiled)
        compiled = Compiled.of(self)
        with_loss = streams and compiled.loss is not None
        return self._programs.plan(shape, training, compiled, with_loss, background)

    @tf_errors.unwrapped
    def predict_to(
        self, image: Any, path: str, convert: Callable[..., Any] | None = None
    ) -> sources.Source:
        """Predict one image of any size into a `.npy` file, strip by strip (at once if not all layers stream).

        Args:
            image: A `Source`, a path or an array `[H, W, C]`; for a model of volumes, `[D, H, W, C]`.
            path: File to write; it appears under this name only when it is complete.
            convert: Function from a strip of the prediction, `[r, W, K]`, to the array to write, `[r, W, ...]`, which
                must convert each pixel by itself, such as `lambda rows: rows.astype("float16")`; of volumes it gets
                boxes `[d, h, w, K]`. By default the prediction is written unchanged.

        Returns:
            The converted prediction `[H, W, K]` or `[D, H, W, K]`, as a source.

        Raises:
            ValueError: The model has several inputs or outputs, or its output is not an image.
            SourceError: The image cannot be read, or the file cannot be written.
        """
        source = sources.open(image)
        with source.lent() as handle:
            key, size = tf.constant([handle]), source.shape[:-1]
            tf_errors.retry_with_less_memory(
                self, lambda: self._predict_to(key, size, path, convert or _unchanged)
            )
        return sources.open(path)

    def use_less(self) -> int:
        """Use half the bytes for strips, or half the rows, from now on, and return the bytes."""
        settings = self._programs.settings
        strips = settings.strip_bytes[0] // 2
        rows = settings.strip_rows and max(settings.strip_rows // 2, 1)
        budget = dataclasses.replace(settings.budget, device=strips)
        self._plan_with(dataclasses.replace(settings, budget=budget, strip_rows=rows))
        return strips

    def prediction_graph(self) -> Graph | None:
        """Return the graph of a prediction of images behind handles; None if not all layers stream."""
        if not self.outputs_stream:
            return None
        handles = [tf.TensorSpec([None], tf.string)] * len(self._functional_twin.inputs)
        return self._programs.forward(False, handles, Compiled.of(self), always_streams=True).graph

    def _in_memory(self, data: Any, predicts: bool) -> Any:
        """Return data with images in host memory instead of handles.

        Args:
            data: `(x, y)`, or with sample weights.
            predicts: Whether the labels are left out, which a prediction does not need.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        twin, labels_of = self._functional_twin, self._programs.labels
        with tf.device(HOST):
            pairs = zip(self._inputs_reader.read(x), twin.inputs, strict=True)
            images = [labels_of.dense(tensor, spec.shape[-1]) for tensor, spec in pairs]
            if predicts:
                return (images,)
            loss, outputs = (
                keras_internals.compiled_loss(self),
                keras_internals.output_structure(twin),
            )
            return (images, *labels_of.dense_pair(y, sample_weight, loss, outputs))

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
            _do_not_convert(step_function),
            lambda data: self._bound_to(data, step_function),
            shape,
            lambda: self._programs,
            lambda data: self._in_memory(data, predicts),
        )

    # -------------------------------------------------------------- programs and their data

    def _plan_with(self, settings: Settings) -> None:
        """Replace all programs by programs with these settings."""
        twin, front = self.twin, self._functional_twin
        self._programs = Programs(
            self.name, twin, front, self._split, settings, self._bytes_between_steps
        )

    def _bytes_between_steps(self) -> int:
        """Return the bytes of the weights, and of the optimizer if there is one."""
        optimizer = getattr(self, "optimizer", None)
        variables = [*self.twin.variables, *(optimizer.variables if optimizer else [])]
        return sum(v.value.dtype.size * prod(v.shape) for v in variables)

    def _with_labels(self, data: Any) -> Any:
        """Return data with a label for every output; subclasses may copy one label to all."""
        return data

    def _forward(
        self, inputs: Any, training: bool | None, always_streams: bool = False
    ) -> BoundProgram:
        """Return the program that computes the outputs for inputs. Args: as in `Programs.forward`."""
        tensors = self._inputs_reader.read(inputs)
        return self._programs.forward(training, tensors, Compiled.of(self), always_streams)

    def _loss_step(self, data: Any, training: bool) -> LossStep:
        """Return the step that computes the loss of data strip by strip."""
        compiled = Compiled.of(self)
        return loss_step.prepare(self._programs, self._inputs_reader, compiled, data, training)

    def _bound_to(self, data: Any, step_function: Callable[[Any], Any]) -> BoundProgram:
        """Return the program that a step on eager data runs, and create the variables that it needs."""
        training = step_function not in (self.test_step, self.predict_step)
        if training:
            trackers.build_optimizer(self)
        if step_function != self.predict_step and self.outputs_stream:
            return self._loss_step(data, training)
        forward = self._forward(keras.utils.unpack_x_y_sample_weight(data)[0], training)
        if step_function != self.predict_step:
            labelled = self._with_labels(data)
            self._check_sizes(forward, labelled)
            trackers.build(self, self._inputs_reader, labelled)
        return forward

    def _plainly(self, step: LossStep, training: bool) -> AbstractContextManager[None]:
        """Return a context in which calls of the model on the inputs of a step run the plain model too."""
        forward = self._programs.forward(training, step.inputs, Compiled.of(self))
        return forward.program.layouts.plainly()

    def _plain_outputs(self, tensors: Sequence[tf.Tensor], training: bool | None) -> Any:
        """Return the outputs of the plain model for tensors or handles."""
        twin, dense = self._functional_twin, self._programs.labels.dense
        pairs = zip(tensors, twin.inputs, strict=True)
        inputs = [dense(t, spec.shape[-1]) for t, spec in pairs]
        with tf.device(self._programs.device):
            structure = keras_internals.input_structure(twin)
            return twin(keras.tree.pack_sequence_as(structure, inputs), training=training)

    def _outputs_of_rest(
        self,
        split: front_and_rest.Split,
        tensors: Sequence[tf.Tensor],
        outputs: Any,
        training: bool | None,
    ) -> Any:
        """Return the outputs of a split model from those of its front."""
        dense = self._programs.labels.dense
        inputs = [dense(t) if i in split.direct else t for i, t in enumerate(tensors)]
        with tf.device(self._programs.device):
            return split.outputs(inputs, outputs, training)

    def _dense(self, data: Any) -> Any:
        """Return data with targets and sample weights as tensors, for losses that Keras computes."""
        outputs = keras_internals.output_structure(self._functional_twin)
        loss, labels_of = keras_internals.compiled_loss(self), self._programs.labels
        dense = labels_of.dense_data(data, loss, outputs)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(dense)
        return keras.utils.pack_x_y_sample_weight(x, y, labels_of.of_outputs(y, sample_weight))

    def _check_sizes(self, forward: BoundProgram, data: Any) -> None:
        """Check targets and sample weights of losses that Keras computes, see `tfbig.streaming.label_sizes`."""
        _, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        outputs = keras_internals.output_structure(self._functional_twin)
        if y is None or not _same(outputs, y):
            return
        flat, given = keras.tree.flatten(y), labels.flatten(weights)
        given = given * len(flat) if len(given) == 1 else given or [None] * len(flat)
        tensors = [tuple(map(_tensor, pair)) for pair in zip(flat, given, strict=True)]
        labelled = [(n, *pair) for n, pair in enumerate(tensors)]
        if self._split is None:
            sizes = label_sizes.outputs_of_graph(forward.graph, forward.tensors)
        else:
            rank, bags = self._programs.rank, self._programs.bags
            sizes = label_sizes.outputs_of_split(self._split, forward.tensors, rank, bags)
        label_sizes.check(self.name, sizes, labelled)

    def _of_pixels(self, step: LossStep, data: Any) -> Any:
        """Return data with tensors as targets, and a sample weight for each pixel, as the losses of Keras expect."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(self._dense(data))
        y, sample_weight = self._programs.labels.prepare(y, sample_weight)
        if sample_weight is not None:
            sample_weight = labels.of_pixels(sample_weight, y)
        y = step.objective.as_keras_expects(y)
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    def _finish(self, step: LossStep, results: Results, penalty: Any = None) -> dict[str, Any]:
        """Update the metrics of a model with the results of a step, and return the logs."""
        loss = step.loss(results)
        if penalty is None:
            penalty = gradient_step.penalty(self.twin.losses, loss.dtype)
        keras_internals.track_loss(self, loss + penalty, step.batch)
        step.track(results)
        return self.get_metrics_result()

    def _predict_to(
        self, handle: tf.Tensor, size: tuple[int, ...], path: str, convert: Callable[..., Any]
    ) -> None:
        """Predict the image behind a handle, as in `predict_to`."""
        if self._split is not None:
            return prediction.whole(self, handle, path, convert)
        inputs, outputs = self._functional_twin.inputs, self._functional_twin.outputs
        if (
            len(inputs) != 1
            or len(outputs) != 1
            or not self.outputs_stream
            or self._programs.rank == 3
        ):
            raise ValueError(
                f"'{self.name}' has {len(inputs)} inputs and {len(outputs)} outputs; predict_to expects one image "
                "[H, W, C] or [D, H, W, C] and returns one. Use predict."
            )
        bound = self._forward(handle, False, always_streams=True)
        prediction.by_strips(bound, size, path, convert)
        return None


def _check_class(model: keras.Model) -> None:
    """Check that a model is one, and that its class overrides no method that would not be called.

    Raises:
        TypeError: It is something else, such as the path of a model.
        UnsupportedLayerError: It overrides one.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"model={model!r}: received {type(model).__name__}, expected a built Keras model. Load a file with "
            "keras.saving.load_model(path), and call a function or a class that creates a model."
        )
    method = user_code.overridden(model, *STEPS)
    if method is not None:
        raise UnsupportedLayerError(
            f"'{model.name}' ({type(model).__name__}) overrides `{method}`, which its streamed model would not "
            "call. Stream a keras.Model, and write the step around it with a GradientTape."
        )


def _shape_of(image: Any) -> tuple[int, ...]:
    """Return a shape as a tuple.

    Raises:
        TypeError: It is something else, such as a number or an array.
    """
    if isinstance(image, Sequence | tf.TensorShape):
        return tuple(image)
    found = f"an array of shape {tuple(image.shape)}" if hasattr(image, "shape") else repr(image)
    raise TypeError(
        f"plan(image=...): expected a shape such as (1, H, W, C), or an image from tfbig.open; received {found}."
    )


def _joined(step: traced_steps.Traced, batches: Sequence[Any]) -> Any:
    """Return the outputs of a step on several batches, joined."""
    outputs = [step.one(data) for data in batches]
    if len(outputs) == 1:
        return outputs[0]
    return keras.tree.map_structure(lambda *each: tf.concat(each, 0), *outputs)


def _unchanged(rows: Any) -> Any:
    return rows


def _same(outputs: Any, labels_of: Any) -> bool:
    """Return whether labels have the structure of the outputs."""
    try:
        keras.tree.assert_same_structure(outputs, labels_of)
    except (ValueError, TypeError):
        return False
    return True


def _tensor(values: Any) -> Any:
    return None if values is None else tf.convert_to_tensor(values)


__all__ = ["StreamedModel", "stream"]
