"""ResNets as torchvision and timm define them, and a reader for their weights."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

EPSILON = 1e-5
MOMENTUM = 0.9  # torch counts from the other end: 0.1
WIDTHS = (64, 128, 256, 512)
GROUPS = 32
NOT_WEIGHTS = ("num_batches_tracked",)  # torch counts batches; neither library uses the number

Norm: TypeAlias = Callable[[keras.KerasTensor, str], keras.KerasTensor]
"""Function `(x, name) -> x` that adds a normalisation."""
Block: TypeAlias = Callable[[keras.KerasTensor, int, int, str, Norm], keras.KerasTensor]
"""Function `(x, width, stride, name, norm) -> x` that adds one residual block."""
Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
"""Arrays of a file by torchvision's key."""
Variables: TypeAlias = dict[str, tuple[keras.Variable, tuple[int, ...]]]
"""By torchvision's key: a variable, and the order of torch's axes in it."""


def resnet18(
    input_shape: Sequence[int | None] = (None, None, 3),
    include_top: bool = True,
    classes: int = 1000,
    pooling: str | None = None,
    name: str = "resnet18",
    norm: str = "batch",
) -> keras.Model:
    """Build ResNet-18, 11689512 parameters with its top. See `resnet` for the arguments and the result."""
    return resnet(
        _basic_block, (2, 2, 2, 2), input_shape, include_top, classes, pooling, name, norm
    )


def resnet34(
    input_shape: Sequence[int | None] = (None, None, 3),
    include_top: bool = True,
    classes: int = 1000,
    pooling: str | None = None,
    name: str = "resnet34",
    norm: str = "batch",
) -> keras.Model:
    """Build ResNet-34, 21797672 parameters with its top. See `resnet` for the arguments and the result."""
    return resnet(
        _basic_block, (3, 4, 6, 3), input_shape, include_top, classes, pooling, name, norm
    )


def resnet50(
    input_shape: Sequence[int | None] = (None, None, 3),
    include_top: bool = True,
    classes: int = 1000,
    pooling: str | None = None,
    name: str = "resnet50",
    norm: str = "batch",
) -> keras.Model:
    """Build ResNet-50, 25557032 parameters with its top. See `resnet` for the arguments and the result.

    `keras.applications.ResNet50` is another network: it strides in the first 1x1 convolution of a
    block, where torchvision strides in the 3x3, and its convolutions have biases.
    """
    return resnet(_bottleneck, (3, 4, 6, 3), input_shape, include_top, classes, pooling, name, norm)


def resnet26(
    input_shape: Sequence[int | None] = (None, None, 3),
    include_top: bool = True,
    classes: int = 1000,
    pooling: str | None = None,
    name: str = "resnet26",
    norm: str = "batch",
) -> keras.Model:
    """Build ResNet-26 of timm, two bottleneck blocks a stage. See `resnet` for the arguments and the result.

    15995176 parameters with its top. The code of ABMIL-ACC has it as the encoder of QMNIST-bags.
    """
    return resnet(_bottleneck, (2, 2, 2, 2), input_shape, include_top, classes, pooling, name, norm)


def resnet(
    block: Block,
    depths: Sequence[int],
    input_shape: Sequence[int | None],
    include_top: bool,
    classes: int,
    pooling: str | None,
    name: str,
    norm: str = "batch",
) -> keras.Model:
    """Build a residual network (He et al., "Deep residual learning", CVPR 2016) in torchvision's form.

    Layers have the names of torchvision's modules (`layer1.0.conv1`, `bn1`, `fc`). Padding is
    torch's, the same on all four sides: a convolution of stride 2 with Keras' padding="same" would
    pad images of even size only below and to the right, and see other pixels.

    Two things that torch does have no counterpart in a Keras layer: it keeps the unbiased variance
    of a batch (Keras the biased one), which differ by a factor of 1 + 1 / (pixels - 1), and
    torchvision's Linear draws its biases at random.

    Args:
        block: Function `(x, width, stride, name, norm) -> x` that adds one residual block.
        depths: Number of blocks of each of the four stages.
        input_shape: `(H, W, 3)`; `None` for any height or width.
        include_top: Whether to end in average pooling and a dense layer without activation.
        classes: Outputs of that layer.
        pooling: Without the top: `"avg"`, `"max"`, or None for the feature map `[N, H/32, W/32, C]`.
        name: Name of the model.
        norm: "batch" for BatchNormalization, or "group" for GroupNormalization with 32 groups (Wu and He, "Group
            normalization", ECCV 2018), which has as many trainable parameters.

    Returns:
        A plain functional `keras.Model`. Its input `[N, H, W, 3]` is RGB as torchvision normalises it,
        `(x / 255 - mean) / std`, for example by `keras.layers.Rescaling` with a list for each. Its output: logits
        `[N, classes]`; without the top features `[N, C]`, or the feature map if `pooling` is None.

    Raises:
        ValueError: `pooling` or `norm` is none of these.
    """
    if pooling not in (None, "avg", "max"):
        raise ValueError(f"pooling={pooling!r} of {name}: expected None, 'avg' or 'max'.")
    if norm not in NORMS:
        raise ValueError(f"norm={norm!r} of {name}: expected 'batch' or 'group'.")
    normalise = NORMS[norm]
    image = keras.Input(input_shape, name="image")
    x = _convolution(image, 64, 7, 2, "conv1")  # [N, H/2, W/2, 64]
    x = _relu(normalise(x, "bn1"), "relu")
    # Padding with zeros is safe: after ReLU no value is below them. If a whole window is zero the
    # padding ties with it, and takes a gradient that ReLU would have stopped anyway.
    x = keras.layers.ZeroPadding2D(1, name="maxpool.pad")(x)
    x = keras.layers.MaxPooling2D(3, 2, name="maxpool")(x)  # [N, H/4, W/4, 64]
    for stage, (width, depth) in enumerate(zip(WIDTHS, depths, strict=True), 1):
        for i in range(depth):
            stride = 2 if i == 0 and stage > 1 else 1
            x = block(x, width, stride, f"layer{stage}.{i}", normalise)
    x = _linear(_pool(x, "avg"), classes, "fc") if include_top else _pool(x, pooling)
    return keras.Model(image, x, name=name)


