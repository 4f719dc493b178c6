"""Predict the class of a slide from a bag of its tiles, and the attention of each tile."""

from pathlib import Path

import numpy as np

from tfbig import SourceError, mil, sources
from tfbig.cli import machine, slide_batch
from tfbig.cli.predictors import results
from tfbig.cli.tasks import evaluation
from tfbig.sources.slides.slide import title_of
from tfbig.tissue import tiling
from tfbig.tissue.masks import find_tissue


class Bags:
    """Predictor for networks of multiple instance learning, encoder and aggregator, over the tiles of a slide.

    Args:
        settings: Settings of the command; missing ones are filled in.
        plain: The model.
        config: Settings of its run, or an empty dict.
    """

    def __init__(self, settings, plain, config):
        self.settings, self.folder = settings, Path(settings.out)
        self.size, columns, channels = plain.inputs[0].shape[2:]
        if self.size != columns:
            raise SourceError(
                f"{settings.model}: expects tiles of {self.size} x {columns} pixels; only square tiles are supported."
            )
        if not hasattr(plain.layers[-1], "attention"):
            raise SourceError(
                f"{settings.model}: its last layer '{plain.layers[-1].name}' has no method `attention`, which tfbig "
                "predict needs."
            )
        results.set_input(settings, channels)
        results.set_classes(settings, plain.outputs[0].shape[-1], config.get("class_names"))
        results.set_resolution(settings, config, mpp=0.5)
        if settings.min_tissue is None:
            settings.min_tissue = config.get("min_tissue", 0.6)
        encoder = plain.get_layer("instances").model
        self.model = mil.MIL(
            encoder, plain.layers[-1], norm="frozen", budget=machine.budget(settings)
        )

    def finished(self, path):
        """Return whether the slide is done; its row is written last."""
        return results.has_row(self.folder, path)

    def predict(self, path, slide):
        """Predict a slide, write the results and return a line to print."""
        settings = self.settings
        coords = self._coords(path, slide)
        count = len(coords.coords)
        if settings.dry_run:
            return f"{slide.describe()}: would be read as {count} tiles of {self.size} x {self.size} pixels"
        image = results.network_input(slide.scaled(coords.step), settings)
        explanation = self.model.explain(coords.tiles_of(image, slide.shape))
        logits = explanation["logits"]
        logits = logits["bag"] if isinstance(logits, dict) else logits
        probabilities = evaluation.softmax(logits)
        row = results.slide_columns(path, image) | {"tiles": count}
        row |= results.class_columns(settings.classes, probabilities)
        title = f"{title_of(path)}: {row['predicted']} {probabilities.max():.1%}"
        scores = evaluation.softmax(explanation["scores"])
        results.write_attention(
            settings, path, slide, coords, explanation["attention"], title, scores
        )
        results.write_row(self.folder, row)
        most = np.max(explanation["attention"])
        return f"{path.name}: {row['predicted']} {probabilities.max():.1%}, {count} tiles, attention up to {most:.3g}"

    def _coords(self, path, slide):
        """Return the tiles of a file in `--coords`, or those that hold tissue."""
        settings = self.settings
        if settings.coords:
            coords = sources.read_coords(Path(settings.coords) / f"{title_of(path)}.h5")
            if coords.size != self.size:
                raise SourceError(
                    f"{settings.coords}: tiles have {coords.size} pixels; the network expects {self.size}. Run tfbig "
                    f"tile with --size {self.size}."
                )
            return coords
        return tiling.tile(
            slide,
            self.size,
            step=slide.step(**slide_batch.resolution(settings)),
            tissue=find_tissue(slide),
            smallest_share=settings.min_tissue,
        )
