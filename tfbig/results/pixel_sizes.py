"""Sizes of the pixels that a run was trained on, as its table of slides says them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tfbig.errors import SourceError
from tfbig.results import run_folder
from tfbig.sources.resolution import Mpp

PIXELS: Final = ("mpp_rows", "mpp_columns")
"""Columns of the sizes of pixels, micrometres."""


def trained_pixels(run: str | Path) -> tuple[Mpp, ...]:
    """Read the sizes of the pixels that a run was trained on from its table of slides; empty if it has none.

    `run` is a run folder, or a model.

    Raises:
        SourceError: The table is damaged.
    """
    table = Path(run) / run_folder.SLIDES
    rows = run_folder.read_rows(table)  # those of scenes and volumes have no sizes
    rows = [row for row in rows if row.get(PIXELS[0]) and row.get("split") == "train"]
    try:
        sizes = [[float(row[name]) for name in PIXELS] for row in rows]
    except (KeyError, ValueError) as error:
        raise SourceError(
            f"{table}: is damaged: expected numbers in {' and '.join(PIXELS)}. Restore or remove it."
        ) from error
    return tuple({(size[0], size[1]) for size in sizes})


def in_um(pixels: Sequence[Mpp]) -> str:
    """Word sizes of pixels, the smallest and the largest: "0.5 um", or "0.25 um to 0.5 x 0.52 um"."""
    ordered = sorted(pixels)
    return " to ".join(dict.fromkeys(map(_in_um, (ordered[0], ordered[-1]))))


def _in_um(pixel: Mpp) -> str:
    rows, columns = (f"{size:.4g}" for size in pixel)
    return f"{rows} um" if rows == columns else f"{rows} x {columns} um"
