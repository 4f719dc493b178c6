"""Errors name the invalid object, the expected value and the remedy."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfbig
from tfbig.system import progress
from tfbig.units import format_bytes

layers = keras.layers


def segmenter(**kwargs):
    image = keras.Input((None, None, 1))
    x = layers.Conv2D(2, 3, padding="same", **kwargs)(image)
    return keras.Model(image, layers.Conv2D(1, 1, activation="sigmoid")(x))


class UnknownLayer(layers.Layer):
    """Layer without a rule."""

    def call(self, x):
        return tf.sort(x)


def test_budget_below_one_strip():
    big = tfbig.stream(segmenter(), tfbig.Budget(device=100))
    expected = r"sweep 0 of 'functional.*: the smallest tile needs .* on the device, but 100 B are allowed. Raise"
    with pytest.raises(tfbig.BudgetError, match=expected):
        big.plan((1, 64, 1000, 1))


def test_budget_below_one_strip_in_training():
    big = tfbig.stream(segmenter(), tfbig.Budget(device=100))
    big.compile("sgd", "mse")
    image = np.zeros((1, 64, 1000, 1), np.float32)
    with pytest.raises(tfbig.BudgetError, match="smallest tile needs"):
        big.train_on_batch(image, image)


def test_host_limit_too_small():
    image = keras.Input((None, None, 1))
    x = layers.BatchNormalization()(layers.Conv2D(8, 3)(image))
    model = keras.Model(image, layers.GlobalAveragePooling2D()(x))
    with pytest.raises(tfbig.BudgetError, match=r"of host memory .* are allowed. Raise `host`"):
        tfbig.stream(model, tfbig.Budget(device="10MB", host="1MB", disk=0)).plan((1, 512, 512, 1))


@pytest.mark.parametrize(
    ("wrong", "received"),
    [
        ("resnet.keras", "model='resnet.keras': received str"),
        (segmenter, "received function"),
        (layers.Dense(1, name="dense"), "received Dense"),
        (None, "model=None: received NoneType"),
    ],
)
def test_something_else_than_a_model(wrong, received):
    message = (
        rf"{received}, expected a built Keras model\. Load a file with keras\.saving\.load_model"
    )
    with pytest.raises(TypeError, match=message):
        tfbig.stream(wrong)


def test_layer_without_rule():
    image = keras.Input((8, 8, 1))
    with pytest.raises(
        tfbig.UnsupportedLayerError,
        match=r"'strange' \(UnknownLayer\) has no rule and cannot be read",
    ):
        tfbig.stream(keras.Model(image, UnknownLayer(name="strange")(image)))


def test_quantised_weights():
    image = keras.Input((None, None, 3))
    product = layers.Dense(4, name="d")
    model = keras.Model(image, product(image))
    product.quantize("int8")
    message = r"'d' \(Dense\) has quantised weights"
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(model)


def test_channels_first():
    image = keras.Input((1, 8, 8))
    model = keras.Model(
        image, layers.ZeroPadding2D(1, data_format="channels_first", name="p")(image)
    )
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"'p' \(ZeroPadding2D\) has data_format"):
        tfbig.stream(model)


def test_subclassed_model():
    class Subclassed(keras.Model):
        pass

    with pytest.raises(tfbig.UnsupportedLayerError, match="neither a graph nor a `call`"):
        tfbig.stream(Subclassed())


def test_unbuilt_sequential_model():
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"call model.build\(input_shape\) first"):
        tfbig.stream(keras.Sequential([layers.Conv2D(1, 3)]))


def test_image_smaller_than_kernel():
    image = keras.Input((None, None, 1))
    big = tfbig.stream(keras.Model(image, layers.Conv2D(1, 9, name="wide")(image)))
    with pytest.raises(ValueError, match="'wide/convolution': the image is too small"):
        big.plan((1, 8, 20, 1))


def test_mask_of_wrong_size():
    big = tfbig.stream(segmenter())
    big.compile("sgd", "mse")
    with pytest.raises(
        ValueError, match=r"targets have shape \(1, 16, 12, 1\); expected \[1, 16, 16, C\]"
    ):
        big.train_on_batch(np.zeros((1, 16, 16, 1), "f"), np.zeros((1, 16, 12, 1), "f"))


def test_loss_is_not_a_mean_over_pixels():
    def whole(y_true, y_pred):
        return keras.ops.sum(y_true - y_pred)

    big = tfbig.stream(segmenter())
    big.compile("sgd", whole)
    image = np.zeros((1, 8, 8, 1), np.float32)
    with pytest.raises(tfbig.UnsupportedLayerError, match="'whole' combines pixels itself"):
        big.train_on_batch(image, image)


def test_handle_of_missing_file(tmp_path):
    big = tfbig.stream(segmenter())
    path = str(tmp_path / "nowhere.npy")
    with pytest.raises(tfbig.SourceError, match=r"nowhere\.npy"):
        big(tf.constant([path]))


def test_source_of_wrong_dtype():
    big = tfbig.stream(segmenter())
    source = tfbig.open(np.zeros((8, 8, 1), np.uint16))
    with pytest.raises(tfbig.SourceError, match="has dtype uint16; expected uint8"):
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
def test_unsupported_keras(name, value, message):
    command = [sys.executable, "-c", "import tfbig"]
    process = subprocess.run(
        command, env={**os.environ, name: value}, capture_output=True, text=True, check=False
    )
    assert process.returncode == 1
    assert message in process.stderr.strip().splitlines()[-1]


def dataset_of_unknown_sizes(*arrays):
    """Return a dataset of one batch whose sizes are unknown while tracing: errors are raised inside a graph."""
    specs = tuple(tf.TensorSpec([None, None, None, a.shape[-1]], a.dtype) for a in arrays)
    return tf.data.Dataset.from_generator(lambda: iter([arrays]), output_signature=specs)


@pytest.mark.parametrize(
    ("image", "mask", "device", "message"),
    [
        (
            (1, 16, 16),
            (1, 16, 12),
            None,
            r"targets have shape \(1, 16, 12, 1\); expected \[1, 16, 16, C\]",
        ),
        ((2, 8, 8), (1, 8, 8), None, r"targets have shape \(1, 8, 8, 1\); expected \[2, 8, 8, C\]"),
        ((1, 64, 1000), (1, 64, 1000), 100, "100 B are allowed. Raise `device`"),
        ((1, 2, 9), (1, 2, 9), None, "'wide/convolution': the image is too small"),
    ],
)
def test_errors_inside_a_graph(image, mask, device, message):
    kwargs = {"name": "wide"} if "wide" in message else {"padding": "same"}
    inputs = keras.Input((None, None, 1))
    model = keras.Model(inputs, layers.Conv2D(1, 3, **kwargs)(inputs))
    big = tfbig.stream(model, tfbig.Budget(device=device))
    big.compile("sgd", "mse")
    data = dataset_of_unknown_sizes(*(np.zeros((*shape, 1), np.float32) for shape in (image, mask)))
    with pytest.raises(ValueError, match=message):
        big.fit(data, steps_per_epoch=1, shuffle=False, verbose=0)


def test_budget_error_inside_a_graph_tells_the_bytes_it_needs():
    big = tfbig.stream(segmenter(), tfbig.Budget(device=100))
    data = dataset_of_unknown_sizes(np.zeros((1, 64, 1000, 1), np.float32))
    with pytest.raises(tfbig.BudgetError) as raised:
        big.predict(data, verbose=0)
    assert raised.value.need_bytes > 100
    assert f"needs {format_bytes(raised.value.need_bytes)} on the device" in str(raised.value)


def test_budget_error_of_a_call_tells_the_bytes_it_needs():
    big = tfbig.stream(segmenter(), tfbig.Budget(device=100))
    with pytest.raises(tfbig.BudgetError) as raised:
        big(np.zeros((1, 64, 1000, 1), np.float32))
    assert raised.value.need_bytes > 100


class TornError(Exception):
    """Error of a user's source."""


