"""Time and peak memory of `tfbig features`, by default on the slides in `examples/data`.

    python benchmarks/features.py [SLIDE ... --encoder uni2-h --encoder-weights FILE] >> results.jsonl

The command runs in a process of its own, whose imports, tracing and search for tissue are part of the time; without
`--encoder-weights` the weights are random, which takes as long. The slides in `examples/data` have 2 micrometres per
pixel, so tiles are those of level 0 unless `--mpp` says otherwise.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import harness, report


@dataclass(frozen=True)
class Arguments:
    slides: Annotated[Sequence[str], harness.WORD, "slides, or folders"] = (
        str(ROOT / "examples/data"),
    )
    encoder: str = "resnet18"
    encoder_weights: str | None = None
    tile: int | None = None
    mpp: float | None = None
    precision: str = "float32"
    batch_size: int = 32


def flags_of(arguments: Arguments) -> list[str]:
    """Return the flags of the command, without `--out`."""
    resolution = ["--mpp", arguments.mpp] if arguments.mpp else ["--level", 0]
    flags = ["--encoder", arguments.encoder, *resolution, "--batch-size", arguments.batch_size]
    for name in ("encoder_weights", "tile", "precision"):
        if (value := getattr(arguments, name)) is not None:
            flags += [f"--{name.replace('_', '-')}", value]
    return [*map(str, (*arguments.slides, *flags)), "--quiet"]


def measure(arguments: Arguments, folder: str) -> dict[str, Any]:
    """Run the command in this process, and return its figures."""
    base = report.memory_bytes()[0]
    began = time.perf_counter()
    from tfbig.cli.data.feature_table import FeatureTable
    from tfbig.cli.main import main as tfbig

    out = Path(folder) / "out"
    code = tfbig(["features", *flags_of(arguments), "--out", str(out)])
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


def main() -> None:
    """Print a JSON line."""
    arguments = harness.read(Arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures = harness.apart(measure, arguments, folder)
    settings = {key: getattr(arguments, key) for key in ("encoder", "precision", "batch_size")}
    settings["weights"] = Path(arguments.encoder_weights or "random").name
    print(report.line("features", [], **settings, **figures), flush=True)


if __name__ == "__main__":
    main()
