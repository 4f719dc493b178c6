"""Vision transformers: every option is that of timm, position embeddings are resized as in timm."""

import keras
import mil_models
import numpy as np
import pytest
import torch_weights
from exactness import FLOAT64, assert_same

from tfbig.models import pretrained, vision_transformer
from tfbig.models.pooling import ABMIL
from tfbig.models.scaling import scaled
from tfbig.models.vision_transformer import Tokens, ViT

MEAN, STD = np.array(pretrained.IMAGENET_MEAN), np.array(pretrained.IMAGENET_STD)
SMALL = {"model_name": "vit_tiny_patch16_224", "patch_size": 8, "embed_dim": 24, "num_heads": 3}
OURS = {"patch": 8, "width": 24, "depth": 2, "heads": 3}
NO_TOKEN = {"class_token": False, "global_pool": "avg"}
VARIANTS = {
    "plain": ({}, {}),
    "scaled": ({"init_values": 0.1, "mlp_ratio": 2.4}, {"layer_scale": 0.1, "mlp_ratio": 2.4}),
    "swiglu": ({"swiglu": True, "mlp_ratio": 2.7}, {"mlp": "swiglu", "mlp_ratio": 64 / 24}),
    "registers": ({"reg_tokens": 3}, {"registers": 3}),
    "registers_outside": (
        {"reg_tokens": 3, "no_embed_class": True},
        {"registers": 3, "prefix_positions": False},
    ),
    "without_bias": ({"qkv_bias": False, "eps": 0.1}, {"qkv_bias": False, "epsilon": 0.1}),
    "mean": (
        {"global_pool": "avg", "reg_tokens": 1},
        {"pooling": "mean", "registers": 1},
    ),
    "without_token": (NO_TOKEN, {"pooling": "mean", "class_token": False}),
    "tokens": ({"global_pool": ""}, {"pooling": None}),
    "wider": ({"stored": [16, 16]}, {}),
    "smaller": (
        {"stored": [72, 72], "reg_tokens": 2, "no_embed_class": True},
        {"registers": 2, "prefix_positions": False},
    ),
}
"""Options of timm, and ours."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with all variants."""
    specs = []
    for name, (theirs, _) in VARIANTS.items():
        options = SMALL | theirs
        stored = {"stored": options.pop("stored")} if "stored" in options else {}
        specs.append({"name": name, "options": options, "depth": 2, "size": [16, 32]} | stored)
    return torch_weights.write_transformers(tmp_path_factory.mktemp("torch"), *specs)


@pytest.mark.torch
@pytest.mark.parametrize("name", VARIANTS)
def test_features_are_those_of_timm(name, folder, float64):
    """Features differ in float64 only by TensorFlow's gelu, which rounds sqrt(2) to float32, and resized positions."""
    config = ViT(**OURS | VARIANTS[name][1])
    model = vision_transformer.vision_transformer((16, 32, 3), config)
    expected = np.load(folder / f"{name}.npz")
    loaded = pretrained.load(model, folder / f"{name}.safetensors")
    assert loaded.tensors == len(model.weights)
    assert loaded.unused == ()
    features = model((expected["x"].astype("float64") / 255 - MEAN) / STD)
    error = FLOAT64 if config.mlp == "swiglu" else 1e-8
    error = 1e-6 if name in ("wider", "smaller") else error
    assert_same(features, expected["features"], error)
    if config.pooling is not None:
        assert features.shape == (2, config.features)


def test_class_token_and_mean_of_patches():
    """The mean leaves out class token and registers."""
    config = ViT(**OURS, registers=3, pooling=None)
    model = vision_transformer.vision_transformer((16, 32, 3), config)
    pooled = vision_transformer.vision_transformer(
        (16, 32, 3), ViT(**OURS, registers=3, pooling="token_mean")
    )
    pooled.set_weights(model.get_weights())
    x = np.random.default_rng(0).normal(size=(2, 16, 32, 3)).astype("float32")
    tokens = model(x).numpy()
    assert tokens.shape == (2, 1 + 3 + 8, 24)
    expected = np.concatenate([tokens[:, 0], tokens[:, 4:].mean(1)], -1)
    np.testing.assert_allclose(pooled(x), expected, atol=1e-6)


def test_positions_that_do_not_fit():
    """They stay as they are, so that an error can name them: grids that are not square, or without a resampling."""
    layer, refusing = Tokens(resampling="timm"), Tokens()
    for each in (layer, refusing):
        each.build((None, 2, 4, 5))
    ones = np.ones((1, 1 + 9, 5), "float32")
    assert layer.fitted(ones).shape == (1, 9, 5)
    assert refusing.fitted(ones) is ones
    for shape in [(1, 1 + 8, 5), (1, 1 + 6, 5), (1, 1, 5), (9, 5)]:
        positions = np.ones(shape, "float32")
        assert layer.fitted(positions) is positions


def test_names_of_other_files_stay():
    arrays = {"conv1.weight": np.zeros(1)}
    assert vision_transformer.from_transformers(arrays) is arrays


def test_names_of_transformers():
    """The prefix of a larger model is left out; queries, keys and values become one tensor."""
    block = "vit.encoder.layer.11.attention"
    arrays = {
        "vit.embeddings.cls_token": np.zeros(1),
        "classifier.weight": np.zeros(1),
        **{
            f"{block}.attention.{part}.bias": np.full(2, i)
            for i, part in enumerate(("query", "key", "value"))
        },
        f"{block}.output.dense.bias": np.zeros(2),
    }
    named = vision_transformer.from_transformers(arrays)
    assert named.keys() == {
        *("cls_token", "classifier.weight"),
        *("blocks.11.attn.qkv.bias", "blocks.11.attn.proj.bias"),
    }
    assert_same(named["blocks.11.attn.qkv.bias"], np.array([0, 0, 1, 1, 2, 2]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "heads=5: expected a divisor of width=24"),
        ({"mlp": "relu"}, "mlp='relu': expected one of 'gelu', 'swiglu'"),
        ({"pooling": "max"}, "pooling='max': expected one of None, 'token', 'token_mean', 'mean'"),
        ({"resampling": "nearest"}, "resampling='nearest': expected one of None, 'timm'"),
        ({"class_token": False}, "pooling='token' needs class_token=True; choose 'mean'"),
    ],
)
def test_configurations_that_do_not_exist(options, message):
    with pytest.raises(ValueError, match=message):
        ViT(**OURS | options)


def tile_encoder():
    """Two blocks with registers, for tiles of the size of `mil_models.SIDE`."""
    keras.utils.set_random_seed(3)
    config = ViT(3, 12, 2, 2, mlp="swiglu", registers=2, layer_scale=1.0, pooling="token_mean")
    shape = (mil_models.SIDE, mil_models.SIDE, 3)
    return scaled(vision_transformer.vision_transformer(shape, config), shape, 0.5, 0.2)


@pytest.mark.slow
def test_training_on_bags(float64):
    """A step in slices of three instances, the last of one, equals a step on the whole bag."""
    models = mil_models.both(
        lambda: ABMIL(2, hidden=8), lambda: keras.optimizers.SGD(0.1, momentum=0.9), tile_encoder
    )
    before = models[0].get_weights()
    side = mil_models.SIDE
    bag = np.random.default_rng(0).integers(0, 256, (1, 7, side, side, 3)).astype("float64")
    losses = [model.train_on_batch(bag, np.array([1]))[0] for model in models]
    assert_same(losses[0], losses[1], FLOAT64)
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)
    for variable, old in zip(models[0].encoder.weights, before, strict=False):
        assert np.abs(variable - old).max() > 0, variable.path
