"""Peak memory and time of a training step of PatchGD over the side of the image, with patches of one size.

    python benchmarks/patchgd_memory.py [--sides 512 1024 2048 4096 8192 16384 --encoder resnet18 --patch 256]

Each side runs in its own process: one UltraMNIST image by handle, Z filled slice by slice, four inner steps of 4
patches each (all patches of an image of 512), two at once. Writes `patchgd_memory.png` and prints one JSON line per
side. Memory is the peak of the whole process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from benchmarks import report

SIDES = [512, 1024, 2048, 4096, 8192, 16384]


def step(arguments, side):
    """Return the seconds of a second training step, and memory, in this process."""
    import keras
    import tensorflow as tf

    import tfbig
    from tfbig.models import encoders, latent
    from tfbig.recipes.digits import drawn_digits
    from tfbig.recipes.ultramnist import ultramnist

    keras.utils.set_random_seed(0)
    factors = (side // 512, 9 * side // 512)
    images, labels = ultramnist(*drawn_digits(300), 1, side, factors)
    encoder = encoders.make(arguments.encoder, (arguments.patch, arguments.patch, 1), latent=256)
    head = latent.conv_head(10)
    model = tfbig.PatchGD(
        encoder,
        head,
        arguments.patch,
        None,
        arguments.sampling,
        arguments.inner_steps,
        patches_at_once=arguments.patches_at_once,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    before, _ = report.memory_bytes()
    seconds = []
    for image, label in list(zip(images, labels, strict=True))[:2]:
        began = time.perf_counter()
        model.train_on_batch(tf.constant([image.handle]), label[None])
        seconds.append(time.perf_counter() - began)
    _, peak = report.memory_bytes()
    return {
        "before_bytes": before,
        "peak_bytes": peak,
        "first_s": seconds[0],
        "seconds": seconds[1],
    }


def draw(lines, path):
    """Plot peak memory and seconds over the side."""
    from matplotlib.figure import Figure

    sides = [line["size"][0] for line in lines]
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    memory, seconds = figure.subplots(1, 2)
    memory.plot(sides, [line["peak_bytes"] / 1e9 for line in lines], "o-", label="PatchGD")
    memory.plot(
        sides, [line["before_bytes"] / 1e9 for line in lines], "s--", label="before the step"
    )
    memory.set(xlabel="side of the image", ylabel="peak of the process, GB", xscale="log", ylim=0)
    memory.legend()
    seconds.plot(sides, [line["seconds"] for line in lines], "o-")
    seconds.set(xlabel="side of the image", ylabel="seconds a step", xscale="log", yscale="log")
    for axes in (memory, seconds):
        axes.set_xticks(sides, sides)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    ticks = [1, 3, 10, 30, 100]
    seconds.set_yticks(ticks, ticks)
    figure.savefig(path, dpi=110)


def parse_arguments(words=None):
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES)
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--patch", type=int, default=256)
    parser.add_argument("--sampling", type=int, default=4)
    parser.add_argument("--inner-steps", type=int, default=4)
    parser.add_argument("--patches-at-once", type=int, default=2)
    parser.add_argument("--out", default=str(HERE / "patchgd_memory.png"))
    parser.add_argument("--only", type=int, help="one side, in this process")
    return parser.parse_args(words)


def main():
    arguments = parse_arguments()
    settings = {
        key: getattr(arguments, key)
        for key in ("encoder", "patch", "sampling", "inner_steps", "patches_at_once")
    }
    if arguments.only:
        print(json.dumps(step(arguments, arguments.only)))
        return
    lines = []
    for side in arguments.sides:
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
        figures = report.in_own_process([__file__, *flags, "--only", str(side)])
        line = report.line("patchgd_memory", [side, side], **settings, **figures)
        print(line, flush=True)
        lines.append(json.loads(line))
    draw(lines, arguments.out)


if __name__ == "__main__":
    main()
