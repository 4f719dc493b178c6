"""Images side by side: concatenation along the rows, the columns, or a further axis."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import tensorflow as tf

from tfbig.geometry.windows import SAME, Axis, Interval, Window
from tfbig.network.rules.call import Call
from tfbig.ops.kernels import Strip, take


class Part(Window):
    """Axis of an image that is a part of another one: the padding is what the others take up there."""

    @property
    def rate(self) -> None:
        """None: a part begins at a given row."""
        return None

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the rows of the image that some rows of the other one show; at least one."""
        return super().needs(rows, size).clip(size).not_empty(size)


def joined(call: Call, axis: int) -> int:
    """Add a concatenation along a spatial axis.

    Args:
        call: The call.
        axis: The axis, from 1.
    """
    graph, sizes = call.graph, [spec.shape[axis] for spec in call.specs]
    if any(not graph.values[v].image for v in call.inputs):
        call.refuse("joins images and vectors; expected only images [N, rows, ..., C].")
    if None in sizes:
        call.refuse(
            f"joins images of unknown size along axis={axis}; expected a keras.Input of fixed size."
        )
    starts = [0, *accumulate(sizes)]
    place = graph.to_graph_order(range(graph.spatial)).index(axis - 1)

    def run(x: list[tf.Tensor], w: Any, strip: Strip) -> tf.Tensor:
        parts = [_part(t, p, place, starts[p], strip) for p, t in enumerate(x)]
        return tf.concat([tf.cast(t, call.dtype) for t in parts], place + 1)

    def axes(position: int) -> tuple[Axis, ...]:
        around = starts[position], starts[-1] - starts[position + 1]
        along = (Part(padding=around) if i == place else SAME for i in range(graph.spatial))
        return tuple(along)

    return graph.local(
        call.layer.name,
        run,
        call.inputs,
        call.channels,
        call.dtype,
        [axes(p) for p in range(len(sizes))],
        cheap=True,
        uniform=False,
        any_channels=True,
    )


def _part(x: tf.Tensor, position: int, axis: int, start: int, strip: Strip) -> tf.Tensor:
    """Return what a strip shows of one of the images, which begins at `start`; it may have no rows."""
    along = strip.along(axis)
    if along is None:
        return x
    rows = along.inputs[position]
    first, last = (tf.clip_by_value(n - start, 0, rows.extent) for n in (along.start, along.stop))
    whole = [(0, each.stop - each.start) for each in strip.axes[:axis]]
    return take(x, [*whole, (tf.maximum(first - rows.start, 0), last - first)])
