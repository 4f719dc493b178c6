"""Runs a plan: sweeps over strips, forward and backward, inside `tf.function`.

    forward p:   for every strip i:  outputs_i, partials_i = f_p(tiles_i, statistics of sweeps < p, weights)
                 statistics_p = finalize(merge over i of partials_i)
    backward p:  for every strip i:  the tape of the same f_p, fed with the gradient strips of what sweep p stored
                 and the pullback of its statistics, gives gradient strips of the tiles it read (overlaps add up)
                 and gradients of the lower statistics and of the weights (both sum over strips)

Statistics are ordinary small tensors between sweeps, so no barrier has a hand-written backward. In a backward
sweep the value of a stored tile comes from its store, so the operation that made it is pruned from the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfbig.engine import read_ahead, sweep_loop
from tfbig.engine.shared_traces import Canonical, Functions
from tfbig.engine.sweep_state import KINDS, Part, State, Structure
from tfbig.errors import BudgetError
from tfbig.network.graph import Graph, Node, Whole, learned
from tfbig.ops import autodiff
from tfbig.plan.planner import GOOD_ENOUGH, Planner
from tfbig.plan.sweeps import Layout, Store, Sweep, foldable
from tfbig.stores import device_store, file_pool, host_store
from tfbig.system import progress

HOST = "/CPU:0"
"""Where stores are, and what is small."""


class Program:
    """A graph with its planner, ready to run.

    Args:
        graph: what to run.
        planner: how.
        devices: where strips are worked on; None leaves it to TensorFlow.
        folder: directory for stores in a file.
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
        self._chosen = threading.local()
        self._canonical: dict[Sweep, Canonical] = {}
        self._functions = Functions(inline=any(devices))

    def run(
        self, inputs: dict[int, tf.Tensor], weights: Sequence[tf.Tensor], wanted: Sequence[int] = ()
    ) -> dict[int, Structure]:
        """Graph outputs and the values behind its updates, differentiable once.

        Args:
            inputs: tensor, or string handles `[N]`, per graph input.
            weights: one tensor per entry of `graph.weights`.
            wanted: input images whose gradient is asked for.
        """
        return self._in_graph(self._run, inputs, list(weights), tuple(wanted))

    def forward(
        self,
        inputs: dict[int, tf.Tensor],
        weights: Sequence[tf.Tensor],
        sinks: dict[int, tf.Tensor] | None = None,
    ) -> dict[int, Structure]:
        """The same results, not differentiable; stores go as soon as nothing reads them.

        Args:
            sinks: for images that go to a `stores.sink` instead of a store, its key.
        """
        return self._in_graph(self._run_forward, inputs, list(weights), sinks or {})

    def loss_and_gradients(
        self, inputs: dict[int, tf.Tensor], weights: Sequence[tf.Tensor], scale: Any = 1.0
    ) -> tuple[dict[int, Structure], list[tf.Tensor | None]]:
        """Results, and gradients of `scale` times the first graph output, a scalar, for all weights.

        Where the planner says `fused`, the last sweep runs forward and backward together.
        """
        return self._in_graph(self._run_loss, inputs, list(weights), scale)

    def choose(self, inputs: dict[int, tf.Tensor]) -> Layout:
        """The layout for inputs that are not being traced: one that was chosen before where that is as good.

        Args:
            inputs: eager tensors, or string handles `[N]`, per image that comes from outside.

        Raises:
            BudgetError: no layout fits.
        """
        shapes = {v: read_ahead.shape_of(t) for v, t in inputs.items()}
        batch = next(iter(shapes.values()))[0]
        sizes = {v: shape[1:-1] for v, shape in shapes.items()}
        best = self.planner.plan(batch, sizes)
        for known in self._layouts:
            with suppress(BudgetError):
                if self.planner.plan(batch, sizes, known).seconds <= GOOD_ENOUGH * best.seconds:
                    return known
        self._layouts.append(best.layout)
        return best.layout

    @contextmanager
    def using(self, layout: Layout) -> Iterator[None]:
        """What is traced inside keeps its images in this way."""
        before, self._chosen.layout = self._using, layout
        try:
            yield
        finally:
            self._chosen.layout = before

    @property
    def _using(self) -> Layout | None:
        """Of this thread: replicas are traced in threads that take turns."""
        return getattr(self._chosen, "layout", None)

    @property
    def _trained(self) -> frozenset[int]:
        """Positions of the weights that are trained; others have no gradient."""
        return frozenset(i for i, v in enumerate(self.graph.weights) if v.trainable)

    def _in_graph(
        self, function: Callable[..., Any], inputs: dict[int, tf.Tensor], *others: Any
    ) -> Any:
        """Calls a method inside a graph: stores are changed in place, which eager tensors do not allow."""
        if not tf.executing_eagerly():
            with self._beside_devices():
                return tf.autograph.experimental.do_not_convert(function)(inputs, *others)
        layout = self.choose({i: t for i, t in inputs.items() if self.graph.values[i].image})

        def run(*arguments: Any) -> Any:
            with self.using(layout), self._beside_devices():
                return function(*arguments)

        key = function, layout, self._trained
        if key not in self._compiled:
            self._compiled[key] = tf.function(run, autograph=False, reduce_retracing=True)
        return self._compiled[key](inputs, *others)

    def _beside_devices(self) -> AbstractContextManager[Any]:
        """Where stores are: what does not say otherwise would run on an accelerator, and take whole images there."""
        return tf.device(HOST) if any(self.devices) else nullcontext()

    def _run(
        self, inputs: dict[int, tf.Tensor], weights: list[tf.Tensor], wanted: tuple[int, ...]
    ) -> dict[int, Structure]:
        keys = list(inputs)
        structure: list[Structure] = []

        @tf.custom_gradient
        def call(*arguments: tf.Tensor) -> Any:
            given = dict(zip(keys, arguments[: len(keys)], strict=True))
            state = self._start(given, list(arguments[len(keys) :]), wanted)
            for sweep in state.sweeps:
                self._forward(sweep, state)
            structure[:] = [self._result(state, value) for value in self.results]
            progress.end(state.done)

            def gradient(*cotangents: tf.Tensor) -> list[Any]:
                # A state of its own: under an eager tape this is traced twice.
                back = replace(state, d_images={}, d_wholes={}, d_weights={})
                with self._beside_devices():
                    self._seed(back, structure, cotangents)
                    progress.begin(back.done)
                    self._backward_all(back.sweeps, back)
                    progress.end(back.done)
                found = back.d_wholes | back.d_images
                floats = {key for key, t in inputs.items() if autodiff.is_float(t)}
                d_inputs = [found.get(key) if key in floats else None for key in keys]
                return list(_once(d_inputs + self._weight_gradients(back)))

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
        kept = [value for value in self.results if value not in sinks]
        return {value: self._result(state, value) for value in kept}

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
            self._backward(state.sweeps[-1], state, together=True)
        else:
            state.d_wholes[loss] = tf.cast(scale, state.wholes[loss].dtype)
        self._backward_all(state.sweeps[:-1] if fused else state.sweeps, state)
        progress.end(state.done)
        results = {value: self._result(state, value) for value in self.results}
        return results, self._weight_gradients(state)

    def _weight_gradients(self, state: State) -> list[tf.Tensor | None]:
        """None for a weight that is not trained."""
        return [
            state.d_weights.get(w, tf.zeros_like(t)) if w in state.trained else None
            for w, t in enumerate(state.weights)
        ]

    def _start(
        self,
        inputs: dict[int, tf.Tensor],
        weights: list[tf.Tensor],
        wanted: tuple[int, ...] = (),
    ) -> State:
        images = {i: t for i, t in inputs.items() if self.graph.values[i].image}
        wholes: dict[int, Structure] = {i: t for i, t in inputs.items() if i not in images}
        layout = self._layout(images)
        visits = [*layout.sweeps, *layout.replays]
        given = [
            read_ahead.source_shape(t, self.graph.spatial + 2)
            if t.dtype == tf.string
            else tf.shape(t, tf.int64)
            for t in images.values()
        ]
        empty, shapes, places, *tables = tf.numpy_function(
            self._geometry(list(images), layout),
            [tf.stack(given)],
            [tf.string, tf.int64, tf.int64] + [tf.int32] * len(visits),
        )
        empty = tf.ensure_shape(empty, [])
        shapes = tf.ensure_shape(shapes, [len(self.graph.values), self.graph.spatial + 2])
        narrow = tf.cast(shapes, tf.int32)
        batch, extents = narrow[next(iter(images)), 0], narrow[:, 1:-1]
        places = tf.ensure_shape(places, [len(KINDS), len(self.graph.values)])
        tables = [
            tf.ensure_shape(t, [None, len(s.columns)]) for t, s in zip(tables, visits, strict=True)
        ]
        replays = dict(zip(layout.replays, tables[len(layout.sweeps) :], strict=True))
        state = State(
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
            learned(self.graph, self._trained, wanted),
            done=batch,
        )
        wholes.update({value: extents[image] for value, image in self.graph.sizes.items()})
        self._run_wholes(self.before, state)
        progress.begin(batch)
        return state

    def _layout(self, images: dict[int, tf.Tensor]) -> Layout:
        """What is kept, decided while tracing where sizes are known; what does not fit is then said at once.

        Of a batch of any size nothing stays on the device: there may be no room for a larger one.
        """
        if self._using is not None:
            return self._using
        sizes = {v: tuple(t.shape[1:-1]) for v, t in images.items() if t.shape.rank != 1}
        if len(sizes) < len(images) or any(None in size for size in sizes.values()):
            return Layout(tuple(self.planner.sweeps))
        batch = next(iter(images.values())).shape[0]
        layout = self.planner.plan(batch or 1, sizes).layout
        return layout if batch else replace(layout, kept=frozenset())

    def _geometry(
        self, keys: list[int], layout: Layout
    ) -> Callable[[np.ndarray], list[np.ndarray]]:
        graph, planner = self.graph, self.planner

        def geometry(shapes: np.ndarray) -> list[np.ndarray]:
            for key, shape in zip(keys, shapes, strict=True):
                known = graph.values[key]
                if shape[0] != shapes[0][0] or shape[-1] != known.channels:
                    raise ValueError(
                        f"input '{known.name}' has shape {tuple(map(int, shape))}; expected "
                        f"{int(shapes[0][0])} images with {known.channels} channels."
                    )
            sizes = {k: tuple(int(n) for n in s[1:-1]) for k, s in zip(keys, shapes, strict=True)}
            plan = planner.plan(int(shapes[0][0]), sizes, layout)
            host_store.check(plan.host_bytes)
            if plan.disk_bytes:
                file_pool.check(self.folder, plan.disk_bytes)
            every = np.zeros((len(graph.values), graph.spatial + 2), np.int64)
            for value, size in graph.extents(sizes).items():
                every[value] = shapes[0][0], *size, graph.values[value].channels
            places = np.full((len(KINDS), len(graph.values)), -1, np.int64)
            for store, start in plan.places.items():
                places[KINDS.index(store.kind), store.value] = start
            return [np.array(b"", object), every, places, *planner.tables(plan, sizes)]

        return geometry

    def _result(self, state: State, value: int) -> Structure:
        known = self.graph.values[value]
        if not known.image:
            return state.wholes[value]
        image = tf.cast(state.images[value], known.dtype)
        return tf.ensure_shape(image, [None, *[None] * self.graph.spatial, known.channels])

    def _seed(self, state: State, outputs: list[Structure], cotangents: Sequence[Any]) -> None:
        """Starts a backward from the gradients of the results, None for those that nothing depends on."""
        given = iter(cotangents)
        for value, output in zip(self.results, outputs, strict=True):
            flat = [next(given) for _ in tf.nest.flatten(output)]
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

    def _forward(self, sweep: Sweep, state: State) -> None:
        """Runs a sweep: fills `state.images` and `state.wholes` with what it makes."""
        label = f"forward {sweep.index + 1}/{len(state.sweeps)}"
        partials = self._fill(sweep, state, label, state.tables[sweep.index])
        self._finalize(sweep, state, partials)

    def _replay(self, sweep: Sweep, state: State) -> None:
        """Makes the images of a segment again that its forward did not keep."""
        label = f"replay before {sweep.index + 1}/{len(state.sweeps)}"
        self._fill(sweep, state, label, state.replays[sweep])

    def _fill(self, sweep: Sweep, state: State, label: str, table: tf.Tensor) -> list[Structure]:
        """Stores what a sweep writes; gives the partial sums of its reductions."""
        elsewhere = {*state.sinks, *state.layout.kept}
        stored = [v for v in sweep.writes if v not in elsewhere]
        made = self._allocate(state, "again" if sweep.again else "image", stored)
        known, part = self._part(sweep, state, label, table)
        part.stores = known.named(made)
        part.pages = known.named(self._pages(state, sweep.writes))
        part.sinks = known.named({v: k for v, k in state.sinks.items() if v in sweep.writes})
        state.done, (partials, pages) = self._call(sweep_loop.forward, known, part)
        state.images |= dict(
            zip(stored, host_store.after([made[v] for v in stored], state.done), strict=True)
        )
        state.images |= {known.ids[p]: image for p, image in pages.items()}
        return partials

    def _pages(self, state: State, values: Sequence[int]) -> dict[int, tf.Tensor]:
        """Empty images on the device, of those values that stay there."""
        kept = [v for v in values if v in state.layout.kept]
        with tf.device(self.devices[0]):
            return {
                v: device_store.allocate(
                    tf.cast(state.shapes[v], tf.int32), self.graph.values[v].dtype
                )
                for v in kept
            }

    def _part(
        self, sweep: Sweep, state: State, label: str, table: tf.Tensor
    ) -> tuple[Canonical, Part]:
        """What a sweep works with, taken from the state."""
        if sweep not in self._canonical:
            self._canonical[sweep] = Canonical(self.graph, sweep)
        known = self._canonical[sweep]
        needed = {i for n in sweep.locals for i in n.inputs}
        wholes = {v: t for v, t in state.wholes.items() if v in needed}
        return known, Part(
            state.label(label),
            state.done,
            table,
            tf.gather(state.extents, known.ids),
            known.named({v: state.images[v] for v in sweep.reads}),
            state.batch,
            wholes=known.named(wholes),
            weights=[state.weights[w] for w in known.slots],
        )

    def _call(
        self, function: Callable[..., Any], known: Canonical, part: Part, *options: Any
    ) -> Any:
        """A function of `tfbig.engine.sweep_loop`, traced once for sweeps that do the same."""

        def run(part: Part) -> Any:
            return function(known.graph, known.sweep, part, self.devices, *options)

        return self._functions.call((function.__name__, known.key, *options), run, part)

    def _finalize(self, sweep: Sweep, state: State, partials: list[Structure]) -> None:
        for node, partial in zip(sweep.reductions, partials, strict=True):
            size = tf.cast(state.extents[node.inputs[0]], tf.int64)
            state.wholes[node.output] = node.op.finalize(partial, tf.reduce_prod(size))
        self._run_wholes(sweep.wholes, state)

    def _run_wholes(self, nodes: Sequence[Node], state: State) -> None:
        for node in nodes:
            inputs = [state.wholes[i] for i in node.inputs]
            state.wholes[node.output] = node.op.function(
                inputs, [state.weights[w] for w in node.weights]
            )

    def _allocate(self, state: State, kind: str, values: list[int]) -> dict[int, tf.Tensor]:
        """Stores for images; what is free when the sweep before has ended is used again."""
        spilled = state.layout.spilled
        wanted = [
            host_store.Wanted(
                v,
                tf.as_dtype(self.planner.stored_dtype(v)),
                self.folder if Store(kind, v) in spilled else None,
            )
            for v in values
        ]
        (shapes,) = host_store.after([state.shapes], state.done)
        made = host_store.allocate(shapes, state.places[KINDS.index(kind)], wanted)
        count = next((t.shape[0] for t in state.images.values() if t.shape.rank), None)
        unknown = [None] * self.graph.spatial
        return {
            v: tf.ensure_shape(m, [count, *unknown, self.graph.values[v].channels])
            for v, m in zip(values, made, strict=True)
        }

    # ----------------------------------------------------------------- backward

    def _backward_all(self, order: Sequence[Sweep], state: State) -> None:
        for sweep in reversed(order):
            self._wholes_backward(sweep.wholes, state)
            if not state.learned.intersection(n.output for n in sweep.nodes):
                continue  # all that it is made of is frozen
            for replay in state.replays:
                if replay.index == sweep.index:
                    self._replay(replay, state)
            self._backward(sweep, state)
        self._wholes_backward(self.before, state)

    def _wholes_backward(self, nodes: Sequence[Node], state: State) -> None:
        """Gradients of whole nodes, by a tape over each."""
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

    def _backward(self, sweep: Sweep, state: State, together: bool = False) -> None:
        """Runs a sweep backward: adds to `d_images`, `d_wholes` and `d_weights`."""
        label = f"backward {sweep.index + 1}/{len(state.sweeps)}"
        again: set[int] = set()
        if not together:
            whole = sweep
            sweep = self._folded(sweep, state, label)
            again = _summed(sweep, state) - _summed(whole.without(sweep.nodes), state)
        targets = [v for v in sweep.reads if v in state.learned]
        stored = [v for v in targets if v not in state.layout.kept]
        fresh = self._begin(targets, state)
        known, part = self._part(sweep, state, label, state.tables[sweep.index])
        part.stores = {known.place[v]: state.d_images[v] for v in stored}
        part.pages = {known.place[v]: state.d_images[v] for v in targets if v not in stored}
        part.d_images = {
            known.place[v]: state.d_images[v] for v in sweep.writes if v in state.d_images
        }
        part.written = known.named({v: state.images[v] for v in sweep.writes if v in again})
        made = {n.output for n in sweep.reductions}
        part.d_wholes = known.named({v: d for v, d in state.d_wholes.items() if v in made})
        part.wholes |= known.named({v: t for v, t in state.wholes.items() if v in made})
        options = sweep_loop.Backward(
            frozenset(known.place[v] for v in fresh),
            together,
            frozenset(known.place[v] for v in state.learned if v in known.place),
            tuple(p for p, slot in enumerate(known.slots) if slot in state.trained),
        )
        state.done, (d_wholes, d_weights, partials, pages) = self._call(
            sweep_loop.backward, known, part, options
        )
        added = host_store.after([state.d_images[v] for v in stored], state.done)
        state.d_images.update(zip(stored, added, strict=True))
        state.d_images |= {known.ids[p]: image for p, image in pages.items()}
        for v in sweep.writes:
            state.d_images.pop(v, None)
        for p, d in d_wholes.items():
            autodiff.accumulate(state.d_wholes, known.ids[p], d)
        for p, d in d_weights.items():
            autodiff.accumulate(state.d_weights, known.slots[p], d)
        if together:
            self._finalize(sweep, state, partials)

    def _begin(self, values: list[int], state: State) -> list[int]:
        """Makes room for gradients of images that have none yet; those whose rows do not count until they are set."""
        fresh = [v for v in values if v not in state.d_images]
        state.d_images |= self._pages(state, fresh)
        stored = [v for v in fresh if v not in state.d_images]
        state.d_images |= self._allocate(state, "gradient", stored)
        if stored and len(self.devices) > 1:  # strips add to the same rows in any order
            zeros = host_store.zero([state.d_images[v] for v in stored], state.done)
            state.d_images |= dict(zip(stored, zeros, strict=True))
            return []
        return stored

    def _folded(self, sweep: Sweep, state: State, label: str) -> Sweep:
        """The sweep without the reductions whose gradient has joined that of a stored image."""
        nodes = [
            n
            for n in foldable(sweep)
            if n.output in state.d_wholes
            and n.inputs[0] in state.d_images
            and n.inputs[0] not in state.layout.kept
        ]
        chunk = min(sweep_loop.FOLD_BYTES, self.planner.device_bytes // 8)
        for value in dict.fromkeys(n.inputs[0] for n in nodes):
            own = tuple(n for n in nodes if n.inputs[0] == value)
            alone = Sweep(sweep.index, own, (value,), (), (value,), ())
            known, part = self._part(alone, state, label, state.extents[:1, :1])
            part.stores = known.named({value: state.d_images[value]})
            part.d_wholes = known.named(state.d_wholes)
            part.wholes = known.named({n.output: state.wholes[n.output] for n in own})
            state.done = self._call(sweep_loop.fold, known, part, chunk)
            (state.d_images[value],) = host_store.after([state.d_images[value]], state.done)
        return sweep.without(nodes)


def _summed(sweep: Sweep, state: State) -> set[int]:
    """Images whose reduction has a gradient."""
    return {v for n in sweep.reductions if n.output in state.d_wholes for v in n.inputs}


def _once(gradients: list[Any]) -> list[Any]:
    """Gradients whose own gradient is an error when it is computed, where it would else be zero."""

    @tf.custom_gradient
    def marked(*tensors: tf.Tensor) -> Any:
        def refuse(*others: tf.Tensor) -> list[tf.Tensor]:
            return [
                tf.reshape(tf.numpy_function(_refuse, [t], t.dtype), tf.shape(t)) for t in others
            ]

        return [tf.identity(t) for t in tensors], refuse

    known = [g for g in gradients if g is not None]
    found = iter(marked(*known) if known else ())
    return [None if g is None else next(found) for g in gradients]


def _refuse(gradient: np.ndarray) -> np.ndarray:
    raise NotImplementedError(
        "streamed models and Big layers are differentiable once; for gradients of gradients, such as a gradient "
        "penalty, use the plain model."
    )
