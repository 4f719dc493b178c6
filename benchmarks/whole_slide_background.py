"""Train on whole slides end to end, with their background skipped and computed, and draw what was computed.

    python benchmarks/whole_slide_background.py SLIDE SLIDE ... [--mpp 1 --encoder resnet18 --rounds 1]

The first slide is for validation, the second for the test, all others for training, with labels in turn. Both ways run
`train.py --task images --images slides --mode offload` in processes of their own and print one JSON line together.
`whole_slide_background.png` has three columns for each slide: the slide, how many sweeps of a training step compute
each place, and the norm of the features that the trained encoder finds there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

import numpy as np

from benchmarks import report

WAYS = ("skip", "compute")
SIDE = 700
"""Longest side of a picture of a slide."""


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("slides", nargs="+")
    parser.add_argument("--mpp", default="1")
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--way", choices=WAYS, help="train in this process")
    parser.add_argument("--out", type=Path, help="folder of the run, with --way")
    parser.add_argument("--picture", default=str(HERE / "whole_slide_background.png"))
    return parser.parse_args(words)


def write_table(slides: list[str], path: Path) -> None:
    """Write the table of slides that `train.py` reads."""
    splits = ["val", "test", *["train"] * (len(slides) - 2)]
    rows = [
        f"s{n},s{n},{'ab'[n % 2]},{split},{os.path.abspath(slide)}"
        for n, (slide, split) in enumerate(zip(slides, splits, strict=True))
    ]
    path.write_text("\n".join(["case_id,slide_id,label,split,path", *rows]) + "\n")


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one way in this process and return its figures."""
    import train as script

    table = arguments.out.parent / "slides.csv"
    write_table(arguments.slides, table)
    before, _ = report.memory_bytes()
    began, processor = time.monotonic(), time.process_time()
    flags = ["--task", "images", "--images", "slides", "--mode", "offload", "--head", "smaller"]
    flags += ["--encoder", arguments.encoder, "--batch-size", "1", "--epochs", "1", "--quiet"]
    flags += ["--data", str(table), "--mpp", arguments.mpp, "--out", str(arguments.out)]
    if script.main([*flags, "--background", arguments.way]):
        raise SystemExit("training failed")
    seconds, processor = time.monotonic() - began, time.process_time() - processor
    results = json.loads((arguments.out / "metrics.json").read_text())
    return {
        "seconds": round(seconds, 1),
        "processor": round(processor, 1),
        "seconds_per_step": round(results["seconds_per_step"], 2),
        "loss": results["loss"],
        "before_bytes": before,
        "peak_bytes": report.memory_bytes()[1],
        "planned_bytes": results["planned_bytes"],
        "active": results.get("planned_share", 1.0),
    }


def compare(arguments: argparse.Namespace, folder: Path) -> str:
    """Return the JSON line of both ways, run in turn."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(arguments.rounds):
        for way in WAYS:
            out = folder / f"{way}-{number}"
            words = [__file__, *arguments.slides, "--way", way, "--out", out]
            words += ["--mpp", arguments.mpp, "--encoder", arguments.encoder]
            found[way].append(report.in_own_process(words))
    pairs = list(zip(*found.values(), strict=True))
    ratios = {
        f"{name}_ratio": round(statistics.median(a[name] / b[name] for a, b in pairs), 3)
        for name in ("seconds", "processor", "seconds_per_step", "peak_bytes")
    }
    return report.line(
        "whole slides without background",
        [],
        slides=[Path(slide).name for slide in arguments.slides],
        mpp=arguments.mpp,
        network=arguments.encoder,
        pairs=len(pairs),
        **ratios,
        **{way: runs[0] for way, runs in found.items()},
    )


def draw(arguments: argparse.Namespace, run: Path) -> None:
    """Draw every slide, what is computed of it, and the features of the trained encoder."""
    import matplotlib

    matplotlib.use("Agg")
    import keras
    import matplotlib.pyplot as plt
    import tensorflow as tf

    import tfbig

    model = keras.models.load_model(run / "model.keras", compile=False)
    model = getattr(model, "twin", model)
    features = keras.Model(model.input, model.get_layer("code").output)
    streamed, trained = tfbig.stream(features), tfbig.stream(model)
    trained.compile("sgd", "sparse_categorical_crossentropy")
    figure, axes = plt.subplots(
        len(arguments.slides), 3, figsize=(13, 4.2 * len(arguments.slides)), squeeze=False
    )
    for row, path in zip(axes, arguments.slides, strict=True):
        slide = tfbig.open_slide(path)
        image = tfbig.masked(slide.at(mpp=float(arguments.mpp)), dilation=20)
        plan = trained.plan(image)
        outputs = streamed(tf.constant([image.handle]), training=False)
        norm = np.linalg.norm(outputs[0].numpy(), axis=-1)
        counts = times_computed(plan, image.shape[:2])
        row[0].imshow(slide.thumbnail(SIDE))
        row[0].set_title(f"{Path(path).name}, {image.shape[0]} x {image.shape[1]}", fontsize=9)
        shown = row[1].imshow(counts, cmap="magma", vmin=0, vmax=len(plan.sweeps))
        row[1].set_title(
            f"sweeps that compute a place: {image.background.share:.2f} foreground, "
            f"{plan.active:.2f} of the work",
            fontsize=9,
        )
        figure.colorbar(shown, ax=row[1], fraction=0.046)
        row[2].imshow(norm, cmap="viridis")
        row[2].set_title("norm of the features", fontsize=9)
        for axis in row:
            axis.set_axis_off()
    figure.tight_layout()
    figure.savefig(arguments.picture, dpi=80)


def times_computed(plan: Any, size: tuple[int, int]) -> np.ndarray:
    """Return by how many sweeps each place of an image is computed, `[h, w]` with at most `SIDE` rows or columns."""
    scale = max(size) / SIDE
    counts = np.zeros([round(n / scale) for n in size], int)
    for number, sweep in enumerate(plan.sweeps):
        active = plan.active_tiles[number].active if plan.active_tiles else np.ones((1, 1), bool)
        if not sweep.observed:
            continue
        places = [
            np.minimum(np.arange(n) * cells // n, cells - 1)
            for n, cells in zip(counts.shape, active.shape, strict=True)
        ]
        counts += active[np.ix_(*places)]
    return counts


def main() -> None:
    arguments = parse_arguments()
    if arguments.way:
        print(json.dumps(train(arguments)))
        return
    folder = Path(tempfile.mkdtemp(prefix="slides-"))
    try:
        print(compare(arguments, folder), flush=True)
        draw(arguments, folder / "skip-0")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
