# %% [markdown]
# # A volume
#
# You have volumes from CT or light-sheet microscopy, and train on cubes cut from them, because a whole volume does
# not fit in memory. What works for images works for volumes too: a volume is cut into slabs along its longest axis,
# and the result is that of the whole volume.
#
# Our volume is synthetic: it shows vessels in noise. The network learns where they are.

# %%
import tfbig  # first, so that TensorFlow starts without its log lines

import threading
import time
from contextlib import contextmanager

import keras
import matplotlib.pyplot as plt
import numpy as np
import psutil
import tensorflow as tf
from scipy import ndimage


SHAPE = (80, 80, 80)


def vessels(shape, seed, count=7):
    """Return a noisy volume of bent tubes, and where they are, both `[D, H, W, 1]`."""
    random = np.random.default_rng(seed)
    lines = np.ones(shape, bool)
    steps = np.linspace(0, 1, 400)[:, None]
    for _ in range(count):  # a bent line between two random places on opposite faces
        begin, bend, end = random.uniform(0.1, 0.9, (3, 3))
        axis = random.integers(3)
        begin[axis], end[axis] = 0, 1
        points = (1 - steps) ** 2 * begin + 2 * steps * (1 - steps) * bend + steps**2 * end
        lines[tuple(np.minimum(points * shape, np.array(shape) - 1).astype(int).T)] = False
    tubes = ndimage.distance_transform_edt(lines) < 3
    volume = tubes + random.normal(0, 0.5, shape)
    return volume[..., None].astype("float32"), tubes[..., None].astype("float32")


volume, tubes = vessels(SHAPE, seed=0)
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
left.imshow(volume[40, ..., 0], cmap="gray")
left.set_title("one slice")
middle.imshow(volume.max(0)[..., 0], cmap="gray")
middle.set_title("the brightest voxels of all slices")
right.imshow(tubes.max(0)[..., 0], cmap="gray")
right.set_title("the vessels")
for axes in (left, middle, right):
    axes.axis("off")
plt.show()

# %% [markdown]
# ## A U-Net with three axes

# %%
keras.utils.set_random_seed(0)
layers = keras.layers


def block(x, filters):
    """Return a convolution with BatchNormalization."""
    x = layers.Conv3D(filters, 3, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x))


voxels = keras.Input((None, None, None, 1), name="volume")
first = block(voxels, 8)
x = block(layers.MaxPooling3D()(first), 16)
x = layers.UpSampling3D()(x)
x = block(layers.Concatenate()([x, first]), 8)
model = keras.Model(voxels, layers.Conv3D(1, 1, activation="sigmoid")(x))
start = model.get_weights()

big = tfbig.stream(model, tfbig.Budget(host="200MB"))
big.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=[tfbig.metrics.Dice()])
big.plan((1, *SHAPE, 1)).summary()

# %% [markdown]
# For a volume, *strips x rows* is the number of slabs, and the most planes that one of them reads.
#
# ## Streamed and plain


# %%
@contextmanager
def watched(curves: dict, name: str):
    """Record seconds and megabytes of this process while the body runs."""
    process, began, done = psutil.Process(), time.monotonic(), threading.Event()
    points = curves[name] = []

    def note():
        while not done.wait(0.05):
            points.append((time.monotonic() - began, process.memory_info().rss / 1e6))

    thread = threading.Thread(target=note)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


curves, before = {}, psutil.Process().memory_info().rss / 1e6
batch = tf.constant(volume[None]), tf.constant(tubes[None])
with watched(curves, "streamed"):
    streamed = [big.train_on_batch(*batch)[0] for _ in range(2)]

model.set_weights(start)
model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
with watched(curves, "plain Keras"):
    plain = [model.train_on_batch(*batch) for _ in range(2)]

figure, axes = plt.subplots(figsize=(8, 3.6))
for name, points in curves.items():
    seconds, megabytes = np.array(points).T
    axes.plot(seconds, megabytes - before, label=name)
axes.set_xlabel("seconds of two steps")
axes.set_ylabel("memory of a step, MB")
axes.legend()
plt.show()
print("losses streamed", streamed)
print("losses plain   ", plain)

assert np.allclose(streamed, plain, rtol=2e-3)

# %% [markdown]
# ## Train, and look
#
# We train for some more steps on the same volume, and then predict a second one.

# %%
history = big.fit(*batch, epochs=15, verbose=0).history
other, truth = vessels(SHAPE, seed=1)
found = big.predict(other[None], verbose=0)[0]

figure, all_axes = plt.subplots(1, 4, figsize=(14, 3.7), layout="constrained")
all_axes[0].plot(history["dice"])
all_axes[0].set_xlabel("step")
all_axes[0].set_ylabel("Dice on the first volume")
for axes, picture, title in zip(
    all_axes[1:],
    (other.max(0), truth.max(0), found.max(0)),
    ("second volume", "its vessels", "what the network finds"),
    strict=True,
):
    axes.imshow(picture[..., 0], cmap="gray")
    axes.set_title(title)
    axes.axis("off")
plt.show()

# %%
both = (found > 0.5) & (truth > 0.5)
score = 2 * both.sum() / ((found > 0.5).sum() + (truth > 0.5).sum())
difference = np.abs(model.predict(other[None], verbose=0)[0] - found).max()
print(f"Dice of the second volume {score:.3f}; largest difference to plain Keras {difference:.0e}")

assert score > 0.7
assert difference < 5e-3

# %% [markdown]
# ## What next
#
# - Volumes can have any size: [reading the plan](02_plan_and_budget.md) shows what `(1, 1024, 1024, 1024, 1)`
#   takes.
# - Series `[N, L, C]`, such as ECG or sound, work in the same way, with `Conv1D`.
# - The [guide to streaming](../guides/streaming.md).
