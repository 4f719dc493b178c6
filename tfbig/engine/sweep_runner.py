"""Runs the passes of a step: images and statistics forward; gradients of images, statistics and weights backward.

Every gradient that a step carries is keyed as in the graph: images and whole values by value id, weights by their
position in `Graph.weights`, where the trainable variables of the model come first, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfbig.engine import sweep_loop
from tfbig.engine.sweep_calls import SweepCalls
from tfbig.engine.sweep_state import StepState, Structure, SweepTensors
from tfbig.network.graph import Node
from tfbig.ops import autodiff
from tfbig.plan.canonical import Canonical
from tfbig.plan.passes import Kind, Pass
from tfbig.plan.sweeps import Sweep, foldable
from tfbig.stores import host_store


class SweepRunner:
    """Runs the passes of steps of one graph.

    Args:
        calls: Calls of its sweeps.
        chunk_bytes: Bytes of an image whose statistics are folded at a time.
    """

    def __init__(self, calls: SweepCalls, chunk_bytes: int) -> None:
        self.calls = calls
        self.chunk_bytes = chunk_bytes

    def run(self, passes: Iterable[Pass], state: StepState) -> None:
        """Run passes in order: change `images`, `wholes`, `d_images`, `d_wholes` and `d_weights` of the state."""
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

    def _forward(self, sweep: Sweep, state: StepState) -> None:
        partials = self._fill(sweep, state, f"forward {sweep.index + 1}/{len(state.sweeps)}")
        with self.calls.on_accelerator():
            state.finish_reductions(sweep, partials)

    def _replay(self, sweep: Sweep, state: StepState) -> None:
        self._fill(sweep, state, f"replay before {sweep.index + 1}/{len(state.sweeps)}")

    def _both(self, sweep: Sweep, state: StepState) -> None:
        partials = self._run(sweep, state, _label(sweep, state), set(), fused=True)
        with self.calls.on_accelerator():
            state.finish_reductions(sweep, partials)

    def _frozen(self, sweep: Sweep, state: StepState) -> None:
        self.pull_wholes(sweep.wholes, state)

    def _backward(self, sweep: Sweep, state: StepState) -> None:
        self.pull_wholes(sweep.wholes, state)
        label = _label(sweep, state)
        rest = self._fold(sweep, state, label)
        needed = _reduced(rest, state) - _reduced(sweep.without(rest.nodes), state)
        self._run(rest, state, label, needed, fused=False)

    def _fill(self, sweep: Sweep, state: StepState, label: str) -> list[Structure]:
        """Store the images that a sweep writes, and return the partial sums of its reductions."""
        calls = self.calls
        elsewhere = {*state.sinks, *state.layout.kept}
        stored = [v for v in sweep.writes if v not in elsewhere]
        stores = calls.allocate(state, "remat" if sweep.is_replay else "image", stored, sweep)
        canonical, tensors = calls.tensors(sweep, state, label)
        tensors.channels = calls.channels(canonical, sweep, state)
        tensors.stores = canonical.named(stores)
        tensors.kept = canonical.named(calls.kept(state, sweep.writes))
        tensors.sinks = canonical.named({v: k for v, k in state.sinks.items() if v in sweep.writes})
        state.done, (partials, kept) = calls.call(sweep_loop.forward, canonical, tensors)
        filled = host_store.after([stores[v] for v in stored], state.done)
        state.images |= dict(zip(stored, filled, strict=True))
        state.images |= {canonical.ids[p]: image for p, image in kept.items()}
        return partials

    def _run(
        self, sweep: Sweep, state: StepState, label: str, needed: set[int], fused: bool
    ) -> list[Structure]:
        """Run a sweep backward and return the partial sums of its reductions, if it is fused.

        Args:
            sweep: The sweep.
            state: State of the step.
            label: Name of the sweep in progress messages.
            needed: Images that the sweep wrote and whose values its backward pass needs.
            fused: Whether the forward runs in the same pass.
        """
        targets = [v for v in sweep.reads if v in state.learned]
        fresh = self._allocate_gradients(targets, state, sweep.axes)
        canonical, tensors = self.calls.tensors(sweep, state, label)
        _add_gradients(canonical, tensors, sweep, state, targets)
        tensors.channels = self.calls.channels(canonical, sweep, state) if fused else {}
        tensors.written = canonical.named({v: state.images[v] for v in sweep.writes if v in needed})
        options = sweep_loop.Backward(
            frozenset(canonical.place[v] for v in fresh),
            fused,
            frozenset(canonical.place[v] for v in state.learned if v in canonical.place),
            tuple(p for p, slot in enumerate(canonical.slots) if slot in state.trained),
        )
        call = self.calls.call(sweep_loop.backward, canonical, tensors, options)
        state.done, (d_wholes, d_weights, partials, kept) = call
        stored = [v for v in targets if v not in state.layout.kept]
        added = host_store.after([state.d_images[v] for v in stored], state.done)
        state.d_images.update(zip(stored, added, strict=True))
        state.d_images |= {canonical.ids[p]: image for p, image in kept.items()}
        for v in sweep.writes:
            state.d_images.pop(v, None)
        with self.calls.on_accelerator():
            _accumulate(state.d_wholes, canonical.ids, d_wholes)
            _accumulate(state.d_weights, canonical.slots, d_weights)
        return partials

    def _allocate_gradients(self, values: list[int], state: StepState, axes: int) -> list[int]:
        """Allocate gradients of the images that have none yet, and return those that this sweep is the first to add to.

        Args:
            values: The images.
            state: State of the step.
            axes: Number of axes that the sweep cuts its images along.
        """
        fresh = [v for v in values if v not in state.d_images]
        kept = self.calls.kept(state, fresh)
        state.d_images |= kept
        stored = [v for v in fresh if v not in state.d_images]
        state.d_images |= self.calls.allocate(state, "gradient", stored)
        if state.layout.skips:
            return []  # tiles are zero until something is added
        if stored and (axes > 1 or len(self.calls.devices) > 1):  # rows are not complete in order
            zeros = host_store.zero([state.d_images[v] for v in stored], state.done)
            state.d_images |= dict(zip(stored, zeros, strict=True))
            return list(kept)
        return fresh

    def _fold(self, sweep: Sweep, state: StepState, label: str) -> Sweep:
        """Add the gradients of statistics to those of stored images, and return the sweep without these reductions."""
        nodes = [
            n
            for n in foldable(sweep)
            if n.output in state.d_wholes
            and n.inputs[0] in state.d_images
            and n.inputs[0] not in state.layout.kept
        ]
        if sweep.skips:
            self._fold_tiles(sweep, nodes, state, label)
            return sweep.without(nodes)
        for value in dict.fromkeys(n.inputs[0] for n in nodes):
            reductions = tuple(n for n in nodes if n.inputs[0] == value)
            single = Sweep(sweep.index, reductions, (value,), (), (value,), ())
            table = state.geometry.extents[:1, :1]
            canonical, tensors = self.calls.tensors(single, state, label, table)
            tensors.stores = canonical.named({value: state.d_images[value]})
            tensors.d_wholes = canonical.named(state.d_wholes)
            tensors.wholes = canonical.named({n.output: state.wholes[n.output] for n in reductions})
            state.done = self.calls.call(sweep_loop.fold, canonical, tensors, self.chunk_bytes)
            (state.d_images[value],) = host_store.after([state.d_images[value]], state.done)
        return sweep.without(nodes)

    def _fold_tiles(
        self, sweep: Sweep, nodes: Sequence[Node], state: StepState, label: str
    ) -> None:
        """Add the gradients of statistics to those of images that are stored in tiles."""
        for value in dict.fromkeys(n.inputs[0] for n in nodes):
            reductions = tuple(n for n in nodes if n.inputs[0] == value)
            single = Sweep(
                sweep.index,
                reductions,
                (),
                (value,),
                (value,),
                (),
                axes=sweep.axes,
                skips=True,
            )
            places = sweep.columns_of(value, "own start", "own stop")  # all that `single` needs
            table = tf.gather(state.geometry.table(sweep), places, axis=1)
            canonical, tensors = self.calls.tensors(single, state, label, table)
            tensors.written = canonical.named({value: state.images[value]})
            tensors.d_images = canonical.named({value: state.d_images[value]})
            tensors.d_wholes = canonical.named(state.d_wholes)
            tensors.wholes = canonical.named({n.output: state.wholes[n.output] for n in reductions})
            copies = state.geometry.copies_of(sweep)
            tensors.copies = canonical.named({value: copies[value]})
            state.done = self.calls.call(sweep_loop.fold_tiles, canonical, tensors)
            (state.d_images[value],) = host_store.after([state.d_images[value]], state.done)


def seed(
    calls: SweepCalls,
    state: StepState,
    results: Sequence[int],
    outputs: list[Structure],
    cotangents: Sequence[Any],
) -> None:
    """Start a backward pass from the gradients of the results.

    Args:
        calls: Calls of the sweeps.
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
            state.d_images[value] = _seed_image(calls, state, value, flat[0])
            continue
        pairs = zip(tensors, flat, strict=True)
        with calls.on_accelerator():
            filled = [autodiff.zeros(t) if c is None else c for t, c in pairs]
        state.d_wholes[value] = tf.nest.pack_sequence_as(output, filled)


