"""Predict the mask of a slide: OME-TIFF, GeoJSON, a picture, and areas in the table."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tfbig
from tfbig import SourceError, sources
from tfbig.choices import UNET_STRIDE
from tfbig.cli import machine, slide_batch
from tfbig.cli.data import background
from tfbig.cli.data.background import Masking
from tfbig.cli.data.masked_images import CLASSES, smaller
from tfbig.cli.predictors import results
from tfbig.cli.predictors.predictor import Predictor
from tfbig.cli.predictors.results import Config
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.patchgd import PatchGDSegmentation
from tfbig.results import figures, geojson, outlines, slide_viewer
from tfbig.sources.names import title_of
from tfbig.sources.slides.slide import Slide
from tfbig.system import progress
from tfbig.system.output_folder import file_in, part_prefix

NAMES = {"segmentation": ("background", "tissue"), "patchgd-segmentation": CLASSES}
"""Names of the classes of each task."""


class Masks(Predictor):
    """Predictor for networks from images to masks, streamed or by patches."""

    def __init__(self, settings: PredictSettings, plain: Any, config: Config) -> None:
        super().__init__(settings)
        self.by_patches = isinstance(plain, PatchGDSegmentation)
        is_run = config.get("task") == "segmentation"
        settings = background.resolved(settings, config)
        if self.by_patches:
            background.refuse(settings, results.BY_PATCHES)
        self.masking = Masking.of(settings)
        first, last = (plain.encoder, plain.decoder) if self.by_patches else (plain, plain)
        channels, self.outputs = first.inputs[0].shape[-1], last.outputs[0].shape[-1]
        names = config.get("class_names") or NAMES.get(config.get("task", ""))
        self.stride = settings.pad_to or (UNET_STRIDE if is_run else 32)
        if self.by_patches:
            self.stride = plain.patch[0]
        self.downscale = config.get("downscale", 1)
        self.classes = results.classes_of(settings, max(self.outputs, 2), names)
        settings = replace(
            settings,
            input=results.input_of(settings, channels, "inverted-gray" if is_run else None),
            pad_to=self.stride,
            class_names=self.classes,
        )
        self.settings = slide_batch.with_resolution(settings, level=0)
        self.model = plain if self.by_patches else tfbig.stream(plain, machine.budget(settings))

    def finished(self, path: Path) -> bool:
        """Tell whether the slide is done; its mask is written last."""
        return file_in(self.folder, f"{title_of(path)}.ome.tif").exists()

    def predict(self, path: Path, slide: Slide) -> str:
        """Predict a slide, write the results and return a line to print."""
        source = slide.at(**slide_batch.resolution(self.settings))
        if self.masking is not None and not self.settings.dry_run:
            source = self.masking.apply(slide, source)
        source = smaller(source, self.downscale) if self.downscale > 1 else source
        self.pixels[path] = source.mpp
        rows, columns = source.shape[:2]
        if self.settings.dry_run:
            return f"{slide.describe()}: would be read at {rows} x {columns} pixels"
        image = results.network_input(source, self.settings)
        is_gray = self.masking is not None and image.shape[2] == 1
        image = sources.Padded(image, self.stride, background.gray_level(image) if is_gray else 0)
        with tempfile.TemporaryDirectory(prefix=part_prefix(), dir=self.folder) as scratch:
            computed = results.computed(self.model, source, image) if self.masking else {}
            whole = self.model.predict_to(image, f"{scratch}/prediction.npy", self._converted)
            prediction = whole.crop((0, rows), (0, columns))
            prediction.mpp = source.mpp
            shares, count = self._write(path, slide, source, prediction, computed)
        summary = ", ".join(f"{s:.1%} {n}" for s, n in zip(shares, self.classes, strict=True))
        return f"{path.name}: {rows} x {columns}, {summary}, {count} regions{results.in_words(computed)}"

    def _write(
        self,
        path: Path,
        slide: Slide,
        source: sources.Source,
        prediction: sources.Source,
        computed: dict[str, float],
    ) -> tuple[npt.NDArray[Any], int]:
        """Write the results of a slide, last its mask; return the share of each class, and the number of regions."""
        labels = sources.Channels(prediction, 0, 1)
        small, factor = outlines.small_labels(labels)
        rows, columns = (factor * step for step in steps_of(slide, source))
        count = self._write_regions(path, slide, small, (rows, columns))
        down, across = (factor * n / m for n, m in zip(small.shape, source.shape, strict=False))
        overlay = slide_viewer.class_overlay("prediction", small, self.classes, across, height=down)
        shown = [overlay, *(background.overlays(source) if self.masking else [])]
        slide_batch.write_view(self.settings, path, slide, shown)
        shares = np.bincount(small.ravel(), minlength=len(self.classes)) / small.size
        self._write_row(path, source, shares, count, computed)
        self._write_images(path, slide, source, prediction)
        return shares, count

    def _write_regions(
        self, path: Path, slide: Slide, small: npt.NDArray[np.uint8], steps: tuple[float, float]
    ) -> int:
        """Write outlines and a picture, and return the number of regions."""
        name = title_of(path)
        regions = outlines.regions(small, steps, self.settings.smallest)
        if regions.left_out or regions.filled:
            print(
                f"{path.name}: outlines of the {outlines.MOST_REGIONS} largest regions and holes; "
                f"{regions.left_out} more regions are left out, {regions.filled} more holes are filled"
            )
        features = geojson.region_features(regions.polygons, self.classes)
        count = slide_batch.write_outlines(self.settings, path, slide, features)
        figures.regions(file_in(self.folder, f"{name}.png"), slide, small, self.classes, name)
        return count

    def _write_images(
        self, path: Path, slide: Slide, source: sources.Source, prediction: sources.Source
    ) -> None:
        """Write the probabilities, if they are asked for, and the mask."""
        name = title_of(path)
        georeference = slide.georeference and slide.georeference.scaled(*steps_of(slide, source))
        if self.settings.probabilities:
            file = file_in(self.folder, f"{name}_probabilities.ome.tif")
            shares = sources.Channels(prediction, 1)
            names = self.classes if shares.shape[2] == len(self.classes) else self.classes[1:]
            sources.write_ome_tiff(
                file,
                shares,
                channel_names=list(names),
                georeference=georeference,
            )
        mask, labels = file_in(self.folder, f"{name}.ome.tif"), sources.Channels(prediction, 0, 1)
        with progress.reporting(f"writing {mask.name}") as ticked:
            sources.write_ome_tiff(
                mask,
                labels,
                labels=True,
                channel_names=["class"],
                georeference=georeference,
                ticked=ticked,
            )

        write_zarr_labels(self.settings, slide, tfbig.open(mask))

    def _converted(self, outputs: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Convert outputs to classes, and on request probabilities in units of 1/255, `[r, W, ...]`, uint8."""
        if self.outputs == 1:
            classes = (outputs > self.settings.threshold).astype(np.uint8)
        else:
            classes = outputs.argmax(2)[..., None].astype(np.uint8)
        if not self.settings.probabilities:
            return classes
        probabilities = np.rint(np.clip(outputs, 0, 1) * 255).astype(np.uint8)
        return np.concatenate([classes, probabilities], axis=2)

    def _write_row(
        self,
        path: Path,
        source: sources.Source,
        shares: npt.NDArray[Any],
        count: int,
        computed: dict[str, float],
    ) -> None:
        """Write the row of the slide, in place of an older one."""
        row = results.slide_columns(path, source) | {"regions": count}
        by_class: Sequence[tuple[str, float]] = list(zip(self.classes, shares, strict=True))
        row |= {f"share_{name}": share for name, share in by_class}
        area = None
        if source.mpp is not None:
            area = float(np.prod(source.shape[:2])) * source.mpp[0] * source.mpp[1] / 1e6
        row |= {f"mm2_{name}": area and share * area for name, share in by_class}
        self.write_row(row | computed)


