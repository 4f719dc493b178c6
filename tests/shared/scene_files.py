"""Small scenes for tests, written by rasterio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.transform import Affine

UTM = "EPSG:32632"
PLACE = Affine(10, 0, 5e5, 0, -10, 6e6)
"""Pixels of 10 m; the upper left corner is at 500000 E, 6000000 N."""


def pixels(*shape: int, dtype: str = "uint16", seed: int = 0) -> np.ndarray:
    """Random samples `[rows, columns, bands]` over the range of a dtype, from 1."""
    rng = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return rng.normal(100, 30, shape).astype(dtype)
    low = -30000 if dtype == "int16" else 1
    return rng.integers(low, min(np.iinfo(dtype).max, 60000), shape).astype(dtype)


def write_scene(path: Path, image: np.ndarray, **options: Any) -> Path:
    """Write `[rows, columns, bands]` or `[rows, columns]` by rasterio, and return the path."""
    planes = image[None] if image.ndim == 2 else image.transpose(2, 0, 1)
    names = options.pop("names", ())
    given = {"driver": "GTiff", "crs": UTM, "transform": PLACE, **options}
    count, height, width = planes.shape
    with rasterio.open(
        path, "w", height=height, width=width, count=count, dtype=planes.dtype, **given
    ) as file:
        file.write(planes)
        for number, name in enumerate(names, start=1):
            file.set_band_description(number, name)
    return path
