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

from tfbig.engine import sweep_preparation
from tfbig.engine.shared_traces import placed
from tfbig.engine.strip_step import StripStep
from tfbig.engine.sweep_preparation import Preparation
from tfbig.engine.sweep_tensors import StripGeometry, Structure, SweepTensors, TracedSweep
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
    with placed(devices[0]):
        prepared = sweep_preparation.prepare(sweep, tensors.values)
    tensors = tensors._replace(values=tensors.values._replace(prepared=prepared))

    def body(
        strips: _DeviceStrips, i: tf.Tensor, before: tf.Tensor, sums: Structure
    ) -> _StripResult:
        step = strips.step(i)
        tiles, *_ = strips.in_turn(step.read())
        with tf.device(strips.device):
            owned = step.owned(step.values(tiles))
            partials = step.merge(owned, sums[0])
        changes = strips.changes(i, before)
        states = step.write(owned, sums[1], changes)
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
    with placed(devices[0]):
        preparation = Preparation(sweep, tensors.values, options.learned, options.trained)
    tensors = tensors._replace(values=tensors.values._replace(prepared=preparation.tensors))
    sources_of = preparation.sources_of

    def body(
        strips: _DeviceStrips, i: tf.Tensor, before: tf.Tensor, sums: Structure
    ) -> _StripResult:
        step = strips.step(i)
        tiles, written, cotangents = strips.in_turn(step.read())
        with tf.device(strips.device):
            images = {v: tiles[v] for v in targets}
            sources = (images, *sources_of(strips.tensors.values))
            with tf.GradientTape() as tape:
                tape.watch(autodiff.floats(sources))
                owned = step.owned(step.values(tiles))
            partials, pulled = step.pull(owned | written, sums[2] if options.fused else None)
            outputs, seeds = autodiff.sum_seeds(owned, [cotangents, *pulled])
            d_tiles, *d_others = autodiff.gradients(tape, outputs, seeds, sources)
            totals = autodiff.add(sums[0], tuple(d_others))
        changes = strips.changes(i, before)
        states = step.add(d_tiles, sums[1], changes, options.fresh)
        computed = [*d_tiles.values(), *autodiff.floats(d_others)]
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
        d_wholes, d_weights = preparation.pull(*narrow)
    return done, (d_wholes, d_weights, partials, states)


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

    def body(strips: _DeviceStrips, i: tf.Tensor, before: tf.Tensor, _: Structure) -> _StripResult:
        step = strips.step(i)
        _, images, gradients = strips.in_turn(step.read())
        with tf.device(strips.device):
            _, pulled = step.pull(images, None)
            summed = tf.add_n([gradients[value], *(each[value] for each in pulled)])
        changes = strips.changes(i, before)
        gradient.write(changes, step.part(value, own=True), summed)
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

    def step(self, index: tf.Tensor) -> StripStep:
        """Return a strip. It reads files ahead for the strip that begins when it ends."""

        def ahead(value: int) -> list[Interval]:
            following = index + self.at_once
            (start, stop), *others = self._geometry(tf.minimum(following, self.last)).part(value)
            return [(start, tf.where(following > self.last, start, stop)), *others]

        return StripStep(self.traced, self.tensors, self._geometry(index), self.device, ahead)

    def _geometry(self, index: tf.Tensor) -> StripGeometry:
        return StripGeometry(self.traced.sweep, tf.gather(self.tensors.geometry.table, index))

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
