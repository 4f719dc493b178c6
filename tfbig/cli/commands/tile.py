"""Finds tissue on slides and the tiles that hold it: coordinates as CLAM and TRIDENT have them, and pictures."""

from argparse import ArgumentTypeError
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
    """Flags of this command."""
    slide_batch.add_flags(add)
    number = command_line.count
    add("--size", type=number, default=256, help="rows and columns of a tile (default: 256)")
    add(
        "--overlap",
        type=command_line.natural,
        default=0,
        help="of neighbours, pixels of a tile (default: 0)",
    )
    slide_batch.add_resolution(add, "tiles", "--mpp 0.5")
    add(
        "--tissue",
        choices=["otsu", "grey", "grey-tiles", "none"],
        default="otsu",
        help="otsu: by saturation, at 8 um a pixel; grey: by grey values from 3 to 230 there; grey-tiles: by those of "
        "each tile's own pixels, which reads the whole slide; none: all tiles (default: otsu)",
    )
    add("--dark", action="store_true", help="the ground is dark, as in fluorescence")
    add(
        "--min-tissue",
        type=_share,
        default=0.6,
        help="share of a tile that must be tissue (default: 0.6)",
    )
    add(
        "--min-sharpness",
        type=command_line.positive,
        help="variance of the Laplacian of a tile's grey values, e.g. 20; tiles below are out of focus",
    )
    add(
        "--max-pen",
        type=_share,
        help="share of a tile that may have the colour of a pen, e.g. 0.05",
    )


def run(settings):
    """Tiles every slide; gives the exit code."""
    return slide_batch.run(settings, work)


def work(settings):
    """What is done with a slide, and whether it was done before."""
    slide_batch.settle_resolution(settings, mpp=0.5)
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
    with progress.telling(path.name, "tile") as ticked:
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
    write_coords(folder / f"{name}.h5", coords, slide)
    share = "" if tissue is None else f", {tissue.share:.1%} tissue"
    size = f"{coords.size} x {coords.size} pixels, {coords.step:.4g} times those of level 0"
    return f"{path.name}: {count} tiles of {size}{share}"


def _overlays(coords, tissue, slide):
    painted, share = heatmap.paint(coords, np.ones(len(coords.coords)), slide)
    tiles = slide_viewer.of_classes("tiles", np.isfinite(painted), ("", "tile"), share=share)
    if tissue is None:
        return [tiles]
    return [tiles, slide_viewer.of_classes("tissue", tissue.mask, ("", "tissue"), opacity=0.0)]


def _keep(settings):
    """Which of some tiles stay, or None if all do without a look."""
    checks = []
    if settings.tissue == "grey-tiles":
        checks.append(lambda tiles: tiling.grey_share(tiles) >= settings.min_tissue)
    if settings.min_sharpness is not None:
        checks.append(lambda tiles: tiling.sharpness(tiles) >= settings.min_sharpness)
    if settings.max_pen is not None:
        checks.append(lambda tiles: tiling.pen_share(tiles) <= settings.max_pen)

    def keep(tiles):
        found = checks[0](tiles)
        for check in checks[1:]:
            found &= check(tiles)
        return found

    return keep if checks else None


def _share(text):
    number = float(text)
    if not 0 <= number <= 1:
        raise ArgumentTypeError(f"'{text}' must be a share, from 0 to 1")
    return number
