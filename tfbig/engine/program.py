"""Runs a plan: sweeps over strips, forward and backward, inside a `tf.function`.

    forward p:   for every strip i:  outputs_i, partials_i = f_p(tiles_i, statistics of sweeps < p, weights)
                 statistics_p = finalize(merge over i of partials_i)
    backward p:  for every strip i:  the tape of the same f_p, fed with the gradient strips of the images that sweep p
                 stored and the pullback of its statistics, returns gradient strips of the tiles it read (overlaps
                 add up) and gradients of the lower statistics and of the weights (both are sums over strips; those
                 of what a sweep prepares once, `Local.prepare`, are pulled back from such sums)

Statistics are ordinary small tensors between sweeps, so no barrier has a hand-written backward pass. In a backward
sweep the value of a stored tile comes from its store, so the operation that computed it is pruned from the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import tensorflow as tf

from tfbig.engine import first_order, step_geometry, step_progress, sweep_loop
from tfbig.engine.input_images import input_image, known_batch
from tfbig.engine.layout_choice import LayoutChoice
from tfbig.engine.store_allocator import StoreAllocator
from tfbig.engine.sweep_calls import SweepCalls
from tfbig.engine.sweep_runner import SweepRunner
from tfbig.engine.sweep_state import StepState, Structure
from tfbig.network.graph import Graph, Node, Whole, values_with_gradient
from tfbig.ops import autodiff
from tfbig.plan.passes import backward_passes, forward_passes
from tfbig.plan.planner import Planner
from tfbig.stores.image_store import ImageSource
from tfbig.system import traces


class Program:
    """A graph with its planner, ready to run.

    Args:
        graph: Graph to run.
        planner: Planner for this graph.
        devices: Devices that compute strips; None leaves it to TensorFlow.
        folder: Scratch directory.

    Attributes:
        layouts: Choice of the layouts that steps are traced with.
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
        self.folder = folder
        self.layouts = LayoutChoice(planner)
        extra = [value for _, value, _ in graph.updates]
        self._outputs = list(dict.fromkeys(graph.outputs))
        self._results = list(dict.fromkeys([*graph.outputs, *extra]))
        self._calls = SweepCalls(graph, devices)
        stores = StoreAllocator(planner.prepared, devices[0], folder)
        self._runner = SweepRunner(self._calls, stores)
        self._compiled: dict[tuple[Any, ...], Any] = {}

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
        return self._in_graph(self._run, inputs, list(weights), tuple(watched), watched=watched)

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
            sinks: Key of a `tfbig.stores.sinks.sink`, for each image that it receives instead of a store.

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

    @cached_property
    def _before(self) -> list[Node]:
        """Whole nodes that run before the first sweep."""
        after = {n.output for s in self.planner.sweeps for n in s.wholes}
        return [n for n in self.graph.nodes if isinstance(n.op, Whole) and n.output not in after]

    def _in_graph(
        self,
        function: Callable[..., Any],
        inputs: dict[int, tf.Tensor],
        *others: Any,
        watched: Sequence[int] = (),
    ) -> Any:
        """Call a method inside a graph: stores are changed in place, which eager tensors do not allow.

        Args:
            function: The method.
            inputs: Tensor, or string handles `[N]`, per graph input.
            *others: Further arguments.
            watched: Input images that need a gradient. Background is then not skipped: only the sum of its gradient
                would be known.

        Returns:
            What the method returns.
        """
        if not tf.executing_eagerly():
            with self._calls.on_host():
                return tf.autograph.experimental.do_not_convert(function)(inputs, *others)
        learned = values_with_gradient(self.graph, self.graph.trained, watched)
        layout = self.layouts.for_images(self._images(inputs), not watched, learned)

        def run(*arguments: Any) -> Any:
            with self.layouts.using(layout), self._calls.on_host():
                return function(*arguments)

        key = function, layout, learned
        if key not in self._compiled:
            self._compiled[key] = tf.function(run, autograph=False, reduce_retracing=True)
        return traces.call(self._compiled[key], inputs, *others)

    def _images(self, inputs: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        return {i: t for i, t in inputs.items() if self.graph.values[i].image}

    def _run(
        self, inputs: dict[int, tf.Tensor], weights: list[tf.Tensor], watched: tuple[int, ...]
    ) -> dict[int, Structure]:
        fixed = {k: t for k, t in self._images(inputs).items() if k not in watched}
        keys = [key for key in inputs if key not in fixed]
        structure: list[Structure] = []
        without_gradient: dict[int, Structure] = {}

        @traces.custom_gradient
        def call(*arguments: tf.Tensor) -> Any:
            with self._calls.on_host():
                return run(*arguments)

        def run(*arguments: tf.Tensor) -> Any:
            tensors = fixed | dict(zip(keys, arguments[: len(keys)], strict=True))
            state = self._start(tensors, list(arguments[len(keys) :]), watched)
            self._runner.run(forward_passes(state.layout), state)
            results = self._results_of(state)
            structure[:] = (results.pop(v) for v in self._outputs)
            with self._calls.on_accelerator():
                without_gradient.update(tf.nest.map_structure(tf.stop_gradient, results))
            step_progress.end(state.done)

            def gradient(*cotangents: tf.Tensor) -> list[Any]:
                # A copy of the state: under an eager tape this is traced twice.
                back = replace(state, d_images={}, d_wholes={}, d_weights={})
                with self._calls.on_host():
                    self._runner.seed(back, self._outputs, structure, cotangents)
                    step_progress.begin(back.done)
                    self._run_backward(back)
                    step_progress.end(back.done)
                d_values = back.d_wholes | {v: self._whole(d, v) for v, d in back.d_images.items()}
                floats = {key for key in keys if autodiff.is_float(inputs[key])}
                d_inputs = [d_values.get(key) if key in floats else None for key in keys]
                with self._calls.holding(held):
                    return list(first_order.first_order_only(d_inputs + back.weight_gradients))

            return tf.nest.flatten(structure), gradient

        held = [*watched, *self._outputs]
        with self._calls.holding(held):
            flat = call(*(inputs[key] for key in keys), *weights)
        outputs = zip(self._outputs, tf.nest.pack_sequence_as(structure, flat), strict=True)
        return dict(outputs) | without_gradient

    def _run_forward(
        self, inputs: dict[int, tf.Tensor], weights: list[tf.Tensor], sinks: dict[int, tf.Tensor]
    ) -> dict[int, Structure]:
        state = self._start(inputs, weights, sinks=sinks)
        self._runner.run(forward_passes(state.layout), state)
        step_progress.end(state.done)
        return self._results_of(state)

    def _run_loss(
        self, inputs: dict[int, tf.Tensor], weights: list[tf.Tensor], scale: Any
    ) -> tuple[dict[int, Structure], list[tf.Tensor | None]]:
        state = self._start(inputs, weights)
        self._runner.run(forward_passes(state.layout, self.planner.fused), state)
        state.d_wholes[self.graph.outputs[0]] = tf.cast(scale, self._loss_dtype(state))
        self._run_backward(state, self.planner.fused)
        step_progress.end(state.done)
        return self._results_of(state), state.weight_gradients

    def _run_backward(self, state: StepState, fused: bool = False) -> None:
        """Run the backward pass from the gradients in the state, and that of the nodes before the first sweep."""
        self._runner.run(backward_passes(state.layout, state.learned, fused), state)
        self._runner.pull_wholes(self._before, state)

    def _loss_dtype(self, state: StepState) -> tf.DType:
        """Return the dtype of the first output, a scalar, which a fused last sweep has not computed yet."""
        loss = self.graph.outputs[0]
        if loss in state.wholes:
            return state.wholes[loss].dtype
        (node,) = state.sweeps[-1].reductions
        channels = [self.graph.values[v].channels for v in node.inputs]
        return node.op.init(state.geometry.batch, channels)[0].dtype

    def _start(
        self,
        inputs: dict[int, tf.Tensor],
        weights: list[tf.Tensor],
        watched: tuple[int, ...] = (),
        sinks: dict[int, tf.Tensor] | None = None,
    ) -> StepState:
        """Return the state before the first sweep, with the geometry of all sweeps."""
        step_progress.begin_trace()
        images, trained = self._calls.held_on_host(self._images(inputs)), self.graph.trained
        learned = values_with_gradient(self.graph, trained, watched)
        layout = self.layouts.while_tracing(images, learned)
        devices = self._calls.devices
        part_bytes = sweep_loop.fold_bytes(self.planner.limits.device, devices)
        geometry = step_geometry.trace(
            self.planner, self.folder, images, layout, learned, part_bytes, devices
        )
        wholes: dict[int, Structure] = {i: t for i, t in inputs.items() if i not in images}
        extents = geometry.extents
        wholes |= {value: extents[image] for value, image in self.graph.sizes.items()}
        wholes |= dict.fromkeys(self.graph.batches, tf.cast(geometry.batch, tf.int32))
        state = StepState(
            layout,
            geometry,
            {v: input_image(t) for v, t in images.items()},
            wholes,
            weights,
            trained,
            learned,
            geometry.batch,
            known_batch(images.values()),
            sinks=sinks or {},
        )
        with self._calls.on_accelerator():
            state.run_wholes(self._before)
        step_progress.begin(geometry.batch)
        return state

    def _results_of(self, state: StepState) -> dict[int, Structure]:
        """Return the results that no sink has received, by value id."""
        return {v: self._result(state, v) for v in self._results if v not in state.sinks}

    def _result(self, state: StepState, value: int) -> Structure:
        """Return a graph output."""
        if not self.graph.values[value].image:
            return state.wholes[value]
        return self._whole(state.images[value], value)

    def _whole(self, store: ImageSource, value: int) -> tf.Tensor:
        """Return the whole image of a store, in the dtype of its value."""
        info, axes = self.graph.values[value], self.graph.spatial
        image = store.whole(info.dtype, axes + 2)
        return tf.ensure_shape(image, [None, *[None] * axes, info.channels])
