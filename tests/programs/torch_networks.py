"""Write networks of torchvision and timm with random weights, and their features of one image, to a folder.

A process of its own, because TensorFlow and torch crash in one process. With no names it writes
which weights timm publishes.

Usage: python torch_networks.py FOLDER [NAME ...]
"""

from __future__ import annotations

import json
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
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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
    """Return what goes into the last linear layer, computed in float64."""
    (*_, last) = (m for m in net.modules() if isinstance(m, torch.nn.Linear))
    seen: list[torch.Tensor] = []
    last.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    with torch.no_grad():
        net.double()(x)
    return seen[0]


def write_network(folder: Path, name: str) -> None:
    """Write `name.safetensors`, `name.pth`, and `name.npz`: `x` from 0 to 255, `[N, H, W, 3]`, and its features."""
    torch.manual_seed(0)
    net = make(*NETWORKS[name].split())
    save_file(net.state_dict(), folder / f"{name}.safetensors")
    torch.save(net.state_dict(), folder / f"{name}.pth")
    x = torch.randint(0, 256, (2, 3, 71, 64)).double()
    mean, std = (torch.tensor(n, dtype=x.dtype)[:, None, None] for n in (MEAN, STD))
    numbers = {"x": x.permute(0, 2, 3, 1), "features": features(net, (x / 255 - mean) / std)}
    np.savez(folder / f"{name}.npz", **{key: n.numpy() for key, n in numbers.items()})


def write_published(folder: Path) -> None:
    """Write `published.json`: repository, mean and standard deviation of all published weights of timm."""
    import timm

    configs = map(timm.get_pretrained_cfg, timm.list_pretrained())
    published = {c.hf_hub_id: [c.mean, c.std] for c in configs if c is not None and c.hf_hub_id}
    (folder / "published.json").write_text(json.dumps(published))


if __name__ == "__main__":
    out, *names = sys.argv[1:]
    for each in names:
        write_network(Path(out), each)
    if not names:
        write_published(Path(out))
