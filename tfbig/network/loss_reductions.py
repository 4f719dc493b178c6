"""Reductions of losses: means and sums over pixels, sums of which losses are functions, and metrics without a loss.

The inputs of each are the prediction, the target and, optionally, sample weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tfbig.errors import UnsupportedLayerError
from tfbig.losses import LossOfSums
from tfbig.network.graph import Reduce
from tfbig.ops import totals
from tfbig.system import keras_internals, traces

XLA_NUMBERS = 2**24
"""Fewest predicted elements of an image for which XLA pays: compiling takes 0.1 s per strip shape, saves 5 ns each."""

WITHOUT_CHANNELS = (keras.losses.CategoricalGeneralizedCrossEntropy,)
"""Losses that expect class indices `[N, ...]`, without a channel axis."""

Metrics = Callable[..., None]
"""Function `(y_true, y_pred, share, weights, copies)`, see `tfbig.network.losses.add`."""

Tail = Callable[[tf.Tensor], tf.Tensor]
"""Pixelwise end of a model, which runs inside its loss."""


class MeanLoss(Reduce):
    """A loss that is the mean, or the sum, over pixels.

    Args:
        loss: Keras loss.
        tail: Pixelwise end of the model.
        metrics: Called once per strip; None without metrics.
        spatial: Number of spatial axes.
        weight: Factor of the loss.
        summed: Whether to return the sum over pixels, even if `loss` is a mean.
        xla: Whether the loss may be compiled.
        pixelwise: As in `Reduce`.
    """

    fusible = True

    def __init__(
        self,
        loss: keras.losses.Loss,
        tail: Tail,
        metrics: Metrics | None,
        spatial: int,
        *,
        weight: float,
        summed: bool,
        xla: bool,
        pixelwise: bool,
    ) -> None:
        self.loss = loss
        self.tail = tail
        self.metrics = metrics
        self.spatial = spatial
        self.weight = weight
        self.summed = summed or loss.reduction == "sum"
        self.pixelwise = pixelwise
        self.dtype = tf.as_dtype(loss.dtype)
        self.compiled = xla and type(loss) in vars(keras.losses).values()
        self._run = _compiled(self._with_gradient) if self.compiled else self._uncompiled

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor]:
        """Return zero, in float64, in which the parts of all strips are added up."""
        return (tf.zeros([], tf.float64),)

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor]:
        """Return a strip's part of the loss, and update the metrics."""
        x, y, *weights = inputs
        part, y_pred = self._part(x, y, self._factor(strip), *weights)
        _update_metrics(self.metrics, inputs, y_pred, strip)
        return (part,)

    def finalize(self, partial: tuple[tf.Tensor], pixels: Any) -> tf.Tensor:
        """Return the loss, a scalar."""
        return tf.cast(partial[0], self.dtype)

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[Any]:
        """Return the gradient of the prediction."""
        _, gradient, *_ = self._part_and_gradient(inputs, strip, cotangent)
        return [gradient, *[None] * len(inputs[1:])]

    def fused(
        self, inputs: list[tf.Tensor], strip: Any, cotangent: Any
    ) -> tuple[tuple[tf.Tensor], list[Any]]:
        """Return a strip's part of the loss and its gradient, and update the metrics."""
        part, gradient, *y_pred = self._part_and_gradient(inputs, strip, cotangent)
        if y_pred:
            _update_metrics(self.metrics, inputs, y_pred[0], strip)
        return (part,), [gradient, *[None] * len(inputs[1:])]

    def _part(self, x: tf.Tensor, y: tf.Tensor, factor: tf.Tensor, *w: tf.Tensor) -> Any:
        """Return a strip's part of the loss, and its prediction."""
        y_pred = self.tail(x)
        values = values_of(self.loss, y, y_pred, self.spatial)
        if w:
            values *= tf.cast(w[0][..., 0], self.dtype)
        total = totals.total_of_all(values)
        if not self.summed:
            total /= tf.cast(tf.size(values, tf.int64), tf.float64)
        return total * factor, y_pred

    def _part_and_gradient(self, inputs: list[tf.Tensor], strip: Any, cotangent: Any) -> Any:
        x, y, *weights = inputs
        return self._run(strip, x, y, self._factor(strip), cotangent, *weights)

    def _with_gradient(
        self,
        x: tf.Tensor,
        y: tf.Tensor,
        factor: tf.Tensor,
        cotangent: tf.Tensor,
        *w: tf.Tensor,
    ) -> Any:
        """Return a strip's part of the loss, its gradient, and the prediction if metrics need it."""
        with tf.GradientTape() as tape:
            tape.watch(x)
            part, y_pred = self._part(x, y, factor, *w)
        gradient = tape.gradient(part, x, tf.cast(cotangent, part.dtype))
        return (part, gradient, y_pred) if self.metrics is not None else (part, gradient)

    def _uncompiled(self, strip: Any, *tensors: tf.Tensor) -> Any:
        return self._with_gradient(*tensors)

    def _factor(self, strip: Any) -> tf.Tensor:
        share = 1.0 if self.summed else _share(strip, tf.float64)
        return tf.constant(self.weight, tf.float64) * share


