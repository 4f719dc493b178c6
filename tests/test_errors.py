"""Bad input ends in one clear error that names the thing, what was expected and what to do."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfbig

layers = keras.layers


def segmenter(**kwargs):
    image = keras.Input((None, None, 1))
    x = layers.Conv2D(2, 3, padding="same", **kwargs)(image)
    return keras.Model(image, layers.Conv2D(1, 1, activation="sigmoid")(x))


class Odd(layers.Layer):
    """A layer that nobody taught the engine."""

    def call(self, x):
        return x


def test_a_budget_below_one_strip_names_sweep_bytes_and_remedy():
    big = tfbig.stream(segmenter(), tfbig.Budget(device=1000))
    expected = r"sweep 0 of 'functional.*: the smallest strip needs .* on the device, 1000 B are allowed. Raise"
    with pytest.raises(tfbig.BudgetError, match=expected):
        big.plan((1, 64, 1000, 1))


def test_the_same_budget_is_refused_by_fit_before_anything_runs():
    big = tfbig.stream(segmenter(), tfbig.Budget(device=1000))
    big.compile("sgd", "mse")
    image = np.zeros((1, 64, 1000, 1), np.float32)
    with pytest.raises(tfbig.BudgetError, match="smallest strip needs"):
        big.train_on_batch(image, image)


def test_host_memory_that_does_not_suffice_is_named():
    image = keras.Input((None, None, 1))
    x = layers.BatchNormalization()(layers.Conv2D(8, 3)(image))
    model = keras.Model(image, layers.GlobalAveragePooling2D()(x))
    with pytest.raises(tfbig.BudgetError, match=r"of host memory, .* are allowed. Raise `host`"):
        tfbig.stream(model, tfbig.Budget(device="10MB", host="1MB")).plan((1, 512, 512, 1))


def test_a_layer_without_a_rule_is_named():
    image = keras.Input((8, 8, 1))
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"'strange' \(Odd\) has no rule"):
        tfbig.stream(keras.Model(image, Odd(name="strange")(image)))


def test_channels_first_is_refused():
    image = keras.Input((1, 8, 8))
    model = keras.Model(
        image, layers.ZeroPadding2D(1, data_format="channels_first", name="p")(image)
    )
    with pytest.raises(tfbig.UnsupportedLayerError, match="'p' has data_format='channels_first'"):
        tfbig.stream(model)


def test_a_subclassed_model_is_refused():
    class Own(keras.Model):
        pass

    with pytest.raises(tfbig.UnsupportedLayerError, match="is a subclassed model"):
        tfbig.stream(Own())


def test_an_unbuilt_sequential_model_is_refused():
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"call model.build\(input_shape\) first"):
        tfbig.stream(keras.Sequential([layers.Conv2D(1, 3)]))


def test_an_image_smaller_than_the_kernel_is_named():
    image = keras.Input((None, None, 1))
    big = tfbig.stream(keras.Model(image, layers.Conv2D(1, 9, name="wide")(image)))
    with pytest.raises(ValueError, match="'wide/convolution': the image is too small"):
        big.plan((1, 8, 20, 1))


def test_a_mask_of_another_size_is_named():
    big = tfbig.stream(segmenter())
    big.compile("sgd", "mse")
    with pytest.raises(ValueError, match="its inputs have different sizes"):
        big.train_on_batch(np.zeros((1, 16, 16, 1), "f"), np.zeros((1, 16, 12, 1), "f"))


def test_sample_weights_of_images_are_refused():
    big = tfbig.stream(segmenter())
    big.compile("sgd", "mse")
    image = np.zeros((2, 8, 8, 1), np.float32)
    with pytest.raises(ValueError, match="sample weights are not supported for image outputs"):
        big.train_on_batch(image, image, sample_weight=np.ones(2))


def test_a_loss_that_is_no_mean_over_pixels_is_refused():
    def whole(y_true, y_pred):
        return keras.ops.sum(y_true - y_pred)

    big = tfbig.stream(segmenter())
    big.compile("sgd", whole)
    image = np.zeros((1, 8, 8, 1), np.float32)
    with pytest.raises(tfbig.UnsupportedLayerError, match="'whole' is not a mean over pixels"):
        big.train_on_batch(image, image)


def test_a_handle_of_a_missing_file_is_named(tmp_path):
    big = tfbig.stream(segmenter())
    path = str(tmp_path / "nowhere.npy")
    with pytest.raises(tf.errors.OpError, match=r"nowhere\.npy"):
        big(tf.constant([path]))


def test_a_source_of_another_type_is_named():
    big = tfbig.stream(segmenter())
    source = tfbig.open(np.zeros((8, 8, 1), np.uint16))
    with pytest.raises(tf.errors.OpError, match="its samples are uint16, expected uint8"):
        big(tf.constant([source.handle]))


def test_max_elements_must_be_positive():
    with pytest.raises(
        ValueError, match=r"Expected a positive integer or None. Received: max_elements=0"
    ):
        tfbig.layers.BigConv2D(1, 3, max_elements=0)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TF_USE_LEGACY_KERAS", "1", "tfbig needs Keras 3: unset TF_USE_LEGACY_KERAS"),
        ("KERAS_BACKEND", "numpy", "tfbig needs the TensorFlow backend of Keras, found 'numpy'"),
    ],
)
def test_a_keras_that_does_not_serve_is_refused_in_one_line(name, value, message):
    words = [sys.executable, "-c", "import tfbig"]
    done = subprocess.run(
        words, env={**os.environ, name: value}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert message in done.stderr.strip().splitlines()[-1]
