"""Plan of a step as a value: strips, bytes, operations and seconds, and their table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import NamedTuple

import numpy as np

from tfbig.network.graph import AT_ONCE, IN_FLIGHT
from tfbig.plan.activity import ActiveTiles
from tfbig.plan.lifetimes import Moment, Timeline
from tfbig.plan.limits import Limits, Projected
from tfbig.plan.passes import Kind
from tfbig.plan.sweeps import Layout, Store, Sweep
from tfbig.units import format_bytes

START_SECONDS = 1e-4
"""Seconds to start the kernels of a layer on a strip, however small.

A step of ResNet-18 at 64 x 64 takes 0.064 s with 18 strips of 6 layers, 0.19 s with 98 (two CPU cores).
"""


@dataclass(frozen=True)
class SweepCost:
    """Cost of one sweep for one image size.

    Args:
        strips: Number of strips.
        rows: Most rows that a strip reads.
        halo: Rows among these beyond an equal share of the image.
        strip_bytes: Largest working set of the strips that run at once.
        operations: Floating-point operations of the forward sweep, halo included.
        exact_operations: The same without the rows that are computed twice.
        recomputed_operations: Part of `operations` that a backward pass repeats.
        computed_bytes: Bytes of all images that the layers of the sweep compute, strip by strip, those inside of
            activations included.
        starts: Number of times that a layer starts on a strip.
        blocks: Number of parts along the columns and every further axis that images are cut along; then `strips` are
            bands of tiles.
        active: Share of the image that is computed; the rest is background.
        joined: Most neighbours that are computed as one tile, if background is skipped.
    """

    strips: int
    rows: int
    halo: int
    strip_bytes: int
    operations: int
    exact_operations: int
    recomputed_operations: int
    computed_bytes: int
    starts: int
    blocks: tuple[int, ...] = ()
    active: float = 1.0
    joined: int = 1

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of parts along each axis that images are cut along."""
        return (self.strips, *self.blocks)


@dataclass(frozen=True)
class Rates:
    """Speed of a machine; the defaults are two CPU cores.

    Args:
        operations: Floating-point operations of a convolution per second.
        passes: Bytes per second that an elementwise layer computes.
        copies: Bytes per second between strips and stores.
        mapped: Bytes per second between strips and a file mapped into memory, without waiting for the disk.
        disk: Bytes per second to a file.
    """

    operations: float = 1e11
    passes: float = 5e9
    copies: float = 1e10
    mapped: float = 3e9
    disk: float = 5e8

    def times(self, devices: int) -> Rates:
        """Return the speed of several devices in one machine.

        Each computes and has its own connection to the host; they share one disk.

        Args:
            devices: Number of devices.

        Returns:
            Their joint rates.
        """
        return replace(
            self,
            operations=self.operations * devices,
            passes=self.passes * devices,
            copies=self.copies * devices,
        )


class Rest(NamedTuple):
    """Layers of a split model that do not stream.

    Args:
        layers: Their names.
        whole_bytes: Bytes of their tensors, which are part of `Plan.projected.device`.
    """

    layers: str
    whole_bytes: int


