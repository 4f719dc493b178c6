"""Use Big layers in an ordinary Keras model, train it with `fit`, and see the same model of plain layers beside it.

    python examples/big_layers_in_fit.py [--seed 0]

Two functional models with the same weights, one of Big layers and one of plain ones, learn to tell discs from squares.
The script prints their losses side by side, the accuracy of both on unseen images, and the memory that one training
step on a larger image takes with each, and with the plain model streamed by `tfbig.stream`. Losses are compared in
float64: in float32, sums in another order round differently, and Adam enlarges the difference from step to step.
"""

"""## Setup"""

import argparse
import multiprocessing
import resource
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
import numpy as np
import tensorflow as tf

import tfbig
from tfbig import layers as big

STRIP = 2**17
"""Largest number of input elements in a strip: a batch of 32 images of 40 x 40 is cut into several."""

BATCH = 32

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


def build_model(
    kind: str, filters: Sequence[int] = (8, 16, 32), dtype: str = "float32"
) -> keras.Model:
    """Build the network `[N, H, W, 1]` to `[N, 2]` from Big layers, or from their plain Keras twins."""
    conv, norm, relu, pool, mean = BIG if kind == "big" else PLAIN
    options: dict[str, Any] = {"max_elements": STRIP} if kind == "big" else {}
    options["dtype"] = dtype
    image = x = keras.Input((None, None, 1), dtype=dtype)
    for width in filters:
        x = conv(width, 3, padding="same", **options)(x)
        x = norm(momentum=0.9, **options)(x)
        x = relu(**options)(x)
        x = pool(2, **options)(x)
    x = mean(**options)(x)
    return keras.Model(image, keras.layers.Dense(2, activation="softmax", dtype=dtype)(x))


"""
## Train both, and compare
"""

Result = tuple[list[float], float]
"""Losses of the epochs, and the accuracy on unseen images."""


def train(model: keras.Model, count: int, side: int, epochs: int) -> Result:
    """Train a model with `fit`; return its losses and its accuracy."""
    steps = epochs * -(-count // BATCH)
    rate = keras.optimizers.schedules.CosineDecay(1e-2, steps)
    model.compile(
        keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    fitted = model.fit(
        *draw(count, side, 0), batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0
    )
    images, labels = draw(count // 2, side, 1)
    predicted = model.predict(images, verbose=0).argmax(1)
    return fitted.history["loss"], float((predicted == labels).mean())


"""
## Measure the memory of a step

Big layers keep the output of every layer on the host, and give the device two strips at a time: what becomes smaller
is the memory of a GPU. Without one, host and device are the same memory, and plain Keras, which XLA compiles, keeps
fewer images. `tfbig.stream` knows the whole network: it stores fewer still, in the memory that it is given.
"""

NAMES = {"big": "Big layers", "plain": "plain Keras", "streamed": "tfbig.stream"}


def memory_of_a_step(kind: str, side: int) -> float:
    """Return the MB that a training step on one image of `side` rows and columns adds, of the GPU if there is one."""
    model = build_model(kind)
    if kind == "streamed":
        model = tfbig.stream(model, tfbig.Budget(device="16MB"))
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(*draw(1, 32, 0), verbose=0)
    batch = draw(1, side, 0)
    if tf.config.list_physical_devices("GPU"):
        tf.config.experimental.reset_memory_stats("GPU:0")
        model.fit(*batch, verbose=0)
        return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 1e6
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model.fit(*batch, verbose=0)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (after - before) * (1 if sys.platform == "darwin" else 1024) / 1e6


def in_another_process(kind: str, side: int) -> float:
    """Return `memory_of_a_step`, measured where nothing else has run."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(memory_of_a_step, kind, side).result()


"""## Run it"""


def main(
    count: int = 320,
    side: int = 40,
    epochs: int = 10,
    filters: Sequence[int] = (8, 16, 32),
    seed: int = 0,
    large: int | None = 2048,
) -> dict[str, Result]:
    """Train both models, print what they have in common, and return their results.

    Args:
        count: Number of images.
        side: Rows and columns of an image.
        epochs: Number of epochs.
        filters: Filters of the convolutions.
        seed: Seed of the weights.
        large: Rows and columns of the image of which the memory is measured; None to measure none.
    """
    keras.utils.set_random_seed(seed)
    models = {kind: build_model(kind, filters, "float64") for kind in ("big", "plain")}
    models["plain"].set_weights(models["big"].get_weights())
    results = {kind: train(model, count, side, epochs) for kind, model in models.items()}
    print("epoch   Big layers   plain Keras")
    for epoch in range(epochs):
        print(
            f"{epoch + 1:5}   {results['big'][0][epoch]:10.6f}   {results['plain'][0][epoch]:11.6f}"
        )
    print("accuracy on unseen images: " + in_words(results, lambda r: f"{r[1]:.3f}"))
    models["big"].set_weights(models["plain"].get_weights())
    images, _ = draw(count // 2, side, 1)
    predictions = [models[kind].predict(images, verbose=0) for kind in results]
    difference = float(np.abs(predictions[0] - predictions[1]).max())
    print(f"largest difference of a prediction with the same weights: {difference:.1e}")
    if large is not None:
        used = {kind: in_another_process(kind, large) for kind in NAMES}
        where = "of the GPU" if tf.config.list_physical_devices("GPU") else "of the host"
        print(
            f"memory {where} in a step on an image of {large} x {large}: "
            + in_words(used, lambda mb: f"{mb:.0f} MB")
        )
    return results


def in_words(values: dict[str, Any], form: Callable[[Any], str]) -> str:
    """Return the value of each model after its name."""
    return ", ".join(f"{NAMES[kind]} {form(value)}" for kind, value in values.items())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    main(seed=parser.parse_args().seed)
