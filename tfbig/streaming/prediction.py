"""Prediction of one image into a file, strip by strip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.engine.bound_program import BoundProgram
from tfbig.stores.sinks import sink

Convert = Callable[[Any], Any]


def whole(model: keras.Model, handle: tf.Tensor, path: str, convert: Convert) -> None:
    """Predict an image at once, and write the prediction.

    Args:
        model: Streamed model of which not all layers stream.
        handle: String `[1]`.
        path: File to write.
        convert: Function from the prediction `[H, W, K]` to the array to write.
    """
    prediction = convert(keras.ops.convert_to_numpy(model(handle, training=False))[0])
    with sources.write_npy(path, prediction.shape, prediction.dtype) as writer:
        writer.write(0, prediction)


def by_strips(bound: BoundProgram, size: tuple[int, ...], path: str, convert: Convert) -> None:
    """Predict an image strip by strip, and write each strip.

    Args:
        bound: Program with one image as input and one as output, and the handle of the image.
        size: Rows and columns of the image; planes, rows and columns of a volume.
        path: File to write.
        convert: Function from a strip of the prediction, `[r, W, K]` or of a volume `[r, H, W, K]`, to the array to
            write. Strips of volumes are along their longest axis, so any of the first three may be short.
    """
    graph = bound.graph
    (output,) = graph.outputs
    extents = graph.extents({graph.inputs[0]: graph.to_graph_order(size)})[output]
    info = graph.values[output]
    dtype = tf.as_dtype(info.dtype).as_numpy_dtype
    pixel = convert(np.zeros((*[1] * len(size), info.channels), dtype))
    axes = [axis - 1 for axis in graph.inverse_permutation[1:]]  # of the model, in a strip
    shape = (*(extents[axis] for axis in axes[:-1]), *pixel.shape[len(size) :])

    def write(start: int, strip: np.ndarray) -> None:
        writer.write(start, convert(strip.astype(dtype, copy=False).transpose(axes)))

    along = axes.index(0)
    with (
        sources.write_npy(path, shape, pixel.dtype, along) as writer,
        sink(write) as key,
    ):
        bound.forward({output: tf.constant(key)})
