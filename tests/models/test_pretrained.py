"""Weights of torchvision, timm and tfbig: features are those of torch, and misfits are named."""

import json

import h5py
import numpy as np
import pytest
import torch_weights
from exactness import FLOAT64, assert_same
from safetensors.numpy import load_file

import tfbig
from tfbig.models import encoders, latent, pretrained
from tfbig.models.pooling import ABMIL
from tfbig.models.resnet import resnet18

slow = pytest.mark.slow
NETWORKS = [
    "mobilenetv2",
    *(
        pytest.param(n, marks=slow)
        for n in ("resnet18", "resnet34", "resnet50", "resnet26", "resnet50_gn", "mobilenetv2_timm")
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with networks of torchvision."""
    return torch_weights.write(tmp_path_factory.mktemp("torch"), "resnet18", "mobilenetv2")


def encoder_of(name):
    scale = (pretrained.IMAGENET_MEAN, pretrained.IMAGENET_STD)
    return encoders.make(name.removesuffix("_timm"), (71, 64, 3), *scale)


@pytest.mark.torch
@pytest.mark.parametrize("name", NETWORKS)
def test_features_are_those_of_torch(name, folder, float64):
    """At an odd and an even size, with and without the normalisation of images of 0 to 255."""
    if not (folder / f"{name}.npz").exists():
        torch_weights.write(folder, name)
    expected = np.load(folder / f"{name}.npz")
    for suffix in (".safetensors", ".pth"):
        encoder = encoder_of(name)
        loaded = pretrained.load(encoder, folder / f"{name}{suffix}")
        assert loaded.tensors == len(encoder.weights)
        assert {key.partition(".")[0] for key in loaded.unused} <= {"fc", "classifier"}
        assert len(loaded.unused) == 2
        network = encoder.get_layer(encoder.name)
        mean, std = pretrained.IMAGENET_MEAN, pretrained.IMAGENET_STD
        features = network((expected["x"] / 255 - mean) / std, training=False)
        assert_same(features, expected["features"], FLOAT64)
    features = encoder(
        expected["x"], training=False
    )  # whose Rescaling rounds its factors to float32
    assert_same(features, expected["features"], 1e-6)


@pytest.mark.torch
def test_what_was_loaded(folder):
    loaded = pretrained.load(encoder_of("resnet18"), folder / "resnet18.safetensors")
    assert str(loaded) == "100 tensors loaded; not used: fc.bias, fc.weight"


@pytest.mark.torch
def test_hdf5_with_names_of_torch(folder, tmp_path):
    """Names with dots, or groups in the place of dots."""
    arrays = load_file(folder / "mobilenetv2.safetensors")
    expected = encoder_of("mobilenetv2")
    pretrained.load(expected, folder / "mobilenetv2.safetensors")
    for separator in ("/", "."):
        with h5py.File(tmp_path / "w.h5", "w") as file:
            for key, array in arrays.items():
                file[key.replace(".", separator)] = array
        encoder = encoder_of("mobilenetv2")
        pretrained.load(encoder, tmp_path / "w.h5")
        assert_same(encoder.get_weights(), expected.get_weights())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "small", "lenet"])
def test_own_files(name, tmp_path):
    """A network alone, behind its normalisation, with a code, or with a top: each file fits an encoder."""
    shape = (28, 28, 3)
    models = [encoders.make(name, shape), encoders.make(name, shape, latent=4)]
    if name == "resnet18":
        models += [resnet18(include_top=False, pooling="avg"), resnet18(classes=4)]
    for number, model in enumerate(models):
        model.save_weights(tmp_path / f"{number}.weights.h5")
        encoder = encoders.make(name, shape)
        loaded = pretrained.load(encoder, tmp_path / f"{number}.weights.h5")
        ours = len(encoder.weights)
        assert loaded.tensors == ours
        assert len(loaded.unused) == len(model.weights) - ours
        trained = model.get_weights()[:ours]
        assert_same(encoder.get_weights(), trained)


@pytest.mark.torch
def test_what_torchvision_gave_can_be_saved(folder, tmp_path):
    """The way of older guides: torchvision's weights into a network, saved, and loaded into an encoder."""
    network = resnet18(include_top=False)
    pretrained.load(network, folder / "resnet18.safetensors")
    network.save_weights(tmp_path / "w.weights.h5")
    encoder = encoder_of("resnet18")
    pretrained.load(encoder, tmp_path / "w.weights.h5")
    assert_same(encoder.get_weights(), network.get_weights())


def test_copies_of_trained_models():
    """The encoder of a model of bags, of PatchGD, and of a baseline."""
    shape = (16, 16, 1)
    bags = tfbig.mil.bag_model(encoders.make("small", shape), ABMIL(2))
    head = latent.make_head("abmil", 3, latent=4)
    patches = tfbig.PatchGD(encoders.make("small", shape, latent=4), head, 16)
    whole = latent.baseline("small", (64, 64, 1), 5, latent=8, width=8)
    for model in (bags, patches, whole):
        trained = pretrained.find(model, "small")
        encoder = encoders.make("small", shape)
        assert pretrained.copy(encoder, trained).tensors == len(encoder.weights)
        assert_same(encoder.get_weights(), trained.get_weights())
        assert pretrained.find(model, "strided") is None


@pytest.mark.parametrize(
    ("trained", "message"),
    [
        (
            lambda: encoders.make("small", (8, 8, 3)),
            r"has shape \(3, 3, 3, 16\), 'small' expects \(3, 3, 1, 16\)",
        ),
        (lambda: encoders.small((8, 8, 1), (16, 32)), "has 6 tensors, 'small' expects 9"),
    ],
)
def test_copies_of_other_networks(trained, message):
    encoder = encoders.make("small", (8, 8, 1))
    before = encoder.get_weights()
    with pytest.raises(ValueError, match=message):
        pretrained.copy(encoder, trained())
    assert_same(encoder.get_weights(), before)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (
            lambda: encoders.make("small", (16, 16, 1)),
            r"'layers/conv2d/vars/0' has shape \(3, 3, 1, 16\), 'small' expects \(3, 3, 3, 16\)",
        ),
        (
            lambda: encoders.small((16, 16, 3), (16, 32)),
            r"has no 'layers/conv2d_2/vars/0', which 'small' expects with shape \(3, 3, 32, 64\); the file has 6 keys",
        ),
        (
            lambda: encoders.small((16, 16, 3), (16, 32, 64, 64)),
            r"has 3 keys, such as 'layers/conv2d_3/vars/0' of shape \(3, 3, 64, 64\), which 'small' does not have",
        ),
    ],
)
def test_own_files_of_another_network(saved, message, tmp_path):
    saved().save_weights(tmp_path / "w.weights.h5")
    encoder = encoders.make("small", (16, 16, 3))
    before = encoder.get_weights()
    with pytest.raises(ValueError, match=message):
        pretrained.load(encoder, tmp_path / "w.weights.h5")
    assert_same(encoder.get_weights(), before)


