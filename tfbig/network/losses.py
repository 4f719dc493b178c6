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
from tfbig.geometry.windows import SAME
from tfbig.network import user_code
from tfbig.network.graph import Graph, Local, Node, Reduce

XLA_NUMBERS = 2**24
"""Images with fewer predicted numbers are not worth compiling for: 0.1 s a shape of strip, 5 ns a number saved."""

Metrics = Callable[..., None]
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
    return named[0]() if named else FunctionLoss(found)


def _function(kind: type) -> Any:
    """The plain function of a Keras loss class."""
    words = "".join("_" + c.lower() if c.isupper() else c for c in kind.__name__).strip("_")
    return getattr(keras.losses, words, None)


class FunctionLoss(keras.losses.Loss):
    """A loss of one's own, `function(y_true, y_pred)`: a number per pixel."""

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
        prediction: image that the model gives; pixelwise nodes before it move into the loss if nothing else
            reads it.
        target: image input with the labels.
        loss: Keras loss.
        weight: factor of the loss.
        metrics: called once per strip with `(y_true, y_pred, share)`, and the sample weights `[N, r, ..., 1]` if
            there are any; that share of the rows of every image, `[N]`, is in it.
        sample_weight: whole input `[N]`, or image input of one channel, or None.

    Returns:
        The value id of the loss, a scalar.

    Raises:
        UnsupportedLayerError: the loss is no mean, sum or ratio of sums over pixels.
    """
    alone = graph.values[prediction].channels == 1 and loss.reduction != "sum"
    value, tail, pixelwise = split_tail(graph, prediction)
    pixelwise = pixelwise and alone and _is(loss, ELEMENTWISE) and sample_weight is None
    _check(loss, graph, [target, prediction])
    inputs = [value, target]
    if sample_weight is not None:
        inputs.append(_weights_image(graph, target, sample_weight))
    if _is(loss, RATIOS):
        op = replace(_ratio(loss, tail, metrics, graph.spatial), pixelwise=pixelwise)
        return _add_ratio(graph, op, inputs, loss, weight, sample_weight)
    counted = _counted(graph, loss, inputs)
    divided = counted is not None
    op = _mean(loss, 1.0 if divided else weight, tail, metrics, divided, graph.spatial, graph.xla)
    result = graph.reduce(loss.name, replace(op, pixelwise=pixelwise), inputs)
    if counted is None:
        return result
    dtype = tf.as_dtype(loss.dtype)
    divisor = graph.reduce(f"{loss.name}/weights", _sum(dtype), [counted])
    return graph.whole(
        f"{loss.name}/mean",
        lambda x, w: tf.math.divide_no_nan(x[0], x[1]) * tf.constant(weight, dtype),
        [result, divisor],
    )


def _is(loss: keras.losses.Loss, kinds: tuple[type, ...]) -> bool:
    """Whether a loss is one of Keras' losses, and computes as that does."""
    return isinstance(loss, kinds) and not user_code.overridden(loss, "call")


def _check(loss: keras.losses.Loss, graph: Graph, images: list[int]) -> None:
    """Refuses a loss that is no mean, sum or ratio of sums over pixels; `images` are labels and prediction."""
    if loss.reduction in (None, "none"):
        raise UnsupportedLayerError(
            f"loss '{loss.name}' has reduction={loss.reduction!r}; an image loss must be a mean or a sum."
        )
    if user_code.overridden(loss, "__call__"):
        raise UnsupportedLayerError(
            f"loss '{loss.name}' ({type(loss).__name__}) overrides __call__, so how it adds up over pixels is not "
            "known; override `call`, which gives one number per pixel."
        )
    axis = getattr(loss, "axis", getattr(loss, "_fn_kwargs", {}).get("axis"))
    if axis not in (None, -1, graph.spatial + 1) and not _is(loss, RATIOS):
        raise UnsupportedLayerError(
            f"loss '{loss.name}' has axis={axis}; strips need the channels, axis=-1."
        )
    channels = [graph.values[v].channels for v in images]
    if type(loss) not in vars(keras.losses).values() and not user_code.per_pixel(
        loss.call, channels, graph.spatial, str(loss.dtype)
    ):
        raise UnsupportedLayerError(
            f"loss '{loss.name}' is not a mean over pixels: it gives a part of an image other numbers than the whole. "
            "Use one that gives every pixel a number of its own, [N, ...], or keras.losses.Dice or Tversky."
        )


