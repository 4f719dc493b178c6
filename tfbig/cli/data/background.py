"""Background of slides, as the flags ask for it: whether it is skipped, and where it is."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import tfbig
from tfbig import SourceError, sources
from tfbig.choices import TISSUE_METHODS
from tfbig.cli import messages, paths
from tfbig.cli.data import side_tables, slide_folders
from tfbig.cli.settings.background_settings import BackgroundSettings
from tfbig.cli.settings.slide_settings import TileSettings
from tfbig.plan.plan import Plan
from tfbig.results import slide_viewer
from tfbig.results.geojson import COLOURS
from tfbig.sources import names
from tfbig.sources.background import colour_of
from tfbig.sources.slides.slide import Slide
from tfbig.tissue import outline_file
from tfbig.tissue.drawn import read_tissue
from tfbig.tissue.masks import Tissue, find_tissue
from tfbig.tissue.outline_file import SCANNED, OutlineRule, is_outline_file
from tfbig.units import ceil_div

B = TypeVar("B", bound=BackgroundSettings)

MASKS = (*outline_file.SUFFIXES, ".png", ".tif", ".tiff", ".npy")
"""Suffixes of the mask of a slide in a folder; the first that exists is used."""
FLAGS = ("tissue", "leave_out", "dilation")
"""Flags that say where background is, and so that it is skipped."""
OUTLINE_FLAGS = ("outline_classes", "outline_origin")
"""Flags that say how outlines are read and written."""
_LOOK = "look at its outlines with tfbig tile, and pass them with --tissue if they are better"


def resolved(settings: B, run: Mapping[str, Any] | None = None) -> B:
    """Fill in the settings of a run where no flag is given; background is skipped if a flag says where it is.

    `run` are the settings of the run whose model is used.

    Raises:
        FlagError: `--tissue` and `--leave-out` are given.
    """
    if settings.tissue and settings.leave_out:
        raise paths.FlagError(
            "--tissue and --leave-out both say where the background is; expected one of them. Remove the other."
        )
    given = {name: getattr(settings, name) for name in FLAGS}
    asks = "skip" if any(value is not None for value in given.values()) else None
    if run and run.get("background") == "skip":
        saved = {name: run.get(name) for name in FLAGS}
        if settings.tissue or settings.leave_out:  # flags replace the place, but not its dilation
            saved |= {"tissue": None, "leave_out": None}
        given = {name: saved[name] if value is None else value for name, value in given.items()}
        asks = "skip"
    if run:
        given |= {name: run.get(name) for name in OUTLINE_FLAGS if getattr(settings, name) is None}
        classes = given.get("outline_classes")
        given |= {} if classes is None else {"outline_classes": tuple(classes)}
    colour = given["leave_out"]
    given["leave_out"] = None if colour is None else tuple(colour)
    return replace(settings, background=settings.background or asks, **given)


def outline_rule(settings: BackgroundSettings | TileSettings) -> OutlineRule:
    """Return which outlines count and where they are counted from, as the flags say."""
    return OutlineRule(settings.outline_classes or (), settings.outline_origin or SCANNED)


def read_drawn(path: Path, slide: Slide, rule: OutlineRule) -> Tissue:
    """Read the tissue of a slide from outlines, and print which of them do not count, or were shifted.

    Raises:
        SourceError: None counts, or the file cannot be read.
    """
    tissue = read_tissue(path, slide, rule)
    if tissue.note:
        print(tissue.note, file=sys.stderr)
    return tissue


def refuse(settings: BackgroundSettings, reason: str) -> None:
    """Check that no background is to be skipped; `reason` says why none can be, and what to do.

    The settings are `resolved`.

    Raises:
        FlagError: It is to be skipped.
    """
    if settings.background == "skip":
        given = [name for name in FLAGS if getattr(settings, name) is not None]
        name = f"--{given[0].replace('_', '-')}" if given else "--background skip"
        raise paths.FlagError(f"{name}: {reason}")


@dataclass(frozen=True)
class Masking:
    """Gives the background of slides one colour.

    Attributes:
        tissue: Way to find tissue, or the path of a mask or of a folder of masks.
        leave_out: Colour that is background instead, or None.
        dilation: Micrometres around the tissue that are no background.
        outlines: Which outlines count, if the mask has outlines.
    """

    tissue: str = TISSUE_METHODS[0]
    leave_out: tuple[float, ...] | None = None
    dilation: float = 0.0
    outlines: OutlineRule = field(default_factory=OutlineRule)

    @classmethod
    def of(cls, settings: BackgroundSettings) -> Masking | None:
        """Return what `resolved` settings ask for; None to use slides as they are."""
        if settings.background != "skip":
            return None
        tissue = settings.tissue or TISSUE_METHODS[0]
        rule = outline_rule(settings)
        return cls(tissue, settings.leave_out, settings.dilation or 0.0, rule)

    def check_own(self, slides: Iterable[Path]) -> None:
        """Check that no two slides of one name would have one mask of the folder.

        Raises:
            SourceError: Two would.
        """
        place, by_title = Path(self.tissue), defaultdict[str, list[Path]](list)
        for path in slides:
            by_title[names.title_of(path)].append(path)
        for title, those in by_title.items():
            if len(those) > 1 and self.leave_out is None and place.is_dir():
                found = {path: slide_folders.file_of(place, title, MASKS, path) for path in those}
                slide_folders.check_own(found, "mask")

    def apply(self, slide: Slide, source: sources.Source) -> sources.Source:
        """Give the background of an image of the whole slide one colour, and keep the name of the image.

        Raises:
            SourceError: There is no tissue, no mask of this slide, or no such colour.
        """
        self._measure(slide, source)
        if self.leave_out is not None:
            colour = self.leave_out[0] if len(self.leave_out) == 1 else self.leave_out
            masked = tfbig.masked(source, leave_out=colour, dilation=self.dilation)
        else:
            masked = tfbig.masked(source, self._mask(slide), dilation=self.dilation)
        masked.name = source.name
        return masked

    def _measure(self, slide: Slide, source: sources.Source) -> None:
        """Set the size of the pixels of an image, if it is needed.

        Raises:
            SourceError: It is unknown.
        """
        if not self.dilation or source.mpp is not None:
            return
        if slide.mpp is None:
            raise SourceError(
                f"{slide.name}: does not say how large its pixels are, which --dilation {self.dilation:g} needs. Use "
                "--slide-mpp or --mpp-of, or if the command has none, leave --dilation out."
            )
        rows, columns = (n / m for n, m in zip(slide.shape[:2], source.shape[:2], strict=True))
        source.mpp = slide.mpp[0] * rows, slide.mpp[1] * columns

    def _mask(self, slide: Slide) -> Tissue | Path:
        """Find the tissue of a slide, or the path of its mask, and print a warning if the tissue is uncertain."""
        if self.tissue not in TISSUE_METHODS:
            path = self._path(slide)
            return read_drawn(path, slide, self.outlines) if is_outline_file(path) else path
        tissue = find_tissue(slide, self.tissue)
        if not tissue.mask.any():
            raise SourceError(
                f"{slide.name}: no tissue was found by --tissue {self.tissue}. Use another method, pass a mask with "
                "--tissue FOLDER, or leave the slide out."
            )
        if warning := messages.uncertain_tissue(tissue.agreement, _LOOK):
            print(f"{slide.title}: tissue {warning}", file=sys.stderr)
        return tissue

    def _path(self, slide: Slide) -> Path:
        """Find the mask of a slide.

        Raises:
            SourceError: There is none.
        """
        place = Path(self.tissue)
        if place.is_file():
            return place
        found = slide_folders.file_of(place, slide.title, MASKS, Path(slide.name))
        if found is None:
            alike = names.near(
                slide.title, (file.name for file in slide_folders.files_in(place, MASKS))
            )
            raise SourceError(
                f"{slide.name}: --tissue {place} has no mask of it; expected {slide.title}.geojson, "
                f"or .png, .tif or .npy{side_tables.hint(alike)}. Add it, or use --tissue {TISSUE_METHODS[0]}."
            )
        return found


def masked_level(path: str | Path, source: sources.Source, masking: Masking) -> sources.Source:
    """Give the background of an image of a slide one colour; the slide is open only meanwhile."""
    with closing(sources.open_slide(path)) as slide:
        return masking.apply(slide, source)


def foreground_pixels(image: sources.Source) -> float:
    """Count the pixels of an image that are not background."""
    return math.prod(image.shape[:-1]) * foreground(image)


def foreground(image: sources.Source) -> float:
    """The share of an image that is not background, 1 if it has none."""
    return 1.0 if image.background is None else image.background.share


def gray_level(image: sources.Source) -> int:
    """The value of the background of an image of one channel; 0 if it has none."""
    found = image.background
    if found is None or found.foreground.all():
        return 0
    return int(colour_of(image, found)[0])


def shares(image: sources.Source, plan: Plan | None) -> dict[str, float]:
    """The columns of a table that say what is computed of an image; without a plan, it is not streamed."""
    return {"foreground": foreground(image), "computed": 1.0 if plan is None else plan.active}


def describe(items: Iterable[tuple[str, sources.Source]]) -> str:
    """Describe in a line the share of the foreground of images, the first ones by name."""
    each = [(name, foreground(image)) for name, image in items]
    first = [f"{name} {share:.3f}" for name, share in each[:5]]
    more = (
        f", mean of {len(each)} {sum(s for _, s in each) / len(each):.3f}" if len(each) > 1 else ""
    )
    return f"background has one colour; share of the foreground: {', '.join(first)}{more}"


def overlays(image: sources.Source) -> list[slide_viewer.Overlay]:
    """An overlay that shows the foreground of an image, invisible at first; empty without background."""
    found = image.background
    if found is None:
        return []
    found = found.coarser(ceil_div(max(found.foreground.shape), slide_viewer.MAX_SIDE))
    down, across = (
        n * found.cell / m for n, m in zip(found.foreground.shape, image.shape, strict=False)
    )
    cells = found.foreground.astype(np.uint8)
    names = ("", "foreground")
    return [
        slide_viewer.class_overlay(
            "foreground", cells, names, across, down, opacity=0.0, colours=COLOURS[1:]
        )
    ]
