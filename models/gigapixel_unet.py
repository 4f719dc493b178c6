"""The 7-layer, 4492-parameter U-Net for gigapixel images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import keras

from tfbig.choices import UNET_STRIDES

KERNELS, STRIDES, BOTTLENECK = (18, 8, 8), UNET_STRIDES, 5
FIRST_BIAS = 0.5


def gigapixel_unet(
    input_shape: Sequence[int | None] = (None, None, 1),
    filters: int = 3,
    kernels: Sequence[int] = KERNELS,
    strides: Sequence[int] = STRIDES,
    bottleneck: int = BOTTLENECK,
    name: str = "gigapixel_unet",
) -> keras.Model:
    """Build the U-Net with few large kernels and high strides that separates tissue from background.

    Reproduces the network of Remedios et al., "Exploring shared memory architectures for
    end-to-end gigapixel deep learning" (MIDL 2023): 7 convolution layers, 4492 parameters,
    additive skip connections, no pooling, one sigmoid output channel. **The paper did not
    publish its kernel sizes, strides and filter counts.** This configuration agrees with
    everything that it did publish (layers, parameters, skip connections, large kernels at the
    full resolution, an input of 16000 x 64000 that every stride divides), but other configurations
    do as well: with three filters and mirrored kernels of up to 31 pixels, 93 choices have 4492
    parameters. It is *a* network that fits the paper, not the authors' own; `kernels`, `strides`
    and `bottleneck` make another.

        layer        kernel  stride  in -> out  output at 16000 x 64000  parameters
        enc1         18 x 18    8     1 -> 3      2000 x 8000 x 3            975
        enc2          8 x 8     4     3 -> 3       500 x 2000 x 3            579
        enc3          8 x 8     4     3 -> 3       125 x 500 x 3             579
        bottleneck    5 x 5     1     3 -> 3       125 x 500 x 3             228
        dec3          8 x 8     4     3 -> 3       500 x 2000 x 3            579   + enc2
        dec2          8 x 8     4     3 -> 3      2000 x 8000 x 3            579   + enc1
        dec1         18 x 18    8     3 -> 1     16000 x 64000 x 1           973

    Every convolution pads "same" and is followed by ReLU, the last one by a sigmoid. Biases in
    front of a ReLU start at 0.5, unlike Keras' 0: inputs are never negative, so with biases of 0 each
    of the three filters of a layer is dead for every image or for none, and some seeds never learn.

    Args:
        input_shape: `(H, W, 1)`, multiples of the product of the strides, by default 128, or `None`.
            Pad or crop other images.
        filters: Channels of the hidden layers.
        kernels: Rows and columns of the kernel of each encoder layer; the decoder mirrors them.
        strides: Stride of each encoder layer, as many as kernels.
        bottleneck: Rows and columns of the kernel between encoder and decoder.
        name: Name of the model.

    Returns:
        A plain `keras.Model`. Input `[N, H, W, 1]`: the inverted gray image as read from the
        source, 0 (white) to 255 (black), uint8 or float; the model scales it to 0..1.
        Output `[N, H, W, 1]`: the probability of tissue.

    Raises:
        ValueError: A size in `input_shape` is not a multiple of the product of the strides, or there is
            not a stride for each kernel.
    """
    if not kernels or len(kernels) != len(strides):
        raise ValueError(
            f"kernels={tuple(kernels)} and strides={tuple(strides)} of gigapixel_unet: expected as many strides as "
            "kernels, at least one."
        )
    _check_input_shape(input_shape, math.prod(strides))
    image = keras.Input(input_shape, name="image")
    x = keras.layers.Rescaling(1 / 255, name="rescaling")(image)  # [N, H, W, 1], 0..1
    stages = list(enumerate(zip(kernels, strides, strict=True), start=1))
    encoded = []
    for number, (
        kernel,
        stride,
    ) in stages:  # [N, H/8, W/8, f], [N, H/32, W/32, f], [N, H/128, W/128, f]
        x = _down(filters, kernel, stride, f"enc{number}")(x)
        encoded.append(x)
    x = _down(filters, bottleneck, 1, "bottleneck")(x)
    for number, (kernel, stride) in reversed(stages[1:]):
        x = _up(filters, kernel, stride, f"dec{number}")(x)
        x = keras.layers.Add(name=f"skip{number - 1}")([x, encoded[number - 2]])
    tissue = _up(1, kernels[0], strides[0], "dec1", activation="sigmoid")(x)  # [N, H, W, 1]
    return keras.Model(image, tissue, name=name)


def _down(filters: int, kernel: int, stride: int, name: str) -> keras.layers.Conv2D:
    return keras.layers.Conv2D(
        filters,
        kernel,
        strides=stride,
        padding="same",
        activation="relu",
        bias_initializer=keras.initializers.Constant(FIRST_BIAS),
        name=name,
    )


def _up(
    filters: int, kernel: int, stride: int, name: str, activation: str = "relu"
) -> keras.layers.Conv2DTranspose:
    first_bias = FIRST_BIAS if activation == "relu" else 0.0
    return keras.layers.Conv2DTranspose(
        filters,
        kernel,
        strides=stride,
        padding="same",
        activation=activation,
        bias_initializer=keras.initializers.Constant(first_bias),
        name=name,
    )


def _check_input_shape(input_shape: Sequence[int | None], stride: int) -> None:
    if any(size is not None and size % stride for size in input_shape[:2]):
        raise ValueError(
            f"input_shape={tuple(input_shape)} of gigapixel_unet: height and width must be "
            f"multiples of {stride} (its total stride) or None. Pad or crop the image."
        )
