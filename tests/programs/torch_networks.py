"""Write networks of torchvision and timm with random weights, and their features of one image, to a folder.

A process of its own: torch and TensorFlow cannot be loaded into one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

NETWORKS = {
    "resnet18": "torchvision resnet18",
    "resnet34": "torchvision resnet34",
    "resnet50": "torchvision resnet50",
    "mobilenetv2": "torchvision mobilenet_v2",
    "resnet26": "timm resnet26",
    "resnet50_gn": "timm resnet50_gn",
    "mobilenetv2_timm": "timm mobilenetv2_100",
}
"""Library and name of each network."""


def make(library: str, name: str) -> torch.nn.Module:
    """Return a network in inference mode, with statistics that are not those of a new network."""
    if library == "timm":
        import timm

        net = timm.create_model(name)
    else:
        import torchvision

        net = getattr(torchvision.models, name)()
    for key, tensor in net.state_dict().items():
        if key.endswith("running_mean"):
            tensor.normal_(0, 0.1)
        if key.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
    return net.eval()


def features(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return what goes into the last linear layer."""
    (*_, last) = (m for m in net.modules() if isinstance(m, torch.nn.Linear))
    seen: list[torch.Tensor] = []
    last.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    with torch.no_grad():
        net(x)
    return seen[0]


def main(folder: Path, *names: str) -> None:
    """Write `name.safetensors`, `name.pth` and `name.npz` (`x` from 0 to 255, `[N, H, W, 3]`, and features)."""
    for name in names:
        torch.manual_seed(0)
        net = make(*NETWORKS[name].split())
        x = torch.randint(0, 256, (2, 3, 71, 64)).float()
        mean, std = (
            torch.tensor(n)[:, None, None] for n in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        )
        numbers = {"x": x.permute(0, 2, 3, 1), "features": features(net, (x / 255 - mean) / std)}
        np.savez(folder / f"{name}.npz", **{key: n.numpy() for key, n in numbers.items()})
        save_file(net.state_dict(), folder / f"{name}.safetensors")
        torch.save(net.state_dict(), folder / f"{name}.pth")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
