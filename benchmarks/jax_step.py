"""The step of `compare.py` with JAX, in a Python that has it; does not need tfbig.

    python benchmarks/jax_step.py --network resnet18 --side 2048 --only jax-checkpoint

Ways: jax, where XLA decides what it keeps; jax-checkpoint, every residual block rematerialised in the backward pass
(`jax.checkpoint`). torchvision's ResNet-18 and Adam, written out; the statistics of BatchNorm are those of the image.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

del sys.path[0]  # otherwise JAX imports profile.py of this folder instead of Python's module

import jax
import jax.numpy as jnp

WIDTHS = (64, 128, 256, 512)
Weights = dict[str, Any]


def main() -> None:
    arguments = parse_arguments()
    base = peak_bytes()
    trains_norms = not arguments.network.endswith("_frozen")
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 64))
    image = jax.random.uniform(next(keys), (1, arguments.side, arguments.side, 3))
    weights = resnet18(keys)
    first = second = jax.tree.map(jnp.zeros_like, weights)
    checkpoints = arguments.only == "jax-checkpoint"

    @jax.jit
    def step(weights: Weights, first: Weights, second: Weights, number: Any, image: Any) -> Any:
        loss, gradients = jax.value_and_grad(mse)(weights, image, trains_norms, checkpoints)
        return loss, *adam(weights, gradients, first, second, number)

    seconds, loss = [], 0.0
    for number in range(1, arguments.warmup + arguments.steps + 1):
        began = time.perf_counter()
        result, weights, first, second = step(weights, first, second, number, image)
        loss = float(result)
        jax.block_until_ready(weights)
        seconds.append(time.perf_counter() - began)
    figures = {
        "seconds": statistics.median(seconds[arguments.warmup :]),
        "first_seconds": seconds[0],
        "base_bytes": base,
        "peak_bytes": peak_bytes(),
        "loss": loss,
    }
    print(json.dumps({"case": arguments.only, "versions": {"jax": jax.__version__}, **figures}))


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--network", default="resnet18", choices=["resnet18", "resnet18_frozen"])
    parser.add_argument("--side", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--optimizer", default="adam", choices=["adam"])
    parser.add_argument("--only", default="jax", choices=["jax", "jax-checkpoint"])
    return parser.parse_args(words)


def peak_bytes() -> int:
    """Return the most resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resnet18(keys: Any) -> Weights:
    """Return the weights of a ResNet-18 with one output."""
    weights: Weights = {"stem": convolution(keys, 7, 3, 64)}
    channels = 64
    for stage, width in enumerate(WIDTHS):
        for block in range(2):
            parts = {
                "first": convolution(keys, 3, channels, width),
                "second": convolution(keys, 3, width, width),
            }
            if channels != width:
                parts["shortcut"] = convolution(keys, 1, channels, width)
            weights[f"{stage}.{block}"] = parts
            channels = width
    return weights | {"head": jax.random.normal(next(keys), (channels, 1)) / channels**0.5}


def convolution(keys: Any, size: int, channels: int, filters: int) -> Weights:
    """Return a kernel, and the scale and offset of its BatchNorm."""
    shape, deviation = (size, size, channels, filters), (2 / (size * size * filters)) ** 0.5
    kernel = deviation * jax.random.normal(next(keys), shape)
    return {"kernel": kernel, "scale": jnp.ones(filters), "offset": jnp.zeros(filters)}


def mse(weights: Weights, image: Any, trains_norms: bool, checkpoints: bool) -> Any:
    """Return the mean squared difference of the outputs from 1."""

    def block(x: Any, parts: Weights, stride: int) -> Any:
        y = jax.nn.relu(normalised(x, parts["first"], stride, trains_norms))
        y = normalised(y, parts["second"], 1, trains_norms)
        shortcut = parts.get("shortcut")
        return jax.nn.relu(
            y + (x if shortcut is None else normalised(x, shortcut, stride, trains_norms))
        )

    run: Callable[..., Any] = jax.checkpoint(block, static_argnums=2) if checkpoints else block
    x = jax.nn.relu(normalised(image, weights["stem"], 2, trains_norms))
    window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
    x = jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, window, strides, [(0, 0), (1, 1), (1, 1), (0, 0)]
    )
    for stage in range(len(WIDTHS)):
        for number in range(2):
            x = run(x, weights[f"{stage}.{number}"], 2 if stage and not number else 1)
    return jnp.mean((x.mean((1, 2)) @ weights["head"] - 1) ** 2)


def normalised(x: Any, parts: Weights, stride: int, trains_norms: bool) -> Any:
    """Convolve, and normalise by the statistics of the image, or by those of a new model without gradients."""
    half = parts["kernel"].shape[0] // 2
    padding = [(half, half)] * 2
    layout = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(
        x, parts["kernel"], (stride, stride), padding, dimension_numbers=layout
    )
    if not trains_norms:
        return x / (1 + 1e-5) ** 0.5
    x = (x - x.mean((0, 1, 2))) * jax.lax.rsqrt(x.var((0, 1, 2)) + 1e-5)
    return x * parts["scale"] + parts["offset"]


def adam(
    weights: Weights, gradients: Weights, first: Weights, second: Weights, number: Any
) -> tuple[Weights, Weights, Weights]:
    """Return the weights and moments after a step of Adam (Kingma and Ba 2015, algorithm 1)."""
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
    rate = 1e-5 * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
    weights = jax.tree.map(
        lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, first, second
    )
    return weights, first, second


if __name__ == "__main__":
    sys.exit(main())
