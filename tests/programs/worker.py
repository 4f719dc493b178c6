"""Train as one worker of a distributed run, and write the weights and the history.

Usage: worker.py SETTINGS, as JSON:

strategy: "none", "mirrored" (several CPU devices of one process) or "multiworker" (with `TF_CONFIG`)
replicas: number of devices of "mirrored"
model: a key of `MODELS`; float64. For models of risks, a batch is a risk set of Cox's loss
norm: "none", "replica" or "all": the replicas over which BatchNormalization computes its statistics
accumulate, epochs, images: numbers
out: folder for `weights-<worker>.npz`, `rows-<worker>.json` and `checkpoints`
die_at: epoch and batch before which the worker kills itself
raise_at: epoch and batch before which a callback of the second worker raises
stop_at: epoch and batch before which the second worker is requested to stop
nan: number of an image of NaN
broken: number of an image that cannot be read
fit: train with `fit` instead of `Loop`
strict: false skips images that cannot be read
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from samples import History

import tfbig
from tfbig.cli.settings.tasks import MILSettings
from tfbig.cli.tasks import risk_set_steps
from tfbig.data.worker_shards import ALL_BATCHES
from tfbig.mil.target_losses import CoxLoss
from tfbig.mil.target_metrics import Concordance
from tfbig.models.pooling import ABMIL
from tfbig.system import signals
from tfbig.training import Checkpoints, Epochs, Loop

SIDE = 12


def strategy_of(settings):
    kind = settings["strategy"]
    if kind == "mirrored":
        (cpu,) = tf.config.list_physical_devices("CPU")
        count = settings["replicas"]
        each = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        tf.config.set_logical_device_configuration(cpu, each)
        return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    return tf.distribute.MultiWorkerMirroredStrategy() if kind == "multiworker" else None


def norm(settings):
    if settings["norm"] == "none":
        return lambda x: x
    return layers.BatchNormalization(momentum=0.9, synchronized=settings["norm"] == "all")


def classes(settings):
    image = keras.Input((None, None, 1))
    x = layers.Conv2D(3, 3, padding="same")(image)
    x = layers.Activation("elu")(norm(settings)(x))
    x = norm(settings)(layers.Conv2D(3, 3, strides=2)(x))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(2)(x))


def masks(settings):
    image = keras.Input((None, None, 1))
    x = norm(settings)(layers.Conv2D(3, 3, padding="same")(image))
    x = layers.Activation("elu")(x)
    return keras.Model(image, layers.Conv2D(1, 1, activation="sigmoid")(x))


def bags(settings):
    encoder = keras.Sequential([keras.Input((SIDE, 1)), layers.Conv1D(4, 3)])
    encoder.add(layers.Activation("elu"))
    if settings["norm"] != "none":
        encoder.add(norm(settings))
    encoder.add(layers.GlobalAveragePooling1D())
    return tfbig.mil.MIL(encoder, ABMIL(2, 4), instances_at_once=5)


def risks(settings):
    image = keras.Input((None, None, 1))
    x = layers.Activation("elu")(norm(settings)(layers.Conv2D(3, 3, padding="same")(image)))
    return keras.Model(image, layers.Dense(1)(layers.GlobalAveragePooling2D()(x)))


def patches(settings):
    patch = keras.Input((4, 4, 1))
    x = layers.Conv2D(4, 3, activation="elu")(patch)
    encoder = keras.Model(patch, layers.GlobalAveragePooling2D()(x))
    head = keras.Sequential([layers.Flatten(), layers.Dense(2)])
    shape = (SIDE, SIDE, 1)
    return tfbig.PatchGD(encoder, head, 4, sampling=1.0, accumulate=None, image_shape=shape, seed=1)


MODELS = {
    "plain": classes,
    "streamed": lambda s: tfbig.stream(classes(s), strip_rows=4),
    "masks": lambda s: tfbig.stream(masks(s), strip_rows=4),
    "bags": bags,
    "patches": patches,
    "risks": risks,
    "streamed risks": lambda s: tfbig.stream(risks(s), strip_rows=4),
}


def has_risks(settings):
    return settings["model"].endswith("risks")


def compiled(settings):
    keras.utils.set_random_seed(3)
    model = MODELS[settings["model"]](settings)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss = "binary_crossentropy" if settings["model"] == "masks" else entropy
    clip = settings.get("clip", 0.1)
    optimizer = keras.optimizers.AdamW(0.02, weight_decay=0.01, global_clipnorm=clip)
    if has_risks(settings):
        model.compile(optimizer, CoxLoss(), metrics=[Concordance(settings["images"])])
    else:
        model.compile(optimizer, loss, metrics=["accuracy"])
    return model


class Image(tfbig.Source):
    """Image that can be made unreadable."""

    def __init__(self, array, broken):
        super().__init__(array.shape, array.dtype, "image")
        self.array, self.broken = array, broken

    def _read(self, start, stop):
        if self.broken:
            raise tfbig.SourceError("image: is truncated.")
        return self.array[start:stop]


handled_images = []
"""Images passed by handle, which must stay alive."""


def data(settings):
    random = np.random.default_rng(0)
    count, batch = settings["images"], settings["batch"]
    x = random.normal(size=(count, SIDE, SIDE, 1))
    y = (x > 0.5).astype("uint8") if settings["model"] == "masks" else random.integers(0, 2, count)

    if has_risks(settings):
        columns = 0 * y, y, random.integers(0, 9, count), np.arange(count)
        y = np.stack(columns, 1)  # those of `Survival`
    if "nan" in settings:
        x[settings["nan"]] = np.nan
    if "broken" in settings or has_risks(settings):
        x = (x * 30 + 100).astype("uint8")
        handled_images.extend(
            Image(image, i == settings.get("broken")) for i, image in enumerate(x)
        )
        x = np.array([image.handle for image in handled_images[-count:]])

    def batches(shard):
        order = np.random.default_rng(shard.epoch).permutation(count)
        items = order[shard.items(count, batch)]
        return tf.data.Dataset.from_tensor_slices((x[items], y[items])).batch(batch)

    def in_order(shard):
        items = shard.items(count, 1)
        return tf.data.Dataset.from_tensor_slices((x[items], y[items])).batch(1)

    names = [f"image {i}" for i in range(count)]
    return Epochs(-(-count // batch), batches, names), Epochs(count, in_order)


def risk_sets(model):
    """Return the worker of risk sets, one of several under a strategy."""
    make = risk_set_steps.worker_of(MILSettings(survival_loss="cox", accumulate=4), dense=True)
    return make(model)


class Rows(History):
    """History that also ends the worker where the settings ask for it."""

    def __init__(self, settings, worker):
        super().__init__()
        self.settings, self.worker = settings, worker

    def on_train_batch_begin(self, batch, logs=None):
        place = [len(self.rows), batch]
        if place == self.settings.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if place == self.settings.get("raise_at") and self.worker == 1:
            raise OSError("a callback has failed")
        if place == self.settings.get("stop_at") and self.worker == 1:
            signals.request(signal.SIGTERM)


def main(settings):
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    strategy = strategy_of(settings) or tf.distribute.get_strategy()
    out = Path(settings["out"])
    worker = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
    with strategy.scope():
        model = compiled(settings)
    rows = Rows(settings, worker)
    training, validation = data(settings)
    if settings.get("fit"):
        model.fit(
            training.batches(ALL_BATCHES), epochs=1, shuffle=False, verbose=0, callbacks=[rows]
        )
        return write_results(model, rows, out, worker)
    loop = Loop(
        model,
        training,
        validation,
        settings["epochs"],
        callbacks=[rows],
        checkpoints=Checkpoints(out / "checkpoints", "a run"),
        accumulate=settings["accumulate"],
        every_seconds=0,
        worker=risk_sets if has_risks(settings) else None,
        left_out=None if settings.get("strict", True) else lambda error: print(f"left out {error}"),
    )
    loop.run()
    return write_results(model, rows, out, worker)


def write_results(model, rows, out, worker):
    variables = [*model.variables, *model.optimizer.variables]
    np.savez(out / f"weights-{worker}.npz", *(v.numpy() for v in variables))
    (out / f"rows-{worker}.json").write_text(json.dumps(rows.rows))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