def write_zarr_labels(settings: PredictSettings, slide: Slide, labels: sources.Source) -> None:
    """Write a mask as OME-Zarr too, if `--labels` asks for it: into the slide, or into a new folder in `--out`.

    The mask has the resolution at which the slide was read.

    Raises:
        SourceError: The slide is OME-Zarr, but was read at another resolution, or cannot be written to.
    """
    if settings.labels is None:
        return
    target = file_in(Path(settings.out), f"{title_of(slide.name)}.zarr")
    if slide.reader == "zarr" and (Path(slide.name) / "0").is_dir():
        if labels.shape[:2] != slide.shape[:2]:
            raise SourceError(
                f"{slide.name}: is {slide.shape[0]} x {slide.shape[1]}, but the mask {labels.shape[0]} x "
                f"{labels.shape[1]}; labels of OME-Zarr are of level 0. Leave out --labels, or --mpp and --level."
            )
        target = Path(slide.name)
    with progress.reporting(f"writing labels/{settings.labels}") as ticked:
        sources.write_ome_zarr_labels(target, settings.labels, labels, ticked=ticked)


def steps_of(slide: Slide, source: sources.Source) -> tuple[float, float]:
    """The height and width of a pixel of an image of the whole slide in pixels of level 0."""
    rows, columns = (n / m for n, m in zip(slide.shape[:2], source.shape[:2], strict=True))
    return rows, columns
