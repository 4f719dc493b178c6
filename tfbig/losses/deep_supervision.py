"""Deep supervision: a loss at every resolution of a decoder, as in nnU-Net.

model = unet3d(num_classes=3, deep_supervision=True)
weights = deep_supervision.loss_weights(len(model.outputs))
model.compile("sgd", [DiceCrossentropy() for _ in weights], loss_weights=weights)
model.fit(volumes, deep_supervision.labels_of_outputs(labels, len(weights)))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops


def loss_weights(num_outputs: int) -> list[float]:
    """Weights 1, 1/2, 1/4, ... of the losses, divided by their sum; the last of several is 0.

    As in the trainer of nnU-Net, which does not train the output of the lowest resolution.

    Args:
        num_outputs: Number of outputs, the finest first.

    Raises:
        ValueError: There are no outputs.

    Example:
        >>> [round(w, 3) for w in tfbig.losses.deep_supervision.loss_weights(4)]
        [0.571, 0.286, 0.143, 0.0]
    """
    if num_outputs < 1:
        raise ValueError(f"num_outputs is {num_outputs}, expected 1 or more.")
    weights = [0.5**i for i in range(num_outputs)]
    if num_outputs > 1:
        weights[-1] = 0.0
    return [w / sum(weights) for w in weights]


def labels_of_outputs(
    labels: Any, num_outputs: int, strides: int | Sequence[int | Sequence[int]] = 2
) -> list[Any]:
    """Sample the labels of each output: those of the voxels nearest to the centres of its voxels.

    Output i has one voxel for `s` voxels along an axis, where `s` is the product of the strides up to stage i. Its
    voxel j gets the label of voxel `s * j + s // 2`, which `torch.nn.functional.interpolate(mode="nearest-exact")`
    chooses in nnU-Net; the last one that of the last voxel, where there are not as many.

    Args:
        labels: `[N, D, H, W]` or `[N, D, H, W, C]`; a NumPy array or a tensor.
        num_outputs: Number of outputs.
        strides: Stride of each stage, as in `tfbig.models.unet3d`; as many as outputs or more, unless it is a number.

    Returns:
        A list of labels, the finest first: `labels` itself, if the first stride is 1.

    Raises:
        ValueError: There are fewer strides than outputs.
    """
    each = [1, *[strides] * (num_outputs - 1)] if isinstance(strides, int) else strides
    if len(each) < num_outputs:
        raise ValueError(
            f"strides are for {len(each)} stages, expected one for each of {num_outputs} outputs."
        )
    totals = np.cumprod([np.broadcast_to(stride, 3) for stride in each[:num_outputs]], 0)
    return [_sampled(labels, total.tolist()) for total in totals]


def _sampled(labels: Any, strides: Sequence[int]) -> Any:
    for axis, stride in enumerate(strides, 1):
        if stride == 1:
            continue
        size = ops.shape(labels)[axis]
        if isinstance(labels, np.ndarray):
            index = np.minimum(np.arange(stride // 2, size + stride // 2, stride), size - 1)
            labels = labels.take(index, axis)
        else:
            index = ops.minimum(ops.arange(stride // 2, size + stride // 2, stride), size - 1)
            labels = ops.take(labels, index, axis)
    return labels
