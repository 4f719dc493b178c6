"""`stream(model, budget)`: a whole Keras model as one plan, sharing its variables."""

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
"""What a model of one's own may change and `fit` would call."""

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
    """Runs a Keras model on images that do not fit: same weights, same outputs, same gradients.

    Args:
        model: functional or Sequential, channels last; images of 1, 2 or 3 dimensions. It stays usable: both share
            variables.
        budget: bytes allowed; by default what the machine has. Replicas on one machine share it.
        strip_rows: fixes the strip height in rows of the input, for tests and tuning.
        devices: where strips are worked on, "GPU:0" or ["GPU:0", "GPU:1"]: each has a part of every sweep and
            the budget's `device` bytes. By default the first accelerator, if any.
        source_dtype: element type of images given by handle.
        store: element type of images kept between sweeps, such as "bfloat16"; by default their own, which is exact.
        upto: name of the last layer that streams; what does not lead to it runs on whole tensors, as plain Keras.
            By default all of the model streams.
        unsupported: "device": from the first layer on that cannot stream, the model runs on whole tensors;
            "error": such a layer is an error.

    Returns:
        A `keras.Model`. Besides tensors it takes handles (`tfbig.open(path).handle`) as inputs and targets;
        these are read strip by strip.

    Raises:
        UnsupportedLayerError: a layer has no rule, or needs the whole image at once; a class of the model's own
            overrides `call` or a step of training.
        ValueError, TypeError: no layer is called `upto`, or a setting is none that there is.
        BudgetError: on `plan` and on the first step: even one row, or the whole tensors of what does not stream,
            are above the budget.

    Exactness:
        bitwise for sums that are exact, else up to summation order (float64: relative 1e-10).

    Example:

    ```python
    big = tfbig.stream(model, tfbig.Budget(device="512MB"))
    big.plan((1, 16000, 64000, 1)).summary()
    big.compile("adam", "binary_crossentropy")
    big.fit(dataset)
    ```
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
    """What `stream` gives. `twin` is the plain model that shares the variables and the layers."""

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
                "call; stream a model of Keras' own class, and write the step around it with a GradientTape."
            )
        self.twin = model
        self.budget = Budget() if budget is None else budget
        self.strip_rows = strip_rows
        replication.check()
        replicas = replication.on_machine()
        if devices is not None and replicas > 1:
            raise ValueError(
                f"devices={devices!r} under a strategy with {replicas} replicas on this machine, each of which has a "
                "device; leave it out."
            )
        self.devices = backend.devices_of(devices)
        self._asked_devices = devices if devices is None or isinstance(devices, str) else [*devices]
        self.source_dtype = source_dtype
        self.store = store
        self.upto = upto
        self.unsupported = unsupported
        self._functional_twin = keras_reader.as_functional(model)
        self.autocast = False  # every layer has its own element type
        self.supports_jit = False  # strips come from the host
        self._split = front_and_rest.find(self._functional_twin, upto, unsupported)
        self._plan_with(
            Settings(self.budget, strip_rows, self.devices, source_dtype, store, replicas)
        )
        self.built = True

    # ------------------------------------------------------------------ keras.Model

    @property
    def layers(self) -> list[Any]:
        """Those of the plain model, so that files of weights of both are alike."""
        return list(self.twin.layers)

    @property
    def output_names(self) -> list[str]:
        """By these `compile` knows the outputs."""
        return list(self._functional_twin.output_names)

    def _resolve_auto_jit_compile(self) -> None:
        """What `compile(jit_compile="auto")` leaves: not False, with which XLA compiles no losses either."""

    def build(self, input_shape: Any = None) -> None:
        self.built = True

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.twin.compute_output_shape(input_shape)

    @_do_not_convert
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        tensors = self._flat_inputs(inputs)
        self._settle(tensors)
        program = self._programs.forward(training, tensors)
        outputs = keras_variables.call(program, tensors)
        if self._split is not None:
            direct = self._split.direct
            dense = self._programs.labels.dense
            inputs = [dense(t) if i in direct else t for i, t in enumerate(tensors)]
            devices = self._programs.devices
            with tf.device(devices[0] if devices else None):
                outputs = self._split.outputs(inputs, outputs, training)
        outputs = front_and_rest.shaped(outputs, self._functional_twin.outputs)
        return keras.tree.pack_sequence_as(self._functional_twin._outputs_struct, outputs)

    @_do_not_convert
    def train_step(self, data: Any) -> dict[str, Any]:
        if not self.trainable_variables:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
            return self.compute_gradients(data)[1]
        return gradient_step.whole(self, data)

    @_do_not_convert
    def compute_gradients(self, data: Any) -> gradient_step.Gradients:
        """The gradients of a batch and its logs, see `tfbig.streaming.gradient_step`."""
        if not self.spatial:
            return gradient_step.plain(self, self._dense_targets(data))
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
        slots = objective.learning(program.graph)
        found = {id(program.graph.weights[s]): gradients[s] for s in slots}
        both = [
            [g for g in (found.get(id(variable)), extra) if g is not None]
            for variable, extra in zip(self.trainable_variables, penalties, strict=True)
        ]
        keras_variables.update(program, results)
        logs = self._finish(step, results, penalty)
        return [tf.add_n(terms) if terms else None for terms in both], logs

    @_do_not_convert
    def test_step(self, data: Any) -> dict[str, Any]:
        if not self.spatial:
            return super().test_step(self._dense_targets(data))
        step = self._loss_step(data, training=False)
        results = step.program.forward(step.inputs, keras_variables.weights(step.program))
        return self._finish(step, results, self._penalty(step.loss(results).dtype))

    def _make_function(self, step_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What `fit` and `evaluate` call with an iterator; Keras' own under a distribution strategy."""
        if self.run_eagerly or self._distribute_strategy is not None:
            return super()._make_function(step_function)
        return tf_errors.unwrapped(self.traced(step_function))

    def traced(self, step_function: Callable[[Any], Any]) -> traced_steps.Traced:
        """A step of this model (`train_step`, `test_step`, `compute_gradients`), traced once for every layout."""
        training = step_function != self.test_step

        def find(data: Any) -> tuple[Program, dict[int, tf.Tensor]]:
            return self._found(data, training)

        return traced_steps.Steps(
            _do_not_convert(step_function), find, self._known, self.steps_per_execution
        )

    def get_config(self) -> dict[str, Any]:
        return {
            "model": keras.saving.serialize_keras_object(self.twin),
            "budget": self.budget.get_config(),
            "strip_rows": self.strip_rows,
            "devices": self._asked_devices,  # by default that of the machine that reads this
            "source_dtype": self.source_dtype,
            "store": self.store,
            "upto": self.upto,
            "unsupported": self.unsupported,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> StreamedModel:
        config = dict(config)
        model = keras.saving.deserialize_keras_object(config.pop("model"), custom_objects)
        return cls(model, Budget(**config.pop("budget")), **config)

    # ----------------------------------------------------------------------- tfbig

    @property
    def spatial(self) -> bool:
        """Whether every output is an image that streams, so that losses run strip by strip."""
        return self._split is None and self._programs.images_out and not self._programs.bags

    def plan(self, shape: Sequence[int], training: bool = True) -> Plan:
        """The plan for one image size; nothing of that size is allocated.

        Args:
            shape: `(N, H, W, C)` of the first input, `(N, L, C)` or `(N, D, H, W, C)`; other inputs have the same size.
            training: the plan of a training step; else of an evaluation, or of a prediction where no loss
                was compiled.

        Raises:
            ValueError: it is no shape of an image that the model takes.
            BudgetError: it does not fit.
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
        """Predicts one image of any size into a `.npy` file, strip by strip (at once where not all streams).

        Args:
            image: a `Source`, a path or an array `[H, W, C]`.
            path: file to write; it appears under this name only when complete.
            convert: from a strip of the prediction, `[r, W, K]`, to what is written of it, `[r, W, ...]`: of each pixel
                by itself, such as `lambda rows: rows.astype("float16")`. By default as it is.

        Returns:
            The prediction `[H, W, K]`, converted, as a source.

        Raises:
            ValueError: the model has several inputs or outputs, or gives no image.
            SourceError: the image cannot be read, or the file not written.
        """
        source = sources.open(image)
        with source.lent() as handle:
            given = tf.constant([handle]), source.shape, path, convert or _as_it_is
            tf_errors.or_with_less(self, lambda: self._predict_to(*given))
        return sources.open(path)

    def use_less(self) -> int:
        """Plans with half the bytes for strips, or half the rows, from now on; gives the bytes."""
        settings = self._programs.settings
        strips = settings.strip_bytes[0] // 2
        rows = settings.strip_rows and max(settings.strip_rows // 2, 1)
        budget = dataclasses.replace(settings.budget, device=strips)
        self._plan_with(dataclasses.replace(settings, budget=budget, strip_rows=rows))
        return strips

    # --------------------------------------------------------------------- private

    def _plan_with(self, settings: Settings) -> None:
        twin, front = self.twin, self._functional_twin
        self._programs = Programs(self.name, twin, front, self._split, settings, self._model_bytes)

    def _predict_to(
        self,
        handle: tf.Tensor,
        image_shape: tuple[int, ...],
        path: str,
        convert: Callable[..., Any],
    ) -> None:
        """As `predict_to`, of an image that has a handle."""
        if self._split is not None:
            prediction = convert(keras.ops.convert_to_numpy(self(handle, training=False))[0])
            with sources.write_npy(path, prediction.shape, prediction.dtype) as writer:
                writer.write(0, prediction)
            return
        inputs, outputs = self._functional_twin.inputs, self._functional_twin.outputs
        if len(inputs) != 1 or len(outputs) != 1 or not self.spatial or self._programs.rank != 4:
            raise ValueError(
                f"'{self.name}' has {len(inputs)} inputs and {len(outputs)} outputs; predict_to takes models from one "
                "image [H, W, C] to one. Use predict."
            )
        self._settle([handle])
        program = self._programs.forward(False, [handle])
        (output,) = program.graph.outputs
        rows, columns = program.graph.extents({program.graph.inputs[0]: image_shape[:2]})[output]
        known = program.graph.values[output]
        kind = tf.as_dtype(known.dtype).as_numpy_dtype
        pixel = convert(np.zeros((1, 1, known.channels), kind))
        with (
            sources.write_npy(path, (rows, columns, *pixel.shape[2:]), pixel.dtype) as writer,
            host_store.sink(
                lambda start, rows: writer.write(start, convert(rows.astype(kind, copy=False)))
            ) as key,
        ):
            inputs = keras_variables.arguments(program, [handle])
            program.forward(inputs, keras_variables.weights(program), {output: tf.constant(key)})

    def _settle(self, tensors: list[tf.Tensor]) -> None:
        """Before programs are asked for: which axis they cut, and for which `compile` they are."""
        self._programs.turn(tensors)
        self._programs.keep_for(getattr(self, "_compile_loss", None), self.jit_compile is not False)

    def _model_bytes(self) -> int:
        """Of weights, and of the optimiser where there is one."""
        optimizer = getattr(self, "optimizer", None)
        variables = [*self.twin.variables, *(optimizer.variables if optimizer else [])]
        return sum(v.value.dtype.size * prod(v.shape) for v in variables)

    def _flat_inputs(self, inputs: Any) -> list[tf.Tensor]:
        """Tensors or handles in the order of the model's inputs; a dict may name them."""
        known = self._functional_twin.inputs
        struct = self._functional_twin._inputs_struct
        if isinstance(inputs, dict) and isinstance(struct, dict) and set(struct) <= set(inputs):
            inputs = {key: inputs[key] for key in struct}
        elif isinstance(inputs, dict) and {t.name for t in known} <= set(inputs):
            inputs = [inputs[t.name] for t in known]
        flat = keras.tree.flatten(inputs)
        if len(flat) != len(known):
            raise ValueError(
                f"'{self.name}' has {len(known)} inputs ({', '.join(t.name for t in known)}), received {len(flat)}."
            )
        return [self._checked(t, spec) for t, spec in zip(flat, known, strict=True)]

    def _checked(self, given: Any, spec: Any) -> tf.Tensor:
        """An input as the model takes it; images `[N, rows, ...]` have one channel, as in Keras."""
        if given is None:
            raise ValueError(f"'{self.name}': input '{spec.name}' is None; every input is needed.")
        tensor = tf.convert_to_tensor(given)
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

    def _found(self, data: Any, training: bool) -> tuple[Program, dict[int, tf.Tensor]]:
        """What a step on eager data runs, and its images by value."""
        if training:
            self._build_optimizer()
        if self.spatial:
            program, _, tensors = self._loss_program(data, training)
        else:
            self._build_trackers(data)
            tensors = self._flat_inputs(keras.utils.unpack_x_y_sample_weight(data)[0])
            self._settle(tensors)
            program = self._programs.forward(training, tensors)
        return program, keras_variables.images(program, tensors)

    def _build_optimizer(self) -> None:
        """Makes its variables: a step that has to make any is traced twice."""
        replication.check(self.optimizer)
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    def _build_trackers(self, data: Any) -> None:
        """Makes the variables of losses and metrics."""
        if all(t is None or t.built for t in (self._compile_loss, self._compile_metrics)):
            return
        x, y, weights = (
            map_structure(self._placeholder, part)
            for part in keras.utils.unpack_x_y_sample_weight(data)
        )
        batch = keras.tree.flatten(x)[0].shape[0]
        outputs = map_structure(
            lambda t: keras.KerasTensor((batch, *t.shape[1:]), t.dtype),
            self._functional_twin._outputs_struct,
        )
        with suppress(ValueError, TypeError, tf.errors.OpError):  # then the first step makes them
            for function in (self.compute_loss, self.compute_metrics):
                keras.src.backend.compute_output_spec(function, x, y, outputs, weights)

    def _placeholder(self, tensor: Any) -> Any:
        if tensor is None:
            return None
        return keras.KerasTensor(self._known(tensor.shape), tensor.dtype.name)

    def _known(self, shape: tf.TensorShape) -> list[int | None]:
        """The dimensions of a tensor that a trace may know: sizes of images only if the model has one."""
        known = shape.as_list()
        rank = self._programs.rank
        sizes = [t.shape[1:-1] for t in self._functional_twin.inputs if len(t.shape) == rank]
        if len(known) < rank - 1 or all(None not in size for size in sizes):
            return known
        unknown: list[int | None] = [None] * (rank - 2)
        return [known[0], *unknown, *known[rank - 1 :]]

    def _loss_step(self, data: Any, training: bool) -> _Step:
        program, goal, tensors = self._loss_program(data, training)
        return _Step(program, goal, keras_variables.arguments(program, tensors), tensors[0])

    def _loss_program(
        self, data: Any, training: bool
    ) -> tuple[Program, objective.Objective, list[tf.Tensor]]:
        """What computes the loss of data, and what it is given."""
        x, *given = keras.utils.unpack_x_y_sample_weight(data)
        tensors = self._flat_inputs(x)
        self._settle(tensors)
        given = list(self._programs.labels.prepare(*given))
        owners = (self._compile_loss, self._compile_metrics)
        program, goal, taken = self._programs.loss(training, tensors, given, owners)
        flat = [t for structure in given for t in labels.flatten(structure)]
        return program, goal, tensors + [flat[i] for i in taken]

    def _dense_targets(self, data: Any) -> Any:
        """Data whose targets and sample weights are tensors, for losses that are Keras' own."""
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
        """The sum of the regularisers."""
        return sum((tf.cast(loss, dtype) for loss in self.twin.losses), tf.zeros([], dtype))

    def _finish(self, step: _Step, results: dict[int, Any], penalty: tf.Tensor) -> dict[str, Any]:
        """Adds the loss of a step to the metrics that follow it."""
        loss = step.loss(results) + penalty
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(step.first)[0])
        values = [results[v] for v in step.program.graph.outputs[1:]]
        step.objective.track(values, step.first.shape[0])
        return self.get_metrics_result()


def _as_it_is(rows: Any) -> Any:
    return rows


@dataclass(frozen=True)
class _Step:
    """A step on images: what runs, on what. `first` is the first input."""

    program: Program
    objective: objective.Objective
    inputs: dict[int, tf.Tensor]
    first: tf.Tensor

    def loss(self, results: dict[int, Any]) -> tf.Tensor:
        return results[self.program.graph.outputs[0]]


__all__ = ["StreamedModel", "stream"]
