"""What ran on a GPU during a traced step: seconds of kernels and of copies, and a picture.

    python benchmarks/gpu_profile.py TRACE.xplane.pb.gz ... [--plot gpu_profile.png --between 0.1 0.13]

Traces are those of `gpu.py overlap --trace` and `gpu.py sizes --trace`. Prints one JSON line for each. The picture has
three rows for each trace: copies to the GPU, kernels, and copies to the host.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import harness, profile

Interval = tuple[int, int]
"""First and last picosecond."""

Event = tuple[Interval, str]
"""When something ran on the GPU, and its name."""

ROWS = {"to device": ("memcpyh2d",), "kernels": (), "to host": ("memcpyd2h",)}
"""Rows of the picture, and how the names of their events begin; the others do not begin with "mem"."""


@dataclass(frozen=True)
class Arguments:
    traces: Annotated[Sequence[Path], harness.WORD, "traces, .xplane.pb.gz"]
    plot: Annotated[Path | None, "picture to write, .png"] = None
    between: Annotated[Sequence[float] | None, "first and last second of the picture"] = None


def main() -> None:
    arguments = harness.read(Arguments)
    traces = {path: gpu_events(_space(path)) for path in arguments.traces}
    for path, events in traces.items():
        figures = {"span_seconds": span(events), **overlap_figures(events)}
        print(json.dumps({"case": "gpu profile", "trace": path.name, **figures}), flush=True)
    if arguments.plot is not None:
        plot(traces, arguments.between, arguments.plot)


def _space(path: Path) -> Any:
    """Read a trace."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(gzip.decompress(path.read_bytes()))
    return space


def events_of(work: Callable[[], object], keep: Path | None = None) -> list[Event]:
    """Return what ran on the GPU during `work`."""
    space = profile.record(work, level=1)
    if keep is not None:
        keep.write_bytes(gzip.compress(space.SerializeToString()))
    return gpu_events(space)


def gpu_events(space: Any) -> list[Event]:
    """Return what ran on the GPU in a trace: when, and its name."""
    events = []
    for plane in space.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                first = line.timestamp_ns * 1000 + event.offset_ps
                name = plane.event_metadata[event.metadata_id].name
                events.append(((first, first + event.duration_ps), name))
    return events


def overlap_figures(events: Sequence[Event]) -> dict[str, Any]:
    """Return seconds of kernels and of copies, and the share of the copies during which a kernel ran."""
    kernels = named(events, ROWS["kernels"])
    figures: dict[str, Any] = {"kernel_seconds": seconds_of(kernels), "events": len(events)}
    copies = {"to_device": ROWS["to device"], "to_host": ROWS["to host"]}
    for name, words in {**copies, "copy": (*ROWS["to device"], *ROWS["to host"])}.items():
        at = named(events, words)
        taken = seconds_of(at)
        hidden = taken + seconds_of(kernels) - seconds_of(union([*at, *kernels]))
        figures |= {f"{name}_seconds": taken, f"{name}_hidden": round(hidden / (taken or 1), 3)}
    return figures


def union(intervals: Sequence[Interval]) -> list[Interval]:
    """Return disjoint intervals that cover the same time."""
    merged: list[Interval] = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        else:
            merged.append((start, stop))
    return merged


def seconds_of(intervals: Sequence[Interval]) -> float:
    """Return the total length of disjoint intervals in seconds."""
    return sum(stop - start for start, stop in intervals) / 1e12


def span(events: Sequence[Event]) -> float:
    """Return the seconds from the first event to the end of the last."""
    return (max(stop for (_, stop), _ in events) - min(start for (start, _), _ in events)) / 1e12


def named(events: Sequence[Event], words: Sequence[str]) -> list[Interval]:
    """Return when events ran whose names begin with some words; without words, all that are no copy or fill."""
    return union(
        [
            at
            for at, name in events
            if (name.lower().startswith(tuple(words)) if words else name[:3].lower() != "mem")
        ]
    )


def plot(traces: dict[Path, list[Event]], between: Sequence[float] | None, target: Path) -> None:
    """Draw when the GPU copied and computed, three rows for each trace."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1 + 1.3 * len(traces)), layout="constrained")
    axes = figure.subplots(len(traces), 1, squeeze=False)[:, 0]
    for ax, (path, events) in zip(axes, traces.items(), strict=True):
        zero = min(start for (start, _), _ in events)
        for row, words in enumerate(ROWS.values()):
            intervals = [((a - zero) / 1e9, (b - a) / 1e9) for a, b in named(events, words)]
            ax.broken_barh(intervals, (row - 0.4, 0.8), facecolors=f"C{row}")
        ax.set_yticks(range(len(ROWS)), list(ROWS))
        ax.invert_yaxis()
        ax.set_title(path.name.partition(".")[0], fontsize="medium", loc="left")
        if between:
            ax.set_xlim(1000 * between[0], 1000 * between[1])
    axes[-1].set_xlabel("milliseconds")
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main()
