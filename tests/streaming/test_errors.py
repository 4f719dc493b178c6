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
    with pytest.raises(tfbig.BudgetError, match=r"of host memory .* are allowed. Raise `host`"):
        tfbig.stream(model, tfbig.Budget(device="10MB", host="1MB", disk=0)).plan((1, 512, 512, 1))


def test_a_layer_without_a_rule_is_named():
    image = keras.Input((8, 8, 1))
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"'strange' \(Odd\) has no rule"):
        tfbig.stream(keras.Model(image, Odd(name="strange")(image)))


def test_channels_first_is_refused():
    image = keras.Input((1, 8, 8))
    model = keras.Model(
        image, layers.ZeroPadding2D(1, data_format="channels_first", name="p")(image)
    )
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"'p' \(ZeroPadding2D\) has data_format"):
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
    with pytest.raises(tfbig.SourceError, match=r"nowhere\.npy"):
        big(tf.constant([path]))


def test_a_source_of_another_type_is_named():
    big = tfbig.stream(segmenter())
    source = tfbig.open(np.zeros((8, 8, 1), np.uint16))
    with pytest.raises(tfbig.SourceError, match="its samples are uint16, expected uint8"):
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


# ------------------------------------------- sizes known only when the step runs: raised inside a graph


def unknown_sizes(*arrays):
    """A dataset of one batch whose sizes are not known while tracing."""
    specs = tuple(tf.TensorSpec([None, None, None, a.shape[-1]], a.dtype) for a in arrays)
    return tf.data.Dataset.from_generator(lambda: iter([arrays]), output_signature=specs)


@pytest.mark.parametrize(
    ("image", "mask", "device", "message"),
    [
        (
            (1, 16, 16),
            (1, 16, 12),
            None,
            r"have different sizes \[\(16, 16\), \(16, 12\)\]; they must",
        ),
        ((2, 8, 8), (1, 8, 8), None, r"/target' has shape \(1, 8, 8, 1\); expected 2 images"),
        ((1, 64, 1000), (1, 64, 1000), 1000, "1000 B are allowed. Raise `device`"),
        ((1, 2, 9), (1, 2, 9), None, "'wide/convolution': the image is too small"),
    ],
)
def test_an_error_inside_a_step_is_raised_as_such(image, mask, device, message):
    kwargs = {"name": "wide"} if "wide" in message else {"padding": "same"}
    inputs = keras.Input((None, None, 1))
    model = keras.Model(inputs, layers.Conv2D(1, 3, **kwargs)(inputs))
    big = tfbig.stream(model, tfbig.Budget(device=device))
    big.compile("sgd", "mse")
    data = unknown_sizes(*(np.zeros((*shape, 1), np.float32) for shape in (image, mask)))
    with pytest.raises(ValueError, match=message):
        big.fit(data, steps_per_epoch=1, shuffle=False, verbose=0)


def test_a_mask_of_other_channels_is_named():
    big = tfbig.stream(segmenter())
    big.compile("sgd", "mse")
    image, mask = np.zeros((1, 8, 8, 1), np.float32), np.zeros((1, 8, 8, 3), np.float32)
    message = r"/target' has shape \(1, 8, 8, 3\); expected 1 images with 1 channels"
    with pytest.raises(ValueError, match=message):
        big.train_on_batch(image, mask)


def test_handles_of_a_batch_must_have_one_size():
    sources = [tfbig.open(np.zeros((8, width, 1), np.uint8)) for width in (8, 9)]
    with pytest.raises(ValueError, match="the images of a batch have different shapes"):
        tfbig.stream(segmenter())(tf.constant([s.handle for s in sources]))


def test_a_released_handle_is_named():
    source = tfbig.open(np.zeros((8, 8, 1), np.uint8))
    handle = source.handle
    source.release()
    with pytest.raises(tfbig.SourceError, match=f"{handle}: no source is registered under this"):
        tfbig.stream(segmenter())(tf.constant([handle]))


# ------------------------------------------------------------------------------------------ predict_to