def _seed_image(calls: SweepCalls, state: StepState, value: int, cotangent: tf.Tensor) -> tf.Tensor:
    """Return the gradient of a result that is an image, in a store if it is changed."""
    if state.layout.skips:
        (store,) = calls.allocate(state, "gradient", [value]).values()
        return host_store.scatter(store, cotangent)
    added = any(value in sweep.reads for sweep in state.sweeps)
    return host_store.copy(cotangent) if added else cotangent


def _label(sweep: Sweep, state: StepState) -> str:
    return f"backward {sweep.index + 1}/{len(state.sweeps)}"


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


def _add_gradients(
    canonical: Canonical,
    tensors: SweepTensors,
    sweep: Sweep,
    state: StepState,
    targets: Sequence[int],
) -> None:
    """Add the gradients that a backward sweep reads and changes to its tensors."""
    named, d_images, kept = canonical.named, state.d_images, state.layout.kept
    tensors.stores = named({v: d_images[v] for v in targets if v not in kept})
    tensors.kept = named({v: d_images[v] for v in targets if v in kept})
    tensors.d_images = named({v: d_images[v] for v in sweep.writes if v in d_images})
    reduced = {n.output for n in sweep.reductions}
    tensors.d_wholes = named({v: d for v, d in state.d_wholes.items() if v in reduced})
    tensors.wholes |= named({v: t for v, t in state.wholes.items() if v in reduced})


def _accumulate(sums: dict[int, Any], keys: Sequence[int], terms: dict[int, Any]) -> None:
    """Add terms by position to sums; `keys` holds the key of each position."""
    for position, term in terms.items():
        autodiff.accumulate(sums, keys[position], term)


def _reduced(sweep: Sweep, state: StepState) -> set[int]:
    """Return the images whose reduction has a gradient."""
    return {v for n in sweep.reductions if n.output in state.d_wholes for v in n.inputs}