def _counted(graph: Graph, loss: keras.losses.Loss, inputs: list[int]) -> int | None:
    """The image whose sum divides that of the loss; None where it is the number of pixels, or 1.

    Args:
        inputs: prediction, labels and perhaps sample weights.
    """
    ignored, weights = getattr(loss, "ignore_class", None), inputs[2:]
    weights = weights if loss.reduction == "mean_with_sample_weight" else []
    if loss.reduction == "sum" or (ignored is None and not weights):
        return None
    if ignored is None:
        return weights[0]
    dtype = str(loss.dtype)

    def valid(x: list[tf.Tensor], w: Any, strip: Any) -> tf.Tensor:
        mask = tf.cast(tf.not_equal(x[0], tf.cast(ignored, x[0].dtype)), dtype)
        return mask * tf.cast(x[1], dtype) if len(x) > 1 else mask

    return graph.local(f"{loss.name}/valid", valid, [inputs[1], *weights], 1, dtype, cheap=True)


def observe(
    graph: Graph, prediction: int, target: int, metrics: Metrics, sample_weight: int | None = None
) -> int:
    """Shows a prediction that has no loss to metrics; gives a value that is always zero. Arguments as in `add`."""
    inputs = [prediction, target]
    if sample_weight is not None:
        inputs.append(_weights_image(graph, target, sample_weight))

    def partial(x: list[tf.Tensor], w: Any, strip: Any) -> tuple[tf.Tensor]:
        _observe(metrics, x, x[0], strip)
        return (tf.zeros([]),)

    op = Reduce(
        lambda batch: (tf.zeros([]),),
        partial,
        lambda a, b: (a[0] + b[0],),
        lambda a, pixels: a[0],
        lambda x, w, strip, result, cotangent: [None] * len(x),
    )
    return graph.reduce(f"{graph.values[prediction].name}/metrics", op, inputs)


def _weights_image(graph: Graph, target: int, sample_weight: int) -> int:
    """Sample weights as an image of one channel; `[N]` are spread over the target's pixels strip by strip."""
    if graph.values[sample_weight].image:
        return sample_weight
    spread = [-1] + [1] * (graph.spatial + 1)

    def function(x: list[tf.Tensor], w: Any, strip: Any) -> tf.Tensor:
        weights = tf.reshape(x[1], spread)
        return tf.broadcast_to(weights, tf.concat([tf.shape(x[0])[:-1], [1]], 0))

    dtype = graph.values[sample_weight].dtype or "float32"
    name = f"{graph.values[sample_weight].name}/image"
    return graph.local(name, function, [target, sample_weight], 1, dtype, cheap=True)


def split_tail(graph: Graph, value: int) -> tuple[int, Callable[[tf.Tensor], tf.Tensor], bool]:
    """Takes the nodes without a halo that end in `value`, one of its outputs, out of a graph, as one function.

    With the activation inside the loss, Keras computes cross-entropies from logits, as it does for a plain
    model, and the chain can be compiled as one. A last node that something else reads too is also made there.
    """
    nodes: list[Node] = []
    node = graph.producer(value)
    read = graph.outputs.count(value) > 1
    while node is not None and _movable(node):
        alone = not read and not graph.consumers(value)
        if not alone and nodes:
            break
        nodes.insert(0, node)
        value = node.inputs[0]
        if not alone:
            break
        graph.nodes.remove(node)
        node = graph.producer(value)
        read = value in graph.outputs

    def tail(x: tf.Tensor) -> tf.Tensor:
        for node in nodes:
            x = node.op.function([x], [], None)
        return x

    return value, tail, all(n.op.pixelwise for n in nodes)


def _movable(node: Node) -> bool:
    op = node.op
    alone = isinstance(op, Local) and op.cheap and not node.weights and len(node.inputs) == 1
    return alone and op.axes[0] is not None and set(op.axes[0]) == {SAME}


def _values(
    loss: keras.losses.Loss, y_true: tf.Tensor, y_pred: tf.Tensor, spatial: int
) -> tf.Tensor:
    """Loss of every pixel, `[N, r, ...]`, as `loss(y_true, y_pred)` has it before the mean."""
    dtype = tf.as_dtype(loss.dtype)
    y_pred = y_pred if y_pred.dtype == dtype else tf.cast(y_pred, dtype)
    values = loss.call(tf.cast(y_true, dtype), y_pred)
    mask = keras.src.backend.get_keras_mask(values)
    if mask is not None and getattr(loss, "ignore_class", None) is None:
        raise UnsupportedLayerError(
            f"loss '{loss.name}' ignores some of the pixels by a mask of Keras; strips know "
            "keras.losses.SparseCategoricalCrossentropy(ignore_class=...), or use sample weights."
        )
    if values.shape.rank is None or values.shape.rank <= spatial:
        raise UnsupportedLayerError(
            f"loss '{loss.name}' is not a mean over pixels (it gives shape {values.shape} for a strip); "
            "use a loss that gives one number per pixel, or keras.losses.Dice or Tversky."
        )
    return values


