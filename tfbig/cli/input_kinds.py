"""The kinds of inputs of commands over many files: how each is listed, named and opened."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tfbig import sources
from tfbig.cli.data import slide_folders, volume_folders
from tfbig.sources.names import title_of


@dataclass(frozen=True)
class InputKind:
    """A kind of inputs.

    Attributes:
        name: What they are, in the plural.
        listed: Function that lists those in a folder.
        suffixes: Suffixes that it looks for.
        title: Function from the path of one to the name of its results.
        is_slide: Whether one is opened as a slide before it is processed; others are opened by what processes them.
    """

    name: str
    listed: Callable[[Path], list[Path]]
    suffixes: Collection[str]
    title: Callable[[Path], str] = title_of
    is_slide: bool = False


SLIDES: Final = InputKind("slides", slide_folders.slides_in, sources.SLIDE_SUFFIXES, is_slide=True)
SCENES: Final = InputKind("scenes", slide_folders.slides_in, sources.SLIDE_SUFFIXES, is_slide=True)
BAGS: Final = InputKind("bags", slide_folders.bags_in, slide_folders.BAG_SUFFIXES)
VOLUMES: Final = InputKind(
    "volumes",
    volume_folders.volumes_in,
    (*sources.VOLUME_SUFFIXES, "DICOM"),
    volume_folders.case_of,
)
