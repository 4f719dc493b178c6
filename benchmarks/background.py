"""Time training steps on images of which a part is background: skipped, and computed.

    python benchmarks/background.py shares [--network resnet18 --side 4096 --shares 0.02 0.25 0.5 1 --rounds 2]
    python benchmarks/background.py plot
    python benchmarks/background.py step [SLIDE | --side 65536 --tissue 0.2 --pieces 400] [--everything]
                                    [--host 18GB --disk 60GB --strips 256MB --store bfloat16 --policy float32 --again]

`shares` prints one JSON line for each share of foreground in the middle of an image: steps that skip background and
steps that compute it run in turn, each in a process of its own; `active` is the share of the work of a forward pass
that is left. `plot` draws what is in `results.jsonl` of it. `step` runs one step, tracing included, and with `--again`
a second one, on a slide, masked by its tissue, or on an image with many pieces of foreground; it prints the plan, the
seconds of each sweep and one JSON line with the peak memory.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

import numpy as np

from benchmarks import harness, report, turns
from benchmarks.sweep_times import SweepTimes

CELL = 64
"""Side of a cell of the mask in pixels."""


@dataclass(frozen=True)
class Arguments:
    what: Annotated[str, harness.WORD, ("shares", "step", "way", "plot")]
    slide: Annotated[str | None, harness.WORD, "a slide; by default an image is made"] = None
    network: Annotated[str, ("resnet18", "resnet50")] = "resnet18"
    side: int = 4096
    shares: Sequence[float] = (0.02, 0.25, 0.5, 1.0)
    tissue: Annotated[float, "share of foreground"] = 0.2
    pieces: Annotated[int, "pieces of foreground, disks"] = 1
    everything: Annotated[bool, "compute background too"] = False
    rounds: int = 2
    steps: int = 2
    host: Annotated[str | None, "bytes of host memory; by default what is available"] = None
    disk: Annotated[str | None, "bytes of disk; by default what is free"] = None
    scratch: Annotated[str, "directory of the scratch file"] = "."
    strips: str = "256MB"
    store: Annotated[str | None, "element type of stored images"] = None
    policy: Annotated[str, "dtype policy of Keras"] = "float32"
    again: Annotated[bool, "of `step`: time a second step too"] = False
    turns: Annotated[Path | None, "folder of processes that share a GPU"] = None


def main() -> None:
    arguments = harness.read(Arguments)
    turns.join(arguments.turns)
    if arguments.what == "shares":
        for share in arguments.shares:
            print(compare(arguments, share), flush=True)
    elif arguments.what == "plot":
        plot(report.RESULTS, ROOT / "benchmarks/background.png")
    elif arguments.what == "way":
        print(json.dumps(way(arguments, everything=arguments.everything)))
    else:
        print(step(arguments))


def compare(arguments: Arguments, share: float) -> str:
    """Return the JSON line of one share: both ways in turn."""
    arguments = replace(arguments, tissue=share, turns=None)
    found = harness.in_turn(
        ("skip", "everything"),
        arguments.rounds,
        lambda name: harness.apart(way, arguments, name == "everything"),
    )
    skip, everything = found.values()
    return report.line(
        "background",
        [arguments.side, arguments.side, 3],
        network=arguments.network,
        tissue=share,
        store=arguments.store or "float32",
        active=round(skip[0]["active"], 4),
        skips=skip[0]["skips"],
        time_ratio=harness.ratio(skip, everything, "seconds"),
        processor_ratio=harness.ratio(skip, everything, "processor"),
        seconds=[run["seconds"] for run in skip],
        everything_seconds=[run["seconds"] for run in everything],
        peak_bytes=skip[0]["peak_bytes"],
        everything_peak_bytes=everything[0]["peak_bytes"],
        pairs=len(skip),
    )


def plot(results: Path, path: Path) -> None:
    """Draw time and memory of steps that skip background against the share of the work that is left.

    Of each network, image and share of foreground, the last line is drawn.
    """
    from matplotlib.figure import Figure

    lines = map(json.loads, results.read_text().splitlines())
    lines = [line for line in lines if {"time_ratio", "active", "tissue", "store"} <= line.keys()]
    last = {(line["network"], line["size"][0], line["tissue"]): line for line in lines}
    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle("Steps that skip background, relative to steps that compute it")
    time_axes, memory_axes = figure.subplots(1, 2)
    for network, side in sorted({key[:2] for key in last}):
        points = sorted(
            (line["active"], line["time_ratio"], line["peak_bytes"] / line["everything_peak_bytes"])
            for key, line in last.items()
            if key[:2] == (network, side)
        )
        active, seconds, peaks = zip(*points, strict=True)
        label = f"{network}, {side} x {side}"
        time_axes.plot(active, seconds, "o-", label=label)
        memory_axes.plot(active, peaks, "o-", label=label)
    for axes, name in ((time_axes, "time of a step"), (memory_axes, "peak memory of the process")):
        axes.plot([0, 1], [0, 1], "k:", linewidth=1, label="the share itself")
        axes.set_xlabel("share of the work that is not background")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def way(arguments: Arguments, everything: bool) -> dict[str, Any]:
    """Return the figures of steps in this process; the first one, which traces, is not counted."""
    import tensorflow as tf

    big, image = prepare(replace(arguments, everything=everything))
    data = (tf.constant([image.handle]), tf.ones((1, 1)))
    one = big.traced(big.train_step)
    one.one(data)
    seconds, processor = [], []
    for _ in range(arguments.steps):
        began, before = time.perf_counter(), time.process_time()
        float(one.one(data)["loss"])
        seconds.append(time.perf_counter() - began)
        processor.append(time.process_time() - before)
    plan = big.plan(image)
    return {
        "seconds": round(statistics.median(seconds), 3),
        "processor": round(statistics.median(processor), 3),
        "active": plan.active,
        "skips": plan.layout.skips,
        "peak_bytes": report.memory_bytes()[1],
    }


def step(arguments: Arguments) -> str:
    """Return the JSON line of one step, tracing included."""
    import tensorflow as tf

    base, _ = report.memory_bytes()
    big, image = prepare(arguments)
    plan = big.plan(image)
    everything = plan_everything(arguments, big, image.shape)
    print(plan, file=sys.stderr, flush=True)
    times = SweepTimes()
    data = tf.constant([image.handle]), np.ones((1, 1), np.float32)
    loss = big.train_on_batch(*data)
    measured = times.end()
    with turns.alone(arguments.turns):
        began = time.perf_counter()
        if arguments.again:
            loss = big.train_on_batch(*data)
        again = time.perf_counter() - began
    return report.line(
        f"{arguments.network} background step",
        list(image.shape),
        image=os.path.basename(arguments.slide or "") or f"{arguments.pieces} pieces",
        tissue=round(image.background.share, 4) if image.background else 1.0,
        active=round(plan.active, 4),
        skips=plan.layout.skips,
        **measured,
        second_seconds=round(again, 1) if arguments.again else None,
        predicted_seconds=round(plan.seconds, 1),
        predicted_everything_seconds=round(everything.seconds, 1),
        base_bytes=base,
        peak_bytes=report.memory_bytes()[1],
        planned_bytes=base + plan.total_bytes,
        disk_bytes=plan.projected.disk,
        everything_host_bytes=everything.projected.host,
        everything_disk_bytes=everything.projected.disk,
        store=arguments.store or "float32",
        **report.device_memory(),
        loss=float(loss),
    )


def plan_everything(arguments: Arguments, big: Any, shape: Sequence[int]) -> Any:
    """Return the plan that computes the whole image, on a disk of any size."""
    import tfbig

    budget = tfbig.Budget(device=arguments.strips, host=arguments.host, disk="100TB")
    whole = tfbig.stream(big.twin, budget, store=arguments.store, plain_if_small=False)
    whole.compile("sgd", "mse")
    return whole.plan((1, *shape))


def prepare(arguments: Arguments) -> tuple[Any, Any]:
    """Return the streamed model, compiled, and the image."""
    import keras

    import tfbig
    from tfbig.models import resnet

    keras.config.set_dtype_policy(arguments.policy)
    keras.utils.set_random_seed(0)
    start = keras.Input((None, None, 3))
    encoder = getattr(resnet, arguments.network)(include_top=False, pooling="avg")
    features = encoder(keras.layers.Rescaling(1 / 255)(start))
    model = keras.Model(start, keras.layers.Dense(1, dtype="float32")(features))
    budget = tfbig.Budget(
        device=arguments.strips,
        host=arguments.host,
        disk=arguments.disk,
        scratch=arguments.scratch,
    )
    big = tfbig.stream(model, budget, store=arguments.store, plain_if_small=False)
    big.compile(keras.optimizers.SGD(1e-4), "mse")
    if arguments.slide:
        image = tfbig.masked(tfbig.open_slide(arguments.slide), dilation=20)
    else:
        image = made_image(arguments.side, arguments.tissue, arguments.pieces)
    return big, without_background(image) if arguments.everything else image


def made_image(side: int, share: float, pieces: int) -> Any:
    """Return an image of noise on disks of foreground that cover a share of it, never all of it in memory."""
    import tfbig

    class Noise(tfbig.Source):
        def _read(self, start: int, stop: int) -> Any:
            return self._read_window(start, stop, 0, self.shape[1])

        def _read_window(self, start: int, stop: int, left: int, right: int) -> Any:
            rows = np.arange(start, stop, dtype=np.uint32)[:, None, None] * 2654435761
            columns = np.arange(left, right, dtype=np.uint32)[:, None] * 40503
            return ((rows + columns + np.arange(3, dtype=np.uint32) * 97) >> 7).astype("uint8")

    return tfbig.masked(Noise((side, side, 3), "uint8", "noise"), disks(side, share, pieces), 230)


def disks(side: int, share: float, pieces: int) -> np.ndarray:
    """Return a mask of cells with disks: one in the middle, or many anywhere until they cover the share."""
    cells = side // CELL
    rows, columns = np.mgrid[:cells, :cells] + 0.5
    if share >= 1:
        return np.ones((cells, cells), bool)
    if pieces == 1:  # a square beyond the largest disk that fits
        far = (
            np.hypot
            if share < 0.75
            else lambda a, b: np.maximum(abs(a), abs(b)) * 2 / np.sqrt(np.pi)
        )
        return far(rows - cells / 2, columns - cells / 2) <= np.sqrt(share / np.pi) * cells
    random, mask = np.random.default_rng(0), np.zeros((cells, cells), bool)
    radius = np.sqrt(share / pieces / np.pi) * cells
    while mask.mean() < share:
        row, column = random.uniform(0, cells, 2)
        mask |= np.hypot(rows - row, columns - column) <= radius * random.uniform(0.5, 1.5)
    return mask


def without_background(image: Any) -> Any:
    """Return the same image as a source that says nothing of its background."""
    import tfbig

    class Everything(tfbig.Source):
        def _read(self, start: int, stop: int) -> Any:
            return image.read(start, stop)

        def _read_window(self, start: int, stop: int, left: int, right: int) -> Any:
            return image.read_window((start, stop), (left, right))

    return Everything(image.shape, image.dtype, image.name)


if __name__ == "__main__":
    main()
