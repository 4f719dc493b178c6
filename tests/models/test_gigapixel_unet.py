"""The gigapixel U-Net against the published numbers and the table in its docstring."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfbig.models.gigapixel_unet import gigapixel_unet

CONVOLUTIONS = (keras.layers.Conv2D, keras.layers.Conv2DTranspose)


def docstring_table():
    """Return the rows of the docstring: name, kernel, stride, shape at 16000 x 64000, parameters."""
    row = r"^ +(\w+) +(\d+) x \2 +(\d+) +\d -> \d +(\d+) x (\d+) x (\d) +(\d+)"
    rows = re.findall(row, gigapixel_unet.__doc__, re.MULTILINE)
    return [(name, *map(int, numbers)) for name, *numbers in rows]


def test_published_numbers():
    model = gigapixel_unet()
    assert sum(isinstance(layer, CONVOLUTIONS) for layer in model.layers) == 7
    assert model.count_params() == 4492


def test_table_of_the_docstring():
    model = gigapixel_unet((16000, 64000, 1))
    rows = []
    for layer in model.layers:
        if isinstance(layer, CONVOLUTIONS):
            shape = layer.output.shape[1:]
            rows.append(
                (layer.name, layer.kernel_size[0], layer.strides[0], *shape, layer.count_params())
            )
    assert rows == docstring_table()


def parameters(kernels, bottleneck, filters=3):
    """Return the number of parameters by counting weights and biases, with kernels mirrored."""
    inputs = [1, *[filters] * (len(kernels) - 1)]
    down = [k * k * n * filters + filters for k, n in zip(kernels, inputs, strict=True)]
    up = [k * k * n * filters + n for k, n in zip(kernels, inputs, strict=True)]
    return sum(down) + sum(up) + bottleneck**2 * filters**2 + filters


@pytest.mark.parametrize(
    ("kernels", "strides", "bottleneck"),
    [((18, 8, 8), (8, 4, 4), 5), ((16, 9, 7), (8, 4, 4), 5), ((4, 3), (2, 2), 1), ((6,), (4,), 3)],
)
def test_other_kernels_and_strides(kernels, strides, bottleneck):
    model = gigapixel_unet(kernels=kernels, strides=strides, bottleneck=bottleneck)
    assert model.count_params() == parameters(kernels, bottleneck)
    multiple = int(np.prod(strides))
    image = np.zeros((1, 2 * multiple, 3 * multiple, 1), np.uint8)
    assert model(image).shape == image.shape
    with pytest.raises(ValueError, match=rf"must be multiples of {multiple} \(its total stride\)"):
        gigapixel_unet((multiple + 1, None, 1), kernels=kernels, strides=strides)


def test_choices_of_kernels_with_the_published_number_of_parameters():
    """Networks with three filters and kernels of up to 31 pixels, of which the paper names none."""
    first, second, third, bottleneck = np.ogrid[1:32, 1:32, 1:32, 1:32]
    counts = parameters((first, second, third), bottleneck)
    assert counts[17, 7, 7, 4] == parameters((18, 8, 8), 5) == 4492
    assert (counts == 4492).sum() == 93  # as the docstring says


def test_a_stride_for_each_kernel():
    with pytest.raises(
        ValueError, match=r"kernels=\(3,\) and strides=\(2, 2\) of gigapixel_unet: exp"
    ):
        gigapixel_unet(kernels=(3,), strides=(2, 2))


@pytest.mark.parametrize("size", [(128, 128), (256, 384)])
def test_outputs_are_probabilities(size):
    image = np.random.default_rng(0).integers(0, 256, (2, *size, 1), np.uint8)
    tissue = keras.ops.convert_to_numpy(gigapixel_unet()(image))
    assert tissue.shape == (2, *size, 1)
    assert 0 < tissue.min() <= tissue.max() < 1


def test_rescaling():
    model = gigapixel_unet()
    scaled = model.get_layer("rescaling").output
    assert (
        float(keras.Model(model.input, scaled)(np.full((1, 128, 128, 1), 255.0))[0, 0, 0, 0]) == 1
    )


def test_skip_connections():
    model = gigapixel_unet()
    added = {
        name: {t._keras_history.operation.name for t in model.get_layer(name).input}
        for name in ("skip2", "skip1")
    }
    assert added == {"skip2": {"dec3", "enc2"}, "skip1": {"dec2", "enc1"}}


@pytest.mark.parametrize("seed", range(8))
def test_no_layer_is_dead(seed):
    """Every layer has a gradient on a white image with a dark half, for any seed."""
    keras.utils.set_random_seed(seed)
    model = gigapixel_unet()
    image = np.full((1, 256, 256, 1), 12.0, np.float32)
    image[:, :, 128:] = 100
    with tf.GradientTape() as tape:
        loss = keras.losses.binary_crossentropy(image > 50, model(image))
    gradients = tape.gradient(loss, [v._value for v in model.trainable_variables])
    assert all(np.any(g.numpy()) for g in gradients)


@pytest.mark.parametrize("shape", [(100, 128, 1), (128, 1000, 1)])
def test_sizes_that_the_stride_does_not_divide(shape):
    with pytest.raises(ValueError, match="multiples of 128"):
        gigapixel_unet(shape)
