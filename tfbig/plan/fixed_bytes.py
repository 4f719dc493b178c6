"""Bytes of a step that do not depend on the size of its images: TensorFlow, traces, gradients of weights.

The numbers were fitted to runs of `benchmarks/plan_holds.py`, see "Memory that a plan projects" in `docs/measured.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tfbig.network.graph import Graph, Local, Node, Reduce
from tfbig.plan.canonical import Canonical
from tfbig.plan.sweeps import Sweep
from tfbig.units import itemsize


@dataclass(frozen=True)
class TraceBytes:
    """Bytes of the TensorFlow graphs of a step, and of the kernels that they build.

    A graph takes about 14 KB for each operation, in Python, in the library of functions and in the executor.

    Args:
        runtime: Bytes for any network.
        sweep: Bytes for each sweep: the calls of its functions, and the operations around them.
        node: Bytes for each node of a sweep that is traced; sweeps that compute the same share a trace.
        whole: Bytes for each node on whole values, which no trace shares.
    """

    runtime: int
    sweep: int
    node: int
    whole: int

    def of(self, sweeps: Iterable[TraceSize]) -> int:
        """Return the bytes of sweeps."""
        sweeps = list(sweeps)
        traced = sum({sweep.key: sweep.nodes for sweep in sweeps}.values())
        wholes = sum(sweep.wholes for sweep in sweeps)
        return self.runtime + len(sweeps) * self.sweep + traced * self.node + wholes * self.whole


class TraceSize(NamedTuple):
    """Size of the trace of a sweep.

    Args:
        key: Equal for sweeps that share a trace.
        nodes: Number of its nodes, without those that only cast or scale the elements of an input: they are one or two
            operations, and whether there is a cast depends on the data.
        wholes: Number of its nodes on whole values.
    """

    key: str
    nodes: int
    wholes: int

    @classmethod
    def of(cls, graph: Graph, sweep: Sweep) -> TraceSize:
        """Return the size for a sweep of a graph; cut along other axes, it has another trace."""
        nodes = sum(not _converts_input(graph, node) for node in sweep.nodes)
        return cls(Canonical(graph, sweep).key, nodes, len(sweep.wholes))


def _converts_input(graph: Graph, node: Node) -> bool:
    """Return whether a node changes the elements of an input one by one."""
    pixelwise = isinstance(node.op, Local) and node.op.pixelwise
    return pixelwise and set(node.inputs) <= set(graph.inputs)


TRAINING = TraceBytes(runtime=48 * 2**20, sweep=25 * 2**17, node=25 * 2**16, whole=9 * 2**18)
"""Bytes of a training step: about the least that exceeds what twelve networks take in each measurement.

Ten were measured on the smallest images, and seven on larger ones with little memory (`benchmarks/plan_holds.py`).
"""

INFERENCE = TraceBytes(runtime=40 * 2**20, sweep=2**19, node=15 * 2**15, whole=0)
"""Bytes of a step without a backward pass, above those of ten networks on the smallest images; bags need the most."""

FROZEN = TraceBytes(runtime=0, sweep=TRAINING.sweep, node=INFERENCE.node, whole=INFERENCE.whole)
"""Bytes of sweeps of a training step that have no backward pass.

With the sweeps of `INFERENCE`, a chain of which the last block is trained peaked 5 MB above its plan of 821 MB in four
runs of four (`tests/programs/planned_memory.py frozen 1536 256MB`).
"""

COMPILER_BYTES = 36 * 2**20
"""Bytes with which XLA compiles a loss, besides those that traces of the backward pass need later.

The first steps of the U-Net at 4096 x 8192 peak at 158 MB with strips of 2 MB, 32 MB above a plan without these bytes
(`tests/programs/planned_memory.py unet 4096 2MB`).
"""

FREED_BYTES = 32 * 2**20
"""Most bytes of freed strips that the heap keeps; larger tensors return to the system at once."""


def replay_bytes(replays: Sequence[Sweep]) -> int:
    """Return the bytes of the traces of replays: each repeats a part of the forward pass, and has no backward pass.

    Args:
        replays: The replays of a layout. They are counted as if none shared a trace.

    Returns:
        Number of bytes.
    """
    nodes = sum(len(replay.nodes) for replay in replays)
    return len(replays) * INFERENCE.sweep + nodes * INFERENCE.node


def freed_bytes(device_bytes: int, image_bytes: Mapping[int, int]) -> int:
    """Return the bytes of freed strips that the heap keeps because smaller tensors lie between them.

    A chain of convolutions at 1024 x 1024 with 16 MB of strips peaks 5 MB above its strips, stores and fixed bytes
    (`tests/programs/planned_memory.py chain 1024 16MB`).

    Args:
        device_bytes: Most bytes of strips in host memory at any time.
        image_bytes: Bytes of every image; the strips have no more than all of them.

    Returns:
        Number of bytes.
    """
    return min(device_bytes // 2, sum(image_bytes.values()) // 2, FREED_BYTES)


def fixed_bytes(
    graph: Graph, sweeps: Iterable[TraceSize], training: bool, frozen: Iterable[TraceSize] = ()
) -> int:
    """Return the bytes of a step without replays, for any image size.

    Args:
        graph: Graph of the step.
        sweeps: Its sweeps with a backward pass; all, if none follows.
        training: Whether a backward pass follows. Then every trainable weight has a gradient, and the largest three
            more tensors of its size: the gradients of two strips, and what the optimizer computes.
        frozen: Sweeps without a backward pass in a training step.

    Returns:
        Number of bytes.
    """
    if not training:
        return INFERENCE.of(sweeps)
    compiles = any(isinstance(n.op, Reduce) and n.op.compiled for n in graph.nodes)
    traces = TRAINING.of(sweeps) + FROZEN.of(frozen)
    return traces + compiles * COMPILER_BYTES + gradient_bytes(graph)


def gradient_bytes(graph: Graph) -> int:
    """Return the bytes of the gradients of the trainable weights, and of three more tensors of the largest one."""
    trained = [graph.weights[w] for w in graph.trained]
    weights = [prod(w.shape) * itemsize(w.dtype) for w in trained]
    return sum(weights) + 3 * max(weights, default=0)
