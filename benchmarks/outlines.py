"""Time and memory to outline a mask of noise, the mask with the most regions and holes.

    python benchmarks/outlines.py [--side 4096 --shares 0.5 0.7] >> results.jsonl

Each share of foreground pixels runs in its own process.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import report


def measure(side: int, share: float) -> dict[str, Any]:
    """Return the seconds, the memory above the imports, and the number of outlines."""
    import numpy as np

    from tfbig.results import outlines

    labels = (np.random.default_rng(0).random((side, side)) < share).astype(np.uint8)
    base = report.memory_bytes()[1]
    began = time.perf_counter()
    regions = outlines.regions(labels)
    seconds = time.perf_counter() - began
    polygons = regions.polygons.get(1, [])
    return {
        "share": share,
        "seconds": round(seconds, 2),
        "above_base_bytes": report.memory_bytes()[1] - base,
        "regions": len(polygons),
        "holes": sum(len(p.interiors) for p in polygons),
        "left_out": regions.left_out,
        "filled": regions.filled,
    }


def main() -> None:
    """Print a JSON line for each share."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.3, 0.5, 0.6, 0.7, 0.95])
    parser.add_argument("--here", action="store_true", help="one share, in this process")
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(measure(arguments.side, arguments.shares[0])))
        return
    for share in arguments.shares:
        words = [__file__, "--here", "--side", arguments.side, "--shares", share]
        figures = report.in_own_process(words)
        print(report.line("outlines", [arguments.side, arguments.side], **figures), flush=True)


if __name__ == "__main__":
    main()
