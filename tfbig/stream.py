"""`stream(model, budget)`: a whole Keras model as one plan, sharing its variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig import backend, binding, failures, losses, network, phase, sources, stores
from tfbig.budget import DEFAULT_STRIPS, Budget
from tfbig.engine import Program
from tfbig.graph import Graph
from tfbig.plan import Plan
from tfbig.planner import Planner

_do_not_convert = tf.autograph.experimental.do_not_convert


def stream(
    model: keras.Model,
    budget: Budget | None = None,
    strip_rows: int | None = None,
    *,
    device: str | None = None,
    source_dtype: str = "uint8",
) -> StreamedModel:
    """Runs a Keras model on images that do not fit: same weights, same outputs, same gradients.

    Args:
        model: functional or Sequential, channels last, 2-D images. It stays usable: both share variables.
        budget: bytes allowed; by default what the machine has.
        strip_rows: fixes the strip height in rows of the input, for tests and tuning.
        device: where strips are worked on, for example "GPU:0"; by default the first accelerator, if any.
        source_dtype: element type of images given by handle.

    Returns:
        A `keras.Model`. Besides tensors it takes handles (`tfbig.open(path).handle`) as inputs and targets;
        these are read strip by strip.

    Raises:
        UnsupportedLayerError: a layer has no rule, or needs the whole image at once.
        BudgetError: on `plan` and on the first step: even one row is above the budget.

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
    return StreamedModel(model, budget, strip_rows, device=device, source_dtype=source_dtype)


def _strip_bytes(budget: Budget, device: str | None) -> int:
    if budget.device_bytes is not None:
        return budget.device_bytes
    if device and "GPU" in device:
        return int(0.8 * backend.accelerator_bytes())
    return DEFAULT_STRIPS