class LossSums(Reduce):
    """Sums over the batch from which a loss is computed at the end.

    Args:
        tail: Pixelwise end of the model.
        metrics: Called once per strip; None without metrics.
    """

    def __init__(self, tail: Tail, metrics: Metrics | None) -> None:
        self.tail = tail
        self.metrics = metrics

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor, ...]:
        """Return the sums of a strip, and update the metrics."""
        sums, y_pred = self._sums(inputs)
        _update_metrics(self.metrics, inputs, y_pred, strip)
        return sums

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[Any]:
        """Return the gradient of the prediction."""
        with tf.GradientTape() as tape:
            tape.watch(inputs[0])
            sums, _ = self._sums(inputs)
        return [tape.gradient(sums, inputs[0], list(cotangent)), *[None] * len(inputs[1:])]

    def _sums(self, inputs: list[tf.Tensor]) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
        """Return the sums of a strip in float64, and the prediction."""
        y_pred = self.tail(inputs[0])
        return self._sums_of(inputs[1], y_pred), y_pred

    @abstractmethod
    def _sums_of(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the sums of labels and predictions in float64."""


class RatioSums(LossSums):
    """Sums of `y * p`, `y` and `p` in float64, over the batch or per image, of which Dice and Tversky are ratios.

    Args:
        loss: Keras loss.
        tail: Pixelwise end of the model.
        metrics: Called once per strip; None without metrics.
        spatial: Number of spatial axes.
        pixelwise: As in `Reduce`.

    Raises:
        UnsupportedLayerError: The loss sums over other axes.
    """

    def __init__(
        self, loss: Any, tail: Tail, metrics: Metrics | None, spatial: int, pixelwise: bool
    ) -> None:
        inside = tuple(range(1, spatial + 2))
        self.axis = tuple(loss.axis) if isinstance(loss.axis, list) else loss.axis
        if self.axis not in (None, inside):
            raise UnsupportedLayerError(
                f"loss '{loss.name}' has axis={loss.axis}; expected axis=None or {inside}."
            )
        super().__init__(tail, metrics)
        self.pixelwise = pixelwise
        self.dtype = tf.as_dtype(loss.dtype)

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor, ...]:
        """Return zeros."""
        shape = [] if self.axis is None else [batch]
        return tuple(tf.zeros(shape, tf.float64) for _ in range(3))

    def _sums_of(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, ...]:
        y, p = tf.cast(y_true, self.dtype), tf.cast(y_pred, self.dtype)
        return tuple(self._total(t) for t in (y * p, y, p))

    def _total(self, t: tf.Tensor) -> tf.Tensor:
        if self.axis is None:
            return totals.total_of_all(t)
        return tf.squeeze(totals.total(t, self.axis), self.axis)


class ImageSums(LossSums):
    """The sums of a `LossOfSums`, in float64.

    Args:
        loss: The loss.
        tail: Pixelwise end of the model.
        metrics: Called once per strip; None without metrics.
        spatial: Number of spatial axes.
        channels: Channels of the prediction before `tail`, and of the labels.
    """

    def __init__(
        self,
        loss: LossOfSums,
        tail: Tail,
        metrics: Metrics | None,
        spatial: int,
        channels: Sequence[int],
    ) -> None:
        super().__init__(tail, metrics)
        self.loss = loss
        self.dtype = tf.as_dtype(loss.dtype)
        self.pixels = [[*[1] * spatial, n] for n in channels]

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor, ...]:
        """Return zeros."""
        sums, _ = self._sums([tf.zeros([batch, *pixel], self.dtype) for pixel in self.pixels])
        return tuple(tf.zeros_like(t) for t in sums)

    def _sums_of(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, ...]:
        sums = self.loss.sums(tf.cast(y_true, self.dtype), tf.cast(y_pred, self.dtype))
        return tuple(tf.cast(t, tf.float64) for t in sums)


class WeightSum(Reduce):
    """Sum of an image of weights, without a gradient.

    Args:
        dtype: Element type of the sum.
    """

    def __init__(self, dtype: tf.DType) -> None:
        self.dtype = dtype

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor]:
        """Return zero."""
        return (tf.zeros([], tf.float64),)

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor]:
        """Return the sum of a strip."""
        return (totals.total_of_all(tf.cast(inputs[0], self.dtype)),)

    def finalize(self, partial: tuple[tf.Tensor], pixels: Any) -> tf.Tensor:
        """Return the sum, a scalar."""
        return tf.cast(partial[0], self.dtype)

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[None]:
        """Return None: weights have no gradient."""
        return [None]


class MetricsOnly(Reduce):
    """Update of metrics with a prediction that has no loss; the result is zero.

    Args:
        metrics: Called once per strip.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor]:
        """Return zero."""
        return (tf.zeros([]),)

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor]:
        """Update the metrics with a strip, and return zero."""
        _update_metrics(self.metrics, inputs, inputs[0], strip)
        return (tf.zeros([]),)

    def finalize(self, partial: tuple[tf.Tensor], pixels: Any) -> tf.Tensor:
        """Return zero, a scalar."""
        return partial[0]

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[None]:
        """Return None for each input."""
        return [None] * len(inputs)


