"""Strips, and nothing else, reach the accelerator: two logical CPU devices, the second playing the accelerator."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CHILD = """
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, tensorflow as tf
host = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(host, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras, tfbig

BUDGET = 400_000
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(0)
image = x = keras.Input((None, None, 3))
for strides in (1, 2):
    x = keras.layers.Conv2D(8, 3, strides=strides, padding="same", use_bias=False)(x)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
model = keras.Model(image, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(x)))
rng = np.random.default_rng(0)
pictures, labels = tf.constant(rng.random((1, 256, 64, 3))), tf.ones((1, 2), tf.float64)
big = tfbig.stream(model, tfbig.Budget(device=BUDGET), device="/CPU:1")
plan = big.plan((1, 256, 64, 3))
big.compile("sgd", "mse")
start = big.get_weights()
found = {"budget": BUDGET, "planned": plan.device_bytes, "strips": plan.strips}
step = tf.function(lambda: big.train_step((pictures, labels)), autograph=False)
concrete = step.get_concrete_function()

def walk(graph, inside):
    for op in graph.get_operations():
        yield op, inside
        for name in ("body", "cond"):
            if name in op.node_def.attr and op.node_def.attr[name].func.name:
                function = graph._get_function(op.node_def.attr[name].func.name)
                yield from walk(function.graph, True)

convolutions = [(op.device, inside) for op, inside in walk(concrete.graph, False)
                if op.type.startswith("Conv2D")]
stores = [op.device for op, _ in walk(concrete.graph, False) if op.type == "PyFunc"]
found["convolutions"] = len(convolutions)
found["convolutions_on_device_in_a_loop"] = sum("CPU:1" in d and i for d, i in convolutions)
found["python_calls_on_device"] = sum("CPU:1" in d for d in stores)
step()
streamed = [w.copy() for w in big.get_weights()]
big.set_weights(start)
alone = tfbig.stream(model, tfbig.Budget(device=BUDGET), device="/CPU:0")
alone.compile("sgd", "mse")
alone.train_on_batch(pictures, labels)
pairs = zip(streamed, alone.get_weights())
found["difference"] = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
print(json.dumps(found))
"""


def test_the_second_device_sees_strips_only():
    words = [sys.executable, "-c", CHILD]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["planned"] <= found["budget"]
    assert found["strips"] > 4
    assert (
        found["convolutions"] >= 6
    )  # two forward, two weight gradients, one input gradient, one more
    assert found["convolutions_on_device_in_a_loop"] == found["convolutions"]
    assert found["python_calls_on_device"] == 0  # stores stay in host memory
    assert found["difference"] <= 1e-10  # float64, kernels of one device may sum in another order
