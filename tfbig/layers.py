"""Keras layers that run strip by strip, each as a plan of one node.

Every layer has the signature, defaults, weights and config of its Keras twin, and one more argument, keyword-only:

    max_elements: Most input elements of a strip (max_N in the paper), over the whole batch and without its halo; a
        strip has at least one row. None, the default, allows `MAX_ELEMENTS`, 64 MiB of float32.

Weights can be copied in both directions with `get_weights` and `set_weights`.

Memory: inputs, outputs and their gradients are whole in host memory, `4 * N * H * W * C` bytes each in float32. The
device holds two strips at a time, of at most `max_elements` input elements each, with halo, outputs and gradients.

Exactness: results are bitwise equal to those of the twin where sums are exact (integers), otherwise equal up to the
order of summation (float64: relative 1e-10).

Images have the shape `[N, H, W, C]`, channels last. Inputs of another rank, and calls inside
`keras.Layer.stateless_call`, run in plain Keras.

Source: Big-Layers, section 3; these have bias, groups, any stride and dilation, and both paddings in addition.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine.bound_program import BoundProgram
from tfbig.engine.program import Program
from tfbig.network import keras_reader
from tfbig.network.attention_pooling import AttentionPooling as AttentionPooling
from tfbig.network.graph import Graph
from tfbig.network.instances import Instances as Instances
from tfbig.plan.limits import Limits
from tfbig.plan.planner import Planner
from tfbig.plan.prepared_graph import Options
from tfbig.system import backend, keras_internals, replication, tf_errors
from tfbig.system.budget import DEFAULT_STRIPS

MAX_ELEMENTS = 2**24
"""Default `max_elements`: 64 MiB of float32."""

__all__ = [
    "AttentionPooling",
    "BigActivation",
    "BigAdd",
    "BigAveragePooling2D",
    "BigBatchNormalization",
    "BigConcatenate",
    "BigConv2D",
    "BigConv2DTranspose",
    "BigCropping2D",
    "BigDense",
    "BigDepthwiseConv2D",
    "BigDropout",
    "BigGlobalAveragePooling2D",
    "BigGlobalMaxPooling2D",
    "BigGroupNormalization",
    "BigLayerNormalization",
    "BigMaxPooling2D",
    "BigMultiply",
    "BigReLU",
    "BigSeparableConv2D",
    "BigUpSampling2D",
    "BigZeroPadding2D",
    "Instances",
]


class Streamed(tf_errors.UnwrappedCall):
    """Mixin that makes a Keras layer run strip by strip; it comes before the twin among the base classes.

    Args:
        *args: Arguments of the twin.
        max_elements: Most input elements of a strip; None allows `MAX_ELEMENTS`.
        **kwargs: Keyword arguments of the twin.

    Raises:
        ValueError: `max_elements` is not a positive integer.
    """

    def __init__(self, *args: Any, max_elements: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        replication.check()
        if max_elements is not None and not (isinstance(max_elements, int) and max_elements > 0):
            raise ValueError(
                "Invalid value for argument `max_elements`. Expected a positive integer or None. "
                f"Received: max_elements={max_elements}"
            )
        self.max_elements = max_elements
        self.supports_jit = False  # strips come from the host
        self.autocast = False  # strips are cast, not the whole image
        self._programs: dict[Any, Program | None] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register a Big layer with Keras, and set its signature."""
        super().__init_subclass__(**kwargs)
        if Streamed in cls.__bases__:  # not for subclasses that users write
            cls.__signature__ = _signature(_twin(cls))  # type: ignore[attr-defined]
            keras.saving.register_keras_serializable(package="tfbig")(cls)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Compute the output for an image `[N, H, W, C]`, or a list of images."""
        tensors = [tf.convert_to_tensor(t) for t in keras.tree.flatten(inputs)]
        if keras_internals.in_stateless_scope() or not any(t.shape.rank == 4 for t in tensors):
            return self._plain(inputs, training)  # values replace the variables, or no image
        program = self._program(bool(training), tensors)
        if program is None:
            return self._plain(inputs, training)
        return BoundProgram(program, tensors).outputs()[0]

    def _plain(self, inputs: Any, training: bool | None) -> Any:
        """Run the twin on the whole input."""
        has_training = "training" in inspect.signature(self.twin_call).parameters
        inputs = keras.tree.map_structure(lambda t: tf.cast(t, self.compute_dtype), inputs)  # type: ignore[attr-defined]
        return self.twin_call(inputs, **({"training": training} if has_training else {}))

    @property
    def twin_call(self) -> Any:
        """Method `call` of the twin."""
        return super().call  # type: ignore[misc]

    def _program(self, training: bool, tensors: list[tf.Tensor]) -> Program | None:
        """The program of the layer; None if it does nothing (dropout in inference, a linear activation)."""
        shapes = tuple((t.dtype, t.shape.rank, t.shape[-1]) for t in tensors)
        key = (training and self.trainable, shapes)  # type: ignore[attr-defined]
        if key not in self._programs:
            graph = Graph()
            inputs = [
                graph.input(f"{self.name}/input", t.shape.rank == 4, int(t.shape[-1]), t.dtype.name)  # type: ignore[attr-defined]
                for t in tensors
            ]
            specs = [keras.KerasTensor(t.shape, t.dtype.name) for t in tensors]
            output = self.compute_output_spec(specs if len(specs) > 1 else specs[0])
            graph.outputs = keras_reader.read_call(
                graph, self, inputs, specs, [output], training, kind=_twin(type(self))
            )
            self._programs[key] = self._planned(graph) if graph.nodes else None
        return self._programs[key]

    def _planned(self, graph: Graph) -> Program:
        """Plan a graph of one layer."""
        options = Options(
            name=self.name,  # type: ignore[attr-defined]
            max_elements=self.max_elements or MAX_ELEMENTS,
        )
        device = backend.accelerator()
        graph.even = device is not None
        planner = Planner(graph, Limits(DEFAULT_STRIPS), options)
        return Program(graph, planner, [device])

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """The shape and dtype of the output without running the layer."""
        shape = keras.tree.map_structure(lambda t: t.shape, args[0])
        return keras.KerasTensor(self.compute_output_shape(shape), dtype=self.compute_dtype)  # type: ignore[attr-defined]

    def get_config(self) -> dict[str, Any]:
        """The config of the twin and `max_elements`."""
        return {**super().get_config(), "max_elements": self.max_elements}  # type: ignore[misc]


def _twin(kind: type) -> type:
    """The Keras class of a Big layer, or of a subclass of one."""
    return kind.__mro__[kind.__mro__.index(tf_errors.UnwrappedCall) + 1]


def _signature(twin: type) -> inspect.Signature:
    """The signature of the twin, with `max_elements` added as keyword-only."""
    signature = inspect.signature(twin)
    parameters = list(signature.parameters.values())
    extra = inspect.Parameter("max_elements", inspect.Parameter.KEYWORD_ONLY, default=None)
    variadic = [p for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD]
    return signature.replace(
        parameters=[p for p in parameters if p not in variadic] + [extra, *variadic]
    )


class BigConv2D(Streamed, keras.layers.Conv2D):
    """2D convolution that runs strip by strip; twin of `keras.layers.Conv2D`.

    Input `[N, H, W, C]`, output `[N, H2, W2, filters]`, with bias, groups, any stride and dilation, and both
    paddings. A strip reads `(kernel_size - strides)` rows of halo, dilation included, which its neighbours own.

    Memory: `4 * N * (H * W * C + H2 * W2 * filters)` bytes of host memory in float32, twice that with gradients.
    Exact: bitwise equal to the twin for integers, else up to the order of summation.

    Args:
        *args, **kwargs: Arguments of `keras.layers.Conv2D`, such as `filters` and `kernel_size`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> settings = {"padding": "same", "kernel_initializer": "ones"}
        >>> layer = tfbig.layers.BigConv2D(4, 3, max_elements=4096, **settings)
        >>> x = np.random.default_rng(0).integers(-3, 4, (1, 64, 48, 3)).astype("float32")
        >>> layer(x).shape, bool(np.all(layer(x) == keras.layers.Conv2D(4, 3, **settings)(x)))
        (TensorShape([1, 64, 48, 4]), True)
    """


class BigDepthwiseConv2D(Streamed, keras.layers.DepthwiseConv2D):
    """Depthwise 2D convolution that runs strip by strip; twin of `keras.layers.DepthwiseConv2D`.

    Input `[N, H, W, C]`, output `[N, H2, W2, C * depth_multiplier]`. Memory: `4 * N * (H * W + H2 * W2 *
    depth_multiplier) * C` bytes of host memory in float32, twice that with gradients. Exact: bitwise equal to the
    twin for integers, else up to the order of summation.

    Args:
        *args, **kwargs: Arguments of `keras.layers.DepthwiseConv2D`, such as `kernel_size`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigDepthwiseConv2D(3, depth_multiplier=2, max_elements=4096)
        >>> layer(np.ones((1, 64, 48, 3), "float32")).shape
        TensorShape([1, 62, 46, 6])
    """


class BigSeparableConv2D(Streamed, keras.layers.SeparableConv2D):
    """Separable 2D convolution that runs strip by strip; twin of `keras.layers.SeparableConv2D`.

    Input `[N, H, W, C]`, output `[N, H2, W2, filters]`. The image between the depthwise and the pointwise step
    exists only as strips.

    Memory: `4 * N * (H * W * C + H2 * W2 * filters)` bytes of host memory in float32, twice that with gradients.
    Exact: bitwise equal to the twin for integers, else up to the order of summation.

    Args:
        *args, **kwargs: Arguments of `keras.layers.SeparableConv2D`, such as `filters` and `kernel_size`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigSeparableConv2D(4, 3, padding="same", max_elements=4096)
        >>> layer(np.ones((1, 64, 48, 3), "float32")).shape
        TensorShape([1, 64, 48, 4])
    """


class BigConv2DTranspose(Streamed, keras.layers.Conv2DTranspose):
    """Transposed 2D convolution that runs strip by strip; twin of `keras.layers.Conv2DTranspose`.

    Input `[N, H, W, C]`, output `[N, H2, W2, filters]`, about `strides` times as high and wide.

    Memory: `4 * N * (H * W * C + H2 * W2 * filters)` bytes of host memory in float32, twice that with gradients.
    Exact: bitwise equal to the twin for integers, else up to the order of summation.

    Args:
        *args, **kwargs: Arguments of `keras.layers.Conv2DTranspose`, such as `filters` and `kernel_size`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigConv2DTranspose(4, 2, strides=2, max_elements=4096)
        >>> layer(np.ones((1, 32, 24, 3), "float32")).shape
        TensorShape([1, 64, 48, 4])
    """


class BigDense(Streamed, keras.layers.Dense):
    """Dense layer over the channels of every pixel that runs strip by strip; twin of `keras.layers.Dense`.

    Input `[N, H, W, C]`, output `[N, H, W, units]`; inputs of another rank, such as `[N, C]`, run in plain Keras.

    Memory: `4 * N * H * W * (C + units)` bytes of host memory in float32, twice that with gradients. Exact: bitwise
    equal to the twin for integers, else up to the order of summation.

    Args:
        *args, **kwargs: Arguments of `keras.layers.Dense`, such as `units`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigDense(5, max_elements=4096)
        >>> layer(np.ones((1, 64, 48, 3), "float32")).shape
        TensorShape([1, 64, 48, 5])
    """


class BigBatchNormalization(Streamed, keras.layers.BatchNormalization):
    """Batch normalisation with statistics of the whole batch; twin of `keras.layers.BatchNormalization`.

    Input and output `[N, H, W, C]`. In training it runs two sweeps: the first merges the moments of the strips by
    count, mean and sum of squares (`tfbig.ops.moments`), the second normalises. Moving statistics are updated as in
    Keras (biased variance).

    Memory: `8 * N * H * W * C` bytes of host memory in float32, twice that with gradients. Exact: equal to the twin
    up to the order of summation (float64: relative 1e-10). Statistics are float32 or wider.

    Args:
        *args, **kwargs: Arguments of `keras.layers.BatchNormalization`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigBatchNormalization(momentum=0.0, max_elements=4096)
        >>> x = np.random.default_rng(0).normal(5.0, 2.0, (2, 64, 48, 3)).astype("float32")
        >>> y = layer(x, training=True)
        >>> np.allclose(layer.moving_mean, x.mean((0, 1, 2)), rtol=1e-5)
        True
    """


class BigLayerNormalization(Streamed, keras.layers.LayerNormalization):
    """Layer normalisation over the channels, strip by strip; twin of `keras.layers.LayerNormalization`.

    Input and output `[N, H, W, C]`; `axis` must be -1. Memory: `8 * N * H * W * C` bytes of host memory in float32,
    twice that with gradients. Exact: equal to the twin up to rounding (float64: relative 1e-10).

    Args:
        *args, **kwargs: Arguments of `keras.layers.LayerNormalization`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigLayerNormalization(max_elements=4096)
        >>> x = np.random.default_rng(0).normal(5.0, 2.0, (1, 64, 48, 8)).astype("float32")
        >>> np.allclose(np.mean(layer(x), axis=-1), 0, atol=1e-4)
        True
    """


class BigGroupNormalization(Streamed, keras.layers.GroupNormalization):
    """Group normalisation with statistics of every whole image; twin of `keras.layers.GroupNormalization`.

    Input and output `[N, H, W, C]`. It runs two sweeps: the first merges the moments of the strips of each image
    and group, the second normalises.

    Memory: `8 * N * H * W * C` bytes of host memory in float32, twice that with gradients. Exact: equal to the twin
    up to the order of summation (float64: relative 1e-10). Statistics are float32 or wider.

    Args:
        *args, **kwargs: Arguments of `keras.layers.GroupNormalization`, such as `groups`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigGroupNormalization(2, max_elements=4096)
        >>> x = np.random.default_rng(0).normal(5.0, 2.0, (1, 64, 48, 4)).astype("float32")
        >>> y = np.reshape(layer(x), (64, 48, 2, 2))
        >>> np.allclose(y.mean((0, 1, 3)), 0, atol=1e-4)
        True
    """


class BigMaxPooling2D(Streamed, keras.layers.MaxPooling2D):
    """Max pooling that runs strip by strip; twin of `keras.layers.MaxPooling2D`.

    Input `[N, H, W, C]`, output `[N, H2, W2, C]`, about `1 / strides` as high and wide.

    Memory: `4 * N * (H * W + H2 * W2) * C` bytes of host memory in float32, twice that with gradients. Exact:
    bitwise equal to the twin.

    Args:
        *args, **kwargs: Arguments of `keras.layers.MaxPooling2D`, such as `pool_size`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigMaxPooling2D(2, max_elements=1024)
        >>> x = np.arange(64 * 48, dtype="float32").reshape(1, 64, 48, 1)
        >>> y = layer(x)
        >>> y.shape, float(y[0, 0, 0, 0])
        (TensorShape([1, 32, 24, 1]), 49.0)
    """


class BigAveragePooling2D(Streamed, keras.layers.AveragePooling2D):
    """Average pooling that runs strip by strip; twin of `keras.layers.AveragePooling2D`.

    Input `[N, H, W, C]`, output `[N, H2, W2, C]`. With `padding="same"`, a window at the border is divided by the
    number of pixels inside the image, as in Keras.

    Memory: `4 * N * (H * W + H2 * W2) * C` bytes of host memory in float32, twice that with gradients. Exact: equal
    to the twin up to the order of summation (float64: relative 1e-10).

    Args:
        *args, **kwargs: Arguments of `keras.layers.AveragePooling2D`, such as `pool_size`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigAveragePooling2D(2, max_elements=1024)
        >>> x = np.arange(64 * 48, dtype="float32").reshape(1, 64, 48, 1)
        >>> float(layer(x)[0, 0, 0, 0])  # of 0, 1, 48 and 49
        24.5
    """


class BigGlobalAveragePooling2D(Streamed, keras.layers.GlobalAveragePooling2D):
    """Global average pooling, strip by strip; twin of `keras.layers.GlobalAveragePooling2D`.

    Input `[N, H, W, C]`, output `[N, C]`, or `[N, 1, 1, C]` with `keepdims=True`. Memory: `4 * N * H * W * C` bytes
    of host memory in float32, twice that with gradients. Exact: equal to the twin up to the order of summation
    (float64: relative 1e-10); sums are float32 or wider.

    Args:
        *args, **kwargs: Arguments of `keras.layers.GlobalAveragePooling2D`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigGlobalAveragePooling2D(max_elements=1024)
        >>> x = np.arange(64 * 48, dtype="float32").reshape(1, 64, 48, 1)
        >>> layer(x).numpy()
        array([[1535.5]], dtype=float32)
    """


class BigGlobalMaxPooling2D(Streamed, keras.layers.GlobalMaxPooling2D):
    """Global max pooling, strip by strip; twin of `keras.layers.GlobalMaxPooling2D`.

    Input `[N, H, W, C]`, output `[N, C]`, or `[N, 1, 1, C]` with `keepdims=True`. Equal maxima share the gradient,
    as in Keras.

    Memory: `4 * N * H * W * C` bytes of host memory in float32, twice that with gradients. Exact: bitwise equal to
    the twin.

    Args:
        *args, **kwargs: Arguments of `keras.layers.GlobalMaxPooling2D`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigGlobalMaxPooling2D(max_elements=1024)
        >>> x = np.arange(64 * 48, dtype="float32").reshape(1, 64, 48, 1)
        >>> layer(x).numpy()
        array([[3071.]], dtype=float32)
    """


class BigUpSampling2D(Streamed, keras.layers.UpSampling2D):
    """Upsampling, nearest or bilinear, strip by strip; twin of `keras.layers.UpSampling2D`.

    Input `[N, H, W, C]`, output `[N, size[0] * H, size[1] * W, C]`. Memory: `4 * N * H * W * C * (1 + size[0] *
    size[1])` bytes of host memory in float32, twice that with gradients. Exact: bitwise equal to the twin for
    integers, else up to the order of summation.

    Args:
        *args, **kwargs: Arguments of `keras.layers.UpSampling2D`, such as `size`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigUpSampling2D((2, 3), max_elements=1024)
        >>> layer(np.ones((1, 64, 48, 1), "float32")).shape
        TensorShape([1, 128, 144, 1])
    """


class BigZeroPadding2D(Streamed, keras.layers.ZeroPadding2D):
    """Zero padding that runs strip by strip; twin of `keras.layers.ZeroPadding2D`.

    Input `[N, H, W, C]`, output `[N, H + top + bottom, W + left + right, C]`. Memory: `4 * N * C` bytes of host
    memory per pixel of input and output in float32, twice that with gradients. Exact: bitwise equal to the twin.

    Args:
        *args, **kwargs: Arguments of `keras.layers.ZeroPadding2D`, such as `padding`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigZeroPadding2D(((1, 2), (0, 3)), max_elements=1024)
        >>> layer(np.ones((1, 64, 48, 1), "float32")).shape
        TensorShape([1, 67, 51, 1])
    """


class BigCropping2D(Streamed, keras.layers.Cropping2D):
    """Cropping that runs strip by strip; twin of `keras.layers.Cropping2D`.

    Input `[N, H, W, C]`, output `[N, H - top - bottom, W - left - right, C]`. Memory: `4 * N * C` bytes of host
    memory per pixel of input and output in float32, twice that with gradients. Exact: bitwise equal to the twin.

    Args:
        *args, **kwargs: Arguments of `keras.layers.Cropping2D`, such as `cropping`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigCropping2D(((1, 2), (0, 3)), max_elements=1024)
        >>> layer(np.ones((1, 64, 48, 1), "float32")).shape
        TensorShape([1, 61, 45, 1])
    """


class BigActivation(Streamed, keras.layers.Activation):
    """Activation function that runs strip by strip; twin of `keras.layers.Activation`.

    Input and output `[N, H, W, C]`. The function must treat every pixel independently; softmax over the channels
    does.

    Memory: `8 * N * H * W * C` bytes of host memory in float32, twice that with gradients. Exact: equal to the twin
    up to rounding (float64: relative 1e-10).

    Args:
        *args, **kwargs: Arguments of `keras.layers.Activation`, such as `activation`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigActivation("sigmoid", max_elements=1024)
        >>> float(layer(np.zeros((1, 64, 48, 1), "float32"))[0, 9, 9, 0])
        0.5
    """


class BigReLU(Streamed, keras.layers.ReLU):
    """Rectified linear unit that runs strip by strip; twin of `keras.layers.ReLU`.

    Input and output `[N, H, W, C]`. Memory: `8 * N * H * W * C` bytes of host memory in float32, twice that with
    gradients. Exact: bitwise equal to the twin.

    Args:
        *args, **kwargs: Arguments of `keras.layers.ReLU`, such as `max_value`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> layer = tfbig.layers.BigReLU(max_elements=1024)
        >>> x = np.arange(-8, 64 * 48 - 8, dtype="float32").reshape(1, 64, 48, 1)
        >>> layer(x)[0, 0, 6:10, 0].numpy()
        array([0., 0., 0., 1.], dtype=float32)
    """


class BigDropout(Streamed, keras.layers.Dropout):
    """Dropout that runs strip by strip; twin of `keras.layers.Dropout`.

    Input and output `[N, H, W, C]`. The mask depends on the seed and the position of an element, not on the strips,
    and is computed again in the backward pass instead of being stored.

    Memory: `8 * N * H * W * C` bytes of host memory in float32, twice that with gradients. Exact: the same mask for
    any strips, but not the mask that the twin draws.

    Args:
        *args, **kwargs: Arguments of `keras.layers.Dropout`, such as `rate` and `seed`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> x = np.ones((1, 64, 48, 2), "float32")
        >>> whole = tfbig.layers.BigDropout(0.3, seed=1)(x, training=True)
        >>> strips = tfbig.layers.BigDropout(0.3, seed=1, max_elements=1024)(x, training=True)
        >>> bool(np.all(whole == strips)), round(float(np.mean(whole == 0)), 1)
        (True, 0.3)
    """


class BigAdd(Streamed, keras.layers.Add):
    """Sum of images that runs strip by strip; twin of `keras.layers.Add`.

    Inputs: `k` images `[N, H, W, C]`; output `[N, H, W, C]`. Memory: `4 * (k + 1) * N * H * W * C` bytes of host
    memory in float32, twice that with gradients. Exact: bitwise equal to the twin.

    Args:
        *args, **kwargs: Arguments of `keras.layers.Add`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> x = np.ones((1, 64, 48, 1), "float32")
        >>> float(tfbig.layers.BigAdd(max_elements=1024)([x, 2 * x])[0, 9, 9, 0])
        3.0
    """


class BigMultiply(Streamed, keras.layers.Multiply):
    """Product of images that runs strip by strip; twin of `keras.layers.Multiply`.

    Inputs: `k` images `[N, H, W, C]`; output `[N, H, W, C]`. Memory: `4 * (k + 1) * N * H * W * C` bytes of host
    memory in float32, twice that with gradients. Exact: bitwise equal to the twin.

    Args:
        *args, **kwargs: Arguments of `keras.layers.Multiply`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> x = np.full((1, 64, 48, 1), 3.0, "float32")
        >>> float(tfbig.layers.BigMultiply(max_elements=1024)([x, 2 * x])[0, 9, 9, 0])
        18.0
    """


class BigConcatenate(Streamed, keras.layers.Concatenate):
    """Concatenation that runs strip by strip; twin of `keras.layers.Concatenate`.

    Inputs: images `[N, H, W, C1]`, `[N, H, W, C2]`, ...; output `[N, H, W, C1 + C2 + ...]`. With `axis` 1 or 2, rows or
    columns are joined instead.

    Memory: `8 * N * H * W * (C1 + C2 + ...)` bytes of host memory in float32, twice that with gradients. Exact:
    bitwise equal to the twin.

    Args:
        *args, **kwargs: Arguments of `keras.layers.Concatenate`.
        max_elements: Most input elements of a strip on the device, 2**24 by default.

    Example:
        >>> x = np.ones((1, 64, 48, 1), "float32")
        >>> tfbig.layers.BigConcatenate(max_elements=1024)([x, x, x]).shape
        TensorShape([1, 64, 48, 3])
    """


ALL = [c for c in list(globals().values()) if isinstance(c, type) and issubclass(c, Streamed)][1:]
"""Every Big layer."""
