"""Sizes of the pixels that a run reads: whether slides say odd ones, and whether they differ from each other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tfbig.results import run_folder
from tfbig.results.pixel_sizes import PIXELS, in_um, trained_pixels
from tfbig.sources.resolution import Mpp, doubts
from tfbig.sources.slides.slide import Slide
from tfbig.units import counted

TABLE = run_folder.SLIDES
"""Table of the slides of a run."""
SAME = 1.05
"""Largest ratio of two sizes of pixels that need no word: slides of one scanner differ by a few percent."""


class Scale(NamedTuple):
    """Return what is to be said about the pixels of a slide.

    Attributes:
        pixel: Micrometres along rows and columns of a pixel as it is read, or None if unknown.
        doubts: What is odd about what the file says, by the kind of it.
    """

    pixel: Mpp | None
    doubts: Mapping[str, str]


def scale_of(slide: Slide | None, pixel: Mpp | None) -> Scale:
    """The size of the pixels of a slide, and what is odd about it."""
    return Scale(pixel, {} if slide is None else doubts(slide.mpp, slide.magnification))


def lines(scales: Mapping[str, Scale]) -> list[str]:
    """A line for each kind of doubt, and one if slides are read at different sizes of pixels."""
    by_kind: dict[str, list[str]] = {}
    for name, scale in scales.items():
        for kind, text in scale.doubts.items():
            by_kind.setdefault(kind, []).append(f"{name}: {text}")
    found = [
        f"{len(each)} of {counted(len(scales), 'slide')} with {kind}, such as {each[0]}."
        for kind, each in by_kind.items()
    ]
    return found + _differences({name: scale.pixel for name, scale in scales.items()})


def _differences(pixels: Mapping[str, Mpp | None]) -> list[str]:
    """A line if sizes of pixels differ, or if some are unknown."""
    known = {name: pixel for name, pixel in pixels.items() if pixel is not None}
    unknown = [name for name, pixel in pixels.items() if pixel is None]
    found = []
    if known and unknown:
        found.append(
            f"the size of pixels is known for {len(known)} of {len(pixels)} slides, but not for others, such as "
            f"{unknown[0]}: these may be read at another size. Give it with --slide-mpp or --mpp-of."
        )
    if known:
        finest, coarsest = (choose(known, key=lambda name: known[name]) for choose in (min, max))
        if differ(known[finest], known[coarsest]):
            found.append(
                f"slides are read at different sizes of pixels, from {in_um([known[finest]])} ({finest}) to "
                f"{in_um([known[coarsest]])} ({coarsest}); expected one size. Use --mpp, or leave some out."
            )
    return found


def differ(first: Mpp, second: Mpp) -> bool:
    """Tell whether two sizes of pixels differ by more than those of one scanner."""
    return any(max(a / b, b / a) > SAME for a, b in zip(first, second, strict=True))


def against_run(pixels: Mapping[str, Mpp | None], trained: Iterable[Mpp]) -> list[str]:
    """A line if slides are read at another size of pixels than those that a run was trained on."""
    of_run = sorted(trained)
    others = {
        name: pixel
        for name, pixel in pixels.items()
        if pixel is not None and all(differ(pixel, each) for each in of_run)
    }
    if not of_run or not others:
        return []
    name, pixel = next(iter(others.items()))
    return [
        f"read at another size of pixels than the run was trained on: {len(others)} of "
        f"{counted(len(pixels), 'slide')}, such as {name} at {in_um([pixel])}, trained on {in_um(of_run)}; results may "
        "be wrong. Use --mpp."
    ]


def say(scales: Mapping[str, Scale], run: str | None) -> None:
    """Print what is odd about the pixels of slides, and in an evaluation how they differ from those of the run."""
    said = lines(scales)
    if run:
        pixels = {name: scale.pixel for name, scale in scales.items()}
        said += against_run(pixels, trained_pixels(run))
    for line in said:
        print(line, file=sys.stderr)


def with_pixels(
    rows: Sequence[dict[str, Any]], scales: Mapping[str, Scale], name_of: Callable[[Any], str]
) -> tuple[dict[str, Any], ...]:
    """Write the size of the pixels into the row of each slide, by its name; `name_of` gives that of a row."""
    found = (scales.get(name_of(row)) for row in rows)
    sizes = ((scale and scale.pixel) or ("", "") for scale in found)
    return tuple(
        row | dict(zip(PIXELS, size, strict=True)) for row, size in zip(rows, sizes, strict=True)
    )
