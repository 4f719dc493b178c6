"""Masks of volumes that a network predicts, on the grid of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbig import sources
from tfbig.cli.data.prepared_volumes import Preparation
from tfbig.errors import SourceError
from tfbig.metrics.confusion import Confusion
from tfbig.sources import Volume


def predict(
    model: Any,
    volume: Volume,
    preparation: Preparation,
    scratch: Path,
    threshold: float = 0.5,
    probability: bool = False,
) -> Volume:
    """Predict the mask of a volume, streamed into a scratch file if the model is.

    The result is classes `[D, H, W, 1]`, uint8, on the grid of the file. The file `scratch`, a `.npy` in the voxels
    of the network, must exist as long as the result. `threshold` is the probability above which a voxel is of class
    1, for networks with one output; `probability` says that this output is a probability, not a logit.

    The network reads the whole volume once; nothing is blended.
    """
    image = preparation.padded(preparation.image(volume), preparation.fill)
    limit = threshold if probability else float(np.log(threshold / (1 - threshold)))

    def classes(outputs: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        single = outputs.shape[-1] == 1
        chosen = outputs > limit if single else outputs.argmax(-1)[..., None]
        return np.asarray(chosen, np.uint8)

    if hasattr(model, "predict_to"):
        prediction = model.predict_to(image, str(scratch), classes)
    else:
        outputs = model.predict_on_batch(image.read(0, image.shape[0])[None])[0]
        np.save(scratch, classes(outputs))
        prediction = sources.open(scratch)
    if prediction.shape[:3] != image.shape[:3]:
        raise SourceError(
            f"{volume.name}: the network maps {image.shape[:3]} voxels to {prediction.shape[:3]}; expected as many. "
            "Use a network that pads."
        )
    return preparation.restored(prediction, volume)


def compared(labels: Volume, mask: Volume, classes: int) -> Confusion:
    """Count the voxels of each class, plane by plane, of two volumes `[D, H, W, 1]` of the same grid."""
    seen = Confusion.empty(classes)
    for plane in range(labels.shape[0]):
        seen.add(labels.read(plane, plane + 1), mask.read(plane, plane + 1))
    return seen
