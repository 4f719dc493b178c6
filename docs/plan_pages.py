"""Pages of plans: for each network, which image sizes fit which machine, how long a step takes, and how much disk."""

from __future__ import annotations

from typing import Any

import plan_table
from plan_table import HOSTS, MACHINES, NETWORKS, SIDES, Row
from write_papers import results


def about(lines: list[dict[str, Any]]) -> str:
    """Return what the times of the tables are, with the ratio of measured to predicted times of large images.

    Args:
        lines: Lines of benchmarks.
    """
    huge = [line for line in lines if line["case"].endswith(" huge")]
    ratios = [line["seconds"] / line["predicted_seconds"] for line in huge]
    return (
        "Nothing here was run: these are predictions of the planner for one training step of one image in float32, all "
        "BatchNormalization trained. Times of two CPU cores are at the default rates of a two-core machine; runs of "
        f"{len(ratios)} large images took {min(ratios):.1f} to {max(ratios):.1f} times the prediction, beside other "
        "work ([measured](../measured.md#other-networks)). Times of cards assume half of the peak of operations in "
        "float32 that the maker states, 0.8 of its memory bandwidth, and half of PCIe 4.0; none has been run on a "
        "GPU yet, so they say no more than the order of magnitude. `--store bfloat16` needs about half of memory and "
        "disk. A program has 0.85 of the host memory, 0.8 of that of a card, and 1 TB of scratch disk. Your own case: "
        "`tfbig plan NETWORK 32768x32768 --host-memory 64GB`."
    )


HEAD = about(results())


def duration(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.2g} min" if seconds < 5970 else f"{seconds / 3600:.2g} h"


def cell(row: Row | None) -> str:
    """Return what a table says of a plan: its time, and its disk if it needs any; nothing if it was not planned."""
    if row is None:
        return ""
    if not row.fits:
        return "no"
    disk = f", {row.disk_gb:.3g} GB" if row.disk_gb >= 0.05 else ""
    return f"{duration(row.seconds)}{disk}"


def page(name: str, rows: dict[tuple[str, int, str, int], Row]) -> str:
    """Return the page of a network: a table for each host memory."""
    sizes = [side for side in SIDES if any(key[:2] == (name, side) for key in rows)]
    parts = [f"# {name}", HEAD, "A cell is the time of a step, and the disk that it needs, if any."]
    for host in HOSTS:
        table = [
            f"| image | {' | '.join(MACHINES)} |",
            f"|---|{'---|' * len(MACHINES)}",
            *(
                f"| {side} x {side} | {' | '.join(cell(rows.get((name, side, m, host))) for m in MACHINES)} |"
                for side in sizes
            ),
        ]
        parts += [f"## {host} GB of host memory", "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def overview(rows: dict[tuple[str, int, str, int], Row], names: list[str]) -> str:
    """Return the first page: the largest image of each network and machine."""

    def largest(name: str, machine: str, host: int) -> str:
        planned = {r.side: r.fits for r in rows.values() if r.key == (name, r.side, machine, host)}
        fitting = [side for side, fits in planned.items() if fits]
        if not fitting:
            return "none" if planned else ""
        return str(max(fitting))

    parts = [
        "# Which model, which size, which machine",
        HEAD,
        "The largest side of a square image of which a training step fits, of those that were planned "
        f"({', '.join(map(str, sorted({r.side for r in rows.values()})))}); a network's page has times and disk. "
        "`python docs/plan_table.py` makes the plans, and `docs/plan_table.csv` has them.",
    ]
    for host in HOSTS:
        table = [
            f"| network | {' | '.join(MACHINES)} |",
            f"|---|{'---|' * len(MACHINES)}",
            *(
                f"| [{name}]({name.lower()}.md) | {' | '.join(largest(name, m, host) for m in MACHINES)} |"
                for name in names
            ),
        ]
        parts += [f"## {host} GB of host memory", "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Return the text of each page of plans by its place."""
    rows = {row.key: row for row in plan_table.rows()}
    names = [name for name in NETWORKS if any(key[0] == name for key in rows)]
    texts = {f"machines/{name.lower()}.md": page(name, rows) for name in names}
    return {"machines/index.md": overview(rows, names), **texts}
