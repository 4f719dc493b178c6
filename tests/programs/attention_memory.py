"""Print by how many bytes the peak memory grows in a gradient of attention over 8000 tokens."""

import json
import sys

import tensorflow as tf

from tfbig.ops.blockwise_attention import blockwise_attention
from tfbig.results.run_folder import memory_bytes


def step(q):
    with tf.GradientTape() as tape:
        tape.watch(q)
        y = blockwise_attention(q, q, q, 256)
    return tape.gradient(y, q, y)


def nested(q):
    with tf.GradientTape() as outer:
        outer.watch(q)
        return step(q)


run = {"eager": step, "nested": nested, "graph": tf.function(step)}[sys.argv[1]]
run(tf.random.normal([1, 2, 300, 8]))
base, _ = memory_bytes()
run(tf.random.normal([1, 2, 8000, 8]))
print(json.dumps(memory_bytes()[1] - base))
