"""The computation of one strip or tile of a sweep: run the nodes, cut, reduce and pull back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfbig.engine.strip_images import Tiles
from tfbig.engine.sweep_tensors import StripGeometry, Structure, SweepValues, TracedSweep
from tfbig.geometry.windows import is_pixelwise, may_be_empty
from tfbig.network.graph import Node, axes_of
from tfbig.ops.kernels import Copies, InputRows, Strip, take
from tfbig.stores.image_store import Interval


class StripStep:
    """Functions of one strip of a sweep.

    Args:
        traced: The sweep.
        values: Tensors that every strip uses.
        geometry: Geometry of the strip, in the image or in its cutout.
        place: Geometry in the image.
        copies: As in `SweepGeometry`.
        borrowed: Images whose strips are in the memory of a store.
    """

    def __init__(
        self,
        traced: TracedSweep,
        values: SweepValues,
        geometry: StripGeometry,
        place: StripGeometry,
        copies: dict[int, tf.Tensor] | None = None,
        borrowed: frozenset[int] = frozenset(),
    ) -> None:
        self.sweep = traced.sweep
        self.is_even = self.sweep.even and not self.sweep.single
        self.shared = values
        self.geometry = geometry
        self.place = place
        self.copies = copies or {}
        self.borrowed = borrowed

    def values(self, tiles: Tiles) -> dict[int, Structure]:
        """Run the local nodes and return every image of the sweep on the strip, by value."""
        values, geometry = dict(tiles), self.geometry
        for node in self.sweep.locals:
            images = node.image_positions
            inputs = [
                self._input_rows(values, node, p) if p in images else self.shared.wholes[i]
                for p, i in enumerate(node.inputs)
            ]
            read = [
                self._rows_read(node, p) if p in images else [None] * geometry.axes
                for p in range(len(node.inputs))
            ]
            strip = self._strip(geometry, node.output, False, read)
            if node.op.prepare is None:
                given = [self.shared.weights[w] for w in node.weights]
            else:
                given = self.shared.prepared[node.output]
            values[node.output] = node.op.function(inputs, given, strip)
        return values

    def _strip(
        self, geometry: StripGeometry, value: int, own: bool, read: list[list[Any]]
    ) -> Strip:
        """Return the position of a part of an image; `read` has what it reads of each input, along each axis."""
        part, sizes = geometry.part(value, own), geometry.sizes[value]
        axes = [
            Strip(*interval, size, tuple(rows[axis] for rows in read))
            for axis, (interval, size) in enumerate(zip(part, sizes, strict=False))
        ]
        compiled = self.geometry is not self.place
        return replace(axes[0], others=tuple(axes[1:]), compiled=compiled)

    def _rows_read(self, node: Node, p: int) -> list[InputRows]:
        """Return what a node reads of its input `p`, along each axis."""
        names = ("start", "stop", "before", "after")
        numbers = zip(*(self.geometry.along(name, node.output, p) for name in names), strict=True)
        sizes = self.geometry.sizes[node.inputs[p]]
        rows = [
            InputRows(start, stop, before, after, size)
            for (start, stop, before, after), size in zip(numbers, sizes, strict=False)
        ]
        if not self._reads_all(node):
            return rows
        given = self.geometry.part(node.inputs[p])
        return [
            replace(r, start=first, stop=stop) for r, (first, stop) in zip(rows, given, strict=True)
        ]

    def _reads_all(self, node: Node) -> bool:
        """Return whether a node gets rows around those that it needs, so that all strips have one size."""
        return self.is_even and node.op.around

    def _input_rows(self, values: dict[int, tf.Tensor], node: Node, p: int) -> tf.Tensor:
        """Return the rows of input `p` that a node reads; all of them if nothing else reads the image."""
        value = node.inputs[p]
        is_only_use = self.sweep.num_reads[value] == 1
        axes = axes_of(node, p)[: self.sweep.axes]
        if any(map(may_be_empty, axes)):  # the strip has a row all the same
            is_only_use = False
        if self.is_even:  # the strip may have rows that no window needs
            is_only_use &= all(map(is_pixelwise, axes_of(node, p)))
        if is_only_use or self._reads_all(node):
            return values[value]
        return self._cut(
            values, value, [(rows.start, rows.stop) for rows in self._rows_read(node, p)]
        )

    def _cut(self, values: dict[int, tf.Tensor], value: int, part: list[Interval]) -> tf.Tensor:
        """Return a part of an image of the strip; a copy if the image is memory of a store."""
        firsts = self.geometry.along("start", value)
        pairs = zip(part, firsts, strict=True)
        parts = [(start - first, stop - start) for (start, stop), first in pairs]
        return take(values[value], parts, copy=value in self.borrowed)

    def owned(self, values: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Return the rows that the strip owns of every image that is stored or reduced."""
        owned, geometry = {}, self.geometry
        for v in self.sweep.observed:
            is_only_use = self.sweep.num_reads[v] == 1 and not self.is_even
            part = geometry.part(v, own=True)
            owned[v] = values[v] if is_only_use else self._cut(values, v, part)
        return owned

    def _owned_strip(self, node: Node) -> Strip:
        """Return the range of rows that this strip contributes to a reduction, and how often."""
        value = node.inputs[0]
        strip = self._strip(self.place, value, True, [])
        return replace(strip, copies=self._copies(value))

    def _copies(self, value: int) -> Copies | None:
        """Return how often the pixels of the strip occur in an observed image; None if nothing is skipped."""
        is_pattern = self.place.is_pattern
        if is_pattern is None:
            return None
        of_pattern = self.copies[value]
        return Copies(tf.where(is_pattern > 0, of_pattern, tf.ones_like(of_pattern)))

    def merge(self, owned: dict[int, tf.Tensor], partials: list[Structure]) -> list[Structure]:
        """Return the partial sums of the reductions, merged with those of this strip."""
        merged = []
        for node, before in zip(self.sweep.reductions, partials, strict=True):
            inputs = [owned[v] for v in node.inputs]
            strip = self._owned_strip(node)
            merged.append(_added(node, before, node.op.partial(inputs, strip), strip))
        return merged

    def pull(
        self, owned: dict[int, tf.Tensor], partials: list[Structure] | None
    ) -> tuple[list[Structure], list[dict[int, tf.Tensor]]]:
        """Run the pullback of the reductions.

        Args:
            owned: Owned rows, by value.
            partials: Partial sums to merge with those of this strip, for a fused sweep; else None.

        Returns:
            Merged partial sums (empty without `partials`), and per reduction the gradients of its images by value.
        """
        pulled, merged = [], []
        for position, node in enumerate(self.sweep.reductions):
            cotangent = self.shared.d_wholes.get(node.output)
            if cotangent is None:
                continue
            inputs = [owned[v] for v in node.inputs]
            strip = self._owned_strip(node)
            if strip.copies is not None:
                cotangent = _times(cotangent, strip.copies)
            if partials is None:
                result = self.shared.wholes[node.output]
                gradients = node.op.pullback(inputs, strip, result, cotangent)
            else:
                new, gradients = node.op.fused(inputs, strip, cotangent)
                merged.append(_added(node, partials[position], new, strip))
            pairs = zip(node.inputs, gradients, strict=True)
            pulled.append({v: g for v, g in pairs if g is not None})
        return merged, pulled


def _added(node: Node, before: Structure, new: Structure, strip: Strip) -> Structure:
    """Return the partial result of a reduction, merged with that of a strip as often as it occurs."""
    repeated = new if strip.copies is None else node.op.times(new, strip.copies)
    return node.op.merge(before, repeated)


def _times(cotangent: Structure, copies: Copies) -> Structure:
    """Return the gradient of a result for a strip that occurs several times; pullbacks are linear in it."""
    return tf.nest.map_structure(
        lambda t: copies.of(t) if tf.is_tensor(t) and t.dtype.is_floating else t, cotangent
    )
