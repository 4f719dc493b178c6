"""Find tissue on slides and the tiles that hold it; write coordinates for CLAM and TRIDENT, and pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tfbig import SourceError
from tfbig.choices import TISSUE_METHODS
from tfbig.cli import messages, slide_batch
from tfbig.cli.data import background, slide_folders
from tfbig.cli.settings import choices
from tfbig.cli.settings.slide_settings import TileSettings
from tfbig.results import figures, geojson, heatmap, outlines, slide_viewer
from tfbig.sources import Coords, write_coords
from tfbig.sources.names import title_of
from tfbig.sources.slides.slide import Slide
from tfbig.system import progress
from tfbig.system.output_folder import file_in
from tfbig.tissue import tiling
from tfbig.tissue.masks import Tissue, find_tissue

Tiles: TypeAlias = npt.NDArray[Any]
"""Pixels of tiles, `[n, rows, columns, channels]`."""


def run(settings: TileSettings) -> int:
    """Tile every slide and return the exit code."""
    return slide_batch.run(settings, work)


def work(settings: TileSettings) -> slide_batch.Work[TileSettings]:
    """Return the work on slides.

    Args:
        settings: Settings of the command.

    Raises:
        SourceError: Flags contradict each other.
    """
    settings = slide_batch.with_resolution(settings, mpp=0.5)
    if settings.overlap >= settings.tile:
        raise SourceError(
            f"--overlap {settings.overlap}: expected less than --tile {settings.tile}."
        )
    if settings.outline_classes and settings.tissue in choices.TISSUE:
        raise SourceError(
            f"--outline-classes: no outlines are read with --tissue {settings.tissue}. Remove it, or use --tissue FILE."
        )
    folder = Path(settings.out)

    def finished(path: Path) -> bool:
        return file_in(folder, f"{title_of(path)}.h5").exists()  # written last

    return slide_batch.Work(
        "tile", settings, lambda path, slide: _tile(path, slide, settings), finished
    )


def _tile(path: Path, slide: Slide, settings: TileSettings) -> str:
    if settings.dry_run:
        return f"{slide.describe()}: would be tiled at {slide.at(**slide_batch.resolution(settings)).shape}"
    tissue = _tissue(path, slide, settings)
    with progress.reporting(path.name, "tile") as ticked:
        coords = tiling.tile(
            slide,
            settings.tile,
            step=slide.step(**slide_batch.resolution(settings)),
            overlap=settings.overlap,
            edge=settings.edge,
            tissue=tissue,
            smallest_share=settings.min_tissue,
            keep=_keep(settings),
            ticked=ticked,
        )
    name, folder = title_of(path), Path(settings.out)
    count = len(coords.coords)
    figures.tiles(file_in(folder, f"{name}.png"), slide, coords, f"{name}: {count} tiles", tissue)
    slide_batch.write_view(settings, path, slide, _overlays(coords, tissue, slide))
    if tissue is not None:
        _write_outlines(path, slide, tissue, settings)
    write_coords(
        file_in(folder, f"{name}.h5"), replace(coords, made_with=_made_with(settings)), slide
    )
    share = "" if tissue is None else f", {tissue.share:.1%} tissue {_warning(tissue)}".rstrip()
    size = f"{coords.size} x {coords.size} pixels, {coords.step:.4g} x the pixels of level 0"
    return f"{path.name}: {count} tiles of {size}{share}"


def _tissue(path: Path, slide: Slide, settings: TileSettings) -> Tissue | None:
    """Return the tissue as the flags ask for it, or None if tiles are not selected by it."""
    if settings.tissue in ("none", "grey-tiles"):
        return None
    if settings.tissue in TISSUE_METHODS:
        return find_tissue(slide, settings.tissue, dark=settings.dark)
    file = Path(settings.tissue)
    if file.is_dir():
        name = title_of(path)
        endings = (".geojson", ".geojson.gz")
        file = slide_folders.file_of(file, name, endings) or file / f"{name}.geojson"
    return background.read_drawn(file, slide, background.outline_rule(settings))


def _write_outlines(path: Path, slide: Slide, tissue: Tissue, settings: TileSettings) -> None:
    """Write the outlines of tissue, which can be corrected in QuPath and read again."""
    rows, columns = (n / m for n, m in zip(tissue.shape, tissue.mask.shape, strict=True))
    polygons = outlines.regions(tissue.mask.astype(np.uint8), (rows, columns)).polygons
    features = geojson.region_features(polygons, ("", "Tissue"))
    slide_batch.write_outlines(settings, path, slide, features)


def _warning(tissue: Tissue) -> str:
    advice = "look at the picture, and correct the outlines if they are wrong"
    return messages.uncertain_tissue(tissue.agreement, advice)


def _made_with(settings: TileSettings) -> dict[str, float]:
    """Return what the file of coordinates says about how it was made."""
    asked = slide_batch.resolution(settings) | {"min_tissue": settings.min_tissue}
    return {key: value for key, value in asked.items() if value is not None}


def _overlays(coords: Coords, tissue: Tissue | None, slide: Slide) -> list[slide_viewer.Overlay]:
    painted, share = heatmap.paint(coords, np.ones(len(coords.coords)), slide)
    tiles = slide_viewer.class_overlay(
        "tiles", np.isfinite(painted), ("", "tile"), share=share, colours=[figures.TILES]
    )
    if tissue is None:
        return [tiles]
    outline = slide_viewer.class_overlay(
        "tissue", tissue.mask, ("", "tissue"), height=1.0, opacity=0.0, colours=[figures.TISSUE]
    )
    return [tiles, outline]


def _keep(settings: TileSettings) -> Callable[[Tiles], npt.NDArray[np.bool_]] | None:
    """Return the function that selects tiles by their pixels, or None if no flag needs pixels."""
    checks: list[Callable[[Tiles], npt.NDArray[np.bool_]]] = []
    if settings.tissue == "grey-tiles":
        checks.append(lambda tiles: tiling.grey_share(tiles) >= settings.min_tissue)
    if (sharpness := settings.min_sharpness) is not None:
        checks.append(lambda tiles: tiling.sharpness(tiles) >= sharpness)
    if (most := settings.max_pen) is not None:
        checks.append(lambda tiles: tiling.pen_share(tiles) <= most)

    def keep(tiles: Tiles) -> npt.NDArray[np.bool_]:
        passes = checks[0](tiles)
        for check in checks[1:]:
            passes &= check(tiles)
        return passes

    return keep if checks else None