def values_of(
    loss: keras.losses.Loss, y_true: tf.Tensor, y_pred: tf.Tensor, spatial: int
) -> tf.Tensor:
    """Return the loss of every pixel, `[N, r, ...]`, as in `loss(y_true, y_pred)` before its mean."""
    dtype = tf.as_dtype(loss.dtype)
    y_pred = y_pred if y_pred.dtype == dtype else tf.cast(y_pred, dtype)
    y_true = y_true[..., 0] if isinstance(loss, WITHOUT_CHANNELS) else y_true
    values = loss.call(tf.cast(y_true, dtype), y_pred)
    mask = keras_internals.get_keras_mask(values)
    if mask is not None and getattr(loss, "ignore_class", None) is None:
        raise UnsupportedLayerError(
            f"loss '{loss.name}' ignores pixels by a Keras mask, which strips do not support; use "
            "keras.losses.SparseCategoricalCrossentropy(ignore_class=...) or sample weights."
        )
    if values.shape.rank is None or values.shape.rank <= spatial:
        raise UnsupportedLayerError(
            f"loss '{loss.name}' is not a mean over pixels (it returns shape {values.shape} for a strip); "
            "use a loss that returns one value per pixel, or keras.losses.Dice or Tversky."
        )
    return values


def _share(strip: Any, dtype: Any) -> tf.Tensor:
    """Return the share of the pixels of an image that a strip owns."""
    return tf.cast(prod((a.stop - a.start) / a.extent for a in strip.axes), dtype)


def _update_metrics(
    metrics: Metrics | None, x: list[tf.Tensor], y_pred: tf.Tensor, strip: Any
) -> None:
    """Update metrics with a strip; `x` are the inputs of a loss: prediction, target and optional weights."""
    if metrics is not None:
        share = _share(strip, keras.config.floatx())
        copies = {} if strip.copies is None else {"copies": strip.copies}
        metrics(x[1], y_pred, tf.fill(tf.shape(y_pred)[:1], share), *x[2:], **copies)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with the strip as a new first argument, compiled with XLA for strips of large images.

    Activation, loss and gradient are a dozen pixelwise operations; compiled as one they take a third of the time
    and no temporaries.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)

    def choose(strip: Any, x: tf.Tensor, *rest: tf.Tensor) -> Any:
        owned, extent = (
            prod(tf.cast(n, tf.int64) for n in numbers)
            for numbers in zip(*((a.stop - a.start, a.extent) for a in strip.axes), strict=True)
        )
        large = tf.size(x, tf.int64) * extent >= XLA_NUMBERS * owned
        return tf.cond(large, lambda: traces.call(compiled, x, *rest), lambda: function(x, *rest))

    return choose
