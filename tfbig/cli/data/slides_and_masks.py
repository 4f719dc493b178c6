"""Slides with tissue masks, and crops of them, whole or at random places, read strip by strip."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbig import sources
from tfbig.choices import UNET_STRIDE
from tfbig.cli.data import background
from tfbig.cli.data.background import Masking
from tfbig.cli.data.run_data import Opened
from tfbig.cli.data.slide_folders import (
    files_in,
    masks_of,
    say_unused_masks,
    slide_file,
    without_masks,
)
from tfbig.errors import SourceError
from tfbig.sources.source import Pointwise
from tfbig.sources.table import Row
from tfbig.tissue import outline_file
from tfbig.tissue.drawn import Outlined
from tfbig.tissue.masks import BlockMeans
from tfbig.tissue.outline_file import OutlineRule, is_outline_file
from tfbig.units import counted

WHITE = 230
"""Largest mean gray level of tissue."""
BRIGHTNESS = 10
"""Largest change of brightness of a crop, in gray levels."""
SUFFIXES = (".tif", ".tiff", ".svs", ".ndpi", ".scn", ".bif", ".btf", ".npy", ".png", ".jpg")
OF_MASKS = (*SUFFIXES, *outline_file.SUFFIXES)
"""Suffixes of masks."""


@dataclass(frozen=True)
class LabelledSlide:
    """An image and its labels, or a crop of both.

    Attributes:
        name: Name of the file.
        image: Inverted gray, `[H, W, 1]` uint8: the white background is 0.
        labels: `[H, W, 1]` uint8: 1 is tissue.
        means: Means of the slide, if the labels are computed from it.
        fill: Gray level of the background, if it has one.
    """

    name: str
    image: sources.Source
    labels: sources.Source
    means: BlockMeans | None = None
    fill: int | None = None

    def crop(self, rows: tuple[int, int], columns: tuple[int, int]) -> LabelledSlide:
        """Crop the same rectangle of image and labels; nothing is read."""
        return LabelledSlide(
            self.name, self.image.crop(rows, columns), self.labels.crop(rows, columns)
        )

    def darker(self, offset: int) -> LabelledSlide:
        """Make the slide `offset` gray levels darker, with the labels of the darker slide.

        A negative offset makes it brighter.

        Labels that are computed from the slide change with it: a network that learns one label for several gray levels
        learns no threshold. Labels of a mask do not change.
        """
        labels = self.labels if self.means is None else _labels(self.means, WHITE + offset)
        fill = None if self.fill is None else min(max(self.fill + offset, 0), 255)
        return replace(self, image=Darker(self.image, offset), labels=labels, fill=fill)

    def padded(self) -> LabelledSlide:
        """Add background below and to the right, up to a multiple of the network's stride."""
        image = sources.Padded(self.image, UNET_STRIDE, self.fill or 0)
        return LabelledSlide(self.name, image, sources.Padded(self.labels, UNET_STRIDE))


class MaskSource(sources.Source):
    """A mask file as 0 and 1: values other than 0 are tissue."""

    def __init__(self, source: sources.Source) -> None:
        super().__init__(source.shape, np.uint8, source.name)
        self._source = source

    def _read_window(self, start: int, stop: int, left: int, right: int) -> npt.NDArray[Any]:
        window = self._source.read_window((start, stop), (left, right))
        return (window > 0).astype(np.uint8)