def load_torchvision(model: keras.Model, path: str | Path) -> None:
    """Assign torchvision's weights to a model of this module, without torch.

    Where torch is installed, this writes such a file, from any state dict of the same layout:

        safetensors.torch.save_file(torchvision.models.resnet18(weights="DEFAULT").state_dict(), path)

    Args:
        model: Model from `resnet18`, `resnet34` or `resnet50`; it may be streamed, or part of a larger
            model that has no other weights. Without its top, the file's `fc` is left out.
        path: A `.safetensors` or `.npz` file with torchvision's names and layouts.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is damaged or of another kind, or a key is missing, has another shape, or
            is not in the model. Nothing has been assigned then.
    """
    arrays = {k: a for k, a in _read(Path(path)).items() if not k.endswith(NOT_WEIGHTS)}
    expected = _variables(model)
    if "fc.weight" not in expected:
        arrays = {k: a for k, a in arrays.items() if not k.startswith("fc.")}
    for key, (variable, order) in expected.items():
        _check_key(key, _shape(variable, order), arrays, path, model.name)
    unknown = {k: a for k, a in arrays.items() if k not in expected}
    if unknown:
        raise ValueError(
            f"{path}: has {_describe(unknown)}, which '{model.name}' does not have, so it belongs to another network. "
            "Use weights of the same network, or build the network that they belong to."
        )
    for key, (variable, order) in expected.items():
        variable.assign(arrays[key].transpose(order).astype(variable.dtype))


def _check_key(
    key: str, shape: tuple[int, ...], arrays: Arrays, path: str | Path, model: str
) -> None:
    """Raise unless the file has an array of this key with this shape."""
    if key not in arrays:
        raise ValueError(
            f"{path}: has no '{key}', which '{model}' expects with shape {shape}; "
            f"the file has {_describe(arrays)}. Use weights of the same network, under torchvision's names."
        )
    if arrays[key].shape != shape:
        advice = (
            "Build the model with as many classes as the file, or with include_top=False"
            if key.startswith("fc.")
            else "Use weights of the same network"
        )
        raise ValueError(
            f"{path}: '{key}' has shape {arrays[key].shape}, '{model}' expects {shape}. {advice}."
        )


def _basic_block(
    x: keras.KerasTensor, width: int, stride: int, name: str, norm: Norm
) -> keras.KerasTensor:
    """Add two 3x3 convolutions, `[N, H, W, C] -> [N, H / stride, W / stride, width]`."""
    y = _convolution(x, width, 3, stride, f"{name}.conv1")
    y = _relu(norm(y, f"{name}.bn1"), f"{name}.relu1")
    y = _convolution(y, width, 3, 1, f"{name}.conv2")
    return _add_shortcut(x, norm(y, f"{name}.bn2"), stride, name, norm)


def _bottleneck(
    x: keras.KerasTensor, width: int, stride: int, name: str, norm: Norm
) -> keras.KerasTensor:
    """Add 1x1, 3x3 and 1x1 convolutions: `[N, H, W, C] -> [N, H / stride, W / stride, 4 * width]`."""
    y = _convolution(x, width, 1, 1, f"{name}.conv1")
    y = _relu(norm(y, f"{name}.bn1"), f"{name}.relu1")
    y = _convolution(y, width, 3, stride, f"{name}.conv2")
    y = _relu(norm(y, f"{name}.bn2"), f"{name}.relu2")
    y = _convolution(y, 4 * width, 1, 1, f"{name}.conv3")
    return _add_shortcut(x, norm(y, f"{name}.bn3"), stride, name, norm)


