"""Runs the passes of a step: images and statistics forward; gradients of images, statistics and weights backward.

Every gradient that a step carries is keyed as in the graph: images and whole values by value id, weights by their
position in `Graph.weights`, where the trainable variables of the model come first, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfbig.engine import sweep_loop
from tfbig.engine.step_geometry import label
from tfbig.engine.store_allocator import StoreAllocator
from tfbig.engine.sweep_calls import SweepCalls
from tfbig.engine.sweep_state import StepState
from tfbig.engine.sweep_tensors import Structure, SweepTensors
from tfbig.network.graph import Node
from tfbig.ops import autodiff
from tfbig.plan.passes import Kind, Pass
from tfbig.plan.sweeps import Sweep, foldable
from tfbig.stores import host_store
from tfbig.stores.device_store import StripImage
from tfbig.stores.host_store import HostImage
from tfbig.stores.image_store import GradientStore, StripTarget
from tfbig.stores.sinks import Sink
from tfbig.stores.tiled_store import TiledGradient


class SweepRunner:
    """Runs the passes of steps of one graph.

    Args:
        calls: Calls of its sweeps.
        stores: Allocates the stores of its images.
    """

    def __init__(self, calls: SweepCalls, stores: StoreAllocator) -> None:
        self.calls = calls
        self.stores = stores

    def run(self, passes: Iterable[Pass], state: StepState) -> None:
        """Run passes in order: change `images`, `wholes`, their gradients, `d_weights` and `done` of the state."""
        methods = {
            Kind.FORWARD: self._forward,
            Kind.REPLAY: self._replay,
            Kind.BOTH: self._both,
            Kind.BACKWARD: self._backward,
            Kind.FROZEN: self._frozen,
        }
        for kind, sweep in passes:
            methods[kind](sweep, state)

    def pull_wholes(self, nodes: Sequence[Node], state: StepState) -> None:
        """Compute the gradients of whole nodes, with a tape over each."""
        with self.calls.on_accelerator():
            for node in reversed(nodes):
                _whole_backward(node, state)

    def seed(
        self,
        state: StepState,
        results: Sequence[int],
        outputs: list[Structure],
        cotangents: Sequence[Any],
    ) -> None:
        """Start a backward pass from the gradients of the results.

        Args:
            state: State of the step.
            results: Ids of the results that are values of the graph.
            outputs: The results, a structure of tensors each.
            cotangents: Gradients of their tensors, flat; None for an unused tensor.
        """
        remaining = iter(cotangents)
        for value, output in zip(results, outputs, strict=True):
            tensors = tf.nest.flatten(output)
            flat = [next(remaining) for _ in tensors]
            if all(c is None for c in flat):
                continue
            if value in state.images:
                state.d_images[value] = self._seed_image(state, value, flat[0])
                continue
            pairs = zip(tensors, flat, strict=True)
            with self.calls.on_accelerator():
                filled = [autodiff.zeros(t) if c is None else c for t, c in pairs]
            state.d_wholes[value] = tf.nest.pack_sequence_as(output, filled)

    def _seed_image(self, state: StepState, value: int, cotangent: tf.Tensor) -> GradientStore:
        """Return the gradient of a result that is an image, in a store if it is changed."""
        if state.layout.skips:
            (store,) = self.stores.gradients(state, [value]).values()
            assert isinstance(store, TiledGradient)
            return store.add_image(cotangent)
        if value in state.layout.kept:
            return StripImage(cotangent)
        added = any(value in sweep.reads for sweep in state.sweeps)
        return HostImage(host_store.copy(cotangent) if added else cotangent)

    def _forward(self, sweep: Sweep, state: StepState) -> None:
        partials = self._fill(sweep, state, label("forward", sweep, state.layout))
        with self.calls.on_accelerator():
            state.finish_reductions(sweep, partials)

    def _replay(self, sweep: Sweep, state: StepState) -> None:
        self._fill(sweep, state, label("replay before", sweep, state.layout))

    def _both(self, sweep: Sweep, state: StepState) -> None:
        name = label("backward", sweep, state.layout)
        partials = self._run_backward(sweep, state, name, set(), fused=True)
        with self.calls.on_accelerator():
            state.finish_reductions(sweep, partials)

    def _frozen(self, sweep: Sweep, state: StepState) -> None:
        self.pull_wholes(sweep.wholes, state)

    def _backward(self, sweep: Sweep, state: StepState) -> None:
        self.pull_wholes(sweep.wholes, state)
        name = label("backward", sweep, state.layout)
        rest = self._fold(sweep, state, name)
        needed = _reduced(rest, state) - _reduced(sweep.without(rest.nodes), state)
        self._run_backward(rest, state, name, needed, fused=False)

    def _fill(self, sweep: Sweep, state: StepState, name: str) -> list[Structure]:
        """Store the images that a sweep writes, and return the partial sums of its reductions."""
        stores = self.stores.images(state, sweep)
        sinks = {v: Sink(key) for v, key in state.sinks.items() if v in sweep.writes}
        targets: dict[int, StripTarget] = {**stores, **sinks}
        tensors = self.calls.tensors(sweep, state, name, counts_channels=True)
        tensors = _with_stores(tensors, targets=targets)
        call = self.calls.call(sweep_loop.forward, sweep, state, tensors)
        state.done, (partials, states) = call
        position = self.calls.canonical(sweep).position
        state.images |= {
            v: store.with_state(states[position[v]]).after(state.done)
            for v, store in stores.items()
        }
        return partials

    def _run_backward(
        self, sweep: Sweep, state: StepState, name: str, needed: set[int], fused: bool
    ) -> list[Structure]:
        """Run a sweep backward and return the partial sums of its reductions, if it is fused.

        Args:
            sweep: The sweep.
            state: State of the step.
            name: One of `StepGeometry.labels`.
            needed: Images that the sweep wrote and whose values its backward pass needs.
            fused: Whether the forward runs in the same pass.
        """
        targets = [v for v in sweep.reads if v in state.learned]
        fresh = self._allocate_gradients(targets, state, sweep.axes)
        tensors = self.calls.tensors(sweep, state, name, counts_channels=fused)
        tensors = _with_stores(
            _with_gradients(tensors, sweep, state),
            written={v: state.images[v] for v in sweep.writes if v in needed},
            d_written={v: state.d_images[v] for v in sweep.writes if v in state.d_images},
            d_images={v: state.d_images[v] for v in targets},
        )
        canonical = self.calls.canonical(sweep)
        options = sweep_loop.Backward(
            frozenset(canonical.position[v] for v in fresh),
            fused,
            frozenset(canonical.position[v] for v in state.learned if v in canonical.position),
            tuple(p for p, slot in enumerate(canonical.slots) if slot in state.trained),
        )
        call = self.calls.call(sweep_loop.backward, sweep, state, tensors, options)
        state.done, (d_wholes, d_weights, partials, states) = call
        for v in targets:
            changed = state.d_images[v].with_state(states[canonical.position[v]])
            state.d_images[v] = changed.after(state.done)
        for v in sweep.writes:
            state.d_images.pop(v, None)
        with self.calls.on_accelerator():
            _accumulate(state.d_wholes, canonical.ids, d_wholes)
            _accumulate(state.d_weights, canonical.slots, d_weights)
        return partials

    def _allocate_gradients(self, values: list[int], state: StepState, axes: int) -> list[int]:
        """Allocate gradients of the images that have none yet, and return those that are left uninitialised.

        Args:
            values: The images.
            state: State of the step.
            axes: Number of axes that the sweep cuts its images along.
        """
        fresh = [v for v in values if v not in state.d_images]
        stores = self.stores.gradients(state, fresh)
        state.d_images |= stores
        if axes == 1 and len(self.calls.devices) == 1:
            return [v for v in fresh if not isinstance(stores[v], TiledGradient)]
        # Rows are not complete in order.
        filled = {v: store for v, store in stores.items() if isinstance(store, HostImage)}
        zeros = host_store.zero([store.array for store in filled.values()], state.done)
        state.d_images |= {v: HostImage(array) for v, array in zip(filled, zeros, strict=True)}
        return [v for v in fresh if not isinstance(stores[v], HostImage | TiledGradient)]

    def _fold(self, sweep: Sweep, state: StepState, name: str) -> Sweep:
        """Add the gradients of statistics to those of stored images, and return the sweep without these reductions."""
        nodes = [
            n
            for n in foldable(sweep)
            if n.output in state.d_wholes
            and n.inputs[0] in state.d_images
            and n.inputs[0] not in state.layout.kept
        ]
        for value in dict.fromkeys(n.inputs[0] for n in nodes):
            reductions = tuple(n for n in nodes if n.inputs[0] == value)
            self._fold_one(sweep, value, reductions, state, name)
        return sweep.without(nodes)

    def _fold_one(
        self, sweep: Sweep, value: int, nodes: tuple[Node, ...], state: StepState, name: str
    ) -> None:
        """Add the gradients of the statistics of one image to its gradient, tile by tile if tiles are skipped."""
        axes = sweep.axes if sweep.skips else 1
        single = Sweep(sweep.index, nodes, (), (value,), (value,), (), axes=axes, skips=sweep.skips)
        strips: tuple[tf.Tensor, dict[int, tf.Tensor]]
        if sweep.skips:
            columns = sweep.columns_of(value, "own start", "own stop")  # all that `single` needs
            table = tf.gather(state.geometry.table(sweep), columns, axis=1)
            strips = table, {value: state.geometry.copies_of(sweep)[value]}
        else:
            strips = state.geometry.parts[value], {}
        tensors = self.calls.tensors(single, state, name, strips=strips)
        tensors = _with_stores(
            _with_gradients(tensors, single, state),
            written={value: state.images[value]},
            d_written={value: state.d_images[value]},
        )
        state.done = self.calls.call(sweep_loop.fold, single, state, tensors)
        state.d_images[value] = state.d_images[value].after(state.done)


def _whole_backward(node: Node, state: StepState) -> None:
    """Compute the gradients of a whole node, if its result has one."""
    cotangent = state.d_wholes.pop(node.output, None)
    if cotangent is None:
        return
    # A copy for each use: of a value that is used twice, the tape returns the whole gradient for both.
    inputs = [tf.nest.map_structure(tf.identity, state.wholes[i]) for i in node.inputs]
    weights = [state.weights[w] for w in node.weights]
    with tf.GradientTape() as tape:
        tape.watch(autodiff.floats((inputs, weights)))
        output = node.op.function(inputs, weights)
    d_inputs, d_weights = autodiff.gradients(tape, output, cotangent, (inputs, weights))
    wanted = {p: d for p, d in enumerate(d_inputs) if node.inputs[p] in state.learned}
    _accumulate(state.d_wholes, node.inputs, wanted)
    _accumulate(state.d_weights, node.weights, dict(enumerate(d_weights)))


def _with_stores(tensors: SweepTensors, **stores: dict[int, Any]) -> SweepTensors:
    """Return tensors with further stores."""
    return tensors._replace(stores=tensors.stores._replace(**stores))


def _with_gradients(tensors: SweepTensors, sweep: Sweep, state: StepState) -> SweepTensors:
    """Return tensors with the results of the reductions of a sweep, and their gradients."""
    reduced = {n.output for n in sweep.reductions}
    wholes = {v: t for v, t in state.wholes.items() if v in reduced}
    values = tensors.values._replace(
        wholes=tensors.values.wholes | wholes,
        d_wholes={v: d for v, d in state.d_wholes.items() if v in reduced},
    )
    return tensors._replace(values=values)


def _accumulate(sums: dict[int, Any], keys: Sequence[int], terms: dict[int, Any]) -> None:
    """Add terms by position to sums; `keys` holds the key of each position."""
    for position, term in terms.items():
        autodiff.accumulate(sums, keys[position], term)


def _reduced(sweep: Sweep, state: StepState) -> set[int]:
    """Return the images whose reduction has a gradient."""
    return {v for n in sweep.reductions if n.output in state.d_wholes for v in n.inputs}
