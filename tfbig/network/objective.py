"""What `compile` asked for, as nodes of a graph: losses, metrics and sample weights of image outputs.

Keras matches losses with outputs and targets by position, by name and by structure. It does so here too: its own
`CompileLoss` is called once on placeholders, with recorders in the place of losses that note what they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfbig.errors import UnsupportedLayerError
from tfbig.network import losses, user_code
from tfbig.network.graph import Graph, Local, Node

map_structure = keras.tree.map_structure


@dataclass(frozen=True)
class Term:
    """One loss.

    Args:
        loss: what is computed.
        output: position of its prediction among the outputs.
        target: position of its labels among the targets.
        weights: position of its sample weights among those given, or None.
        factor: weight of the loss in the total, or None.
    """

    loss: keras.losses.Loss
    output: int
    target: int
    weights: int | None
    factor: float | None


@dataclass(frozen=True)
class Scores:
    """The metrics of one output. Args: as in `Term`; `plain` and `weighted` are metrics."""

    output: int
    target: int
    weights: int | None
    plain: tuple[keras.metrics.Metric, ...]
    weighted: tuple[keras.metrics.Metric, ...]


@dataclass(frozen=True)
class Objective:
    """The losses and metrics of a model for data of one structure."""

    terms: tuple[Term, ...]
    scores: tuple[Scores, ...]
    trackers: tuple[keras.metrics.Metric, ...] = ()

    def add_to(
        self, graph: Graph, targets: Sequence[tf.TensorSpec], weights: Sequence[tf.TensorSpec]
    ) -> list[int]:
        """Replaces the outputs of a graph by their loss, and the loss of each term where there are several.

        Args:
            graph: of the model.
            targets: of the labels, `[None, ..., C]`; C is None for handles.
            weights: of the sample weights, `[None]` or `[None, ..., 1]`.

        Returns:
            Which of `[*targets, *weights]` the graph takes after its own inputs, by position.
        """
        predictions = list(graph.outputs)
        seeds = [value for value, _ in graph.seeds]
        graph.inputs = [i for i in graph.inputs if i not in seeds]
        graph.outputs = [predictions[t.output] for t in self.terms]
        graph.outputs += [predictions[s.output] for s in self.scores]
        inputs = _Inputs(graph, targets, weights)
        scores = {s.output: s for s in self.scores}
        values = []
        for term in self.terms:
            seen = scores.pop(term.output, None)
            if seen is not None:
                graph.outputs.remove(predictions[term.output])  # they share what the loss reads
            values.append(self._add_loss(graph, predictions, inputs, term, seen))
        unseen = [self._add_scores(graph, predictions, inputs, s) for s in scores.values()]
        graph.inputs += seeds
        if len(values) == 1 and not unseen:
            graph.outputs = values
        else:
            factors = [1.0 if t.factor is None else t.factor for t in self.terms]
            factors = [1.0] if len(values) == 1 else factors
            everything = losses.total(graph, values + unseen, factors + [0.0] * len(unseen))
            graph.outputs = [everything, *values]
        _drop_unused(graph)
        return inputs.taken

    def _add_loss(
        self, graph: Graph, predictions: list[int], inputs: _Inputs, term: Term, seen: Scores | None
    ) -> int:
        prediction = predictions[term.output]
        target = inputs.target(term.target, prediction, term.loss)
        weights = inputs.weights(term.weights)
        metrics = None if seen is None else _observer(graph, seen, prediction, target)
        alone = len(self.terms) == 1 and term.factor is not None
        factor = float(term.factor) if alone and term.factor is not None else 1.0
        return losses.add(graph, prediction, target, term.loss, factor, metrics, weights)

    def _add_scores(
        self, graph: Graph, predictions: list[int], inputs: _Inputs, scores: Scores
    ) -> int:
        prediction = predictions[scores.output]
        target = inputs.target(scores.target, prediction)
        weights = inputs.weights(scores.weights)
        metrics = _observer(graph, scores, prediction, target)
        return losses.observe(graph, prediction, target, metrics, weights)

    def channels(self, outputs: Sequence[int]) -> dict[int, int]:
        """Channels of the labels of each target, from those of the outputs."""
        return {t.target: 1 if _of_classes(t.loss) else outputs[t.output] for t in self.terms}

    def track(self, values: Sequence[tf.Tensor], batch: int | None) -> None:
        """Updates the metrics that follow each of several losses.

        Args:
            values: losses, as `add_to` left them after the total.
            batch: N where it is known.
        """
        for tracker, value in zip(self.trackers, values, strict=False):
            tracker.update_state(value, sample_weight=batch)


def learning(graph: Graph) -> set[int]:
    """Positions of the weights that the losses of a graph depend on; for others Keras has no gradient, not zero."""
    losses_of = graph.outputs[1:] or graph.outputs
    return {slot for node in _behind(graph, losses_of, _learns) for slot in node.weights}


def _learns(graph: Graph, node: Node) -> bool:
    """Whether gradients flow from the output of a node to its inputs."""
    if not isinstance(node.op, Local):
        return True
    return not node.op.stops and tf.as_dtype(graph.values[node.output].dtype).is_floating


def _behind(
    graph: Graph, values: Sequence[int], follow: Callable[[Graph, Node], bool] | None = None
) -> list[Node]:
    """The nodes that values depend on, last first.

    Args:
        follow: whether what a node depends on counts too, and the node; by default always.
    """
    wanted, found = set(values), []
    for node in reversed(graph.nodes):
        if node.output in wanted and (follow is None or follow(graph, node)):
            wanted |= set(node.inputs)
            found.append(node)
    return found


def _drop_unused(graph: Graph) -> None:
    """Removes what neither a loss nor a moving statistic depends on, such as an output without a loss."""
    kept = {id(n) for n in _behind(graph, [*graph.outputs, *(v for _, v, _ in graph.updates)])}
    graph.nodes = [n for n in graph.nodes if id(n) in kept]


class _Inputs:
    """Targets and sample weights as inputs of a graph, each once, however many losses read it."""

    def __init__(
        self, graph: Graph, targets: Sequence[tf.TensorSpec], weights: Sequence[tf.TensorSpec]
    ) -> None:
        self.graph = graph
        self.specs = [*targets, *weights]
        self.first_weight = len(targets)
        self.values: dict[int, int] = {}

    @property
    def taken(self) -> list[int]:
        return list(self.values)

    def target(self, position: int, prediction: int, loss: keras.losses.Loss | None = None) -> int:
        """The labels of a prediction: of as many channels as it has, or one, or what a loss of one's own takes."""
        if position not in self.values:
            spec, known = self.specs[position], self.graph.values[prediction]
            channels = 1 if loss is not None and _of_classes(loss) else known.channels
            if isinstance(loss, losses.FunctionLoss) or loss is None:
                channels = spec.shape[-1] or channels
            self.values[position] = self.graph.input(
                f"{known.name}/target", True, channels, spec.dtype.name
            )
        return self.values[position]

    def weights(self, position: int | None) -> int | None:
        if position is None:
            return None
        place = self.first_weight + position
        if place not in self.values:
            spec = self.specs[place]
            image = spec.shape.rank != 1
            name = f"sample weights {position}" if position else "sample weights"
            self.values[place] = self.graph.input(name, image, int(image), spec.dtype.name)
        return self.values[place]


