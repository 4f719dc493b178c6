"""Losses and metrics of images, strip by strip.

A loss that is a mean over pixels is a sum over strips: the part of one strip and its gradient need nothing from
other strips, so the last sweep is fused. Dice and Tversky are ratios of sums, and `tfbig.losses.LossOfSums` any
function of them: their gradient needs the sums over the whole image first, so they are barriers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfbig.errors import UnsupportedLayerError
from tfbig.geometry.windows import SAME
from tfbig.losses import LossOfSums
from tfbig.network import user_code
from tfbig.network.graph import Graph, Local, Node, Reduce
from tfbig.network.loss_reductions import (
    ImageSums,
    MeanLoss,
    Metrics,
    MetricsOnly,
    RatioSums,
    WeightSum,
)
from tfbig.system import keras_internals

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
"""Losses that do not depend on which axis of an element is the channel axis."""
OF_BATCHES = {
    keras.losses.Circle: "compares the embeddings of a batch with each other",
    keras.losses.CTC: "aligns sequences of labels with sequences of outputs",
}
"""Losses of Keras that have no value for each pixel, and what they do."""

_INSTEAD = "keras.losses.Dice, Tversky, or a tfbig.losses.LossOfSums."


def resolve(loss: Any) -> keras.losses.Loss:
    """Return the Keras loss object for an identifier that `compile` accepts.

    Raises:
        ValueError: `loss` is None.
    """
    resolved = keras.losses.get(loss)
    if resolved is None:
        raise ValueError("no loss to train with; pass `loss=` to compile(), for example 'mse'.")
    if isinstance(resolved, keras.losses.Loss):
        return resolved
    classes = [
        c for c in vars(keras.losses).values() if isinstance(c, type) and _function(c) is resolved
    ]
    return classes[0]() if classes else FunctionLoss(resolved)


def _function(kind: type) -> Any:
    """Return the function of a Keras loss class, such as `mean_squared_error`; None without one."""
    words = "".join("_" + c.lower() if c.isupper() else c for c in kind.__name__).strip("_")
    return getattr(keras.losses, words, None)


class FunctionLoss(keras.losses.Loss):
    """Custom loss `function(y_true, y_pred)` that returns one value per pixel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(name=getattr(function, "__name__", "loss"))
        self.function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of every pixel."""
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
    """Add a loss to a graph.

    Args:
        graph: Graph of the model.
        prediction: Output image of the model; pixelwise nodes before it move into the loss if nothing else
            reads it.
        target: Image input with the labels.
        loss: Keras loss.
        weight: Factor of the loss.
        metrics: Called once per strip with `(y_true, y_pred, share)`, plus the sample weights `[N, r, ..., 1]` if
            there are any; `share`, `[N]`, is the share of the image's pixels that the strip owns. The keyword `copies`
            is the number of times that the strip occurs in the image (`tfbig.ops.kernels.Copies`); None for once.
        sample_weight: Whole input `[N]`, or image input of one channel, or None.

    Returns:
        The value id of the loss, a scalar.

    Raises:
        UnsupportedLayerError: The loss is not a mean, sum, ratio or function of sums over pixels.
    """
    mean_of_one_channel = graph.values[prediction].channels == 1 and loss.reduction != "sum"
    value, tail, pixelwise = split_tail(graph, prediction)
    pixelwise = pixelwise and mean_of_one_channel and sample_weight is None
    pixelwise = pixelwise and _is(loss, ELEMENTWISE)
    _check(loss, graph, [target, prediction])
    inputs = [value, target]
    if sample_weight is not None:
        inputs.append(_weights_image(graph, target, sample_weight))
    if _is(loss, RATIOS):
        ratio = RatioSums(loss, tail, metrics, graph.spatial, pixelwise)
        return _add_of_sums(graph, ratio, inputs, loss, weight, sample_weight)
    if _is_of_sums(loss):
        channels = [graph.values[v].channels for v in (value, target)]
        sums = ImageSums(loss, tail, metrics, graph.spatial, channels)
        return _add_of_sums(graph, sums, inputs, loss, weight, sample_weight)
    divisor_image = _divisor_image(graph, loss, inputs)
    divided = divisor_image is not None
    op = MeanLoss(
        loss,
        tail,
        metrics,
        graph.spatial,
        weight=1.0 if divided else weight,
        summed=divided,
        xla=graph.xla,
        pixelwise=pixelwise,
    )
    result = graph.reduce(loss.name, op, inputs)
    if divisor_image is None:
        return result
    dtype = tf.as_dtype(loss.dtype)
    divisor = graph.reduce(f"{loss.name}/weights", WeightSum(dtype), [divisor_image])
    return graph.whole(
        f"{loss.name}/mean",
        lambda x, w: tf.math.divide_no_nan(x[0], x[1]) * tf.constant(weight, dtype),
        [result, divisor],
    )


def _is(loss: keras.losses.Loss, kinds: tuple[type, ...]) -> bool:
    """Return whether a loss is one of these Keras losses and does not override `call`."""
    return isinstance(loss, kinds) and not user_code.overridden(loss, "call")


def _is_of_sums(loss: keras.losses.Loss) -> bool:
    """Return whether a loss is a function of sums over pixels, and no subclass overrides `call`."""
    return isinstance(loss, LossOfSums) and type(loss).call is LossOfSums.call


def _check(loss: keras.losses.Loss, graph: Graph, images: list[int]) -> None:
    """Raise if a loss is not a mean, sum or ratio of sums over pixels; `images` are labels and prediction."""
    if loss.reduction in (None, "none"):
        raise UnsupportedLayerError(
            f"loss '{loss.name}' has reduction={loss.reduction!r}; an image loss must be a mean or a sum."
        )
    if user_code.overridden(loss, "__call__"):
        raise UnsupportedLayerError(
            f"loss '{loss.name}' ({type(loss).__name__}) overrides __call__, so how it sums over pixels is "
            "unknown; override `call`, which returns one value per pixel."
        )
    axis = getattr(loss, "axis", keras_internals.function_options(loss).get("axis"))
    if axis not in (None, -1, graph.spatial + 1) and not _is(loss, RATIOS):
        raise UnsupportedLayerError(
            f"loss '{loss.name}' has axis={axis}; expected the channels, axis=-1."
        )
    for kind, does in OF_BATCHES.items():
        if _is(loss, (kind,)):
            raise UnsupportedLayerError(
                f"loss '{loss.name}' ({kind.__name__}) {does}, so it has no value for each pixel, and fails for "
                f"images in Keras too; expected one value per pixel. Use {_INSTEAD}"
            )
    channels = [graph.values[v].channels for v in images]
    of_keras = type(loss) in vars(keras.losses).values()
    if (
        not of_keras
        and not _is_of_sums(loss)
        and not user_code.is_per_pixel(loss.call, channels, graph.spatial, str(loss.dtype))
    ):
        raise UnsupportedLayerError(
            f"loss '{loss.name}' combines pixels itself, so it cannot be computed strip by strip. Return one value per "
            f"pixel, [N, ...], such as the mean over axis=-1 alone; Keras takes the mean over pixels. Or use {_INSTEAD}"
        )


def _divisor_image(graph: Graph, loss: keras.losses.Loss, inputs: list[int]) -> int | None:
    """Return the image whose sum divides the summed loss; None to divide by the number of pixels, or not at all.

    Args:
        graph: Graph of the model.
        loss: Keras loss.
        inputs: Prediction, labels and, if there are any, sample weights.
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
    """Update metrics with a prediction that has no loss, and return a value that is always zero.

    Args:
        graph: As in `add`.
        prediction: As in `add`.
        target: As in `add`.
        metrics: As in `add`.
        sample_weight: As in `add`.
    """
    inputs = [prediction, target]
    if sample_weight is not None:
        inputs.append(_weights_image(graph, target, sample_weight))
    op = MetricsOnly(metrics)
    return graph.reduce(f"{graph.values[prediction].name}/metrics", op, inputs)