def _add_shortcut(
    x: keras.KerasTensor, y: keras.KerasTensor, stride: int, name: str, norm: Norm
) -> keras.KerasTensor:
    """Add the shortcut x to y `[N, H, W, C]`, projected if its shape differs, then ReLU."""
    if stride > 1 or x.shape[-1] != y.shape[-1]:
        x = _convolution(x, y.shape[-1], 1, stride, f"{name}.downsample.0")
        x = norm(x, f"{name}.downsample.1")
    return _relu(keras.layers.Add(name=f"{name}.add")([y, x]), f"{name}.relu")


def _convolution(
    x: keras.KerasTensor, filters: int, kernel: int, stride: int, name: str
) -> keras.KerasTensor:
    if kernel > 1 and stride > 1:
        x = keras.layers.ZeroPadding2D(kernel // 2, name=f"{name}.pad")(x)
    return keras.layers.Conv2D(
        filters,
        kernel,
        strides=stride,
        padding="valid" if stride > 1 else "same",  # with stride 1, "same" is the same on all sides
        use_bias=False,
        kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
        name=name,
    )(x)


def _pool(x: keras.KerasTensor, pooling: str | None) -> keras.KerasTensor:
    """Return the features `[N, C]` of a map `[N, H, W, C]`, or the map itself if `pooling` is None."""
    if pooling == "avg":
        return keras.layers.GlobalAveragePooling2D(name="avgpool")(x)
    if pooling == "max":
        return keras.layers.GlobalMaxPooling2D(name="maxpool_all")(x)
    return x


def _batch_norm(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return keras.layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON, name=name)(x)


def _group_norm(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return keras.layers.GroupNormalization(GROUPS, epsilon=EPSILON, name=name)(x)


NORMS: dict[str, Norm] = {"batch": _batch_norm, "group": _group_norm}
"""Normalisations by name; layers keep torchvision's names, such as `bn1`."""


def _relu(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return keras.layers.ReLU(name=name)(x)


def _linear(x: keras.KerasTensor, units: int, name: str) -> keras.KerasTensor:
    bound = x.shape[-1] ** -0.5
    return keras.layers.Dense(
        units,
        kernel_initializer=keras.initializers.RandomUniform(-bound, bound),
        name=name,
    )(x)


def _variables(model: keras.Model) -> Variables:
    """Return `{torchvision's key: (variable, order of torch's axes in it)}`."""
    variables: Variables = {}
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            variables |= _variables(layer)
        elif isinstance(layer, keras.layers.Conv2D):
            # From [out, in, rows, columns].
            variables[f"{layer.name}.weight"] = layer.kernel, (2, 3, 1, 0)
        elif isinstance(layer, keras.layers.Dense):
            # From [out, in].
            variables[f"{layer.name}.weight"] = layer.kernel, (1, 0)
            variables[f"{layer.name}.bias"] = layer.bias, (0,)
        elif isinstance(layer, (keras.layers.BatchNormalization, keras.layers.GroupNormalization)):
            variables[f"{layer.name}.weight"] = layer.gamma, (0,)
            variables[f"{layer.name}.bias"] = layer.beta, (0,)
        if isinstance(layer, keras.layers.BatchNormalization):
            variables[f"{layer.name}.running_mean"] = layer.moving_mean, (0,)
            variables[f"{layer.name}.running_var"] = layer.moving_variance, (0,)
    return variables


def _shape(variable: keras.Variable, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a variable in torch's order of axes."""
    return tuple(int(variable.shape[order.index(axis)]) for axis in range(len(order)))


def _read(path: Path) -> Arrays:
    """Return the arrays of a file by name."""
    if path.suffix not in (".safetensors", ".npz"):
        raise ValueError(
            f"{path}: expected a .safetensors or .npz file. Where torch is installed, write one with "
            "safetensors.torch.save_file(torch.load(path, map_location='cpu'), 'weights.safetensors')."
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the file does not exist; expected torchvision's weights.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with path.open("rb") as opened, np.load(opened) as file:
            return dict(file)
    except (SafetensorError, zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        raise ValueError(
            f"{path}: is not a {path.suffix} file of arrays, or is damaged ({error}). Write or fetch it again."
        ) from error


def _describe(arrays: Arrays) -> str:
    """Return a summary such as `3 keys, such as 'conv1.weight' of shape (64, 3, 7, 7)`."""
    if not arrays:
        return "no keys"
    key = sorted(arrays)[0]
    keys = "1 key" if len(arrays) == 1 else f"{len(arrays)} keys"
    return f"{keys}, such as '{key}' of shape {arrays[key].shape}"
