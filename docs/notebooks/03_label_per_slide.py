# %% [markdown]
# # A label for a whole slide
#
# You have slides, and one label for each. Nobody has outlined the relevant regions, which may be anywhere. A
# network that sees the whole slide at once needs no outlines: the gradient of the one label reaches every pixel.
#
# Here are three slides of three organs. Three slides can show *how* it is done, and where the network finds its
# answer. They cannot show how good the network is on slides that it has never seen; for that you need hundreds.

# %%
import tfbig  # first, so that TensorFlow starts without its log lines

import os
import tempfile
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

here = Path.cwd()
checkout = next(p for p in (here, *here.parents) if (p / "examples/data").exists())
os.chdir(tempfile.mkdtemp())  # what is written goes here
ORGANS = {
    "esophagus_eosinophilic": "esophagus",
    "gastritis_lymphocytic": "stomach",
    "pancreas_pdac_1": "pancreas",
}
names = list(ORGANS.values())
slides = [tfbig.open_slide(checkout / f"examples/data/{file}.tif") for file in ORGANS]
images = [slide.at(mpp=8) for slide in slides]  # micrometres per pixel; scaled while it is read

figure, all_axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
for axes, slide, name, image in zip(all_axes, slides, names, images, strict=True):
    axes.imshow(slide.thumbnail(600))
    axes.set_title(f"{name}, {image.shape[0]} x {image.shape[1]}")
    axes.axis("off")
plt.show()

# %% [markdown]
# The slides are read at 8 micrometres per pixel, so that this notebook is quick; at full resolution only `mpp`
# and the time change.
#
# ## Data are handles
#
# A data set of whole slides would not fit in memory. So it contains *handles*: short strings that name an image.
# The rows are read when a step needs them.

# %%
handles = [image.handle for image in images]
labels = np.arange(3)
dataset = tf.data.Dataset.from_tensor_slices((handles, labels)).batch(1)
print(*handles, sep="\n")

# %% [markdown]
# ## The model
#
# The network computes a map of scores, with three scores at each place, one for each organ. The score of the slide
# for an organ is the highest score anywhere on the map, so one convincing place is enough, as for a tumour. Later
# we look at the map itself.

# %%
keras.utils.set_random_seed(0)
layers = keras.layers
image = keras.Input((None, None, 3), name="image")
x = layers.Rescaling(-4 / 255, 4)(image)  # glass is about 0
for filters in (16, 32, 64):
    x = layers.Conv2D(
        filters, 3, 2, padding="same", activation="relu", kernel_initializer="he_normal"
    )(x)
scores = layers.Conv2D(3, 1, name="scores")(x)
model = keras.Model(image, layers.GlobalMaxPooling2D()(scores))

big = tfbig.stream(model, tfbig.Budget(host="200MB"), plain_if_small=False)
big.compile(
    keras.optimizers.Adam(2e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
big.plan((1, *images[0].shape)).summary()

# %%
history = big.fit(dataset, epochs=15, shuffle=False, verbose=0).history
figure, axes = plt.subplots(figsize=(6, 3.2))
axes.plot(history["loss"], "o-")
axes.set_xlabel("epoch")
axes.set_ylabel("cross-entropy")
plt.show()

found = big.predict(tf.data.Dataset.from_tensor_slices(handles).batch(1), verbose=0)
for name, row in zip(names, found, strict=True):
    print(f"{name:<10} -> {names[row.argmax()]:<10} scores {np.round(row, 1)}")

assert history["loss"][-1] < 0.3

# %% [markdown]
# ## Where?
#
# The layer `scores` has the scores of each place. A second model ends at this layer and shares its weights with the
# first. `predict_to` writes the output of this model to a file, strip by strip, for an image of any size. Beside
# each map, the figure shows the place with the highest score at the full resolution of the slide.

# %%
places = tfbig.stream(keras.Model(image, scores), tfbig.Budget(host="200MB"))
maps = [places.predict_to(whole, f"{name}.npy") for whole, name in zip(images, names, strict=True)]

figure, all_axes = plt.subplots(3, 3, figsize=(12, 10), layout="constrained")
for row, slide, name, answer in zip(all_axes, slides, names, maps, strict=True):
    organ = answer.read(0, answer.shape[0])[..., names.index(name)]
    small = slide.thumbnail(600)
    down, across = np.unravel_index(organ.argmax(), organ.shape)
    step = slide.shape[0] / organ.shape[0]  # pixels of the slide for a place of the map
    top, left = (
        int(np.clip(at * step - 80, 0, extent - 200))
        for at, extent in ((down, slide.shape[0]), (across, slide.shape[1]))
    )
    row[0].imshow(small)
    row[0].set_title(name)
    row[1].imshow(organ, cmap="magma", vmin=np.percentile(organ, 1), vmax=organ.max())
    row[1].plot(across, down, "o", markersize=14, fillstyle="none", color="C2", markeredgewidth=2)
    row[1].set_title(f"score of {name}")
    row[2].imshow(slide.read((top, top + 200), (left, left + 200)))
    row[2].set_title("the most convincing place, 0.4 mm")
    for axes in row:
        axes.axis("off")
plt.show()

# %% [markdown]
# ## Is it the model that you wrote?
#
# The streamed model and the plain one share their weights. So the plain model must give the same answer for the
# pixels of a slide, and the highest score of the map must be the answer of the model for the whole slide.

# %%
pixels = images[2].read(0, images[2].shape[0])[None]
plain = model.predict(pixels, verbose=0)[0]
highest = maps[2].read(0, maps[2].shape[0]).max((0, 1))
print("plain Keras       ", plain)
print("streamed          ", found[2])
print("highest of the map", highest)

assert np.allclose(plain, found[2], rtol=1e-4, atol=1e-5)
assert np.allclose(highest, found[2], rtol=1e-4, atol=1e-5)

# %% [markdown]
# ## What next
#
# - If you have many slides, [tiles of a slide as a bag](04_mil.md) goes from a table of labels to a report on
#   the command line, with the same exact gradient.
# - Most of a slide is glass. [It need not cost anything](09_background.md).
# - `python examples/whole_slide_classifier.py` trains a ResNet-18 at full resolution, in 4 GB instead of 22.