@keras.saving.register_keras_serializable(package="tfbig")
class StreamedModel(keras.Model):
    """What `stream` gives. `twin` is the plain model that shares the variables."""

    def __init__(
        self,
        model: keras.Model,
        budget: Budget | None = None,
        strip_rows: int | None = None,
        *,
        device: str | None = None,
        source_dtype: str = "uint8",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name=kwargs.pop("name", f"streamed_{model.name}"), dtype="float32", **kwargs
        )
        self.twin = model
        self.budget = budget or Budget()
        self.strip_rows = strip_rows
        self.device = device or backend.accelerator()
        self.source_dtype = source_dtype
        self._functional_twin = network.as_functional(model)
        self._programs: dict[Any, Program] = {}
        self.autocast = False  # every layer has its own element type
        self.supports_jit = False  # strips come from the host
        self._read(training=True)  # every layer has a rule, or it is said now
        self.built = True

    # ------------------------------------------------------------------ keras.Model

    def build(self, input_shape: Any = None) -> None:
        self.built = True

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.twin.compute_output_shape(input_shape)

    @failures.unwrapped
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return super().__call__(*arguments, **options)

    @_do_not_convert
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        tensors = [tf.convert_to_tensor(t) for t in keras.tree.flatten(inputs)]
        program = self._program(bool(training), tensors)
        outputs = binding.call(program, tensors)
        return keras.tree.pack_sequence_as(self._functional_twin._outputs_struct, outputs)

    @_do_not_convert
    def train_step(self, data: Any) -> dict[str, Any]:
        if not self.spatial:
            return super().train_step(data)
        program, inputs = self._loss_program(data, training=True)
        scale = self.optimizer.scale_loss(tf.constant(1.0))
        results, gradients = program.loss_and_gradients(inputs, binding.weights(program), scale)
        with tf.GradientTape() as tape:
            penalty = self._penalty(results[program.graph.outputs[0]].dtype)
            scaled = self.optimizer.scale_loss(penalty)
        variables = [v._value for v in self.trainable_variables]
        penalties = tape.gradient(scaled, variables)
        found = {id(w): g for w, g in zip(program.graph.weights, gradients, strict=True)}
        pairs = []
        for variable, extra in zip(self.trainable_variables, penalties, strict=True):
            gradient = found.get(id(variable))
            both = [g for g in (gradient, extra) if g is not None]
            pairs.append((tf.add_n(both) if both else None, variable))
        self.optimizer.apply_gradients(pairs)
        binding.update(program, results)
        loss = results[program.graph.outputs[0]]
        return self._report(loss + penalty, data)

    @_do_not_convert
    def test_step(self, data: Any) -> dict[str, Any]:
        if not self.spatial:
            return super().test_step(data)
        program, inputs = self._loss_program(data, training=False)
        loss = program.forward(inputs, binding.weights(program))[program.graph.outputs[0]]
        return self._report(loss + self._penalty(loss.dtype), data)

    def make_train_function(self, force: bool = False) -> None:
        self._make_unwrapped("train", force)

    def make_test_function(self, force: bool = False) -> None:
        self._make_unwrapped("test", force)

    def make_predict_function(self, force: bool = False) -> None:
        self._make_unwrapped("predict", force)

    def _make_unwrapped(self, kind: str, force: bool) -> None:
        """Keras' own, with errors of ours raised as such."""
        name = f"{kind}_function"
        if getattr(self, name) is None or force:
            getattr(super(), f"make_{name}")(force)
            setattr(self, name, failures.unwrapped(getattr(self, name)))

    def get_config(self) -> dict[str, Any]:
        return {
            "model": keras.saving.serialize_keras_object(self.twin),
            "budget": self.budget.get_config(),
            "strip_rows": self.strip_rows,
            "device": self.device,
            "source_dtype": self.source_dtype,
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
        """Whether every output is an image, so that losses run strip by strip."""
        return all(len(t.shape) == 4 for t in self._functional_twin.outputs)

    def plan(self, shape: Sequence[int], training: bool = True) -> Plan:
        """The plan for one image size; nothing of that size is allocated.

        Args:
            shape: `(N, H, W, C)` of the first input; other inputs have the same rows and columns.
            training: the plan of a training step; else of an evaluation, or of a prediction where no loss
                was compiled.

        Raises:
            BudgetError: it does not fit.
        """
        batch, height, width = (int(n) for n in shape[:3])
        graph = self._read(training, [self.source_dtype] * len(self._functional_twin.inputs))
        sizes = {i: (height, width) for i in graph.inputs if graph.values[i].image}
        if self.spatial and (training or self.compiled):
            extents = graph.extents(sizes)
            predicted = [extents[v] for v in graph.outputs]
            self._add_loss(graph, [self.source_dtype] * len(graph.outputs), None)
            targets = [i for i in graph.inputs if graph.values[i].image and i not in sizes]
            sizes |= dict(zip(targets, predicted, strict=True))
        phase.rewrite(graph)
        return self._planner(graph, training).plan(batch, sizes)

    @failures.unwrapped
    def predict_to(self, image: Any, path: str, dtype: str | None = None) -> sources.Source:
        """Predicts one image of any size into a `.npy` file, strip by strip.

        Args:
            image: a `Source`, a path or an array `[H, W, C]`.
            path: file to write; it appears under this name only when complete.
            dtype: element type of the file; that of the model by default.

        Returns:
            The prediction `[H, W, C]` as a source.

        Raises:
            SourceError: the image cannot be read, or the file not written.
        """
        source = sources.open(image)
        handle = tf.constant([source.handle])
        program = self._program(False, [handle])
        (output,) = program.graph.outputs
        rows, columns = program.graph.extents({program.graph.inputs[0]: source.shape[:2]})[output]
        known = program.graph.values[output]
        shape = (rows, columns, known.channels)
        kind = np.dtype(dtype or tf.as_dtype(known.dtype).as_numpy_dtype)
        with sources.write_npy(path, shape, kind) as writer, stores.sink(writer.write) as key:
            inputs = binding.arguments(program, [handle])
            program.forward(inputs, binding.weights(program), {output: tf.constant(key)})
        return sources.open(path)

    # --------------------------------------------------------------------- private

    def _read(self, training: bool, dtypes: list[str] | None = None) -> Graph:
        return network.read(self.twin, training, dtypes)

    def _planner(self, graph: Graph, training: bool) -> Planner:
        return Planner(
            graph,
            _strip_bytes(self.budget, self.device),
            self.budget.host_bytes,
            self.strip_rows,
            training,
            name=self.twin.name,
        )

    def _program(self, training: bool, tensors: list[tf.Tensor]) -> Program:
        key = (training, *(t.dtype for t in tensors))
        if key not in self._programs:
            graph = self._read(training, [self._dtype(t) for t in tensors])
            phase.rewrite(graph)
            self._programs[key] = Program(graph, self._planner(graph, training), self.device)
        return self._programs[key]

    def _dtype(self, tensor: tf.Tensor) -> str:
        return self.source_dtype if tensor.dtype == tf.string else tensor.dtype.name

    def _loss_program(self, data: Any, training: bool) -> tuple[Program, dict[int, tf.Tensor]]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if sample_weight is not None:
            raise ValueError(
                "sample weights are not supported for image outputs; put the weights into the loss."
            )
        tensors = [tf.convert_to_tensor(t) for t in keras.tree.flatten(x)]
        targets = [tf.convert_to_tensor(t) for t in keras.tree.flatten(y)]
        compiled = tuple(map(id, (self.optimizer, self.loss, *self.metrics)))
        key = ("loss", training, compiled, *(t.dtype for t in tensors + targets))
        if key not in self._programs:
            graph = self._read(training, [self._dtype(t) for t in tensors])
            metrics = self._metrics_function(graph, targets)
            self._add_loss(graph, [self._dtype(t) for t in targets], metrics)
            phase.rewrite(graph)
            self._programs[key] = Program(graph, self._planner(graph, training), self.device)
        program = self._programs[key]
        return program, binding.arguments(program, tensors + targets)

    def _add_loss(self, graph: Graph, dtypes: list[str], metrics: Any) -> None:
        """Replaces the outputs of a graph by their loss."""
        predictions = list(graph.outputs)
        seeds = [value for value, _ in graph.seeds]
        graph.inputs = [i for i in graph.inputs if i not in seeds]
        kinds = _per_output(getattr(self, "loss", None) or "mse", len(predictions))
        weights = _per_output(self._loss_weights() or 1.0, len(predictions))
        values = []
        graph.outputs = []
        for p, kind, weight, dtype in zip(predictions, kinds, weights, dtypes, strict=True):
            loss = losses.resolve(kind)
            known = graph.values[p]
            channels = 1 if "sparse" in loss.name else known.channels
            target = graph.input(f"{known.name}/target", True, channels, dtype)
            values.append(losses.add(graph, p, target, loss, weight, metrics))
        graph.inputs += seeds
        graph.outputs = [losses.total(graph, values)]

    def _metrics_function(self, graph: Graph, targets: list[tf.Tensor]) -> losses.Metrics | None:
        """Updates the compiled metrics with a strip; their variables are made here, outside any loop."""
        compiled = [m for m in self.metrics if m.name != "loss"]
        if not compiled:
            return None
        if len(graph.outputs) > 1:
            raise ValueError(
                f"'{self.name}' has {len(graph.outputs)} image outputs; metrics are computed strip by strip for "
                "models with one. Compile without metrics, or use evaluate on a model with one output."
            )
        known = graph.values[graph.outputs[0]]
        y_pred = tf.TensorSpec([None, None, None, known.channels], known.dtype)
        sparse = "sparse" in losses.resolve(keras.tree.flatten(self.loss)[0]).name
        y_true = tf.TensorSpec(
            [None, None, None, 1 if sparse else known.channels], self._dtype(targets[0])
        )

        def build(y_true: tf.Tensor, y_pred: tf.Tensor) -> None:
            self.compute_metrics(None, y_true, y_pred, None)

        tf.function(build, autograph=False).get_concrete_function(y_true, y_pred)
        leaves = [leaf for m in compiled for leaf in getattr(m, "metrics", [m])]

        def update(y_true: tf.Tensor, y_pred: tf.Tensor, share: tf.Tensor) -> None:
            for metric in leaves:
                # Keras means over the pixels of a sample first, so a strip counts by its share of the rows.
                mean = isinstance(metric, keras.metrics.Mean)
                metric.update_state(y_true, y_pred, sample_weight=share if mean else None)

        return update

    def _loss_weights(self) -> Any:
        with tf.init_scope():  # reads the learning rate on the way
            config = self.get_compile_config() if self.compiled else None
        return (config or {}).get("loss_weights")

    def _penalty(self, dtype: tf.DType) -> tf.Tensor:
        """The sum of the regularisers."""
        return sum((tf.cast(loss, dtype) for loss in self.twin.losses), tf.zeros([], dtype))

    def _report(self, loss: tf.Tensor, data: Any) -> dict[str, Any]:
        batch = tf.shape(keras.tree.flatten(data[0])[0])[0]
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=batch)
        return self.get_metrics_result()


def _per_output(setting: Any, count: int) -> list[Any]:
    values = keras.tree.flatten(setting)
    if len(values) not in (1, count):
        raise ValueError(f"expected 1 or {count} losses or loss weights, received {len(values)}.")
    return values * count if len(values) == 1 else values


__all__ = ["StreamedModel", "stream"]
