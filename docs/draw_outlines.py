"""Draws docs/outlines.png: outlines in place on a slide that was scanned in part, and where pixels are not square.

Run `python docs/draw_outlines.py`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS.parent / "tests" / "shared")]

import matplotlib

matplotlib.use("Agg")
import numpy as np
import scanned_slides
import tifffile
from matplotlib import pyplot as plt
from pytest import MonkeyPatch

import tfbig
from tfbig.results import outlines
from tfbig.tissue import outline_file


def scanned(axes: Any, folder: Path) -> None:
    """Draw an outline of QuPath on a slide whose scanned area begins at column 100 and row 50."""
    (top, bottom), (left, right) = scanned_slides.TISSUE
    row, column = scanned_slides.ORIGIN
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    ring = [[x - column, y - row] for x, y in corners]
    (folder / "a.geojson").write_text(json.dumps({"type": "Polygon", "coordinates": [ring]}))
    with MonkeyPatch.context() as patch:
        scanned_slides.write_scanned(folder / "a.scn", patch)
        slide = tfbig.open_slide(folder / "a.scn")
        pixels = slide.read((0, slide.shape[0]), (0, slide.shape[1]))
        axes.imshow(pixels)
        for origin, colour in ((outline_file.SCANNED, "limegreen"), (outline_file.LEVEL_0, "red")):
            rule = outline_file.OutlineRule(origin=origin)
            shape = slide.shape[:2]
            found = outline_file.read_outlines(folder / "a.geojson", shape, slide.origin, rule)
            axes.plot(*found.polygons[0].exterior.xy, c=colour, label=f"--outline-origin {origin}")
    axes.set_title(f"scanned from x {column}, y {row}")
    axes.legend(fontsize=8, loc="lower left")


def anisotropic(axes: Any, folder: Path) -> None:
    """Draw the outline of a mask at 1 um on a slide of 0.25 x 0.20 um."""
    pixels = np.full((400, 500, 3), 240, np.uint8)
    pixels[100:300, 225:425] = 130, 70, 160
    size = {"resolution": (1e4 / 0.20, 1e4 / 0.25), "resolutionunit": "CENTIMETER"}
    tifffile.imwrite(folder / "b.tif", pixels, photometric="rgb", metadata=None, **size)
    slide = tfbig.open_slide(folder / "b.tif")
    rows, columns = slide.at(mpp=1.0).shape[:2]
    mask = slide.at(mpp=1.0).read(0, rows).min(-1) < 200
    steps = slide.shape[0] / rows, slide.shape[1] / columns
    axes.imshow(pixels)
    for polygon in outlines.regions(mask.astype(np.uint8), steps).polygons[1]:
        axes.plot(*polygon.exterior.xy, c="limegreen")
    axes.set_title("a mask at 1 um, pixels of 0.25 x 0.20 um")


def main() -> None:
    """Draw both."""
    figure, (first, second) = plt.subplots(1, 2, figsize=(9, 3.8))
    with tempfile.TemporaryDirectory() as folder:
        scanned(first, Path(folder))
        anisotropic(second, Path(folder))
    figure.tight_layout()
    figure.savefig(DOCS / "outlines.png", dpi=80)


if __name__ == "__main__":
    main()