class Torn(tfbig.sources.Source):
    """Source that fails below its first rows."""

    def _read(self, start, stop):
        if stop > 8:
            raise TornError(start, stop)
        return np.zeros((stop - start, *self.shape[1:]), self.dtype)


@pytest.mark.parametrize("step", ["__call__", "predict", "train_on_batch"])
def test_error_of_a_users_source_is_raised_unchanged(step):
    source = Torn((64, 16, 1), np.dtype("uint8"), "torn")
    big = tfbig.stream(segmenter(), strip_rows=4)
    big.compile("sgd", "mse")
    handles = np.array([source.handle])
    mask = np.zeros((1, 64, 16, 1), np.float32)
    labels = [tf.constant(mask)] if step == "train_on_batch" else []
    with pytest.raises(TornError) as raised:
        getattr(big, step)(tf.constant(handles), *labels)
    assert raised.value.args[1] > 8
    assert raised.traceback[-1].name == "_read"


def test_error_inside_a_big_layer(monkeypatch):
    layer, image = tfbig.layers.BigConv2D(2, 3, max_elements=64), tf.zeros([1, 64, 16, 1])
    layer(image)
    error = TornError(4, 8)

    def fail(*_):
        raise error

    monkeypatch.setattr(progress.Meter, "tick", fail)
    with pytest.raises(TornError) as raised:
        layer(image)
    assert raised.value is error


def test_mask_of_wrong_channels():
    big = tfbig.stream(segmenter())
    big.compile("sgd", "mse")
    image, mask = np.zeros((1, 8, 8, 1), np.float32), np.zeros((1, 8, 8, 3), np.float32)
    message = r"/target' has shape \(1, 8, 8, 3\); expected 1 image with 1 channel"
    with pytest.raises(ValueError, match=message):
        big.train_on_batch(image, mask)


