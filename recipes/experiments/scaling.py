"""Fit how the time of a training step grows with the image, for ResNet-18 and 50, by the number of streamed stages.

    python recipes/experiments/scaling.py [--models resnet18 resnet50 --sides 1024 1280 ... --plot scaling.png]
    python recipes/experiments/scaling.py --models resnet18 --stages plain 4 --sides 1024 1280 1536 1792 2048

For each model: plain Keras, then a streamed front that ends after the stem (0) or after stage 1 to 4 (all of it), with
later layers on whole tensors; each in its own process. The protocol is that of "Big-Layers" (2025, and its first
version): batches of one image, AdamW at 1e-5 with weight decay 1e-4, 5 steps to warm up and 10 measured ones, sides by
256; float32 and stores in float32 (paper: float16 on a GPU). The measured steps of all sides run in turn, so that other
load on the machine affects all of them. Prints one JSON line per configuration with mean, standard deviation and
fastest step of each side, the fit `t(A) = a A^b + c` over the areas A, the standard error of b, R^2 and the doubling
factor, `t(2A) / t(A)` of the fit at the median area (Figure 2 and Table 4). The fit is that of the means, or with
`--of fastest` of the fastest steps, because disturbances only add to a step. Sides whose whole tensors do not fit the
memory are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

import numpy as np

from benchmarks import report

SIDES = list(range(1024, 4097, 256))
STAGES = ["plain", "0", "1", "2", "3", "4"]
WHOLE_BYTES = 2200
"""Bytes of plain training per pixel (measured: 2230 for ResNet-50 of keras.applications; ResNet-18 a third)."""


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["resnet18", "resnet50"])
    parser.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES)
    parser.add_argument("--sides", nargs="+", type=int, default=SIDES)
    parser.add_argument("--warmup", type=int, default=5, help="steps of a side that do not count")
    parser.add_argument("--steps", type=int, default=10, help="measured steps of a side")
    parser.add_argument("--of", choices=["mean", "fastest"], default="mean", help="what is fitted")
    parser.add_argument("--plot", help="PNG file for times and fits")
    parser.add_argument("--only", nargs=2, help="one model and its stages, in this process")
    return parser.parse_args(words)


def main() -> None:
    arguments = parse_arguments()
    if arguments.only:
        print(json.dumps(times(*arguments.only, arguments)))
        return
    lines = []
    for model in arguments.models:
        for stages in arguments.stages:
            words = ["--only", model, stages, "--sides", *arguments.sides]
            words += ["--warmup", arguments.warmup, "--steps", arguments.steps]
            lines.append(fit(report.in_own_process([__file__, *words]), arguments.of))
            print(json.dumps(lines[-1]), flush=True)
    if arguments.plot:
        plot(lines, arguments.plot)


def build(name: str, stages: str):
    """Return the model with one output, and the last layer of its front."""
    import keras

    from tfbig.models import resnet

    encoder = getattr(resnet, name)(include_top=False, pooling="avg")
    model = keras.Model(encoder.input, keras.layers.Dense(1)(encoder.output))
    last = {"resnet18": (1, 1, 1, 1), "resnet50": (2, 3, 5, 2)}[name]
    ends = ["maxpool", *(f"layer{i + 1}.{n}.relu" for i, n in enumerate(last[:3])), None]
    return model, None if stages == "plain" else ends[int(stages)]


def times(name: str, stages: str, arguments: argparse.Namespace) -> dict:
    """Return the seconds of every measured step by side; whole tensors are limited to sides that fit the memory."""
    import keras

    import tfbig
    from tfbig.system.budget import available_bytes

    keras.utils.set_random_seed(0)
    model, upto = build(name, stages)
    pixel_bytes = WHOLE_BYTES * (1.0 if name == "resnet50" else 0.35)
    most = (0.8 * available_bytes() / pixel_bytes) ** 0.5 if stages != "4" else max(arguments.sides)
    if stages != "plain":  # plans count whole tensors without reuse; WHOLE_BYTES is what they take
        model = tfbig.stream(
            model, tfbig.Budget(host="1TB", disk=0), upto=upto, plain_if_small=False
        )
    optimizer = keras.optimizers.AdamW(1e-5, weight_decay=1e-4)
    model.compile(optimizer, "mse", jit_compile=False)
    seconds_by_side: dict[int, list[float]] = {side: [] for side in arguments.sides if side <= most}
    for _ in range(arguments.warmup + arguments.steps):
        for side, seconds in seconds_by_side.items():
            image = np.random.default_rng(0).random((1, side, side, 3), np.float32)
            seconds.append(step(model, image))
    return {
        "model": name,
        "stages": stages,
        "seconds": {side: seconds[arguments.warmup :] for side, seconds in seconds_by_side.items()},
        "peak_bytes": report.memory_bytes()[1],
    }


def step(model, image: np.ndarray) -> float:
    began = time.perf_counter()
    model.train_on_batch(image, np.ones((1, 1), np.float32))
    return time.perf_counter() - began


def fit(times: dict, of: str = "mean") -> dict:
    """Return the times with the fit of the mean or the fastest step of every side."""
    from scipy.optimize import curve_fit

    seconds = {int(side): values for side, values in times["seconds"].items()}
    areas = np.array([side**2 for side in seconds], float)
    fastest = np.array([min(values) for values in seconds.values()])
    means = np.array([np.mean(values) for values in seconds.values()])
    deviations = [np.std(values, ddof=1) if len(values) > 1 else 0 for values in seconds.values()]
    fitted = means if of == "mean" else fastest
    unit = float(np.median(areas))

    def law(area, a, b, c):
        return a * area**b + c

    start = (float(np.median(fitted)), 1.0, 0.0)
    (a, b, c), covariance = curve_fit(
        law, areas / unit, fitted, start, bounds=([0, 0.1, 0], np.inf), x_scale=(1, 0.1, 1)
    )
    left = fitted - law(areas / unit, a, b, c)
    return {
        "case": f"scaling {times['model']} {times['stages']}",
        "commit": report.commit(),
        "machine": report.machine(),
        "sides": list(seconds),
        "steps": [len(values) for values in seconds.values()],
        "seconds": _rounded(means),
        "deviations": _rounded(deviations),
        "fastest": _rounded(fastest),
        "fit_of": of,
        "a": float(a / unit**b),
        "b": round(float(b), 3),
        "b_error": round(float(covariance[1, 1] ** 0.5), 3),
        "c": round(float(c), 3),
        "r2": round(1 - float((left**2).sum() / ((fitted - fitted.mean()) ** 2).sum()), 5),
        "doubling": round(float(law(2, a, b, c) / law(1, a, b, c)), 3),
        "peak_bytes": times["peak_bytes"],
    }


def _rounded(values: Sequence[float] | np.ndarray) -> list[float]:
    return [round(float(value), 3) for value in values]


def plot(lines: list[dict], path: str) -> None:
    """Plot seconds over area for each model, with the fits."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(line["case"].split()[1] for line in lines))
    figure, axes = pyplot.subplots(1, len(names), figsize=(6 * len(names), 4.5), squeeze=False)
    for name, axis in zip(names, axes[0], strict=True):
        for line in (line for line in lines if line["case"].split()[1] == name):
            stages = line["case"].split()[2]
            label = "plain Keras" if stages == "plain" else f"{stages} stages stream"
            areas = np.array(line["sides"], float) ** 2 / 1e6
            shown = np.array(line["fastest" if line["fit_of"] == "fastest" else "seconds"])
            (drawn,) = axis.plot(areas, shown, "o", markersize=4)
            if line["fit_of"] == "mean":
                band = np.array(line["deviations"])
                color = drawn.get_color()
                axis.fill_between(areas, shown - band, shown + band, color=color, alpha=0.2)
            dense = np.linspace(areas.min(), areas.max(), 100)
            law = line["a"] * (dense * 1e6) ** line["b"] + line["c"]
            text = f"{label}: b = {line['b']:.2f}, x{line['doubling']:.2f}"
            axis.plot(dense, law, "-", color=drawn.get_color(), label=text, linewidth=1)
        axis.set(title=name, xlabel="megapixels", ylabel="seconds a step", xlim=0, ylim=0)
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
