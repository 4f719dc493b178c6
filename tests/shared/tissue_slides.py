"""A slide with a known rectangle of tissue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from tfbig.sources import Slide, open_slide


def write_slide(path: Path, shape: tuple[int, int] = (1200, 900), **options: Any) -> Slide:
    """Write a bright slide with purple tissue in rows 200:700 and columns 300:800, and a black corner."""
    rng = np.random.default_rng(0)
    base = np.full((*shape, 3), 240, np.uint8)
    base[200:700, 300:800] = (150, 80, 160)
    base[:40, :40] = 0
    base -= rng.integers(0, 6, base.shape, np.uint8) * (base > 5)
    with tifffile.TiffWriter(path) as writer:
        for step in (1, 2):
            part = np.ascontiguousarray(base[::step, ::step])
            level_options = {"subfiletype": 1} if step > 1 else options
            writer.write(part, photometric="rgb", tile=(64, 64), **level_options)
    return open_slide(path)
