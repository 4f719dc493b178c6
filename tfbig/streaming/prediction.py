"""Prediction of one image into a file, strip by strip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.engine import keras_variables
from tfbig.engine.program import Program
from tfbig.stores import host_store

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


def by_strips(
    program: Program, handle: tf.Tensor, size: tuple[int, ...], path: str, convert: Convert
) -> None:
    """Predict an image strip by strip, and write each strip.

    Args:
        program: Program with one image as input and one as output.
        handle: String `[1]`.
        size: Rows and columns of the image.
        path: File to write.
        convert: Function from a strip of the prediction, `[r, W, K]`, to the array to write.
    """
    graph = program.graph
    (output,) = graph.outputs
    rows, columns = graph.extents({graph.inputs[0]: size})[output]
    info = graph.values[output]
    dtype = tf.as_dtype(info.dtype).as_numpy_dtype
    pixel = convert(np.zeros((1, 1, info.channels), dtype))
    with (
        sources.write_npy(path, (rows, columns, *pixel.shape[2:]), pixel.dtype) as writer,
        host_store.sink(
            lambda start, strip: writer.write(start, convert(strip.astype(dtype, copy=False)))
        ) as key,
    ):
        inputs = keras_variables.arguments(program, [handle])
        program.forward(inputs, keras_variables.weights(program), {output: tf.constant(key)})
