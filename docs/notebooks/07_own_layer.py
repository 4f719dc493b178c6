# %% [markdown]
# # A layer of your own
#
# You have a Keras model with a layer that you wrote yourself. tfbig cannot look into it: it does not know which
# rows of the image the layer needs to compute a strip. So it refuses the layer instead of guessing. This
# notebook teaches tfbig two layers, and checks each against plain Keras.

# %%
import tfbig  # first, so that TensorFlow starts without its log lines

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from skimage import data

from tfbig.geometry import Window

# %% [markdown]
# ## A local layer
#
# This layer sharpens an image: it adds the difference between the image and a blurred copy, multiplied by a
# trainable weight for each channel.


# %%
class Sharpen(keras.layers.Layer):
    """x + amount * (x - mean of 5 x 5 pixels)."""

    def build(self, shape):
        self.amount = self.add_weight(shape=(shape[-1],), initializer="ones", name="amount")

    def call(self, x):
        return x + self.amount * (x - mean_of_5x5(x, "SAME"))


def mean_of_5x5(x, padding):
    """Return the mean of 5 x 5 pixels, with zeros around the image."""
    kernel = tf.ones((5, 5, x.shape[-1], 1), x.dtype) / 25
    return tf.nn.depthwise_conv2d(x, kernel, [1, 1, 1, 1], padding)


image = keras.Input((None, None, 3), name="image")
x = Sharpen()(image)
x = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(x)
model = keras.Model(image, keras.layers.GlobalAveragePooling2D()(x))

try:
    tfbig.stream(model)
except tfbig.UnsupportedLayerError as error:
    print(str(error).partition(" Keras layers")[0])
else:
    raise AssertionError("a layer without a rule was streamed")

# %% [markdown]
# ## The rule
#
# A rule is a function that says how the layer runs on a strip. Ours needs 5 rows and 5 columns around each
# pixel, and that is what the `Window` says. tfbig then passes the strip to `run` with two more rows above and
# below. These are taken from the neighbours, or are zeros at the edge of the image, so that a *valid*
# convolution gives just the rows of the strip.


# %%
@tfbig.rule(Sharpen)
def sharpen(call):
    def run(inputs, weights, strip):
        x, amount = inputs[0], weights[0]
        inner = x[:, 2:-2, 2:-2]  # the pixels of the strip
        return inner + amount * (inner - mean_of_5x5(x, "VALID"))

    window = Window(kernel=5, padding="same")
    return call.local(run, [window, window], [call.layer.amount])


big = tfbig.stream(model, strip_rows=64)
big.plan((1, 512, 512, 3)).summary()

# %% [markdown]
# `strip_rows=64` forces eight strips, so that the seams between them are tested too. This is the output:

# %%
photo = data.astronaut()[None].astype("float32") / 255
first = keras.Model(image, model.layers[1].output)
sharpened = tfbig.stream(first, strip_rows=64)(photo)
difference = np.abs(sharpened - first(photo))

figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
for ax, picture, title in zip(
    axes,
    (photo[0], np.clip(sharpened[0], 0, 1), difference[0].max(-1)),
    (
        "the image",
        "sharpened, in eight strips",
        f"difference to plain Keras, at most {difference.max():.0e}",
    ),
    strict=True,
):
    ax.imshow(picture, cmap="magma", vmin=0, vmax=1)
    ax.set_title(title)
    ax.axis("off")
plt.show()

assert difference.max() < 1e-6

# %% [markdown]
# ## The gradient comes for free
#
# You wrote no backward pass. We compare the gradients of all weights, in 64 bits, where rounding hides nothing.


# %%
def gradients(model, x):
    """Return the gradients of the sum of squares of what a model returns."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x, training=True) ** 2)
    return tape.gradient(loss, model.trainable_variables)


def largest_difference(model, x, **settings):
    """Return the largest relative difference of streamed from plain gradients."""
    streamed = gradients(tfbig.stream(model, **settings), x)
    plain = gradients(model, x)
    pairs = zip(streamed, plain, strict=True)
    return max(float(tf.reduce_max(tf.abs(a - b)) / tf.reduce_max(tf.abs(b))) for a, b in pairs)


keras.config.set_dtype_policy("float64")
image = keras.Input((None, None, 3), name="image")
x = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(Sharpen()(image))
exact = keras.Model(image, keras.layers.GlobalAveragePooling2D()(x))
worst = largest_difference(exact, photo.astype("float64"), strip_rows=64)
print(f"largest relative difference of a gradient: {worst:.0e}")

assert worst < 1e-10

# %% [markdown]
# ## A layer that needs the whole image
#
# Other layers sum over all pixels first. Then a rule says what a strip adds to the sum, and what to do with the
# total. This layer pools a feature map by its energy, the root mean square:


# %%
class Energy(keras.layers.Layer):
    """Root of the mean square of each channel."""

    def call(self, x):
        return tf.sqrt(tf.reduce_mean(x**2, [1, 2]))


@tfbig.rule(Energy)
def energy(call):
    return call.reduce(
        lambda inputs, strip: tf.reduce_sum(inputs[0] ** 2, [1, 2]),
        lambda total, pixels, weights: tf.sqrt(total / pixels),
    )


image = keras.Input((None, None, 3), name="image")
x = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(Sharpen()(image))
exact = keras.Model(image, keras.layers.Dense(1)(Energy()(x)))
worst = largest_difference(exact, photo.astype("float64"), strip_rows=50)
print(f"largest relative difference of a gradient: {worst:.0e}")

assert worst < 1e-10
keras.config.set_dtype_policy("float32")

# %% [markdown]
# Such a check, with strips that do not divide the image evenly, is all the testing that a rule needs. What would
# a wrong rule look like? If it forgets the neighbours, the seams show:


# %%
@tfbig.rule(Sharpen)
def careless(call):
    return call.local(
        lambda inputs, weights, strip: (
            inputs[0] + weights[0] * (inputs[0] - mean_of_5x5(inputs[0], "SAME"))
        ),
        weights=[call.layer.amount],
    )


wrong = np.abs(tfbig.stream(first, strip_rows=64)(photo) - first(photo))[0].max(-1)
plt.figure(figsize=(4, 4))
plt.imshow(wrong, cmap="magma")
plt.title("a rule without a window")
plt.axis("off")
plt.show()
tfbig.rule(Sharpen)(sharpen)  # the right one again

assert wrong.max() > 0.01

# %% [markdown]
# ## What next
#
# - `help(tfbig.rule)` describes everything that a rule can do.
# - Layers that see only vectors, such as `Dense` after pooling, need no rule.
# - The [guide](../guides/streaming.md#custom-layers) lists what streams without your help.
