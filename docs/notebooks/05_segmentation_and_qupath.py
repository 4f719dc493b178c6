# %% [markdown]
# # Segmentation, from QuPath and back
#
# You have slides with outlines that somebody drew in QuPath, and want such outlines for other slides. Here the
# outlines are of tissue; the steps are the same for tumour or glands:
#
# 1. outlines of two slides become masks;
# 2. a U-Net is trained on both slides as a whole;
# 3. its answer for a third slide becomes outlines that QuPath opens, and a full-size mask.

# %%
import tfbig  # first, so that TensorFlow starts without its log lines

import json
import os
import tempfile
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
import shapely
import tensorflow as tf

from tfbig.results import geojson, outlines

here = Path.cwd()
checkout = next(p for p in (here, *here.parents) if (p / "examples/data").exists())
os.chdir(tempfile.mkdtemp())  # what is written goes here
NAMES = ["esophagus_eosinophilic", "pancreas_pdac_1", "gastritis_lymphocytic"]
slides = [tfbig.open_slide(checkout / f"examples/data/{name}.tif") for name in NAMES]

# %% [markdown]
# ## Outlines
#
# In QuPath, use *File, Export objects as GeoJSON*. The slides of this notebook have no outlines drawn by a person,
# because tfbig comes with a free licence and without patient data. So we let `find_tissue` draw the outlines, and
# save them in the format of QuPath.


# %%
def write_outlines(path, labels, slide):
    """Write outlines of the regions of a mask, in pixels of level 0."""
    found = outlines.regions(labels, step=slide.shape[1] / labels.shape[1], smallest=20)
    return geojson.write_geojson(path, geojson.region_features(found.polygons, ["", "tissue"]))


for slide, name in zip(slides, NAMES, strict=True):
    count = write_outlines(
        f"{name}.geojson", tfbig.tissue.find_tissue(slide).mask.astype("uint8"), slide
    )
    print(f"{name}.geojson: {count} outlines")


def draw(axes, slide, path, colour):
    """Draw the outlines of a file over a slide."""
    small = slide.thumbnail(1000)
    axes.imshow(small, extent=(0, slide.shape[1], slide.shape[0], 0))
    for feature in json.loads(Path(path).read_text())["features"]:
        polygon = shapely.from_geojson(json.dumps(feature["geometry"]))
        for ring in (polygon.exterior, *polygon.interiors):
            axes.plot(*ring.xy, color=colour, linewidth=1)
    axes.axis("off")


figure, all_axes = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
for axes, slide, name in zip(all_axes, slides, NAMES, strict=False):
    draw(axes, slide, f"{name}.geojson", "C2")
    axes.set_title(name)
plt.show()

# %% [markdown]
# ## Images and masks of the same size
#
# The images are read at 16 micrometres per pixel here, so that the notebook is quick; the code is the same at
# full resolution. `read_tissue` reads outlines. The U-Net below halves the image twice, so sizes are cut to
# multiples of four.


