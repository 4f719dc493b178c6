"""Runs one sweep over its strips, forward or backward, in one loop per device.

With several devices, each has consecutive strips, and copies of the weights and partial sums; the sums are added up
once the sweep has ended. Their stores are in host memory, which all devices share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import tensorflow as tf

from tfbig.engine import compiled_programs
from tfbig.engine.shared_traces import placed
from tfbig.engine.strip_images import StripImages, Tiles
from tfbig.engine.strip_step import StripStep
from tfbig.engine.sweep_preparation import Preparation
from tfbig.engine.sweep_tensors import (
    StripGeometry,
    Structure,
    SweepTensors,
    SweepValues,
    TracedSweep,
)
from tfbig.ops import autodiff
from tfbig.plan.sweeps import Sweep
from tfbig.stores import transfers
from tfbig.stores.image_store import Interval
from tfbig.stores.sinks import Sink
from tfbig.stores.transfers import Changes

Devices = Sequence[str | None]
"""Devices that compute strips; None leaves it to TensorFlow."""

FOLD_BYTES = 2**22
"""Bytes of an image that `fold` processes at a time: few enough for the cache."""

FOLD_BYTES_OF_DEVICE = 2**26
"""The same on an accelerator: enough that the copies, not their number, take the time."""


def fold_bytes(device_bytes: int, devices: Devices) -> int:
    """Return the bytes of an image that `fold` processes at a time.

    Args:
        device_bytes: Limit for strips.
        devices: Devices that compute strips; None leaves it to TensorFlow.
    """
    if any(devices):
        return min(FOLD_BYTES_OF_DEVICE, device_bytes // 32)
    return min(FOLD_BYTES, device_bytes // 8)


def forward(traced: TracedSweep, tensors: SweepTensors) -> tuple[Any, Structure]:
    """Run a sweep forward: fill the stores of the images that it writes.

    Args:
        traced: The sweep.
        tensors: Tensors of the sweep.

    Returns:
        `(done, (partial sums of the reductions, states of the stores))`.
    """
    sweep, devices, targets = traced.sweep, traced.devices, tensors.stores.targets
    tensors = _prepared(traced, tensors, Preparation(sweep))

    def compute(step: StripStep, tiles: Tiles, sums: list[Structure]) -> Structure:
        owned = step.owned(step.values(tiles))
        return owned, step.merge(owned, sums)

    def body(
        strips: _DeviceStrips, i: tf.Tensor, before: tf.Tensor, sums: Structure
    ) -> _StripResult:
        images = strips.images(i)
        tiles, *_ = strips.in_turn(images.read())
        owned, partials = strips.compute(compute, i, tiles, sums[0])
        changes = strips.changes(i, before)
        states = images.write(owned, sums[1], changes)
        return _StripResult(changes.make(), (partials, states), [*owned.values()])

    def join(a: Structure, b: Structure) -> Structure:
        return _merged(sweep, a[0], b[0]), a[1]  # no images stay on the device if there are several

    with placed(devices[0]):  # created on the device, not copied there
        start = _initial_sums(traced, tensors), {v: store.state for v, store in targets.items()}
    if any(isinstance(store, Sink) for store in targets.values()):
        traced = traced._replace(devices=devices[:1])  # a sink receives rows in their order
    return _loop(traced, tensors, body, start, join)


def _initial_sums(traced: TracedSweep, tensors: SweepTensors) -> list[Structure]:
    """Return the partial sums of the reductions before the first strip."""
    sweep, geometry = traced.sweep, tensors.geometry
    counts = {v: traced.graph.traced_channels(v) or geometry.channels[v] for v in sweep.observed}
    return [n.op.init(geometry.batch, [counts[v] for v in n.inputs]) for n in sweep.reductions]


def _merged(sweep: Sweep, a: Structure, b: Structure) -> Structure:
    """Return the merged partial sums of two devices."""
    return [n.op.merge(x, y) for n, x, y in zip(sweep.reductions, a, b, strict=True)]


@dataclass(frozen=True)
class Backward:
    """Options of `backward`; values and weights by position in the sweep.

    Args:
        fresh: Images of whose gradients the stores are uninitialised.
        fused: Whether the forward runs in the same pass (`Reduce.fused`).
        learned: Values that need a gradient.
        trained: Weights that need a gradient.
    """

    fresh: frozenset[int]
    fused: bool
    learned: frozenset[int]
    trained: tuple[int, ...]


def backward(
    traced: TracedSweep, tensors: SweepTensors, options: Backward
) -> tuple[Any, Structure]:
    """Run a sweep backward: add gradients of the images that it read to their stores.

    Args:
        traced: The sweep.
        tensors: Tensors of the sweep.
        options: Which gradients are needed.

    Returns:
        `(done, (gradients of the wholes, of the weights, partial sums, states of the stores))`.
    """
    sweep, devices, targets = traced.sweep, traced.devices, tensors.stores.d_images
    preparation = Preparation(sweep, options.learned, options.trained)
    tensors, sources_of = _prepared(traced, tensors, preparation), preparation.sources_of

    def compute(
        step: StripStep, read: tuple[Tiles, Tiles, Tiles], sums: Structure, merged: list[Structure]
    ) -> Structure:
        tiles, written, cotangents = read
        sources = ({v: tiles[v] for v in targets}, *sources_of(step.shared))
        with tf.GradientTape() as tape:
            tape.watch(autodiff.floats(sources))
            owned = step.owned(step.values(tiles))
        partials, pulled = step.pull(owned | written, merged if options.fused else None)
        outputs, seeds = autodiff.sum_seeds(owned, [cotangents, *pulled])
        d_tiles, *d_others = autodiff.gradients(tape, outputs, seeds, sources)
        return d_tiles, autodiff.add(sums, tuple(d_others)), partials

    def body(
        strips: _DeviceStrips, i: tf.Tensor, before: tf.Tensor, sums: Structure
    ) -> _StripResult:
        images = strips.images(i)
        read = strips.in_turn(images.read())
        d_tiles, totals, partials = strips.compute(compute, i, read, sums[0], sums[2])
        changes = strips.changes(i, before)
        states = images.add(d_tiles, sums[1], changes, options.fresh)
        computed = [*d_tiles.values(), *autodiff.floats(totals)]
        return _StripResult(changes.make(), (totals, states, partials), computed)

    def join(a: Structure, b: Structure) -> Structure:
        partials = _merged(sweep, a[2], b[2]) if options.fused else []
        return autodiff.add(a[0], b[0]), a[1], partials

    with placed(devices[0]):  # created on the device, not copied there
        sources = sources_of(tensors.values)
        zeros = tf.nest.map_structure(autodiff.zero_sum, sources)
        partials = _initial_sums(traced, tensors) if options.fused else []
        states = {v: store.state for v, store in targets.items()}
    done, (sums, states, partials) = _loop(traced, tensors, body, (zeros, states, partials), join)
    with placed(devices[0]):
        narrow = tf.nest.map_structure(_like, sums, sources)
        *gradients, d_prepared = narrow
    pulled = _once(traced, preparation, preparation.pull, tensors.values, d_prepared)
    with placed(devices[0]):
        d_wholes, d_weights = map(_sum, gradients, pulled)
    return done, (d_wholes, d_weights, partials, states)


def _sum(first: dict[int, Any], second: dict[int, Any]) -> dict[int, Any]:
    """Return the sums of two sets of gradients."""
    sums = dict(first)
    for position, term in second.items():
        autodiff.accumulate(sums, position, term)
    return sums


def _prepared(traced: TracedSweep, tensors: SweepTensors, preparation: Preparation) -> SweepTensors:
    """Return tensors of a sweep with what its nodes prepare."""
    values = tensors.values
    prepared = _once(traced, preparation, preparation.prepare, values)
    return tensors._replace(values=values._replace(prepared=prepared))


def _once(
    traced: TracedSweep,
    preparation: Preparation,
    function: Callable[..., Structure],
    *arguments: Structure,
) -> Structure:
    """Return `function(*arguments)`, computed once for all strips on the first device."""
    device = traced.devices[0]
    if traced.sweep.is_compiled and preparation.nodes:
        return compiled_programs.call(function, arguments, device)
    with placed(device):
        return function(*arguments)


def _like(total: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
    """Return the sum of gradients of a tensor in its dtype; that of an integer tensor is a scalar zero."""
    return tf.cast(total, source.dtype) if autodiff.is_float(source) else total


def fold(traced: TracedSweep, tensors: SweepTensors) -> Any:
    """Add the gradients of statistics to the gradient of the stored image that they were computed from.

    It is a separate pass so that the image can be freed before the gradients of the sweep's inputs are computed.

    Args:
        traced: Its nodes are the reductions of one image, the only one that it observes.
        tensors: `written` and `d_written` hold this image and its gradient.

    Returns:
        `done`.
    """
    ((value, gradient),) = tensors.stores.d_written.items()

    def compute(step: StripStep, written: Tiles, gradients: Tiles) -> tf.Tensor:
        _, pulled = step.pull(written, None)
        return tf.add_n([gradients[value], *(each[value] for each in pulled)])

    def body(strips: _DeviceStrips, i: tf.Tensor, before: tf.Tensor, _: Structure) -> _StripResult:
        images = strips.images(i)
        _, written, gradients = strips.in_turn(images.read())
        summed = strips.compute(compute, i, written, gradients)
        changes = strips.changes(i, before)
        gradient.write(changes, images.part(value, own=True), summed)
        return _StripResult(changes.make(), (), [summed])

    return _loop(traced, tensors, body, (), lambda a, b: a)[0]


@dataclass(frozen=True)
class _DeviceStrips:
    """Strips of one device.

    Args:
        traced: The sweep.
        device: The device; None leaves it to TensorFlow.
        tensors: Tensors of the sweep, with statistics and weights on this device.
        count: Number of strips of all devices.
        last: Index of the last strip of the device.
        at_once: Number of strips in flight.
        turn: Tensor that is computed when the previous strip has been; None if strips need not take turns.
    """

    traced: TracedSweep
    device: str | None
    tensors: SweepTensors
    count: tf.Tensor
    last: tf.Tensor
    at_once: int = 1
    turn: tf.Tensor | None = None

    def images(self, index: tf.Tensor) -> StripImages:
        """Return the images of a strip. It reads files ahead for the strip that begins when it ends."""

        def ahead(value: int) -> list[Interval]:
            following = index + self.at_once
            (start, stop), *others = self._geometry(tf.minimum(following, self.last)).part(value)
            return [(start, tf.where(following > self.last, start, stop)), *others]

        geometry = self._geometry(index)
        return StripImages(self.traced, self.tensors.stores, geometry, self.device, ahead)

    def compute(
        self, function: Callable[..., Structure], index: tf.Tensor, *arguments: Structure
    ) -> Structure:
        """Return `function(step, *arguments)` of a strip, computed on the device.

        Args:
            function: Function of a `StripStep` and tensors alone, so that XLA may compile it.
            index: Index of the strip.
            *arguments: Structures of tensors.
        """
        geometry, _, values = self.tensors
        if self.traced.sweep.is_compiled:
            return self._compiled(function, self._line(index), arguments)
        place, images = self._geometry(index), self.tensors.stores.images
        borrowed = frozenset(v for v, store in images.items() if store.needs_copy)
        step = StripStep(self.traced, values, place, place, geometry.copies, borrowed)
        with tf.device(self.device):
            return function(step, *arguments)

    def _compiled(
        self, function: Callable[..., Structure], line: tf.Tensor, arguments: tuple[Structure, ...]
    ) -> Structure:
        """Return `function(step, *arguments)`, compiled by XLA once for all strips that are alike.

        The numbers of the strip in its cutout are constants of the program, since sizes are computed from them.
        Reductions get its place in the image instead, as tensors.
        """
        traced, (geometry, _, values) = self.traced, self.tensors

        def computed(
            line: tf.Tensor, cutout: tf.Tensor, extents: tf.Tensor, values: SweepValues, *given: Any
        ) -> Structure:
            place = StripGeometry.in_image(traced.sweep, line, extents)
            step = StripStep(traced, values, StripGeometry.in_cutout(traced.sweep, cutout), place)
            return function(step, *given)

        cutout = line[-traced.sweep.cutout_columns :]
        every = (line, cutout, geometry.extents, values, *arguments)
        return compiled_programs.call(computed, every, self.device)

    def _geometry(self, index: tf.Tensor) -> StripGeometry:
        extents = self.tensors.geometry.extents
        return StripGeometry.in_image(self.traced.sweep, self._line(index), extents)

    def _line(self, index: tf.Tensor) -> tf.Tensor:
        return tf.gather(self.tensors.geometry.table, index)

    def changes(self, index: tf.Tensor, before: tf.Tensor) -> Changes:
        """Return the changes of stores that a strip makes, none yet."""
        return Changes(before, self.tensors.geometry.label, index, self.count)

    def in_turn(self, tiles: Structure) -> Structure:
        """Return tiles to compute with when it is the turn of the strip; they are on the device before."""
        if self.turn is None:
            return tiles
        with tf.device(self.device), tf.control_dependencies([self.turn]):
            return tf.nest.map_structure(tf.identity, tiles)


class _StripResult(NamedTuple):
    """Results of the body of a loop for a strip.

    Args:
        done: Computed when its changes of stores have been requested.
        sums: Sums, and images on the device.
        computed: Tensors that are computed last.
    """

    done: tf.Tensor
    sums: Structure
    computed: list[tf.Tensor]


Body = Callable[[_DeviceStrips, tf.Tensor, tf.Tensor, Structure], _StripResult]
"""Function of the strips of a device, the index of a strip, the changes of the previous one, and sums."""


def _loop(
    traced: TracedSweep,
    tensors: SweepTensors,
    body: Body,
    start: Structure,
    join: Callable[[Structure, Structure], Structure],
) -> Any:
    """Run `body` over all strips, several of them at a time on each device.

    Two strips at once fill the cores: one is read, written or in the tail of a convolution while the other computes
    (ResNet-50: a tenth less time). An accelerator computes one after the other, as its kernels run anyway, while others
    are copied: a copy that is requested early waits for few kernels. Each device makes its changes in order.

    Args:
        traced: The sweep.
        tensors: Tensors of the sweep.
        body: Function that computes a strip.
        start: Sums to start with.
        join: Adds the sums of two devices.

    Returns:
        `(done, sums)`.
    """
    devices, count = traced.devices, tf.shape(tensors.geometry.table)[0]
    before = transfers.begin(tensors.geometry.before)
    if traced.sweep.single:
        on_device = _values_on(tensors, devices[0])
        strips = _DeviceStrips(traced, devices[0], on_device, count, tf.constant(0))
        done, sums, _ = body(strips, strips.last, before, _copy_to(start, devices[0]))
        return transfers.finish(done), sums
    ends = []
    accelerated = len(devices) == 1 and devices[0] is not None
    at_once = traced.graph.in_flight(accelerated)
    run = _in_turns if accelerated else _at_once
    for position, device in enumerate(devices):
        first, stop = _share(count, position, len(devices))
        on_device = _values_on(tensors, device)
        strips = _DeviceStrips(traced, device, on_device, count, stop - 1, at_once)
        ends.append(run(strips, first, before, body, _copy_to(start, device)))
    with tf.control_dependencies([done for done, _ in ends]):
        done = tf.identity(ends[0][0])
    return transfers.finish(done), reduce(join, [sums for _, sums in ends])


def _share(count: tf.Tensor, position: int, devices: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the first strip of a device, and the one after its last."""
    if devices == 1:
        return tf.constant(0), count
    return count * position // devices, count * (position + 1) // devices