def _share(strip: Any, dtype: Any) -> tf.Tensor:
    """The share of the rows of an image that a strip owns."""
    return tf.cast((strip.stop - strip.start) / strip.extent, dtype)


def _observe(metrics: Metrics | None, x: list[tf.Tensor], y_pred: tf.Tensor, strip: Any) -> None:
    """Shows metrics a strip; `x` are the inputs of a loss: prediction, target and perhaps weights."""
    if metrics is not None:
        share = _share(strip, keras.config.floatx())
        metrics(x[1], y_pred, tf.fill(tf.shape(y_pred)[:1], share), *x[2:])


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a strip and tensors, through XLA for strips of large images.

    Activation, loss and gradient are a dozen pixelwise operations; fused they take a third of the time and no
    temporaries.
    """
    fused = tf.function(function, jit_compile=True, autograph=False)

    def choose(strip: Any, x: tf.Tensor, *rest: tf.Tensor) -> Any:
        rows, extent = (tf.cast(n, tf.int64) for n in (strip.stop - strip.start, strip.extent))
        large = tf.size(x, tf.int64) * extent >= XLA_NUMBERS * rows
        return tf.cond(large, lambda: fused(x, *rest), lambda: function(x, *rest))

    return choose


def _mean(
    loss: keras.losses.Loss,
    weight: float,
    tail: Callable[[tf.Tensor], tf.Tensor],
    metrics: Metrics | None,
    summed: bool,
    spatial: int,
    xla: bool,
) -> Reduce:
    """Sum over strips of their part of a loss; of the sum of pixels if `summed`, else of their mean."""
    dtype = tf.as_dtype(loss.dtype)
    summed = summed or loss.reduction == "sum"

    def share(x: tf.Tensor, y: tf.Tensor, part: tf.Tensor, *w: tf.Tensor) -> Any:
        """A strip's part of the loss, and its prediction."""
        y_pred = tail(x)
        values = _values(loss, y, y_pred, spatial)
        if w:
            values *= tf.cast(w[0][..., 0], dtype)
        total = tf.reduce_sum(values) if summed else tf.reduce_mean(values)
        return total * tf.cast(part, dtype), y_pred

    def with_gradient(
        x: tf.Tensor, y: tf.Tensor, part: tf.Tensor, cotangent: tf.Tensor, *w: tf.Tensor
    ) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss_share, y_pred = share(x, y, part, *w)
        gradient = tape.gradient(loss_share, x, cotangent)
        return (loss_share, gradient, y_pred) if metrics is not None else (loss_share, gradient)

    def part(strip: Any) -> tf.Tensor:
        return tf.constant(weight, tf.float64) * (1.0 if summed else _share(strip, tf.float64))

    def partial(x: list[tf.Tensor], w: Any, strip: Any) -> tuple[tf.Tensor]:
        loss_share, y_pred = share(x[0], x[1], part(strip), *x[2:])
        _observe(metrics, x, y_pred, strip)
        return (loss_share,)

    compiles = xla and type(loss) in vars(keras.losses).values()
    run = _compiled(with_gradient) if compiles else lambda strip, *tensors: with_gradient(*tensors)

    def pulled(x: list[tf.Tensor], strip: Any, cotangent: tf.Tensor) -> Any:
        loss_share, gradient, *y_pred = run(strip, x[0], x[1], part(strip), cotangent, *x[2:])
        return loss_share, [gradient, *[None] * len(x[1:])], y_pred

    def together(x: list[tf.Tensor], w: Any, strip: Any, cotangent: tf.Tensor) -> Any:
        loss_share, gradients, y_pred = pulled(x, strip, cotangent)
        if y_pred:
            _observe(metrics, x, y_pred[0], strip)
        return (loss_share,), gradients

    return Reduce(
        lambda batch: (tf.zeros([], dtype),),
        partial,
        lambda a, b: (a[0] + b[0],),
        lambda a, pixels: a[0],
        lambda x, w, strip, result, cotangent: pulled(x, strip, cotangent)[1],
        together,
    )


