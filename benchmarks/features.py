"""Time and peak memory of `tfbig features`, by default on the slides in `examples/data`.

    python benchmarks/features.py [SLIDE ... --encoder uni2-h --encoder-weights FILE] >> results.jsonl

The command runs in a process of its own, whose imports, tracing and search for tissue are part of the time; without
`--encoder-weights` the weights are random, which takes as long. The slides in `examples/data` have 2 micrometres per
pixel, so tiles are those of level 0 unless `--mpp` says otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import report

SLIDES = ROOT / "examples" / "data"


def flags_of(arguments: argparse.Namespace) -> list[str]:
    """Return the flags of the command, without `--out`."""
    resolution = ["--mpp", arguments.mpp] if arguments.mpp else ["--level", 0]
    flags = ["--encoder", arguments.encoder, *resolution, "--batch-size", arguments.batch_size]
    for name in ("encoder_weights", "tile", "precision"):
        if (value := getattr(arguments, name)) is not None:
            flags += [f"--{name.replace('_', '-')}", value]
    return [*map(str, (*arguments.slides, *flags)), "--quiet"]


def measure(flags: Sequence[str], out: Path) -> dict[str, Any]:
    """Run the command in this process, and return its figures."""
    base = report.memory_bytes()[0]
    began = time.perf_counter()
    from tfbig.cli.data.feature_table import FeatureTable
    from tfbig.cli.main import main as tfbig

    code = tfbig(["features", *flags, "--out", str(out)])
    seconds, peak = time.perf_counter() - began, report.memory_bytes()[1]
    rows = FeatureTable(out, ()).rows()
    if not rows:
        raise SystemExit(f"no slide was encoded (exit code {code})")
    tiles = sum(int(row["tiles"]) for row in rows)
    encoding = sum(float(row["seconds"]) for row in rows)
    return {
        "exit_code": code,
        "slides": len(rows),
        "tiles": tiles,
        "width": int(rows[0]["width"]),
        "seconds": round(seconds, 2),
        "slide_seconds": round(encoding, 2),
        "tiles_per_second": round(tiles / encoding, 2),
        "base_bytes": base,
        "peak_bytes": peak,
    }


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of a command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("slides", nargs="*", default=[SLIDES], metavar="SLIDE")
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--encoder-weights")
    parser.add_argument("--tile", type=int)
    parser.add_argument("--mpp", type=float)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--here", type=Path, metavar="OUT", help="measure in this process")
    return parser.parse_args(argv)


def main() -> None:
    """Print a JSON line."""
    arguments = parse_arguments()
    flags = flags_of(arguments)
    if arguments.here:
        print(json.dumps(measure(flags, arguments.here)))
        return
    with tempfile.TemporaryDirectory() as folder:
        words = [__file__, *sys.argv[1:], "--here", str(Path(folder) / "out")]
        figures = report.in_own_process(words)
    settings = {key: getattr(arguments, key) for key in ("encoder", "precision", "batch_size")}
    settings["weights"] = Path(arguments.encoder_weights or "random").name
    print(report.line("features", [], **settings, **figures), flush=True)


if __name__ == "__main__":
    main()
