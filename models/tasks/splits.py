"""Tables that say what is learned from, what validates and what tests; and the split by patient where they do not."""

import csv
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfbig import SourceError

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Data:
    """Bags or images of a run, by split, and the names of the classes.

    Each split has `labels` and `failed`, `(name, reason)` of what was left out.
    """

    train: Any
    val: Any
    test: Any
    classes: tuple[str, ...]

    @property
    def failed(self):
        return [f for split in SPLITS for f in getattr(self, split).failed]


def read_table(path, columns):
    """Rows of a CSV file; `label` is a class 0, 1, ...

    Args:
        path: The file.
        columns: What it must have.

    Raises:
        SourceError: It is missing, lacks a column, or a label is no class.
    """
    if not path.exists():
        raise SourceError(
            f"{path}: there is no such file; expected columns {', '.join(columns)}. Check --data."
        )
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    missing = [name for name in columns if not rows or name not in rows[0]]
    if missing:
        raise SourceError(f"{path}: has no rows with column '{missing[0]}'; expected {columns}.")
    for number, row in enumerate(rows, start=2):
        if not row["label"].isdigit():
            raise SourceError(
                f"{path}: line {number}: label '{row['label']}' is no class 0, 1, ..."
            )
    return rows


def of_split(rows, split, path):
    """The rows of a split.

    Raises:
        SourceError: There are none.
    """
    chosen = [row for row in rows if row["split"] == split]
    if not chosen:
        raise SourceError(f"{path}: has no rows with split '{split}'.")
    return chosen


def split_rows(rows, shares=(0.7, 0.1, 0.2), seed=0):
    """Rows with a `split`, stratified by label; all rows of a `patient` are in one split.

    A patient whose rows have several labels counts for the first. Of each class the shares are met to one patient.

    Args:
        rows: With `label`, and `patient` where images share one.
        shares: Of training, validation and test.
        seed: Same seed, same split.
    """
    patients = {}
    for number, row in enumerate(rows):
        patients.setdefault(row.get("patient") or f"row {number}", []).append(row)
    rng = np.random.default_rng(seed)
    found = {}
    for label in sorted({group[0]["label"] for group in patients.values()}):
        own = [name for name, group in patients.items() if group[0]["label"] == label]
        ends = np.round(np.cumsum(shares) / sum(shares) * len(own)).astype(int)
        for place, which in enumerate(rng.permutation(len(own))):
            found[own[which]] = SPLITS[int(np.searchsorted(ends, place, side="right"))]
    return [
        {**row, "split": found[row.get("patient") or f"row {number}"]}
        for number, row in enumerate(rows)
    ]


def print_counts(data, kind, describe):
    """Items and classes of every split; what was left out goes to standard error.

    Args:
        data: Of the run.
        kind: What an item is.
        describe: From a split to a few words on its items.
    """
    for split in SPLITS:
        found = getattr(data, split)
        counts = np.bincount(found.labels, minlength=len(data.classes))
        kinds = ", ".join(f"{n} {name}" for n, name in zip(counts, data.classes, strict=True))
        print(f"{split}: {len(found.labels)} {kind} {describe(found)} ({kinds})")
    for name, reason in data.failed:
        print(f"left out {name}: {reason}", file=sys.stderr)
