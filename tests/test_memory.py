"""A process never takes more than its plan says, and the plan is not idle talk."""

import json
import subprocess
import sys

import pytest
from samples import ROOT

CHILD = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path[:0] = [ROOT]
import keras, numpy as np, tensorflow as tf
import tfbig
from benchmarks import report
from benchmarks.networks import conv_chain
from tfbig.models.gigapixel_unet import gigapixel_unet
from tfbig.stores.page_pool import POOL

kind, side, device, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
layers, rng = keras.layers, np.random.default_rng(0)
if kind == "unet":
    shape = (side, 2 * side, 1)
    path = folder + "/image.npy"
    with tfbig.sources.write_npy(path, shape, np.dtype("uint8")) as file:
        for row in range(0, side, 256):
            file.write(row, rng.integers(0, 256, (256, 2 * side, 1), np.uint8))
    model, loss = gigapixel_unet(), "binary_crossentropy"
    x = y = tf.constant([tfbig.open(path).handle])
else:
    shape = (side, side, 3)
    x = tf.constant(rng.random((1, *shape), np.float32))
    model, loss, y = conv_chain(), "mse", tf.ones((1, 1))
    if kind == "segmentation":
        image = z = keras.Input((None, None, 3))
        for _ in range(3):
            z = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same")(z)))
        model = keras.Model(image, layers.Conv2D(1, 1, activation="sigmoid")(z))
        loss, y = "binary_crossentropy", tf.cast(x[..., :1] > 0.5, tf.uint8)
big = tfbig.stream(model, tfbig.Budget(device=device))
big.compile("adam", loss)
base = report.memory_bytes()[0]
plan = big.plan((1, *shape))
for _ in range(2):
    big.train_on_batch(x, y)
print(json.dumps({"measured": report.memory_bytes()[1] - base, "planned": plan.peak_bytes,
                  "stored": POOL.peak_bytes, "host": plan.host_bytes}))
"""

CASES = [
    ("unet", 4096, "64MB"),
    ("unet", 8192, "256MB"),
    ("chain", 1024, "16MB"),
    ("chain", 1536, "256MB"),
    ("segmentation", 1024, "16MB"),
    ("segmentation", 2048, "256MB"),
]


@pytest.mark.memory
@pytest.mark.parametrize(("kind", "side", "device"), CASES)
def test_measured_memory_stays_within_the_plan(kind, side, device, tmp_path):
    child = CHILD.replace("ROOT", repr(str(ROOT)))
    words = [sys.executable, "-c", child, kind, str(side), device, str(tmp_path)]
    found = json.loads(
        subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    )
    # Pages come in blocks of 4 KiB, one store rounds up by less than one.
    assert found["stored"] <= found["host"] + 64 * 4096
    assert 0.6 * found["planned"] <= found["measured"] <= found["planned"]


@pytest.mark.memory
def test_patchgd_takes_the_same_for_images_of_any_size():
    """A training step at 8192 x 8192, 64 times the patches, peaks within 10 % of one at 1024."""
    peaks = []
    for side in (1024, 8192):
        script = str(ROOT / "benchmarks" / "patchgd_memory.py")
        flags = ["--only", str(side), "--encoder", "strided", "--patches-at-once", "16"]
        found = subprocess.run(
            [sys.executable, script, *flags], capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr
        peaks.append(json.loads(found.stdout.splitlines()[-1])["peak_bytes"])
    assert max(peaks) <= 1.1 * min(peaks)
