"""Predict the class, risk or value of a slide from a bag of its tiles, and the attention of each tile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tfbig import SourceError, mil, sources
from tfbig.cli import machine, slide_batch
from tfbig.cli.data import background, encoder_tiles, stain, tile_coords
from tfbig.cli.data.tile_selection import MIN_TISSUE, MPP, Selection
from tfbig.cli.predictors import results
from tfbig.cli.predictors.predictor import Predictor
from tfbig.cli.predictors.results import Config
from tfbig.cli.settings import choices
from tfbig.cli.settings.choices import PUBLISHED
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.cli.tasks import evaluation
from tfbig.results import run_folder
from tfbig.sources.names import title_of
from tfbig.sources.slides.slide import Slide


class Bags(Predictor):
    """Predictor for networks of multiple instance learning, encoder and aggregator, over the tiles of a slide."""

    def __init__(self, settings: PredictSettings, plain: Any, config: Config) -> None:
        super().__init__(settings)
        background.refuse(background.resolved(settings), results.BY_PATCHES)
        _check_network(settings.model, plain)
        size, _, channels = plain.inputs[0].shape[2:]
        self.encoder = config["encoder"] if config.get("encoder_input") == PUBLISHED else ""
        self.size = _tile(self.encoder, config, size)
        self.target = results.target_of(settings, plain.outputs[0].shape[-1], config)
        settings = replace(
            settings,
            input=results.input_of(settings, channels),
            class_names=results.names_of(self.target),
            min_tissue=_min_tissue(settings, config),
        )
        default = {} if settings.coords else {"mpp": MPP}
        settings = results.with_resolution(settings, config, **default)
        self.settings = settings
        self.resolution = slide_batch.asked_resolution(settings)
        self.foreground = config.get("min_grey")
        self.stain = config.get("stain", stain.NONE)
        self.tissue, self.edge = config.get("tissue", choices.TISSUE[0]), config.get("edge", 0)
        self.coords_of_run = _coords_of_run(settings, config)
        encoder = plain.get_layer("instances").model
        self.model = mil.MIL(
            encoder, plain.layers[-1], norm="frozen", budget=machine.budget(settings)
        )

    def predict(self, path: Path, slide: Slide) -> str:
        """Predict a slide, write the results and return a line to print."""
        settings = self.settings
        coords = self._coords(path, slide)
        if settings.dry_run:
            tiles_of = f"{len(coords.coords)} tiles of {self.size} x {self.size} pixels"
            return f"{slide.describe()}: would be read as {tiles_of}"
        image = stain.normalised(slide.scaled(coords.step), slide, self.stain)
        image = results.network_input(image, settings)
        tiles: sources.Bag = coords.tiles_of(image, slide.shape)
        self.pixels[path] = image.mpp
        tiles = encoder_tiles.prepared(tiles, self.encoder)
        if self.foreground:
            tiles = mil.foreground(tiles, self.foreground)
            coords = replace(coords, coords=np.asarray(tiles.coords))
        explanation = self.model.explain(tiles)
        count = len(coords.coords)
        target, scores = self.target, np.asarray(explanation["scores"])
        prediction = target.predicted(evaluation.logits_of(explanation)[None])[0]
        row = results.slide_columns(path, image) | {"tiles": count}
        row |= target.columns(prediction)
        caption, attention = target.caption(prediction), explanation["attention"]
        title = f"{title_of(path)}: {caption}"
        numbers, classes = target.tile_numbers(scores), target.tile_classes(scores)
        results.write_attention(settings, path, slide, coords, attention, title, numbers, classes)
        self.write_row(row)
        return f"{path.name}: {caption}, {count} tiles, attention up to {np.max(attention):.3g}"

    def _coords(self, path: Path, slide: Slide) -> sources.Coords:
        """The tiles of a file in `--coords`, those that the run was trained on, or those that hold tissue."""
        settings = self.settings
        if settings.coords:
            return self._checked(tile_coords.file_of(settings.coords, path), slide)
        if (file := self.coords_of_run.get(path.resolve())) is not None:
            return sources.read_coords(file)
        selection = Selection(self.size, self.tissue, settings.min_tissue or 0.0, self.edge)
        return selection.find(slide, slide.step(**slide_batch.resolution(settings)))

    def _checked(self, file: Path, slide: Slide) -> sources.Coords:
        """Read the tiles of a file, and compare them with the network, the flags and the run."""
        coords = tile_coords.of_slide(file, slide, self.resolution)
        if coords.size != self.size:
            raise SourceError(
                f"{file}: holds tiles of {coords.size} pixels; expected {self.size}, as in training. Use tiles of "
                f"tfbig tile --tile {self.size}."
            )
        return coords


def _check_network(name: str, plain: Any) -> None:
    """Check that a network has square tiles and attention.

    Raises:
        SourceError: It has not.
    """
    results.check_attention(name, plain)
    rows, columns, _ = plain.inputs[0].shape[2:]
    if rows != columns:
        raise SourceError(
            f"{name}: expects tiles of {rows} x {columns} pixels; only square tiles are supported."
        )


def _tile(encoder: str, config: Config, size: int) -> int:
    """The rows and columns of a tile: those of the run if tiles are resized for the encoder, else of its input."""
    if not encoder:
        return size
    tile: int = config.get("tile") or encoder_tiles.default_tiles(encoder, size, MPP)[0]
    return tile


def _min_tissue(settings: PredictSettings, config: Config) -> float:
    """The smallest share of tissue in a tile: that of the flag, of the run, or the default."""
    if settings.min_tissue is not None:
        return settings.min_tissue
    share: float = config.get("min_tissue") or MIN_TISSUE
    return share


def _coords_of_run(settings: PredictSettings, config: Config) -> dict[Path, Path]:
    """Find the tiles of each slide, by path, that a run with `--coords` at the same resolution was trained on."""
    if not config.get("coords"):
        return {}
    if slide_batch.asked_resolution(settings) != results.resolution_of_run(config):
        return {}
    rows = run_folder.read_rows(Path(settings.model) / run_folder.SLIDES)
    paths = [Path(row["path"]) for row in rows if row.get("path")]
    files = {path: tile_coords.file_of(config["coords"], path) for path in paths}
    return {path: file for path, file in files.items() if file.exists()}
