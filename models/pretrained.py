"""Weights of a network from a file: of torchvision, of timm, or of tfbig."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np

from tfbig.models import mobilenet, vision_transformer, weight_files
from tfbig.models.vision_transformer import LayerScale, Query, Tokens
from tfbig.models.weight_files import Arrays
from tfbig.system import keras_internals

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of the channels of ImageNet, divided by 255, that the weights of `IMAGENET` expect."""
IMAGENET = {
    "resnet18": "timm/resnet18.tv_in1k",
    "resnet18_flat": "timm/resnet18.tv_in1k",
    "resnet26": "timm/resnet26.bt_in1k",
    "resnet34": "timm/resnet34.tv_in1k",
    "resnet50": "timm/resnet50.tv_in1k",
    "resnet50_gn": "timm/resnet50_gn.a1h_in1k",
    "mobilenetv2": "timm/mobilenetv2_100.ra_in1k",
}
"""Published weights of each network after training on ImageNet-1k; `tv` are those of torchvision."""

NOT_WEIGHTS = ("num_batches_tracked", "mask_token", "masked_embed")
"""Endings of keys that no network uses: torch counts batches, and masks patches in training."""
OUTSIDE = "../"
"""Prefix of the names of layers outside the network, such as the layer of its code."""
CLASSIFIERS = ("fc.", "classifier.", "head.", "pooler.", "layers/dense/", OUTSIDE)
"""Beginnings of keys that a network without its top does not use."""
KINDS = {
    keras.layers.Conv2D: "conv2d",
    keras.layers.DepthwiseConv2D: "depthwise_conv2d",
    keras.layers.Dense: "dense",
    keras.layers.BatchNormalization: "batch_normalization",
    keras.layers.GroupNormalization: "group_normalization",
    keras.layers.LayerNormalization: "layer_normalization",
    Tokens: "tokens",
    LayerScale: "layer_scale",
    Query: "query",
}
"""Layers with weights, and their names in `.weights.h5` files."""
NORMS = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
)
POSITIONS = "pos_embed"
"""Key of position embeddings."""
TRUNK = "trunk."
"""Prefix that CONCH gives the names of its vision transformer."""
WRAPPED = "layers/functional/"
"""Prefix that Keras gives the names of a model inside a model."""

Variables: TypeAlias = dict[str, tuple[keras.Variable, tuple[int, ...]]]
"""By the key of a file: a variable, and the order of the file's axes in it."""


@dataclass(frozen=True)
class Loaded:
    """The result of loading weights from a file.

    Attributes:
        tensors: Number of tensors that were assigned.
        unused: Names of the tensors of the file that the network does not have, such as those of the classifier.
    """

    tensors: int
    unused: tuple[str, ...] = ()

    def __str__(self) -> str:
        unused = f"; not used: {', '.join(self.unused)}" if self.unused else ""
        return f"{self.tensors} tensors loaded{unused}"


def load(model: keras.Model, path: str | Path) -> Loaded:
    """Assign the weights of a file to a network, and return what was loaded.

    Where torch is installed, this writes such a file, from any state dict of the same layout:

        safetensors.torch.save_file(torchvision.models.resnet18(weights="DEFAULT").state_dict(), path)

    Args:
        model: Network of `tfbig.models`, such as one of `tfbig.models.encoders`; it may be streamed, or part of a
            larger model that has no other weights.
        path: A file that `tfbig.models.weight_files.read` accepts, with names and layouts of torchvision, timm, or
            for vision transformers transformers, or the `.weights.h5` of the same network, also inside a larger model.
            Without its top, the classifier of the file is left out.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is damaged or of another kind, or a key is missing, has another shape, or
            is not in the model. Nothing has been assigned then.
    """
    arrays = weight_files.read(path)
    by_keras = any(key.startswith("layers/") for key in arrays)
    expected = _keras_variables(model) if by_keras else _torch_variables(model)
    arrays = _unwrapped(arrays, expected) if by_keras else _as_torchvision(arrays, model)
    for key, (variable, order) in expected.items():
        _check_key(key, _shape(variable, order), arrays, path, model.name)
    unused = sorted(arrays.keys() - expected.keys())
    unknown = {key: arrays[key] for key in unused if not key.startswith(CLASSIFIERS)}
    if unknown:
        raise ValueError(
            f"{path}: has {_describe(unknown)}, which '{model.name}' does not have, so it belongs to another network. "
            "Use weights of the same network, or build the network that they belong to."
        )
    for key, (variable, order) in expected.items():
        variable.assign(arrays[key].transpose(order).astype(variable.dtype))
    return Loaded(len(expected), tuple(unused))


def copy(network: keras.Model, trained: keras.Model) -> Loaded:
    """Assign the weights of a network to another of the same architecture, and return what was loaded.

    Changes by LoRA of the trained network are part of its kernels then.

    Args:
        network: Network that gets the weights.
        trained: Network that has them.

    Raises:
        ValueError: The two have different weights. Nothing has been assigned then.
    """
    kernels = keras_internals.changed_kernels(trained)
    ours = network.weights
    theirs = [weight for weight in trained.weights if weight.name not in keras_internals.LORA]
    for new, old in zip(ours, theirs, strict=False):
        if new.shape != old.shape:
            raise ValueError(
                f"'{old.path}' has shape {tuple(old.shape)}, '{network.name}' expects {tuple(new.shape)}. Use weights "
                "of the same network."
            )
    if len(ours) != len(theirs):
        raise ValueError(
            f"has {len(theirs)} tensors, '{network.name}' expects {len(ours)}. Use weights of the same network."
        )
    network.set_weights([np.asarray(kernels.get(id(weight), weight)) for weight in theirs])
    return Loaded(len(ours))


