"""Images to masks: what is found on a slide as OME-TIFF, GeoJSON and a picture, and its areas in the table."""

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
    """A network from images to masks, streamed; what it finds goes to OME-TIFF and GeoJSON.

    Args:
        settings: of the command; what is not given is set.
        plain: the model.
        config: of its run, or nothing.
    """

    def __init__(self, settings, plain, config):
        self.settings, self.folder = settings, Path(settings.out)
        own = config.get("task") == "segmentation"
        channels, self.outputs = plain.inputs[0].shape[-1], plain.outputs[0].shape[-1]
        results.settle_input(settings, channels, "inverted-gray" if own else None)
        settings.stride = settings.stride or (STRIDE if own else 32)
        names = ["background", "tissue"] if own else None
        results.settle_classes(settings, max(self.outputs, 2), names)
        slide_batch.settle_resolution(settings, level=0)
        self.model = tfbig.stream(plain, machine.budget(settings))

    def finished(self, path):
        """Whether the slide was done before: the mask is written last."""
        return (self.folder / f"{title_of(path)}.ome.tif").exists()

    def predict(self, path, slide):
        """Everything about one slide; gives a line about it."""
        settings = self.settings
        source = slide.at(**slide_batch.resolution(settings))
        rows, columns = source.shape[:2]
        if settings.dry_run:
            return f"{slide.describe()}: would be seen at {rows} x {columns}"
        name = title_of(path)
        image = sources.Padded(results.seen(source, settings), settings.stride)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=self.folder) as scratch:
            found = self.model.predict_to(image, f"{scratch}/found.npy", self._converted)
            found = found.crop((0, rows), (0, columns))
            found.mpp = source.mpp
            labels = sources.Channels(found, 0, 1)
            small, factor = geojson.small_labels(labels)
            step = factor * slide.shape[0] / rows
            shapes = geojson.regions(small, step, settings.smallest)
            count = geojson.write_geojson(
                self.folder / f"{name}.geojson", geojson.region_features(shapes, settings.classes)
            )
            figures.regions(self.folder / f"{name}.png", slide, small, settings.classes, name)
            found_here = slide_viewer.of_classes("found", small, settings.classes)
            slide_batch.write_view(settings, path, slide, [found_here])
            place = slide.georeference and slide.georeference.scaled(*_steps(slide, source))
            if settings.probabilities:
                path_of = self.folder / f"{name}_probabilities.ome.tif"
                sources.write_ome_tiff(path_of, sources.Channels(found, 1), georeference=place)
            shares = np.bincount(small.ravel(), minlength=len(settings.classes)) / small.size
            self._note(path, source, shares, count)
            mask = self.folder / f"{name}.ome.tif"
            with progress.telling(f"writing {mask.name}") as ticked:
                sources.write_ome_tiff(mask, labels, labels=True, georeference=place, ticked=ticked)
        told = ", ".join(f"{s:.1%} {n}" for s, n in zip(shares, settings.classes, strict=True))
        return f"{path.name}: {rows} x {columns}, {told}, {count} regions"

    def _converted(self, outputs):
        """Classes, and where they are wanted probabilities in 255ths, `[r, W, ...]`, uint8."""
        if self.outputs == 1:
            classes = (outputs > self.settings.threshold).astype(np.uint8)
        else:
            classes = outputs.argmax(2)[..., None].astype(np.uint8)
        if not self.settings.probabilities:
            return classes
        chances = np.rint(np.clip(outputs, 0, 1) * 255).astype(np.uint8)
        return np.concatenate([classes, chances], axis=2)

    def _note(self, path, source, shares, count):
        """A row of the table, in place of an older one of the same slide."""
        row = results.of_slide(path, source) | {"regions": count}
        row |= {f"share_{n}": s for n, s in zip(self.settings.classes, shares, strict=True)}
        area = None
        if source.mpp is not None:
            area = float(np.prod(source.shape[:2])) * source.mpp[0] * source.mpp[1] / 1e6
        row |= {
            f"mm2_{n}": area and s * area
            for n, s in zip(self.settings.classes, shares, strict=True)
        }
        results.note(self.folder, row)


def _steps(slide, source):
    """Rows and columns of level 0 in a pixel of a source of the whole slide."""
    return [n / m for n, m in zip(slide.shape[:2], source.shape[:2], strict=True)]
