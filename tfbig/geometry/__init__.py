"""Integer arithmetic of windows, halos and patch grids, one axis at a time."""

from tfbig.geometry.patch_grid import PatchGrid
from tfbig.geometry.windows import Fixed, Interval, Resize, Size, Transposed, Window

__all__ = ["Fixed", "Interval", "PatchGrid", "Resize", "Size", "Transposed", "Window"]
