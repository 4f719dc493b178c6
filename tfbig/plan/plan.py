"""What a step takes, as a value: strips, bytes, operations and seconds, and their table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil

from tfbig.network.graph import AT_ONCE
from tfbig.plan.lifetimes import Moment, Timeline
from tfbig.plan.sweeps import Layout, Store, Sweep
from tfbig.units import format_bytes

RUNTIME_BYTES = 128 * 2**20
"""What TensorFlow takes for itself: kernels made at run time, freed strips (measured: 115 MB at most)."""

SWEEP_BYTES = 4 * 2**20
"""The graph of a sweep, forward and backward (measured: 4.2 MB each for the 50 of ResNet-50)."""

PAGES = 256
"""Pages of an image that stays on the device (`tfbig.stores.device_store`), or more. A strip shares its first and last
with others, and holds those that these have changed since until all of its own have gone."""

PAGE_ELEMENTS = 2**26
"""Most numbers of such a page, if it is more than a row: with two of them a strip is not too large for kernels."""

START_SECONDS = 1e-4
"""Of a layer on a strip, however small: its kernels are started. ResNet-18 at 64 x 64 takes 0.064 s a step with 18
strips of 6 layers, 0.19 s with 98 (two CPU cores)."""


@dataclass(frozen=True)
class SweepCost:
    """What one sweep takes for one image size.

    Args:
        strips: number of strips.
        rows: most rows that a strip reads.
        halo: of these, rows beyond an even share of the image.
        device_bytes: largest working set of the strips that are worked on at once.
        operations: floating-point operations of the forward sweep, halo included.
        exact_operations: the same without the rows made twice.
        again_operations: of `operations`, those that a backward does again.
        made_bytes: of all images that the layers of the sweep make, strip by strip.
        starts: of layers on strips, one after the other.
    """

    strips: int
    rows: int
    halo: int
    device_bytes: int
    operations: int
    exact_operations: int
    again_operations: int
    made_bytes: int
    starts: int


@dataclass(frozen=True)
class Rates:
    """How fast a machine is; by default two CPU cores.

    Args:
        operations: floating-point operations of a convolution per second.
        passes: bytes of an image per second that an elementwise layer makes of another one.
        copies: bytes per second between strips and stores.
        mapped: bytes per second between strips and a file mapped into memory, without waiting for the disk.
        disk: bytes per second to a file.
    """

    operations: float = 1e11
    passes: float = 5e9
    copies: float = 1e10
    mapped: float = 3e9
    disk: float = 5e8

    def times(self, devices: int) -> Rates:
        """Of several devices of one machine: each computes, and has its way to the host; there is one disk."""
        return replace(
            self,
            operations=self.operations * devices,
            passes=self.passes * devices,
            copies=self.copies * devices,
        )


@dataclass(frozen=True)
class Plan:
    """How one network runs on one image size: a value, made before anything is allocated.

    Args:
        shape: `[N, H, W, C]` of the first input.
        layout: the sweeps, and where their images are kept.
        costs: one per sweep of the layout.
        replay_costs: one per replay of the layout.
        timeline: when each store exists.
        image_bytes: bytes of each image where it is stored.
        places: first byte of each store in host memory or in the file.
        device_bytes: most bytes of strips at any time.
        host_bytes: most bytes of stored images and their gradients at any time.
        disk_bytes: the same in a file.
        limit_bytes: the device budget that was asked for, if any.
        fixed_bytes: what does not depend on the image: TensorFlow's own, graphs, gradients of the weights.
        model_bytes: what the model takes between steps: weights, state of the optimiser.
        repeated_operations: of forward sweeps, on whole images, those that an earlier one has done.
        training: whether a backward follows.
        rates: of the machine.
        replicas: of the model on this machine, each with a plan such as this.
    """

    shape: tuple[int, ...]
    layout: Layout
    costs: tuple[SweepCost, ...]
    replay_costs: tuple[SweepCost, ...]
    timeline: Timeline
    image_bytes: Mapping[int, int]
    places: Mapping[Store, int]
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    limit_bytes: int | None
    fixed_bytes: int
    model_bytes: int
    repeated_operations: int
    training: bool
    rates: Rates
    replicas: int = 1

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        return self.layout.sweeps

    @property
    def strips(self) -> int:
        """The largest number of strips of a sweep."""
        return max(c.strips for c in self.costs)

    @property
    def mapped_bytes(self) -> int:
        """Rows of files that are in memory at once: of the strips at work, those before and those after."""
        return max((self._mapped(m) for m in self.timeline.moments), default=0)

    def _mapped(self, moment: Moment) -> int:
        share = min((AT_ONCE + 2) / self.cost_of(moment).strips, 1)
        spilled = self.layout.spilled.intersection(moment.touched)
        return ceil(share * sum(self.image_bytes[s.value] for s in spilled))

    @property
    def peak_bytes(self) -> int:
        """Host stores, strips and what is fixed: what steps add to the memory of a process on a CPU."""
        return self.device_bytes + self.host_bytes + self.mapped_bytes + self.fixed_bytes

    @property
    def total_bytes(self) -> int:
        """The same with the model: what `Budget(host=)` is for on a CPU."""
        return self.peak_bytes + self.model_bytes

    @property
    def operations(self) -> int:
        """Floating-point operations of a step (a backward counts twice its forward, and what it makes again)."""
        return sum(self._operations(m) for m in self.timeline.moments)

    @property
    def moved_bytes(self) -> int:
        """Bytes read from and written to stores in a step."""
        return sum(sum(self._moved(m)) for m in self.timeline.moments)

    @property
    def seconds(self) -> float:
        """What the step should take."""
        return sum(self._seconds(m) for m in self.timeline.moments)

    @property
    def exact_operations(self) -> int:
        """Operations of a step on whole images, with nothing made twice."""
        return (3 if self.training else 1) * self._exact_forward

    @property
    def _exact_forward(self) -> int:
        return sum(c.exact_operations for c in self.costs) - self.repeated_operations

    @property
    def recompute_factor(self) -> float:
        """Operations of a training step over those on whole images: 1.0 means that nothing is made twice."""
        exact = 3 * self._exact_forward
        done = 3 * sum(c.operations for c in self.costs)
        return (done + sum(c.operations for c in self.replay_costs)) / max(exact, 1)

    def cost_of(self, moment: Moment) -> SweepCost:
        """Of the sweep or the replay that runs."""
        if moment.what != "replay":
            return self.costs[moment.sweep]
        pairs = zip(self.layout.replays, self.replay_costs, strict=True)
        return next(cost for sweep, cost in pairs if sweep.index == moment.sweep)

    def _operations(self, moment: Moment) -> int:
        cost = self.cost_of(moment)
        again = cost.again_operations if moment.what == "backward" else 0
        return _TIMES[moment.what] * cost.operations + again

    def _moved(self, moment: Moment) -> tuple[int, int]:
        """Bytes to and from host memory, images from outside among them, and the file."""
        given = sum(self.image_bytes[v] for v in moment.given)
        moved = {"device": 0, "host": given, "disk": 0}
        for store in moment.touched:
            moved[self.layout.where(store)] += self.image_bytes[store.value]
        return moved["host"], moved["disk"]

    def _seconds(self, moment: Moment) -> float:
        """Files are read ahead and written behind, which does not save the system's work on their pages."""
        host, disk = self._moved(moment)
        cost, times = self.cost_of(moment), _TIMES[moment.what]
        work = self._operations(moment) / self.rates.operations
        work += times * (cost.made_bytes / self.rates.passes + cost.starts * START_SECONDS)
        copies = host / self.rates.copies + disk / self.rates.mapped
        return max(work + copies, disk / self.rates.disk)

    def summary(self, print_fn: Callable[[str], object] = print) -> None:
        """Prints the plan: a line per sweep, forward and backward, and the totals.

        Columns: the layers; strips and the rows that the largest reads, of these beyond its share (halo); where the
        images of the sweep are kept; bytes of a strip, of these images in host memory and on disk, moved to and from
        stores, all in MiB; operations; how often each is done (factor: 1.000 is once), and predicted seconds.
        """
        print_fn(str(self))

    def __str__(self) -> str:
        head = _row(*_HEAD)
        lines = [f"Plan for an image of {' x '.join(map(str, self.shape))}", head, "-" * len(head)]
        lines += [self._line(s, c) for s, c in zip(self.sweeps, self.costs, strict=True)]
        lines += [
            self._line(s, c) for s, c in zip(self.layout.replays, self.replay_costs, strict=True)
        ]
        lines += ["-" * len(head), *self._totals()]
        if self.layout.replays:
            lines.append(
                "+ sweeps make images again before the backward of the sweep they are named after"
            )
        return "\n".join(lines)

    def _line(self, sweep: Sweep, cost: SweepCost) -> str:
        moments = [
            m
            for m in self.timeline.moments
            if m.sweep == sweep.index and (m.what == "replay") == sweep.again
        ]
        kept = [s for s in self._made(sweep) if s.kind != "gradient"]
        words = dict.fromkeys(self.layout.where(s) for s in kept)
        if not sweep.again and self.layout.inner & set(sweep.writes):
            words["again"] = None
        host, disk = (
            sum(self.image_bytes[s.value] for s in stores if self.layout.where(s) == place)
            for stores, place in ((kept, "host"), (self._made(sweep), "disk"))
        )
        return _row(
            f"+{sweep.index}" if sweep.again else f"{sweep.index}",
            layers_of(sweep),
            f"{cost.strips} x {cost.rows}",
            f"{cost.halo}",
            ", ".join(words) or "-",
            *(
                f"{n / 2**20:.1f}"
                for n in (cost.device_bytes, host, disk, sum(sum(self._moved(m)) for m in moments))
            ),
            f"{sum(map(self._operations, moments)) / 1e9:.1f}",
            f"{cost.operations / cost.exact_operations if cost.exact_operations else 1:.3f}",
            f"{sum(map(self._seconds, moments)):.2f}",
        )

    def _made(self, sweep: Sweep) -> list[Store]:
        """Stores of what a sweep writes."""
        kinds = ["again"] if sweep.again else ["image", "gradient"]
        stores = [Store(kind, v) for kind in kinds for v in sweep.writes]
        return [s for s in stores if s in self.timeline.spans]

    def _totals(self) -> list[str]:
        disk = f", disk {format_bytes(self.disk_bytes)}" if self.disk_bytes else ""
        limit = f" of {format_bytes(self.limit_bytes)}" if self.limit_bytes else ""
        return [
            f"device {format_bytes(self.device_bytes)}{limit}, "
            f"host {format_bytes(self.host_bytes)}{disk}, the rest {format_bytes(self.fixed_bytes)}, "
            f"the model {format_bytes(self.model_bytes)}",
            f"{self.operations / 1e9:.1f} GFLOP a step, recompute factor {self.recompute_factor:.3f}, "
            f"{format_bytes(self.moved_bytes)} moved, predicted {self.seconds:.1f} s",
            *self._together(),
        ]

    def _together(self) -> list[str]:
        """What the replicas of a machine take."""
        if self.replicas == 1:
            return []
        disk = f", disk {format_bytes(self.replicas * self.disk_bytes)}" if self.disk_bytes else ""
        return [
            f"each of {self.replicas} replicas on this machine: together host "
            f"{format_bytes(self.replicas * self.host_bytes)}{disk}, all with the models "
            f"{format_bytes(self.replicas * self.total_bytes)}"
        ]


_TIMES = {"forward": 1, "backward": 2, "both": 3, "replay": 1}
"""Work of a moment in that of a forward."""

_HEAD = (
    *("sweep", "layers", "strips x rows", "halo", "kept"),
    *("device", "host", "disk", "moved", "GFLOP", "factor", "s"),
)
_WIDTHS = (5, -30, 13, 4, 10, 8, 8, 8, 8, 8, 6, 6)


def _row(*words: str) -> str:
    cells = zip(words, _WIDTHS, strict=True)
    return " ".join(
        f"{word:<{-width}}" if width < 0 else f"{word:>{width}}" for word, width in cells
    )


def layers_of(sweep: Sweep, width: int = 30) -> str:
    """First and last layer of a sweep, and how many; the last only where there is room."""
    names = list(dict.fromkeys(n.layer for n in sweep.nodes)) or ["-"]
    first, last, count = names[0], names[-1], len(names)
    if count == 1:
        return first if len(first) <= width else first[: width - 3] + "..."
    text = f"{first} .. {last} ({count})"
    return text if len(text) <= width else f"{first[: width - 6 - len(str(count))]} .. ({count})"
