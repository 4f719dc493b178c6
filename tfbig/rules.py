"""How each Keras layer runs on a strip: its window and local function, or its reduction.

A rule is a function `(layer, graph, inputs, training) -> value id`. Adding a layer is adding one rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig import kernels, moments, phase, random
from tfbig.errors import UnsupportedLayerError
from tfbig.geometry import Interval, Resize, Transposed, Window
from tfbig.graph import Graph, Reduce

Rule = Callable[[Any, Graph, list[int], bool], int]
RULES: dict[type, Rule] = {}
layers = keras.layers


def rule(*kinds: type) -> Callable[[Rule], Rule]:
    """Registers a rule for layer classes and their subclasses."""

    def register(function: Rule) -> Rule:
        for kind in kinds:
            RULES[kind] = function
        return function

    return register


def find(layer: Any) -> Rule:
    """The rule of a layer.

    Raises:
        UnsupportedLayerError: no class of the layer has one.
    """
    for kind in type(layer).__mro__:
        if kind in RULES:
            return RULES[kind]
    raise UnsupportedLayerError(
        f"layer '{layer.name}' ({type(layer).__name__}) has no rule, so it cannot run strip by strip. "
        f"Supported are {', '.join(sorted(k.__name__ for k in RULES))} and their subclasses."
    )


def channels_last(layer: Any) -> None:
    """Refuses channels-first layers."""
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        raise UnsupportedLayerError(
            f"layer '{layer.name}' has data_format='channels_first'; strips need 'channels_last'. "
            "Build the model with data_format='channels_last'."
        )


def _image(layer: Any, graph: Graph, inputs: Sequence[int]) -> None:
    for i in inputs:
        if not graph.values[i].image:
            raise UnsupportedLayerError(
                f"layer '{layer.name}' ({type(layer).__name__}) works on images, but its input "
                f"'{graph.values[i].name}' is not an image [N, H, W, C]."
            )


def _pair(*arguments: Sequence[Any] | Any) -> Any:
    """Row and column items of several two-item arguments."""
    return zip(*((a, a) if isinstance(a, (int, str)) else a for a in arguments), strict=True)


def cast(graph: Graph, value: int, dtype: str) -> int:
    """The value in another element type; itself where it has that type or is whole."""
    known = graph.values[value]
    if known.dtype == dtype or not known.image:
        return value
    return graph.local(
        f"{known.name}/cast",
        lambda x, w, strip: tf.cast(x[0], dtype),
        [value],
        known.channels,
        dtype,
        pixelwise=True,
        cheap=True,
    )


def activation(graph: Graph, name: str, function: Any, value: int) -> int:
    """An activation function as a node of its own; nothing for None and linear."""
    if function in (None, keras.activations.linear):
        return value
    known = graph.values[value]
    across = function in (keras.activations.softmax, keras.activations.log_softmax)
    return graph.local(
        f"{name}/{getattr(function, '__name__', 'activation')}",
        lambda x, w, strip: function(x[0]),
        [value],
        known.channels,
        known.dtype or "float32",
        pixelwise=not across,
        cheap=True,
    )


def _windows(layer: Any, kernel: Sequence[int], dilation: Any = 1) -> tuple[Window, Window]:
    a, b = (
        Window(k, s, d, layer.padding)
        for k, s, d in _pair(tuple(kernel), tuple(layer.strides), dilation)
    )
    return a, b


def _linear(
    layer: Any,
    graph: Graph,
    value: int,
    function: Any,
    axes: Any,
    channels: int,
    kernel: Any,
    work: int,
    phased: Any = None,
) -> int:
    """A convolution of any kind with its bias and activation."""
    bias = [layer.bias] if layer.use_bias else []

    def run(x: list[tf.Tensor], w: list[tf.Tensor], strip: kernels.Strip) -> tf.Tensor:
        y = function(x[0], tf.cast(w[0], x[0].dtype), strip)
        return tf.nn.bias_add(y, tf.cast(w[1], y.dtype)) if bias else y

    dtype = layer.compute_dtype
    value = graph.local(
        f"{layer.name}/convolution",
        run,
        [cast(graph, value, dtype)],
        channels,
        dtype,
        [axes],
        [kernel, *bias],
        operations=2 * work,
        phase=phased,
    )
    return activation(graph, layer.name, layer.activation, value)


def _size(kernel: Any) -> int:
    count = 1
    for n in kernel.shape:
        count *= int(n)
    return count


@rule(layers.Conv2D)
def convolution(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    _image(layer, graph, inputs)
    axes = _windows(layer, layer.kernel_size, tuple(layer.dilation_rate))

    def run(x: tf.Tensor, kernel: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        return kernels.convolution(x, kernel, axes, layer.groups, strip)

    work = _size(layer.kernel)
    phased = phase.strided(layer.kernel, axes, layer.use_bias) if layer.groups == 1 else None
    return _linear(layer, graph, inputs[0], run, axes, layer.filters, layer.kernel, work, phased)


@rule(layers.DepthwiseConv2D)
def depthwise(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    _image(layer, graph, inputs)
    axes = _windows(layer, layer.kernel_size, tuple(layer.dilation_rate))

    def run(x: tf.Tensor, kernel: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        return kernels.depthwise_convolution(x, kernel, axes, strip)

    channels = graph.values[inputs[0]].channels * layer.depth_multiplier
    return _linear(layer, graph, inputs[0], run, axes, channels, layer.kernel, _size(layer.kernel))


@rule(layers.SeparableConv2D)
def separable(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    _image(layer, graph, inputs)
    axes = _windows(layer, layer.kernel_size, tuple(layer.dilation_rate))
    deep = layer.depthwise_kernel
    middle = graph.local(
        f"{layer.name}/depthwise",
        lambda x, w, strip: kernels.depthwise_convolution(
            x[0], tf.cast(w[0], x[0].dtype), axes, strip
        ),
        [cast(graph, inputs[0], layer.compute_dtype)],
        int(deep.shape[2] * deep.shape[3]),
        layer.compute_dtype,
        [axes],
        [deep],
        operations=2 * _size(deep),
    )
    point = (Window(), Window())

    def run(x: tf.Tensor, kernel: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        return kernels.convolution(x, kernel, point, 1, strip)

    kernel = layer.pointwise_kernel
    return _linear(layer, graph, middle, run, point, layer.filters, kernel, _size(kernel))


@rule(layers.Conv2DTranspose)
def transposed(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    _image(layer, graph, inputs)
    axes: Any = tuple(
        Transposed(k, s, d, layer.padding, p)
        for k, s, d, p in _pair(
            tuple(layer.kernel_size),
            tuple(layer.strides),
            tuple(layer.dilation_rate),
            (None, None) if layer.output_padding is None else layer.output_padding,
        )
    )

    def run(x: tf.Tensor, kernel: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        return kernels.transposed_convolution(x, kernel, axes, strip)

    work = _size(layer.kernel) // (axes[0].stride * axes[1].stride)
    phased = phase.transposed(layer.kernel, axes, layer.use_bias)
    return _linear(layer, graph, inputs[0], run, axes, layer.filters, layer.kernel, work, phased)


@rule(layers.Dense)
def dense(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    weights = [layer.kernel] + ([layer.bias] if layer.use_bias else [])

    def run(x: list[tf.Tensor], w: list[tf.Tensor], strip: Any = None) -> tf.Tensor:
        a = tf.cast(x[0], layer.compute_dtype)
        y = tf.matmul(tf.reshape(a, [-1, w[0].shape[0]]), tf.cast(w[0], a.dtype))
        y = tf.reshape(y, tf.concat([tf.shape(a)[:-1], [layer.units]], 0))
        y.set_shape([*a.shape[:-1], layer.units])
        return y + tf.cast(w[1], a.dtype) if layer.use_bias else y

    if graph.values[inputs[0]].image:
        value = cast(graph, inputs[0], layer.compute_dtype)
        value = graph.local(
            f"{layer.name}/product",
            run,
            [value],
            layer.units,
            layer.compute_dtype,
            weights=weights,
            operations=2 * _size(layer.kernel),
        )
        return activation(graph, layer.name, layer.activation, value)
    value = graph.whole(f"{layer.name}/product", run, inputs, weights)
    if layer.activation in (None, keras.activations.linear):
        return value
    return graph.whole(f"{layer.name}/activation", lambda x, w: layer.activation(x[0]), [value])


def _moments(shape: Callable[[Any], Any], axes: list[int], dtype: str, fold: Any) -> Reduce:
    """Moments over `axes` of `fold(x)`; `shape(batch)` is the shape of the result."""

    def partial(x: list[tf.Tensor], w: Any, strip: Any) -> moments.Moments:
        return moments.of(fold(x[0]), axes)

    def pullback(x: list[tf.Tensor], w: Any, strip: Any, result: Any, cotangent: Any) -> list[Any]:
        folded = fold(x[0])
        mean, d_mean, d_variance = (
            _expand(t, axes, folded) for t in (result[0], cotangent[0], cotangent[1])
        )
        dx = moments.pullback(folded, mean, d_mean, d_variance, result[2])
        return [tf.reshape(dx, tf.shape(x[0]))]

    def finalize(partial: moments.Moments, pixels: Any) -> tuple[Any, ...]:
        return (*moments.finalize(moments.Moments(*partial)), partial[0])

    return Reduce(
        lambda batch: moments.init(shape(batch), tf.as_dtype(dtype)),
        partial,
        lambda a, b: moments.merge(moments.Moments(*a), moments.Moments(*b)),
        finalize,
        pullback,
        operations=4,
    )


def _expand(t: tf.Tensor, axes: list[int], like: tf.Tensor) -> tf.Tensor:
    for axis in sorted(axes):
        t = tf.expand_dims(t, axis)
    return t


@rule(layers.BatchNormalization)
def batch_normalization(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    _image(layer, graph, inputs)
    value = cast(graph, inputs[0], layer.compute_dtype)
    known = graph.values[value]
    if layer.axis not in (-1, 3) or getattr(layer, "renorm", False):
        raise UnsupportedLayerError(
            f"layer '{layer.name}': BatchNormalization runs strip by strip over axis=-1 without renorm; "
            f"received axis={layer.axis}, renorm={getattr(layer, 'renorm', False)}."
        )
    streamed = training and layer.trainable
    if streamed:
        op = _moments(
            lambda batch: [known.channels], [0, 1, 2], known.dtype or "float32", lambda x: x
        )
        statistics = graph.reduce(f"{layer.name}/moments", op, [value])
        _moving(layer, graph, statistics)
    else:
        statistics = graph.whole(
            f"{layer.name}/moving",
            lambda x, w: tuple(w),
            [],
            [layer.moving_mean, layer.moving_variance],
        )
    affine = ([layer.gamma] if layer.scale else []) + ([layer.beta] if layer.center else [])

    def run(x: list[Any], w: list[tf.Tensor], strip: kernels.Strip) -> tf.Tensor:
        mean, variance = x[1][:2]
        w = list(w)
        return normalise(
            x[0],
            mean,
            variance,
            w.pop(0) if layer.scale else None,
            w.pop(0) if layer.center else None,
            layer.epsilon,
        )

    return graph.local(
        f"{layer.name}/normalise",
        run,
        [value, statistics],
        known.channels,
        layer.compute_dtype,
        weights=affine,
        cheap=True,
        operations=2 * known.channels,
    )


def _moving(layer: Any, graph: Graph, statistics: int) -> None:
    for variable, item in ((layer.moving_mean, 0), (layer.moving_variance, 1)):

        def update(old: tf.Tensor, new: Any, item: int = item) -> tf.Tensor:
            return old * layer.momentum + tf.cast(new[item], old.dtype) * (1.0 - layer.momentum)

        graph.updates.append((variable, statistics, update))


def normalise(
    x: tf.Tensor, mean: Any, variance: Any, gamma: Any, beta: Any, epsilon: float
) -> tf.Tensor:
    """`x * inv + (beta - mean * inv)` with `inv = rsqrt(variance + epsilon) * gamma`, in float32 or wider."""
    wide = moments.wide(x.dtype)
    mean, variance = tf.cast(mean, wide), tf.cast(variance, wide)
    inv = tf.math.rsqrt(variance + tf.constant(epsilon, wide))
    inv = inv if gamma is None else inv * tf.cast(gamma, wide)
    shift = -mean * inv if beta is None else tf.cast(beta, wide) - mean * inv
    return tf.cast(tf.cast(x, wide) * inv + shift, x.dtype)


@rule(layers.GroupNormalization)
def group_normalization(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    _image(layer, graph, inputs)
    if layer.axis not in (-1, 3):
        raise UnsupportedLayerError(
            f"layer '{layer.name}': GroupNormalization needs axis=-1, received axis={layer.axis}."
        )
    value = cast(graph, inputs[0], layer.compute_dtype)
    known, groups = graph.values[value], layer.groups

    def fold(x: tf.Tensor) -> tf.Tensor:
        split = tf.concat([tf.shape(x)[:3], [groups, known.channels // groups]], 0)
        return tf.reshape(x, split)  # [N, r, W, groups, C / groups]

    op = _moments(lambda batch: [batch, groups], [1, 2, 4], known.dtype or "float32", fold)
    statistics = graph.reduce(f"{layer.name}/moments", op, [value])
    affine = ([layer.gamma] if layer.scale else []) + ([layer.beta] if layer.center else [])

    def run(x: list[Any], w: list[tf.Tensor], strip: kernels.Strip) -> tf.Tensor:
        w = list(w)
        shape = [groups, known.channels // groups]
        gamma = tf.reshape(w.pop(0), shape) if layer.scale else None
        beta = tf.reshape(w.pop(0), shape) if layer.center else None
        mean, variance = (t[:, None, None, :, None] for t in x[1][:2])
        y = normalise(fold(x[0]), mean, variance, gamma, beta, layer.epsilon)
        return tf.reshape(y, tf.shape(x[0]))

    return graph.local(
        f"{layer.name}/normalise",
        run,
        [value, statistics],
        known.channels,
        layer.compute_dtype,
        weights=affine,
        cheap=True,
        operations=2 * known.channels,
    )


@rule(layers.LayerNormalization)
def layer_normalization(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    if axes not in ([-1], [3]):
        raise UnsupportedLayerError(
            f"layer '{layer.name}': LayerNormalization runs strip by strip over the channels, axis=-1; "
            f"received axis={layer.axis}. For statistics over the image use GroupNormalization(groups=1)."
        )
    return _per_pixel(layer, graph, inputs)


def call(layer: Any, inputs: Any, variables: Sequence[Any], weights: Sequence[tf.Tensor]) -> Any:
    """The layer's own `call` with other values for its variables, without training behaviour."""
    with keras.StatelessScope(state_mapping=list(zip(variables, weights, strict=True))):
        return _twin_call(layer)(inputs)


