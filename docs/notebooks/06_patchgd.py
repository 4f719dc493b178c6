# %% [markdown]
# # PatchGD: cheap and approximate. When?
#
# Streaming gives the exact gradient, and a step takes as long as it takes to compute all pixels. Patch gradient
# descent makes a different trade-off: it encodes all patches of an image once *without* a gradient, then trains
# on some of them, as if the others did not change. A step is cheaper, but its gradient is not exact. This
# notebook shows how far off the gradient is, what the method saves, and when it pays.
#
# The images are mosaics of 64 small drawings, in the colours of a stained section. The question is whether there
# is a ring anywhere.

# %%
import tfbig  # first, so that TensorFlow starts without its log lines

import time

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from tfbig.mil import generate


def mosaics(count, seed):
    """Return images `[count, 256, 256, 3]`, every second one with six rings, and their labels."""
    pool, classes = generate.shapes(1200, seed=seed)
    tiles, random = pool.read(0, 1200), np.random.default_rng(seed)
    ring = generate.SHAPES.index("ring")
    rings, others = np.flatnonzero(classes == ring), np.flatnonzero(classes != ring)
    images, labels = [], np.arange(count) % 2
    for label in labels:
        chosen = random.choice(others, 64)
        chosen[: 6 * label] = random.choice(rings, 6 * label)
        grid = tiles[random.permutation(chosen)].reshape(8, 8, 32, 32, 3)
        images.append(grid.swapaxes(1, 2).reshape(256, 256, 3))
    return np.array(images), labels


images, labels = mosaics(64, seed=0)
unseen, answers = mosaics(48, seed=1)
figure, all_axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
for axes, image, title in zip(all_axes, images, ("no ring", "six rings"), strict=False):
    axes.imshow(image)
    axes.set_title(title)
    axes.axis("off")
plt.show()

# %% [markdown]
# ## One model, three ways to train it
#
# An encoder turns each patch into a code, and a head looks at the grid of all codes. `sampling` is the share of
# the patches that get a gradient in a step. With all of them, PatchGD *is* plain training. Let us check that
# first, with one step of each from the same weights.

# %%
PATCH = 32


def build(sampling, optimizer):
    """Return a PatchGD model that trains on a share of the patches in each step."""
    keras.utils.set_random_seed(0)
    patch = keras.Input((PATCH, PATCH, 3), name="patch")
    x = keras.layers.Rescaling(1 / 127.5, -1)(patch)
    for filters in (16, 32, 64):
        x = keras.layers.Conv2D(filters, 3, 2, padding="same", activation="relu")(x)
    encoder = keras.Model(patch, keras.layers.GlobalMaxPooling2D()(x))
    head = tfbig.patchgd.BagHead(tfbig.mil.ABMIL(classes=2, hidden=32))
    model = tfbig.PatchGD(encoder, head, PATCH, sampling=sampling, inner_steps=1, seed=0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def change(model, x, y):
    """Return by how much one step changes the weights of the encoder, as one vector."""
    before = [w.numpy() for w in model.encoder.trainable_variables]
    model.train_on_batch(x, y)
    after = model.encoder.trainable_variables
    return np.concatenate([np.ravel(b - a) for b, a in zip(before, after, strict=True)])


x, y = images[:4].astype("float32"), labels[:4]
all_patches = build(1.0, keras.optimizers.SGD(1.0))
plain = tfbig.patchgd.patch_model(all_patches.encoder, all_patches.head, PATCH)
start = all_patches.get_weights()
exact = change(all_patches, x, y)

all_patches.set_weights(start)
with tf.GradientTape() as tape:
    loss = all_patches.loss(y, plain(x, training=True))
gradient = tape.gradient(loss, all_patches.encoder.trainable_variables)
gradient = np.concatenate([np.ravel(g) for g in gradient])
print(
    f"all patches: differs from plain Keras by {np.abs(exact - gradient).max() / np.abs(gradient).max():.0e}"
)

assert np.allclose(exact, gradient, atol=1e-4 * np.abs(gradient).max())

# %% [markdown]
# ## How far off is a share?
#
# The gradient from a share of the patches points in another direction than the exact one. The cosine of the
# angle between them tells how far off it is: 1 is the same direction, and 0 is a right angle. We also measure
# what a step costs.

# %%
shares = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0]
cosines, seconds = [], []
for share in shares:
    model, found = build(share, keras.optimizers.SGD(1.0)), []
    first = [w.numpy() for w in model.trainable_variables]
    for _ in range(6):  # each step draws other patches
        for variable, value in zip(model.trainable_variables, first, strict=True):
            variable.assign(value)
        step = change(model, x, y)
        found.append(step @ exact / np.linalg.norm(step) / np.linalg.norm(exact))
    cosines.append(found)
    began = time.perf_counter()
    for _ in range(5):
        model.train_on_batch(x, y)
    seconds.append((time.perf_counter() - began) / 5)

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
left.plot(shares, [np.mean(c) for c in cosines], "o-")
left.plot(shares, cosines, "k.", alpha=0.4)
left.set_ylabel("cosine with the exact gradient")
left.set_ylim(0, 1.05)
right.plot(shares, 1000 * np.array(seconds), "o-")
right.set_ylabel("milliseconds of a step")
right.set_ylim(0)
for axes in (left, right):
    axes.set_xlabel("share of the patches with a gradient")
plt.show()

assert np.allclose(cosines[-1], 1, atol=1e-4)
assert np.mean(cosines[0]) < np.mean(cosines[3])

# %% [markdown]
# A step with a small share costs about a third of a full step, and not less, because all patches still have to
# be encoded once. Memory keeps falling with the share, which is the purpose of the method.
#
# ## Does it learn as well?
#
# We train for the same number of steps with three shares.

# %%
curves = {}
for share in (1.0, 0.25, 1 / 16):
    model = build(share, keras.optimizers.Adam(2e-3))
    began, points = time.perf_counter(), []
    for _ in range(14):
        model.fit(images, labels, batch_size=8, epochs=1, verbose=0)
        points.append(
            (
                time.perf_counter() - began,
                model.evaluate(unseen, answers, batch_size=8, verbose=0)[1],
            )
        )
    curves[share] = points

figure, axes = plt.subplots(figsize=(7, 3.6))
for share, points in curves.items():
    axes.plot(*zip(*points, strict=True), "o-", label=f"{share:.0%} of the patches")
axes.axhline(0.5, color="k", linestyle=":", label="guessing")
axes.set_xlabel("seconds")
axes.set_ylabel("accuracy on unseen images")
axes.legend()
plt.show()

assert curves[1.0][-1][1] > 0.8

# %% [markdown]
# ## When, then?
#
# | | streaming | PatchGD |
# |---|---|---|
# | gradient | exact | approximate |
# | memory | within a budget, host memory or disk helps out | that of a few patches |
# | what a network may see | everything, across patches | one patch at a time, then the grid of codes |
# | take it if | you can afford the step | a step must be cheap, or the paper that you follow uses it |
#
# Start with streaming: if a network does not learn, an inexact gradient cannot be the reason.
#
# ## What next
#
# - Masks, series, hierarchies, `encoder_scale="unbiased"`: [guide](../guides/patchgd.md).
# - [The exact way](01_image_that_does_not_fit.md), and [how to plan it](02_plan_and_budget.md).
