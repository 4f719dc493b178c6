"""Runs a plan: sweeps over strips, forward and backward, inside a `tf.function`.

    forward p:   for every strip i:  outputs_i, partials_i = f_p(tiles_i, statistics of sweeps < p, weights)
                 statistics_p = finalize(merge over i of partials_i)
    backward p:  for every strip i:  the tape of the same f_p, fed with the gradient strips of the images that sweep p
                 stored and the pullback of its statistics, returns gradient strips of the tiles it read (overlaps
                 add up) and gradients of the lower statistics and of the weights (both are sums over strips)

Statistics are ordinary small tensors between sweeps, so no barrier has a hand-written backward pass. In a backward
sweep the value of a stored tile comes from its store, so the operation that computed it is pruned from the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfbig.engine import first_order, read_ahead, sweep_loop
from tfbig.engine.shared_traces import Functions
from tfbig.engine.sweep_state import KINDS, StepState, Structure, SweepTensors
from tfbig.errors import BudgetError
from tfbig.network.graph import Graph, Node, Whole, values_with_gradient
from tfbig.ops import autodiff
from tfbig.plan.canonical import Canonical
from tfbig.plan.planner import GOOD_ENOUGH, Planner
from tfbig.plan.sweeps import Layout, Store, Sweep, foldable
from tfbig.stores import device_store, file_pool, host_store
from tfbig.system import progress

HOST = "/CPU:0"
"""Device of the stores and of all small tensors."""


class Program:
    """A graph with its planner, ready to run.

    Args:
        graph: Graph to run.
        planner: Planner for this graph.
        devices: Devices that compute strips; None leaves it to TensorFlow.
        folder: Scratch directory.
    """

    def __init__(
        self,
        graph: Graph,
        planner: Planner,
        devices: Sequence[str | None] = (None,),
        folder: str = ".",
    ) -> None:
        self.graph = graph
        self.planner = planner
        self.devices = devices
        self.folder = folder
        after = {n.output for s in planner.sweeps for n in s.wholes}
        self.before = [n for n in graph.nodes if isinstance(n.op, Whole) and n.output not in after]
        extra = [value for _, value, _ in graph.updates]
        self.results = list(dict.fromkeys([*graph.outputs, *extra]))
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._layouts: list[Layout] = []
        self._forced = threading.local()
        self._canonical: dict[Sweep, Canonical] = {}
        self._functions = Functions(inline=any(devices))

    def run(
        self,
        inputs: dict[int, tf.Tensor],
        weights: Sequence[tf.Tensor],
        watched: Sequence[int] = (),
    ) -> dict[int, Structure]:
        """Run the graph, differentiable once.

        Args:
            inputs: Tensor, or string handles `[N]`, per graph input.
            weights: One tensor per entry of `graph.weights`.
            watched: Input images that need a gradient.

        Returns:
            Graph outputs and the values that its updates need, by value id.
        """
        return self._in_graph(self._run, inputs, list(weights), tuple(watched))

    def forward(
        self,
        inputs: dict[int, tf.Tensor],
        weights: Sequence[tf.Tensor],
        sinks: dict[int, tf.Tensor] | None = None,
    ) -> dict[int, Structure]:
        """Run the graph without gradients; stores are freed as soon as no sweep reads them.

        Args:
            inputs: Tensor, or string handles `[N]`, per graph input.
            weights: One tensor per entry of `graph.weights`.
            sinks: Key of a `host_store.sink`, for each image that it receives instead of a store.

        Returns:
            Graph outputs and the values that its updates need, by value id, without those of `sinks`.
        """
        return self._in_graph(self._run_forward, inputs, list(weights), sinks or {})

    def loss_and_gradients(
        self, inputs: dict[int, tf.Tensor], weights: Sequence[tf.Tensor], scale: Any = 1.0
    ) -> tuple[dict[int, Structure], list[tf.Tensor | None]]:
        """Compute the results, and the gradients of `scale` times the first graph output, a scalar.

        If the planner is `fused`, the last sweep runs forward and backward together.

        Args:
            inputs: Tensor, or string handles `[N]`, per graph input.
            weights: One tensor per entry of `graph.weights`.
            scale: Factor of the gradients.

        Returns:
            Results by value id, and one gradient per weight, None for a weight that is not trainable.
        """
        return self._in_graph(self._run_loss, inputs, list(weights), scale)

    def choose(self, inputs: dict[int, tf.Tensor]) -> Layout:
        """Choose the layout for eager inputs; an earlier one if it is nearly as fast, to save a trace.

        Args:
            inputs: Eager tensor, or string handles `[N]`, per input image.

        Returns:
            The layout.

        Raises:
            BudgetError: No layout fits.
        """
        shapes = {v: read_ahead.shape_of(t) for v, t in inputs.items()}
        batch = next(iter(shapes.values()))[0]
        sizes = {v: shape[1:-1] for v, shape in shapes.items()}
        best = self.planner.plan(batch, sizes)
        for layout in self._layouts:
            with suppress(BudgetError):
                if self.planner.plan(batch, sizes, layout).seconds <= GOOD_ENOUGH * best.seconds:
                    return layout
        self._layouts.append(best.layout)
        return best.layout

    @contextmanager
    def using(self, layout: Layout) -> Iterator[None]:
        """Use `layout` for everything traced in this context."""
        before, self._forced.layout = self._forced_layout, layout
        try:
            yield
        finally:
            self._forced.layout = before

    @property
    def _forced_layout(self) -> Layout | None:
        """Layout forced for the current thread (each replica traces in its own thread)."""
        return getattr(self._forced, "layout", None)

    @property
    def _trained(self) -> frozenset[int]:
        """Positions of the trainable weights; the others have no gradient."""
        return frozenset(i for i, v in enumerate(self.graph.weights) if v.trainable)

    def _in_graph(
        self, function: Callable[..., Any], inputs: dict[int, tf.Tensor], *others: Any
    ) -> Any:
        """Call a method inside a graph: stores are changed in place, which eager tensors do not allow."""
        if not tf.executing_eagerly():
            with self._on_host():
                return tf.autograph.experimental.do_not_convert(function)(inputs, *others)
        layout = self.choose({i: t for i, t in inputs.items() if self.graph.values[i].image})

        def run(*arguments: Any) -> Any:
            with self.using(layout), self._on_host():
                return function(*arguments)

        key = function, layout, self._trained
        if key not in self._compiled:
            self._compiled[key] = tf.function(run, autograph=False, reduce_retracing=True)
        return self._compiled[key](inputs, *others)

    def _on_host(self) -> AbstractContextManager[Any]:
        """Place operations on the host unless they name a device; an accelerator would hold whole images."""
        return tf.device(HOST) if any(self.devices) else nullcontext()

    def _run(
        self, inputs: dict[int, tf.Tensor], weights: list[tf.Tensor], watched: tuple[int, ...]
    ) -> dict[int, Structure]:
        keys = list(inputs)
        structure: list[Structure] = []

        @tf.custom_gradient
        def call(*arguments: tf.Tensor) -> Any:
            tensors = dict(zip(keys, arguments[: len(keys)], strict=True))
            state = self._start(tensors, list(arguments[len(keys) :]), watched)
            for sweep in state.sweeps:
                self._forward(sweep, state)
            structure[:] = [self._result(state, value) for value in self.results]
            progress.end(state.done)

            def gradient(*cotangents: tf.Tensor) -> list[Any]:
                # A copy of the state: under an eager tape this is traced twice.
                back = replace(state, d_images={}, d_wholes={}, d_weights={})
                with self._on_host():
                    self._seed(back, structure, cotangents)
                    progress.begin(back.done)
                    self._backward_all(back.sweeps, back)
                    progress.end(back.done)
                d_values = back.d_wholes | back.d_images
                floats = {key for key, t in inputs.items() if autodiff.is_float(t)}
                d_inputs = [d_values.get(key) if key in floats else None for key in keys]
                return list(first_order.first_order_only(d_inputs + self._weight_gradients(back)))

            return tf.nest.flatten(structure), gradient

        flat = call(*inputs.values(), *weights)
        return dict(zip(self.results, tf.nest.pack_sequence_as(structure, flat), strict=True))

    def _run_forward(
        self, inputs: dict[int, tf.Tensor], weights: list[tf.Tensor], sinks: dict[int, tf.Tensor]
    ) -> dict[int, Structure]:
        state = self._start(inputs, weights)
        state.sinks = sinks
        for sweep in state.sweeps:
            self._forward(sweep, state)
        progress.end(state.done)
        stored = [value for value in self.results if value not in sinks]
        return {value: self._result(state, value) for value in stored}

    def _run_loss(
        self, inputs: dict[int, tf.Tensor], weights: list[tf.Tensor], scale: Any
    ) -> tuple[dict[int, Structure], list[tf.Tensor | None]]:
        state = self._start(inputs, weights)
        loss = self.graph.outputs[0]
        fused = self.planner.fused
        for sweep in state.sweeps[:-1] if fused else state.sweeps:
            self._forward(sweep, state)
        if fused:
            (node,) = state.sweeps[-1].reductions
            state.d_wholes[loss] = tf.cast(scale, node.op.init(state.batch)[0].dtype)
            self._backward(state.sweeps[-1], state, fused=True)
        else:
            state.d_wholes[loss] = tf.cast(scale, state.wholes[loss].dtype)
        self._backward_all(state.sweeps[:-1] if fused else state.sweeps, state)
        progress.end(state.done)
        results = {value: self._result(state, value) for value in self.results}
        return results, self._weight_gradients(state)

    def _weight_gradients(self, state: StepState) -> list[tf.Tensor | None]:
        """Return one gradient per weight; None for a weight that is not trainable."""
        return [
            state.d_weights.get(w, tf.zeros_like(t)) if w in state.trained else None
            for w, t in enumerate(state.weights)
        ]

    def _start(
        self,
        inputs: dict[int, tf.Tensor],
        weights: list[tf.Tensor],
        watched: tuple[int, ...] = (),
    ) -> StepState:
        """Return the state before the first sweep, with the geometry of all sweeps."""
        images = {i: t for i, t in inputs.items() if self.graph.values[i].image}
        wholes: dict[int, Structure] = {i: t for i, t in inputs.items() if i not in images}
        layout = self._layout(images)
        sweeps = [*layout.sweeps, *layout.replays]
        input_shapes = [
            read_ahead.source_shape(t, self.graph.spatial + 2)
            if t.dtype == tf.string
            else tf.shape(t, tf.int64)
            for t in images.values()
        ]
        empty, shapes, places, *tables = tf.numpy_function(
            self._geometry(list(images), layout),
            [tf.stack(input_shapes)],
            [tf.string, tf.int64, tf.int64] + [tf.int32] * len(sweeps),
        )
        empty = tf.ensure_shape(empty, [])
        shapes = tf.ensure_shape(shapes, [len(self.graph.values), self.graph.spatial + 2])
        narrow = tf.cast(shapes, tf.int32)
        batch, extents = narrow[next(iter(images)), 0], narrow[:, 1:-1]
        places = tf.ensure_shape(places, [len(KINDS), len(self.graph.values)])
        tables = [
            tf.ensure_shape(t, [None, len(s.columns)]) for t, s in zip(tables, sweeps, strict=True)
        ]
        replays = dict(zip(layout.replays, tables[len(layout.sweeps) :], strict=True))
        state = StepState(
            layout,
            batch,
            extents,
            empty,
            shapes,
            places,
            tables,
            replays,
            images,
            wholes,
            weights,
            self._trained,
            values_with_gradient(self.graph, self._trained, watched),
            done=batch,
        )
        wholes.update({value: extents[image] for value, image in self.graph.sizes.items()})
        self._run_wholes(self.before, state)
        progress.begin(batch)
        return state

    def _layout(self, images: dict[int, tf.Tensor]) -> Layout:
        """Choose the layout while tracing, from the sizes that are known.

        If all are known, a step that does not fit fails now. If the batch size is not known, nothing stays on the
        device: there may be no room for a larger batch.
        """
        if self._forced_layout is not None:
            return self._forced_layout
        sizes = {v: tuple(t.shape[1:-1]) for v, t in images.items() if t.shape.rank != 1}
        if len(sizes) < len(images) or any(None in size for size in sizes.values()):
            return Layout(tuple(self.planner.sweeps))
        batch = next(iter(images.values())).shape[0]
        layout = self.planner.plan(batch or 1, sizes).layout
        return layout if batch else replace(layout, kept=frozenset())

    def _geometry(
        self, keys: list[int], layout: Layout
    ) -> Callable[[np.ndarray], list[np.ndarray]]:
        """Return a function from the shapes of the inputs to the numbers that `_start` needs."""
        graph, planner = self.graph, self.planner

        def geometry(shapes: np.ndarray) -> list[np.ndarray]:
            for key, shape in zip(keys, shapes, strict=True):
                info = graph.values[key]
                if shape[0] != shapes[0][0] or shape[-1] != info.channels:
                    raise ValueError(
                        f"input '{info.name}' has shape {tuple(map(int, shape))}; expected "
                        f"{int(shapes[0][0])} images with {info.channels} channels."
                    )
            sizes = {k: tuple(int(n) for n in s[1:-1]) for k, s in zip(keys, shapes, strict=True)}
            plan = planner.plan(int(shapes[0][0]), sizes, layout)
            host_store.check(plan.host_bytes)
            if plan.disk_bytes:
                file_pool.check(self.folder, plan.disk_bytes)
            all_shapes = np.zeros((len(graph.values), graph.spatial + 2), np.int64)
            for value, size in graph.extents(sizes).items():
                all_shapes[value] = shapes[0][0], *size, graph.values[value].channels
            places = np.full((len(KINDS), len(graph.values)), -1, np.int64)
            for store, start in plan.places.items():
                places[KINDS.index(store.kind), store.value] = start
            return [np.array(b"", object), all_shapes, places, *planner.tables(plan, sizes)]

        return geometry

    def _result(self, state: StepState, value: int) -> Structure:
        """Return a graph output, an image in the dtype of its value."""
        info = self.graph.values[value]
        if not info.image:
            return state.wholes[value]
        image = tf.cast(state.images[value], info.dtype)
        return tf.ensure_shape(image, [None, *[None] * self.graph.spatial, info.channels])

    def _seed(self, state: StepState, outputs: list[Structure], cotangents: Sequence[Any]) -> None:
        """Start a backward pass from the gradients of the results; None for an unused result."""
        remaining = iter(cotangents)
        for value, output in zip(self.results, outputs, strict=True):
            flat = [next(remaining) for _ in tf.nest.flatten(output)]
            if all(c is None for c in flat):
                continue
            if self.graph.values[value].image:
                added = any(value in sweep.reads for sweep in state.sweeps)
                state.d_images[value] = host_store.copy(flat[0]) if added else flat[0]
                continue
            pairs = zip(tf.nest.flatten(output), flat, strict=True)
            filled = [autodiff.zeros(t) if c is None else c for t, c in pairs]
            state.d_wholes[value] = tf.nest.pack_sequence_as(output, filled)

    # ------------------------------------------------------------------ forward

    def _forward(self, sweep: Sweep, state: StepState) -> None:
        """Run a sweep: add its images and results to `state.images` and `state.wholes`."""
        label = f"forward {sweep.index + 1}/{len(state.sweeps)}"
        partials = self._fill(sweep, state, label, state.tables[sweep.index])
        self._finalize(sweep, state, partials)

    def _replay(self, sweep: Sweep, state: StepState) -> None:
        """Rematerialise the images of a segment that its forward pass did not store."""
        label = f"replay before {sweep.index + 1}/{len(state.sweeps)}"
        self._fill(sweep, state, label, state.replays[sweep])

    def _fill(
        self, sweep: Sweep, state: StepState, label: str, table: tf.Tensor
    ) -> list[Structure]:
        """Store the images that a sweep writes, and return the partial sums of its reductions."""
        elsewhere = {*state.sinks, *state.layout.kept}
        stored = [v for v in sweep.writes if v not in elsewhere]
        stores = self._allocate(state, "remat" if sweep.is_replay else "image", stored)
        canonical, tensors = self._tensors(sweep, state, label, table)
        tensors.stores = canonical.named(stores)
        tensors.pages = canonical.named(self._pages(state, sweep.writes))
        tensors.sinks = canonical.named({v: k for v, k in state.sinks.items() if v in sweep.writes})
        state.done, (partials, pages) = self._call(sweep_loop.forward, canonical, tensors)
        state.images |= dict(
            zip(stored, host_store.after([stores[v] for v in stored], state.done), strict=True)
        )
        state.images |= {canonical.ids[p]: image for p, image in pages.items()}
        return partials

    def _pages(self, state: StepState, values: Sequence[int]) -> dict[int, tf.Tensor]:
        """Allocate images on the device, for those of `values` that stay there."""
        kept = [v for v in values if v in state.layout.kept]
        with tf.device(self.devices[0]):
            return {
                v: device_store.allocate(
                    tf.cast(state.shapes[v], tf.int32), self.graph.values[v].dtype
                )
                for v in kept
            }

    def _tensors(
        self, sweep: Sweep, state: StepState, label: str, table: tf.Tensor
    ) -> tuple[Canonical, SweepTensors]:
        """Return a sweep by positions, and its tensors from the state."""
        if sweep not in self._canonical:
            self._canonical[sweep] = Canonical(self.graph, sweep)
        canonical = self._canonical[sweep]
        needed = {i for n in sweep.locals for i in n.inputs}
        wholes = {v: t for v, t in state.wholes.items() if v in needed}
        return canonical, SweepTensors(
            state.label(label),
            state.done,
            table,
            tf.gather(state.extents, canonical.ids),
            canonical.named({v: state.images[v] for v in sweep.reads}),
            state.batch,
            wholes=canonical.named(wholes),
            weights=[state.weights[w] for w in canonical.slots],
        )

    def _call(
        self,
        function: Callable[..., Any],
        canonical: Canonical,
        tensors: SweepTensors,
        *options: Any,
    ) -> Any:
        """Call a function of `tfbig.engine.sweep_loop`, traced once for sweeps that compute the same."""

        def run(tensors: SweepTensors) -> Any:
            return function(canonical.graph, canonical.sweep, tensors, self.devices, *options)

        return self._functions.call((function.__name__, canonical.key, *options), run, tensors)

    def _finalize(self, sweep: Sweep, state: StepState, partials: list[Structure]) -> None:
        """Compute the results of the reductions of a sweep, and its whole nodes."""
        for node, partial in zip(sweep.reductions, partials, strict=True):
            size = tf.cast(state.extents[node.inputs[0]], tf.int64)
            state.wholes[node.output] = node.op.finalize(partial, tf.reduce_prod(size))
        self._run_wholes(sweep.wholes, state)

    def _run_wholes(self, nodes: Sequence[Node], state: StepState) -> None:
        """Run whole nodes."""
        for node in nodes:
            inputs = [state.wholes[i] for i in node.inputs]
            state.wholes[node.output] = node.op.function(
                inputs, [state.weights[w] for w in node.weights]
            )

    def _allocate(self, state: StepState, kind: str, values: list[int]) -> dict[int, tf.Tensor]:
        """Allocate stores; they reuse memory that is free once the previous sweep has ended."""
        spilled = state.layout.spilled
        requests = [
            host_store.NewStore(
                v,
                tf.as_dtype(self.planner.stored_dtype(v)),
                self.folder if Store(kind, v) in spilled else None,
            )
            for v in values
        ]
        (shapes,) = host_store.after([state.shapes], state.done)
        stores = host_store.allocate(shapes, state.places[KINDS.index(kind)], requests)
        count = next((t.shape[0] for t in state.images.values() if t.shape.rank), None)
        unknown = [None] * self.graph.spatial
        return {
            v: tf.ensure_shape(store, [count, *unknown, self.graph.values[v].channels])
            for v, store in zip(values, stores, strict=True)
        }

    # ----------------------------------------------------------------- backward

    def _backward_all(self, order: Sequence[Sweep], state: StepState) -> None:
        """Run sweeps backward, last first, each after the replays of its segment."""
        for sweep in reversed(order):
            self._wholes_backward(sweep.wholes, state)
            if not state.learned.intersection(n.output for n in sweep.nodes):
                continue  # everything that it depends on is frozen
            for replay in state.replays:
                if replay.index == sweep.index:
                    self._replay(replay, state)
            self._backward(sweep, state)
        self._wholes_backward(self.before, state)

    def _wholes_backward(self, nodes: Sequence[Node], state: StepState) -> None:
        """Compute the gradients of whole nodes, with a tape over each."""
        for node in reversed(nodes):
            cotangent = state.d_wholes.pop(node.output, None)
            if cotangent is None:
                continue
            inputs = [state.wholes[i] for i in node.inputs]
            weights = [state.weights[w] for w in node.weights]
            with tf.GradientTape() as tape:
                tape.watch(autodiff.floats((inputs, weights)))
                output = node.op.function(inputs, weights)
            d_inputs, d_weights = autodiff.gradients(tape, output, cotangent, (inputs, weights))
            for value, d in zip(node.inputs, d_inputs, strict=True):
                autodiff.accumulate(state.d_wholes, value, d)
            for slot, d in zip(node.weights, d_weights, strict=True):
                autodiff.accumulate(state.d_weights, slot, d)

    def _backward(self, sweep: Sweep, state: StepState, fused: bool = False) -> None:
        """Run a sweep backward: add to `d_images`, `d_wholes` and `d_weights`."""
        label = f"backward {sweep.index + 1}/{len(state.sweeps)}"
        needed: set[int] = set()
        if not fused:
            whole = sweep
            sweep = self._folded(sweep, state, label)
            needed = _reduced(sweep, state) - _reduced(whole.without(sweep.nodes), state)
        targets = [v for v in sweep.reads if v in state.learned]
        stored = [v for v in targets if v not in state.layout.kept]
        fresh = self._allocate_gradients(targets, state)
        canonical, tensors = self._tensors(sweep, state, label, state.tables[sweep.index])
        place = canonical.place
        tensors.stores = {place[v]: state.d_images[v] for v in stored}
        tensors.pages = {place[v]: state.d_images[v] for v in targets if v not in stored}
        tensors.d_images = {
            place[v]: state.d_images[v] for v in sweep.writes if v in state.d_images
        }
        tensors.written = canonical.named({v: state.images[v] for v in sweep.writes if v in needed})
        reduced = {n.output for n in sweep.reductions}
        tensors.d_wholes = canonical.named(
            {v: d for v, d in state.d_wholes.items() if v in reduced}
        )
        tensors.wholes |= canonical.named({v: t for v, t in state.wholes.items() if v in reduced})
        options = sweep_loop.Backward(
            frozenset(place[v] for v in fresh),
            fused,
            frozenset(place[v] for v in state.learned if v in place),
            tuple(p for p, slot in enumerate(canonical.slots) if slot in state.trained),
        )
        state.done, (d_wholes, d_weights, partials, pages) = self._call(
            sweep_loop.backward, canonical, tensors, options
        )
        added = host_store.after([state.d_images[v] for v in stored], state.done)
        state.d_images.update(zip(stored, added, strict=True))
        state.d_images |= {canonical.ids[p]: image for p, image in pages.items()}
        for v in sweep.writes:
            state.d_images.pop(v, None)
        for p, d in d_wholes.items():
            autodiff.accumulate(state.d_wholes, canonical.ids[p], d)
        for p, d in d_weights.items():
            autodiff.accumulate(state.d_weights, canonical.slots[p], d)
        if fused:
            self._finalize(sweep, state, partials)

    def _allocate_gradients(self, values: list[int], state: StepState) -> list[int]:
        """Allocate gradients of the images that have none yet, and return those with arbitrary content."""
        fresh = [v for v in values if v not in state.d_images]
        state.d_images |= self._pages(state, fresh)
        stored = [v for v in fresh if v not in state.d_images]
        state.d_images |= self._allocate(state, "gradient", stored)
        if stored and len(self.devices) > 1:  # strips add to the same rows in any order
            zeros = host_store.zero([state.d_images[v] for v in stored], state.done)
            state.d_images |= dict(zip(stored, zeros, strict=True))
            return []
        return stored

    def _folded(self, sweep: Sweep, state: StepState, label: str) -> Sweep:
        """Add the gradients of statistics to those of stored images, and return the sweep without these reductions."""
        nodes = [
            n
            for n in foldable(sweep)
            if n.output in state.d_wholes
            and n.inputs[0] in state.d_images
            and n.inputs[0] not in state.layout.kept
        ]
        chunk = min(sweep_loop.FOLD_BYTES, self.planner.device_bytes // 8)
        for value in dict.fromkeys(n.inputs[0] for n in nodes):
            reductions = tuple(n for n in nodes if n.inputs[0] == value)
            single = Sweep(sweep.index, reductions, (value,), (), (value,), ())
            canonical, tensors = self._tensors(single, state, label, state.extents[:1, :1])
            tensors.stores = canonical.named({value: state.d_images[value]})
            tensors.d_wholes = canonical.named(state.d_wholes)
            tensors.wholes = canonical.named({n.output: state.wholes[n.output] for n in reductions})
            state.done = self._call(sweep_loop.fold, canonical, tensors, chunk)
            (state.d_images[value],) = host_store.after([state.d_images[value]], state.done)
        return sweep.without(nodes)


def _reduced(sweep: Sweep, state: StepState) -> set[int]:
    """Return the images whose reduction has a gradient."""
    return {v for n in sweep.reductions if n.output in state.d_wholes for v in n.inputs}
