"""Bags of tiles to classes: what a slide is taken for, and which of its tiles say so."""

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
    """A network of multiple instance learning, encoder and aggregator, over the tiles of a slide.

    Args:
        settings: of the command; what is not given is set.
        plain: the model.
        config: of its run, or nothing.
    """

    def __init__(self, settings, plain, config):
        self.settings, self.folder = settings, Path(settings.out)
        self.size, columns, channels = plain.inputs[0].shape[2:]
        if self.size != columns:
            raise SourceError(
                f"{settings.model}: takes tiles of {self.size} x {columns}; expected squares."
            )
        if not hasattr(plain.layers[-1], "attention"):
            raise SourceError(
                f"{settings.model}: its last layer '{plain.layers[-1].name}' has no method attention."
            )
        results.settle_input(settings, channels)
        results.settle_classes(settings, plain.outputs[0].shape[-1], config.get("class_names"))
        results.settle_resolution(settings, config, mpp=0.5)
        if settings.min_tissue is None:
            settings.min_tissue = config.get("min_tissue", 0.6)
        encoder = plain.get_layer("instances").model
        self.model = mil.MIL(
            encoder, plain.layers[-1], norm="frozen", budget=machine.budget(settings)
        )

    def finished(self, path):
        """Whether the slide was done before: its row is written last."""
        return results.is_noted(self.folder, path)

    def predict(self, path, slide):
        """Everything about one slide; gives a line about it."""
        settings = self.settings
        coords = self._coords(path, slide)
        count = len(coords.coords)
        if settings.dry_run:
            return f"{slide.describe()}: would be seen in {count} tiles of {self.size}"
        image = results.seen(slide.scaled(coords.step), settings)
        found = self.model.explain(coords.tiles_of(image, slide.shape))
        logits = found["logits"]
        logits = logits["bag"] if isinstance(logits, dict) else logits
        shares = evaluation.softmax(logits)
        row = results.of_slide(path, image) | {"tiles": count}
        row |= results.of_classes(settings.classes, shares)
        title = f"{title_of(path)}: {row['predicted']} {shares.max():.1%}"
        scores = evaluation.softmax(found["scores"])
        results.write_attention(settings, path, slide, coords, found["attention"], title, scores)
        results.note(self.folder, row)
        most = np.max(found["attention"])
        return f"{path.name}: {row['predicted']} {shares.max():.1%}, {count} tiles, attention up to {most:.3g}"

    def _coords(self, path, slide):
        """Tiles of a file of `--coords`, or those that hold tissue."""
        settings = self.settings
        if settings.coords:
            coords = sources.read_coords(Path(settings.coords) / f"{title_of(path)}.h5")
            if coords.size != self.size:
                raise SourceError(
                    f"{settings.coords}: tiles of {coords.size} pixels; the network takes {self.size}."
                )
            return coords
        return tiling.tile(
            slide,
            self.size,
            step=slide.step(**slide_batch.resolution(settings)),
            tissue=find_tissue(slide),
            smallest_share=settings.min_tissue,
        )
