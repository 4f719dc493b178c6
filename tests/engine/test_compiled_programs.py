"""Programs that XLA compiles."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfbig.engine import compiled_programs
from tfbig.system import traces

CPU = "/CPU:0"


def shared(x: tf.Tensor, numbers: dict[str, tf.Tensor], parts: list[tf.Tensor]) -> object:
    """Return a slice whose size is a number among the arguments, and the parts times another number."""
    start, size = tf.unstack(numbers["cut"], num=2)
    return {"cut": x[start : start + size]}, [p * numbers["factor"] for p in parts]


def test_sizes_come_from_numbers_among_the_arguments() -> None:
    """Structures go in and out; another size is another program of the same function."""

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([2], tf.int32)])
    def run(x: tf.Tensor, cut: tf.Tensor) -> object:
        numbers = {"cut": cut, "factor": tf.constant(3.0)}
        return compiled_programs.call(shared, (x, numbers, [x, x + 1]), CPU)

    x = np.arange(8, dtype=np.float32)
    for start, size in ((2, 3), (5, 1)):
        cut, (first, second) = traces.call(run, tf.constant(x), tf.constant([start, size]))
        np.testing.assert_array_equal(cut["cut"], x[start : start + size])
        np.testing.assert_array_equal(first, 3 * x)
        np.testing.assert_array_equal(second, 3 * (x + 1))
