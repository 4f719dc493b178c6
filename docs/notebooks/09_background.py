# %% [markdown]
# # Background at no cost
#
# You train on whole slides, and most of a slide is glass. Cutting out the tissue would make an irregular image.
# tfbig does something simpler: it gives the glass *one* colour, computes one piece of glass that stands for all
# of it, and computes the tissue as always. The result is that of the whole image.

# %%
import tfbig  # first, so that TensorFlow starts without its log lines

import os
import tempfile
import time
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf


here = Path.cwd()
checkout = next(p for p in (here, *here.parents) if (p / "examples/data").exists())
os.chdir(tempfile.mkdtemp())
slide = tfbig.open_slide(checkout / "examples/data/pancreas_pdac_1.tif")
image = tfbig.masked(slide, dilation=50)  # tissue, and 50 micrometres around it
print(
    f"{image.shape}, {image.background.share:.0%} of it is foreground, the rest has the colour {image.fill.tolist()}"
)

small = image.read(0, image.shape[0])[::4, ::4]
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
left.imshow(slide.thumbnail(1000))
left.set_title("the slide")
right.imshow(small)
right.contour(
    np.linspace(0, small.shape[1], image.background.foreground.shape[1]),
    np.linspace(0, small.shape[0], image.background.foreground.shape[0]),
    image.background.foreground,
    [0.5],
    colors="C2",
    linewidths=0.8,
)
right.set_title("with one colour outside of the green line")
for axes in (left, right):
    axes.axis("off")
plt.show()

# %% [markdown]
# ## The plan knows
#
# Give the image itself to `plan`, instead of its shape. The last column, *active*, is the share of each sweep
# that is computed.


# %%
def build():
    """Return a small network with BatchNormalization."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    pixels = keras.Input((None, None, 3), name="image")
    x = layers.Rescaling(1 / 255)(pixels)
    for filters in (16, 32, 64):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
        x = layers.MaxPooling2D(4)(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(pixels, layers.Dense(1, activation="sigmoid")(x))


big = tfbig.stream(build(), tfbig.Budget(host="2GB"))
big.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
plan = big.plan(image)
plan.summary()


# %%
def times_computed(plan, size, side=500):
    """Return the number of sweeps that compute each place of an image."""
    counts = np.zeros([round(n * side / max(size)) for n in size], int)
    for active_tiles in plan.active_tiles[: len(plan.sweeps)]:
        active = active_tiles.active
        rows, columns = (
            np.arange(n) * m // n for n, m in zip(counts.shape, active.shape, strict=True)
        )
        counts += active[np.ix_(rows, columns)]
    return counts


plt.figure(figsize=(5.5, 5))
plt.imshow(times_computed(plan, image.shape[:2]), cmap="viridis", vmin=0)
plt.colorbar(label="sweeps that compute a place", shrink=0.8, ticks=range(len(plan.sweeps) + 1))
plt.axis("off")
plt.show()

# %% [markdown]
# A rim around the tissue is computed too, because the receptive field of a layer includes tissue there. So is the
# border of the image, where layers read the zero padding. The last sweeps work on maps that are 16 and 64 times
# smaller along each side. If skipping the background would save almost nothing, a sweep computes everything.
#
# ## Time
#
# These are the same pixels in a plain file. Nothing tells tfbig that there is background, so it computes
# everything.

# %%
np.save("everything.npy", image.read(0, image.shape[0]))
everything = tfbig.open("everything.npy")
assert everything.background is None


def seconds_of_step(source):
    """Return the seconds of the faster of two training steps, after the first, which is traced."""
    handle, label, seconds = tf.constant([source.handle]), tf.constant([[1.0]]), []
    for _ in range(3):
        began = time.perf_counter()
        big.train_on_batch(handle, label)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


slow, fast = seconds_of_step(everything), seconds_of_step(image)
figure, axes = plt.subplots(figsize=(6, 1.8))
axes.barh(["everything", "foreground"], [slow, fast], color=["C1", "C0"])
axes.set_xlabel("seconds of a training step")
plt.show()
print(f"{slow:.2f} s for everything, {fast:.2f} s for the foreground")
print(f"{plan.active:.2f} of the work is left")

assert fast < slow

# %% [markdown]
# ## The proof
#
# Is the result that of the whole image? We train two steps in both ways, with numbers of 64 bits, so that rounding
# cannot hide a difference. A part of the slide is enough for this.

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
exact = build()
start = exact.get_weights()
big = tfbig.stream(exact, tfbig.Budget("20MB"), plain_if_small=False)
big.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")

part = image.crop((512, 2048), (0, 1536))
np.save("part.npy", part.read(0, part.shape[0]))
plan = big.plan(part)


def trained(source):
    """Return the weights after two steps."""
    exact.set_weights(start)
    for _ in range(2):
        big.train_on_batch(tf.constant([source.handle]), tf.constant([[1.0]]))
    return exact.get_weights()


weights, weights_of_everything = trained(part), trained(tfbig.open("part.npy"))
largest = max(np.abs(a - b).max() for a, b in zip(weights, weights_of_everything, strict=True))
moved = max(np.abs(a - b).max() for a, b in zip(weights, start, strict=True))
print(
    f"{part.background.share:.0%} of the part is foreground; {plan.active:.2f} of the work is left"
)
print(f"weights changed by up to {moved:.1e}; the two ways differ by up to {largest:.1e}")
keras.config.set_floatx("float32")
keras.config.set_dtype_policy("float32")

assert plan.active < 0.8
assert largest < 1e-10 * moved

# %% [markdown]
# The only difference is the order of the sums. The statistics of BatchNormalization count every pixel of glass, so
# they are those of the whole image too.
#
# ## Where is the foreground?
#
# | you have | write |
# |---|---|
# | nothing but the slide | `tfbig.masked(slide)` |
# | outlines of QuPath | `tfbig.masked(slide, "outlines.geojson")` |
# | a mask, as an array or a file | `tfbig.masked(slide, mask)` |
# | a slide whose background has exactly one colour already | `tfbig.masked(slide, leave_out=255)` |
#
# ## What next
#
# - On the command line: `tfbig train --background skip`, and the same for `plan`, `predict` and `evaluate`.
# - Which layers allow this, and which layers make tfbig compute the background after all:
#   [guide](../guides/streaming.md#background-at-no-cost).
