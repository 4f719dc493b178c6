"""Compute a small 3-D U-Net with torch's functions, from weights of a Keras model, next to it.

A process of its own, because TensorFlow and torch crash in one process.

Usage: python torch_unet3d.py FILE

FILE is an `.npz` with `x`, `[N, D, H, W, C]`, `strides`, `[stages, 3]`, and the weights of each layer, `NAME/0` the
kernel or scale and `NAME/1` the bias or shift. Outputs are added to it as `y0`, `y1`, ..., the finest first.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch.nn import functional


class Unet3D:
    """The network, with its weights in torch's layout."""

    def __init__(self, file: dict[str, np.ndarray]) -> None:
        self.strides = file["strides"].tolist()
        self.weights = {
            name: torch.tensor(w.transpose(4, 3, 0, 1, 2) if w.ndim == 5 else w)
            for name, w in file.items()
            if "/" in name
        }

    def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the logits of every decoder stage, the finest first."""
        skips, outputs = [], []
        for i, stride in enumerate(self.strides):
            x = self.block(self.block(x, f"encoder{i}.0", stride), f"encoder{i}.1", 1)
            skips.append(x)
        for i in reversed(range(len(self.strides) - 1)):
            kernel, bias = self.of(f"decoder{i}.up")
            x = functional.conv_transpose3d(x, kernel, bias, self.strides[i + 1])
            x = torch.cat((x, skips[i]), 1)
            x = self.block(self.block(x, f"decoder{i}.0", 1), f"decoder{i}.1", 1)
            outputs.insert(0, functional.conv3d(x, *self.of(f"logits{i}")))
        return outputs

    def block(self, x: torch.Tensor, name: str, stride: int | list[int]) -> torch.Tensor:
        """Return convolution, InstanceNorm and LeakyReLU."""
        kernel, bias = self.of(f"{name}.conv")
        x = functional.conv3d(x, kernel, bias, stride, [n // 2 for n in kernel.shape[2:]])
        scale, shift = self.of(f"{name}.norm")
        return functional.leaky_relu(functional.instance_norm(x, weight=scale, bias=shift), 0.01)

    def of(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the two weights of a layer."""
        return self.weights[f"{name}/0"], self.weights[f"{name}/1"]


if __name__ == "__main__":
    path = sys.argv[1]
    numbers = dict(np.load(path))
    logits = Unet3D(numbers)(torch.tensor(numbers["x"]).movedim(-1, 1))
    numbers |= {f"y{i}": y.movedim(1, -1).numpy() for i, y in enumerate(logits)}
    np.savez(path, **numbers)
