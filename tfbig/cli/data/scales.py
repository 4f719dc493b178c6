"""Sizes of the pixels that a run reads: whether files say odd ones, and whether they differ from each other."""

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


class Items(NamedTuple):
    """Words for what a run reads.

    Attributes:
        noun: What it is, in the singular.
        give: How the size of the pixels is given where files do not say it.
        change: How to read at another size of pixels.
    """

    noun: str
    give: str
    change: str

    def counted(self, number: int) -> str:
        """The number of them, in words."""
        return counted(number, self.noun)


SLIDES = Items("slide", "Give it with --slide-mpp or --mpp-of", "Use --mpp")
"""Slides that are read at the size of pixels that flags ask for."""
WHOLE_SLIDES = Items("slide", "Save it in the files", "Resample them to one size")
"""Slides that are read at the size of their pixels."""
IMAGES = WHOLE_SLIDES._replace(noun="image")
"""Images, which are read at the size of their pixels."""


class Scale(NamedTuple):
    """Size of the pixels of a slide or an image, and what is to be said about it.

    Attributes:
        pixel: Micrometres along rows and columns of a pixel as it is read, or None if unknown.
        doubts: What is odd about what the file says, by the kind of it.
    """

    pixel: Mpp | None
    doubts: Mapping[str, str]


def scale_of(slide: Slide | None, pixel: Mpp | None) -> Scale:
    """The size of the pixels of a slide, and what is odd about it."""
    return Scale(pixel, {} if slide is None else doubts(slide.mpp, slide.magnification))


def lines(scales: Mapping[str, Scale], items: Items = SLIDES) -> list[str]:
    """A line for each kind of doubt, and one if slides are read at different sizes of pixels."""
    by_kind: dict[str, list[str]] = {}
    for name, scale in scales.items():
        for kind, text in scale.doubts.items():
            by_kind.setdefault(kind, []).append(f"{name}: {text}")
    found = [
        f"{len(each)} of {items.counted(len(scales))} with {kind}, such as {each[0]}."
        for kind, each in by_kind.items()
    ]
    return found + _differences({name: scale.pixel for name, scale in scales.items()}, items)


def _differences(pixels: Mapping[str, Mpp | None], items: Items) -> list[str]:
    """A line if sizes of pixels differ, or if some are unknown."""
    known = {name: pixel for name, pixel in pixels.items() if pixel is not None}
    unknown = [name for name, pixel in pixels.items() if pixel is None]
    found = []
    if known and unknown:
        found.append(
            f"the size of pixels is known for {len(known)} of {items.counted(len(pixels))}, but not for others, such "
            f"as {unknown[0]}: these may be read at another size. {items.give}."
        )
    if known:
        finest, coarsest = (choose(known, key=lambda name: known[name]) for choose in (min, max))
        if differ(known[finest], known[coarsest]):
            found.append(
                f"{items.noun}s are read at different sizes of pixels, from {in_um([known[finest]])} ({finest}) to "
                f"{in_um([known[coarsest]])} ({coarsest}); expected one size. {items.change}, or leave some out."
            )
    return found


def differ(first: Mpp, second: Mpp) -> bool:
    """Tell whether two sizes of pixels differ by more than those of one scanner."""
    return any(max(a / b, b / a) > SAME for a, b in zip(first, second, strict=True))


def against_run(
    pixels: Mapping[str, Mpp | None], trained: Iterable[Mpp], items: Items = SLIDES
) -> list[str]:
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
        f"{items.counted(len(pixels))}, such as {name} at {in_um([pixel])}, trained on {in_um(of_run)}; results may be "
        f"wrong. {items.change}."
    ]


def say(scales: Mapping[str, Scale], run: str | None, items: Items = SLIDES) -> None:
    """Print what is odd about the pixels of slides, and in an evaluation how they differ from those of the run."""
    said = lines(scales, items)
    if run:
        pixels = {name: scale.pixel for name, scale in scales.items()}
        said += against_run(pixels, trained_pixels(run), items)
    for line in said:
        print(line, file=sys.stderr)


def with_pixels(
    rows: Sequence[dict[str, Any]], scales: Mapping[str, Scale], name_of: Callable[[Any], str]
) -> tuple[dict[str, Any], ...]:
    """Write the size of the pixels into the row of each slide or image, by its name; `name_of` gives that of a row."""
    found = (scales.get(name_of(row)) for row in rows)
    sizes = ((scale and scale.pixel) or ("", "") for scale in found)
    return tuple(
        row | dict(zip(PIXELS, size, strict=True)) for row, size in zip(rows, sizes, strict=True)
    )
