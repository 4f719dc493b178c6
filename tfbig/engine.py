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

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfbig import progress, stores, tapes
from tfbig.graph import Graph, Node, Whole, image_positions
from tfbig.kernels import Rows, Strip, take_rows
from tfbig.plan import Sweep, foldable
from tfbig.planner import Planner
from tfbig.state import Row, State, Structure

FOLD_BYTES = 2**22
"""Bytes of an image that a step of `Program._fold` takes: few enough for the cache."""


class Program:
    """A graph with its planner, ready to run.

    Args:
        graph: what to run.
        planner: how.
        device: where strips are worked on; None leaves it to TensorFlow.
    """

    def __init__(self, graph: Graph, planner: Planner, device: str | None = None) -> None:
        self.graph = graph
        self.planner = planner
        self.device = device
        self.sweeps = planner.sweeps
        after = {n.output for s in self.sweeps for n in s.wholes}
        self.before = [n for n in graph.nodes if isinstance(n.op, Whole) and n.output not in after]
        extra = [value for _, value, _ in graph.updates]
        self.results = list(dict.fromkeys([*graph.outputs, *extra]))
        self._compiled: dict[Callable[..., Any], Any] = {}

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
    ) -> tuple[dict[int, Structure], list[tf.Tensor]]:
        """Results, and gradients of `scale` times the first graph output, a scalar, for all weights.

        Where the planner says `fused`, the last sweep runs forward and backward together.
        """
        return self._in_graph(self._run_loss, inputs, list(weights), scale)

    def _in_graph(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a method inside a graph: stores are changed in place, which eager tensors do not allow."""
        if not tf.executing_eagerly():
            return tf.autograph.experimental.do_not_convert(function)(*arguments)
        if function not in self._compiled:
            self._compiled[function] = tf.function(function, autograph=False, reduce_retracing=True)
        return self._compiled[function](*arguments)

    def _run(
        self, inputs: dict[int, tf.Tensor], weights: list[tf.Tensor], wanted: tuple[int, ...]
    ) -> dict[int, Structure]:
        keys = list(inputs)
        structure: list[Structure] = []

        @tf.custom_gradient
        def call(*arguments: tf.Tensor) -> Any:
            given = dict(zip(keys, arguments[: len(keys)], strict=True))
            state = self._start(given, list(arguments[len(keys) :]))
            for sweep in self.sweeps:
                self._forward(sweep, state)
            structure[:] = [self._result(state, value) for value in self.results]
            progress.end(state.done)

            def gradient(*cotangents: tf.Tensor) -> list[Any]:
                # A state of its own: under an eager tape this is traced twice.
                zeros = [tf.zeros_like(w) for w in state.weights]
                back = replace(state, d_images={}, d_wholes={}, d_weights=zeros)
                self._seed(back, structure, cotangents)
                progress.begin(back.done)
                self._backward_all(self.sweeps, back, wanted)
                progress.end(back.done)
                return [back.d_images.get(key) for key in keys] + back.d_weights

            return tf.nest.flatten(structure), gradient

        flat = call(*inputs.values(), *weights)
        return dict(zip(self.results, tf.nest.pack_sequence_as(structure, flat), strict=True))

    def _run_forward(
        self, inputs: dict[int, tf.Tensor], weights: list[tf.Tensor], sinks: dict[int, tf.Tensor]
    ) -> dict[int, Structure]:
        state = self._start(inputs, weights)
        state.sinks = sinks
        for sweep in self.sweeps:
            self._forward(sweep, state)
        progress.end(state.done)
        kept = [value for value in self.results if value not in sinks]
        return {value: self._result(state, value) for value in kept}

    def _run_loss(
        self, inputs: dict[int, tf.Tensor], weights: list[tf.Tensor], scale: Any
    ) -> tuple[dict[int, Structure], list[tf.Tensor]]:
        state = self._start(inputs, weights)
        loss = self.graph.outputs[0]
        fused = self.planner.fused
        for sweep in self.sweeps[:-1] if fused else self.sweeps:
            self._forward(sweep, state)
        if fused:
            (node,) = self.sweeps[-1].reductions
            state.d_wholes[loss] = tf.cast(scale, node.op.init(state.batch)[0].dtype)
            self._backward(self.sweeps[-1], state, (), together=True)
        else:
            state.d_wholes[loss] = tf.cast(scale, state.wholes[loss].dtype)
        self._backward_all(self.sweeps[:-1] if fused else self.sweeps, state, ())
        progress.end(state.done)
        return {value: self._result(state, value) for value in self.results}, state.d_weights

    def _start(self, inputs: dict[int, tf.Tensor], weights: list[tf.Tensor]) -> State:
        images = {i: t for i, t in inputs.items() if self.graph.values[i].image}
        wholes: dict[int, Structure] = {i: t for i, t in inputs.items() if i not in images}
        self._check(images)
        shapes = [
            stores.source_shape(t) if t.dtype == tf.string else tf.shape(t, tf.int64)
            for t in images.values()
        ]
        flat = tf.numpy_function(
            self._geometry(list(images)), [tf.stack(shapes)], [tf.int32] * (2 + len(self.sweeps))
        )
        extents, batch = tf.ensure_shape(flat[0], [len(self.graph.values), 2]), flat[1]
        tables = [
            tf.ensure_shape(t, [None, len(s.columns)])
            for t, s in zip(flat[2:], self.sweeps, strict=True)
        ]
        batch = tf.ensure_shape(batch, [])
        state = State(batch, extents, tables, images, wholes, weights, done=batch)
        state.d_weights = [tf.zeros_like(w) for w in weights]
        wholes.update({value: extents[image] for value, image in self.graph.sizes.items()})
        self._run_wholes(self.before, state)
        progress.begin(batch)
        return state

    def _check(self, images: dict[int, tf.Tensor]) -> None:
        """Makes the plan while tracing where sizes are known, so that what does not fit is said at once."""
        sizes = {v: tuple(t.shape[1:3]) for v, t in images.items() if t.shape.rank == 4}
        if len(sizes) == len(images) and all(
            n is not None for size in sizes.values() for n in size
        ):
            batch = next(iter(images.values())).shape[0]
            self.planner.plan(batch or 1, sizes)

    def _geometry(self, keys: list[int]) -> Callable[[np.ndarray], list[np.ndarray]]:
        graph, planner = self.graph, self.planner

        def geometry(shapes: np.ndarray) -> list[np.ndarray]:
            for key, shape in zip(keys, shapes, strict=True):
                known = graph.values[key]
                if shape[0] != shapes[0][0] or shape[3] != known.channels:
                    raise ValueError(
                        f"input '{known.name}' has shape {tuple(map(int, shape))}; expected "
                        f"{int(shapes[0][0])} images with {known.channels} channels."
                    )
            sizes = {k: (int(s[1]), int(s[2])) for k, s in zip(keys, shapes, strict=True)}
            tables = planner.tables(int(shapes[0][0]), sizes)
            extents = np.zeros((len(graph.values), 2), np.int32)
            for value, size in graph.extents(sizes).items():
                extents[value] = size
            return [extents, np.array(shapes[0][0], np.int32), *tables]

        return geometry

    def _result(self, state: State, value: int) -> Structure:
        known = self.graph.values[value]
        if not known.image:
            return state.wholes[value]
        return tf.ensure_shape(state.images[value], [None, None, None, known.channels])

    def _seed(self, state: State, outputs: list[Structure], cotangents: Sequence[Any]) -> None:
        """Starts a backward from the gradients of the results, None for those that nothing depends on."""
        given = iter(cotangents)
        for value, output in zip(self.results, outputs, strict=True):
            flat = [next(given) for _ in tf.nest.flatten(output)]
            if all(c is None for c in flat):
                continue
            if self.graph.values[value].image:
                added = any(value in sweep.reads for sweep in self.sweeps)
                state.d_images[value] = stores.copy(flat[0]) if added else flat[0]
                continue
            pairs = zip(tf.nest.flatten(output), flat, strict=True)
            filled = [tapes.zeros(t) if c is None else c for t, c in pairs]
            state.d_wholes[value] = tf.nest.pack_sequence_as(output, filled)

    # ------------------------------------------------------------------ forward

    def _forward(self, sweep: Sweep, state: State) -> None:
        """Runs a sweep: fills `state.images` and `state.wholes` with what it makes."""
        table = state.tables[sweep.index]
        kept = [v for v in sweep.writes if v not in state.sinks]
        state.images.update({v: self._allocate(state, v) for v in kept})
        report = progress.sweep(f"forward {sweep.index + 1}/{len(self.sweeps)}")

        def body(i: tf.Tensor, partials: Structure) -> Structure:
            row = Row(sweep, table[i])
            tiles = self._read(sweep, state, row)
            with tf.device(self.device):
                values = self._locals(sweep, tiles, state, state.weights, row)
                owned = self._owned(sweep, values, row)
                partials = self._merge(sweep, owned, state, row, partials)
            written = [self._write(state, v, row["own start", v], owned[v]) for v in sweep.writes]
            return _next(i, [*written, report(i, tf.shape(table)[0])]), partials

        start = [n.op.init(state.batch) for n in sweep.reductions]
        state.done, partials = self._loop(tf.shape(table)[0], body, start)
        state.images.update(
            zip(kept, stores.after([state.images[v] for v in kept], state.done), strict=True)
        )
        self._finalize(sweep, state, partials)

    def _write(self, state: State, value: int, start: tf.Tensor, rows: tf.Tensor) -> tf.Operation:
        if value in state.sinks:
            return stores.write_sink(state.sinks[value], start, rows)
        return stores.write(state.images[value], start, rows)

    def _loop(self, count: tf.Tensor, body: Any, start: Structure) -> Any:
        done, result = tf.while_loop(
            lambda i, *_: i < count,
            body,
            (tf.constant(0), start),
            shape_invariants=tf.nest.map_structure(lambda t: t.shape, (tf.constant(0), start)),
            parallel_iterations=1,
        )
        return stores.finish(done), result

    def _finalize(self, sweep: Sweep, state: State, partials: list[Structure]) -> None:
        for node, partial in zip(sweep.reductions, partials, strict=True):
            size = tf.cast(state.extents[node.inputs[0]], tf.int64)
            state.wholes[node.output] = node.op.finalize(partial, size[0] * size[1])
        self._run_wholes(sweep.wholes, state)

    def _run_wholes(self, nodes: Sequence[Node], state: State) -> None:
        for node in nodes:
            inputs = [state.wholes[i] for i in node.inputs]
            state.wholes[node.output] = node.op.function(
                inputs, [state.weights[w] for w in node.weights]
            )

    def _allocate(self, state: State, value: int) -> tf.Tensor:
        known = self.graph.values[value]
        shape = tf.concat([[state.batch], state.extents[value], [known.channels]], 0)
        (shape,) = stores.after(
            [tf.cast(shape, tf.int64)], state.done
        )  # what is free by then is used again
        return stores.allocate(shape, tf.as_dtype(known.dtype))

    def _read(self, sweep: Sweep, state: State, row: Row) -> dict[int, tf.Tensor]:
        return {v: self._rows(state, v, row["start", v], row["stop", v]) for v in sweep.reads}

    def _rows(self, state: State, value: int, start: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        image, known = state.images[value], self.graph.values[value]
        if image.dtype == tf.string:
            rows = stores.read_source(image, start, stop, tf.as_dtype(known.dtype))
            return tf.ensure_shape(rows, [image.shape[0], None, None, known.channels])
        if value in self.graph.inputs:
            return take_rows(image, start, stop - start)
        return tf.ensure_shape(
            stores.read(image, start, stop), [self._batch(state), None, None, known.channels]
        )

    def _batch(self, state: State) -> int | None:
        """N where it is known while tracing."""
        return next((t.shape[0] for t in state.images.values() if t.shape.rank), None)

    def _locals(
        self,
        sweep: Sweep,
        tiles: dict[int, tf.Tensor],
        state: State,
        weights: list[tf.Tensor],
        row: Row,
    ) -> dict[int, Structure]:
        """Every image of the sweep on one strip."""
        values = dict(tiles)
        for node in sweep.locals:
            images = image_positions(node)
            inputs = [
                self._view(sweep, values, node, p, row) if p in images else state.wholes[i]
                for p, i in enumerate(node.inputs)
            ]
            rows = tuple(
                self._input_rows(state, node, p, row) if p in images else None
                for p in range(len(node.inputs))
            )
            value = node.output
            strip = Strip(row["start", value], row["stop", value], state.extents[value, 0], rows)
            values[value] = node.op.function(inputs, [weights[w] for w in node.weights], strip)
        return values

    def _input_rows(self, state: State, node: Node, p: int, row: Row) -> Rows:
        start, stop, before, after = (
            row[key, node.output, p] for key in ("start", "stop", "before", "after")
        )
        return Rows(start, stop, before, after, state.extents[node.inputs[p], 0])

    def _view(
        self, sweep: Sweep, values: dict[int, tf.Tensor], node: Node, p: int, row: Row
    ) -> tf.Tensor:
        """The rows of an image that one node reads; all of the tile where nothing else asks for more."""
        value = node.inputs[p]
        if sweep.uses[value] == 1:
            return values[value]
        start = row["start", node.output, p]
        return take_rows(
            values[value], start - row["start", value], row["stop", node.output, p] - start
        )

    def _owned(self, sweep: Sweep, values: dict[int, tf.Tensor], row: Row) -> dict[int, tf.Tensor]:
        """The rows that the strip owns of every image that is stored or reduced."""
        owned = {}
        for v in sweep.observed:
            start, stop = row["own start", v], row["own stop", v]
            alone = sweep.uses[v] == 1
            owned[v] = (
                values[v] if alone else take_rows(values[v], start - row["start", v], stop - start)
            )
        return owned

    def _own_strip(self, node: Node, state: State, row: Row) -> Strip:
        value = node.inputs[0]
        return Strip(row["own start", value], row["own stop", value], state.extents[value, 0], ())

    def _merge(
        self,
        sweep: Sweep,
        owned: dict[int, tf.Tensor],
        state: State,
        row: Row,
        partials: list[Structure],
    ) -> list[Structure]:
        merged = []
        for node, before in zip(sweep.reductions, partials, strict=True):
            inputs = [owned[v] for v in node.inputs]
            weights = [state.weights[w] for w in node.weights]
            new = node.op.partial(inputs, weights, self._own_strip(node, state, row))
            merged.append(node.op.merge(before, new))
        return merged

    # ----------------------------------------------------------------- backward

    def _backward_all(self, sweeps: list[Sweep], state: State, wanted: Sequence[int]) -> None:
        for sweep in reversed(sweeps):
            self._wholes_backward(sweep.wholes, state)
            self._backward(sweep, state, wanted)
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
                tape.watch(tapes.floats((inputs, weights)))
                output = node.op.function(inputs, weights)
            d_inputs, d_weights = tapes.gradients(tape, output, cotangent, (inputs, weights))
            for value, d in zip(node.inputs, d_inputs, strict=True):
                tapes.accumulate(state.d_wholes, value, d)
            for slot, d in zip(node.weights, d_weights, strict=True):
                state.d_weights[slot] += d

    def _backward(
        self, sweep: Sweep, state: State, wanted: Sequence[int], together: bool = False
    ) -> None:
        """Runs a sweep backward: adds to `d_images`, `d_wholes` and `d_weights`."""
        table = state.tables[sweep.index]
        folded = [] if together else self._fold(sweep, state)
        wholes = sorted({i for n in sweep.locals for i in n.inputs if i in state.wholes})
        slots = sorted({w for n in sweep.nodes for w in n.weights})
        targets = [v for v in sweep.reads if v in wanted or v not in self.graph.inputs]
        fresh = {v for v in targets if v not in state.d_images}
        state.d_images.update({v: self._allocate(state, v) for v in sorted(fresh)})
        cotangents = {v: state.d_images[v] for v in sweep.writes if v in state.d_images}
        report = progress.sweep(f"backward {sweep.index + 1}/{len(self.sweeps)}")

        def body(i: tf.Tensor, sums: Structure) -> Structure:
            row = Row(sweep, table[i])
            tiles = self._read(sweep, state, row)
            given = {v: self._gradient_rows(d, v, row, state) for v, d in cotangents.items()}
            with tf.device(self.device):
                sources = (
                    {v: tiles[v] for v in targets},
                    {v: state.wholes[v] for v in wholes},
                    [state.weights[w] for w in slots],
                )
                with tf.GradientTape() as tape:
                    tape.watch(tapes.floats(sources))
                    values = self._locals(sweep, tiles, state, state.weights, row)
                    owned = self._owned(sweep, values, row)
                partials, pulled = self._pull(sweep, state, owned, row, sums[2], together, folded)
                outputs, seeds = tapes.sum_seeds(owned, [given, *pulled])
                d_tiles, d_wholes, d_weights = tapes.gradients(tape, outputs, seeds, sources)
                sums = (tapes.add(sums[0], d_wholes), tapes.add(sums[1], d_weights), partials)
            added = []
            for v in targets:
                start, stop = row["start", v], row["stop", v]
                edges = (row["covered", v], row["until", v]) if v in fresh else (stop, stop)
                added.append(stores.add(state.d_images[v], start, d_tiles[v], *edges))
            return _next(i, [*added, report(i, tf.shape(table)[0])]), sums

        zeros = tf.nest.map_structure(tapes.zeros, {v: state.wholes[v] for v in wholes})
        start = [n.op.init(state.batch) for n in sweep.reductions] if together else []
        sums = (zeros, [tf.zeros_like(state.weights[w]) for w in slots], start)
        state.done, (d_wholes, d_weights, partials) = self._loop(tf.shape(table)[0], body, sums)
        added = stores.after([state.d_images[v] for v in targets], state.done)
        state.d_images.update(zip(targets, added, strict=True))
        for v in sweep.writes:
            state.d_images.pop(v, None)
        for v, d in d_wholes.items():
            tapes.accumulate(state.d_wholes, v, d)
        for slot, d in zip(slots, d_weights, strict=True):
            state.d_weights[slot] += d
        if together:
            self._finalize(sweep, state, partials)

    def _gradient_rows(self, gradient: tf.Tensor, value: int, row: Row, state: State) -> tf.Tensor:
        start, stop = row["own start", value], row["own stop", value]
        rows = stores.read(gradient, start, stop)
        return tf.ensure_shape(
            rows, [self._batch(state), None, None, self.graph.values[value].channels]
        )

    def _fold(self, sweep: Sweep, state: State) -> list[Node]:
        """Adds the gradients of statistics to those of the stored images that these are of; gives the nodes done.

        It is a pass of its own so that these images are free before the gradients of the sweep's inputs are made.
        """
        nodes = [n for n in foldable(sweep) if n.output in state.d_wholes]
        nodes = [n for n in nodes if n.inputs[0] in state.d_images]
        for node in nodes:
            self._fold_one(node, state)
        return nodes

    def _fold_one(self, node: Node, state: State) -> None:
        value = node.inputs[0]
        image, gradient = state.images[value], state.d_images[value]
        weights = [state.weights[w] for w in node.weights]
        rows = state.extents[value, 0]
        row_bytes = tf.size(image, tf.int64) // tf.cast(rows, tf.int64) * image.dtype.size
        chunk = min(FOLD_BYTES, self.planner.device_bytes // 8)
        step = tf.cast(tf.maximum(chunk // row_bytes, 1), tf.int32)

        def body(i: tf.Tensor, _: Structure) -> Structure:
            start, stop = i * step, tf.minimum((i + 1) * step, rows)
            given = stores.read(gradient, start, stop)
            inputs = [self._rows(state, value, start, stop)]
            with tf.device(self.device):
                result, cotangent = state.wholes[node.output], state.d_wholes[node.output]
                strip = Strip(start, stop, rows, ())
                (added,) = node.op.pullback(inputs, weights, strip, result, cotangent)
                summed = given + added
            return _next(i, [stores.write(gradient, start, summed)]), ()

        state.done, _ = self._loop(-(-rows // step), body, ())
        (state.d_images[value],) = stores.after([gradient], state.done)

    def _pull(
        self,
        sweep: Sweep,
        state: State,
        owned: dict[int, tf.Tensor],
        row: Row,
        partials: list[Structure],
        together: bool,
        folded: list[Node],
    ) -> tuple[list[Structure], list[dict[int, tf.Tensor]]]:
        """Gradients that the reductions of a sweep give to its images; partials as well if `together`."""
        pulled, merged = [], []
        for position, node in enumerate(sweep.reductions):
            cotangent = state.d_wholes.get(node.output)
            if cotangent is None or node in folded:
                continue
            inputs = [owned[v] for v in node.inputs]
            weights = [state.weights[w] for w in node.weights]
            strip = self._own_strip(node, state, row)
            if together:
                new, gradients = node.op.together(inputs, weights, strip, cotangent)
                merged.append(node.op.merge(partials[position], new))
            else:
                result = state.wholes[node.output]
                gradients = node.op.pullback(inputs, weights, strip, result, cotangent)
            pairs = zip(node.inputs, gradients, strict=True)
            pulled.append({v: g for v, g in pairs if g is not None})
        return merged, pulled


def _next(i: tf.Tensor, done: list[tf.Operation]) -> tf.Tensor:
    """The next strip, once this one is done. (Graphs of gradients do not order Python calls by themselves.)"""
    with tf.control_dependencies(done):
        return tf.identity(i + 1)
