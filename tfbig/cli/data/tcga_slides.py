"""Slides of TCGA, whose names say the case, the kind of the sample and the section."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfbig import sources

TCGA = re.compile(r"(TCGA-\w\w-\w{4})-(\d\d)[A-Z]-\d\d-(DX|TS|BS|MS)\w*", re.IGNORECASE)
"""Barcode of a slide: the case, the kind of the sample, and whether it is diagnostic (DX) or a frozen section."""


@dataclass(frozen=True)
class TCGASlide:
    """A slide of TCGA: its case, the kind of its sample, its section and its file."""

    case: str
    sample: str
    section: str
    path: Path


def slides_of(folder: Path, diagnostic: bool = False) -> Iterator[TCGASlide]:
    """Yield the slides of a folder, sorted by name; only the diagnostic ones if asked for."""
    paths = (p for p in folder.rglob("*") if p.suffix.lower() in sources.SLIDE_SUFFIXES)
    for path in sorted(paths, key=lambda p: p.name):
        if match := TCGA.match(path.name):
            case, sample, section = match.groups()
            if section.upper() == "DX" or not diagnostic:
                yield TCGASlide(case.upper(), sample, section.upper(), path)
