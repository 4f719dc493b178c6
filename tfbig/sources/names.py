"""Names of files, slides and cases: which thing a name means. Everything that matches names asks here.

A name means the thing of exactly that name; else that whose name differs by the known suffix of a file; else, where
both are whole numbers, that of the same number, as spreadsheets write 10005 as 10005.0. A name with a point is whole:
`case1.2` never means `case1.tif`. Folders in a name must be those of the thing.
"""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Final, Generic, NamedTuple, TypeVar

from tfbig.sources.files import PathLike

T = TypeVar("T")

SUFFIXES: Final = frozenset(
    {
        *(".tif", ".tiff", ".btf", ".tf8", ".svs", ".ndpi", ".scn", ".bif", ".qptiff"),
        *(".mrxs", ".vms", ".vmu", ".czi", ".dcm", ".ima", ".svslide", ".jp2", ".vrt", ".zarr"),
        *(".png", ".jpg", ".jpeg", ".bmp"),
        *(".nii.gz", ".nii", ".nrrd", ".nhdr"),
        *(".npy", ".h5", ".hdf5", ".pt"),
        *(".geojson.gz", ".json.gz", ".geojson", ".json", ".gpkg", ".shp", ".fgb"),
    }
)
"""Suffixes of the formats that are read: only these are cut off a name."""
_BEFORE: Final = ".ome"
"""What a format may have before its suffix, as in `slide.ome.tif`."""
_SPREADSHEET: Final = re.compile(r"(\d+)[.,]0+")
_MOST_NEAR: Final = 5000
"""Most names among which a similar one is looked for."""

EXACT, ITS_SUFFIX, OTHER_SUFFIX, NUMBER = range(4)
"""How a name was matched, from best to worst."""


def suffix_of(path: PathLike) -> str:
    """The known suffix of a name or path as it is written, the longest one; empty without one."""
    name = PurePath(path).name
    last = name.rfind(".")
    for place in (name.rfind(".", 0, max(last, 0)), last):
        if place > 0 and name[place:].lower() in SUFFIXES:
            return name[place:]
    return ""


def titles_of(path: PathLike) -> list[str]:
    """A name or path without its known suffix: whole, and if it ends with `.ome` then, with that too.

    Example:
        >>> from tfbig.sources import names
        >>> names.titles_of("slides/a.OME.TIF"), names.titles_of("case1.2"), names.titles_of("v.nii.gz")
        (['a', 'a.OME'], ['case1.2'], ['v'])
    """
    name = PurePath(path).name
    title = name.removesuffix(suffix_of(name))
    if title != name and title.lower().endswith(_BEFORE) and len(title) > len(_BEFORE):
        return [title[: -len(_BEFORE)], title]
    return [title]


def title_of(path: PathLike) -> str:
    """The name of a file without its known suffix, after which results are named."""
    return titles_of(path)[0]


def whole_number(text: str) -> str:
    """The digits of a whole number that a spreadsheet wrote as 10005.0 or 10005,0; other texts as they are."""
    found = _SPREADSHEET.fullmatch(text)
    return found[1] if found else text


def near(name: str, names: Iterable[str]) -> str | None:
    """Find the name most like one that was not found: equal but for case, its beginning, or with few changes.

    The first thousands of names are searched; None if none is like it.
    """
    wanted = whole_number(title_of(name)).casefold()
    lower: dict[str, str] = {}
    for each, _ in zip(names, range(_MOST_NEAR), strict=False):
        lower.setdefault(whole_number(title_of(each)).casefold(), each)
    if wanted in lower:
        return lower[wanted]
    if longer := [each for each in lower if wanted and each.startswith(wanted)]:
        return lower[min(longer)]
    if alike := difflib.get_close_matches(wanted, lower, 1):
        return lower[alike[0]]
    shorter = max((each for each in lower if each and wanted.startswith(each)), key=len, default="")
    return lower.get(shorter)


class Match(NamedTuple, Generic[T]):
    """Meaning of a name.

    Attributes:
        how: `EXACT`, `ITS_SUFFIX`, `OTHER_SUFFIX` or `NUMBER`.
        things: The things of that name; several if it is not clear which.
    """

    how: int
    things: list[T]


class Names(Generic[T]):
    """Things by name.

    Args:
        items: Names and things. A name may be that of a file, and have folders, as a path relative to the folder that
            holds all of them.
        anywhere: Whether folders in a name only choose between things of that name, and do not have to agree.

    Attributes:
        items: Names without folders, and things.

    Example:
        >>> from tfbig.sources import names
        >>> slides = names.Names([("a/case1.tif", 1), ("10005.svs", 2)])
        >>> slides.match("case1"), slides.match("case1.2"), slides.match("10005.0").things
        (Match(how=1, things=[1]), None, [2])
    """

    def __init__(self, items: Iterable[tuple[str, T]], anywhere: bool = False) -> None:
        self._anywhere = anywhere
        self._found: dict[tuple[int, str], list[tuple[PurePath, T]]] = {}
        self.items: list[tuple[str, T]] = []
        for name, thing in items:
            path = PurePath(name)
            self.items.append((path.name, thing))
            for key in self._keys(path.name):
                self._found.setdefault(key, []).append((path, thing))

    @staticmethod
    def _keys(name: str) -> list[tuple[int, str]]:
        """The keys by which a name is found, and by which it finds others."""
        name = unicodedata.normalize("NFC", name)
        titles = titles_of(name)
        keys = [(EXACT, name), *((ITS_SUFFIX, title) for title in titles)]
        return [*keys, (NUMBER, whole_number(titles[0]))]

    def match(self, name: str) -> Match[T] | None:
        """Find what a name, with or without suffix and folders, means; None if nothing."""
        path = PurePath(name)
        (_, exact), *titles, (_, number) = self._keys(path.name)
        steps = [
            (EXACT, [(EXACT, exact)]),
            (ITS_SUFFIX, [(ITS_SUFFIX, exact), *((EXACT, title) for _, title in titles)]),
            (OTHER_SUFFIX, titles),
            (NUMBER, [(NUMBER, number)] if number.isdecimal() else []),
        ]
        for how, keys in steps:
            found = [item for key in keys for item in self._found.get(key, ())]
            if things := self._in_folder(path, found):
                return Match(how, things)
        return None

    def _in_folder(self, path: PurePath, found: Sequence[tuple[PurePath, T]]) -> list[T]:
        """Choose the things whose folders are those of a path; else those of which nothing speaks against it."""
        agreeing = [(_agree(path, other, self._anywhere), thing) for other, thing in found]
        best = max((score for score, _ in agreeing), default=0)
        chosen: list[T] = []
        for score, thing in agreeing:
            if score == best > 0 and thing not in chosen:
                chosen.append(thing)
        return chosen


def _agree(path: PurePath, other: PurePath, anywhere: bool) -> int:
    """Score two paths: 2 if their last folders are the same, 1 if nothing speaks against it, 0 if something does."""
    first, second = (
        [p for p in each.parent.parts if p not in ("..", "/")] for each in (path, other)
    )
    count = min(len(first), len(second))
    if count and first[-count:] == second[-count:]:
        return 2
    return int(not count or anywhere or path.is_absolute())


def files(paths: Iterable[PathLike], folder: PathLike, anywhere: bool = False) -> Names[str]:
    """Index the files of a folder and its subfolders by name; `anywhere` is as in `Names`."""
    return Names(((os.path.relpath(path, folder), os.fspath(path)) for path in paths), anywhere)