def _twin_call(layer: Any) -> Any:
    """`call` on a strip; that of a Big layer would cut the strip into strips again."""
    return getattr(layer, "twin_call", layer.call)


def _per_pixel(layer: Any, graph: Graph, inputs: list[int], **traits: Any) -> int:
    """A layer whose `call` treats every pixel alone."""
    _image(layer, graph, inputs)
    variables = list(layer.variables)
    value = cast(graph, inputs[0], layer.compute_dtype)
    return graph.local(
        layer.name,
        lambda x, w, strip: call(layer, x[0], variables, w),
        [value],
        graph.values[value].channels,
        layer.compute_dtype,
        weights=variables,
        cheap=True,
        **traits,
    )


@rule(layers.Activation, layers.ReLU, layers.LeakyReLU, layers.ELU, layers.Softmax)
def pixelwise_activation(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    if not graph.values[inputs[0]].image:
        return graph.whole(layer.name, lambda x, w: _twin_call(layer)(x[0]), inputs)
    if getattr(layer, "axis", -1) not in (-1, 3):
        raise UnsupportedLayerError(
            f"layer '{layer.name}': softmax over axis={layer.axis} needs the whole image; use axis=-1."
        )
    function = layer.activation if isinstance(layer, layers.Activation) else _twin_call(layer)
    value = cast(graph, inputs[0], layer.compute_dtype)
    across = isinstance(layer, layers.Softmax)
    if not across:
        return activation(graph, layer.name, function, value)
    return _per_pixel(layer, graph, inputs)


@rule(layers.Rescaling)
def rescaling(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    scalar = all(isinstance(v, (int, float)) for v in (layer.scale, layer.offset))
    return _per_pixel(layer, graph, inputs, pixelwise=scalar)


@rule(layers.Dropout)
def dropout(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    if not training or layer.rate == 0:
        return cast(graph, inputs[0], layer.compute_dtype)
    seed = graph.input(f"{layer.name}/seed", False)
    graph.seeds.append((seed, layer.seed_generator))
    if not graph.values[inputs[0]].image:
        return graph.whole(
            layer.name, lambda x, w: random.dropout_whole(x[0], layer.rate, x[1]), [inputs[0], seed]
        )
    if layer.noise_shape is not None and any(n == 1 for n in layer.noise_shape):
        raise UnsupportedLayerError(
            f"layer '{layer.name}': Dropout with noise_shape={layer.noise_shape} cannot run strip by strip; "
            "use noise_shape=None."
        )
    value = cast(graph, inputs[0], layer.compute_dtype)
    return graph.local(
        layer.name,
        lambda x, w, strip: random.dropout(x[0], layer.rate, x[1], strip.start),
        [value, seed],
        graph.values[value].channels,
        layer.compute_dtype,
        cheap=True,
    )


def _pooling(function: Any) -> Rule:
    def apply(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
        channels_last(layer)
        _image(layer, graph, inputs)
        axes = _windows(layer, layer.pool_size)
        value = cast(graph, inputs[0], layer.compute_dtype)
        known = graph.values[value]
        return graph.local(
            layer.name,
            lambda x, w, strip: function(x[0], axes, strip),
            [value],
            known.channels,
            layer.compute_dtype,
            [axes],
            operations=axes[0].kernel * axes[1].kernel * known.channels,
        )

    return apply


rule(layers.MaxPooling2D)(_pooling(kernels.max_pool))
rule(layers.AveragePooling2D)(_pooling(kernels.average_pool))


def _global(layer: Any, graph: Graph, inputs: list[int], op: Reduce) -> int:
    channels_last(layer)
    value = cast(graph, inputs[0], layer.compute_dtype)
    result = graph.reduce(f"{layer.name}/reduce", op, [value])
    shape = (lambda y: y[:, None, None, :]) if layer.keepdims else (lambda y: y)
    return graph.whole(layer.name, lambda x, w: shape(x[0][0]), [result])


@rule(layers.GlobalAveragePooling2D)
def global_average(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    _image(layer, graph, inputs)
    dtype = tf.as_dtype(layer.compute_dtype)
    wide, channels = moments.wide(dtype), graph.values[inputs[0]].channels

    def share(pixels: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.cast(pixels, tf.float64), wide)

    def pullback(x: list[Any], w: Any, strip: Any, result: Any, cotangent: Any) -> list[Any]:
        each = (tf.cast(cotangent[0], wide) / share(result[1]))[:, None, None, :]
        return [tf.cast(tf.broadcast_to(each, tf.shape(x[0])), x[0].dtype)]

    op = Reduce(
        lambda batch: (tf.zeros([batch, channels], wide),),
        lambda x, w, strip: (tf.reduce_sum(tf.cast(x[0], wide), [1, 2]),),
        lambda a, b: (a[0] + b[0],),
        lambda a, pixels: (tf.cast(a[0] / share(pixels), dtype), pixels),
        pullback,
        operations=channels,
    )
    return _global(layer, graph, inputs, op)


@rule(layers.GlobalMaxPooling2D)
def global_maximum(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    """Maximum and how many pixels attain it: the gradient is shared among them, as in TensorFlow."""
    _image(layer, graph, inputs)
    dtype = tf.as_dtype(layer.compute_dtype)
    channels = graph.values[inputs[0]].channels

    def ties(x: tf.Tensor, top: tf.Tensor) -> tf.Tensor:
        return tf.equal(x, top[:, None, None, :])  # `==` would lose the shape

    def partial(x: list[Any], w: Any, strip: Any) -> tuple[Any, Any]:
        top = tf.reduce_max(x[0], [1, 2])
        return top, tf.reduce_sum(tf.cast(ties(x[0], top), tf.int64), [1, 2])

    def merge(a: Any, b: Any) -> tuple[Any, Any]:
        top = tf.maximum(a[0], b[0])
        first, second = (tf.where(tf.equal(p[0], top), p[1], 0) for p in (a, b))
        return top, first + second

    def pullback(x: list[Any], w: Any, strip: Any, result: Any, cotangent: Any) -> list[Any]:
        chosen = tf.cast(ties(x[0], result[0]), dtype)
        counts, gradient = (t[:, None, None, :] for t in (result[1], cotangent[0]))
        return [chosen / tf.cast(counts, dtype) * gradient]  # rounded as in TensorFlow

    op = Reduce(
        lambda batch: (
            tf.fill([batch, channels], dtype.min),
            tf.zeros([batch, channels], tf.int64),
        ),
        partial,
        merge,
        lambda a, pixels: tuple(a),
        pullback,
        operations=channels,
    )
    return _global(layer, graph, inputs, op)


@rule(layers.UpSampling2D)
def upsampling(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    _image(layer, graph, inputs)
    axes: Any
    function: Any
    if layer.interpolation == "nearest":
        axes, function = tuple(Transposed(f, f) for f in layer.size), kernels.repeat
    elif layer.interpolation == "bilinear":
        axes, function = tuple(Resize(f) for f in layer.size), kernels.bilinear
    else:
        raise UnsupportedLayerError(
            f"layer '{layer.name}': interpolation='{layer.interpolation}' has no strip form; "
            "use 'nearest' or 'bilinear'."
        )
    return _geometric(layer, graph, inputs[0], axes, lambda x, strip: function(x, axes, strip))


def _geometric(layer: Any, graph: Graph, value: int, axes: Any, function: Any) -> int:
    value = cast(graph, value, layer.compute_dtype)
    return graph.local(
        layer.name,
        lambda x, w, strip: function(x[0], strip),
        [value],
        graph.values[value].channels,
        layer.compute_dtype,
        [axes],
        cheap=True,
    )


@rule(layers.ZeroPadding2D)
def zero_padding(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    _image(layer, graph, inputs)
    axes = tuple(_Padding(padding=tuple(p)) for p in layer.padding)
    (above, _), sides = layer.padding

    def run(x: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        return kernels.fit_rows(x, strip.inputs[0].start + above, strip, sides)

    return _geometric(layer, graph, inputs[0], axes, run)


class _Padding(Window):
    """Rows of zeros; a strip of nothing else still reads one row of the image, to start from."""

    def needs(self, rows: Interval, size: int) -> Interval:
        start, stop = super().needs(rows, size)
        return Interval(min(start, size - 1), max(stop, 1))


@rule(layers.Cropping2D)
def cropping(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    _image(layer, graph, inputs)
    axes = tuple(Window(padding=(-a, -b)) for a, b in layer.cropping)
    left, right = layer.cropping[1]
    run = lambda x, strip: x[:, :, left : tf.shape(x)[2] - right]  # noqa: E731
    return _geometric(layer, graph, inputs[0], axes, run)


@rule(layers.Add, layers.Subtract, layers.Multiply, layers.Average, layers.Maximum, layers.Minimum)
def merge(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    if not any(graph.values[i].image for i in inputs):
        return graph.whole(layer.name, lambda x, w: layer._merge_function(x), inputs)
    inputs = [cast(graph, i, layer.compute_dtype) for i in inputs]
    channels = max(graph.values[i].channels for i in inputs)
    return graph.local(
        layer.name,
        lambda x, w, strip: layer._merge_function(list(x)),
        inputs,
        channels,
        layer.compute_dtype,
        cheap=True,
        operations=channels * (len(inputs) - 1),
    )


@rule(layers.Concatenate)
def concatenate(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    if not any(graph.values[i].image for i in inputs):
        return graph.whole(layer.name, lambda x, w: tf.concat(x, layer.axis), inputs)
    _image(layer, graph, inputs)
    if layer.axis not in (-1, 3):
        raise UnsupportedLayerError(
            f"layer '{layer.name}': Concatenate runs strip by strip over the channels, axis=-1; "
            f"received axis={layer.axis}."
        )
    inputs = [cast(graph, i, layer.compute_dtype) for i in inputs]
    return graph.local(
        layer.name,
        lambda x, w, strip: tf.concat(x, -1),
        inputs,
        sum(graph.values[i].channels for i in inputs),
        layer.compute_dtype,
        cheap=True,
    )


@rule(layers.Identity, layers.InputLayer)
def identity(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    return cast(graph, inputs[0], layer.compute_dtype)
