"""Find tissue on slides and the tiles that hold it; write coordinates for CLAM and TRIDENT, and pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tfbig.cli import messages, slide_batch
from tfbig.cli.data import background, slide_folders
from tfbig.cli.data.tile_selection import MPP, Selection
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import choices
from tfbig.cli.settings.slide_settings import TileSettings
from tfbig.results import figures, geojson, heatmap, outlines, slide_viewer
from tfbig.sources import Coords, write_coords
from tfbig.sources.names import title_of
from tfbig.sources.slides.slide import Slide
from tfbig.system import progress
from tfbig.system.output_folder import file_in
from tfbig.tissue import outline_file
from tfbig.tissue.masks import Tissue


def run(settings: TileSettings) -> int:
    """Tile every slide and return the exit code."""
    return slide_batch.run(settings, work)


def work(settings: TileSettings) -> slide_batch.Work[TileSettings]:
    """Set up the work on slides.

    Raises:
        SourceError: Flags contradict each other.
    """
    settings = slide_batch.with_resolution(settings, mpp=MPP)
    selection = Selection(
        settings.tile,
        settings.tissue,
        settings.min_tissue,
        settings.edge,
        settings.overlap,
        settings.dark,
        settings.min_sharpness,
        settings.max_pen,
    )
    if settings.outline_classes and settings.tissue in choices.TISSUE:
        raise FlagError(
            f"--outline-classes: no outlines are read with --tissue {settings.tissue}. Remove it, or use --tissue FILE."
        )
    folder = Path(settings.out)

    def finished(path: Path) -> bool:
        return file_in(folder, f"{title_of(path)}.h5").exists()  # written last

    return slide_batch.Work(
        "tile", settings, lambda path, slide: _tile(path, slide, settings, selection), finished
    )


def _tile(path: Path, slide: Slide, settings: TileSettings, selection: Selection) -> str:
    if settings.dry_run:
        return f"{slide.describe()}: would be tiled at {slide.at(**slide_batch.resolution(settings)).shape}"
    drawn = settings.tissue not in choices.TISSUE
    tissue = _drawn_tissue(path, slide, settings) if drawn else selection.mask(slide)
    step = slide.step(**slide_batch.resolution(settings))
    with progress.reporting(path.name, "tile") as ticked:
        coords = selection.tiles(slide, step, tissue, ticked)
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


def _drawn_tissue(path: Path, slide: Slide, settings: TileSettings) -> Tissue:
    """Read the tissue in the outlines that `--tissue` names."""
    file = Path(settings.tissue)
    if file.is_dir():
        name = title_of(path)
        found = slide_folders.file_of(file, name, outline_file.SUFFIXES)
        file = found or file / f"{name}.geojson"
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
