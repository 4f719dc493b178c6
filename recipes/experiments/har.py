"""Compare PatchGD on time series with plain training: human activities from 128 samples of nine signals.

    python recipes/experiments/har.py --data FOLDER [--seeds 3 --epochs 30 --head linear]

The folder holds `hapt_raw.npz`, the raw signals of "Smartphone-Based Recognition of Human Activities and Postural
Transitions" (Reyes-Ortiz et al. 2015): `signal` [6, samples] (acceleration in g, rotation in rad/s, 50 Hz),
`trial_offset`, and `windows` [n, 4] of start, class 1 to 6, subject, is_test, the official split by subjects. The nine
signals are computed from them as the authors describe: a median of 3 and a Butterworth filter of order 3 at 20 Hz
against noise, one at 0.3 Hz for gravity; total and body acceleration, rotation.

Both networks as in PatchGD, appendix H: one convolution of 64 kernels of size 3, Adam at 1e-3, 30 epochs of batches of
32; chunks of 16 samples, 25 % with a gradient in an inner step; the optimizer steps after the last. The head is that of
the code, a hidden layer with dropout, or with `--head linear` the one linear layer of the paper. Writes `har.png` and
prints one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

import numpy as np

from benchmarks import report

LENGTH, CHUNK, CLASSES, RATE_HZ = 128, 16, 6, 50


def nine_signals(signal, offsets):
    """Return total acceleration, body acceleration and rotation, `[samples, 9]` float32, filtered trial by trial."""
    from scipy.signal import butter, medfilt, sosfiltfilt

    noise = butter(3, 20, fs=RATE_HZ, output="sos")
    gravity = butter(3, 0.3, fs=RATE_HZ, output="sos")
    trials = []
    for start, stop in itertools.pairwise(offsets):
        clean = sosfiltfilt(noise, [medfilt(axis, 3) for axis in signal[:, start:stop]])
        total, rotation = clean[:3], clean[3:]
        trials.append(np.concatenate([total, total - sosfiltfilt(gravity, total), rotation]))
    return np.concatenate(trials, axis=1).T.astype("float32")


def load(folder):
    """Return `(x, y)` of the 21 subjects of the training set, and of the 9 of the test set."""
    raw = np.load(Path(folder) / "hapt_raw.npz")
    signals = nine_signals(raw["signal"], raw["trial_offset"])
    starts, classes, _, is_test = raw["windows"].T
    x = np.stack([signals[start : start + LENGTH] for start in starts])
    return [(x[part], classes[part] - 1) for part in (is_test == 0, is_test == 1)]


def make(kind, arguments):
    """Build the plain network, or PatchGD with the same convolution."""
    import tfbig
    from tfbig.models import series

    linear = arguments.head == "linear"
    rate, hidden = (0.0, None) if linear else (series.RATE, series.HIDDEN)
    if kind == "plain":
        return series.baseline(LENGTH, 9, CLASSES, rate, hidden)
    encoder = series.encoder(CHUNK, 9, rate)
    head = series.head(CLASSES, LENGTH // CHUNK, encoder.output_shape[-1], hidden)
    return tfbig.PatchGD(
        encoder,
        head,
        CHUNK,
        None,
        arguments.sampling,
        None,
        None,
        encoder_scale=arguments.encoder_scale,
        image_shape=(LENGTH, 9),
    )


def train(kind, seed, data, arguments):
    """Return the accuracy on the test subjects after every epoch, and the seconds of training."""
    import keras

    keras.utils.set_random_seed(seed)
    model = make(kind, arguments)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    start = time.monotonic()
    (x, y), test = data
    history = model.fit(
        x,
        y,
        batch_size=32,
        epochs=arguments.epochs,
        validation_data=test,
        validation_batch_size=512,
        verbose=0,
    )
    return history.history["val_accuracy"], time.monotonic() - start


def draw(curves, path):
    """Plot the accuracy by epoch of every seed of both."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for colour, (kind, runs) in zip(("tab:gray", "tab:blue"), curves.items(), strict=True):
        for number, run in enumerate(runs):
            label = {"plain": "plain training", "patchgd": "PatchGD, chunks of 16, 25 %"}[kind]
            axes.plot(
                range(1, len(run) + 1),
                run,
                color=colour,
                alpha=0.8,
                label=None if number else label,
            )
    axes.axhline(0.889, color="black", linestyle=":", linewidth=1, label="published, plain")
    axes.set(xlabel="epoch", ylabel="accuracy on 9 unseen subjects")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--sampling", type=float, default=0.25)
    parser.add_argument("--encoder-scale", default="published")
    parser.add_argument("--head", choices=["series", "linear"], default="series")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "har.png"))
    arguments = parser.parse_args()
    data = load(arguments.data)
    curves, seconds = {"plain": [], "patchgd": []}, {}
    for seed in range(arguments.seeds):
        for kind, runs in curves.items():
            run, seconds[kind] = train(kind, seed, data, arguments)
            runs.append(run)
            print(f"{kind}, seed {seed}: {run[-1]:.4f} in {seconds[kind]:.0f} s", file=sys.stderr)
    draw(curves, arguments.out)
    figures = {
        kind: {
            "accuracy": statistics.mean(run[-1] for run in runs),
            "std": statistics.pstdev(run[-1] for run in runs),
            "last_5_epochs": statistics.mean(v for run in runs for v in run[-5:]),
            "seconds": seconds[kind],
        }
        for kind, runs in curves.items()
    }
    settings = {
        "seeds": arguments.seeds,
        "epochs": arguments.epochs,
        "sampling": arguments.sampling,
    }
    settings |= {"encoder_scale": arguments.encoder_scale, "head": arguments.head}
    print(report.line("har", [LENGTH, 9], **settings, **figures))


if __name__ == "__main__":
    main()