def _weights_image(graph: Graph, target: int, sample_weight: int) -> int:
    """Return sample weights as an image of one channel; `[N]` are broadcast to the target's pixels, strip by strip."""
    if graph.values[sample_weight].image:
        return sample_weight
    broadcast_shape = [-1] + [1] * (graph.spatial + 1)

    def function(x: list[tf.Tensor], w: Any, strip: Any) -> tf.Tensor:
        weights = tf.reshape(x[1], broadcast_shape)
        return tf.broadcast_to(weights, tf.concat([tf.shape(x[0])[:-1], [1]], 0))

    dtype = graph.values[sample_weight].dtype or "float32"
    name = f"{graph.values[sample_weight].name}/image"
    return graph.local(name, function, [target, sample_weight], 1, dtype, cheap=True)


def split_tail(graph: Graph, value: int) -> tuple[int, Callable[[tf.Tensor], tf.Tensor], bool]:
    """Remove the nodes without a halo that end in the output `value` from a graph, and join them in one function.

    With the activation inside the loss, Keras computes cross-entropies from logits, as it does for a plain
    model, and the chain can be compiled as a whole. If something else reads the last node too, it stays in the graph
    and is computed in the function again.

    Args:
        graph: Graph of the model.
        value: An output.

    Returns:
        The value before the chain, the function of the chain, and whether all of its nodes are pixelwise.
    """
    nodes: list[Node] = []
    node = graph.producer(value)
    is_output = graph.outputs.count(value) > 1
    while node is not None and _movable(node):
        removable = not is_output and not graph.consumers(value)
        if not removable and nodes:
            break
        nodes.insert(0, node)
        value = node.inputs[0]
        if not removable:
            break
        graph.nodes.remove(node)
        node = graph.producer(value)
        is_output = value in graph.outputs

    def tail(x: tf.Tensor) -> tf.Tensor:
        for node in nodes:
            x = node.op.function([x], [], None)
        return x

    return value, tail, all(n.op.pixelwise for n in nodes)


