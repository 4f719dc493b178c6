"""Encoders of pathology: features are those of timm and transformers, and files of other networks are refused."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import torch_weights
from exactness import assert_same

from tfbig.models import pathology_encoders, pretrained, vision_transformer
from tfbig.models.pathology_encoders import PATHOLOGY_ENCODERS

ENCODERS = sorted(PATHOLOGY_ENCODERS)
FLOAT32 = 1e-5
"""Error of float32 features, relative to the largest of them."""
DEPTH = 2
SAME = {"h-optimus-1": "h-optimus-0"}
"""Encoders with the network and the scale of another, which read its file."""
VARIED = ("phikon", "uni2-h", "virchow2")
"""Encoders that have all kinds of tokens, positions, poolings and names; the others are tested as slow."""
OTHERS = tuple(name for name in ENCODERS if name not in VARIED)


def spec(name, depth=DEPTH, **options):
    """Outputs of an encoder for images of 2 x 3 patches; CONCH's positions are those of 2 x 2."""
    patch = PATHOLOGY_ENCODERS[name].network.patch
    spec = {"name": name, "network": name, "depth": depth, "size": [2 * patch, 3 * patch]}
    return spec | ({"stored": [2 * patch] * 2} if name == "conch-1.5" else {}) | options


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with varied encoders, of two blocks."""
    return write(tmp_path_factory, VARIED)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Folder with the other encoders, of two blocks."""
    return write(tmp_path_factory, OTHERS)


def write(tmp_path_factory, names):
    specs = [spec(name, bin=name == "phikon") for name in names if name not in SAME]
    return torch_weights.write_transformers(tmp_path_factory.mktemp("torch"), *specs)


@pytest.fixture(autouse=True)
def _plain_initial_weights(monkeypatch):
    """Begin with zeros, which takes less time than random numbers."""
    monkeypatch.setattr(vision_transformer, "_normal", lambda: "zeros")


def check(folder, name, depth, suffix=".safetensors"):
    """Load a file and compare the features of tiles from 0 to 255."""
    file = SAME.get(name, name)
    expected = np.load(folder / f"{file}.npz")
    encoder = pathology_encoders.build(name, expected["x"].shape[1:], depth)
    loaded = pretrained.load(encoder, folder / f"{file}{suffix}")
    assert loaded.tensors == len(encoder.weights)
    assert set(loaded.unused) <= {"pooler.dense.weight", "pooler.dense.bias"}
    features = encoder(expected["x"], training=False).numpy()
    assert features.dtype == np.float32
    assert features.shape == (2, PATHOLOGY_ENCODERS[name].width)
    difference = np.abs(features - expected["features"]).max() / np.abs(expected["features"]).max()
    print(f"{name}: {difference:.1e}")
    assert difference <= FLOAT32


@pytest.mark.torch
@pytest.mark.parametrize("name", VARIED)
def test_features_are_those_of_torch(name, folder):
    check(folder, name, DEPTH)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", OTHERS)
def test_features_of_other_encoders_are_those_of_torch(name, others):
    check(others, name, DEPTH)


@pytest.mark.torch
def test_files_of_torch(folder):
    check(folder, "phikon", DEPTH, ".bin")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", ["phikon", "uni2-h"])