@dataclass(frozen=True, repr=False)
class Plan:
    """Plan of one network on one image size, computed before anything is allocated.

    Args:
        shape: `[N, H, W, C]` of the first input.
        layout: The sweeps, and where their images are stored.
        costs: Cost of each sweep of the layout.
        replay_costs: Cost of each replay of the layout.
        timeline: Moments between which each store exists.
        image_bytes: Bytes of each image in its store.
        addresses: First byte of each store in host memory or in the file.
        allowed: Limits that the plan keeps.
        projected: Bytes that it is projected to use.
        repeated_operations: Operations, on whole images, that a forward sweep repeats from an earlier one.
        training: Whether a backward pass follows.
        rates: Speed of the machine.
        replicas: Number of replicas of the model on this machine; each has such a plan.
        active_tiles: Tiles that each sweep computes, then each replay; empty if no background is skipped.
        everywhere: Layers whose results differ from pixel to pixel of the background: what depends on them is computed
            everywhere.
        kept_bytes: Bytes of each image if it is kept on the device.
        rest: What runs on whole tensors; None if all layers stream.

    Example:
        >>> image = keras.Input((None, None, 3))
        >>> x = keras.layers.Conv2D(8, 3, padding="same", use_bias=False)(image)
        >>> model = tfbig.stream(keras.Model(image, x), tfbig.Budget(device="64MB"))
        >>> plan = model.plan((1, 512, 512, 3))
        >>> len(plan.sweeps), plan.shape
        (1, (1, 512, 512, 3))
        >>> plan.exact_operations == 3 * 512 * 512 * 2 * 27 * 8  # forward, and twice as many backward
        True
    """

    shape: tuple[int, ...]
    layout: Layout
    costs: tuple[SweepCost, ...]
    replay_costs: tuple[SweepCost, ...]
    timeline: Timeline
    image_bytes: Mapping[int, int]
    addresses: Mapping[Store, int]
    allowed: Limits
    projected: Projected
    repeated_operations: int
    training: bool
    rates: Rates
    replicas: int = 1
    active_tiles: tuple[ActiveTiles, ...] = ()
    everywhere: tuple[str, ...] = ()
    kept_bytes: Mapping[int, int] = field(default_factory=dict)
    rest: Rest | None = None

    @property
    def active(self) -> float:
        """Share of the work of a forward pass that is computed; the rest is background."""
        whole = sum(c.exact_operations / c.active for c in self.costs if c.active)
        return sum(c.exact_operations for c in self.costs) / whole if whole else 1.0

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """Sweeps of the layout."""
        return self.layout.sweeps

    @cached_property
    def strips(self) -> int:
        """Largest number of strips of a sweep."""
        return max(c.strips for c in self.costs)

    @cached_property
    def mapped_bytes(self) -> int:
        """Bytes of files in memory at once: rows of the current strips, of the one before and of the one after."""
        if not self.layout.spilled:
            return 0
        return max(_mapped_bytes(self, moment) for moment in self.timeline.moments)

    @property
    def peak_bytes(self) -> int:
        """Bytes that steps add to the memory of a process on a CPU: host stores, strips and fixed bytes."""
        projected = self.projected
        return projected.device + projected.host + self.mapped_bytes + projected.fixed

    @property
    def total_bytes(self) -> int:
        """`peak_bytes` and the model: the bytes that `Budget(host=)` limits on a CPU."""
        return self.peak_bytes + self.projected.model

    @property
    def operations(self) -> int:
        """Floating-point operations of a step; a backward pass counts as two forward passes and what it recomputes."""
        return sum(work.operations for work in _work(self))

    @property
    def moved_bytes(self) -> int:
        """Bytes read from and written to stores in a step."""
        return sum(work.moved_bytes for work in _work(self))

    @cached_property
    def seconds(self) -> float:
        """Predicted seconds of a step."""
        return sum(work.seconds for work in _work(self))

    @property
    def exact_operations(self) -> int:
        """Operations of a step on whole images, with nothing computed twice."""
        return (3 if self.training else 1) * self._exact_forward

    @property
    def _exact_forward(self) -> int:
        repeated = round(self.repeated_operations * self.active)
        return sum(c.exact_operations for c in self.costs) - repeated

    @property
    def recompute_factor(self) -> float:
        """Operations of a training step divided by those on whole images; 1.0 means that nothing is computed twice."""
        exact = 3 * self._exact_forward
        done = 3 * sum(c.operations for c in self.costs)
        return (done + sum(c.operations for c in self.replay_costs)) / max(exact, 1)

    def cost_of(self, moment: Moment) -> SweepCost:
        """Return the cost of the sweep or replay that runs at a moment."""
        if moment.kind is not Kind.REPLAY:
            return self.costs[moment.sweep]
        pairs = zip(self.layout.replays, self.replay_costs, strict=True)
        return next(cost for sweep, cost in pairs if sweep.index == moment.sweep)

    def summary(self, print_fn: Callable[[str], object] = print) -> None:
        """Print the plan: a line per sweep, forward and backward, and the totals.

        Columns: the layers; the number of strips (of tiles, their number down and across) and the rows that the
        largest reads; how many of these rows belong to
        other strips (halo); where the images of the sweep are stored; bytes of a strip, of these images in host
        memory and on disk, and moved to and from stores, all in MiB; operations; how often each operation runs
        (factor: 1.000 means once); and predicted seconds. Where background is skipped: the share of the image that is
        computed (active).

        Args:
            print_fn: Function to call with the text.
        """
        print_fn(str(self))

    def __repr__(self) -> str:
        """Return the table that `summary` prints."""
        head = _row(*_HEAD) + (" active" if self.active_tiles else "")
        pairs = [
            *zip(self.sweeps, self.costs, strict=True),
            *zip(self.layout.replays, self.replay_costs, strict=True),
        ]
        title = f"Plan for an image of {' x '.join(map(str, self.shape))}"
        if self.layout.plain:
            title += ", small enough for plain Keras"
        lines = [title, head, "-" * len(head)]
        lines += [_line(self, sweep, cost) for sweep, cost in pairs]
        lines += ["-" * len(head), *_totals(self), *_replica_totals(self)]
        if self.layout.replays:
            lines.append(
                "+ sweeps rematerialise images before the backward pass of the sweep with their number"
            )
        if self.rest is not None:
            whole = format_bytes(self.rest.whole_bytes)
            lines.append(f"{whole} of the device bytes are whole tensors of {self.rest.layers}")
        return "\n".join(lines)