def _of_classes(loss: keras.losses.Loss) -> bool:
    """Whether labels are numbers of classes, one channel whatever the prediction has."""
    return isinstance(loss, keras.losses.SparseCategoricalCrossentropy) or "sparse" in loss.name


# ------------------------------------------------------------------------------- from Keras


class _Recorder(keras.losses.Loss):
    """Stands for a loss, and notes what it is called with."""

    def __init__(self, identifier: Any, calls: list[Any]) -> None:
        loss = losses.resolve(identifier) if not _is_guess(identifier) else None
        super().__init__(name=getattr(loss, "name", str(identifier)))
        self.identifier = identifier
        self.found = loss
        self.calls = calls

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        if self.found is None:
            self.found = _guessed(y_true, y_pred)
        self.calls.append((self.found, y_true, y_pred, sample_weight))
        return tf.zeros([], self.dtype)


def _is_guess(identifier: Any) -> bool:
    """Whether Keras chooses the loss by the shape of the labels."""
    return str(identifier).lower() in ("crossentropy", "ce")


def _guessed(y_true: Any, y_pred: Any) -> keras.losses.Loss:
    if y_pred.shape[-1] == 1:
        return keras.losses.BinaryCrossentropy()
    sparse = y_true.shape.rank < y_pred.shape.rank or y_true.shape[-1] == 1
    return (
        keras.losses.SparseCategoricalCrossentropy()
        if sparse
        else keras.losses.CategoricalCrossentropy()
    )