class Darker(Pointwise):
    """An inverted image with `offset` added to every pixel, clipped to 0 to 255."""

    def __init__(self, source: sources.Source, offset: int) -> None:
        super().__init__(source, source.shape, np.uint8, f"{source.name} {offset:+d}")
        self._offset = offset

    def _convert(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.clip(pixels.astype(np.int16) + self._offset, 0, 255).astype(np.uint8)


def open_slide(
    path: str | Path,
    mask: str | Path | None = None,
    masking: Masking | None = None,
    outlines: OutlineRule | None = None,
) -> LabelledSlide:
    """Open a slide, RGB or gray, uint8, with bright background, and open or compute its labels.

    The mask has the same size, or is a file of outlines in GeoJSON; by default `tissue_mask` computes the labels.
    `masking` says what background is given one colour, before labels are computed; None for none. `outlines` says
    which outlines count.

    Raises:
        SourceError: A file is damaged or not an image, the slide is smaller than the network's stride,
            the mask has another size, or there is no tissue.
    """
    source = sources.open(path)
    origin = source.origin
    if min(source.shape[:2]) < UNET_STRIDE:
        raise SourceError(
            f"{path}: is {_size(source)} pixels; expected at least {UNET_STRIDE} x {UNET_STRIDE}, the stride "
            "of the network. Remove the slide, or provide it at a higher resolution."
        )
    if masking is not None:
        source = background.masked_level(path, source, masking)
    name, image = Path(path).name, sources.Grayscale(source, invert=True)
    fill = None if masking is None else background.gray_level(image)
    if mask is not None:
        labels = _open_mask(mask, path, source, outlines, origin)
        return LabelledSlide(name, image, labels, fill=fill)
    means = BlockMeans.of(source)
    return LabelledSlide(name, image, _labels(means, WHITE), means, fill)


def mask_of(path: Path) -> Path | None:
    """Find the mask of `name.tif`: `masks/name.*` or `name_mask.*` beside it, an image or outlines, or None."""
    return masks_of([path], OF_MASKS).get(path)


def opener(
    masking: Masking | None = None, outlines: OutlineRule | None = None
) -> Callable[[Row], LabelledSlide]:
    """Return the function that opens the slide of a row with `path` and `mask`, which are None without a file.

    Args:
        masking: As in `open_slide`.
        outlines: As in `open_slide`.
    """

    def open_row(row: Row) -> LabelledSlide:
        return open_slide(slide_file(row), row["mask"], masking, outlines)

    return open_row


def open_slides(
    folder: str | Path,
    least: int = 1,
    masking: Masking | None = None,
    outlines: OutlineRule | None = None,
) -> Opened:
    """Open every slide of a folder, sorted by name, with its labels; slides that cannot be used are skipped.

    The labels of a slide are those of `mask_of`, or if it has none computed from it.

    Args:
        folder: Folder of the slides.
        least: Smallest number of slides.
        masking: As in `open_slide`.
        outlines: As in `open_slide`.

    Raises:
        SourceError: There are fewer usable slides than `least`.
    """
    files = without_masks(files_in(Path(folder), SUFFIXES))
    masks = masks_of(files, OF_MASKS)
    say_unused_masks(files, {*masks.values()}, OF_MASKS)
    if masking is not None:
        masking.check_own(files)
    rows = [Row({"name": f.name, "path": f, "mask": masks.get(f)}, str(f)) for f in files]
    found = Opened.of(rows, opener(masking, outlines), "name")
    if len(found.items) < least:
        kept = ", the last of which, by name, is for validation" if least > 1 else ""
        reason = f" {found.failed[0][1]}" if found.failed else ""
        raise SourceError(
            f"{folder}: holds {counted(len(found.items), 'slide')} ({', '.join(SUFFIXES)}); expected at least "
            f"{least}{kept}. Check --data.{reason}"
        )
    return found


def draw(
    slides: Sequence[LabelledSlide],
    size: tuple[int, int] | None,
    count: int,
    seed: Sequence[int],
    brightness: int = 0,
) -> list[LabelledSlide]:
    """Draw crops at random places and of random brightness, from each slide in turn.

    `size` is `(rows, columns)` of a crop; None for whole slides, in random order. `count` is the number of crops of
    all slides. The same seeds draw the same crops. `brightness` is its largest change, in gray levels.

    The background of one slide is as dark as faint tissue of another; a network without such examples memorises the
    brightness of the background.
    """
    rng = np.random.default_rng(seed)
    order = np.arange(count) if size else rng.permutation(count)
    return [_drawn(slides[i % len(slides)], size, brightness, rng) for i in order]


def _open_mask(
    mask: str | Path,
    path: str | Path,
    slide: sources.Source,
    rule: OutlineRule | None,
    origin: tuple[int, int],
) -> sources.Source:
    """Open a mask: outlines, or an image with the size of the slide."""
    if is_outline_file(mask):
        outlined = Outlined(mask, slide, rule, origin)
        if outlined.note:
            print(outlined.note, file=sys.stderr)
        return outlined
    source = sources.open_labels(mask)
    if source.shape != (*slide.shape[:2], 1):
        raise SourceError(
            f"{mask}: is {_size(source)} pixels of {source.shape[2]} channels; expected "
            f"{_size(slide)} of 1, the size of {path}. Save the mask at the slide's full resolution."
        )
    return MaskSource(source)


def _size(source: sources.Source) -> str:
    return f"{source.shape[0]} x {source.shape[1]}"


@lru_cache(maxsize=256)
def _labels(means: BlockMeans, white: int) -> sources.Source:
    """Compute the labels at a threshold; slides in memory take at most 21 of them in an epoch."""
    return means.labels(white)


def _drawn(
    slide: LabelledSlide, size: tuple[int, int] | None, brightness: int, rng: np.random.Generator
) -> LabelledSlide:
    offset = int(rng.integers(-brightness, brightness + 1))
    changed = slide.darker(offset) if offset else slide
    if size is None:
        return changed.padded()
    firsts = [
        int(rng.integers(whole - part + 1))
        for whole, part in zip(slide.image.shape, size, strict=False)
    ]
    return changed.crop(*((first, first + part) for first, part in zip(firsts, size, strict=True)))