class _Work(NamedTuple):
    """Work of one moment of a step.

    Args:
        operations: Floating-point operations.
        moved_bytes: Bytes moved to and from stores.
        seconds: Predicted seconds.
    """

    operations: int
    moved_bytes: int
    seconds: float


def _work(plan: Plan) -> list[_Work]:
    """Return the work of each moment of a step."""
    moved = _moved_bytes(plan)
    return [_work_at(plan, *each) for each in zip(plan.timeline.moments, *moved, strict=True)]


def _work_at(plan: Plan, moment: Moment, host: int, disk: int) -> _Work:
    """Return the work of a moment that moves some bytes to and from host memory and disk."""
    cost, passes, rates = plan.cost_of(moment), _PASSES[moment.kind], plan.rates
    recomputed = cost.recomputed_operations if moment.kind is Kind.BACKWARD else 0
    operations = passes * cost.operations + recomputed
    # The system reads files ahead and writes them later; its work on their pages still takes time (`mapped`).
    work = operations / rates.operations
    work += passes * (cost.computed_bytes / rates.passes + cost.starts * START_SECONDS)
    copies = host / rates.copies + disk / rates.mapped
    return _Work(operations, host + disk, max(work + copies, disk / rates.disk))


def _moved_bytes(plan: Plan) -> tuple[list[int], list[int]]:
    """Return the bytes moved at each moment to and from host memory, images from outside included, and the file."""
    line, sizes = plan.timeline, plan.image_bytes
    places = ("host", "disk", "device")
    where = np.array([places.index(plan.layout.where(s)) for s in line.stores], np.int64)
    bytes_of = np.array([sizes[s.value] for s in line.stores], np.int64)
    moments, stores = line.touches
    moved = np.zeros((len(places), len(line.moments)), np.int64)
    np.add.at(moved, (where[stores], moments), bytes_of[stores])
    moved[0] += [sum(sizes[v] for v in moment.external) for moment in line.moments]
    host, disk, _ = moved.tolist()
    return host, disk


def _mapped_bytes(plan: Plan, moment: Moment) -> int:
    """Return the bytes of files in memory at a moment."""
    at_once = AT_ONCE if plan.allowed.shared else IN_FLIGHT
    share = min((at_once + 2) / plan.cost_of(moment).strips, 1)
    spilled = plan.layout.spilled.intersection(moment.touched)
    return ceil(share * sum(plan.image_bytes[s.value] for s in spilled))


def _line(plan: Plan, sweep: Sweep, cost: SweepCost) -> str:
    """Return the line of a sweep in the table of a plan."""
    work = [
        each
        for m, each in zip(plan.timeline.moments, _work(plan), strict=True)
        if m.sweep == sweep.index and (m.kind is Kind.REPLAY) == sweep.is_replay
    ]
    stores, where = _written_stores(plan, sweep), plan.layout.where
    images = [s for s in stores if s.kind != "gradient"]
    words = dict.fromkeys(map(where, images))
    if not sweep.is_replay and plan.layout.inner & set(sweep.writes):
        words["remat"] = None
    host, disk = (
        sum(plan.image_bytes[s.value] for s in some if where(s) == place)
        for some, place in ((images, "host"), (stores, "disk"))
    )
    moved = sum(w.moved_bytes for w in work)
    line = _row(
        f"+{sweep.index}" if sweep.is_replay else f"{sweep.index}",
        layers_of(sweep),
        f"{'x'.join(map(str, cost.counts))} x {cost.rows}",
        f"{cost.halo}",
        ", ".join(words) or "-",
        *(f"{n / 2**20:.1f}" for n in (cost.strip_bytes, host, disk, moved)),
        f"{sum(w.operations for w in work) / 1e9:.1f}",
        f"{cost.operations / cost.exact_operations if cost.exact_operations else 1:.3f}",
        f"{sum(w.seconds for w in work):.2f}",
    )
    return f"{line} {cost.active:6.3f}" if plan.active_tiles else line