def read(compiled: Any, metrics: Any, outputs: Any, targets: Any, weights: Any) -> Objective:
    """The objective of a compiled model.

    Args:
        compiled: Keras' `CompileLoss`, built here if it is not.
        metrics: Keras' `CompileMetrics` or None, likewise.
        outputs: structure of `tf.TensorSpec`, `[None, ..., C]`, as the model gives them.
        targets: structure of specs, as the data has them; C is None for handles.
        weights: structure of specs of sample weights, or None.

    Raises:
        ValueError: no loss, or one that does not match the outputs (by Keras).
    """
    if compiled is None:
        losses.resolve(None)
    found: list[Objective] = []
    channels = [spec.shape[-1] for spec in keras.tree.flatten(outputs)]
    known = _with_channels(targets, channels)

    def trace(*flat: tf.Tensor) -> None:
        pieces = iter(flat)
        y_pred, y_true, sample_weight = (
            map_structure(lambda _: next(pieces), s) if s is not None else None
            for s in (outputs, known, weights)
        )
        positions = [_positions(s) for s in (y_pred, y_true, sample_weight)]
        terms = _terms(compiled, y_true, y_pred, sample_weight, positions)
        trackers = tuple(compiled.metrics)
        scores: tuple[Scores, ...] = ()
        if metrics is not None:
            sparse = {t.target for t in terms if _of_classes(t.loss)}
            y_true = _sparse(targets, y_true, sparse)
            positions[1] = _positions(y_true)
            scores = _scores(metrics, y_true, y_pred, sample_weight, positions)
        found.append(Objective(terms, scores, trackers))

    specs = [s for s in (outputs, known, weights) if s is not None]
    flat = [spec for structure in specs for spec in keras.tree.flatten(structure)]
    # Symbolic: variables of metrics are made when it has ended, which a strategy of tf.distribute needs.
    symbols = [keras.KerasTensor(spec.shape, spec.dtype.name) for spec in flat]
    keras.src.backend.compute_output_spec(trace, *symbols)
    return found[-1]


def expected(compiled: Any, outputs: Any, label: tf.TensorSpec) -> Objective:
    """The objective before there is data, for a plan: one label for each output; nothing is built.

    Args:
        compiled: Keras' `CompileLoss`, or None for a mean squared error.
        outputs: as in `read`.
        label: spec of labels by handle.
    """
    if compiled is None:
        loss, count = keras.losses.MeanSquaredError(), len(keras.tree.flatten(outputs))
        return Objective(tuple(Term(loss, i, i, None, None) for i in range(count)), ())
    names = compiled.output_names
    unbuilt = type(compiled)(compiled._user_loss, compiled._user_loss_weights, output_names=names)
    return read(unbuilt, None, outputs, map_structure(lambda _: label, outputs), None)


def _positions(structure: Any) -> dict[int, int]:
    """Positions of the tensors of a structure by their `id`."""
    flat = [] if structure is None else keras.tree.flatten(structure)
    return {id(t): i for i, t in enumerate(flat)}


def _with_channels(targets: Any, channels: list[int]) -> Any:
    """Specs of labels that come by handle, with as many channels as the output in their place."""
    flat = keras.tree.flatten(targets)
    guesses = channels if len(flat) == len(channels) else [1] * len(flat)
    found = [
        tf.TensorSpec([*spec.shape[:-1], guess], spec.dtype) if _by_handle(spec) else spec
        for spec, guess in zip(flat, guesses, strict=True)
    ]
    return keras.tree.pack_sequence_as(targets, found)


def _by_handle(spec: tf.TensorSpec) -> bool:
    return spec.shape.rank > 1 and spec.shape[-1] is None


def _sparse(targets: Any, y_true: Any, sparse: set[int]) -> Any:
    """Labels that come by handle and hold classes have one channel, from which Keras tells the kind of accuracy."""
    pairs = zip(keras.tree.flatten(targets), keras.tree.flatten(y_true), strict=True)
    found = [
        t[..., :1] if i in sparse and _by_handle(spec) else t for i, (spec, t) in enumerate(pairs)
    ]
    return keras.tree.pack_sequence_as(y_true, found)


def _terms(
    compiled: Any, y_true: Any, y_pred: Any, sample_weight: Any, positions: list[dict[int, int]]
) -> tuple[Term, ...]:
    calls = _calls(compiled, y_true, y_pred, sample_weight)
    if not keras.tree.is_nested(y_true) and not keras.tree.is_nested(y_pred):
        calls = calls[:1]  # as Keras does with a list of losses for one output
    outputs, targets, weights = positions
    return tuple(
        Term(loss, outputs[id(p)], targets[id(y)], weights.get(id(w)), entry.loss_weights)
        for (loss, y, p, w), entry in zip(calls, compiled._flat_losses, strict=False)
    )


