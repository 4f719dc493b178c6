"""How many strips a sweep is cut into: the fewest that the device holds. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from tfbig.errors import BudgetError
from tfbig.geometry.windows import Size
from tfbig.network.graph import Graph, Local
from tfbig.plan.cost import bytes_of, heights_of, operations_of, sweep_limit
from tfbig.plan.plan import PAGE_ELEMENTS, SweepCost, layers_of
from tfbig.plan.sweeps import Sweep
from tfbig.units import format_bytes

KERNEL_ELEMENTS = 2**31 - 1
"""Most elements of a tensor; above, kernels fail or give wrong results (tensorflow issues 60330, 8471, 124949)."""

TWICE = 1.05
"""Operations that parting a strip may take, of those of the whole."""


@dataclass(frozen=True)
class Strips:
    """Cuts one sweep over images of one size.

    Args:
        graph: of the sweep.
        sweep: what runs.
        batch: images at a time.
        extents: sizes of all images.
        device_bytes: most bytes that strips may take at any time.
        training: whether a backward of the sweep follows.
        learning: images that take a gradient then.
        firm: whether `device_bytes` is a limit; else the smallest strip may take more.
        fixed: a number of strips to take whatever the bytes.
        max_elements: most elements of a strip of what the sweep reads, instead of `device_bytes`.
        devices: how many share the strips.
        keeps: whether the device is an accelerator on which images may stay. One kernel is enough for it; elsewhere a
            strip that fits alone may be parted among those that are worked on at once.
        name: of the model, for messages.
    """

    graph: Graph
    sweep: Sweep
    batch: int
    extents: Mapping[int, Size]
    device_bytes: int
    training: bool
    learning: frozenset[int]
    firm: bool = True
    fixed: int | None = None
    max_elements: int | None = None
    devices: int = 1
    keeps: bool = False
    name: str = "model"

    def cost(self) -> SweepCost:
        """What the sweep takes, cut into the fewest strips that fit.

        Raises:
            BudgetError: strips of one row do not fit.
        """
        sweep, count = self.sweep, self._count()
        heights = self._heights(count)
        self._check_kernels({v: int(rows.max()) for v, rows in heights.items()})
        operations, exact, again = operations_of(sweep, self.batch, self.extents, heights)
        shares = {v: -(-self.extents[v][0] // count) for v in sweep.reads}
        return SweepCost(
            count,
            max((int(heights[v].max()) for v in sweep.reads), default=0),
            max((int(heights[v].max()) - shares[v] for v in sweep.reads), default=0),
            self._working_set(count, range(count)),
            operations,
            exact,
            again,
            sum(int(heights[n.output].sum()) * self._row_bytes(n.output) for n in sweep.locals),
            -(-count // self.devices) * len(sweep.nodes),
        )

    def about(self, least: int) -> int:
        """About how many strips that is, but not below `least`: a strip is its share of the image, and its halo."""
        most = sweep_limit(self.sweep, self.extents)
        few = min(least, most)
        if few == most:
            return most
        smallest, larger = self._working_set(most), self._working_set(few)
        share = (larger - smallest) / (1 / few - 1 / most)
        halo = smallest - share / most
        if halo >= self.device_bytes:
            return most
        return min(max(ceil(share / (self.device_bytes - halo)), few), most)

    def _count(self) -> int:
        most = sweep_limit(self.sweep, self.extents)
        if self.fixed is not None:
            return max(min(self.fixed, most), 1)
        if not self._fits(most):
            return self._smallest(most)
        least = min(self.devices, most)
        if self._fits(least):
            return self._shared(least, most)
        low, high = min(least + 1, most), most
        while low < high:  # the smallest number that fits
            middle = (low + high) // 2
            if self._fits(middle):
                high = middle
            else:
                low = middle + 1
        while not self._fits(low, range(low)):
            if low == most:
                return self._smallest(most)
            low = min(low + max(low // 64, 1), most)  # a strip between those looked at is larger
        return low

    def _shared(self, count: int, most: int) -> int:
        """The same number of strips, or as many as are worked on at once where that makes few rows twice.

        Both gradients of a convolution run at once. Of a single strip the longer one ends on half of the cores: 0.16 s
        instead of 0.12 for each of the last four convolutions of ResNet-18 at 2048 x 2048.
        """
        more = min(count * self.graph.at_once, most)
        parts = self.training and not self.keeps
        if not parts or self.max_elements is not None or not self._fits(more):
            return count
        found = operations_of(self.sweep, self.batch, self.extents, self._heights(more))
        return more if found[0] <= TWICE * found[1] else count

    def _fits(self, count: int, chosen: Sequence[int] | None = None) -> bool:
        if self.max_elements is None:
            if self._working_set(count, chosen) > self.device_bytes:
                return False
            limit = KERNEL_ELEMENTS - (2 * PAGE_ELEMENTS if self.keeps else 0)
            # No number has less than a byte.
            return self.device_bytes <= limit or self._most(count, chosen) <= limit
        return count == sweep_limit(self.sweep, self.extents) or self.max_elements >= max(
            -(-self.extents[v][0] // count)
            * self.batch
            * self.extents[v][1]
            * self.graph.values[v].channels
            for v in self.sweep.reads
        )

    def _smallest(self, count: int) -> int:
        """Strips of a single row although they take more than asked for."""
        self._check_kernels(self._tallest(count))
        if not self.firm:
            return count
        least = self._working_set(count, range(count))
        need = format_bytes(least)
        raise BudgetError(
            f"sweep {self.sweep.index} of '{self.name}' ({layers_of(self.sweep)}): the smallest strip needs {need} "
            f"on the device, {format_bytes(self.device_bytes)} are allowed. Raise `device` to {need}, or use "
            f"{self._narrower()}a smaller batch (now {self.batch}).",
            least,
        )

    def _narrower(self) -> str:
        """What would make the smallest strip smaller; the row of a signal has one width."""
        widths = [self.extents[v][1] for v in self.sweep.images if len(self.extents[v]) > 1]
        return f"narrower images (now {max(widths)} columns) or " if widths else ""

    def _working_set(self, count: int, chosen: Sequence[int] | None = None) -> int:
        """Bytes of as many strips as are worked on at once, of the largest of those chosen.

        By default the first, the one in the middle and the last are looked at.

        Counted are its images, their gradients in training, those from outside twice, as the next are read ahead, and
        temporaries of the kernels: four times the largest image in training and where a loss and metrics are computed,
        else once. That is what the loss of a wide output needs; narrower sweeps stay below (measured by
        `tests/test_memory.py`).
        """
        sweep = self.sweep
        tiles = {v: rows * self._row_bytes(v) for v, rows in self._tallest(count, chosen).items()}
        scored = any(n.op.together is not None for n in sweep.reductions)
        temporaries = max(tiles.values(), default=0) * (4 if self.training or scored else 1)
        learning = self.learning if self.training else ()
        one = sum(b * (2 if v in learning else 1) for v, b in tiles.items()) + temporaries
        each = -(-count // self.devices)
        if each > self.graph.at_once:  # else none is left to read ahead
            one += sum(tiles[v] for v in self.graph.inputs if v in tiles)
        return one * min(each, self.graph.at_once)

    def _tallest(self, count: int, chosen: Sequence[int] | None = None) -> dict[int, int]:
        """Most rows of each image among the strips chosen."""
        chosen = sorted({0, count // 2, count - 1}) if chosen is None else chosen
        return {v: int(n.max(initial=0)) for v, n in self._heights(count, chosen).items()}

    def _heights(self, count: int, chosen: Sequence[int] | None = None) -> dict[int, np.ndarray]:
        """Rows of each image in every strip, or in those chosen."""
        table = self.sweep.table({v: self.extents[v][0] for v in self.sweep.images}, count, chosen)
        return {v: heights_of(self.sweep, table, v) for v in self.sweep.images}

    def _most(self, count: int, chosen: Sequence[int] | None) -> int:
        """Numbers of the largest image among the strips chosen."""
        return max(self._elements(v, n) for v, n in self._tallest(count, chosen).items())

    def _elements(self, value: int, rows: int) -> int:
        size = self.batch * rows * prod(self.extents[value][1:])
        return size * self.graph.values[value].channels

    def _check_kernels(self, rows: Mapping[int, int]) -> None:
        """Refuses strips of so many rows of each image if one has more numbers than kernels take."""
        elements = {v: self._elements(v, n) for v, n in rows.items()}
        if max(elements.values(), default=0) > KERNEL_ELEMENTS:
            value = max(elements, key=lambda v: elements[v])
            raise BudgetError(
                f"sweep {self.sweep.index} of '{self.name}' ({layers_of(self.sweep)}): a strip of "
                f"'{self.graph.values[value].name}' has {elements[value]} numbers, TensorFlow's kernels take "
                f"{KERNEL_ELEMENTS}. Use lower strips, narrower images (now {self.extents[value][1:]} beside the rows) "
                f"or a smaller batch (now {self.batch})."
            )

    def _row_bytes(self, value: int) -> int:
        return bytes_of(self.graph, value, self.batch, self.extents) // self.extents[value][0]


def learning(graph: Graph) -> frozenset[int]:
    """Images that take a gradient in training: those that some weight or statistic shapes."""
    found: set[int] = set()
    for node in graph.nodes:
        shaped = bool(node.weights) or any(
            i in found or not (graph.values[i].image or i in graph.sizes) for i in node.inputs
        )
        if isinstance(node.op, Local) and shaped:
            found.add(node.output)
    return frozenset(found)
