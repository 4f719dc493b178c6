"""Train a U-Net to tell instances apart, and judge it by the average precision of held-out images."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from PIL import Image
from skimage import segmentation

import tfbig
from tfbig import sources
from tfbig.cli import failure_log, machine
from tfbig.cli.data import instance_images, masked_images
from tfbig.cli.data.instance_images import InstanceImage
from tfbig.cli.data.splits import Data
from tfbig.cli.settings.instance_settings import InstanceSettings
from tfbig.cli.tasks import fitting, run_results
from tfbig.cli.tasks.task import Curve, History, Models, Plans, Task
from tfbig.metrics import Matches, match_instances
from tfbig.models.unet import unet
from tfbig.results import run_folder, slide_viewer
from tfbig.results.instances import Thresholds, label_strips
from tfbig.sources.writing import atomic_write
from tfbig.system.output_folder import file_in
from tfbig.training import Epochs

OVERLAPS = (0.5, 0.6, 0.7, 0.8, 0.9)
PICTURES = 12
"""Largest number of test images that are drawn."""
COMPARED = ("background", "correct", "false", "missed")
BORDERS = ("background", "labels", "prediction")
TRUE, FOUND = (0, 158, 115), (213, 94, 0)
"""Colours of the borders of true and of predicted instances."""


class InstancesTask(Task[InstanceSettings, Data]):
    """Training and evaluation with `--task instances`."""

    def load(self, settings: InstanceSettings) -> Data:
        """Return the images, and print what they are."""
        data = instance_images.load(settings)
        print(f"mode {settings.mode}, precision {settings.precision}, seed {settings.seed}")
        masked_images.print_counts(data)
        return data

    def models(self, settings: InstanceSettings, data: Data) -> Models:
        """Return new models, initialised from the seed."""
        keras.config.set_dtype_policy(settings.precision)
        keras.utils.set_random_seed(settings.seed)
        channels = data.train.images[0].image.shape[2]
        mean, std = [0.0] * channels, [255.0] * channels
        width, depth = settings.filters, settings.depth
        twin = unet(mean, std, instance_images.MAPS, "sigmoid", filters=width, depth=depth)
        twin = machine.synchronize_norm(settings, twin)
        model = twin
        if not machine.is_plain(settings):
            model = tfbig.stream(twin, machine.budget(settings), devices=settings.devices)
        optimizer = fitting.make_optimizer(settings, instance_images.steps(data.train, settings))
        weights = [fitting.loss_weight(settings)]
        return fitting.compile_both(
            Models(model, twin), optimizer, "binary_crossentropy", weights, list
        )

    def plans(self, models: Models, settings: InstanceSettings, data: Data) -> Plans | None:
        """Return None: crops of training fit, and plain Keras runs them."""
        return None

    def fit(self, models: Models, settings: InstanceSettings, data: Data, folder: Path) -> History:
        """Train from the last checkpoint, and return the history of all epochs."""
        names = [f"{each.name} {each.image.shape}" for each in data.train.images]
        training = Epochs(
            instance_images.steps(data.train, settings),
            partial(_drawn, data.train, settings),
            names,
        )
        validation = Epochs(
            len(data.val.images), partial(instance_images.whole, data.val, 2**settings.depth)
        )
        return fitting.fit_and_keep(models, settings, folder, training, validation, "val_loss")

    def curve(self, settings: InstanceSettings) -> Curve:
        """Return what the learning curve shows."""
        return Curve({"loss": "binary cross-entropy"}, "validation images")

    def write_results(
        self,
        models: Models,
        settings: InstanceSettings,
        data: Data,
        folder: Path,
        measured: Mapping[str, Any],
    ) -> None:
        """Write a table, pictures of the first test images, and last the metrics."""

        def evaluated(image: InstanceImage) -> tuple[npt.NDArray[np.int32], Sequence[Matches]]:
            found = predicted_instances(models, settings, image, folder)
            real = image.labels.read(0, image.labels.shape[0])[..., 0]
            return found, match_instances(real, found, OVERLAPS)

        rows: list[dict[str, Any]] = []
        matches: list[Sequence[Matches]] = []
        for image, (found, matched) in failure_log.results_of(
            data.test.images, evaluated, folder, settings.strict
        ):
            if len(rows) < PICTURES:
                title = f"{image.name}: average precision {matched[0].average_precision:.3f}"
                draw(folder, f"instances_{len(rows)}", image, found, title)
            matches.append(matched)
            rows.append({"image": image.name, **_columns(matched)})
        run_folder.write_csv(folder / run_folder.PREDICTIONS, rows)
        results = over_images(matches)
        others = {"images": len(rows), "left_out": [list(reason) for reason in data.failed]}
        run_results.write_metrics(folder, settings, {**measured, **results, **others})
        run_results.print_results(results, folder)


def _drawn(part: Any, settings: InstanceSettings, shard: Any) -> Any:
    return instance_images.drawn(part, settings, shard)


def _columns(matches: Sequence[Matches]) -> dict[str, float]:
    """Return the columns of an image: counts at an overlap of 0.5, and the average precision at each."""
    correct, missed, false = matches[0]
    counts = {"instances": correct + missed, "correct": correct, "missed": missed, "false": false}
    pairs = zip(OVERLAPS, matches, strict=True)
    return counts | {f"average_precision_{each}": found.average_precision for each, found in pairs}


def over_images(matches: Sequence[Sequence[Matches]]) -> dict[str, float]:
    """Return the mean of the average precision over images at each overlap, and that of all instances together.

    Args:
        matches: Matches at each of `OVERLAPS`, for each image.
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
    """Return thresholds for maps in units of 1/255.

    Args:
        threshold: Probability of foreground, 0 to 1.
        marker_threshold: Distance, 0 to 1.
    """
    return Thresholds(threshold * 255, marker_threshold * 255)


def predicted_instances(
    models: Models, settings: InstanceSettings, image: InstanceImage, folder: Path
) -> npt.NDArray[np.int32]:
    """Return the instances of an image, `[H, W]`.

    Args:
        models: Models of the run.
        settings: Settings of the run.
        image: The image.
        folder: Run folder.
    """
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
    """Return outputs of a network, 0 to 1, in units of 1/255.

    Args:
        outputs: Outputs of any shape.
    """
    maps: npt.NDArray[np.uint8] = np.rint(np.clip(outputs, 0, 1) * 255).astype(np.uint8)
    return maps


def draw(
    folder: Path, name: str, image: InstanceImage, found: npt.NDArray[np.int32], title: str
) -> None:
    """Draw the borders of true and predicted instances, as a picture and for the zoomable view of the report.

    Args:
        folder: Run folder.
        name: Name of the files.
        image: The image.
        found: Its predicted instances, `[H, W]`.
        title: Title of the view.
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
    """Return where the borders of instances are, within them.

    Args:
        labels: Instances `[H, W]`.
    """
    found: npt.NDArray[np.bool_] = segmentation.find_boundaries(  # type: ignore[no-untyped-call]
        labels, mode="inner"
    )
    return found


def as_picture(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return RGB: of three channels these, of others the first as gray.

    Args:
        pixels: Image `[H, W, C]`.
    """
    return pixels if pixels.shape[2] == 3 else np.repeat(pixels[..., :1], 3, axis=2)
