"""Train a U-Net to tell instances apart, and judge it by the average precision of held-out images."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from PIL import Image
from skimage import segmentation

from tfbig import sources
from tfbig.cli.data import instance_images, masked_images
from tfbig.cli.data.instance_images import InstanceImage
from tfbig.cli.data.run_data import Data
from tfbig.cli.settings.instance_settings import InstanceSettings
from tfbig.cli.settings.value_types import crop_size
from tfbig.cli.tasks.dense_task import DenseTask, Judged
from tfbig.cli.tasks.task import Curve, Models
from tfbig.metrics import Matches, match_instances
from tfbig.models.unet import unet
from tfbig.results import slide_viewer
from tfbig.results.instances import Thresholds, label_strips
from tfbig.sources.writing import atomic_write
from tfbig.system.output_folder import file_in
from tfbig.training import Epochs

OVERLAPS = (0.5, 0.6, 0.7, 0.8, 0.9)
CLASSES = ("background", "instance")
COMPARED = ("background", "correct", "false", "missed")
BORDERS = ("background", "labels", "prediction")
TRUE, FOUND = (0, 158, 115), (213, 94, 0)
"""Colours of the borders of true and of predicted instances."""


class InstancesTask(DenseTask[InstanceSettings]):
    """Training and evaluation with `--task instances`."""

    measured = ("loss", "val_loss", "seconds_per_step")

    def opened(self, settings: InstanceSettings) -> Data:
        """Open the images, and print what they are."""
        data = instance_images.load(settings)
        print(f"mode {settings.mode}, precision {settings.precision}, seed {settings.seed}")
        masked_images.print_counts(data)
        return data

    def classes(self, settings: InstanceSettings, data: Data) -> Sequence[str]:
        """The names of the classes."""
        return CLASSES

    def network(self, settings: InstanceSettings, data: Data) -> keras.Model:
        """Build a U-Net from images to maps."""
        channels = data.train.items[0].image.shape[2]
        mean, std = [0.0] * channels, [255.0] * channels
        width, depth = settings.filters, settings.depth
        return unet(mean, std, instance_images.MAPS, "sigmoid", filters=width, depth=depth)

    def loss(self, settings: InstanceSettings) -> str:
        """The name of the loss of each map."""
        return "binary_crossentropy"

    def metrics(self, settings: InstanceSettings, data: Data) -> list[keras.metrics.Metric]:
        """No metrics: instances are counted after training."""
        return []

    def crop(self, settings: InstanceSettings) -> tuple[int, int]:
        """The rows and columns of a crop."""
        return crop_size(settings.crop)

    def count(self, settings: InstanceSettings, data: Data) -> int:
        """Count the crops of an epoch."""
        return instance_images.crops(data.train, settings)

    def padded(self, settings: InstanceSettings, data: Data, item: InstanceImage) -> InstanceImage:
        """Pad a whole image so that the strides of the network divide it."""
        return replace(item, image=sources.Padded(item.image, 2**settings.depth))

    def training(self, settings: InstanceSettings, data: Data) -> Epochs:
        """Epochs of crops at random places and their maps, in memory."""
        names = [self.identity(each) for each in data.train.items]
        batches = partial(instance_images.drawn, data.train, settings)
        return Epochs(self.steps(settings, data), batches, names)

    def validation(self, settings: InstanceSettings, data: Data) -> Epochs:
        """The epochs of whole images and their maps."""
        batches = partial(instance_images.whole, data.val, 2**settings.depth)
        return Epochs(len(data.val.items), batches)

    def curve(self, settings: InstanceSettings) -> Curve:
        """Return what the learning curve shows."""
        return Curve({"loss": "binary cross-entropy"}, "validation images")

    def judge(
        self,
        models: Models,
        settings: InstanceSettings,
        data: Data,
        item: InstanceImage,
        folder: Path,
        draws: bool,
    ) -> Judged:
        """Find the instances of an image, match them with the true ones, and draw both."""
        found = predicted_instances(models, settings, item, folder)
        real = item.labels.read(0, item.labels.shape[0])[..., 0]
        matched = match_instances(real, found, OVERLAPS)
        if draws:
            number = data.judged.items.index(item)
            title = f"{item.name}: average precision {matched[0].average_precision:.3f}"
            draw(folder, f"instances_{number}", item, found, title)
        return Judged({"image": item.name, **_columns(matched)}, matched)

    def results(
        self, settings: InstanceSettings, judged: Sequence[Judged], folder: Path
    ) -> dict[str, float]:
        """The average precision over the images, and of all instances together."""
        return over_images([each.counts for each in judged])


def _columns(matches: Sequence[Matches]) -> dict[str, float]:
    """The columns of an image: counts at an overlap of 0.5, and the average precision at each."""
    correct, missed, false = matches[0]
    counts = {"instances": correct + missed, "correct": correct, "missed": missed, "false": false}
    pairs = zip(OVERLAPS, matches, strict=True)
    return counts | {f"average_precision_{each}": found.average_precision for each, found in pairs}


def over_images(matches: Sequence[Sequence[Matches]]) -> dict[str, float]:
    """Average the precision over images at each overlap, and over all instances together.

    `matches` are those at each of `OVERLAPS`, for each image.
    """
    results: dict[str, float] = {}
    for place, overlap in enumerate(OVERLAPS):
        at = [each[place] for each in matches]
        results[f"test_average_precision_{overlap}"] = float(
            np.mean([found.average_precision for found in at])
        )
    together = Matches(*np.sum([each[0] for each in matches], axis=0).tolist())
    results["test_pooled_average_precision_0.5"] = together.average_precision
    results["test_instances"] = together.correct + together.missed
    return results


def thresholds_of(threshold: float, marker_threshold: float) -> Thresholds:
    """Convert a probability of foreground and a distance, both 0 to 1, to maps in units of 1/255."""
    return Thresholds(threshold * 255, marker_threshold * 255)


def predicted_instances(
    models: Models, settings: InstanceSettings, image: InstanceImage, folder: Path
) -> npt.NDArray[np.int32]:
    """Find the instances of an image, `[H, W]`."""
    rows, columns = image.image.shape[:2]
    padded = sources.Padded(image.image, 2**settings.depth)
    if models.model is models.twin:
        outputs = models.twin.predict_on_batch(padded.read(0, padded.shape[0])[None])[0]
        maps = as_maps(outputs)
    else:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            whole = models.model.predict_to(padded, f"{scratch}/maps.npy", as_maps)
            maps = whole.read(0, whole.shape[0])
    limits = thresholds_of(settings.threshold, settings.marker_threshold)
    return next(label_strips([maps[:rows, :columns]], limits))


def as_maps(outputs: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Convert outputs of a network, 0 to 1, to units of 1/255."""
    maps: npt.NDArray[np.uint8] = np.rint(np.clip(outputs, 0, 1) * 255).astype(np.uint8)
    return maps


