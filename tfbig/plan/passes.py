"""The passes of a step over the strips of its images, in order: a plan prices this list, and the engine runs it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from enum import StrEnum
from typing import NamedTuple

from tfbig.plan.sweeps import Layout, Sweep


class Kind(StrEnum):
    """Kinds of passes."""

    FORWARD = "forward"
    """The images and reductions of a sweep, then its whole nodes."""
    BOTH = "both"
    """The last sweep, with a loss, forward and backward."""
    REPLAY = "replay"
    """Images of earlier sweeps that were not stored until their backward pass."""
    BACKWARD = "backward"
    """Gradients of the whole nodes of a sweep, then of what it reads."""
    FROZEN = "frozen"
    """Gradients of the whole nodes of a sweep that has nothing else to learn: no strips."""


class Pass(NamedTuple):
    """One pass.

    Args:
        kind: What it computes.
        sweep: Its sweep.
    """

    kind: Kind
    sweep: Sweep


def forward_passes(layout: Layout, fused: bool = False) -> list[Pass]:
    """Return the passes of a forward pass, in order.

    Args:
        layout: Layout of the step.
        fused: Whether the last sweep runs forward and backward together, so as the first of the backward passes.
    """
    sweeps = layout.sweeps[:-1] if fused else layout.sweeps
    return [Pass(Kind.FORWARD, sweep) for sweep in sweeps]


def backward_passes(layout: Layout, learned: Container[int], fused: bool = False) -> list[Pass]:
    """Return the passes of a backward pass, in order: sweeps last first, each after the replays that it reads.

    Args:
        layout: Layout of the step.
        learned: Values that need a gradient, see `tfbig.network.graph.values_with_gradient`. A replay whose images no
            sweep reads for them does not run.
        fused: As in `forward_passes`.
    """
    waiting, passes = list(layout.replays), list[Pass]()
    for sweep in reversed(layout.sweeps):
        is_fused = fused and sweep is layout.sweeps[-1]
        learns = any(n.output in learned for n in sweep.nodes)
        if not is_fused and not learns:
            passes.append(Pass(Kind.FROZEN, sweep))
            continue
        read = read_backward(sweep, learned) if learns else ()
        for replay in [r for r in waiting if not set(read).isdisjoint(r.writes)]:
            waiting.remove(replay)
            passes.append(Pass(Kind.REPLAY, replay))
        passes.append(Pass(Kind.BOTH if is_fused else Kind.BACKWARD, sweep))
    return passes


def read_backward(sweep: Sweep, learned: Container[int]) -> set[int]:
    """Return the stored images whose values the backward pass of a sweep may read.

    They are those that its forward pass reads, and those whose reductions have a gradient.

    Args:
        sweep: The sweep.
        learned: Values that need a gradient.
    """
    summed = {v for n in sweep.reductions if n.output in learned for v in n.inputs}
    return {*sweep.reads, *summed.intersection(sweep.writes)}


def waiting_images(sweeps: Sequence[Sweep], learned: Container[int]) -> set[int]:
    """Return the stored images that the backward pass of some sweeps may read.

    Args:
        sweeps: The sweeps in order.
        learned: Values that need a gradient.
    """
    passes = backward_passes(Layout(tuple(sweeps)), learned)
    backward = [each.sweep for each in passes if each.kind is Kind.BACKWARD]
    return {v for sweep in backward for v in read_backward(sweep, learned)}
