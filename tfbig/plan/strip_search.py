"""Search for the number of strips of a sweep: the fewest whose bytes fit the device. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod

import numpy as np

from tfbig.errors import Advice, BudgetError
from tfbig.geometry.windows import Interval, Number, Size
from tfbig.network.graph import BLOCK_SCORES, Graph, Node, pairs_of
from tfbig.plan.cost import operations_of, sweep_limit
from tfbig.plan.limits import KERNEL_ELEMENTS, device_for
from tfbig.plan.plan import SweepCost, layers_of
from tfbig.plan.sweeps import Sweep
from tfbig.units import ceil_div, format_bytes, itemsize

MOST_RECOMPUTED = 1.05
"""Largest ratio of operations to those on whole images at which strips are divided among the cores."""

LOOK_AHEAD = 6
"""Steps of the search for which strips are computed at once."""


@dataclass(frozen=True)
class Images:
    """The images of a graph, for inputs of one size.

    Args:
        graph: The graph.
        batch: Number of images in a batch.
        extents: Size of every image.
    """

    graph: Graph
    batch: int
    extents: Mapping[int, Size]

    @cached_property
    def pixel_bytes(self) -> dict[int, int]:
        """Bytes of a pixel of each image, in all images of the batch."""
        values = (self.graph.values[v] for v in self.extents)
        return {v.id: self.batch * v.channels * itemsize(v.dtype) for v in values}


@dataclass(frozen=True)
class StripLimits:
    """Limits of strips, and the devices that compute them.

    Args:
        allowed_bytes: Most bytes of strips at any time.
        is_firm: Whether `allowed_bytes` is a limit; otherwise the smallest strip may need more.
        max_elements: Most elements of a strip of an image that the sweep reads; replaces `allowed_bytes`.
        count: Number of devices that share the strips.
        is_accelerator: Whether the device is an accelerator that may keep images. One kernel is enough to occupy it; on
            other devices a strip that fits alone may be divided so that several strips run at once.
        im2col: As in `tfbig.plan.prepared_graph.Options`.
        workspace: Bytes that a kernel may use besides its images.
    """

    allowed_bytes: int
    is_firm: bool = True
    max_elements: int | None = None
    count: int = 1
    is_accelerator: bool = False
    im2col: bool = False
    workspace: int = 0


@dataclass(frozen=True)
class Strips:
    """Division of one sweep into strips, for images of one size.

    Args:
        images: The images.
        limits: What the strips may need.
        sweep: The sweep.
        training: Whether a backward pass of the sweep follows.
        learned: Values that need a gradient.
        fixed: Number of strips, whatever their bytes.
        name: Name of the model, for messages.
        blocks: Numbers of parts that the columns, ... are cut into too; empty for strips of whole rows.
        steps: For each observed image, numbers of rows and columns: parts begin at multiples of them. Default: 1.
        tallest: For each number of strips that was tried, the most rows of each image in the first strip, the middle
            one and the last. It does not depend on `blocks`, whose divisions share it.
    """

    images: Images
    limits: StripLimits
    sweep: Sweep
    training: bool = False
    learned: frozenset[int] = frozenset()
    fixed: int | None = None
    name: str = "model"
    blocks: tuple[int, ...] = ()
    steps: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    tallest: dict[int, dict[int, int]] = field(default_factory=dict, compare=False)

    @property
    def graph(self) -> Graph:
        """The graph of the sweep."""
        return self.images.graph

    @property
    def batch(self) -> int:
        """Number of images in a batch."""
        return self.images.batch

    @property
    def extents(self) -> Mapping[int, Size]:
        """Size of every image."""
        return self.images.extents

    @property
    def most(self) -> int:
        """Most strips that the sweep can be cut into."""
        return sweep_limit(self.sweep, self.extents, self.steps)

    def cost(self) -> SweepCost:
        """Return the cost of the sweep, cut into the fewest strips that fit.

        Returns:
            The cost.

        Raises:
            BudgetError: If strips, or tiles, of one row do not fit and the limit is firm; or if they are too large for
                kernels.
        """
        sweep, count = self.sweep, self.fewest or self._smallest()
        pixel_bytes = self.images.pixel_bytes
        heights = self.lengths(0, count, range(count))
        self._check_kernels({v: int(rows.max()) for v, rows in heights.items()})
        pixels = self._visited(heights)
        operations, exact, recomputed = operations_of(sweep, self.batch, self.extents, pixels)
        shares = {v: ceil_div(self.extents[v][0], count) for v in sweep.reads}
        return SweepCost(
            count,
            max((int(heights[v].max()) for v in sweep.reads), default=0),
            max((int(heights[v].max()) - shares[v] for v in sweep.reads), default=0),
            self._working_set(count, range(count)),
            operations,
            exact,
            recomputed,
            sum(
                pixels[n.output]
                * (pixel_bytes[n.output] * (1 + n.op.waiting) + self._score_bytes(n))
                for n in sweep.locals
            ),
            ceil_div(count * prod(self.blocks), self.limits.count) * len(sweep.nodes),
            self.blocks,
        )

    def operations(self, count: int) -> tuple[int, int, int]:
        """Return what `operations_of` counts for a number of strips.

        Args:
            count: The number of strips.
        """
        heights = self.lengths(0, count, range(count))
        pixels = self._visited(heights)
        return operations_of(self.sweep, self.batch, self.extents, pixels)

    def _visited(self, heights: Mapping[int, np.ndarray]) -> dict[int, int]:
        """Return the pixels of each image in all strips together."""
        return {v: int(rows.sum()) * self._row_pixels[v][1] for v, rows in heights.items()}

    @cached_property
    def _row_bytes(self) -> dict[int, int]:
        """Bytes of one row of each image, in the largest part of the row."""
        return {
            v: self.images.pixel_bytes[v] * pixels for v, (pixels, _) in self._row_pixels.items()
        }

    def about(self, least: int) -> int:
        """Estimate the number of strips of `cost`, without a search.

        The bytes of a strip are assumed to be a share of the image and a constant halo.

        Args:
            least: Least number of strips to return.

        Returns:
            The number of strips.
        """
        most = self.most
        few = min(least, most)
        if few == most:
            return most
        self._find_tallest([most, few])
        smallest, larger = self._working_set(most), self._working_set(few)
        share = (larger - smallest) / (1 / few - 1 / most)
        halo = smallest - share / most
        if halo >= self.limits.allowed_bytes:
            return most
        return min(max(ceil(share / (self.limits.allowed_bytes - halo)), few), most)

    @cached_property
    def fewest(self) -> int | None:
        """Fewest strips that fit; None if none do."""
        most = self.most
        if self.fixed is not None:
            return max(min(self.fixed, most), 1)
        if not self._fits(most):
            return None
        least = min(self.limits.count, most)
        if self._fits(least):
            return self._for_all_cores(least, most)
        low, high = min(least + 1, most), most
        while low < high:  # the smallest number that fits
            middle = (low + high) // 2
            if middle not in self.tallest:
                self._find_tallest(_middles(low, high))
            if self._fits(middle):
                high = middle
            else:
                low = middle + 1
        while not self._fits(low, range(low)):
            if low == most:
                return None
            low = min(
                low + max(low // 64, 1), most
            )  # of the three strips that `_fits` checks, none is the largest
        return low

    def _for_all_cores(self, count: int, most: int) -> int:
        """Return the number of strips, multiplied so that several run at once if few rows are then computed twice.

        Both gradients of a convolution run at once. With a single strip the longer one ends on half of the cores:
        0.16 s instead of 0.12 s for each of the last four convolutions of ResNet-18 at 2048 x 2048.
        """
        more = min(count * self.graph.at_once, most)
        divides = self.training and not self.limits.is_accelerator
        if (
            not divides
            or self.blocks
            or self.limits.max_elements is not None
            or not self._fits(more)
        ):
            return count
        operations, exact, _ = self.operations(more)
        return more if operations <= MOST_RECOMPUTED * exact else count

    def _fits(self, count: int, chosen: Sequence[int] | None = None) -> bool:
        if self.limits.max_elements is None:
            if self._working_set(count, chosen) > self.limits.allowed_bytes:
                return False
            # An element has at least one byte, so a small working set needs no count of elements.
            few = self.limits.allowed_bytes <= KERNEL_ELEMENTS
            return few or self._most_elements(count, chosen) <= KERNEL_ELEMENTS
        return count == self.most or self.limits.max_elements >= max(
            ceil_div(self.extents[v][0], count)
            * self.batch
            * prod(self.extents[v][1:])
            * self.graph.values[v].channels
            for v in self.sweep.reads
        )

    def _smallest(self) -> int:
        """Return the number of strips (or bands of tiles) of a single row, although these exceed the budget.

        Raises:
            BudgetError: If the budget is firm.
        """
        count = self.most
        self._check_kernels(self._tallest(count))
        if not self.limits.is_firm:
            return count
        least = self._working_set(count, range(count))
        if self.limits.workspace:  # a larger device has a larger one
            least = device_for(least - self.limits.workspace)
        need, part = format_bytes(least), "tile" if self.blocks else "strip"
        raise BudgetError(
            f"sweep {self.sweep.index} of '{self.name}' ({layers_of(self.sweep)}): the smallest {part} needs {need} "
            f"on the device, but {format_bytes(self.limits.allowed_bytes)} are allowed.",
            Advice.RAISE_DEVICE,
            Advice.SMALLER_STRIPS,
            need_bytes=least,
            need=need,
            smaller=f"{self._narrower()}a smaller batch (now {self.batch})",
        )

    def _working_set(self, count: int, chosen: Sequence[int] | None = None) -> int:
        """Return the bytes of all strips that run at once, each as large as the largest one of `chosen`.

        The default of `chosen` is the first strip, the middle one and the last.

        These are the images of a strip, their gradients in training, inputs of the graph twice because the next rows
        are read ahead, and temporaries of the kernels: four times the largest image in training and where a loss
        and metrics are computed, otherwise once. The loss of a wide output needs that much; other sweeps need less
        (measured by `tests/test_memory.py`), unless the gradients of a convolution need matrices. One accelerator
        computes a single strip at a time; of the others it has what is read and written. The workspace of a kernel is
        added.
        """
        sweep = self.sweep
        tiles = {v: n * self._row_bytes[v] for v, n in self._tallest(count, chosen).items()}
        scored = any(n.op.fusible for n in sweep.reductions)
        temporaries = max(tiles.values(), default=0) * (4 if self.training or scored else 1)
        temporaries = max(temporaries, self._matrix_bytes(tiles), self._attention_bytes(tiles))
        doubled = self.learned if self.training else ()
        one = sum(b * (2 if v in doubled else 1) for v, b in tiles.items()) + temporaries
        each = ceil_div(count * prod(self.blocks), self.limits.count)
        if self.limits.is_accelerator:
            waiting = min(each, self.graph.in_flight(True)) - 1
            return one + waiting * self._waiting_bytes(tiles) + self.limits.workspace
        if each > self.graph.at_once:  # otherwise no strip is left to read ahead
            one += sum(tiles[v] for v in self.graph.inputs if v in tiles)
        return one * min(each, self.graph.at_once) + self.limits.workspace

    def _tallest(self, count: int, chosen: Sequence[int] | None = None) -> dict[int, int]:
        """Return the most rows of each image in one of the chosen strips."""
        if chosen is None:
            self._find_tallest([count])
            return self.tallest[count]
        rows = self.lengths(0, count, chosen)
        return {v: int(n.max(initial=0)) for v, n in rows.items()}

    def _most_elements(self, count: int, chosen: Sequence[int] | None) -> int:
        """Return the elements of the largest image in one of the chosen strips."""
        return max(self._elements(v, n) for v, n in self._tallest(count, chosen).items())

    def _elements(self, value: int, rows: int) -> int:
        size = self.batch * rows * self._row_pixels[value][0]
        return size * self.graph.values[value].channels

    def _check_kernels(self, rows: Mapping[int, int]) -> None:
        """Raise BudgetError if a strip with these rows of each image has more elements than kernels support."""
        elements = {v: self._elements(v, n) for v, n in rows.items()}
        if max(elements.values(), default=0) > KERNEL_ELEMENTS:
            value = max(elements, key=lambda v: elements[v])
            raise BudgetError(
                f"sweep {self.sweep.index} of '{self.name}' ({layers_of(self.sweep)}): a strip of "
                f"'{self.graph.values[value].name}' has {elements[value]} elements, but TensorFlow's kernels support "
                f"at most {KERNEL_ELEMENTS}. Use strips of fewer rows, narrower images (now {self.extents[value][1:]} "
                f"after the rows) or a smaller batch (now {self.batch})."
            )

    def _waiting_bytes(self, tiles: Mapping[int, int]) -> int:
        """Return the bytes on an accelerator of a strip that waits for its turn, or for its results to be copied.

        Args:
            tiles: Bytes of each image of a strip.
        """
        sweep = self.sweep
        gradients = self.learned.intersection(sweep.writes) if self.training else ()
        return sum(tiles[v] for v in (*sweep.reads, *sweep.writes, *gradients))

    def _matrix_bytes(self, tiles: Mapping[int, int]) -> int:
        """Return the bytes of the largest matrices that the gradients of one convolution fill at the same time.

        Args:
            tiles: Bytes of each image of a strip. A matrix holds one image of the batch.
        """
        if not (self.limits.im2col and self.training):
            return 0
        values, most = self.graph.values, 0
        for node in self.sweep.locals:
            one_channel = tiles[node.output] // (self.batch * values[node.output].channels)
            gradients = 1 + (node.inputs[0] in self.learned)
            most = max(most, one_channel * node.op.im2col * gradients)
        return most

    def _score_bytes(self, node: Node) -> int:
        """Return the bytes of scores, their softmax and both gradients that an attention computes for a pixel."""
        if not node.op.heads:
            return 0
        size = max(itemsize(self.graph.values[node.output].dtype), 4)
        return 4 * self.batch * int(node.op.heads) * pairs_of(node, self.extents) * size

    def _attention_bytes(self, tiles: Mapping[int, int]) -> int:
        """Return the most bytes that an attention between pixels needs besides the images that it reads.

        These are queries, keys and values by heads, their gradients as they are added up and put together, and the
        scores of a block, their softmax, and the gradients of both. Keys and values that several heads share are
        repeated.

        Args:
            tiles: Bytes of each image of a strip.
        """
        most = 0
        for node in self.sweep.locals:
            if not node.op.heads:
                continue
            q, k, v = node.inputs[:3]
            pixels = (tiles[i] // self.images.pixel_bytes[i] for i in (q, k))
            scores = min(BLOCK_SCORES, self.batch * node.op.heads * prod(pixels))
            size = max(itemsize(self.graph.values[q].dtype), 4)
            copies = (5, 3) if self.training else (3, 1)
            shared = self.graph.values[q].channels // self.graph.values[k].channels
            images = copies[0] * tiles[q] + copies[1] * shared * (tiles[k] + tiles[v])
            most = max(most, images + copies[0] * scores * size)
        return most

    def _narrower(self) -> str:
        """Return the advice to use narrower images; empty for tiles, and for signals, whose rows have no columns."""
        if self.blocks:
            return ""
        widths = [self.extents[v][1] for v in self.sweep.images if len(self.extents[v]) > 1]
        return f"narrower images (now {max(widths)} columns) or " if widths else ""

    @cached_property
    def _row_pixels(self) -> dict[int, tuple[int, int]]:
        """Pixels that one row of each image has in the largest part of the row, and in all parts together."""
        extents = self.extents
        row = {v: (prod(extents[v][1:]),) * 2 for v in self.sweep.images}
        for axis, count in enumerate(self.blocks, 1):
            for v, parts in self.lengths(axis, count, range(count)).items():
                largest, total = (pixels // extents[v][axis] for pixels in row[v])
                row[v] = largest * int(parts.max()), total * int(parts.sum())
        return row

    def _find_tallest(self, counts: Sequence[int]) -> None:
        """Add numbers of strips to `tallest`; many at once take little longer than one.

        They are those of the first strip, the middle one and the last.
        """
        missing = np.array([n for n in counts if n not in self.tallest], np.int64)
        if not missing.size:
            return
        chosen = np.stack([0 * missing, missing // 2, missing - 1])  # [3, counts]
        heights = self.lengths(0, missing, chosen)
        rows = np.stack([n.max(axis=0) for n in heights.values()], axis=1)  # [counts, images]
        for count, tallest in zip(missing.tolist(), rows.tolist(), strict=True):
            self.tallest[count] = dict(zip(heights, tallest, strict=True))

    def lengths(
        self, axis: int, count: Number, parts: Sequence[int] | np.ndarray
    ) -> dict[int, np.ndarray]:
        """Return the length along an axis of every image of the sweep, in some parts of the axis.

        Args:
            axis: The axis, 0 for the rows.
            count: Number of parts; or an array, with one number for each index.
            parts: Indices of the parts.

        Returns:
            Lengths, in the shape of `parts`.
        """
        return {v: interval.size for v, interval in self.intervals(axis, count, parts).items()}

    def intervals(
        self, axis: int, count: Number, parts: Sequence[int] | np.ndarray
    ) -> dict[int, Interval]:
        """Return what every image of the sweep has in some parts of an axis. Args: as in `lengths`."""
        sizes = {v: self.extents[v][axis] for v in self.sweep.images}
        steps = {v: each[axis] for v, each in self.steps.items()}
        owned = self.sweep.owned(sizes, count, np.asarray(parts, np.int64), steps)
        needs = self.sweep.needs(sizes, owned, axis)
        return {v: needs[v] for v in sizes}


def _middles(low: int, high: int, steps: int = LOOK_AHEAD) -> list[int]:
    """Return all numbers that a binary search between two numbers may try in its next steps."""
    if low >= high or not steps:
        return []
    middle = (low + high) // 2
    return [middle, *_middles(low, middle, steps - 1), *_middles(middle + 1, high, steps - 1)]