@pytest.mark.slow
@pytest.mark.torch
def test_published_weights_exist(tmp_path):
    """Every repository of `IMAGENET` is one of timm, and expects the same mean and deviation."""
    torch_weights.write(tmp_path)
    published = json.loads((tmp_path / "published.json").read_text())
    scale = [list(pretrained.IMAGENET_MEAN), list(pretrained.IMAGENET_STD)]
    assert {published[name] == scale for name in pretrained.IMAGENET.values()} == {True}
    assert pretrained.IMAGENET.keys() <= encoders.NETWORKS.keys()


@pytest.fixture(scope="module")
def network():
    """ResNet-18 with four classes; tests may assign its weights."""
    return resnet18(classes=4)


@pytest.fixture(scope="module")
def state(network):
    """State dict of a ResNet-18 with four classes."""
    expected = pretrained._torch_variables(network)
    return {key: np.zeros(pretrained._shape(*v), "float32") for key, v in expected.items()}


def without(state, *keys):
    return {k: a for k, a in state.items() if k not in keys}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: without(s, "layer2.0.downsample.0.weight"),
            r"w.npz: has no 'layer2.0.downsample.0.weight', which 'resnet18' expects with shape "
            r"\(128, 64, 1, 1\); the file has 101 keys, such as 'bn1.bias' of shape \(64,\)\. Use",
        ),
        (lambda s: {}, "has no 'conv1.weight', .*; the file has no keys"),
        (
            lambda s: s | {"conv1.weight": np.zeros((64, 1, 7, 7))},
            r"w.npz: 'conv1.weight' has shape \(64, 1, 7, 7\), 'resnet18' expects \(64, 3, 7, 7\)\. Use",
        ),
        (
            lambda s: s | {"fc.weight": np.zeros((1000, 512)), "fc.bias": np.zeros(1000)},
            r"'fc.weight' has shape \(1000, 512\), 'resnet18' expects \(4, 512\)\. .* include_top=False",
        ),
        (
            lambda s: s | {"layer1.2.bn1.bias": np.zeros(64)},
            r"has 1 key, such as 'layer1.2.bn1.bias' of shape \(64,\), which 'resnet18' does not have",
        ),
    ],
    ids=["missing", "empty", "shape", "classes", "unknown"],
)
def test_weights_of_another_network(change, message, state, network, tmp_path):
    """The error names the difference, and nothing is assigned."""
    before = network.get_weights()
    np.savez(tmp_path / "w.npz", **change(state))
    with pytest.raises(ValueError, match=message):
        pretrained.load(network, tmp_path / "w.npz")
    assert_same(network.get_weights(), before)
