"""Find tissue on slides and the tiles that hold it; write coordinates for CLAM and TRIDENT, and pictures."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from tfbig import SourceError
from tfbig.cli import settings as command_line
from tfbig.cli import slide_batch
from tfbig.results import figures, heatmap, slide_viewer
from tfbig.sources import write_coords
from tfbig.sources.slides.slide import title_of
from tfbig.system import progress
from tfbig.tissue import tiling
from tfbig.tissue.masks import find_tissue


def add_flags(add):
    """Add the flags of this command."""
    slide_batch.add_flags(add)
    number = command_line.count
    add(
        "--size",
        type=number,
        default=256,
        help="rows and columns of a tile, in pixels at the resolution of the tiles (default: 256)",
    )
    add(
        "--overlap",
        type=command_line.count_from_zero,
        default=0,
        help="pixels that neighbouring tiles share (default: 0)",
    )
    slide_batch.add_resolution(add, "tiles", "--mpp 0.5")
    add(
        "--tissue",
        choices=["otsu", "grey", "grey-tiles", "none"],
        default="otsu",
        help="how tissue is found. otsu: threshold of the saturation, at 8 um per pixel; grey: grey values from 3 "
        "to 230, at 8 um per pixel; grey-tiles: the same on the pixels of each tile, which reads the whole slide; "
        "none: keep all tiles (default: otsu)",
    )
    add("--dark", action="store_true", help="the background is dark, as in fluorescence")
    add(
        "--min-tissue",
        type=command_line.share,
        default=0.6,
        help="smallest share of tissue in a tile, 0 to 1 (default: 0.6)",
    )
    add(
        "--min-sharpness",
        type=command_line.positive,
        help="discard tiles with a smaller variance of the Laplacian of their grey values, which are out of focus; "
        "e.g. 20 (default: keep all)",
    )
    add(
        "--max-pen",
        type=command_line.share,
        help="discard tiles with a larger share of pen marks, 0 to 1, e.g. 0.05 (default: keep all)",
    )


def run(settings):
    """Tile every slide and return the exit code."""
    return slide_batch.run(settings, work)


def work(settings):
    """Return the function that tiles a slide, and the one that tells whether it is done."""
    slide_batch.set_resolution(settings, mpp=0.5)
    if settings.overlap >= settings.size:
        raise SourceError(
            f"--overlap {settings.overlap}: expected less than --size {settings.size}."
        )
    folder = Path(settings.out)

    def finished(path):
        name = title_of(path)
        return (folder / f"{name}.h5").exists()  # written last

    return lambda path, slide: _tile(path, slide, settings), finished


def _tile(path, slide, settings):
    if settings.dry_run:
        return f"{slide.describe()}: would be tiled at {slide.at(**slide_batch.resolution(settings)).shape}"
    tissue = None
    if settings.tissue in ("otsu", "grey"):
        tissue = find_tissue(slide, settings.tissue, dark=settings.dark)
    with progress.reporting(path.name, "tile") as ticked:
        coords = tiling.tile(
            slide,
            settings.size,
            step=slide.step(**slide_batch.resolution(settings)),
            overlap=settings.overlap,
            tissue=tissue,
            smallest_share=settings.min_tissue,
            keep=_keep(settings),
            ticked=ticked,
        )
    name, folder = title_of(path), Path(settings.out)
    count = len(coords.coords)
    figures.tiles(folder / f"{name}.png", slide, coords, f"{name}: {count} tiles", tissue)
    slide_batch.write_view(settings, path, slide, _overlays(coords, tissue, slide))
    write_coords(folder / f"{name}.h5", replace(coords, made_with=_made_with(settings)), slide)
    share = "" if tissue is None else f", {tissue.share:.1%} tissue"
    size = f"{coords.size} x {coords.size} pixels, {coords.step:.4g} x the pixels of level 0"
    return f"{path.name}: {count} tiles of {size}{share}"


def _made_with(settings):
    """Return what the file of coordinates says about how it was made."""
    asked = slide_batch.resolution(settings) | {"min_tissue": settings.min_tissue}
    return {key: value for key, value in asked.items() if value is not None}


def _overlays(coords, tissue, slide):
    painted, share = heatmap.paint(coords, np.ones(len(coords.coords)), slide)
    tiles = slide_viewer.class_overlay("tiles", np.isfinite(painted), ("", "tile"), share=share)
    if tissue is None:
        return [tiles]
    return [tiles, slide_viewer.class_overlay("tissue", tissue.mask, ("", "tissue"), opacity=0.0)]


def _keep(settings):
    """Return the function that selects tiles by their pixels, or None if no flag needs pixels."""
    checks = []
    if settings.tissue == "grey-tiles":
        checks.append(lambda tiles: tiling.grey_share(tiles) >= settings.min_tissue)
    if settings.min_sharpness is not None:
        checks.append(lambda tiles: tiling.sharpness(tiles) >= settings.min_sharpness)
    if settings.max_pen is not None:
        checks.append(lambda tiles: tiling.pen_share(tiles) <= settings.max_pen)

    def keep(tiles):
        passes = checks[0](tiles)
        for check in checks[1:]:
            passes &= check(tiles)
        return passes

    return keep if checks else None
