"""Multiply matrices in unified memory, and print its size, its limit, a sum and the peak as JSON.

The limit is 1.05 times the memory of the GPU; the matrices are small.
"""

import json

import tensorflow as tf

import tfbig
from tfbig.system import unified_memory

if __name__ == "__main__":
    memory = tfbig.unified_memory(1.05)
    x = tf.ones([1024, 1024])
    total = float(tf.reduce_sum(x @ x))
    numbers = [memory.physical_bytes, memory.limit_bytes, total, unified_memory.peak_bytes()]
    print(json.dumps(numbers))
