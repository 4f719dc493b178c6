"""The step of `compare.py` with PyTorch, in a Python that has it; does not need tfbig.

    python benchmarks/torch_step.py --network resnet18 --side 2048 --only torch-checkpoint [--lock FILE]

Ways: torch, all activations kept; torch-checkpoint, every residual block rematerialised in the backward pass
(`torch.utils.checkpoint`); torch-save_on_cpu, activations for the backward pass kept in host memory. Channels last,
the faster layout on a CPU. With `--lock`, steps wait for those of `gpu.py --turns FOLDER` on the same GPU, if FILE is
FOLDER/lock.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import resource
import statistics
import sys
import time
from typing import Any

del sys.path[0]  # otherwise PyTorch imports profile.py of this folder instead of Python's module

import torch
import torchvision


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--network", default="resnet18", choices=["resnet18", "resnet18_frozen", "resnet50"]
    )
    parser.add_argument("--side", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--optimizer", default="adam", choices=["adam", "adamw"])
    parser.add_argument("--policy", default="float32", choices=["float32", "mixed_float16"])
    parser.add_argument("--only", default="torch")
    parser.add_argument("--lock", help="file that measurements on one GPU wait for")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    base = peak_bytes()
    image = torch.rand(1, 3, arguments.side, arguments.side, device=device)
    image = image.contiguous(memory_format=torch.channels_last)
    network = arguments.network.removesuffix("_frozen")
    model = getattr(torchvision.models, network)(num_classes=1).to(device)
    model = model.to(memory_format=torch.channels_last).train()
    if arguments.network.endswith("_frozen"):
        freeze(model)
    kind = torch.optim.Adam if arguments.optimizer == "adam" else torch.optim.AdamW
    optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    half = arguments.policy == "mixed_float16"
    scaler = torch.amp.GradScaler(device, enabled=half)
    step = build(arguments.only, model, scaler)
    if arguments.lock:
        turn = open(arguments.lock, "a")  # noqa: SIM115 - held until the process ends
        fcntl.flock(turn, fcntl.LOCK_EX)
    seconds, loss = [], 0.0
    for _ in range(arguments.warmup + arguments.steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16, enabled=half):
            loss = step(image)
        scaler.step(optimizer)
        scaler.update()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    figures = {
        "seconds": statistics.median(seconds[arguments.warmup :]),
        "first_seconds": seconds[0],
    }
    if device == "cuda":
        figures["device_peak_bytes"] = torch.cuda.max_memory_allocated()
    figures |= {"base_bytes": base, "peak_bytes": peak_bytes(), "loss": loss}
    print(json.dumps({"case": arguments.only, "versions": {"torch": torch.__version__}, **figures}))


def peak_bytes() -> int:
    """Return the most resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def freeze(model: Any) -> None:
    """Use moving statistics in BatchNorm, and no gradients of its weights."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
            module.requires_grad_(False)


def mse(output: Any) -> Any:
    return ((output - 1) ** 2).mean()


def build(way: str, model: Any, scaler: Any) -> Any:
    """Return a function of the image that computes gradients and returns the loss."""
    if way == "torch-checkpoint":
        for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
            for block in stage:
                block.forward = checkpointed(block.forward)

    def step(image: Any) -> float:
        if way == "torch-save_on_cpu":
            with torch.autograd.graph.save_on_cpu(pin_memory=image.is_cuda):
                loss = mse(model(image).float())
        else:
            loss = mse(model(image).float())
        scaler.scale(loss).backward()
        return float(loss.detach())

    return step


def checkpointed(forward: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return lambda x: checkpoint(forward, x, use_reentrant=False)


if __name__ == "__main__":
    sys.exit(main())
