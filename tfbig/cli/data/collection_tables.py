"""What is found of a published data set: tables of its items, what is missing, and by which rule it was split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfbig.cli.data.feature_folders import FeatureFiles
from tfbig.sources.table import SPLITS, Row, Table

MANY = 10
"""Number of entries from which on missing files are counted instead of named."""
EIGHTY_TWENTY = (0.72, 0.08, 0.2)
"""Shares of 80:20, with a tenth of the training share for validation."""


@dataclass
class CollectionTable:
    """Items of a data set that a run reads as a table.

    Attributes:
        classes: Names of the classes, in order.
        name: Name of its file, without suffix.
        rows: Dicts of `case_id`, `slide_id`, `label` (a name), `split` and `path`.
        twice: Files whose item is in the table already; they are left out.
    """

    classes: tuple[str, ...]
    name: str = "slides"
    rows: list[dict[str, str]] = field(default_factory=list)
    twice: list[Path] = field(default_factory=list)
    _names: set[str] = field(default_factory=set, repr=False)

    def add(self, case: str, item: str, label: int, path: Path, split: str = "") -> None:
        """Add an item.

        Args:
            case: Its case, such as the patient; items of a case are in one split.
            item: Its name.
            label: Its class, an index of `classes`.
            path: Its file.
            split: Its split, or an empty text.
        """
        if item in self._names:
            self.twice.append(path)
            return
        self._names.add(item)
        row = {"case_id": case, "slide_id": item, "label": self.classes[label]}
        self.rows.append(row | {"split": split, "path": str(path.resolve())})

    def of_split(self, split: str) -> list[dict[str, str]]:
        """Return the rows of a split."""
        return [row for row in self.rows if row["split"] == split]

    def counts(self, split: str) -> str:
        """Return the number of items of each class in a split, as text."""
        number = Counter(row["label"] for row in self.of_split(split))
        return ", ".join(f"{number[name]} {name}" for name in self.classes)

    @property
    def empty_splits(self) -> list[str]:
        """Splits without an item."""
        return [split for split in SPLITS if not self.of_split(split)]

    @property
    def is_trainable(self) -> bool:
        """True if there are items to train and to validate on; without others, results are of those of validation."""
        return not {"train", "val"}.intersection(self.empty_splits)

    def gaps(self) -> Iterator[str]:
        """Yield what a training on the table lacks, one line each."""
        if self.empty_splits:
            names = " and ".join(self.empty_splits)
            yield f"{self.name}.csv: items in split {names}; training needs train and val"
        there = {row["label"] for row in self.of_split("train")}
        lacking = [name for name in self.classes if name not in there]
        if lacking and there:
            yield f"{self.name}.csv: items to train on of class {', '.join(lacking)}"


@dataclass
class Found:
    """The contents of the folder of a data set.

    Attributes:
        tables: Tables that runs read.
        folder: Folder that runs read without a table, or None.
        there: Lines that say what is there, besides the tables.
        missing: Files and entries that are missing, one line each.
        notes: Rules that were applied, one line each.
    """

    tables: list[CollectionTable] = field(default_factory=list)
    folder: Path | None = None
    there: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_rows(path: Path, columns: Mapping[str, Sequence[str]]) -> list[Row]:
    """Read the rows of a CSV or TSV file; `columns` are the names that each may have, by its name in the result.

    Raises:
        SourceError: The file cannot be read, has no rows, or lacks a column.
    """
    table = Table.read(path, either=[*columns.values()], flag="")
    present = {k: next(n for n in names if n in table.columns) for k, names in columns.items()}
    return [Row({key: row[name] for key, name in present.items()}, row.place) for row in table.rows]


def with_features(table: CollectionTable, folder: Path) -> tuple[CollectionTable, list[str]]:
    """The table of the files of features of slides, and the names of slides without one.

    The folder, with subfolders, holds `SLIDE.h5`, as CLAM and TRIDENT write them.
    """
    files = FeatureFiles(folder)
    bags, without = CollectionTable(table.classes, "bags"), []
    for row in table.rows:
        name = row["slide_id"]
        if found := files.match(name):
            label = table.classes.index(row["label"])
            bags.add(row["case_id"], name, label, found.things[0], row["split"])
        else:
            without.append(f"{name}.h5")
    return bags, without


def first_of(folder: Path, *patterns: str) -> Path | None:
    """Find the first file of a folder and its subfolders that fits a pattern, the patterns in order."""
    found = (path for pattern in patterns for path in sorted(folder.rglob(pattern)))
    return next(found, None)


def shortened(lines: Sequence[str], what: str) -> list[str]:
    """The lines, or if there are many the first of them and the number of all; `what` is a plural noun."""
    if len(lines) <= MANY:
        return list(lines)
    return [*lines[: MANY - 1], f"... {len(lines)} {what} in all"]
