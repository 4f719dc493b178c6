"""Plans of common networks, image sizes and machines, in docs/plan_table.csv, from which the pages of them are written.

    python docs/plan_table.py [--networks ResNet50 ...] [--sides 8192 ...] [--machines 'A100, 80 GB' ...]

plans what the file does not have yet; delete lines to plan them again. Nothing runs, and no accelerator is needed. All
plans take some hours on two cores.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # as on processors with AVX-512; this one may have none
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

TABLE = ROOT / "docs/plan_table.csv"
SIDES = (2048, 4096, 8192, 16384, 32768, 65536)
HOSTS = (32, 128)
"""Gigabytes of host memory."""
DISK = 1000
"""Gigabytes of the scratch directory."""
SHARE = 0.85
"""Part of the memory of a host that is left to a program; of an accelerator it is 0.8, as without `Budget(device=)`."""


@dataclass(frozen=True)
class Card:
    """An accelerator as its maker describes it.

    Attributes:
        name: Name in the table.
        memory: Gigabytes.
        tflops: Peak of float32 without matrix units, in 10^12 operations a second.
        bandwidth: Gigabytes a second of its memory.
    """

    name: str
    memory: int
    tflops: float
    bandwidth: float


CARDS = {
    card.name: card
    for card in (
        Card("RTX 3060, 12 GB", 12, 12.7, 360),
        Card("RTX 3090, 24 GB", 24, 35.6, 936),
        Card("A100, 80 GB", 80, 19.5, 1935),
    )
}
CPU = "two CPU cores"
MACHINES = (CPU, *CARDS)
PCIE = 32e9
"""Bytes a second of PCIe 4.0 x16."""

NETWORKS = (
    *("ResNet18", "ResNet50", "ResNet152", "ResNet50V2", "VGG16", "MobileNetV2", "EfficientNetB0"),
    *("EfficientNetV2S", "DenseNet121", "Xception", "ConvNeXtTiny", "GigapixelUNet"),
)


@dataclass(frozen=True)
class Row:
    """One plan, or that there is none.

    Attributes:
        network: One of `NETWORKS`.
        side: Rows, and columns, of the image.
        machine: One of `MACHINES`.
        host: Gigabytes of host memory of the machine.
        fits: Whether there is a plan.
        seconds: Predicted seconds of a training step.
        device_gb: Gigabytes on the accelerator, or for strips.
        host_gb: Gigabytes in host memory.
        disk_gb: Gigabytes in the scratch file.
        factor: Operations, relative to those without recomputation.
    """

    network: str
    side: int
    machine: str
    host: int
    fits: bool
    seconds: float = 0.0
    device_gb: float = 0.0
    host_gb: float = 0.0
    disk_gb: float = 0.0
    factor: float = 0.0

    @property
    def key(self) -> tuple[str, int, str, int]:
        """What is planned."""
        return self.network, self.side, self.machine, self.host


def rows() -> list[Row]:
    """Return the rows of the file."""
    if not TABLE.exists():
        return []
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [
            Row(
                *(r["network"], int(r["side"]), r["machine"], int(r["host"]), r["fits"] == "True"),
                *(float(r[field.name]) for field in fields(Row)[5:]),
            )
            for r in csv.DictReader(file)
        ]


def rates_of(machine: str) -> Any:
    """Return the rates that plans for a machine are made with.

    Those of two CPU cores are the defaults of `tfbig.plan.plan.Rates`. Those of a card are half of its peak of
    operations; for layers that read two images and write one, 0.8 of its memory bandwidth; and half of PCIe 4.0 for
    copies. They were not measured.
    """
    from dataclasses import replace

    from tfbig.plan.plan import Rates

    if machine == CPU:
        return Rates()
    card = CARDS[machine]
    operations, passes = 0.5 * card.tflops * 1e12, 0.8 * card.bandwidth * 1e9 / 3
    return replace(Rates(), operations=operations, passes=passes, copies=PCIE / 2)


def network(name: str) -> tuple[Any, Any, str, int]:
    """Return a network for images of any size, an optimizer with its state, a loss, and its channels."""
    import keras

    from benchmarks.networks import application, resnet18
    from tfbig.models.gigapixel_unet import gigapixel_unet

    if name == "GigapixelUNet":
        model, loss, channels = gigapixel_unet(), "binary_crossentropy", 1
    else:
        model, loss, channels = resnet18() if name == "ResNet18" else application(name), "mse", 3
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return model, optimizer, loss, channels


def planned(name: str, side: int, machine: str, host: int, built: Any) -> Row:
    """Plan a training step of one image in float32."""
    import tfbig
    from tfbig.engine import machine_rates

    model, optimizer, loss, channels = built
    rates = rates_of(machine)
    machine_rates.of = lambda *_: rates  # of a machine that is not here
    card = CARDS.get(machine)
    device = None if card is None else int(0.8 * card.memory * 1e9)
    budget = tfbig.Budget(device, int(SHARE * host * 1e9), DISK * 10**9)
    # A device that is named has memory of its own.
    big = tfbig.stream(model, budget, devices=None if card is None else "CPU:0")
    big.compile(optimizer, loss)
    try:
        plan = big.plan((1, side, side, channels))
    except tfbig.BudgetError:
        return Row(name, side, machine, host, fits=False)
    used = plan.projected
    in_host = plan.total_bytes if card is None else used.host + plan.mapped_bytes
    sizes = (round(n / 1e9, 3) for n in (used.device, in_host, used.disk))
    factor = round(plan.recompute_factor, 3)
    return Row(name, side, machine, host, True, float(f"{plan.seconds:.3g}"), *sizes, factor)


def for_hosts(plan: Callable[[int], Row]) -> Iterator[Row]:
    """Yield a row for each host memory, largest first; a plan that fits a smaller one too is not made again.

    Args:
        plan: Function from gigabytes of host memory to a row.
    """
    last: Row | None = None
    for host in sorted(HOSTS, reverse=True):
        if last is not None and (
            not last.fits or (last.disk_gb == 0 and last.host_gb <= 0.9 * SHARE * host)
        ):
            last = Row(*last.key[:3], host, *astuple(last)[4:])
        else:
            last = plan(host)
        yield last


def main() -> None:
    """Plan what is missing, and write the file after every few plans."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--sides", nargs="+", type=int, choices=SIDES, default=SIDES)
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=MACHINES)
    chosen = parser.parse_args()
    for side in chosen.sides:
        for name in chosen.networks:
            have = {row.key for row in rows()}
            missing = [m for m in chosen.machines if (name, side, m, min(HOSTS)) not in have]
            built = network(name) if missing else None
            for machine in missing:
                write(
                    *for_hosts(
                        lambda host, n=name, s=side, m=machine, b=built: planned(n, s, m, host, b)
                    )
                )
                print(name, side, machine, flush=True)


def write(*new: Row) -> None:
    """Write the file, with more rows, in order."""
    every = {row.key: row for row in (*rows(), *new)}
    places = {name: i for i, name in enumerate((*NETWORKS, *MACHINES))}
    in_order = sorted(
        every.values(), key=lambda r: (places[r.network], r.side, places[r.machine], r.host)
    )
    unfinished = TABLE.with_suffix(f".{os.getpid()}.part")
    with unfinished.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)])
        writer.writerows(astuple(row) for row in in_order)
    unfinished.replace(TABLE)


if __name__ == "__main__":
    main()