def _movable(node: Node) -> bool:
    op = node.op
    simple = isinstance(op, Local) and op.cheap and not node.weights and len(node.inputs) == 1
    return simple and op.axes[0] is not None and set(op.axes[0]) == {SAME}


def _add_of_sums(
    graph: Graph,
    op: Reduce,
    inputs: list[int],
    loss: Any,
    weight: float,
    sample_weight: int | None,
) -> int:
    """Add a loss of sums over strips: the sums, then a scalar computed from them."""
    if sample_weight is not None and graph.values[sample_weight].image:
        raise UnsupportedLayerError(
            f"loss '{loss.name}' is computed from sums over the image and accepts one weight per image, [N]; "
            "for weights per pixel use a loss that is a mean over pixels."
        )
    sums = graph.reduce(loss.name, op, inputs)
    whole = [sums] if sample_weight is None else [sums, sample_weight]
    of_sums = loss.of_sums if _is_of_sums(loss) else partial(_one_less_overlap, loss)
    return graph.whole(
        f"{loss.name}/mean",
        lambda x, w: _mean_of_images(loss, of_sums(x[0]), weight, *x[1:]),
        whole,
    )


def _one_less_overlap(loss: Any, sums: tuple[tf.Tensor, ...]) -> tf.Tensor:
    """Return one minus the overlap, over all images or of each, as in `keras.losses`."""
    products, labels, predictions = sums
    tiny = keras.backend.epsilon()
    if isinstance(loss, keras.losses.Tversky):
        outside = (labels - products) * loss.alpha + (predictions - products) * loss.beta
        return 1.0 - products / (products + outside + tiny)
    return 1.0 - 2.0 * products / (labels + predictions + tiny)


def _mean_of_images(
    loss: keras.losses.Loss, per_image: tf.Tensor, weight: float, *sample_weight: tf.Tensor
) -> tf.Tensor:
    """Return the mean (or sum) over images, as in `keras.losses.Loss.__call__`."""
    per_image = tf.cast(per_image, loss.dtype)
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
    """Add the weighted sum of losses, a scalar; a single loss without a weight is returned as it is."""
    if len(values) == 1 and weights is None:
        return values[0]
    kind = tf.as_dtype(dtype or keras.config.floatx())
    factors = weights or [1.0] * len(values)

    def add_up(x: list[tf.Tensor], w: Any) -> tf.Tensor:
        pairs = zip(x, factors, strict=True)
        return tf.add_n([tf.cast(t, kind) * tf.constant(f, kind) for t, f in pairs])

    return graph.whole("loss", add_up, values)
