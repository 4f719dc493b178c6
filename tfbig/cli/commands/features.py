"""Encode the tiles of slides once; write their features as TRIDENT does, and a table to train on."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tfbig.cli import paths, slide_batch, tile_encoder
from tfbig.cli.data import encoder_list, tile_coords
from tfbig.cli.data.encoder_tiles import default_tiles
from tfbig.cli.data.feature_table import FeatureTable, totals
from tfbig.cli.data.tile_selection import MIN_TISSUE, MPP, TILE, Selection
from tfbig.cli.settings.feature_settings import FeaturesSettings
from tfbig.cli.tasks import encoder_weights
from tfbig.models.pathology_encoders import PATHOLOGY_ENCODERS
from tfbig.sources import RGB, Bag, Coords
from tfbig.sources.bags.feature_files import write_features
from tfbig.sources.resolution import Mpp, one_size
from tfbig.sources.slides.slide import Slide
from tfbig.system import progress


def run(settings: FeaturesSettings) -> int:
    """Encode every slide, or list the encoders, and return the exit code.

    Raises:
        FlagError: A flag or an argument is missing.
    """
    if settings.list:
        print("\n".join(encoder_list.lines()))
        return 0
    _check_given(settings)
    code = slide_batch.run(settings, work)
    table = FeatureTable(settings.out, ())
    if rows := table.rows():
        print(f"{table.path}: {totals(rows)}")
    return code


def _check_given(settings: FeaturesSettings) -> None:
    """Check that there is what `--list` does not need.

    Raises:
        FlagError: Something is missing.
    """
    given = {"SLIDE": settings.slides, "--encoder": settings.encoder, "--out": settings.out}
    if missing := [name for name, value in given.items() if not value]:
        raise paths.FlagError(
            f"{', '.join(missing)}: missing; expected tfbig features SLIDE ... --encoder NAME --out DIR, or tfbig "
            "features --list."
        )


def work(settings: FeaturesSettings) -> slide_batch.Work[FeaturesSettings]:
    """Set up the work on slides.

    Raises:
        SourceError: Flags contradict each other, or the weights are not those of `--weights-sha256`.
    """
    encoding = Encoding(settings)
    return slide_batch.Work(
        "features",
        encoding.settings,
        encoding.process,
        encoding.table.has,
        prepare=encoding.prepare,
        pixels=encoding.pixels,
    )


class Encoding:
    """The work on slides.

    Attributes:
        settings: The settings with every default filled in.
        table: The table of features.
        asked: Resolution that the flags ask for, such as `{"mpp": 0.5}`, or an empty dict.
        pixels: Micrometres along rows and columns of a pixel of the tiles, by slide.

    Raises:
        SourceError: Flags contradict each other, or the weights are not those of `--weights-sha256`.
    """

    def __init__(self, settings: FeaturesSettings) -> None:
        self.asked = slide_batch.asked_resolution(slide_batch.with_resolution(settings))
        self._asked_size = settings.tile
        self.pixels: dict[Path, Mpp | None] = {}
        settings = encoder_weights.with_scale(settings)
        settings = replace(settings, weights_sha256=tile_encoder.checksum(settings))
        self.settings = settings = _with_tiles(settings)
        self.selection = None if settings.coords else _selection(settings)
        self.table = FeatureTable(settings.out, settings.slides)

    @cached_property
    def encoder(self) -> tile_encoder.TileEncoder:
        """The network, which is built when it is first needed."""
        return tile_encoder.TileEncoder(self.settings)

    def prepare(self) -> None:
        """Build the network.

        Raises:
            SourceError: The weights cannot be read, or belong to another network.
        """
        assert self.encoder is not None

    def process(self, path: Path, slide: Slide) -> str:
        """Encode a slide, write its file and its row, and return a line to print."""
        file = self.table.file(path)
        if self.settings.dry_run:
            coords = self._coords(path, slide)
            return f"{slide.describe()}: {len(coords.coords)} tiles of {_sides(coords.size)} would be encoded"
        if not file.exists():  # else only its row is missing
            self._write(path, slide, file)
        row = self.table.add(path)
        rate = f", {row['tiles'] / row['seconds']:.3g} tiles/s" if row["seconds"] else ""
        return f"{path.name}: {row['tiles']} tiles, {row['width']} features each{rate}"

    def _write(self, path: Path, slide: Slide, file: Path) -> None:
        encoder, start = self.encoder, time.monotonic()
        coords = self._coords(path, slide)
        image = slide.scaled(coords.step)
        tiles, self.pixels[path] = coords.tiles_of(RGB(image), slide.shape), image.mpp
        name, count = self.settings.encoder, len(coords.coords)
        with write_features(file, coords, slide, encoder.width, name) as writer:
            with progress.reporting(path.name, "tile", rate=True) as ticked:
                for first, features in encoder.encode(tiles):
                    writer.write(first, features)
                    ticked(first + len(features), count)
            writer.note(self._attributes(tiles) | {"seconds": time.monotonic() - start})

    def _attributes(self, tiles: Bag) -> dict[str, Any]:
        """Say of the features of a file what the attributes of TRIDENT do not."""
        settings, mpp = self.settings, getattr(tiles, "mpp", None)
        entry = PATHOLOGY_ENCODERS.get(settings.encoder)
        return {
            "version": version("tfbig"),
            "mpp": None if mpp is None else one_size(mpp),
            "encoder_size": self.encoder.size or tiles.shape[1],
            "interpolation": None if entry is None else entry.preprocessing.interpolation,
            "resized_to": None if entry is None else entry.tile,
            "mean": settings.mean,
            "std": settings.std,
            "precision": settings.precision,
            "weights": Path(settings.encoder_weights or "random").name,
            "weights_sha256": settings.weights_sha256,
        }

    def _coords(self, path: Path, slide: Slide) -> Coords:
        """Read the tiles of a file in `--coords`, or find those that hold tissue."""
        if self.selection is None:
            file = tile_coords.file_of(self.settings.coords or "", path)
            return tile_coords.of_slide(file, slide, self.asked, self._asked_size)
        resolution = slide_batch.asked_resolution(self.settings)
        coords = self.selection.find(slide, slide.step(**resolution))
        return replace(coords, made_with=resolution | {"min_tissue": self.selection.min_tissue})


def _with_tiles(settings: FeaturesSettings) -> FeaturesSettings:
    """Fill in the tiles of the encoder where no flag and no file of `--coords` says others."""
    if settings.coords is not None:
        return settings
    size, mpp = default_tiles(settings.encoder, TILE, MPP)
    share = MIN_TISSUE if settings.min_tissue is None else settings.min_tissue
    settings = slide_batch.with_resolution(settings, mpp=mpp)
    return replace(settings, tile=settings.tile or size, min_tissue=share)


def _selection(settings: FeaturesSettings) -> Selection:
    """The rule for tiles, from settings without gaps."""
    assert settings.tile is not None
    assert settings.min_tissue is not None
    return Selection(
        settings.tile, settings.tissue, settings.min_tissue, settings.edge, settings.overlap
    )


def _sides(size: int) -> str:
    return f"{size} x {size} pixels"
