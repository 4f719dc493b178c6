"""The ResNets against torchvision's architecture, written in NumPy and in torch's layout."""

from functools import cache

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, gradients, integers
from keras import layers
from safetensors.numpy import save_file

import tfbig
from tfbig.models import pretrained
from tfbig.models.resnet import resnet18, resnet26, resnet34, resnet50

BUILDERS = {"resnet18": resnet18, "resnet26": resnet26, "resnet34": resnet34, "resnet50": resnet50}
DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}
PARAMETERS = {
    "resnet18": 11689512,
    "resnet26": 15995176,
    "resnet34": 21797672,
    "resnet50": 25557032,
}
"""Trainable parameters in the documentations of torchvision and timm."""

every_network = pytest.mark.parametrize("name", list(BUILDERS))


# ------------------------------------------------------------- torchvision, in NumPy


class Torch:
    """torchvision's ResNet on `[N, C, H, W]`; random weights are drawn when they are first used.

    Parameters have torchvision's names and torch's layout; nothing calls TensorFlow.
    """

    def __init__(self, name, classes=1000, seed=0):
        self.depths, self.deep = DEPTHS[name], name == "resnet50"
        self.classes = classes
        self.state = {}
        self.random = np.random.default_rng(seed)

    def __call__(self, x):
        x = np.maximum(self.normalise(self.convolve(x, "conv1", 64, 7, 2, 3), "bn1"), 0)
        x = self.pool(x)
        for stage, depth in enumerate(self.depths):
            for i in range(depth):
                stride = 2 if stage and not i else 1
                x = self.block(x, 64 * 2**stage, stride, f"layer{stage + 1}.{i}")
        x = x.mean((2, 3))
        weight = self.draw("fc.weight", (self.classes, x.shape[1]), 0.05)
        return x @ weight.T + self.draw("fc.bias", (self.classes,), 1.0)

    def block(self, x, width, stride, name):
        if self.deep:
            steps = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
        else:
            steps = [(width, 3, stride), (width, 3, 1)]
        y = x
        for i, (filters, kernel, step) in enumerate(steps, 1):
            y = self.convolve(y, f"{name}.conv{i}", filters, kernel, step, kernel // 2)
            y = self.normalise(y, f"{name}.bn{i}")
            if i < len(steps):
                y = np.maximum(y, 0)
        if y.shape != x.shape:
            x = self.convolve(x, f"{name}.downsample.0", y.shape[1], 1, stride, 0)
            x = self.normalise(x, f"{name}.downsample.1")
        return np.maximum(y + x, 0)

    def convolve(self, x, name, filters, kernel, stride, padding):
        weight = self.draw(f"{name}.weight", (filters, x.shape[1], kernel, kernel), 0.05)
        x = np.pad(x, [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2])
        windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), (2, 3))
        return np.einsum(
            "nihwrc,oirc->nohw", windows[:, :, ::stride, ::stride], weight, optimize=True
        )

    def normalise(self, x, name):
        channels = (x.shape[1],)
        gamma, beta = (
            self.draw(f"{name}.weight", channels, 0.3, 1.0),
            self.draw(f"{name}.bias", channels),
        )
        mean = self.draw(f"{name}.running_mean", channels)
        variance = self.draw(f"{name}.running_var", channels, 0.1, 1.0) ** 2
        self.state[f"{name}.running_var"] = variance
        self.state[f"{name}.num_batches_tracked"] = np.int64(7)
        mean, variance, gamma, beta = (a[:, None, None] for a in (mean, variance, gamma, beta))
        return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta

    def pool(self, x):
        x = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
        return windows[:, :, ::2, ::2].max((-2, -1))

    def draw(self, key, shape, scale=0.2, middle=0.0):
        assert key not in self.state, f"'{key}' is used twice"
        self.state[key] = middle + scale * self.random.normal(size=shape)
        return self.state[key]


def reference(name, x, classes=1000):
    """Return logits, and the state dict that they were computed with."""
    torch = Torch(name, classes)
    logits = torch(np.moveaxis(x, -1, 1))
    return logits, {k: np.asarray(a) for k, a in torch.state.items()}


def images(n, h, w):
    return np.random.default_rng(1).normal(size=(n, h, w, 3))


