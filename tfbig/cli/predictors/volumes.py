"""Predict the mask of a volume: NIfTI on the grid of the file, a picture, and volumes of the classes in the table."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tfbig
from tfbig import sources
from tfbig.cli import machine, slide_batch, volume_masks
from tfbig.cli.data import background, prepared_volumes, volume_folders
from tfbig.cli.data.prepared_volumes import Preparation
from tfbig.cli.input_kinds import VOLUMES
from tfbig.cli.predictors import results
from tfbig.cli.predictors.predictor import Predictor
from tfbig.cli.predictors.results import Config
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.results import volume_figures, volume_montage
from tfbig.sources import Volume
from tfbig.system import progress
from tfbig.system.output_folder import file_in, part_prefix

STRIDE = 32
"""Default multiple of planes, rows and columns, for networks without a run."""
READS_SLIDES = "this model reads volumes, which have no background to skip. Remove it."


class Volumes(Predictor):
    """Predictor for networks from volumes to masks, streamed."""

    inputs = VOLUMES
    row = "volume"

    def __init__(self, settings: PredictSettings, plain: Any, config: Config) -> None:
        super().__init__(settings)
        background.refuse(background.resolved(settings), READS_SLIDES)
        slide_batch.refuse_resolution(settings, "volumes are read at the spacing of the run.")
        self.channels = plain.inputs[0].shape[-1]
        outputs = plain.outputs[0].shape[-1]
        self.classes = results.classes_of(settings, max(outputs, 2), config.get("class_names"))
        self.preparation = preparation_of(config, settings)
        self.probability = results.activation_of(plain.layers[-1]) == "sigmoid"
        self.settings = replace(
            settings, class_names=self.classes, pad_to=max(self.preparation.stride)
        )
        self.model = tfbig.stream(plain, machine.budget(settings), source_dtype="float32")

    def finished(self, path: Path) -> bool:
        """Tell whether the volume is done; its mask is written last."""
        return self._mask(path).exists()

    def predict(self, path: Path, slide: None) -> str:
        """Predict a volume, write the results and return a line to print."""
        files = volume_folders.channels_of(path, self.channels)
        volume = prepared_volumes.stacked(files, str(path), self.channels)
        size = " x ".join(map(str, volume.shape[:3]))
        image = self.preparation.image(volume)
        if self.settings.dry_run:
            read = " x ".join(map(str, image.shape[:3]))
            return f"{path.name}: {size} voxels, would be read as {read}"
        name = volume_folders.case_of(path)
        with tempfile.TemporaryDirectory(prefix=part_prefix(), dir=self.folder) as scratch:
            mask = volume_masks.predict(
                self.model,
                volume,
                self.preparation,
                Path(scratch) / "mask.npy",
                self.settings.threshold,
                self.probability,
            )
            shown = volume, {"prediction": mask}, self.classes, f"{name}: {size} voxels"
            volume_figures.planes(file_in(self.folder, f"{name}.png"), *shown)
            volume_montage.write_view(self.folder, name, *shown)
            number = _counts(mask, len(self.classes))
            self._write_row(path, volume, number)
            with progress.reporting(f"writing {self._mask(path).name}") as ticked:
                sources.write_nifti(self._mask(path), mask, volume, ticked)
        shares = zip(number / number.sum(), self.classes, strict=True)
        return f"{path.name}: {size}, " + ", ".join(f"{s:.2%} {n}" for s, n in shares)

    def _mask(self, path: Path) -> Path:
        return file_in(self.folder, f"{volume_folders.case_of(path)}.nii.gz")

    def _write_row(self, path: Path, volume: Volume, number: npt.NDArray[np.int64]) -> None:
        """Write the row of the volume, in place of an older one."""
        sizes = dict(zip(("planes", "rows", "columns"), volume.shape, strict=False))
        spacing = volume.spacing or (None, None, None)
        row: dict[str, Any] = {"volume": path.name, **sizes}
        row |= dict(zip(("mm_planes", "mm_rows", "mm_columns"), spacing, strict=True))
        row |= {f"voxels_{name}": int(n) for name, n in zip(self.classes, number, strict=True)}
        millilitres = None if volume.spacing is None else float(np.prod(volume.spacing)) / 1000
        row |= {
            f"ml_{name}": None if millilitres is None else n * millilitres
            for name, n in zip(self.classes, number.tolist(), strict=True)
        }
        self.write_row(row)


def preparation_of(config: Mapping[str, Any], settings: PredictSettings) -> Preparation:
    """Return how the network of a run reads volumes; `config` is empty without a run."""
    if config.get("task") != "volume-segmentation":
        side = settings.pad_to or STRIDE
        return Preparation(stride=(side, side, side))
    orientation = settings.orientation or config["orientation"]
    return prepared_volumes.of_config({**config, "orientation": orientation})


def _counts(mask: Volume, classes: int) -> npt.NDArray[np.int64]:
    """Count the voxels of each class."""
    planes = (mask.read(n, n + 1).ravel() for n in range(mask.shape[0]))
    total = np.zeros(classes, np.int64)
    for plane in planes:
        total += np.bincount(plane, minlength=classes)
    return total
