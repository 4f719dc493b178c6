"""Runs sweeps forward: fills their stores and computes their statistics."""

from __future__ import annotations

from tfbig.engine import sweep_loop
from tfbig.engine.sweep_calls import SweepCalls
from tfbig.engine.sweep_state import StepState, Structure
from tfbig.plan.sweeps import Sweep
from tfbig.stores import host_store


class ForwardPass:
    """Forward pass of one graph.

    Args:
        calls: Calls of its sweeps.
    """

    def __init__(self, calls: SweepCalls) -> None:
        self.calls = calls

    def run(self, sweep: Sweep, state: StepState) -> None:
        """Run a sweep: add its images and results to `state.images` and `state.wholes`."""
        label = f"forward {sweep.index + 1}/{len(state.sweeps)}"
        partials = self._fill(sweep, state, label)
        with self.calls.on_accelerator():
            state.finish_reductions(sweep, partials)

    def replay(self, sweep: Sweep, state: StepState) -> None:
        """Rematerialise the images of a segment that its forward pass did not store."""
        label = f"replay before {sweep.index + 1}/{len(state.sweeps)}"
        self._fill(sweep, state, label)

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