def _calls(compiled: Any, y_true: Any, y_pred: Any, sample_weight: Any) -> list[Any]:
    """What each loss is called with, in the order of `compiled._flat_losses`."""
    calls: list[Any] = []
    if not compiled.built:
        given = compiled._user_loss
        compiled._user_loss = map_structure(
            lambda loss: None if loss is None else _Recorder(loss, calls), given
        )
        try:
            compiled(y_true, y_pred, sample_weight)
        finally:
            compiled._user_loss = given
        kept = [e._replace(loss=e.loss.found) for e in compiled._flat_losses]
    else:
        kept = compiled._flat_losses
        compiled._flat_losses = [e._replace(loss=_Recorder(e.loss, calls)) for e in kept]
        compiled(y_true, y_pred, sample_weight)
    compiled._flat_losses = kept
    return calls


def _scores(
    compiled: Any, y_true: Any, y_pred: Any, sample_weight: Any, positions: list[dict[int, int]]
) -> tuple[Scores, ...]:
    if not compiled.built:
        compiled.build(y_true, y_pred)
    targets, predictions = compiled._flatten_y(y_true), compiled._flatten_y(y_pred)
    given = [None] if sample_weight is None else compiled._flatten_y(sample_weight)
    given = given if len(given) == len(targets) else given[:1] * len(targets)
    outputs, labels, weights = positions
    rows = zip(
        compiled._flat_metrics,
        compiled._flat_weighted_metrics,
        targets,
        predictions,
        given,
        strict=False,
    )
    return tuple(
        Scores(outputs[id(p)], labels[id(y)], weights.get(id(w)), _leaves(plain), _leaves(weighted))
        for plain, weighted, y, p, w in rows
        if plain or weighted
    )


def _leaves(metrics: Any) -> tuple[keras.metrics.Metric, ...]:
    return tuple(metrics.metrics) if metrics else ()


def _observer(graph: Graph, scores: Scores, prediction: int, target: int) -> Callable[..., None]:
    """What updates metrics with a strip; a mean of a function of one's own is tried first."""
    channels = [graph.values[v].channels for v in (target, prediction)]
    for metric in (*scores.plain, *scores.weighted):
        function = getattr(metric, "_fn", None)
        if function is None or function.__module__.startswith("keras."):
            continue
        dtype = str(metric.dtype)
        options = metric._fn_kwargs
        if not user_code.per_pixel(partial(function, **options), channels, graph.spatial, dtype):
            raise _no_mean(metric, "it gives a part of an image other numbers than the whole")
    return _update(scores, graph.spatial)


def _no_mean(metric: Any, reason: str) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"metric '{metric.name}' gives no number per pixel ({reason}), so its mean cannot be added up. Use a function "
        "that keeps the pixels, or a keras.metrics.Metric that adds up counts."
    )


def _update(scores: Scores, spatial: int) -> Callable[..., None]:
    """Updates metrics with a strip.

    Keras means over the pixels of an image first, so for a mean a strip counts by its share of the rows.
    """

    def update(
        y_true: Any, y_pred: Any, share: tf.Tensor, weights: tf.Tensor | None = None
    ) -> None:
        for metric in scores.plain:
            if isinstance(metric, keras.metrics.Mean):
                _update_mean(metric, y_true, y_pred, share)
            else:
                metric.update_state(y_true, y_pred)
        for metric in scores.weighted:
            if not isinstance(metric, keras.metrics.Mean):
                metric.update_state(y_true, y_pred, sample_weight=weights)
            elif weights is None:
                _update_mean(metric, y_true, y_pred, share)
            else:
                shares = tf.reshape(share, [-1] + [1] * spatial)
                given = tf.cast(weights[..., 0], share.dtype) * shares
                _update_mean(metric, y_true, y_pred, given)

    return update


def _update_mean(metric: Any, y_true: Any, y_pred: Any, weights: tf.Tensor) -> None:
    function = getattr(metric, "_fn", None)
    values = y_true if function is None else function(y_true, y_pred, **metric._fn_kwargs)
    if values.shape.rank is not None and values.shape.rank < y_true.shape.rank - 1:
        raise _no_mean(metric, f"shape {values.shape} for a strip")
    try:
        metric.update_state(y_true, y_pred, sample_weight=weights)
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        raise _no_mean(metric, "weights of strips do not fit what it averages") from error