def find(model: Any, name: str) -> keras.Model | None:
    """Find the network of this name in a model, the outermost if there are several; None without one.

    Args:
        model: Keras model or layer.
        name: Name of an encoder.
    """
    if isinstance(model, keras.Model) and model.name == name:
        return model
    inside = (getattr(model, each, None) for each in ("model", "encoder"))  # bags, latent grids
    parts = [*getattr(model, "layers", ()), *inside]
    found = (find(part, name) for part in parts if part is not None)
    return next((each for each in found if each is not None), None)


def _leaves(model: keras.Model) -> Iterator[keras.Layer]:
    """Yield the layers of a model, and those of models inside it."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _leaves(layer)
        else:
            yield layer


def _torch_variables(model: keras.Model) -> Variables:
    """The variables of a model by torchvision's keys."""
    variables: Variables = {}
    for layer in _leaves(model):
        if isinstance(layer, keras.layers.Conv2D):
            # From [out, in, rows, columns].
            variables[f"{layer.name}.weight"] = layer.kernel, (2, 3, 1, 0)
            if layer.use_bias:
                variables[f"{layer.name}.bias"] = layer.bias, (0,)
        elif isinstance(layer, keras.layers.DepthwiseConv2D):
            # From [channels, 1, rows, columns].
            variables[f"{layer.name}.weight"] = layer.kernel, (2, 3, 0, 1)
        elif isinstance(layer, keras.layers.Dense):
            # From [out, in].
            variables[f"{layer.name}.weight"] = layer.kernel, (1, 0)
            if layer.use_bias:
                variables[f"{layer.name}.bias"] = layer.bias, (0,)
        elif isinstance(layer, (Tokens, LayerScale, Query)):
            prefix = "" if isinstance(layer, Tokens) else f"{layer.name}."
            for variable in layer.weights:
                variables[f"{prefix}{variable.name}"] = variable, tuple(range(len(variable.shape)))
        elif isinstance(layer, NORMS):
            variables[f"{layer.name}.weight"] = layer.gamma, (0,)
            variables[f"{layer.name}.bias"] = layer.beta, (0,)
        if isinstance(layer, keras.layers.BatchNormalization):
            variables[f"{layer.name}.running_mean"] = layer.moving_mean, (0,)
            variables[f"{layer.name}.running_var"] = layer.moving_variance, (0,)
    return variables


def _keras_variables(model: keras.Model) -> Variables:
    """The variables of a model by their names in the `.weights.h5` of its innermost network."""
    variables: Variables = {}
    numbers: Counter[str] = Counter()
    for layer in _leaves(model):
        kind = KINDS.get(type(layer))
        if kind is None:
            continue
        name = f"{kind}_{numbers[kind]}" if numbers[kind] else kind
        numbers[kind] += 1
        for i, variable in enumerate(layer.variables):
            variables[f"layers/{name}/vars/{i}"] = variable, tuple(range(len(variable.shape)))
    return variables


def _as_torchvision(arrays: Arrays, model: keras.Model) -> Arrays:
    """Rename arrays as the network names its layers, which is as torchvision or timm does.

    Those that no network uses are left out, and position embeddings are fitted to the size of the images.
    """
    arrays = {key.replace("/", ".").removeprefix(TRUNK): array for key, array in arrays.items()}
    arrays = {key: array for key, array in arrays.items() if not key.endswith(NOT_WEIGHTS)}
    if "conv_stem.weight" in arrays:
        return mobilenet.from_timm(arrays)
    arrays = vision_transformer.from_transformers(arrays)
    for layer in _leaves(model):
        if isinstance(layer, Tokens) and POSITIONS in arrays:
            arrays[POSITIONS] = layer.fitted(arrays[POSITIONS])
    return arrays


def _unwrapped(arrays: Arrays, expected: Mapping[str, Any]) -> Arrays:
    """Rename the arrays of a `.weights.h5` as its innermost network does."""
    first = next(iter(expected))
    wrapped = (WRAPPED * depth for depth in range(4))
    prefix = next((prefix for prefix in wrapped if prefix + first in arrays), "")

    def name(key: str) -> str:
        return key.removeprefix(prefix) if key.startswith(prefix) else f"{OUTSIDE}{key}"

    return {name(key): array for key, array in arrays.items()}


def _check_key(
    key: str, shape: tuple[int, ...], arrays: Arrays, path: str | Path, model: str
) -> None:
    """Raise unless the file has an array of this key with this shape."""
    if key not in arrays:
        raise ValueError(
            f"{path}: has no '{key}', which '{model}' expects with shape {shape}; the file has {_describe(arrays)}. "
            "Use weights of the same network, under the names of torchvision, timm, transformers or tfbig."
        )
    if arrays[key].shape != shape:
        advice = "Use weights of the same network"
        if key.startswith(CLASSIFIERS):
            advice = "Build the model with as many classes as the file, or with include_top=False"
        elif key == POSITIONS:
            advice = "Use tiles of the size that the weights were trained with, of the same network"
        raise ValueError(
            f"{path}: '{key}' has shape {arrays[key].shape}, '{model}' expects {shape}. {advice}."
        )


def _shape(variable: keras.Variable, order: Sequence[int]) -> tuple[int, ...]:
    """The shape of a variable in the file's order of axes."""
    return tuple(int(variable.shape[order.index(axis)]) for axis in range(len(order)))


def _describe(arrays: Arrays) -> str:
    """Summarise arrays, such as `3 keys, such as 'conv1.weight' of shape (64, 3, 7, 7)`."""
    if not arrays:
        return "no keys"
    key = sorted(arrays)[0]
    keys = "1 key" if len(arrays) == 1 else f"{len(arrays)} keys"
    return f"{keys}, such as '{key}' of shape {arrays[key].shape}"
