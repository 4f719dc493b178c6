"""Simulate how training scales over workers, from measured rates of one worker.

    python docs/scale_table.py [--json]

Every worker of a round trains on its own slide; then gradients are added up, and the round lasts as long as its slowest
slide:

    compute[w]  = megapixels[w] * max(seconds of a megapixel, decoding / cores of a worker) * jitter
    round       = max(compute) + exchange
    exchange    = 2 * (workers - 1) / workers * bytes / bandwidth + 2 * (workers - 1) * latency

(a ring). Efficiency is the time of one worker over n times the time of n workers. `RATES` and `Cluster` list what is
measured, on which machine, and what is assumed; `docs/scale.md` tells them apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tfbig.data.worker_shards import shuffled


@dataclass(frozen=True)
class Data:
    """Slides of an epoch.

    Args:
        slides: Number of slides.
        megapixels: Median megapixels of tiles that are read from a slide.
        spread: Standard deviation of its logarithm; 0 if every slide gives equally many tiles.
        host_bytes: Host memory of a replica, from the plan of the largest slide.
        like_sizes: Whether the slides of a round have similar sizes, `--like-sizes`.
    """

    slides: int
    megapixels: float
    spread: float
    host_bytes: float
    like_sizes: bool = False


TILE = 256 * 256 / 1e6
# Host bytes: MIL of ResNet-18 and ABMIL with exact BatchNormalization. The plan of 256 tiles says 3.5 GiB, that of 512
# says 7.0; of all tiles what Budget(host="32GB") allows, the rest on disk.
DATA = {
    "PANDA, 256 tiles": Data(7647, 256 * TILE, 0.0, 3.5 * 2**30),
    "CAMELYON16, 512 tiles": Data(270, 512 * TILE, 0.0, 7.0 * 2**30),
    "CAMELYON16, all tiles": Data(270, 8000 * TILE, 0.7, 32e9),
    "CAMELYON16, all tiles, like sizes": Data(270, 8000 * TILE, 0.7, 32e9, True),
    "a million slides, 512 tiles": Data(10**6, 512 * TILE, 0.0, 7.0 * 2**30),
    "a million slides, all tiles": Data(10**6, 8000 * TILE, 0.7, 32e9),
    "a million slides, all tiles, like sizes": Data(10**6, 8000 * TILE, 0.7, 32e9, True),
}
WORKERS = (1, 8, 64)
A_NODE = 8
"""Workers on one machine."""


@dataclass(frozen=True)
class Rates:
    """Rates of one worker.

    Args:
        seconds: Seconds of a training step per megapixel of tiles.
        decoding: Seconds per megapixel on one core, for JPEG tiles of a slide.
        jitter: Standard deviation of the logarithm of the time of equal steps.
    """

    seconds: float
    decoding: float
    jitter: float


RATES = {
    # PANDA, ResNet-18, 256 tiles: an epoch of 7647 slides takes 200 minutes end to end (Big-Layers, RTX 3090).
    "RTX 3090, as published": Rates(200 * 60 / 7647 / (256 * TILE), 0.008, 0.05),
    # benchmarks/mil_step.py: 1000 tiles of 224 x 224, exact BatchNormalization, 66 s.
    "two CPU cores, measured": Rates(66 / (1000 * 224 * 224 / 1e6), 0.008, 0.05),
}


@dataclass(frozen=True)
class Cluster:
    """Network between the workers.

    Args:
        cores: Cores of a worker, which decode.
        bandwidth: Bytes per second between two workers.
        latency: Seconds of a message.
        parameters: Parameters of the model, float32.
    """

    cores: int = 8
    bandwidth: float = 1.25e9
    latency: float = 50e-6
    parameters: int = 11_245_383


def round_seconds(sizes: np.ndarray, rates: Rates, cluster: Cluster, rng: np.random.Generator):
    """Return the seconds of each round, `[rounds]`, for slides of `megapixels`, `[rounds, workers]`."""
    workers = sizes.shape[1]
    pixel = max(rates.seconds, rates.decoding / cluster.cores)
    jitter = rng.lognormal(0, rates.jitter, sizes.shape)
    return (sizes * pixel * jitter).max(1) + exchange_seconds(workers, cluster)


def exchange_seconds(workers: int, cluster: Cluster) -> float:
    """Return the seconds to add up the gradients of all workers in a ring."""
    if workers == 1:
        return 0.0
    return (
        exchanged_bytes(workers, cluster) / cluster.bandwidth + 2 * (workers - 1) * cluster.latency
    )


def exchanged_bytes(workers: int, cluster: Cluster) -> float:
    """Return the bytes that each worker sends in a step."""
    return 2 * (workers - 1) / workers * 4 * cluster.parameters


def epoch_seconds(data: Data, rates: Rates, cluster: Cluster, workers: int, seed: int = 0) -> float:
    """Return the expected seconds of an epoch: simulates at most 20,000 rounds, and scales up if there are more."""
    rng = np.random.default_rng(seed)
    rounds = -(-data.slides // workers)
    drawn = min(rounds, 20_000)
    sizes = data.megapixels * rng.lognormal(0, data.spread, drawn * workers)
    if data.like_sizes:
        sizes = sizes[shuffled(len(sizes), rng, sizes)]
    seconds = round_seconds(sizes.reshape(drawn, workers), rates, cluster, rng)
    return float(seconds.mean() * rounds)


def lines(cluster: Cluster):
    """Return one dict per data set, kind of worker, and number of workers."""
    for kind, rates in RATES.items():
        for name, data in DATA.items():
            alone = epoch_seconds(data, rates, cluster, 1)
            for workers in WORKERS:
                seconds = epoch_seconds(data, rates, cluster, workers)
                sent = exchanged_bytes(workers, cluster) if workers > 1 else 0.0
                yield {
                    "worker": kind,
                    "data": name,
                    "workers": workers,
                    "epoch_hours": seconds / 3600,
                    "host_gigabytes_a_node": min(workers, A_NODE) * data.host_bytes / 1e9,
                    "efficiency": alone / seconds / workers,
                    "sent_megabytes_a_step": sent / 1e6,
                    "sent_gigabytes_an_epoch": sent * -(-data.slides // workers) / 1e9,
                }


def table(cluster: Cluster) -> str:
    """Return the lines as a table of Markdown."""
    head = "worker | data | workers | epoch | efficiency | host memory of a node | sent a step | an epoch, each"
    rows = [head, "---|---|---|---|---|---|---|---"]
    for line in lines(cluster):
        hours = line["epoch_hours"]
        epoch = f"{hours:.2f} h" if hours < 100 else f"{hours / 24:.0f} days"
        rows.append(
            f"{line['worker']} | {line['data']} | {line['workers']} | {epoch} | {line['efficiency']:.2f} | "
            f"{line['host_gigabytes_a_node']:.0f} GB | "
            f"{line['sent_megabytes_a_step']:.0f} MB | {line['sent_gigabytes_an_epoch']:.1f} GB"
        )
    return "\n".join(f"| {row} |" if row[0] != "-" else f"|{row}|" for row in rows)


def main() -> None:
    """Print the table, or lines of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="lines of JSON instead of a table")
    parser.add_argument("--bandwidth", type=float, default=1.25e9, help="bytes a second")
    arguments = parser.parse_args()
    cluster = Cluster(bandwidth=arguments.bandwidth)
    if arguments.json:
        for line in lines(cluster):
            print(json.dumps(line | {"cluster": asdict(cluster)}))
        return
    print(table(cluster))


if __name__ == "__main__":
    main()
