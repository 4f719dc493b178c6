"""Time steps of PatchGD on UltraMNIST with the published settings, and say how long the published trainings would take.

    python benchmarks/ultramnist_published.py --data FOLDER_OF_IDX_FILES [--encoder mobilenetv2 --batch 4 --steps 2]

The settings are those of `recipes/patchgd-ultramnist-as-published.yaml`: 10000 images of 512 x 512, patches of 256, one
of four at a time, 100 epochs. A step takes time in proportion to its batch, so a small one is enough. The line has the
seconds that all cores together worked on an image, which do not depend on what else the machine does, and the hours of
three trainings on this machine if nothing else runs; the trainings themselves are

    python train.py --config recipes/patchgd-ultramnist-as-published.yaml --data FOLDER --encoder mobilenetv2 --seeds 3

and the same with `--encoder resnet50`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import report

RECIPE = ROOT / "recipes" / "patchgd-ultramnist-as-published.yaml"
SEEDS = 3


def settings_of(arguments: argparse.Namespace) -> Any:
    """Return the settings of the recipe with a small batch."""
    import train

    flags = ["--config", str(RECIPE), "--data", arguments.data, "--encoder", arguments.encoder]
    flags += ["--batch-size", str(arguments.batch)]
    flags += ["--encoder-weights", "random"]  # which take as long, and are not fetched
    return train.settings_of(flags)


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Return seconds and processor seconds of an image in a training step, without the first step."""
    import itertools

    from tfbig.cli.tasks import images, targets

    task, settings = images.ImageTask(), settings_of(arguments)
    settings = task.resolved(settings)
    data = task.load(settings)
    model = task.models(settings, data).model
    settings = replace(settings, **data.decided)
    batches = iter(task.batches(targets.of(settings, data), data, "train", settings))
    model.train_on_batch(*next(batches))
    before = time.monotonic(), time.process_time()
    for x, y in itertools.islice(batches, arguments.steps):
        model.train_on_batch(x, y)
    images = arguments.steps * arguments.batch
    wall, work = time.monotonic() - before[0], time.process_time() - before[1]
    return {"seconds_per_image": wall / images, "processor_seconds_per_image": work / images}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--encoder", choices=["mobilenetv2", "resnet50"], default="mobilenetv2")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    figures = measure(arguments)
    cores, images, epochs = len(os.sched_getaffinity(0)), 10000, 100
    hours = SEEDS * epochs * images * figures["processor_seconds_per_image"] / cores / 3600
    setting = {"way": arguments.encoder, "size": [512, 512], "batch": arguments.batch}
    rounded = {name: round(value, 2) for name, value in figures.items()}
    print(report.line("ultramnist published", **setting, **rounded, hours_of_three=round(hours)))


if __name__ == "__main__":
    main()