def draw(
    folder: Path, name: str, image: InstanceImage, found: npt.NDArray[np.int32], title: str
) -> None:
    """Draw the borders of true and predicted instances, as a picture and for the zoomable view of the report.

    `found` are the predicted instances, `[H, W]`; `name` is that of the files.
    """
    real = image.labels.read(0, image.labels.shape[0])[..., 0]
    pixels = as_picture(image.image.read(0, image.image.shape[0]))
    drawn = np.kron(pixels, np.ones((2, 2, 1), np.uint8))
    for labels, colour in ((real, TRUE), (found, FOUND)):
        drawn[borders(np.kron(labels, np.ones((2, 2), np.int32)))] = colour
    with atomic_write(file_in(folder, f"{name}.png")) as part:
        Image.fromarray(drawn).save(part)
    compared = (found > 0) * np.where(real > 0, 1, 2) + 3 * ((real > 0) & (found == 0))
    lines = np.where(borders(found), 2, borders(real))
    overlays = [
        slide_viewer.class_overlay("prediction and labels", compared, COMPARED),
        slide_viewer.class_overlay("borders", lines, BORDERS, opacity=1.0, colours=(TRUE, FOUND)),
    ]
    slide_viewer.write_view(folder, name, pixels, overlays, title=title)


def borders(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Find the borders of instances `[H, W]`, within them."""
    found: npt.NDArray[np.bool_] = segmentation.find_boundaries(  # type: ignore[no-untyped-call]
        labels, mode="inner"
    )
    return found


def as_picture(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Show an image `[H, W, C]` as RGB: three channels as they are, of others the first as gray."""
    return pixels if pixels.shape[2] == 3 else np.repeat(pixels[..., :1], 3, axis=2)
