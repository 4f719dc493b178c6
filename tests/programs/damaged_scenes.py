"""Read damaged scenes and labels one after another, and print what happened as lines of JSON.

Usage: python damaged_scenes.py SECONDS FILE...
"""

from __future__ import annotations

import sys
from pathlib import Path

import damaged_files
import numpy as np

from tfbig import SourceError
from tfbig.sources import RasterSource
from tfbig.sources.scenes.labels import (
    VECTORS,
    VectorLabels,
    class_names,
    columns_of,
    read_outlines,
)
from tfbig.sources.scenes.raster import RasterSlide


def outcome(path: Path) -> str:
    """Return 'read', 'refused', or what went wrong with a file; `scene.tif` is in the folder above."""
    try:
        if path.suffix in VECTORS:
            _read_outlines(path)
        else:
            _read_scene(path)
    except SourceError as error:
        if path.name in str(error) and "\n" not in str(error):
            return "refused"
        return f"an error without a name, or of several lines: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"


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
    damaged_files.outcome = outcome
    damaged_files.main(int(sys.argv[1]), sys.argv[2:])
