"""Losses and metrics of images, strip by strip.

A loss that is a mean over pixels adds up: its share of a strip, and its gradient there, need nothing from other
strips, so the last sweep runs forward and backward together. Dice and Tversky are ratios of sums: their gradient
needs the sums of the whole image first, so they are a barrier like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from tfbig.errors import UnsupportedLayerError
from tfbig.geometry import SAME
from tfbig.graph import Graph, Local, Node, Reduce

XLA_NUMBERS = 2**22
"""Strips with fewer predicted numbers are not worth compiling for."""

Metrics = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], None]
RATIOS = (keras.losses.Dice, keras.losses.Tversky)
ELEMENTWISE = (
    keras.losses.BinaryCrossentropy,
    keras.losses.BinaryFocalCrossentropy,
    keras.losses.MeanSquaredError,
    keras.losses.MeanAbsoluteError,
    keras.losses.MeanAbsolutePercentageError,
    keras.losses.MeanSquaredLogarithmicError,
    keras.losses.Huber,
    keras.losses.LogCosh,
    keras.losses.Poisson,
    *RATIOS,
)
"""Losses whose mean over channels and pixels does not depend on which number is a channel."""


def resolve(loss: Any) -> keras.losses.Loss:
    """A Keras loss object from what `compile` accepts.

    Raises:
        ValueError: there is no loss.
    """
    found = keras.losses.get(loss)
    if found is None:
        raise ValueError("no loss to train with; pass `loss=` to compile(), for example 'mse'.")
    if isinstance(found, keras.losses.Loss):
        return found
    named = [
        c for c in vars(keras.losses).values() if isinstance(c, type) and _function(c) is found
    ]
    return named[0]() if named else _FunctionLoss(found)


def _function(kind: type) -> Any:
    """The plain function of a Keras loss class."""
    words = "".join("_" + c.lower() if c.isupper() else c for c in kind.__name__).strip("_")
    return getattr(keras.losses, words, None)


class _FunctionLoss(keras.losses.Loss):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(name=getattr(function, "__name__", "loss"))
        self.function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.function(y_true, y_pred)


def add(
    graph: Graph,
    prediction: int,
    target: int,
    loss: keras.losses.Loss,
    weight: float = 1.0,
    metrics: Metrics | None = None,
    sample_weight: int | None = None,
) -> int:
    """Adds a loss to a graph.

    Args:
        graph: of the model.
        prediction: image that the model gives; pixelwise nodes before it move into the loss.
        target: image input with the labels.
        loss: Keras loss.
        weight: factor of the loss.
        metrics: called once per strip with `(y_true, y_pred, share)`; that share of the rows of every image,
            `[N]`, is in it.
        sample_weight: whole input `[N]`, or None.

    Returns:
        The value id of the loss, a scalar.
    """
    alone = graph.values[prediction].channels == 1 and loss.reduction != "sum"
    value, tail, pixelwise = split_tail(graph, prediction)
    build = _ratio if isinstance(loss, RATIOS) else _mean
    op = build(loss, weight, tail, metrics)
    op = replace(op, pixelwise=pixelwise and alone and isinstance(loss, ELEMENTWISE))
    if sample_weight is not None:
        raise UnsupportedLayerError(
            f"loss '{loss.name}': sample weights are not supported for image outputs; "
            "put the weights into the loss."
        )
    return graph.reduce(loss.name, op, [value, target])


def split_tail(graph: Graph, value: int) -> tuple[int, Callable[[tf.Tensor], tf.Tensor], bool]:
    """Takes the nodes without a halo that end in `value` out of a graph, as one function.

    With the activation inside the loss, Keras computes cross-entropies from logits, as it does for a plain
    model, and the chain can be compiled as one.
    """
    nodes: list[Node] = []
    node = graph.producer(value)
    while node is not None and _movable(node) and len(graph.consumers(value)) == 0:
        nodes.insert(0, node)
        graph.nodes.remove(node)
        value = node.inputs[0]
        node = graph.producer(value)

    def tail(x: tf.Tensor) -> tf.Tensor:
        for node in nodes:
            x = node.op.function([x], [], None)
        return x

    return value, tail, all(n.op.pixelwise for n in nodes)


def _movable(node: Node) -> bool:
    op = node.op
    return isinstance(op, Local) and op.cheap and op.axes == ((SAME, SAME),) and not node.weights


def _values(loss: keras.losses.Loss, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Loss of every pixel, `[N, r, W]`, as `loss(y_true, y_pred)` has it before the mean."""
    dtype = tf.as_dtype(loss.dtype)
    y_pred = y_pred if y_pred.dtype == dtype else tf.cast(y_pred, dtype)
    values = loss.call(tf.cast(y_true, dtype), y_pred)
    if values.shape.rank is None or values.shape.rank < 3:
        raise UnsupportedLayerError(
            f"loss '{loss.name}' is not a mean over pixels (it gives shape {values.shape} for a strip); "
            "use a loss that gives one number per pixel, or keras.losses.Dice or Tversky."
        )
    return values