@pytest.mark.parametrize(
    ("image", "target", "kind", "message"),
    [
        ("nowhere.npy", "out.npy", tfbig.SourceError, "nowhere.npy: there is no such file"),
        ((8, 8, 1), "out.txt", tfbig.SourceError, "expected a path that ends in .npy"),
        ((8, 8, 1), "no/out.npy", tfbig.SourceError, "Create .*no first"),
        ((8, 8, 3), "out.npy", ValueError, "expected 1 images with 1 channels"),
        ((8, 1, 1), "out.npy", tfbig.SourceError, "samples are float32, expected uint8. Convert"),
    ],
)
def test_a_prediction_that_fails_leaves_no_file(tmp_path, image, target, kind, message):
    if isinstance(image, tuple):
        image = np.zeros(image, np.float32 if image[1] == 1 else np.uint8)
    with pytest.raises(kind, match=message):
        tfbig.stream(segmenter()).predict_to(image, str(tmp_path / target))
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------- settings that have no strip form


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (layers.BatchNormalization(axis=1), r"over axis=-1 without renorm; received axis=1"),
        (layers.GroupNormalization(2, axis=1), "needs axis=-1, received axis=1"),
        (layers.LayerNormalization(axis=[1, 2, 3]), r"use GroupNormalization\(groups=1\)"),
        (layers.Softmax(axis=1), "over axis=1 needs the whole image; use axis=-1"),
        (layers.UpSampling2D(interpolation="bicubic"), "use 'nearest' or 'bilinear'"),
        (layers.Dropout(0.5, noise_shape=(None, 1, None, 1)), "use noise_shape=None"),
        (layers.Lambda(abs), r"\(Lambda\) has no rule, .* rule: Activation, .*Conv2D"),
        (layers.PReLU(shared_axes=[1]), r"use shared_axes=\[1, 2\]"),
        (
            layers.ReLU(activity_regularizer="l2"),
            "activity_regularizer, which needs its whole output",
        ),
    ],
)
def test_a_setting_without_a_strip_form_is_named(layer, message):
    image = keras.Input((8, 8, 4))
    with pytest.raises(tfbig.UnsupportedLayerError, match=f"layer '{layer.name}'.*{message}"):
        tfbig.stream(keras.Model(image, layer(image)))


def test_concatenation_over_rows_is_refused():
    image = keras.Input((8, 8, 4))
    with pytest.raises(
        tfbig.UnsupportedLayerError, match=r"over the channels, axis=-1; received axis=1"
    ):
        tfbig.stream(keras.Model(image, layers.Concatenate(axis=1)([image, image])))


def test_unknown_channels_are_refused():
    image = keras.Input((None, None, None), name="image")
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"input 'image' of .* no known channels"):
        tfbig.stream(keras.Model(image, layers.ReLU()(image)))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (tfbig.layers.BigMaxPooling2D(2, data_format="channels_first"), "need 'channels_last'"),
        (tfbig.layers.BigBatchNormalization(axis=1), "over axis=-1"),
        (tfbig.layers.BigConcatenate(axis=2), "received axis=2"),
    ],
)
def test_a_big_layer_names_itself(layer, message):
    image = tf.zeros([1, 4, 4, 2])
    inputs = [image, image] if isinstance(layer, keras.layers.Concatenate) else image
    with pytest.raises(tfbig.UnsupportedLayerError, match=f"layer '{layer.name}'.*{message}"):
        layer(inputs)


# ------------------------------------------------------------------------------------ losses and metrics


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (keras.losses.Dice(axis=1), r"'dice' has axis=1; strips need axis=None or \(1, 2, 3\)"),
        (keras.losses.MeanSquaredError(reduction=None), "reduction=None; an image loss must be a"),
    ],
)
def test_a_loss_without_a_strip_form_is_named(loss, message):
    big = tfbig.stream(segmenter())
    big.compile("sgd", loss)
    image = np.zeros((1, 8, 8, 1), np.float32)
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        big.train_on_batch(image, image)


def test_a_metric_that_is_no_mean_over_pixels_is_refused():
    def spread(y_true, y_pred):
        return keras.ops.max(y_pred) - keras.ops.min(y_pred)

    big = tfbig.stream(segmenter())
    big.compile("sgd", "mse", metrics=[spread])
    image = np.zeros((1, 8, 8, 1), np.float32)
    with pytest.raises(tfbig.UnsupportedLayerError, match="metric 'spread' gives no number per pi"):
        big.train_on_batch(image, image)
