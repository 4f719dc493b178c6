"""`stream` and `StreamedModel`: a Keras model that runs strip by strip and shares the variables of the plain one."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.engine import keras_variables, read_ahead, traced_steps
from tfbig.engine.program import Program
from tfbig.errors import UnsupportedLayerError
from tfbig.network import front_and_rest, keras_reader, objective, user_code
from tfbig.plan.plan import Plan
from tfbig.stores import host_store
from tfbig.streaming import gradient_step, labels
from tfbig.streaming.program_cache import Programs, Settings
from tfbig.system import backend, replication, tf_errors
from tfbig.system.budget import Budget

map_structure = keras.tree.map_structure

STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")
"""Methods that a user's model may override and that `fit` would call."""

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
) -> StreamedModel:
    """Run a Keras model on images that do not fit in memory, with the same weights, outputs and gradients.

    Results are bitwise equal to those of `model` where sums are exact (integers); otherwise they are equal up to the
    order of summation (float64: relative 1e-10).

    Args:
        model: Functional or Sequential model, channels last, for images of one, two or three dimensions. It stays
            usable: both models share variables.
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

    Returns:
        A `StreamedModel`, which is a `keras.Model`. As inputs and targets it accepts tensors and handles
        (`tfbig.open(path).handle`) of images on disk, which it reads strip by strip.

    Raises:
        UnsupportedLayerError: A layer has no rule, or the class of the model overrides `call` or a training method.
        ValueError: `upto` names no layer, or a setting has an invalid value.
        TypeError: A setting has the wrong type.
        BudgetError: By `plan` and the first step: one row, or the part that does not stream, exceeds the budget.

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
        model,
        budget,
        strip_rows,
        devices=devices,
        source_dtype=source_dtype,
        store=store,
        upto=upto,
        unsupported=unsupported,
    )


@keras.saving.register_keras_serializable(package="tfbig")
class StreamedModel(tf_errors.Unwrapped, keras.Model):
    """A Keras model that runs strip by strip, as returned by `tfbig.stream`.

    `compile`, `fit`, `evaluate`, `predict`, `save` and custom training loops work as in Keras. Inputs and targets are
    tensors (`[N, L, C]`, `[N, H, W, C]` or `[N, D, H, W, C]`), or string tensors `[N]` of handles.

    Args:
        model: As in `tfbig.stream`.
        budget: As in `tfbig.stream`.
        strip_rows: As in `tfbig.stream`.
        devices: As in `tfbig.stream`.
        source_dtype: As in `tfbig.stream`.
        store: As in `tfbig.stream`.
        upto: As in `tfbig.stream`.
        unsupported: As in `tfbig.stream`.
        **kwargs: Arguments of `keras.Model`, such as `name`.

    Attributes:
        twin: The plain model, with the same layers and variables.

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
        *,
        devices: str | Sequence[str] | None = None,
        source_dtype: str = "uint8",
        store: str | None = None,
        upto: str | None = None,
        unsupported: str = "error",
        **kwargs: Any,
    ) -> None:
        name = kwargs.pop("name", f"streamed_{model.name}")
        # The policy of the model decides whether `compile` scales the loss (mixed_float16).
        super().__init__(name=name, dtype=model.dtype_policy, **kwargs)
        method = user_code.overridden(model, *STEPS)
        if method is not None:
            raise UnsupportedLayerError(
                f"'{model.name}' ({type(model).__name__}) overrides `{method}`, which its streamed model would not "
                "call. Stream a keras.Model, and write the step around it with a GradientTape."
            )
        self.twin = model
        self.budget = Budget() if budget is None else budget
        self.strip_rows = strip_rows
        replication.check()
        replicas = replication.replicas_on_machine()
        if devices is not None and replicas > 1:
            raise ValueError(
                f"devices={devices!r}: expected None under a strategy with {replicas} replicas on this machine; each "
                "replica has a device."
            )
        self.devices = backend.devices_of(devices)
        self._devices_arg = devices if devices is None or isinstance(devices, str) else [*devices]
        self.source_dtype = source_dtype
        self.store = store
        self.upto = upto
        self.unsupported = unsupported
        self._functional_twin = keras_reader.as_functional(model)
        self.autocast = False  # every layer casts its inputs
        self.supports_jit = False  # strips come from the host
        self._split = front_and_rest.find(self._functional_twin, upto, unsupported)
        self._plan_with(
            Settings(self.budget, strip_rows, self.devices, source_dtype, store, replicas)
        )
        self.built = True

    # ------------------------------------------------------------------ keras.Model

    @property
    def layers(self) -> list[Any]:
        """Layers of the plain model, so that the weight files of both models are interchangeable."""
        return list(self.twin.layers)

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, as in the plain model."""
        return list(self._functional_twin.output_names)

    def _resolve_auto_jit_compile(self) -> None:
        """Leave `compile(jit_compile="auto")` as it is; False would turn off XLA for losses too."""

    def build(self, input_shape: Any = None) -> None:
        """Do nothing: the plain model is built."""
        self.built = True

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the output shape of the plain model."""
        return self.twin.compute_output_shape(input_shape)

    @_do_not_convert
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the outputs for tensors or handles."""
        tensors = self._flat_inputs(inputs)
        self._configure_programs(tensors)
        program = self._programs.forward(training, tensors)
        outputs = keras_variables.call(program, tensors)
        if self._split is not None:
            direct = self._split.direct
            dense = self._programs.labels.dense
            inputs = [dense(t) if i in direct else t for i, t in enumerate(tensors)]
            devices = self._programs.devices
            with tf.device(devices[0] if devices else None):
                outputs = self._split.outputs(inputs, outputs, training)
        outputs = front_and_rest.restore_shapes(outputs, self._functional_twin.outputs)
        return keras.tree.pack_sequence_as(self._functional_twin._outputs_struct, outputs)

    @_do_not_convert
    def train_step(self, data: Any) -> dict[str, Any]:
        """Train on one batch and return the logs."""
        if not self.trainable_variables:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
            return self.compute_gradients(data)[1]
        return gradient_step.train_step(self, data)

    @_do_not_convert
    def compute_gradients(self, data: Any) -> gradient_step.Gradients:
        """Return the gradients of a batch and its logs, see `tfbig.streaming.gradient_step`."""
        if not self.spatial:
            return gradient_step.keras_gradients(self, self._dense_targets(data))
        step = self._loss_step(data, training=True)
        program, weights = step.program, keras_variables.weights(step.program)
        if not self.trainable_variables:
            results = program.forward(step.inputs, weights)
            return [], self._finish(step, results, self._penalty(step.loss(results).dtype))
        scale = self.optimizer.scale_loss(tf.constant(1.0 / gradient_step.replicas()))
        results, gradients = program.loss_and_gradients(step.inputs, weights, scale)
        with tf.GradientTape() as tape:
            penalty = self._penalty(step.loss(results).dtype)
            scaled = self.optimizer.scale_loss(penalty / gradient_step.replicas())
        variables = [v._value for v in self.trainable_variables]
        penalties = tape.gradient(scaled, variables)
        slots = objective.weights_with_gradient(program.graph)
        by_variable = {id(program.graph.weights[s]): gradients[s] for s in slots}
        both = [
            [g for g in (by_variable.get(id(variable)), extra) if g is not None]
            for variable, extra in zip(self.trainable_variables, penalties, strict=True)
        ]
        keras_variables.update(program, results)
        logs = self._finish(step, results, penalty)
        return [tf.add_n(terms) if terms else None for terms in both], logs

    @_do_not_convert
    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluate one batch and return the logs."""
        if not self.spatial:
            return super().test_step(self._dense_targets(data))
        step = self._loss_step(data, training=False)
        results = step.program.forward(step.inputs, keras_variables.weights(step.program))
        return self._finish(step, results, self._penalty(step.loss(results).dtype))

    def _make_function(self, step_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the function that `fit` and `evaluate` call; Keras' own under a distribution strategy."""
        if self.run_eagerly or self._distribute_strategy is not None:
            return super()._make_function(step_function)
        return tf_errors.unwrapped(self.traced(step_function))

    def traced(self, step_function: Callable[[Any], Any]) -> traced_steps.Traced:
        """Return a step of this model, traced once per layout.

        Args:
            step_function: `train_step`, `test_step` or `compute_gradients`.
        """
        training = step_function != self.test_step

        def find(data: Any) -> tuple[Program, dict[int, tf.Tensor]]:
            return self._step_program(data, training)

        return traced_steps.Steps(
            _do_not_convert(step_function), find, self._traced_shape, self.steps_per_execution
        )

    def get_config(self) -> dict[str, Any]:
        """Return the config of the plain model and the settings."""
        return {
            "model": keras.saving.serialize_keras_object(self.twin),
            "budget": self.budget.get_config(),
            "strip_rows": self.strip_rows,
            "devices": self._devices_arg,  # None: chosen by the machine that loads it
            "source_dtype": self.source_dtype,
            "store": self.store,
            "upto": self.upto,
            "unsupported": self.unsupported,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> StreamedModel:
        """Create a model from its config."""
        config = dict(config)
        model = keras.saving.deserialize_keras_object(config.pop("model"), custom_objects)
        return cls(model, Budget(**config.pop("budget")), **config)

    # ----------------------------------------------------------------------- tfbig

    @property
    def spatial(self) -> bool:
        """True if every output is an image that streams; losses are then computed strip by strip."""
        return self._split is None and self._programs.images_out and not self._programs.bags

    def plan(self, shape: Sequence[int], training: bool = True) -> Plan:
        """Return the plan for one image size; nothing of that size is allocated.

        Args:
            shape: Shape `(N, H, W, C)` of the first input, or `(N, L, C)` or `(N, D, H, W, C)`; other inputs have the
                same size.
            training: Whether to plan a training step; else an evaluation, or a prediction if no loss was compiled.

        Returns:
            A `tfbig.Plan`.

        Raises:
            ValueError: The model does not accept an image of this shape.
            BudgetError: No plan fits the budget.
        """
        if training and self.compiled:
            self._build_optimizer()
        rank = self._programs.rank
        (channels, *_) = (t.shape[-1] for t in self._functional_twin.inputs if len(t.shape) == rank)
        if len(shape) != rank or None in shape or shape[-1] != channels:
            raise ValueError(
                f"'{self.name}': expected the shape (N, rows, ..., C) of an image with {rank} numbers, C = {channels}, "
                f"received {tuple(shape)}."
            )
        streams = self.spatial and (training or self.compiled)
        return self._programs.plan(shape, training, self._compile_loss if streams else None)

    @tf_errors.unwrapped
    def predict_to(
        self, image: Any, path: str, convert: Callable[..., Any] | None = None
    ) -> sources.Source:
        """Predict one image of any size into a `.npy` file, strip by strip (at once if not all layers stream).

        Args:
            image: A `Source`, a path or an array `[H, W, C]`.
            path: File to write; it appears under this name only when it is complete.
            convert: Function from a strip of the prediction, `[r, W, K]`, to the array to write, `[r, W, ...]`, which
                must convert each pixel by itself, such as `lambda rows: rows.astype("float16")`. By default the
                prediction is written unchanged.

        Returns:
            The converted prediction `[H, W, K]`, as a source.

        Raises:
            ValueError: The model has several inputs or outputs, or its output is not an image.
            SourceError: The image cannot be read, or the file cannot be written.
        """
        source = sources.open(image)
        with source.lent() as handle:
            arguments = tf.constant([handle]), source.shape, path, convert or _unchanged
            tf_errors.retry_with_less_memory(self, lambda: self._predict_to(*arguments))
        return sources.open(path)

    def use_less(self) -> int:
        """Use half the bytes for strips, or half the rows, from now on, and return the bytes."""
        settings = self._programs.settings
        strips = settings.strip_bytes[0] // 2
        rows = settings.strip_rows and max(settings.strip_rows // 2, 1)
        budget = dataclasses.replace(settings.budget, device=strips)
        self._plan_with(dataclasses.replace(settings, budget=budget, strip_rows=rows))
        return strips

    # --------------------------------------------------------------------- private

    def _plan_with(self, settings: Settings) -> None:
        """Replace all programs by programs with these settings."""
        twin, front = self.twin, self._functional_twin
        self._programs = Programs(self.name, twin, front, self._split, settings, self._model_bytes)

    def _predict_to(
        self,
        handle: tf.Tensor,
        image_shape: tuple[int, ...],
        path: str,
        convert: Callable[..., Any],
    ) -> None:
        """Predict the image behind a handle, as in `predict_to`."""
        if self._split is not None:
            prediction = convert(keras.ops.convert_to_numpy(self(handle, training=False))[0])
            with sources.write_npy(path, prediction.shape, prediction.dtype) as writer:
                writer.write(0, prediction)
            return
        inputs, outputs = self._functional_twin.inputs, self._functional_twin.outputs
        if len(inputs) != 1 or len(outputs) != 1 or not self.spatial or self._programs.rank != 4:
            raise ValueError(
                f"'{self.name}' has {len(inputs)} inputs and {len(outputs)} outputs; predict_to expects one image "
                "[H, W, C] and returns one. Use predict."
            )
        self._configure_programs([handle])
        program = self._programs.forward(False, [handle])
        (output,) = program.graph.outputs
        rows, columns = program.graph.extents({program.graph.inputs[0]: image_shape[:2]})[output]
        info = program.graph.values[output]
        dtype = tf.as_dtype(info.dtype).as_numpy_dtype
        pixel = convert(np.zeros((1, 1, info.channels), dtype))
        with (
            sources.write_npy(path, (rows, columns, *pixel.shape[2:]), pixel.dtype) as writer,
            host_store.sink(
                lambda start, rows: writer.write(start, convert(rows.astype(dtype, copy=False)))
            ) as key,
        ):
            inputs = keras_variables.arguments(program, [handle])
            program.forward(inputs, keras_variables.weights(program), {output: tf.constant(key)})

    def _configure_programs(self, tensors: list[tf.Tensor]) -> None:
        """Choose the axis that programs cut, and drop programs of an earlier `compile`."""
        self._programs.turn(tensors)
        self._programs.keep_for(getattr(self, "_compile_loss", None), self.jit_compile is not False)

    def _model_bytes(self) -> int:
        """Return the bytes of the weights, and of the optimiser if there is one."""
        optimizer = getattr(self, "optimizer", None)
        variables = [*self.twin.variables, *(optimizer.variables if optimizer else [])]
        return sum(v.value.dtype.size * prod(v.shape) for v in variables)

    def _flat_inputs(self, inputs: Any) -> list[tf.Tensor]:
        """Return tensors or handles in the order of the model's inputs; a dict may name them."""
        specs = self._functional_twin.inputs
        struct = self._functional_twin._inputs_struct
        if isinstance(inputs, dict) and isinstance(struct, dict) and set(struct) <= set(inputs):
            inputs = {key: inputs[key] for key in struct}
        elif isinstance(inputs, dict) and {t.name for t in specs} <= set(inputs):
            inputs = [inputs[t.name] for t in specs]
        flat = keras.tree.flatten(inputs)
        if len(flat) != len(specs):
            raise ValueError(
                f"'{self.name}' has {len(specs)} inputs ({', '.join(t.name for t in specs)}), received {len(flat)}."
            )
        return [self._checked(t, spec) for t, spec in zip(flat, specs, strict=True)]

    def _checked(self, value: Any, spec: Any) -> tf.Tensor:
        """Return an input as the model needs it; `[N, rows, ...]` gets one channel, as in Keras."""
        if value is None:
            raise ValueError(f"'{self.name}': input '{spec.name}' is None; every input is needed.")
        tensor = tf.convert_to_tensor(value)
        if tensor.dtype == tf.string:
            read_ahead.check_sources(tensor, spec.shape, f"'{self.name}': input '{spec.name}'")
            return tensor
        rank, channels = len(spec.shape), spec.shape[-1]
        if tensor.shape.rank is None:
            return tensor
        if tensor.shape.rank == rank - 1 and channels == 1:
            tensor = tensor[..., None]
        if tensor.shape.rank != rank or tensor.shape[-1:] not in ([None], [channels]):
            raise ValueError(
                f"'{self.name}': input '{spec.name}' has shape {tensor.shape}, expected {spec.shape}."
            )
        return tensor

    def _step_program(self, data: Any, training: bool) -> tuple[Program, dict[int, tf.Tensor]]:
        """Return the program of a step on eager data, and its input images."""
        if training:
            self._build_optimizer()
        if self.spatial:
            program, _, tensors = self._loss_program(data, training)
        else:
            self._build_trackers(data)
            tensors = self._flat_inputs(keras.utils.unpack_x_y_sample_weight(data)[0])
            self._configure_programs(tensors)
            program = self._programs.forward(training, tensors)
        return program, keras_variables.images(program, tensors)

    def _build_optimizer(self) -> None:
        """Create the optimizer's variables; a step that creates variables is traced twice."""
        replication.check(self.optimizer)
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    def _build_trackers(self, data: Any) -> None:
        """Create the variables of losses and metrics."""
        if all(t is None or t.built for t in (self._compile_loss, self._compile_metrics)):
            return
        x, y, weights = (
            map_structure(self._placeholder, item)
            for item in keras.utils.unpack_x_y_sample_weight(data)
        )
        batch = keras.tree.flatten(x)[0].shape[0]
        outputs = map_structure(
            lambda t: keras.KerasTensor((batch, *t.shape[1:]), t.dtype),
            self._functional_twin._outputs_struct,
        )
        with suppress(ValueError, TypeError, tf.errors.OpError):  # then the first step creates them
            for function in (self.compute_loss, self.compute_metrics):
                keras.src.backend.compute_output_spec(function, x, y, outputs, weights)

    def _placeholder(self, tensor: Any) -> Any:
        if tensor is None:
            return None
        return keras.KerasTensor(self._traced_shape(tensor.shape), tensor.dtype.name)

    def _traced_shape(self, shape: tf.TensorShape) -> list[int | None]:
        """Return the shape of a tensor as a trace may know it: with image sizes only if the model fixes them."""
        dimensions = shape.as_list()
        rank = self._programs.rank
        sizes = [t.shape[1:-1] for t in self._functional_twin.inputs if len(t.shape) == rank]
        if len(dimensions) < rank - 1 or all(None not in size for size in sizes):
            return dimensions
        unknown: list[int | None] = [None] * (rank - 2)
        return [dimensions[0], *unknown, *dimensions[rank - 1 :]]

    def _loss_step(self, data: Any, training: bool) -> _LossStep:
        """Return the program and the inputs that compute the loss of data."""
        program, goal, tensors = self._loss_program(data, training)
        return _LossStep(program, goal, keras_variables.arguments(program, tensors), tensors[0])

    def _loss_program(
        self, data: Any, training: bool
    ) -> tuple[Program, objective.Objective, list[tf.Tensor]]:
        """Return the program that computes the loss of data, its objective, and its inputs."""
        x, *pair = keras.utils.unpack_x_y_sample_weight(data)
        tensors = self._flat_inputs(x)
        self._configure_programs(tensors)
        pair = list(self._programs.labels.prepare(*pair))
        owners = (self._compile_loss, self._compile_metrics)
        program, goal, taken = self._programs.loss(training, tensors, pair, owners)
        flat = [t for structure in pair for t in labels.flatten(structure)]
        return program, goal, tensors + [flat[i] for i in taken]

    def _dense_targets(self, data: Any) -> Any:
        """Return data with targets and sample weights as tensors, for losses that Keras computes."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        flat = labels.flatten(y)
        if any(tf.as_dtype(t.dtype) == tf.string for t in flat):
            outputs = map_structure(
                lambda t: tf.TensorSpec(t.shape, t.dtype), self._functional_twin._outputs_struct
            )
            read = self._programs.labels
            goal = objective.expected(self._compile_loss, outputs, read.by_handle)
            channels = goal.channels([s.shape[-1] for s in keras.tree.flatten(outputs)])
            dense = [read.dense(t, channels.get(i)) for i, t in enumerate(flat)]
            y = keras.tree.pack_sequence_as(y, dense)
        if sample_weight is not None:
            sample_weight = map_structure(
                lambda t: self._programs.labels.dense(t, 1), sample_weight
            )
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    def _penalty(self, dtype: tf.DType) -> tf.Tensor:
        """Return the sum of the regularisation losses."""
        return sum((tf.cast(loss, dtype) for loss in self.twin.losses), tf.zeros([], dtype))

    def _finish(
        self, step: _LossStep, results: dict[int, Any], penalty: tf.Tensor
    ) -> dict[str, Any]:
        """Update the metrics with the results of a step, and return the logs."""
        loss = step.loss(results) + penalty
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(step.first)[0])
        values = [results[v] for v in step.program.graph.outputs[1:]]
        step.objective.track(values, step.first.shape[0])
        return self.get_metrics_result()


def _unchanged(rows: Any) -> Any:
    return rows


@dataclass(frozen=True)
class _LossStep:
    """A training or evaluation step whose loss is computed strip by strip.

    Args:
        program: Program that computes loss and metrics.
        objective: Loss and metrics.
        inputs: Inputs of the program, by value id.
        first: First input of the model.
    """

    program: Program
    objective: objective.Objective
    inputs: dict[int, tf.Tensor]
    first: tf.Tensor

    def loss(self, results: dict[int, Any]) -> tf.Tensor:
        """Return the loss among the results."""
        return results[self.program.graph.outputs[0]]


__all__ = ["StreamedModel", "stream"]
