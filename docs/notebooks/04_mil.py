# %% [markdown]
# # From a table of labels to a report
#
# You have slides and a table with one label for each. This notebook uses the command line: cut tiles from the
# tissue, train an encoder and an attention pool on all tiles of a slide together, predict, and read a report.
# At the end we check in Python that training in small slices is the same as training on the whole bag.
#
# This is called **multiple instance learning**: a slide is a *bag* of tiles with one label.

# %%
import tfbig  # first, so that TensorFlow starts without its log lines

import csv
import os
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from IPython.display import Image


here = Path.cwd()
checkout = next(p for p in (here, *here.parents) if (p / "examples/data").exists())
os.chdir(tempfile.mkdtemp())  # what is written goes here
SLIDES = checkout / "examples/data"
ORGANS = {
    "esophagus_eosinophilic": "esophagus",
    "gastritis_lymphocytic": "stomach",
    "pancreas_pdac_1": "pancreas",
}

# %% [markdown]
# ## Slides and a table
#
# Three slides are too few to learn from, so we cut each into parts and write these as separate slides: OME-TIFF
# files that record the size of their pixels. Your own slides do not need this step. The table is the only thing
# that you write yourself.

# %%
os.mkdir("parts")
rows = []
for name, organ in ORGANS.items():
    slide = tfbig.open_slide(SLIDES / f"{name}.tif")
    tissue = tfbig.tissue.find_tissue(slide)
    side = 512
    corners = [
        (top, left)
        for top in range(0, slide.shape[0] - side + 1, side)
        for left in range(0, slide.shape[1] - side + 1, side)
        if tissue.shares([[left, top]], side)[0] > 0.3
    ]
    for number, (top, left) in enumerate(corners[:12]):
        part = slide.level().crop((top, top + side), (left, left + side))
        part.mpp = slide.mpp
        tfbig.sources.write_ome_tiff(f"parts/{organ}_{number:02}.ome.tif", part)
        rows.append(
            {"case_id": f"{organ}_{number:02}", "slide_id": f"{organ}_{number:02}", "label": organ}
        )

with open("parts/slides.csv", "w", newline="") as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows(rows)
print(*Path("parts/slides.csv").read_text().splitlines()[:4], sep="\n")
print(f"... {len(rows)} slides")

# %% [markdown]
# ## Tiles
#
# `tfbig tile` finds tissue and writes the coordinates of tiles to HDF5 files, in the format of CLAM and TRIDENT.
# Here the tiles have 64 x 64 pixels at 2.1 micrometres per pixel; for full slides, 256 x 256 pixels at 0.5 are
# usual.

# %%
# !tfbig tile parts --out tiles --mpp 2.1 --tile 64 --min-tissue 0.5

# %%
Image(next(Path("tiles").glob("**/pancreas_03*.png")), width=420)

# %% [markdown]
# ## Train

# %%
TASK = "--task mil --data parts/slides.csv --coords tiles --epochs 8 --instances-at-once 32"
# !tfbig train {TASK} --out run

# %%
Image("run/learning_curve.png", width=700)

# %% [markdown]
# ## Predict
#
# Now we predict the three whole slides. The resolution and the way in which tiles are found are saved with the run.

# %%
whole = " ".join(str(SLIDES / f"{name}.tif") for name in ORGANS)
# !tfbig predict run {whole} --out found

# %%
with open("found/predictions.csv", newline="") as file:
    for row in csv.DictReader(file):
        print(row["slide"], "->", row["predicted"])
        assert row["predicted"] == ORGANS[row["slide"].removesuffix(".tif")]

# %%
Image("found/esophagus_eosinophilic.png", width=900)

# %% [markdown]
# ## The report
#
# `found/report.html` is a single file with all of this, and with slides that you can zoom into, with the attention
# laid over them. Open it in a browser, or send it to a colleague. `tfbig train` wrote a report of the training too.

# %%
for path in sorted(Path().glob("*/report.html")):
    print(path, f"{path.stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# ## Slices and whole bags are the same
#
# The encoder above saw 32 tiles at once, never a whole bag. Is the gradient still that of the whole bag? We
# compare one step with the plain Keras model with the same weights, in 64 bits.

# %%
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.utils.set_random_seed(0)
layers = keras.layers
tile = keras.Input((32, 32, 3), name="tile")
x = layers.Conv2D(8, 3, strides=2, use_bias=False)(tile)
x = layers.ReLU()(layers.BatchNormalization()(x))  # with statistics of the whole bag
encoder = keras.Model(tile, layers.GlobalAveragePooling2D()(x))
model = tfbig.mil.MIL(encoder, tfbig.mil.ABMIL(classes=3), instances_at_once=7)

bag, label = (
    tf.random.stateless_uniform((1, 40, 32, 32, 3), (1, 1), dtype=tf.float64),
    tf.constant([2]),
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def gradients(model):
    """Return the gradients of the loss of a bag."""
    with tf.GradientTape() as tape:
        value = loss(label, model(bag, training=True))
    return tape.gradient(value, model.trainable_variables)


sliced, whole_bag = (
    np.concatenate([np.ravel(g) for g in gradients(each)]) for each in (model, model.twin)
)
worst = np.abs(sliced - whole_bag).max() / np.abs(whole_bag).max()
print(f"40 tiles, 7 at once: gradients differ by {worst:.0e}, relative to the largest")
keras.config.set_floatx("float32")
keras.config.set_dtype_policy("float32")

assert worst < 1e-10

# %% [markdown]
# ## What next
#
# - A pathology encoder with published weights, and features that are computed once:
#   [guide](../guides/mil.md#features-of-an-encoder).
# - CLAM, TransMIL, DSMIL and others: `--model clam_sb`. Cross-validation: `--folds 5`, and `tfbig compare` of
#   two runs.
# - Runs can be killed and resumed: [several workers](08_workers_and_resuming.md).
