"""Read damaged scenes and labels one after another, and print what happened as lines of JSON.

Usage: python damaged_scenes.py SECONDS FILE...
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from damaged_files import run

from tfbig.sources import RasterSource
from tfbig.sources.scenes.labels import (
    VECTORS,
    VectorLabels,
    class_names,
    columns_of,
    read_outlines,
)
from tfbig.sources.scenes.raster import RasterSlide


def read(path: Path) -> None:
    """Read a scene or outlines; `scene.tif` is in the folder above.

    Raises:
        SourceError: The file is damaged.
    """
    if path.suffix in VECTORS:
        _read_outlines(path)
    else:
        _read_scene(path)


def _read_scene(path: Path) -> None:
    slide = RasterSlide(path)
    slide.describe()
    for level in range(len(slide.levels)):
        source = slide.level(level)
        assert isinstance(source, RasterSource)
        rows, columns = (min(n, 100) for n in source.shape[:2])
        pixels = source.read_window((0, rows), (0, columns))
        assert pixels.dtype == slide.dtype
        source.valid((0, rows), (0, columns), pixels)
    slide.scene.reduced(64)


def _read_outlines(path: Path) -> None:
    scene = RasterSource(path.parent.parent / "scene.tif")
    columns = columns_of(path)
    read_outlines(path)
    for column in columns[:3]:
        table = read_outlines(path, column=column)
        names = class_names(path, column, table[column])
        numbers = {name: n for n, name in enumerate(dict.fromkeys(names))}
        labels = VectorLabels(path, scene, column, numbers)
        values, known = labels.read(((0, 64), (0, 64)))
        assert values.shape == known.shape == (64, 64) and np.isfinite(values).all()


if __name__ == "__main__":
    run(read, int(sys.argv[1]), sys.argv[2:])