def _at_once(
    strips: _DeviceStrips, first: tf.Tensor, before: tf.Tensor, body: Body, start: Structure
) -> tuple[tf.Tensor, Structure]:
    """Run the loop over the strips of one device, which computes several at the same time."""
    state = (first, before, start)
    _, done, sums = tf.while_loop(
        lambda i, *_: i <= strips.last,
        lambda i, before, sums: (i + 1, *body(strips, i, before, sums)[:2]),
        state,
        shape_invariants=tf.nest.map_structure(lambda t: t.shape, state),
        parallel_iterations=strips.at_once,
    )
    return done, sums


def _in_turns(
    strips: _DeviceStrips, first: tf.Tensor, before: tf.Tensor, body: Body, start: Structure
) -> tuple[tf.Tensor, Structure]:
    """Run the loop over the strips of one device, which computes one and copies the others at the same time."""

    def compute(i: tf.Tensor, before: tf.Tensor, turn: tf.Tensor, sums: Structure) -> Structure:
        strip = body(replace(strips, turn=turn), i, before, sums)
        with tf.device(strips.device), tf.control_dependencies(strip.computed):
            turn = tf.identity(turn)
        return i + 1, strip.done, turn, strip.sums  # the next strip is requested before

    with tf.device(strips.device):
        turn = tf.zeros([])
    state = (first, before, turn, start)
    _, done, _, sums = tf.while_loop(
        lambda i, *_: i <= strips.last,
        compute,
        state,
        shape_invariants=tf.nest.map_structure(lambda t: t.shape, state),
        parallel_iterations=strips.at_once,
    )
    return done, sums


def _values_on(tensors: SweepTensors, device: str | None) -> SweepTensors:
    """Copy statistics, weights and what is prepared to a device: once per sweep instead of once per strip."""
    return tensors._replace(values=_copy_to(tensors.values, device))


def _copy_to(structure: Structure, device: str | None) -> Structure:
    """Copy tensors to a device; a loop variable stays where its initial value is."""
    if device is None:
        return structure
    with tf.device(device):
        return tf.nest.map_structure(tf.identity, structure)
