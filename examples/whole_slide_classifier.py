"""Train a ResNet-18 on one label per whole slide, end to end, inside 4 GB.

    python examples/whole_slide_classifier.py

The plain model would take about 22 GB for the largest of the three slides, from its bytes per pixel at 4096 x 4096.
"""

"""## Setup"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import keras
import tensorflow as tf

import tfbig
from tfbig.models.resnet import resnet18

LABELS = {"esophagus_eosinophilic": 0.0, "gastritis_lymphocytic": 0.0, "pancreas_pdac_1": 1.0}
"""Label of each slide: 1 if it shows a carcinoma."""

"""## Train on whole slides"""


def main(epochs: int = 3, host: str = "4GB", side: int | None = None) -> list[float]:
    """Train, on a corner of `side` rows and columns if it is given; return the losses of the epochs."""
    keras.utils.set_random_seed(0)
    slides = [tfbig.open(ROOT / "examples" / "data" / f"{name}.tif") for name in LABELS]
    slides = [slide.crop((0, side), (0, side)) for slide in slides] if side else slides
    labels = [[label] for label in LABELS.values()]

    image = keras.Input((None, None, 3))
    x = resnet18(include_top=False, pooling="avg")(keras.layers.Rescaling(1 / 255)(image))
    model = keras.Model(image, keras.layers.Dense(1, activation="sigmoid")(x))

    big = tfbig.stream(model, tfbig.Budget(host=host))
    big.compile("adam", "binary_crossentropy")
    big.plan((1, *slides[0].shape)).summary()
    handles = [slide.handle for slide in slides]  # strings; no image is ever held whole
    dataset = tf.data.Dataset.from_tensor_slices((handles, labels)).batch(1)
    return big.fit(dataset, epochs=epochs, shuffle=False, verbose=2).history["loss"]


if __name__ == "__main__":
    main()
