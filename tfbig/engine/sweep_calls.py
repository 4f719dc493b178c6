"""Calls of the shared traces of sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfbig.engine import step_progress
from tfbig.engine.shared_traces import TraceCache, placed
from tfbig.engine.sweep_state import StepState
from tfbig.engine.sweep_tensors import (
    SweepGeometry,
    SweepStores,
    SweepTensors,
    SweepValues,
    TracedSweep,
)
from tfbig.network.graph import Graph
from tfbig.plan.canonical import Canonical
from tfbig.plan.sweeps import Sweep
from tfbig.system.backend import HOST


class SweepCalls:
    """Calls functions of `tfbig.engine.sweep_loop` for the sweeps of one graph.

    Args:
        graph: The graph.
        devices: Devices that compute strips; None leaves it to TensorFlow.
    """

    def __init__(self, graph: Graph, devices: Sequence[str | None]) -> None:
        self.graph = graph
        self.devices = devices
        self._canonical: dict[Sweep, Canonical] = {}
        self._traces = TraceCache(devices[0])

    def on_host(self) -> AbstractContextManager[Any]:
        """Place operations on the host unless they name a device; an accelerator would hold whole images."""
        return placed(HOST if any(self.devices) else None)

    def on_accelerator(self) -> AbstractContextManager[Any]:
        """Place operations on the first device; otherwise the next sweep would wait for a small result of the host."""
        return placed(self.devices[0])

    def holding(self, values: Sequence[int]) -> AbstractContextManager[Any]:
        """Place operations that copy these values: on the host if one of them is an image, else on the first device."""
        has_images = any(self.graph.values[v].image for v in values)
        return self.on_host() if has_images else self.on_accelerator()

    def held_on_host(self, images: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Return the input images in host memory; otherwise every strip would copy a whole one from the device."""
        if not any(self.devices):
            return images
        with self.on_host():
            return {v: t if t.dtype == tf.string else tf.identity(t) for v, t in images.items()}

    def canonical(self, sweep: Sweep) -> Canonical:
        """Return a sweep by positions."""
        if sweep not in self._canonical:
            self._canonical[sweep] = Canonical(self.graph, sweep)
        return self._canonical[sweep]

    def tensors(
        self,
        sweep: Sweep,
        state: StepState,
        label: str,
        counts_channels: bool = False,
        strips: tuple[tf.Tensor, dict[int, tf.Tensor]] | None = None,
    ) -> SweepTensors:
        """Return what a sweep reads from the state, by value id; its weights by position.

        Args:
            sweep: The sweep.
            state: State of the step.
            label: One of `StepGeometry.labels`.
            counts_channels: Whether the sweep needs the numbers of channels of the observed images, if a trace of it
                serves any.
            strips: `table` and `copies` of `SweepGeometry`. Default: those of the step.
        """
        step_progress.tracing(label)
        canonical, geometry = self.canonical(sweep), state.geometry
        needed = {i for n in sweep.locals for i in n.inputs}
        table, copies = strips or (geometry.table(sweep), geometry.copies_of(sweep))
        counted = sweep.observed if counts_channels and canonical.any_channels else ()
        return SweepTensors(
            SweepGeometry(
                geometry.labels[label],
                state.done,
                table,
                tf.stack([geometry.extents[v] for v in canonical.ids]),
                geometry.batch,
                {v: geometry.channels[v] for v in counted},
                copies,
            ),
            SweepStores({v: state.images[v] for v in sweep.reads}, {}, {}, {}, {}),
            SweepValues(
                {v: t for v, t in state.wholes.items() if v in needed},
                [state.weights[w] for w in canonical.slots],
                {},
                {},
            ),
        )

    def call(
        self,
        function: Callable[..., Any],
        sweep: Sweep,
        state: StepState,
        tensors: SweepTensors,
        *options: Any,
    ) -> Any:
        """Call a function of `tfbig.engine.sweep_loop`, traced once for sweeps that compute the same.

        Args:
            function: The function.
            sweep: The sweep.
            state: State of the step.
            tensors: Tensors of the sweep, by value id.
            *options: Further arguments, part of the key of the trace.

        Returns:
            Its result, by position.
        """
        canonical = self.canonical(sweep)
        traced = TracedSweep(canonical.graph, canonical.sweep, self.devices, state.known_batch)
        key = function.__name__, canonical.key, state.known_batch, *options
        return self._traces.call(
            key,
            lambda tensors: function(traced, tensors, *options),
            _by_position(canonical, tensors),
            canonical.any_channels,
        )


def _by_position(canonical: Canonical, tensors: SweepTensors) -> SweepTensors:
    """Return the tensors of a sweep by position instead of value id."""
    named = canonical.named
    geometry, stores, values = tensors
    return SweepTensors(
        geometry._replace(channels=named(geometry.channels), copies=named(geometry.copies)),
        SweepStores(*(named(each) for each in stores)),
        values._replace(wholes=named(values.wholes), d_wholes=named(values.d_wholes)),
    )
