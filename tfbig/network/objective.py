"""Losses, metrics and sample weights of a compiled model as nodes of a graph.

Keras matches losses with outputs and targets by position, name and structure. To get the same match, its own
`CompileLoss` is called once on placeholders, with recorders instead of losses that note their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfbig.errors import UnsupportedLayerError
from tfbig.network import losses, user_code
from tfbig.network.graph import Graph, Local, Node
from tfbig.network.loss_reductions import WITHOUT_CHANNELS
from tfbig.ops import kernels
from tfbig.system import keras_internals

map_structure = keras.tree.map_structure


@dataclass(frozen=True)
class Term:
    """One loss of the objective.

    Args:
        loss: Keras loss.
        output: Position of its prediction among the outputs.
        target: Position of its labels among the targets.
        weights: Position of its sample weights among all sample weights, or None.
        factor: Weight of the loss in the total, or None.
    """

    loss: keras.losses.Loss
    output: int
    target: int
    weights: int | None
    factor: float | None


@dataclass(frozen=True)
class Scores:
    """The metrics of one output.

    Args:
        output: As in `Term`.
        target: As in `Term`.
        weights: As in `Term`.
        plain: Metrics without sample weights.
        weighted: Metrics that use the sample weights.
    """

    output: int
    target: int
    weights: int | None
    plain: tuple[keras.metrics.Metric, ...]
    weighted: tuple[keras.metrics.Metric, ...]


@dataclass(frozen=True)
class Objective:
    """The losses and metrics of a model for data of one structure.

    Args:
        terms: Losses.
        scores: Metrics of each output that has any.
        trackers: Keras metrics that follow each of several losses.
    """

    terms: tuple[Term, ...]
    scores: tuple[Scores, ...]
    trackers: tuple[keras.metrics.Metric, ...] = ()

    def add_to(
        self, graph: Graph, targets: Sequence[tf.TensorSpec], weights: Sequence[tf.TensorSpec]
    ) -> list[int]:
        """Replace the outputs of a graph by the total loss, followed by the loss of each term if there are several.

        Args:
            graph: Graph of the model.
            targets: Specs of the labels, `[None, ..., C]`; C is None for handles.
            weights: Specs of the sample weights, `[None]` or `[None, ..., 1]`.

        Returns:
            Positions in `[*targets, *weights]` of the inputs that were added to the graph, in their order.
        """
        predictions = list(graph.outputs)
        used = [*(t.output for t in self.terms), *(s.output for s in self.scores)]
        _check_channels(graph, {predictions[output] for output in used})
        seeds = [value for value, _ in graph.seeds]
        graph.inputs = [i for i in graph.inputs if i not in seeds]
        graph.outputs = [predictions[t.output] for t in self.terms]
        graph.outputs += [predictions[s.output] for s in self.scores]
        inputs = _Inputs(graph, targets, weights)
        scores = {s.output: s for s in self.scores}
        values = []
        for term in self.terms:
            shared = scores.pop(term.output, None)
            if shared is not None:
                graph.outputs.remove(predictions[term.output])  # the loss updates these metrics
            values.append(self._add_loss(graph, predictions, inputs, term, shared))
        without_loss = [self._add_scores(graph, predictions, inputs, s) for s in scores.values()]
        graph.inputs += seeds
        if len(values) == 1 and not without_loss:
            graph.outputs = values
        else:
            factors = [1.0 if t.factor is None else t.factor for t in self.terms]
            factors = [1.0] if len(values) == 1 else factors
            factors += [0.0] * len(without_loss)
            graph.outputs = [losses.total(graph, values + without_loss, factors), *values]
        _drop_unused(graph)
        return inputs.positions

    def _add_loss(
        self,
        graph: Graph,
        predictions: list[int],
        inputs: _Inputs,
        term: Term,
        scores: Scores | None,
    ) -> int:
        prediction = predictions[term.output]
        target = inputs.target(term.target, prediction, term.loss)
        weights = inputs.weights(term.weights)
        metrics = None if scores is None else _metric_updater(graph, scores, prediction, target)
        single = len(self.terms) == 1 and term.factor is not None
        factor = float(term.factor) if single and term.factor is not None else 1.0
        return losses.add(graph, prediction, target, term.loss, factor, metrics, weights)

    def _add_scores(
        self, graph: Graph, predictions: list[int], inputs: _Inputs, scores: Scores
    ) -> int:
        prediction = predictions[scores.output]
        target = inputs.target(scores.target, prediction)
        weights = inputs.weights(scores.weights)
        metrics = _metric_updater(graph, scores, prediction, target)
        return losses.observe(graph, prediction, target, metrics, weights)

    def channels(self, outputs: Sequence[int]) -> dict[int, int]:
        """Return the label channels of each target, computed from the channels of the outputs."""
        return {t.target: 1 if _has_class_labels(t.loss) else outputs[t.output] for t in self.terms}

    def as_keras_expects(self, targets: Any) -> Any:
        """Return targets `[N, ..., C]` for losses that Keras computes: some expect indices without a channel axis."""
        flat = keras.tree.flatten(targets)
        for term in self.terms:
            if isinstance(term.loss, WITHOUT_CHANNELS):
                flat[term.target] = flat[term.target][..., 0]
        return keras.tree.pack_sequence_as(targets, flat)

    def track(self, values: Sequence[tf.Tensor], batch: int | None) -> None:
        """Update the metrics that follow each of several losses.

        Args:
            values: Losses, the outputs of the graph after the total.
            batch: Batch size N if it is known.
        """
        for tracker, value in zip(self.trackers, values, strict=False):
            tracker.update_state(value, sample_weight=batch)


def _check_channels(graph: Graph, predictions: Iterable[int]) -> None:
    """Raise if a prediction with a loss or metric is an image without exactly one channel axis.

    Raises:
        UnsupportedLayerError: One is.
    """
    for value in predictions:
        if value in graph.channel_shapes:
            shape = (None, *[None] * graph.spatial, *graph.channel_shapes[value])
            raise UnsupportedLayerError(
                f"output '{graph.values[value].name}' has shape {shape}; losses and metrics expect [N, rows, ..., C]. "
                "End the model with keras.ops.expand_dims or keras.ops.reshape."
            )


def weights_with_gradient(graph: Graph) -> set[int]:
    """Return positions of the weights that the losses depend on; the gradient of others is None in Keras, not zero."""
    values = graph.outputs[1:] or graph.outputs
    return {slot for node in _ancestors(graph, values, _passes_gradient) for slot in node.weights}


def _passes_gradient(graph: Graph, node: Node) -> bool:
    """Return whether gradients flow from the output of a node to its inputs."""
    if not isinstance(node.op, Local):
        return True
    return not node.op.stops_gradient and tf.as_dtype(graph.values[node.output].dtype).is_floating


def _ancestors(
    graph: Graph, values: Sequence[int], follow: Callable[[Graph, Node], bool] | None = None
) -> list[Node]:
    """Return the nodes that values depend on, last first.

    Args:
        graph: Graph of the model.
        values: Ids of the values.
        follow: Whether to include a node and its inputs; by default always.
    """
    needed, nodes = set(values), []
    for node in reversed(graph.nodes):
        if node.output in needed and (follow is None or follow(graph, node)):
            needed |= set(node.inputs)
            nodes.append(node)
    return nodes


def _drop_unused(graph: Graph) -> None:
    """Remove nodes that neither a loss nor a moving statistic depends on, as those of an output without a loss."""
    kept = {id(n) for n in _ancestors(graph, [*graph.outputs, *(v for _, v, _ in graph.updates)])}
    graph.nodes = [n for n in graph.nodes if id(n) in kept]


class _Inputs:
    """Targets and sample weights as inputs of a graph; each is added once, however many losses read it."""

    def __init__(
        self, graph: Graph, targets: Sequence[tf.TensorSpec], weights: Sequence[tf.TensorSpec]
    ) -> None:
        self.graph = graph
        self.specs = [*targets, *weights]
        self.first_weight = len(targets)
        self.values: dict[int, int] = {}

    @property
    def positions(self) -> list[int]:
        """Positions in `specs` of the inputs that were added."""
        return list(self.values)

    def target(self, position: int, prediction: int, loss: keras.losses.Loss | None = None) -> int:
        """Return the labels of a prediction.

        They have its channels, one channel for class indices, or the channels of the data for a custom loss.
        """
        if position not in self.values:
            spec, output = self.specs[position], self.graph.values[prediction]
            channels = 1 if loss is not None and _has_class_labels(loss) else output.channels
            if isinstance(loss, losses.FunctionLoss) or loss is None:
                channels = spec.shape[-1] or channels
            self.values[position] = self.graph.input(
                f"{output.name}/target", True, channels, spec.dtype.name
            )
        return self.values[position]

    def weights(self, position: int | None) -> int | None:
        """Return the sample weights at a position, or None without them."""
        if position is None:
            return None
        place = self.first_weight + position
        if place not in self.values:
            spec = self.specs[place]
            image = spec.shape.rank != 1
            name = f"sample weights {position}" if position else "sample weights"
            self.values[place] = self.graph.input(name, image, int(image), spec.dtype.name)
        return self.values[place]


def _has_class_labels(loss: keras.losses.Loss) -> bool:
    """Return whether labels are class indices: one channel, however many the prediction has."""
    kinds = (keras.losses.SparseCategoricalCrossentropy, *WITHOUT_CHANNELS)
    sparse = isinstance(loss, kinds) or "sparse" in loss.name
    return sparse or getattr(loss, "class_labels", False)


# ------------------------------------------------------------------------------- read from Keras


class _LossRecorder(keras.losses.Loss):
    """Placeholder for a loss that records the arguments of its calls."""

    def __init__(self, identifier: Any, calls: list[Any]) -> None:
        loss = losses.resolve(identifier) if not _depends_on_labels(identifier) else None
        super().__init__(name=getattr(loss, "name", str(identifier)))
        self.identifier = identifier
        self.loss = loss
        self.calls = calls

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        if self.loss is None:
            self.loss = _crossentropy(y_true, y_pred)
        self.calls.append((self.loss, y_true, y_pred, sample_weight))
        return tf.zeros([], self.dtype)


def _depends_on_labels(identifier: Any) -> bool:
    """Return whether Keras chooses the loss by the shape of the labels."""
    return str(identifier).lower() in ("crossentropy", "ce")


def _crossentropy(y_true: Any, y_pred: Any) -> keras.losses.Loss:
    if y_pred.shape[-1] == 1:
        return keras.losses.BinaryCrossentropy()
    sparse = y_true.shape.rank < y_pred.shape.rank or y_true.shape[-1] == 1
    return (
        keras.losses.SparseCategoricalCrossentropy()
        if sparse
        else keras.losses.CategoricalCrossentropy()
    )


def read(compiled: Any, metrics: Any, outputs: Any, targets: Any, weights: Any) -> Objective:
    """Return the objective of a compiled model.

    Args:
        compiled: Keras' `CompileLoss`; built here if it is not.
        metrics: Keras' `CompileMetrics`, built here if it is not, or None.
        outputs: Structure of `tf.TensorSpec`, `[None, ..., C]`, of the model's outputs.
        targets: Structure of specs of the labels; C is None for handles.
        weights: Structure of specs of the sample weights, or None.

    Raises:
        ValueError: There is no loss, or it does not match the outputs (by Keras).
    """
    if compiled is None:
        losses.resolve(None)
    objectives: list[Objective] = []
    channels = [spec.shape[-1] for spec in keras.tree.flatten(outputs)]
    labels = _with_channels(targets, channels)

    def trace(*flat: tf.Tensor) -> None:
        pieces = iter(flat)
        y_pred, y_true, sample_weight = (
            map_structure(lambda _: next(pieces), s) if s is not None else None
            for s in (outputs, labels, weights)
        )
        positions = [_positions(s) for s in (y_pred, y_true, sample_weight)]
        terms = _terms(compiled, y_true, y_pred, sample_weight, positions)
        trackers = tuple(compiled.metrics)
        scores: tuple[Scores, ...] = ()
        if metrics is not None:
            sparse = {t.target for t in terms if _has_class_labels(t.loss)}
            y_true = _sparse(targets, y_true, sparse)
            positions[1] = _positions(y_true)
            scores = _scores(metrics, y_true, y_pred, sample_weight, positions)
        objectives.append(Objective(terms, scores, trackers))

    specs = [s for s in (outputs, labels, weights) if s is not None]
    flat = [spec for structure in specs for spec in keras.tree.flatten(structure)]
    # Symbolic, so that Keras creates the variables of metrics after it: tf.distribute strategies require that.
    symbols = [keras.KerasTensor(spec.shape, spec.dtype.name) for spec in flat]
    keras_internals.compute_output_spec(trace, *symbols)
    return objectives[-1]


def expected(compiled: Any, outputs: Any, label: tf.TensorSpec) -> Objective:
    """Return the objective for a plan, before there is data: one label for each output; nothing is built.

    Args:
        compiled: Keras' `CompileLoss`, or None for a mean squared error.
        outputs: As in `read`.
        label: Spec of labels that come by handle.
    """
    if compiled is None:
        loss, count = keras.losses.MeanSquaredError(), len(keras.tree.flatten(outputs))
        return Objective(tuple(Term(loss, i, i, None, None) for i in range(count)), ())
    unbuilt = keras_internals.unbuilt_copy(compiled)
    return read(unbuilt, None, outputs, map_structure(lambda _: label, outputs), None)


def _positions(structure: Any) -> dict[int, int]:
    """Return the positions of the tensors of a structure by their `id`."""
    flat = [] if structure is None else keras.tree.flatten(structure)
    return {id(t): i for i, t in enumerate(flat)}


def _with_channels(targets: Any, channels: list[int]) -> Any:
    """Return specs in which labels that come by handle have the channels of their output."""
    flat = keras.tree.flatten(targets)
    last = channels if len(flat) == len(channels) else [1] * len(flat)
    specs = [
        tf.TensorSpec([*spec.shape[:-1], size], spec.dtype) if _by_handle(spec) else spec
        for spec, size in zip(flat, last, strict=True)
    ]
    return keras.tree.pack_sequence_as(targets, specs)


def _by_handle(spec: tf.TensorSpec) -> bool:
    return spec.shape.rank > 1 and spec.shape[-1] is None


def _sparse(targets: Any, y_true: Any, sparse: set[int]) -> Any:
    """Give class labels that come by handle one channel, by which Keras chooses the kind of accuracy."""
    pairs = zip(keras.tree.flatten(targets), keras.tree.flatten(y_true), strict=True)
    labels = [
        t[..., :1] if i in sparse and _by_handle(spec) else t for i, (spec, t) in enumerate(pairs)
    ]
    return keras.tree.pack_sequence_as(y_true, labels)


def _terms(
    compiled: Any, y_true: Any, y_pred: Any, sample_weight: Any, positions: list[dict[int, int]]
) -> tuple[Term, ...]:
    calls = _calls(compiled, y_true, y_pred, sample_weight)
    if not keras.tree.is_nested(y_true) and not keras.tree.is_nested(y_pred):
        calls = calls[:1]  # as Keras does with a list of losses for one output
    outputs, targets, weights = positions
    entries = keras_internals.losses_with_weights(compiled)
    return tuple(
        Term(loss, outputs[id(p)], targets[id(y)], weights.get(id(w)), loss_weight)
        for (loss, y, p, w), (_, loss_weight) in zip(calls, entries, strict=False)
    )


def _calls(compiled: Any, y_true: Any, y_pred: Any, sample_weight: Any) -> list[Any]:
    """Return the arguments of each loss, in the order of `keras_internals.losses_with_weights`."""
    calls: list[Any] = []
    with keras_internals.replaced_losses(compiled, lambda loss: _LossRecorder(loss, calls)):
        compiled(y_true, y_pred, sample_weight)
    return calls


def _scores(
    compiled: Any, y_true: Any, y_pred: Any, sample_weight: Any, positions: list[dict[int, int]]
) -> tuple[Scores, ...]:
    if not compiled.built:
        compiled.build(y_true, y_pred)
    flat = partial(keras_internals.flat_targets, compiled)
    targets, predictions = flat(y_true), flat(y_pred)
    samples = [None] if sample_weight is None else flat(sample_weight)
    samples = samples if len(samples) == len(targets) else samples[:1] * len(targets)
    outputs, labels, weights = positions
    metrics = keras_internals.flat_metrics(compiled)
    rows = zip(*metrics, targets, predictions, samples, strict=False)
    return tuple(
        Scores(outputs[id(p)], labels[id(y)], weights.get(id(w)), _leaves(plain), _leaves(weighted))
        for plain, weighted, y, p, w in rows
        if plain or weighted
    )


def _leaves(metrics: Any) -> tuple[keras.metrics.Metric, ...]:
    return tuple(metrics.metrics) if metrics else ()


def _metric_updater(
    graph: Graph, scores: Scores, prediction: int, target: int
) -> Callable[..., None]:
    """Return a function that updates metrics with a strip; means of custom functions are tested first."""
    channels = [graph.values[v].channels for v in (target, prediction)]
    for metric in (*scores.plain, *scores.weighted):
        function = keras_internals.function_of(metric)
        if function is None or function.__module__.startswith("keras."):
            continue
        dtype = str(metric.dtype)
        options = keras_internals.function_options(metric)
        if not user_code.is_per_pixel(partial(function, **options), channels, graph.spatial, dtype):
            raise _not_a_mean(
                metric, "for part of an image it returns other values than for it all"
            )
    return _update(scores, graph.spatial)


def _not_a_mean(metric: Any, reason: str) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"metric '{metric.name}' does not return one value per pixel ({reason}), so its mean cannot be summed over "
        "strips. Use a function that keeps the pixels, or a keras.metrics.Metric that sums counts."
    )


def _update(scores: Scores, spatial: int) -> Callable[..., None]:
    """Return a function that updates metrics with a strip.

    Keras averages over the pixels of an image first, so in a mean a strip is weighted by its share of the rows.
    """

    def update(
        y_true: Any,
        y_pred: Any,
        share: tf.Tensor,
        weights: tf.Tensor | None = None,
        copies: kernels.Copies | None = None,
    ) -> None:
        if copies is not None:
            share = copies.of(share)
        for metric in scores.plain:
            if isinstance(metric, keras.metrics.Mean):
                _update_mean(metric, y_true, y_pred, share)
            else:
                metric.update_state(y_true, y_pred, **_weights(metric, y_true, None, copies))
        for metric in scores.weighted:
            if not isinstance(metric, keras.metrics.Mean):
                metric.update_state(y_true, y_pred, **_weights(metric, y_true, weights, copies))
            elif weights is None:
                _update_mean(metric, y_true, y_pred, share)
            else:
                shares = tf.reshape(share, [-1] + [1] * spatial)
                pixel_weights = tf.cast(weights[..., 0], share.dtype) * shares
                _update_mean(metric, y_true, y_pred, pixel_weights)

    return update


def _weights(
    metric: Any, y_true: tf.Tensor, weights: tf.Tensor | None, copies: kernels.Copies | None
) -> dict[str, tf.Tensor | None]:
    """Return the sample weights of a strip that occurs several times, as an argument of `update_state`."""
    if copies is None:
        return {} if weights is None else {"sample_weight": weights}
    counts = "int" in str(metric.dtype)  # as confusion matrices do
    dtype = tf.int64 if counts else keras.config.floatx()
    ones = tf.ones_like(y_true, dtype) if weights is None else weights
    return {"sample_weight": copies.of(ones)}


def _update_mean(metric: Any, y_true: Any, y_pred: Any, weights: tf.Tensor) -> None:
    function = keras_internals.function_of(metric)
    values = (
        y_true
        if function is None
        else function(y_true, y_pred, **keras_internals.function_options(metric))
    )
    if values.shape.rank is not None and values.shape.rank < y_true.shape.rank - 1:
        raise _not_a_mean(metric, f"shape {values.shape} for a strip")
    try:
        metric.update_state(y_true, y_pred, sample_weight=weights)
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        raise _not_a_mean(metric, "it averages something other than pixels") from error
