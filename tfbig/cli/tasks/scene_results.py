"""Results of `--task scenes`: predictions of whole scenes as COG, how they agree with the labels, and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tfbig
from tfbig.cli import failure_log, machine, scene_blocks
from tfbig.cli.data.scenes import LabelledScene
from tfbig.cli.identity import of_model
from tfbig.cli.scene_blocks import Outputs
from tfbig.cli.settings.scene_settings import SceneSettings
from tfbig.cli.tasks import run_results
from tfbig.cli.tasks.task import Models
from tfbig.metrics.confusion import Confusion
from tfbig.results import run_folder, scene_pictures, slide_viewer
from tfbig.sources.scenes.raster import RasterSource
from tfbig.system.output_folder import file_in

CLASSES = "classes.csv"
STRIP = 512


def class_metrics(seen: Confusion) -> dict[str, float]:
    """Return the accuracy, and the means of IoU and F1 over the classes that occur in labels or predictions."""
    accuracy, each = seen.accuracy(), class_rows(seen)
    if accuracy is None:
        return {}
    means = {f"m{key}": float(np.mean([row[key] for row in each])) for key in ("iou", "f1")}
    return {"accuracy": accuracy, **means}


def class_rows(seen: Confusion) -> list[dict[str, float]]:
    """Return IoU, F1, precision and sensitivity of each class that occurs in labels or predictions."""
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
        """Add pixels, in float64; the spread around the mean is merged as by Chan, Golub and LeVeque (1983).

        Args:
            labels: Values `[n]`.
            predictions: Values `[n]`.
        """
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
        """Return RMSE, MAE and R2; nothing without pixels, and no R2 of one value."""
        if not self.count:
            return {}
        found = {
            "rmse": (self.squares / self.count) ** 0.5,
            "mae": self.absolute / self.count,
        }
        return found | ({"r2": 1 - self.squares / self.spread} if self.spread else {})


def write(
    models: Models,
    settings: SceneSettings,
    scenes: Sequence[LabelledScene],
    folder: Path,
    measured: Mapping[str, Any],
) -> None:
    """Predict scenes, and write pictures, tables, and last the metrics over the pixels of all scenes.

    Args:
        models: Models of the run.
        settings: Settings of the run.
        scenes: Scenes for testing, or for validation.
        folder: Run folder.
        measured: Numbers to save with the metrics.
    """
    model = models.model
    if model is models.twin:
        model = tfbig.stream(models.twin, machine.budget(settings), source_dtype="float32")
    names = settings.class_names or ()
    outputs = Outputs(names, len(names)) if settings.target == "class" else Outputs((), 1)
    every = _nothing(outputs)
    identity = {"model": of_model(models.twin)}
    skips = settings.background == "skip"

    def evaluated(scene: LabelledScene) -> Confusion | ValueSums:
        path = file_in(folder, f"{scene.name}.tif")
        scene_blocks.predict(model, scene.filled, path, outputs, identity, skips)
        sums = _compared(scene, RasterSource(path), outputs)
        draw(folder, scene, RasterSource(path), outputs, _metrics(sums))
        return sums

    rows = []
    for scene, sums in failure_log.results_of(scenes, evaluated, folder, settings.strict):
        rows.append({"scene": scene.name, **_metrics(sums)})
        every.merge(sums)  # type: ignore[arg-type]
    run_folder.write_csv(folder / run_folder.PREDICTIONS, rows)
    if isinstance(every, Confusion):
        table = [row | {"class": names[int(row["class"])]} for row in class_rows(every)]
        run_folder.write_csv(folder / CLASSES, table)
    results = {f"test_{key}": value for key, value in _metrics(every).items()}
    peak = {} if "peak_bytes" in measured else {"peak_bytes": run_folder.memory_bytes()[1]}
    metrics = {**measured, **results, "scenes": len(rows), **peak}
    run_results.write_metrics(folder, settings, metrics)
    curve = {key: measured[key] for key in ("loss", "val_loss") if key in measured}
    run_results.print_results(curve | results, folder)


def draw(
    folder: Path,
    scene: LabelledScene,
    prediction: RasterSource,
    outputs: Outputs,
    found: Mapping[str, float],
) -> None:
    """Draw a scene with its labels and prediction, as a picture and for the view of the report.

    Args:
        folder: Run folder.
        scene: The scene.
        prediction: Its prediction.
        outputs: What the prediction means.
        found: Metrics of the scene, for the title.
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
    """Return labels and weights of some rows and columns."""
    width = scene.filled.scene.shape[1]
    lines = [
        [each.read_window((r, r + 1), (0, width))[0, columns, 0] for r in rows.tolist()]
        for each in (scene.labels, scene.weights)
    ]
    return np.array(lines[0]), np.array(lines[1])


def _nothing(outputs: Outputs) -> Confusion | ValueSums:
    return Confusion.empty(len(outputs.classes)) if outputs.classes else ValueSums()


def _metrics(sums: Confusion | ValueSums) -> dict[str, float]:
    return class_metrics(sums) if isinstance(sums, Confusion) else sums.metrics()


def _compared(
    scene: LabelledScene, prediction: RasterSource, outputs: Outputs
) -> Confusion | ValueSums:
    """Return the counts or sums of a scene, where its labels are known."""
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