def _written_stores(plan: Plan, sweep: Sweep) -> list[Store]:
    """Return the stores of the images that a sweep writes, and of their gradients."""
    kinds = ["remat"] if sweep.is_replay else ["image", "gradient"]
    stores = [Store(kind, v) for kind in kinds for v in sweep.writes]
    return [s for s in stores if s in plan.timeline.spans]


def _totals(plan: Plan) -> list[str]:
    projected, allowed = plan.projected, plan.allowed
    disk = f", disk {format_bytes(projected.disk)}" if projected.disk else ""
    limit = f" of {format_bytes(allowed.device)}" if allowed.firm else ""
    if allowed.workspace:
        limit += f" ({format_bytes(allowed.workspace)} for kernels)"
    return [
        f"device {format_bytes(projected.device)}{limit}, host {format_bytes(projected.host)}{disk}, "
        f"other {format_bytes(projected.fixed)}, model {format_bytes(projected.model)}",
        f"{plan.operations / 1e9:.1f} GFLOP a step, recompute factor {plan.recompute_factor:.3f}, "
        f"{format_bytes(plan.moved_bytes)} moved, predicted {plan.seconds:.1f} s",
        *_background_totals(plan),
    ]


def _background_totals(plan: Plan) -> list[str]:
    """Return lines on how much of the image is computed, if it has a background."""
    lines = []
    if plan.active_tiles:
        tiles = sum(active_tiles.number for active_tiles in plan.active_tiles)
        lines.append(
            f"{plan.active:.3f} of the image is computed, in {tiles} tiles; the rest is background"
        )
    if plan.everywhere:
        names = ", ".join(f"'{name}'" for name in plan.everywhere)
        lines.append(f"background is computed too where it depends on {names}")
    return lines


def _replica_totals(plan: Plan) -> list[str]:
    """Return a line with the bytes of all replicas on the machine, if there are several."""
    if plan.replicas == 1:
        return []
    host, disk, total = (
        format_bytes(plan.replicas * n)
        for n in (plan.projected.host, plan.projected.disk, plan.total_bytes)
    )
    spilled = f", disk {disk}" if plan.projected.disk else ""
    return [
        f"each of {plan.replicas} replicas on this machine: together host {host}{spilled}, with the models and "
        f"all else {total}"
    ]


_PASSES = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.BOTH: 3, Kind.REPLAY: 1}
"""Work of a moment, relative to a forward pass."""

_HEAD = (
    *("sweep", "layers", "strips x rows", "halo", "stored"),
    *("device", "host", "disk", "moved", "GFLOP", "factor", "s"),
)
_WIDTHS = (5, -30, 13, 4, 12, 8, 8, 8, 8, 8, 6, 6)


def _row(*words: str) -> str:
    cells = zip(words, _WIDTHS, strict=True)
    return " ".join(
        f"{word:<{-width}}" if width < 0 else f"{word:>{width}}" for word, width in cells
    )


def layers_of(sweep: Sweep, width: int = 30) -> str:
    """Return the first and last layer of a sweep, and their number, as a text.

    Args:
        sweep: The sweep.
        width: Most characters; if they do not suffice, the last layer is omitted.

    Returns:
        The text.
    """
    names = list(dict.fromkeys(n.layer for n in sweep.nodes)) or ["-"]
    first, last, count = names[0], names[-1], len(names)
    if count == 1:
        return first if len(first) <= width else first[: width - 3] + "..."
    text = f"{first} .. {last} ({count})"
    return text if len(text) <= width else f"{first[: width - 6 - len(str(count))]} .. ({count})"
