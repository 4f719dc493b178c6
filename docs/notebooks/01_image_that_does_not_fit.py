# %% [markdown]
# # An image that does not fit
#
# You have a Keras model, and an image so large that one training step does not fit in memory. The usual solution
# is to cut the image into tiles, or to shrink it. Here the model is trained on the whole image, and the result
# is the same as with enough memory.
#
# We use a small network and a slide of 16 million pixels, so that plain Keras *just* manages it on this machine
# too, and we can compare the two.

# %%
import tfbig  # first, so that TensorFlow starts without its log lines

import threading
import time
from contextlib import contextmanager
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import psutil
import tensorflow as tf


here = Path.cwd()
checkout = next(p for p in (here, *here.parents) if (p / "examples/data").exists())
slide = tfbig.open_slide(checkout / "examples/data/pancreas_pdac_1.tif")
print(slide.shape, slide.dtype, f"{slide.mpp[0]:.2f} micrometres per pixel")
plt.figure(figsize=(6, 5))
plt.imshow(slide.thumbnail(1200))
plt.axis("off")
plt.show()

# %% [markdown]
# ## The model is an ordinary one
#
# The model has BatchNormalization on purpose: this layer needs the mean and variance of the *whole* image, so
# cutting the image into independent tiles cannot give the same result as Keras.

# %%
layers = keras.layers


def build():
    """Return a network from an image of any size to one probability."""
    image = keras.Input((None, None, 3), name="image")
    x = layers.Rescaling(1 / 255)(image)
    for filters in (16, 32, 64):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(1, activation="sigmoid")(x))


keras.utils.set_random_seed(0)
model = build()
start = model.get_weights()
print(f"{model.count_params():,} parameters")

# %% [markdown]
# ## Stream it
#
# `tfbig.stream` wraps the model, and `tfbig.Budget` says how much memory a step may take. The wrapped model
# shares the weights of yours. Before anything runs, it can tell you its plan: in how many strips (bands of rows)
# the image is processed in each pass over it, and how much memory that takes.

# %%
big = tfbig.stream(model, tfbig.Budget(host="500MB"))
big.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
big.plan((1, *slide.shape)).summary()

# %% [markdown]
# ## One training step, watched
#
# A thread records the memory of this process twenty times a second while the step runs. The image is passed by its
# *handle*, a short string. Its rows are read from the file when they are needed.


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


curves = {}
before = psutil.Process().memory_info().rss / 1e6
label = tf.constant([[1.0]])
with watched(curves, "streamed"):
    streamed_loss = big.train_on_batch(tf.constant([slide.level().handle]), label)
print(f"loss {streamed_loss:.6f}")

# %% [markdown]
# ## The same step in plain Keras
#
# Now we train the model as it is, from the same weights, on the image as one array.

# %%
model.set_weights(start)
model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
pixels = slide.level().read(0, slide.shape[0])[None]
with watched(curves, "plain Keras"):
    plain_loss = model.train_on_batch(pixels, label)
print(f"loss {plain_loss:.6f}")

# %%
figure, axes = plt.subplots(figsize=(8, 3.8))
for (name, points), colour in zip(curves.items(), ("C0", "C1"), strict=True):
    seconds, megabytes = np.array(points).T
    axes.plot(seconds, megabytes - before, color=colour, label=name)
    axes.fill_between(seconds, megabytes - before, color=colour, alpha=0.15)
axes.axhline(500, color="C0", linestyle=":", label="budget of the streamed step")
axes.set_xlabel("seconds")
axes.set_ylabel("memory of a step, MB")
axes.legend()
plt.show()

# %%
peak = {name: max(m for _, m in points) - before for name, points in curves.items()}
print(f"memory: {peak['plain Keras']:.0f} MB in plain Keras, {peak['streamed']:.0f} MB streamed")

assert peak["streamed"] < peak["plain Keras"] / 3

# %% [markdown]
# ## Which loss is right?
#
# The two losses differ in the third digit. Both add up millions of 32-bit numbers. A step in 64 bits tells which
# one is closer. We stream this step, because plain Keras would need twice as much memory as before.

# %%
keras.config.set_dtype_policy("float64")
exact = build()
exact.set_weights(start)
referee = tfbig.stream(exact, tfbig.Budget(host="1GB"))
referee.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
exact_loss = referee.train_on_batch(tf.constant([slide.level().handle]), label)
print(f"plain Keras, 32 bits  {plain_loss:.6f}")
print(f"streamed, 32 bits     {streamed_loss:.6f}")
print(f"streamed, 64 bits     {exact_loss:.6f}")

assert abs(streamed_loss - exact_loss) < 1e-5

# %% [markdown]
# The streamed loss agrees with the loss in 64 bits to five digits, so here plain Keras has the larger rounding
# error. tfbig adds up the statistics of BatchNormalization in 64 bits.
#
# ## It is the same step
#
# Now we take a piece of the slide that is small enough for plain Keras in 64 bits, and cut it into eight strips.
# We compare every weight after a step, including the moving mean and variance of BatchNormalization.

# %%
start = exact.get_weights()
piece = tf.constant(slide.read((1500, 2012), (1500, 2012))[None], tf.float64)
after = []
for each in (tfbig.stream(exact, strip_rows=64), exact):  # 8 strips
    exact.set_weights(start)
    each.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    each.train_on_batch(piece, label)
    after.append(exact.get_weights())
keras.config.set_dtype_policy("float32")

moved = max(np.abs(a - b).max() for a, b in zip(after[1], start, strict=True))
largest = max(np.abs(a - b).max() for a, b in zip(*after, strict=True))
print(f"the step changed weights by up to {moved:.1e}")
print(f"streamed and plain differ by up to {largest:.1e}")

assert largest < 1e-10 * moved

# %% [markdown]
# ## What next
#
# - Only the rows of a strip have to fit in memory. For a slide of 100 000 x 80 000 pixels, only the budget and
#   the time change. [Reading the plan](02_plan_and_budget.md) shows how to choose the budget and how to predict
#   the time.
# - [A label for a whole slide](03_label_per_slide.md) trains on several slides with `fit`.
# - The [guide to streaming](../guides/streaming.md) lists what can be streamed, and the limits.