def test_handles_of_different_sizes():
    sources = [tfbig.open(np.zeros((8, width, 1), np.uint8)) for width in (8, 9)]
    with pytest.raises(ValueError, match="the images of a batch have different shapes"):
        tfbig.stream(segmenter())(tf.constant([s.handle for s in sources]))


def test_released_handle():
    source = tfbig.open(np.zeros((8, 8, 1), np.uint8))
    handle = source.handle
    source.release()
    with pytest.raises(tfbig.SourceError, match=f"{handle}: no source is registered under this"):
        tfbig.stream(segmenter())(tf.constant([handle]))


@pytest.mark.parametrize(
    ("image", "target", "kind", "message"),
    [
        ("nowhere.npy", "out.npy", tfbig.SourceError, "nowhere.npy: there is no such file"),
        ((8, 8, 1), "out.txt", tfbig.SourceError, "expected a path that ends in .npy"),
        ((8, 8, 1), "no/out.npy", tfbig.SourceError, "Create .*no first"),
        ((8, 8, 3), "out.npy", tfbig.SourceError, r"expected \(None, None, 1\)"),
        ((8, 1, 1), "out.npy", tfbig.SourceError, "has dtype float32; expected uint8. Convert"),
    ],
)
def test_failed_prediction_leaves_no_file(tmp_path, image, target, kind, message):
    if isinstance(image, tuple):
        image = np.zeros(image, np.float32 if image[1] == 1 else np.uint8)
    with pytest.raises(kind, match=message):
        tfbig.stream(segmenter()).predict_to(image, str(tmp_path / target))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (layers.BatchNormalization(axis=1), r"over axis=-1 without renorm; received axis=1"),
        (layers.GroupNormalization(2, axis=1), "over axis=-1; received axis=1"),
        (layers.LayerNormalization(axis=[1, 2, 3]), r"or GroupNormalization\(groups=1\)"),
        (layers.Softmax(axis=1), "over axis=1 needs the whole image; use axis=-1"),
        (layers.Dropout(0.5, noise_shape=(None, 1, None, 1)), "use noise_shape=None"),
        (
            layers.Lambda(tf.abs, output_shape=lambda s: s),
            r"\(Lambda\) has no rule, .* class .* rule: Activation, .*Conv2D",
        ),
        (
            layers.RandomFlip(),
            r"\(RandomFlip\) has no rule, .*: apply it to the data .*dataset.map",
        ),
        (layers.PReLU(shared_axes=[1]), r"use shared_axes=\[1, 2\]"),
        (
            layers.ReLU(activity_regularizer="l2"),
            "activity_regularizer, which needs its whole output",
        ),
    ],
)
def test_unsupported_layer_settings(layer, message):
    image = keras.Input((8, 8, 4))
    with pytest.raises(tfbig.UnsupportedLayerError, match=f"layer '{layer.name}'.*{message}"):
        tfbig.stream(keras.Model(image, layer(image)))


def test_concatenation_of_images():
    image = keras.Input((8, 8, 4))
    with pytest.raises(
        tfbig.UnsupportedLayerError, match=r"over the channels, axis=-1; received axis=0"
    ):
        tfbig.stream(keras.Model(image, layers.Concatenate(axis=0)([image, image])))


def test_unknown_channels():
    image = keras.Input((None, None, None), name="image")
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"input 'image' of .* no known channels"):
        tfbig.stream(keras.Model(image, layers.ReLU()(image)))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (tfbig.layers.BigMaxPooling2D(2, data_format="channels_first"), "need 'channels_last'"),
        (tfbig.layers.BigBatchNormalization(axis=1), "over axis=-1"),
        (tfbig.layers.BigConcatenate(axis=0), "received axis=0"),
    ],
)
def test_big_layers_name_themselves(layer, message):
    image = tf.zeros([1, 4, 4, 2])
    inputs = [image, image] if isinstance(layer, keras.layers.Concatenate) else image
    with pytest.raises(tfbig.UnsupportedLayerError, match=f"layer '{layer.name}'.*{message}"):
        layer(inputs)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (keras.losses.Dice(axis=1), r"'dice' has axis=1; expected axis=None or \(1, 2, 3\)"),
        (keras.losses.MeanSquaredError(reduction=None), "reduction=None; an image loss must be a"),
    ],
)
def test_unsupported_losses(loss, message):
    big = tfbig.stream(segmenter())
    big.compile("sgd", loss)
    image = np.zeros((1, 8, 8, 1), np.float32)
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        big.train_on_batch(image, image)


def test_metric_is_not_a_mean_over_pixels():
    def spread(y_true, y_pred):
        return keras.ops.max(y_pred) - keras.ops.min(y_pred)

    big = tfbig.stream(segmenter())
    big.compile("sgd", "mse", metrics=[spread])
    image = np.zeros((1, 8, 8, 1), np.float32)
    with pytest.raises(
        tfbig.UnsupportedLayerError, match="metric 'spread' does not return one val"
    ):
        big.train_on_batch(image, image)
