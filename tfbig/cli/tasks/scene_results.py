"""Results of `--task scenes`: predictions of whole scenes as COG, how they agree with the labels, and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbig.cli import scene_blocks
from tfbig.cli.data.scenes import LabelledScene
from tfbig.cli.identity import of_model
from tfbig.cli.scene_blocks import SceneOutputs
from tfbig.cli.settings.scene_settings import SceneSettings
from tfbig.cli.tasks.task import Models
from tfbig.metrics.confusion import Confusion
from tfbig.results import run_folder, scene_pictures, slide_viewer
from tfbig.sources.scenes.raster import RasterSource
from tfbig.system.output_folder import file_in

CLASSES = "classes.csv"
STRIP = 512


def class_metrics(seen: Confusion) -> dict[str, float]:
    """The accuracy, and the means of IoU and F1 over the classes that occur in labels or predictions."""
    accuracy, each = seen.accuracy(), class_rows(seen)
    if accuracy is None:
        return {}
    means = {f"m{key}": float(np.mean([row[key] for row in each])) for key in ("iou", "f1")}
    return {"accuracy": accuracy, **means}


def class_rows(seen: Confusion) -> list[dict[str, float]]:
    """Rows of IoU, F1, precision and sensitivity of each class that occurs in labels or predictions."""
    rows = []
    for number in np.flatnonzero(seen.labelled + seen.predicted).tolist():
        found = {name: share or 0.0 for name, share in seen.of_class(number).items()}
        rows.append(
            {
                "class": number,
                "pixels": float(seen.labelled[number]),
                "iou": found["iou"],
                "f1": found["dice"],
                "precision": found["precision"],
                "sensitivity": found["sensitivity"],
            }
        )
    return rows


@dataclass
class ValueSums:
    """Sums over pixels whose values are known, from which RMSE, MAE and R2 follow."""

    count: int = 0
    squares: float = 0.0
    absolute: float = 0.0
    mean: float = 0.0
    spread: float = 0.0

    def add(self, labels: npt.NDArray[Any], predictions: npt.NDArray[Any]) -> None:
        """Add pixels `[n]`, in float64; the spread around the mean is merged as by Chan, Golub and LeVeque (1983)."""
        if not len(labels):
            return
        truth = labels.astype(np.float64)
        error = predictions.astype(np.float64) - truth
        mean = float(truth.mean())
        spread = float(((truth - mean) ** 2).sum())
        self._merge(len(truth), float((error**2).sum()), float(np.abs(error).sum()), mean, spread)

    def merge(self, other: ValueSums) -> None:
        """Add the sums of another scene."""
        self._merge(other.count, other.squares, other.absolute, other.mean, other.spread)

    def _merge(
        self, count: int, squares: float, absolute: float, mean: float, spread: float
    ) -> None:
        total = self.count + count
        if not total:
            return
        difference = mean - self.mean
        self.spread += spread + difference**2 * self.count * count / total
        self.mean += difference * count / total
        self.count, self.squares = total, self.squares + squares
        self.absolute += absolute

    def metrics(self) -> dict[str, float]:
        """Compute RMSE, MAE and R2; empty without pixels, and no R2 of one value."""
        if not self.count:
            return {}
        found = {
            "rmse": (self.squares / self.count) ** 0.5,
            "mae": self.absolute / self.count,
        }
        return found | ({"r2": 1 - self.squares / self.spread} if self.spread else {})


def outputs_of(settings: SceneSettings) -> SceneOutputs:
    """The values that the network gives for a pixel, by settings with what the data decided."""
    names = settings.class_names or ()
    return SceneOutputs(names, len(names)) if settings.target == "class" else SceneOutputs((), 1)


def evaluate(
    models: Models, settings: SceneSettings, scene: LabelledScene, folder: Path
) -> Confusion | ValueSums:
    """Predict a scene, draw it, and return how it agrees with its labels; one of the models is streamed."""
    path, outputs = file_in(folder, f"{scene.name}.tif"), outputs_of(settings)
    identity, skips = {"model": of_model(models.twin)}, settings.background == "skip"
    scene_blocks.predict(models.model, scene.filled, path, outputs, identity, skips)
    counts = _compared(scene, RasterSource(path), outputs)
    draw(folder, scene, RasterSource(path), outputs, metrics_of(counts))
    return counts


def together(
    settings: SceneSettings, scenes: Sequence[Confusion | ValueSums], folder: Path
) -> dict[str, float]:
    """Compute the metrics of all scenes, and write those of each class."""
    every = _nothing(outputs_of(settings))
    for each in scenes:
        every.merge(each)  # type: ignore[arg-type]
    if isinstance(every, Confusion):
        names = settings.class_names or ()
        table = [row | {"class": names[int(row["class"])]} for row in class_rows(every)]
        run_folder.write_csv(folder / CLASSES, table)
    return {f"test_{key}": value for key, value in metrics_of(every).items()}


def draw(
    folder: Path,
    scene: LabelledScene,
    prediction: RasterSource,
    outputs: SceneOutputs,
    found: Mapping[str, float],
) -> None:
    """Draw a scene with its labels and prediction, as a picture and for the view of the report.

    The title has the metrics of the scene, `found`.
    """
    picture = scene_pictures.preview(scene.filled.scene)
    pixels, known = prediction.reduced(scene_pictures.SIDE)
    rows, columns = (
        ((np.arange(n) + 0.5) * m / n).astype(int)
        for n, m in zip(known.shape, scene.filled.scene.shape, strict=False)
    )
    labels, weights = _sampled(scene, rows, columns)
    both = (("labels", labels, weights > 0), ("prediction", pixels[..., 0], known))
    if outputs.classes:
        layers = [scene_pictures.class_layer(n, k, outputs.classes, name) for name, n, k in both]
    else:
        limits = scene_pictures.limits_of(labels, weights > 0)
        layers = [scene_pictures.value_layer(n, k, limits, name) for name, n, k in both]
    numbers = ", ".join(f"{key} {value:.4g}" for key, value in found.items())
    title = f"{scene.name}: {numbers or 'no labels'}"
    scene_pictures.draw(file_in(folder, f"{scene.name}.png"), picture, layers, title)
    slide_viewer.write_view(folder, scene.name, picture, layers[::-1], title=title)


def _sampled(
    scene: LabelledScene, rows: npt.NDArray[Any], columns: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read labels and weights of some rows and columns."""
    width = scene.filled.scene.shape[1]
    lines = [
        [each.read_window((r, r + 1), (0, width))[0, columns, 0] for r in rows.tolist()]
        for each in (scene.labels, scene.weights)
    ]
    return np.array(lines[0]), np.array(lines[1])


def _nothing(outputs: SceneOutputs) -> Confusion | ValueSums:
    return Confusion.empty(len(outputs.classes)) if outputs.classes else ValueSums()


def metrics_of(sums: Confusion | ValueSums) -> dict[str, float]:
    """The metrics of a scene or of all, by name, from what was counted or summed over pixels."""
    return class_metrics(sums) if isinstance(sums, Confusion) else sums.metrics()


def _compared(
    scene: LabelledScene, prediction: RasterSource, outputs: SceneOutputs
) -> Confusion | ValueSums:
    """Count or sum over a scene, where its labels are known."""
    sums = _nothing(outputs)
    for labels, predictions in _strips(scene, prediction):
        sums.add(labels, predictions)
    return sums


def _strips(
    scene: LabelledScene, prediction: RasterSource
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield labels and predictions `[n]` where labels are known, strip by strip."""
    rows, columns = prediction.shape[:2]
    for top in range(0, rows, STRIP):
        window = (top, min(top + STRIP, rows)), (0, columns)
        known = scene.weights.read_window(*window)[..., 0] > 0
        if known.any():
            labels = scene.labels.read_window(*window)[..., 0][known]
            yield labels, prediction.read_window(*window)[..., 0][known]
