"""Predict the mask of a slide: OME-TIFF, GeoJSON, a picture, and areas in the table."""

import tempfile
from pathlib import Path

import numpy as np

import tfbig
from tfbig import sources
from tfbig.cli import machine, slide_batch
from tfbig.cli.predictors import results
from tfbig.models.gigapixel_unet import STRIDE
from tfbig.results import figures, geojson, slide_viewer
from tfbig.sources.slides.slide import title_of
from tfbig.system import progress


class Masks:
    """Predictor for networks from images to masks, streamed.

    Args:
        settings: Settings of the command; missing ones are filled in.
        plain: The model.
        config: Settings of its run, or an empty dict.
    """

    def __init__(self, settings, plain, config):
        self.settings, self.folder = settings, Path(settings.out)
        is_run = config.get("task") == "segmentation"
        channels, self.outputs = plain.inputs[0].shape[-1], plain.outputs[0].shape[-1]
        results.set_input(settings, channels, "inverted-gray" if is_run else None)
        settings.stride = settings.stride or (STRIDE if is_run else 32)
        names = ["background", "tissue"] if is_run else None
        results.set_classes(settings, max(self.outputs, 2), names)
        slide_batch.set_resolution(settings, level=0)
        self.model = tfbig.stream(plain, machine.budget(settings))

    def finished(self, path):
        """Return whether the slide is done; its mask is written last."""
        return (self.folder / f"{title_of(path)}.ome.tif").exists()

    def predict(self, path, slide):
        """Predict a slide, write the results and return a line to print."""
        settings = self.settings
        source = slide.at(**slide_batch.resolution(settings))
        rows, columns = source.shape[:2]
        if settings.dry_run:
            return f"{slide.describe()}: would be read at {rows} x {columns} pixels"
        name = title_of(path)
        image = sources.Padded(results.network_input(source, settings), settings.stride)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=self.folder) as scratch:
            prediction = self.model.predict_to(image, f"{scratch}/found.npy", self._converted)
            prediction = prediction.crop((0, rows), (0, columns))
            prediction.mpp = source.mpp
            labels = sources.Channels(prediction, 0, 1)
            small, factor = geojson.small_labels(labels)
            step = factor * slide.shape[0] / rows
            shapes = geojson.regions(small, step, settings.smallest)
            count = geojson.write_geojson(
                self.folder / f"{name}.geojson", geojson.region_features(shapes, settings.classes)
            )
            figures.regions(self.folder / f"{name}.png", slide, small, settings.classes, name)
            overlay = slide_viewer.class_overlay("prediction", small, settings.classes)
            slide_batch.write_view(settings, path, slide, [overlay])
            georeference = slide.georeference and slide.georeference.scaled(*_steps(slide, source))
            if settings.probabilities:
                file = self.folder / f"{name}_probabilities.ome.tif"
                sources.write_ome_tiff(
                    file, sources.Channels(prediction, 1), georeference=georeference
                )
            fractions = np.bincount(small.ravel(), minlength=len(settings.classes)) / small.size
            self._write_row(path, source, fractions, count)
            mask = self.folder / f"{name}.ome.tif"
            with progress.reporting(f"writing {mask.name}") as ticked:
                sources.write_ome_tiff(
                    mask, labels, labels=True, georeference=georeference, ticked=ticked
                )
        summary = ", ".join(
            f"{s:.1%} {n}" for s, n in zip(fractions, settings.classes, strict=True)
        )
        return f"{path.name}: {rows} x {columns}, {summary}, {count} regions"

    def _converted(self, outputs):
        """Return classes, and on request probabilities in units of 1/255, `[r, W, ...]`, uint8."""
        if self.outputs == 1:
            classes = (outputs > self.settings.threshold).astype(np.uint8)
        else:
            classes = outputs.argmax(2)[..., None].astype(np.uint8)
        if not self.settings.probabilities:
            return classes
        probabilities = np.rint(np.clip(outputs, 0, 1) * 255).astype(np.uint8)
        return np.concatenate([classes, probabilities], axis=2)

    def _write_row(self, path, source, fractions, count):
        """Write the row of the slide, in place of an older one."""
        row = results.slide_columns(path, source) | {"regions": count}
        row |= {f"share_{n}": s for n, s in zip(self.settings.classes, fractions, strict=True)}
        area = None
        if source.mpp is not None:
            area = float(np.prod(source.shape[:2])) * source.mpp[0] * source.mpp[1] / 1e6
        row |= {
            f"mm2_{n}": area and s * area
            for n, s in zip(self.settings.classes, fractions, strict=True)
        }
        results.write_row(self.folder, row)


def _steps(slide, source):
    """Return the rows and columns of level 0 in a pixel of a source of the whole slide."""
    return [n / m for n, m in zip(slide.shape[:2], source.shape[:2], strict=True)]