# %%
def image_of(slide):
    """Return a slide at 16 micrometres per pixel, as a source."""
    image = slide.at(mpp=16)
    return image.crop((0, image.shape[0] // 4 * 4), (0, image.shape[1] // 4 * 4))


def mask_of(slide, path):
    """Return the mask of outlines, as large as the image."""
    rows, columns, _ = image_of(slide).shape
    mask = tfbig.tissue.read_tissue(path, slide).mask
    places = np.arange(rows) * mask.shape[0] // rows, np.arange(columns) * mask.shape[1] // columns
    return tfbig.open(mask[np.ix_(*places)].astype("uint8")[..., None])


images = [image_of(slide) for slide in slides]
masks = [mask_of(slide, f"{name}.geojson") for slide, name in zip(slides, NAMES, strict=True)]
for image, mask in zip(images, masks, strict=True):
    print(image.shape, mask.shape)

# %% [markdown]
# ## Train a U-Net on whole slides
#
# Loss and metric are computed strip by strip as well, so the probabilities of a whole slide are never in memory
# at once.

# %%
keras.utils.set_random_seed(0)
layers = keras.layers


def block(x, filters):
    """Return two convolutions with GroupNormalization."""
    for _ in range(2):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.GroupNormalization(4)(x))
    return x


def build():
    """Return a U-Net for images of any size that is a multiple of four."""
    image = keras.Input((None, None, 3), name="image")
    first = block(layers.Rescaling(-1 / 255, 1)(image), 8)
    second = block(layers.MaxPooling2D()(first), 16)
    x = block(layers.MaxPooling2D()(second), 32)
    x = block(layers.Concatenate()([layers.Conv2DTranspose(16, 2, 2)(x), second]), 16)
    x = block(layers.Concatenate()([layers.Conv2DTranspose(8, 2, 2)(x), first]), 8)
    return keras.Model(image, layers.Conv2D(1, 1, activation="sigmoid")(x))


model = build()
big = tfbig.stream(model, tfbig.Budget(host="300MB"), plain_if_small=False)
big.compile(keras.optimizers.Adam(5e-3), "binary_crossentropy", metrics=[tfbig.metrics.Dice()])


def dataset(which):
    """Return handles of images and of masks."""
    handles = [image.handle for image in images[which]], [mask.handle for mask in masks[which]]
    return tf.data.Dataset.from_tensor_slices(handles).batch(1)


trained, unseen = slice(0, 2), slice(2, 3)
history = big.fit(
    dataset(trained), epochs=12, shuffle=False, validation_data=dataset(unseen), verbose=0
).history

figure, axes = plt.subplots(figsize=(6, 3.4))
axes.plot(history["dice"], "o-", label="two slides, trained on")
axes.plot(history["val_dice"], "s-", label="third slide, not seen")
axes.set_xlabel("epoch")
axes.set_ylabel("Dice")
axes.legend()
plt.show()

# %% [markdown]
# ## Outlines of the third slide
#
# `predict_to` writes the prediction to a file, strip by strip. From this file we make outlines for QuPath, and a
# mask as an OME-TIFF file that states its pixel size.

# %%
unseen_slide, unseen_image, truth = slides[2], images[2], masks[2]
probability = big.predict_to(unseen_image, "probability.npy")
found = probability.read(0, probability.shape[0])[..., 0] > 0.5

print(
    write_outlines("found.geojson", found.astype("uint8"), unseen_slide),
    "outlines in found.geojson",
)
labels = tfbig.open(found.astype("uint8")[..., None])
labels.mpp = unseen_image.mpp
tfbig.sources.write_ome_tiff("found.ome.tif", labels, labels=True)
print(tfbig.open_slide("found.ome.tif"))

figure, all_axes = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
draw(all_axes[0], unseen_slide, f"{NAMES[2]}.geojson", "C2")
all_axes[0].set_title("outlines of the rule")
draw(all_axes[1], unseen_slide, "found.geojson", "C3")
all_axes[1].set_title("outlines of the network, which never saw this slide")
plt.show()

# %% [markdown]
# Drag `found.geojson` onto the slide in QuPath to see it there.
#
# ## Check
#
# We check three things: the network finds the tissue, the outlines agree with the mask from which they were made,
# and streaming gives the same result as plain Keras.


# %%
def dice(a, b):
    """Return twice the common area divided by the sum of both areas."""
    return 2 * (a & b).sum() / (a.sum() + b.sum())


score = dice(found, truth.read(0, truth.shape[0])[..., 0] > 0)
back = mask_of(unseen_slide, "found.geojson")
same = dice(found, back.read(0, back.shape[0])[..., 0] > 0)
print(f"Dice of the third slide {score:.3f}; of outlines and mask {same:.3f}")

assert score > 0.9
assert same > 0.97

# %% [markdown]
# The third check uses 64 bits, because plain Keras has the larger rounding error in 32 bits ([notebook
# 1](01_image_that_does_not_fit.md)).

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
exact = build()
exact.set_weights(model.get_weights())
piece = unseen_image.read_window((128, 384), (128, 384))[None].astype("float64")
plain = exact.predict(piece, verbose=0)
streamed = tfbig.stream(exact, strip_rows=48).predict(piece, verbose=0)
keras.config.set_floatx("float32")
keras.config.set_dtype_policy("float32")
print(f"largest difference to plain Keras {np.abs(plain - streamed).max():.0e}")

assert np.abs(plain - streamed).max() < 1e-10

# %% [markdown]
# ## What next
#
# - The same on the command line: `tfbig train --data FOLDER` with `masks/NAME.png`, then `tfbig predict RUN
#   SLIDES`, which writes OME-TIFF, GeoJSON and a report ([guide](../guides/slides.md#masks-of-slides)).
# - `python examples/gigapixel_segmentation.py` trains a gigapixel U-Net with as few parameters as the published one.
# - Volumes work in the same way: [a volume](10_volume.md).