@cache
def built(name):
    """Return a network with its initial weights; tests do not change it."""
    return BUILDERS[name]()


@pytest.fixture(scope="module")
def state():
    """State dict of a ResNet-18 with four classes."""
    return reference("resnet18", images(1, 32, 32), 4)[1]


@pytest.fixture(scope="module")
def network():
    """ResNet-18 with four classes; tests may assign its weights."""
    return resnet18(classes=4)


# ------------------------------------------------------------------------------ tests


@pytest.mark.slow
@every_network
def test_parameters(name):
    count = sum(w.shape.num_elements() for w in built(name).trainable_weights)
    assert count == PARAMETERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_group_normalisation(name):
    """The network has as many trainable parameters as with batches, no others, and 32 groups in every layer."""
    model = BUILDERS[name](norm="group")
    norms = [layer for layer in model.layers if isinstance(layer, layers.GroupNormalization)]
    assert sum(w.shape.num_elements() for w in model.weights) == PARAMETERS[name]
    assert len(norms) == sum(isinstance(n, layers.BatchNormalization) for n in built(name).layers)
    assert {norm.groups for norm in norms} == {32}


@pytest.mark.slow
def test_group_normalisation_is_that_of_torch(float64, tmp_path):
    """Torch normalises the channels of a group over the whole image, and then scales each channel."""
    _, state = reference("resnet18", images(1, 32, 32), 4)
    state = {k: a for k, a in state.items() if "running" not in k and "num_batches" not in k}
    save_file(state, tmp_path / "w.safetensors")
    model = resnet18((40, 32, 3), classes=4, norm="group")
    pretrained.load(model, tmp_path / "w.safetensors")
    outputs = [model.get_layer(layer).output for layer in ("conv1", "bn1")]
    x, y = keras.Model(model.input, outputs)(images(2, 40, 32))
    groups = x.numpy().reshape(2, 20, 16, 32, 2)
    axes = (1, 2, 4)
    centred = groups - groups.mean(axes, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5)
    expected = expected.reshape(x.shape) * state["bn1.weight"] + state["bn1.bias"]
    assert_same(y.numpy(), expected, FLOAT64)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", (64, 32)),
        *(
            pytest.param(name, size, marks=pytest.mark.slow)
            for name, size in [
                ("resnet18", (71, 45)),
                ("resnet34", (64, 32)),
                ("resnet34", (71, 45)),
                ("resnet50", (64, 32)),
                ("resnet50", (39, 45)),
            ]
        ),
    ],
)
def test_logits_match_numpy(name, size, float64, tmp_path):
    """At even and odd sizes, where padding on all sides and padding="same" differ."""
    x = images(2, *size)
    expected, state = reference(name, x)
    save_file(state, tmp_path / "weights.safetensors")
    model = BUILDERS[name]()
    pretrained.load(model, tmp_path / "weights.safetensors")
    assert_same(model(x, training=False), expected, FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_dtypes_of_files(kind, state, network, tmp_path):
    state = {k: a.astype(kind) for k, a in state.items()}
    save_file(state, str(tmp_path / "w.safetensors"))
    pretrained.load(network, tmp_path / "w.safetensors")
    expected = state["layer3.1.conv2.weight"].astype("float32")  # [out, in, rows, columns]
    kernel = network.get_layer("layer3.1.conv2").kernel.numpy()  # [rows, columns, in, out]
    assert_same(kernel[2, 1, 7, 200], expected[200, 7, 2, 1])
    assert_same(kernel, np.moveaxis(np.moveaxis(expected, 0, -1), 0, -2))


@pytest.mark.slow
def test_npz_files(state, network, tmp_path):
    np.savez(tmp_path / "w.npz", **state)
    save_file(state, tmp_path / "w.safetensors")
    weights = []
    for path in (tmp_path / "w.npz", str(tmp_path / "w.safetensors")):
        network.set_weights([np.zeros(w.shape) for w in network.weights])
        pretrained.load(network, path)
        weights.append(network.get_weights())
    assert_same(*weights)


@pytest.mark.slow
def test_without_its_top(float64, tmp_path):
    x = images(2, 71, 45)
    logits, state = reference("resnet18", x)
    np.savez(tmp_path / "w.npz", **state)
    outputs = {}
    for pooling in (None, "avg", "max"):
        model = resnet18((71, 45, 3), include_top=False, pooling=pooling)
        pretrained.load(model, tmp_path / "w.npz")
        outputs[pooling] = model.predict(x, verbose=0)
    assert outputs[None].shape == (2, 3, 2, 512)
    assert_same(outputs["avg"], outputs[None].mean((1, 2)), FLOAT64)
    assert_same(outputs["max"], outputs[None].max((1, 2)))
    assert_same(outputs["avg"] @ state["fc.weight"].T + state["fc.bias"], logits, FLOAT64)


@pytest.mark.slow
def test_streamed_and_nested_networks(state, network, tmp_path):
    np.savez(tmp_path / "w.npz", **state)
    pretrained.load(network, tmp_path / "w.npz")
    image = keras.Input((None, None, 3), dtype="uint8")
    scaled = layers.Rescaling([1 / 58.4, 1 / 57.1, 1 / 57.4], [-2.1, -2.0, -1.8])(image)
    inner = resnet18(classes=4)
    streamed = tfbig.stream(keras.Model(image, inner(scaled)))
    pretrained.load(streamed, tmp_path / "w.npz")
    assert_same(inner.get_weights(), network.get_weights())


def test_gradient_of_padded_pooling(float64):
    """A window of zeros ties with the zeros of the padding; ReLU stops the gradient that they take."""
    model = resnet18((9, 9, 3), include_top=False)
    before = keras.Input((9, 9, 3))
    x = layers.ReLU()(before)
    for name in ("maxpool.pad", "maxpool"):
        x = model.get_layer(name)(x)
    pooled = keras.Model(before, x)
    same = keras.Model(before, layers.MaxPooling2D(3, 2, padding="same")(layers.ReLU()(before)))
    image = tf.constant(integers((2, 9, 9, 3), "float64") - 2)  # mostly negative
    cotangent = integers((2, 5, 5, 3), "float64", seed=1)
    # odd sizes: padding="same" pads one row on each side, with -inf
    assert_same(*(gradients(network, image, [], cotangent) for network in (pooled, same)))


def test_strides_are_in_3x3_convolutions():
    strides = {
        layer.name: layer.strides[0]
        for layer in built("resnet26").layers
        if isinstance(layer, layers.Conv2D) and layer.strides[0] > 1
    }
    inner = [f"layer{s}.0.{part}" for s in (2, 3, 4) for part in ("conv2", "downsample.0")]
    assert strides == dict.fromkeys(["conv1", *inner], 2)


def test_initial_weights():
    """Layers differ, and have torchvision's spread: the variance of a kernel is 2 / (rows * columns * out)."""
    model = built("resnet18")
    first, second = (model.get_layer(f"layer1.{i}.conv1").kernel.numpy() for i in (0, 1))
    assert not np.array_equal(first, second)
    assert first.std() == pytest.approx((2 / (3 * 3 * 64)) ** 0.5, rel=0.02)  # of 36864 numbers
    bound = 512**-0.5
    assert abs(model.get_layer("fc").kernel.numpy()).max() == pytest.approx(bound, rel=1e-3)


@pytest.mark.slow
def test_streamed_training(float64):
    model = resnet18((None, None, 3), classes=3)
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    x, y = images(2, 70, 45), np.eye(3)[[0, 2]]
    big = tfbig.stream(model, strip_rows=16)
    losses = []
    for network in (big, twin):
        network.compile(keras.optimizers.SGD(0.1), keras.losses.CategoricalCrossentropy(True))
        losses.append([np.float64(network.train_on_batch(x, y)) for _ in range(2)])
    assert_same([*losses[0], *model.get_weights()], [*losses[1], *twin.get_weights()], FLOAT64)


def test_invalid_pooling():
    with pytest.raises(
        ValueError, match=r"pooling='mean': expected None, 'avg', 'max' or 'flatten'"
    ):
        resnet18(include_top=False, pooling="mean")


def test_invalid_norm():
    with pytest.raises(ValueError, match=r"norm='layer' of resnet34: expected 'batch' or 'group'"):
        resnet34(norm="layer")
