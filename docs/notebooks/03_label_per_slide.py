# %% [markdown]
# # A label for a whole slide
#
# You have slides, and one label for each. Nobody outlined anything, and what matters may be anywhere. A network
# that sees the whole slide at once needs no outlines: the gradient of the one label reaches every pixel.
#
# Here are three slides of three organs. We train on the left two thirds of each, and ask for the organ of the
# right thirds. One slide for each class shows *how* it is done, not how good the network is: for that you need
# many slides.

# %%
import tfbig  # first, so that TensorFlow starts without its log lines

from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf


here = Path.cwd()
checkout = next(p for p in (here, *here.parents) if (p / "examples/data").exists())
ORGANS = {
    "esophagus_eosinophilic": "esophagus",
    "gastritis_lymphocytic": "stomach",
    "pancreas_pdac_1": "pancreas",
}
names = list(ORGANS.values())
slides = [tfbig.open_slide(checkout / f"examples/data/{file}.tif") for file in ORGANS]
images = [
    slide.at(mpp=4) for slide in slides
]  # four micrometres per pixel; read and scaled by rows

figure, all_axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
for axes, slide, name, image in zip(all_axes, slides, names, images, strict=True):
    axes.imshow(slide.thumbnail(600))
    axes.axvline(slide.thumbnail(600).shape[1] * 2 / 3, color="k", linestyle="--")
    axes.set_title(f"{name}, {image.shape[0]} x {image.shape[1]}")
    axes.axis("off")
plt.show()

# %% [markdown]
# ## Data are handles
#
# A data set of whole slides would not fit in memory. So it carries *handles*: short strings that name an image.
# The rows are read when a step needs them.

# %%
left = [image.crop(columns=(0, image.shape[1] * 2 // 3)) for image in images]
right = [image.crop(columns=(image.shape[1] * 2 // 3, image.shape[1])) for image in images]


def dataset(parts):
    """Return batches of one slide and its label."""
    handles = [part.handle for part in parts]
    return tf.data.Dataset.from_tensor_slices((handles, np.arange(3))).batch(1)


print(left[0].handle)

# %% [markdown]
# ## The model
#
# The network makes a map with three scores for each place, one for each organ. The mean of the map decides.
# Later we look at the map itself.
#
# With one slide in a batch, BatchNormalization would learn the mean colour of that slide; GroupNormalization
# does not depend on the batch, and is the safer choice here. Both need the whole image, and both are computed
# exactly.

# %%
keras.utils.set_random_seed(1)
layers = keras.layers
image = keras.Input((None, None, 3), name="image")
x = layers.Rescaling(-1 / 255, 1)(image)  # glass is 0
for filters in (16, 32, 64, 64):
    x = layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.GroupNormalization(8)(x)
    x = layers.ReLU()(x)
scores = layers.Conv2D(3, 1, name="scores")(x)
model = keras.Model(image, layers.GlobalAveragePooling2D()(scores))

big = tfbig.stream(model, tfbig.Budget(host="1GB"))
big.compile(
    keras.optimizers.Adam(3e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = big.fit(
    dataset(left), epochs=12, shuffle=False, validation_data=dataset(right), verbose=0
).history

# %%
figure, axes = plt.subplots(figsize=(6, 3.4))
axes.plot(history["loss"], "o-", label="left two thirds, trained on")
axes.plot(history["val_loss"], "s-", label="right thirds, not seen")
axes.set_xlabel("epoch")
axes.set_ylabel("cross-entropy")
axes.legend()
plt.show()
print(f"right thirds with the right organ: {history['val_accuracy'][-1]:.0%}")

assert history["val_accuracy"][-1] == 1

# %% [markdown]
# ## What did it look at?
#
# The layer `scores` has an answer for each place. A second model ends there; it shares the weights, and
# `predict_to` writes its output to a file, strip by strip, for an image of any size.

# %%
import os
import tempfile

os.chdir(tempfile.mkdtemp())  # the files go here
places = tfbig.stream(keras.Model(image, scores), tfbig.Budget(host="1GB"))
maps = [places.predict_to(whole, f"{name}.npy") for whole, name in zip(images, names, strict=True)]

figure, all_axes = plt.subplots(3, 2, figsize=(10, 11), layout="constrained")
for row, slide, name, found in zip(all_axes, slides, names, maps, strict=True):
    small = slide.thumbnail(600)
    score = found.read(0, found.shape[0])
    organ = score[..., names.index(name)] - score.mean(-1)
    row[0].imshow(small)
    row[0].set_title(name)
    row[1].imshow(small, extent=(0, 1, 1, 0), aspect="auto")
    shown = row[1].imshow(organ, cmap="RdBu_r", alpha=0.6, extent=(0, 1, 1, 0), vmin=-6, vmax=6)
    row[1].set_box_aspect(small.shape[0] / small.shape[1])
    row[1].set_title(f"where it looks like {name}")
    for axes in row:
        axes.axis("off")
figure.colorbar(shown, ax=all_axes[:, 1], shrink=0.5, label="score above the mean of the three")
plt.show()

# %% [markdown]
# ## Is it the model that you wrote?
#
# The streamed model and the plain one share their weights. So the plain one, given the pixels of a right third,
# must say the same; and the mean of the map must be what the model says of the whole.

# %%
pixels = right[0].read(0, right[0].shape[0])[None]
plain, streamed = model(pixels).numpy(), big.predict(tf.constant([right[0].handle]), verbose=0)
print("plain   ", plain[0])
print("streamed", streamed[0])
assert np.allclose(plain, streamed, atol=0.02)  # 32-bit sums of plain Keras; see notebook 1

whole = big.predict(tf.constant([images[0].handle]), verbose=0)[0]
assert np.allclose(maps[0].read(0, maps[0].shape[0]).mean((0, 1)), whole, atol=0.02)

# %% [markdown]
# ## What next
#
# - More slides than patience? [Tiles of a slide as a bag](04_mil.md) goes from a table of labels to a report on
#   the command line, with the same exact gradient.
# - Most of a slide is glass. [It need not cost anything](09_background.md).
# - `python examples/whole_slide_classifier.py` trains a ResNet-18 at full resolution, in 4 GB instead of 22.
