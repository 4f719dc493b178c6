"""Slides of the lymph nodes of CAMELYON, and their labels: normal or tumour."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfbig import SourceError
from tfbig.cli.data.collection_tables import read_rows
from tfbig.sources.names import title_of
from tfbig.sources.table import SPLITS
from tfbig.units import counted

LYMPH_NODES = ("normal", "tumour")
NORMAL = {"0": 0, "negative": 0, "normal": 0}
TUMOUR = dict.fromkeys(("1", "itc", "micro", "macro", "tumor", "tumour", "positive"), 1)
"""Labels of slides of CAMELYON: 0 and 1, stages of `stages.csv`, and the names of both challenges."""
NO_SLIDES = ("masks", "background_tissue", "annotations")
"""Folders of CAMELYON with images that are named as the slides."""


def slides_of(folder: Path, pattern: str) -> dict[str, Path]:
    """Find the slides of CAMELYON in a folder and its subfolders, by name without suffix."""
    paths = sorted(folder.rglob("*.tif"))
    return {
        path.stem: path
        for path in paths
        if re.fullmatch(pattern, path.stem)
        and not {part.lower() for part in path.relative_to(folder).parts} & {*NO_SLIDES}
    }


@dataclass(frozen=True)
class Corrected:
    """Corrected labels of slides, such as those of Ling et al. (2025), and their splits if the table has them."""

    file: Path
    labels: Mapping[str, int]
    splits: Mapping[str, str]

    def notes(self, folder: Path, slides: Mapping[str, Path]) -> list[str]:
        """Say where labels are from, and how many slides they leave out."""
        out = len(slides.keys() - self.labels.keys())
        return [
            f"labels of {self.file.relative_to(folder)}, without {counted(out, 'slide')} that it leaves out"
        ]


def corrected_labels(folder: Path, pattern: str) -> Corrected | None:
    """Read the labels of the first table with columns `slide_id` and `label` whose slides fit the pattern."""
    for file in sorted(folder.rglob("*.csv")):
        with file.open(encoding="utf-8-sig", errors="replace") as opened:
            columns = opened.readline().strip().split(",")
        if not {"slide_id", "label"} <= {*columns}:
            continue
        names = ("slide_id", "label", "split")
        wanted: dict[str, Sequence[str]] = {key: (key,) for key in names if key in columns}
        rows = [
            (line, row | {"slide_id": title_of(row["slide_id"])})
            for line, row in enumerate(read_rows(file, wanted), start=2)
        ]
        rows = [(line, row) for line, row in rows if re.fullmatch(pattern, row["slide_id"])]
        if rows:
            labels = {
                row["slide_id"]: label_of(row["label"], row["slide_id"], file, line)
                for line, row in rows
            }
            splits = {r["slide_id"]: r["split"] for _, r in rows if r.get("split") in SPLITS}
            return Corrected(file, labels, splits)
    return None


def label_of(text: str, slide: str, file: Path, line: int) -> int:
    """Read a label: 0 for a lymph node without metastasis, 1 for one with a metastasis."""
    labels = NORMAL | TUMOUR
    if text.lower() not in labels:
        raise SourceError(
            f"{file}: line {line}: {slide} has label '{text}'; expected one of {', '.join(labels)}."
        )
    return labels[text.lower()]