def test_full_depth(name, tmp_path):
    """The smallest, and one of the largest."""
    depth = PATHOLOGY_ENCODERS[name].network.depth
    torch_weights.write_transformers(tmp_path, spec(name, depth))
    check(tmp_path, name, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_parameters(name):
    """The full encoder has the published number of parameters; its blocks are equal."""
    entry = PATHOLOGY_ENCODERS[name]
    side = 14 * entry.network.patch if name == "conch-1.5" else entry.size  # as in its file
    one, two = (
        pathology_encoders.network(name, (side, side, 3), depth).count_params() for depth in (1, 2)
    )
    assert one + (entry.network.depth - 1) * (two - one) == entry.parameters


def test_the_size_of_the_weights_is_the_default():
    encoder = pathology_encoders.build("conch-1.5", depth=0)
    assert encoder.input_shape == (None, 448, 448, 3)
    assert encoder.output_shape == (None, 768)
    assert encoder.name == "conch-1.5"


@pytest.mark.slow
def test_encoders_are_saved(tmp_path, monkeypatch):
    """A saved model gives the same features, and so does another encoder that reads saved weights."""
    entry = PATHOLOGY_ENCODERS["conch-1.5"]
    small = replace(entry.network, width=16, heads=2, registers=2)
    entry = replace(entry, network=small, attention_pool=(8, 2))
    monkeypatch.setitem(PATHOLOGY_ENCODERS, "conch-1.5", entry)
    monkeypatch.setattr(vision_transformer, "_normal", keras.initializers.RandomNormal)
    encoder, other = (pathology_encoders.build("conch-1.5", (32, 48, 3), 2) for _ in range(2))
    encoder.save(tmp_path / "e.keras")
    encoder.save_weights(tmp_path / "e.weights.h5")
    x = np.random.default_rng(0).integers(0, 256, (2, 32, 48, 3)).astype("float32")
    features = encoder(x)
    assert_same(keras.saving.load_model(tmp_path / "e.keras")(x), features)
    assert np.abs(other(x) - features).max() > 0.01
    assert pretrained.load(other, tmp_path / "e.weights.h5").tensors == len(encoder.weights)
    assert_same(other(x), features)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "size", "depth", "file", "message"),
    [
        (
            "virchow2",
            (2, 3),
            3,
            "virchow2",
            r"virchow2.safetensors: has no 'blocks.2.norm1.weight', which 'virchow2' expects with shape "
            r"\(1280,\); the file has 35 keys, such as 'blocks.0.attn.proj.bias' .*Use weights of the same network",
        ),
        (
            "phikon",
            (2, 3),
            1,
            "phikon",
            "phikon.safetensors: has 12 keys, such as 'blocks.1.attn.proj.bias' of shape .* belongs to another network",
        ),
        (
            "phikon",
            (2, 3),
            1,
            "uni2-h",
            r"uni2-h.safetensors: 'patch_embed.proj.weight' has shape \(1536, 3, 14, 14\), 'phikon' expects "
            r"\(768, 3, 16, 16\)\. Use weights",
        ),
        (
            "phikon",
            (3, 3),
            2,
            "phikon",
            r"phikon.safetensors: 'pos_embed' has shape \(1, 7, 768\), 'phikon' expects \(1, 10, 768\)\. Use "
            "tiles of the size that the weights were trained with",
        ),
    ],
)
def test_files_of_another_network(name, size, depth, file, message, folder):
    """One line names the file, the tensor, what was expected and what to do; nothing is assigned."""
    patch = PATHOLOGY_ENCODERS[name].network.patch
    encoder = pathology_encoders.build(name, (size[0] * patch, size[1] * patch, 3), depth)
    before = encoder.get_weights()
    with pytest.raises(ValueError, match=message) as raised:
        pretrained.load(encoder, folder / f"{file}.safetensors")
    assert "\n" not in str(raised.value)
    assert_same(encoder.get_weights(), before)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("vit", None, "name='vit': expected one of uni, uni2-h, virchow"),
        ("uni", (224, 224, 1), r"shape=\(224, 224, 1\): 'uni' expects tiles \(H, W, 3\)"),
        (
            "uni2-h",
            (256, 256, 3),
            r"\(256, 256, 3\): 'uni2-h' .* multiples of its patch of 14 pixels",
        ),
        ("uni", (None, None, 3), "expects a known height and width"),
    ],
)
def test_unsuitable_tiles(name, shape, message):
    with pytest.raises(ValueError, match=message):
        pathology_encoders.build(name, shape)
