"""The idea of Big layers in one file: a convolution and BatchNormalization by `tf.custom_gradient`, strip by strip.

    python examples/custom_layer.py

`big_conv2d` and `big_batch_norm` are Algorithms 2, 3 and 4 of the paper Big-Layers, one function for each pass. An
image stays on the host; strips of its rows visit the device, one after another. Two Keras layers use them, a model of
these layers is trained with `fit`, and the script ends by printing how far its weights are from those of plain Keras.

`tfbig.layers` has the layers to use: they also take dilation, groups and mixed precision, work on strips while the next
one is read, and do not copy an image that is on the device already. There, `tfbig/engine/program.py` has the
`tf.custom_gradient`, one for a whole plan of layers.
"""

"""## Setup"""

from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

HOST = "/CPU:0"
DEVICE = "/GPU:0" if tf.config.list_physical_devices("GPU") else HOST


def strips(rows: int, elements_of_a_row: int, max_elements: int) -> Iterator[tuple[int, int]]:
    """Yield `(start, stop)` of strips of rows: at most `max_elements` of an image in each, but at least one row."""
    height = max(1, max_elements // elements_of_a_row)
    for start in range(0, rows, height):
        yield start, min(start + height, rows)


"""
## Convolution: Algorithms 3 and 4

An output row needs as many input rows as the kernel is high. Strips of output rows therefore read input rows that
overlap, the halo; what lies above or below the image is zero. In the backward pass, every strip adds its part to the
gradient of the kernel and to the gradient of its input rows; the rows that the next strip reads too wait for it.
"""


def big_conv2d(x: tf.Tensor, kernel: tf.Tensor, stride: int, max_elements: int) -> tf.Tensor:
    """Return the convolution of images `[N, H, W, C]` with a kernel `[h, w, C, D]`, with padding "same"."""
    sides = x.shape[1:3]
    outputs = [-(-n // stride) for n in sides]
    padding = [
        max((o - 1) * stride + k - n, 0)
        for n, o, k in zip(sides, outputs, kernel.shape[:2], strict=True)
    ]
    top, left = padding[0] // 2, padding[1] // 2
    parts = list(strips(outputs[0], x.shape[2] * x.shape[3] * stride, max_elements))

    def rows_of(start: int, stop: int) -> tuple[int, int]:
        """Return the input rows of output rows; they may begin above the image and end below it."""
        last = max((stop - 1) * stride + kernel.shape[0], stop * stride)
        return start * stride - top, last - top

    def patch(x: tf.Tensor, first: int, last: int) -> tf.Tensor:
        """Return input rows on the device, with zeros for what lies outside the image."""
        inside = tf.identity(x[:, max(first, 0) : min(last, sides[0])])
        outside = [[max(-first, 0), max(last - sides[0], 0)], [left, padding[1] - left]]
        return tf.pad(inside, [[0, 0], *outside, [0, 0]])

    @tf.custom_gradient
    def convolution(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, object]:
        ys = []
        for start, stop in parts:  # Algorithm 3
            with tf.device(DEVICE):
                y = tf.nn.conv2d(patch(x, *rows_of(start, stop)), kernel, stride, "VALID")
            with tf.device(HOST):
                ys.append(tf.identity(y))

        def backward(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            dx, waiting = [], tf.zeros_like(x[:, :0])
            dkernel = tf.zeros_like(kernel)
            for start, stop in parts:  # Algorithm 4
                first, last = rows_of(start, stop)
                with tf.device(DEVICE):
                    strip, dy_strip = patch(x, first, last), tf.identity(dy[:, start:stop])
                    dkernel += tf.raw_ops.Conv2DBackpropFilter(
                        input=strip,
                        filter_sizes=kernel.shape,
                        out_backprop=dy_strip,
                        strides=[1, stride, stride, 1],
                        padding="VALID",
                    )
                    dstrip = tf.nn.conv2d_transpose(
                        dy_strip, kernel, tf.shape(strip), stride, "VALID"
                    )
                with tf.device(HOST):
                    top_row, shared = max(first, 0), waiting.shape[1]
                    rows = dstrip[:, top_row - first : min(last, sides[0]) - first]
                    rows = rows[:, :, left : left + sides[1]]
                    rows = tf.concat([rows[:, :shared] + waiting, rows[:, shared:]], 1)
                    is_last = stop == outputs[0]
                    finished = sides[0] if is_last else max(rows_of(stop, stop + 1)[0], 0)
                    dx.append(rows[:, : finished - top_row])
                    waiting = rows[:, finished - top_row :]
            return tf.concat(dx, 1), dkernel

        return tf.concat(ys, 1), backward

    return convolution(x, kernel)


"""
## BatchNormalization: Algorithm 2

The statistics of an image are those of all strips, so the strips visit the device twice: first for the mean and the
variance, by Welford's algorithm, then to be normalised. So does the backward pass: first for two sums over the image,
then for the gradient of each strip.
"""


def big_batch_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, max_elements: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return images `[N, H, W, C]` of mean `beta` and standard deviation `gamma`, and the mean and variance before."""
    parts = list(strips(x.shape[1], x.shape[2] * x.shape[3], max_elements))
    total = tf.cast(tf.size(x) // x.shape[3], x.dtype)

    def statistics(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        count, mean, squares = (tf.zeros([n], x.dtype) for n in (1, x.shape[3], x.shape[3]))
        for start, stop in parts:
            with tf.device(DEVICE):
                strip = tf.reshape(tf.identity(x[:, start:stop]), [-1, x.shape[3]])
                own_mean = tf.reduce_mean(strip, 0)
                own_squares = tf.reduce_sum((strip - own_mean) ** 2, 0)
                own_count = tf.cast(tf.shape(strip)[0], x.dtype)
                together, delta = count + own_count, own_mean - mean
                mean = mean + delta * (own_count / together)
                squares = squares + own_squares + delta**2 * (count * own_count / together)
                count = together
        return mean, squares / count

    @tf.custom_gradient
    def normalised(
        x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, ...], object]:
        mean, variance = statistics(x)
        scale = tf.math.rsqrt(variance + epsilon)
        ys = []
        for start, stop in parts:
            with tf.device(DEVICE):
                y = gamma * (tf.identity(x[:, start:stop]) - mean) * scale + beta
            with tf.device(HOST):
                ys.append(tf.identity(y))

        def backward(dy: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            dgamma, dbeta = tf.zeros_like(gamma), tf.zeros_like(beta)
            for start, stop in parts:
                with tf.device(DEVICE):
                    standard = (tf.identity(x[:, start:stop]) - mean) * scale
                    dbeta += tf.reduce_sum(dy[:, start:stop], [0, 1, 2])
                    dgamma += tf.reduce_sum(dy[:, start:stop] * standard, [0, 1, 2])
            dx = []
            for start, stop in parts:
                with tf.device(DEVICE):
                    standard = (tf.identity(x[:, start:stop]) - mean) * scale
                    centred = dy[:, start:stop] - dbeta / total - standard * dgamma / total
                    dstrip = gamma * scale * centred
                with tf.device(HOST):
                    dx.append(tf.identity(dstrip))
            return tf.concat(dx, 1), dgamma, dbeta

        return (tf.concat(ys, 1), mean, variance), backward

    return normalised(x, gamma, beta)


"""
## Two Keras layers

They are Keras' own layers with another `call`, so that options, weights and saved files stay the same.
"""


@keras.saving.register_keras_serializable("examples")
class StripConv2D(keras.layers.Conv2D):
    """`Conv2D` with padding "same" and equal strides, in strips of at most `max_elements` elements."""

    def __init__(self, *args: object, max_elements: int = 2**24, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.max_elements = max_elements

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the convolution of images `[N, H, W, C]`."""
        kernel = tf.convert_to_tensor(self.kernel)
        y = big_conv2d(inputs, kernel, self.strides[0], self.max_elements)
        return self.activation(y + self.bias if self.use_bias else y)

    def get_config(self) -> dict[str, object]:
        """Return the options of the layer."""
        return super().get_config() | {"max_elements": self.max_elements}


@keras.saving.register_keras_serializable("examples")
class StripBatchNormalization(keras.layers.BatchNormalization):
    """`BatchNormalization` over the channels, in strips of at most `max_elements` elements."""

    def __init__(self, *args: object, max_elements: int = 2**24, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.max_elements = max_elements

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Return normalised images `[N, H, W, C]`; in training, update the moving statistics."""
        if not training or not self.trainable:
            return super().call(inputs, training=False)
        gamma, beta = (tf.convert_to_tensor(w) for w in (self.gamma, self.beta))
        y, mean, variance = big_batch_norm(inputs, gamma, beta, self.epsilon, self.max_elements)
        for moving, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + new * (1 - self.momentum))
        return y

    def get_config(self) -> dict[str, object]:
        """Return the options of the layer."""
        return super().get_config() | {"max_elements": self.max_elements}


"""## Train a model of these layers, and the same one in plain Keras"""


def build_model(side: int, max_elements: int | None) -> keras.Model:
    """Build a network `[N, side, side, 3]` to `[N, 2]`, plain if there is no `max_elements`."""
    conv, norm = keras.layers.Conv2D, keras.layers.BatchNormalization
    limit = {}
    if max_elements is not None:
        conv, norm, limit = (
            StripConv2D,
            StripBatchNormalization,
            {"max_elements": max_elements},
        )
    image = x = keras.Input((side, side, 3))
    for width in (8, 16):
        x = conv(width, 3, 2, padding="same", **limit)(x)
        x = keras.layers.ReLU()(norm(**limit)(x))
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, keras.layers.Dense(2, activation="softmax")(x))


def main(side: int = 96, epochs: int = 3, max_elements: int = 2**13) -> float:
    """Train both models on the same images; return the largest difference of their weights."""
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    x, labels = random.normal(size=(16, side, side, 3)), random.integers(0, 2, 16)
    x += 0.5 * labels[:, None, None, None]
    big, plain = build_model(side, max_elements), build_model(side, None)
    plain.set_weights(big.get_weights())
    losses = []
    for model in (big, plain):
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        fitted = model.fit(x, labels, batch_size=4, epochs=epochs, shuffle=False, verbose=0)
        losses.append(fitted.history["loss"])
    print("epoch   strips     plain")
    for epoch, (ours, theirs) in enumerate(zip(*losses, strict=True), 1):
        print(f"{epoch:5}   {ours:.6f}   {theirs:.6f}")
    pairs = zip(big.get_weights(), plain.get_weights(), strict=True)
    difference = max(float(np.abs(a - b).max()) for a, b in pairs)
    print(f"largest difference of a weight {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
