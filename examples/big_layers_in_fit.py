"""Use Big layers in an ordinary Keras model and train it with `fit`.

    python examples/big_layers_in_fit.py

A functional model of Big layers learns to tell discs from squares, with default `compile()`. The same model of plain
Keras layers, with the same weights, then gives the same predictions. The script ends by printing the largest
difference.
"""

"""## Setup"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
import numpy as np

from tfbig import layers as big

# Largest number of input elements in a strip. Layers cut an image of 64 x 64 into several strips.
STRIP = 2**14

"""
## Draw the images

Each image is gray and noisy and shows one disc or one square.
"""


def draw(count: int, side: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy gray images `[count, side, side, 1]` of a disc (label 0) or a square (label 1)."""
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


"""
## Build the model

Big layers have the arguments of their Keras twins, and `max_elements`, the size of a strip.
"""

BIG = (
    big.BigConv2D,
    big.BigBatchNormalization,
    big.BigReLU,
    big.BigMaxPooling2D,
    big.BigGlobalAveragePooling2D,
)
PLAIN = (
    keras.layers.Conv2D,
    keras.layers.BatchNormalization,
    keras.layers.ReLU,
    keras.layers.MaxPooling2D,
    keras.layers.GlobalAveragePooling2D,
)


def build_model(kind: str, filters: Sequence[int] = (8, 16, 32)) -> keras.Model:
    """Build the network `[N, H, W, 1]` to `[N, 2]` from Big layers, or from their plain Keras twins."""
    conv, norm, relu, pool, mean = BIG if kind == "big" else PLAIN
    limit = {"max_elements": STRIP} if kind == "big" else {}
    image = x = keras.Input((None, None, 1))
    for width in filters:
        x = conv(width, 3, padding="same", **limit)(x)
        x = norm(momentum=0.9, **limit)(x)
        x = relu(**limit)(x)
        x = pool(2, **limit)(x)
    x = mean(**limit)(x)
    return keras.Model(image, keras.layers.Dense(2, activation="softmax")(x))


"""
## Train, and compare with plain Keras
"""


def main(
    count: int = 320, side: int = 64, epochs: int = 6, filters: Sequence[int] = (8, 16, 32)
) -> tuple[float, float]:
    """Train the model; return its accuracy on unseen images and the largest difference to plain Keras."""
    keras.utils.set_random_seed(0)
    model = build_model("big", filters)
    model.compile(
        keras.optimizers.Adam(5e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(*draw(count, side, 0), batch_size=16, epochs=epochs, verbose=2)
    images, labels = draw(count // 2, side, 1)
    predictions = model.predict(images, verbose=0)
    twin = build_model("plain", filters)
    twin.set_weights(model.get_weights())
    difference = float(np.abs(predictions - twin.predict(images, verbose=0)).max())
    accuracy = float((predictions.argmax(1) == labels).mean())
    print(f"accuracy on unseen images {accuracy:.3f}")
    print(f"largest difference to plain Keras {difference:.1e}")
    return accuracy, difference


if __name__ == "__main__":
    main()
