"""Agreement of tissue masks with outlines that were drawn by hand.

    python recipes/experiments/tissue.py [--folder FOLDER ...] >> results.jsonl

The outlines are in `tests/files/outlines`. Slides are searched in this repository and in the folders; an outline
without a slide is left out. Each slide is also changed: made pale, stained in other colours, or marked with pens.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from skimage import color, draw

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from benchmarks import report
from tfbig.choices import TISSUE_METHODS
from tfbig.sources import Slide, open_slide
from tfbig.tissue import Tissue, find_tissue, read_tissue
from tfbig.tissue.masks import small_step

OUTLINES = ROOT / "tests" / "files" / "outlines"
PENS = {"blue": (40, 60, 170), "green": (20, 120, 70), "black": (35, 35, 40), "red": (190, 40, 50)}
PALE = 0.3
"""Contrast to white that is left on pale slides."""

Image = np.ndarray[Any, np.dtype[np.uint8]]


def pale(image: Image) -> Image:
    """Reduce the contrast of an image to its glass."""
    glass = np.percentile(image, 90, (0, 1))
    return np.clip(np.rint(glass + PALE * (image - glass)), 0, 255).astype(np.uint8)


def stained(image: Image, stain: tuple[float, float, float]) -> Image:
    """Return an image with the optical density of its stains in one colour.

    Args:
        image: `[H, W, 3]`.
        stain: Shares of haematoxylin, eosin and diaminobenzidine (Ruifrok and Johnston, 2001).
    """
    density = color.rgb2hed(image)[..., :2].sum(-1, keepdims=True)
    mixed = color.hed2rgb(density * np.array(stain))
    return np.clip(np.rint(mixed * 255), 0, 255).astype(np.uint8)


def with_pen(image: Image, colour: tuple[int, int, int]) -> Image:
    """Draw a ring and a stroke of a pen around and beside the tissue."""
    rows, columns, _ = image.shape
    marked, width = image.copy(), max(rows, columns) // 150
    steps = np.linspace(0, 2 * np.pi, 2000)
    lines = [
        (rows * (0.5 + 0.47 * np.sin(steps)), columns * (0.5 + 0.47 * np.cos(steps))),
        (np.linspace(0.02, 0.3, 2000) * rows, np.linspace(0.9, 0.98, 2000) * columns),
    ]
    for row, column in zip(*np.concatenate(lines, axis=1), strict=True):
        marked[draw.disk((row, column), width, shape=(rows, columns))] = colour
    return marked


CHANGES: dict[str, Callable[[Image], Image]] = {
    "as scanned": lambda image: image,
    "pale": pale,
    "haematoxylin": lambda image: stained(image, (1, 0, 0)),
    "haematoxylin and DAB": lambda image: stained(image, (0.3, 0, 0.7)),
    **{f"{name} pen": lambda image, c=c: with_pen(image, c) for name, c in PENS.items()},
}


def write_changed(slide: Slide, change: Callable[[Image], Image], path: Path) -> Slide:
    """Write a slide at the size that masks are computed from, with its pixels changed, and open it."""
    step = small_step(slide)
    small = slide.scaled(step)
    np.save(path, change(np.ascontiguousarray(small.read(0, small.shape[0]))))
    return open_slide(path, mpp=None if slide.mpp is None else sum(slide.mpp) / 2 * step)


def dice(drawn: Tissue, tissue: Tissue) -> float:
    """Return the Dice coefficient of two masks of the same shape."""
    both = (drawn.mask & tissue.mask).sum()
    return float(2 * both / (drawn.mask.sum() + tissue.mask.sum()))


def slides(folders: list[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield each slide that is there, with its outline."""
    images = (p for f in folders for p in f.rglob("*.*") if p.suffix in (".svs", ".tif"))
    files = {p.name.partition(".")[0]: p for p in images}
    for outline in sorted(OUTLINES.glob("*.geojson")):
        if outline.stem in files:
            yield files[outline.stem], outline


def measure(path: Path, outline: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures of a slide, one line for each change."""
    slide = open_slide(path)
    drawn = read_tissue(outline, slide)
    for name, change in CHANGES.items():
        with tempfile.TemporaryDirectory() as folder:
            other = write_changed(slide, change, Path(folder, "slide.npy"))
            masks = {method: find_tissue(other, method) for method in TISSUE_METHODS}
        figures = {method: round(dice(drawn, tissue), 3) for method, tissue in masks.items()}
        agreement = round(masks["colour"].agreement, 3)
        yield {"slide": outline.stem, "change": name, **figures, "agreement": agreement}


def main() -> None:
    """Print a JSON line for each slide and change."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--folder", type=Path, nargs="*", default=[])
    folders = [ROOT / "examples" / "data", ROOT / "tests" / "files", *parser.parse_args().folder]
    for path, outline in slides(folders):
        for figures in measure(path, outline):
            print(report.line("tissue", list(open_slide(path).shape[:2]), **figures), flush=True)


if __name__ == "__main__":
    main()