def _observe(metrics: Metrics | None, y_true: tf.Tensor, y_pred: tf.Tensor, strip: Any) -> None:
    if metrics is not None:
        share = tf.cast((strip.stop - strip.start) / strip.extent, tf.float32)
        metrics(y_true, y_pred, tf.fill(tf.shape(y_pred)[:1], share))


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, through XLA for large strips.

    Activation, loss and gradient are a dozen pixelwise operations; fused they take a third of the time and no
    temporaries. Below `XLA_NUMBERS` compiling takes longer than it saves.
    """
    fused = tf.function(function, jit_compile=True, autograph=False)

    def choose(x: tf.Tensor, *rest: tf.Tensor) -> Any:
        large = tf.size(x, tf.int64) >= XLA_NUMBERS
        return tf.cond(large, lambda: fused(x, *rest), lambda: function(x, *rest))

    return choose


def _mean(
    loss: keras.losses.Loss,
    weight: float,
    tail: Callable[[tf.Tensor], tf.Tensor],
    metrics: Metrics | None,
) -> Reduce:
    if loss.reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum"):
        raise UnsupportedLayerError(
            f"loss '{loss.name}' has reduction={loss.reduction!r}; an image loss must be a mean or a sum."
        )
    dtype = tf.as_dtype(loss.dtype)

    def share(x: tf.Tensor, y: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """A strip's part of the loss, and its prediction."""
        y_pred = tail(x)
        values = _values(loss, y, y_pred)
        summed = tf.reduce_sum(values) if loss.reduction == "sum" else tf.reduce_mean(values)
        return summed * tf.cast(part, dtype), y_pred

    def with_gradient(x: tf.Tensor, y: tf.Tensor, part: tf.Tensor, cotangent: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss_share, y_pred = share(x, y, part)
        gradient = tape.gradient(loss_share, x, cotangent)
        return (loss_share, gradient, y_pred) if metrics is not None else (loss_share, gradient)

    def part(strip: Any) -> tf.Tensor:
        if loss.reduction == "sum":
            return tf.constant(weight, tf.float64)
        rows = tf.cast(strip.stop - strip.start, tf.float64)
        return weight * rows / tf.cast(strip.extent, tf.float64)

    def partial(x: list[tf.Tensor], w: Any, strip: Any) -> tuple[tf.Tensor]:
        loss_share, y_pred = share(x[0], x[1], part(strip))
        _observe(metrics, x[1], y_pred, strip)
        return (loss_share,)

    run = _compiled(with_gradient) if type(loss) in vars(keras.losses).values() else with_gradient

    def together(x: list[tf.Tensor], w: Any, strip: Any, cotangent: tf.Tensor) -> Any:
        loss_share, gradient, *y_pred = run(x[0], x[1], part(strip), cotangent)
        if y_pred:
            _observe(metrics, x[1], y_pred[0], strip)
        return (loss_share,), [gradient, None]

    return Reduce(
        lambda batch: (tf.zeros([], dtype),),
        partial,
        lambda a, b: (a[0] + b[0],),
        lambda a, pixels: a[0],
        lambda x, w, strip, result, cotangent: together(x, w, strip, cotangent)[1],
        together,
    )


def _ratio(
    loss: keras.losses.Loss,
    weight: float,
    tail: Callable[[tf.Tensor], tf.Tensor],
    metrics: Metrics | None,
) -> Reduce:
    """Dice and Tversky from the sums of `y * p`, `y` and `p`."""
    dtype = tf.as_dtype(loss.dtype)
    if loss.axis not in (None, (1, 2, 3), [1, 2, 3]):
        raise UnsupportedLayerError(
            f"loss '{loss.name}' has axis={loss.axis}; strips need axis=None or (1, 2, 3)."
        )
    axes = [0, 1, 2, 3] if loss.axis is None else [1, 2, 3]

    def sums(x: list[tf.Tensor]) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
        y_pred = tail(x[0])
        y, p = tf.cast(x[1], dtype), tf.cast(y_pred, dtype)
        return tuple(tf.reduce_sum(t, axes) for t in (y * p, y, p)), y_pred

    def partial(x: list[tf.Tensor], w: Any, strip: Any) -> tuple[tf.Tensor, ...]:
        found, y_pred = sums(x)
        _observe(metrics, x[1], y_pred, strip)
        return found

    def value(total: tuple[tf.Tensor, ...]) -> tf.Tensor:
        both, labels, guesses = total
        tiny = keras.backend.epsilon()
        if isinstance(loss, keras.losses.Tversky):
            outside = (labels - both) * loss.alpha + (guesses - both) * loss.beta
            score = both / (both + outside + tiny)
        else:
            score = 2.0 * both / (labels + guesses + tiny)
        per_image = 1.0 - score
        total_loss = (
            tf.reduce_sum(per_image) if loss.reduction == "sum" else tf.reduce_mean(per_image)
        )
        return total_loss * weight

    def pullback(x: list[tf.Tensor], w: Any, strip: Any, result: Any, cotangent: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(result[1])
            output = value(result[1])
        seeds = tape.gradient(output, result[1], cotangent[0])
        with tf.GradientTape() as tape:
            tape.watch(x[0])
            found = sums(x)[0]
        return [tape.gradient(found, x[0], seeds), None]

    return Reduce(
        lambda batch: tuple(
            tf.zeros([] if loss.axis is None else [batch], dtype) for _ in range(3)
        ),
        partial,
        lambda a, b: tuple(i + j for i, j in zip(a, b, strict=True)),
        lambda a, pixels: (value(a), tuple(a)),
        pullback,
    )


def total(graph: Graph, values: list[int]) -> int:
    """The sum of losses, a scalar; the loss itself where there is one that is a scalar."""
    nodes = [graph.producer(v) for v in values]
    if len(nodes) == 1 and nodes[0] is not None and nodes[0].op.together is not None:
        return values[0]
    return graph.whole(
        "loss", lambda x, w: tf.add_n([t[0] if isinstance(t, tuple) else t for t in x]), values
    )
