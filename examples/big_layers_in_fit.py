"""How do Big layers go into an ordinary Keras model and `fit`?

    python examples/big_layers_in_fit.py

A functional model of Big layers learns to tell discs from squares, with default `compile()`. The same model of plain
Keras layers, with the same weights, then gives the same predictions. Ends by printing the largest difference.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
import numpy as np

from tfbig import layers as big

STRIP = 2**14  # most input elements of a strip: an image here is cut into several


def draw(count, side, seed):
    """Noisy gray images `[count, side, side, 1]` of a disc (label 0) or a square (label 1)."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    rows, columns = np.mgrid[:side, :side]
    images = random.normal(0, 0.3, (count, side, side, 1)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        radius = random.uniform(0.12, 0.3) * side
        down, right = (np.abs(a - random.uniform(radius, side - radius)) for a in (rows, columns))
        inside = (
            np.maximum(down, right) < radius * 0.89 if label else down**2 + right**2 < radius**2
        )
        image[inside, 0] += 1
    return images, labels


def model_of(kind):
    """The network, of Big layers or of their plain twins."""
    if kind == "big":
        limit = {"max_elements": STRIP}
        conv, norm, relu, pool = (
            big.BigConv2D,
            big.BigBatchNormalization,
            big.BigReLU,
            big.BigMaxPooling2D,
        )
        mean = big.BigGlobalAveragePooling2D
    else:
        limit = {}
        conv, norm, relu, pool = (
            keras.layers.Conv2D,
            keras.layers.BatchNormalization,
            keras.layers.ReLU,
            keras.layers.MaxPooling2D,
        )
        mean = keras.layers.GlobalAveragePooling2D
    image = x = keras.Input((None, None, 1))
    for filters in (8, 16, 32):
        x = conv(filters, 3, padding="same", **limit)(x)
        x = norm(momentum=0.9, **limit)(x)
        x = relu(**limit)(x)
        x = pool(2, **limit)(x)
    x = mean(**limit)(x)
    return keras.Model(image, keras.layers.Dense(2, activation="softmax")(x))


def main(count=320, side=64, epochs=6):
    """Trains, compares with the twin; gives accuracy on unseen images and the largest difference."""
    keras.utils.set_random_seed(0)
    model = model_of("big")
    model.compile(
        keras.optimizers.Adam(5e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(*draw(count, side, 0), batch_size=16, epochs=epochs, verbose=2)
    images, labels = draw(count // 2, side, 1)
    found = model.predict(images, verbose=0)
    twin = model_of("plain")
    twin.set_weights(model.get_weights())
    difference = float(np.abs(found - twin.predict(images, verbose=0)).max())
    accuracy = float((found.argmax(1) == labels).mean())
    print(f"accuracy on unseen images {accuracy:.3f}")
    print(f"largest difference to plain Keras {difference:.1e}")
    return accuracy, difference


if __name__ == "__main__":
    main()