def _sum(dtype: tf.DType) -> Reduce:
    """The sum of an image of weights, from which nothing learns."""
    return Reduce(
        lambda batch: (tf.zeros([], dtype),),
        lambda x, w, strip: (tf.reduce_sum(tf.cast(x[0], dtype)),),
        lambda a, b: (a[0] + b[0],),
        lambda a, pixels: a[0],
        lambda x, w, strip, result, cotangent: [None],
    )


def _add_ratio(
    graph: Graph,
    op: Reduce,
    inputs: list[int],
    loss: Any,
    weight: float,
    sample_weight: int | None,
) -> int:
    """Dice or Tversky: the sums over strips, then a scalar from them."""
    if sample_weight is not None and graph.values[sample_weight].image:
        raise UnsupportedLayerError(
            f"loss '{loss.name}' is a ratio of sums over the image and takes one weight per image, [N]; "
            "for weights per pixel use a loss that is a mean over pixels."
        )
    sums = graph.reduce(loss.name, op, inputs)
    whole = [sums] if sample_weight is None else [sums, sample_weight]
    return graph.whole(
        f"{loss.name}/ratio", lambda x, w: _ratio_value(loss, weight, x[0], *x[1:]), whole
    )


def _ratio(
    loss: Any, tail: Callable[[tf.Tensor], tf.Tensor], metrics: Metrics | None, spatial: int
) -> Reduce:
    """The sums of `y * p`, `y` and `p` over everything, or of every image."""
    inside = tuple(range(1, spatial + 2))
    axis = tuple(loss.axis) if isinstance(loss.axis, list) else loss.axis
    if axis not in (None, inside):
        raise UnsupportedLayerError(
            f"loss '{loss.name}' has axis={loss.axis}; strips need axis=None or {inside}."
        )
    dtype = tf.as_dtype(loss.dtype)

    def sums(x: list[tf.Tensor]) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
        y_pred = tail(x[0])
        y, p = tf.cast(x[1], dtype), tf.cast(y_pred, dtype)
        return tuple(tf.reduce_sum(t, axis) for t in (y * p, y, p)), y_pred

    def partial(x: list[tf.Tensor], w: Any, strip: Any) -> tuple[tf.Tensor, ...]:
        found, y_pred = sums(x)
        _observe(metrics, x, y_pred, strip)
        return found

    def pullback(x: list[tf.Tensor], w: Any, strip: Any, result: Any, cotangent: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(x[0])
            found = sums(x)[0]
        return [tape.gradient(found, x[0], cotangent), *[None] * len(x[1:])]

    return Reduce(
        lambda batch: tuple(tf.zeros([] if axis is None else [batch], dtype) for _ in range(3)),
        partial,
        lambda a, b: tuple(i + j for i, j in zip(a, b, strict=True)),
        lambda a, pixels: tuple(a),
        pullback,
    )


def _ratio_value(
    loss: Any, weight: float, sums: tuple[tf.Tensor, ...], *sample_weight: tf.Tensor
) -> tf.Tensor:
    """One minus the overlap, over all images or their mean (or sum), as `keras.losses` has it."""
    both, labels, guesses = sums
    tiny = keras.backend.epsilon()
    if isinstance(loss, keras.losses.Tversky):
        outside = (labels - both) * loss.alpha + (guesses - both) * loss.beta
        per_image = 1.0 - both / (both + outside + tiny)
    else:
        per_image = 1.0 - 2.0 * both / (labels + guesses + tiny)
    weights = [tf.cast(w, per_image.dtype) for w in sample_weight]
    for w in weights:
        per_image *= w
    if loss.reduction == "sum":
        value = tf.reduce_sum(per_image)
    elif weights and loss.reduction == "mean_with_sample_weight":
        value = tf.math.divide_no_nan(tf.reduce_sum(per_image), tf.reduce_sum(weights[0]))
    else:
        value = tf.reduce_mean(per_image)
    return value * tf.constant(weight, value.dtype)


def total(
    graph: Graph, values: list[int], weights: list[float] | None = None, dtype: Any = None
) -> int:
    """The weighted sum of losses, a scalar; the loss itself where there is one, without a weight."""
    if len(values) == 1 and weights is None:
        return values[0]
    kind = tf.as_dtype(dtype or keras.config.floatx())
    factors = weights or [1.0] * len(values)

    def add_up(x: list[tf.Tensor], w: Any) -> tf.Tensor:
        pairs = zip(x, factors, strict=True)
        return tf.add_n([tf.cast(t, kind) * tf.constant(f, kind) for t, f in pairs])

    return graph.whole("loss", add_up, values)
