"""Progress of the steps of a graph: when one begins and ends, and what is being traced."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfbig.system import callbacks, progress


def begin(after: tf.Tensor) -> None:
    """Mark the start of a step in a graph, once `after` is computed.

    Args:
        after: A tensor of the graph.
    """
    _call(lambda: progress.METER.begin(), after)


def end(after: tf.Tensor) -> None:
    """Mark the end of a step in a graph, once `after` is computed.

    Args:
        after: A tensor of the graph.
    """
    _call(lambda: progress.METER.end(), after)


def begin_trace() -> None:
    """Mark the start of the trace of a step."""
    progress.METER.begin()


def tracing(label: str) -> None:
    """Report that a sweep is being traced.

    Args:
        label: Name of the sweep in progress messages.

    Raises:
        Stopped: The work was requested to stop.
    """
    progress.METER.report(f"tracing {label}")


def _call(function: Callable[[], None], after: tf.Tensor) -> None:
    callbacks.numpy_function(lambda _: function(), [after], [])
