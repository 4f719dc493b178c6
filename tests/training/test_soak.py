"""Five hundred steps on images of many sizes in one process: memory, files and scratch do not grow."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from samples import ROOT

STEPS, FIRST = 500, 50
SIZES = 24
"""Of images. TensorFlow keeps what oneDNN compiled for a shape, for up to 1024 shapes and thread (`kCapacity` of its
`MklPrimitiveFactory`): 500 steps on 500 sizes take 0.3 MB more with each, up to a third more than 50 steps, and with
TF_ENABLE_ONEDNN_OPTS=0 none (`docs/reliability.md`)."""

WORK = """
import json, os, sys
import keras, numpy as np, tensorflow as tf
import tfbig
from tfbig.results import run_folder
from tfbig.training import Checkpoints, Epochs, Loop

steps, scratch, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
image = keras.Input((None, None, 3))
x = image
for width in (8, 16):
    x = keras.layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
model = keras.Model(image, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(x)))
budget = tfbig.Budget(device="6MB", host="165MB", disk="200MB", scratch=scratch)
big = tfbig.stream(model, budget)
big.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
random = np.random.default_rng(0)

class Drawn(tfbig.Source):
    def _read(self, start, stop):
        return np.full((stop - start, *self.shape[1:]), start % 251, np.uint8)

kinds = random.integers(200, 900, (int(sys.argv[4]), 2))
sides = kinds[random.integers(len(kinds), size=steps)]
images = [Drawn((int(a), int(b), 3), np.uint8, "drawn") for a, b in sides]

def batches(shard):
    handles = [image.handle for image in images]
    data = tf.data.Dataset.from_tensor_slices((handles, np.arange(steps) % 2))
    return data.batch(1)

class Watching(keras.callbacks.Callback):
    found = []
    def on_train_batch_end(self, batch, logs=None):
        links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                 if os.path.lexists(f"/proc/self/fd/{fd}")]
        kept = len(list(os.scandir(scratch))) + sum(scratch in link for link in links)
        self.found.append((run_folder.memory_bytes()[0], len(links), kept))

watching = Watching()
Loop(big, Epochs(steps, batches), callbacks=[watching], every_seconds=5,
     checkpoints=Checkpoints(out, "soak")).run()
print(json.dumps(watching.found))
"""


@pytest.mark.memory
def test_five_hundred_steps_take_no_more_than_fifty(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-c", WORK, str(STEPS), str(scratch)]
    command += [str(tmp_path / "out"), str(SIZES)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = np.array(json.loads(done.stdout.splitlines()[-1]))
    assert len(found) == STEPS
    memory, files, kept = found[FIRST:].T
    before = found[:FIRST, 0].max()
    print(f"{before / 1e6:.1f} MB in {FIRST} steps, then up to {memory.max() / 1e6:.1f}", files[-1])
    assert memory.max() <= 1.05 * before
    assert memory[-50:].mean() <= 1.05 * memory[:50].mean()
    assert np.ptp(files) == 0
    assert kept.max() == kept.min() > 0
