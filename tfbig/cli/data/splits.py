"""Tables that say what is learned from, what validates and what tests; and the split by patient where they do not."""

import csv
import sys
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from tfbig import SourceError
from tfbig.results import run_folder

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Data:
    """Bags or images of a run, by split, and the names of the classes.

    Each split has `labels` and `failed`, `(name, reason)` of what was left out. Rows of `table`, where there is one,
    say which slide is in which split.
    """

    train: Any
    val: Any
    test: Any
    classes: tuple[str, ...]
    table: tuple[dict, ...] = ()

    def mapped(self, change):
        """The same with each of its sets changed."""
        sets = [getattr(self, split) for split in SPLITS]
        changed = {id(found): change(found) for found in {id(s): s for s in sets}.values()}
        return replace(
            self,
            **{split: changed[id(found)] for split, found in zip(SPLITS, sets, strict=True)},
        )

    @property
    def failed(self):
        return list(dict.fromkeys(f for split in SPLITS for f in getattr(self, split).failed))


def read_table(path, columns, names=False):
    """Rows of a CSV file; `label` is a class 0, 1, ...

    Args:
        path: The file.
        columns: What it must have.
        names: Labels may be names.

    Raises:
        SourceError: It is missing, lacks a column, or a label is no class.
    """
    if not path.exists():
        raise SourceError(
            f"{path}: there is no such file; expected columns {', '.join(columns)}. Check --data."
        )
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    missing = [name for name in columns if not rows or name not in rows[0]]
    if missing:
        raise SourceError(f"{path}: has no rows with column '{missing[0]}'; expected {columns}.")
    for number, row in enumerate(rows, start=2):
        if not (row["label"] or "").strip():
            raise SourceError(
                f"{path}: line {number}: has no label. Give it one, or take the line out."
            )
        if not names and not row["label"].isdigit():
            raise SourceError(
                f"{path}: line {number}: label '{row['label']}' is no class 0, 1, ..."
            )
    return rows


def check_inside(paths, folders):
    """Refuses files that are not in the folders, with links and `..` followed.

    Raises:
        SourceError: one is elsewhere.
    """
    allowed = [Path(folder).resolve() for folder in folders]
    for path in paths:
        real = Path(path).resolve()
        if not any(real.is_relative_to(folder) for folder in allowed):
            raise SourceError(
                f"{path}: lies outside of {' and '.join(map(str, dict.fromkeys(allowed)))}, and --confine is set. Copy "
                "it there, or leave --confine out if you trust the table."
            )


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
    """Rows with a `split`, stratified by label; all rows of a case are in one split.

    A case whose rows have several labels counts for the first. Of each class the shares are met to one case.

    Args:
        rows: With `label`, and `case_id` or `patient` where images share one.
        shares: Of training, validation and test.
        seed: Same seed, same split.
    """
    rng = np.random.default_rng(seed)
    found = {}
    for own in _cases_by_label(rows):
        ends = np.round(np.cumsum(shares) / sum(shares) * len(own)).astype(int)
        for place, which in enumerate(rng.permutation(len(own))):
            found[own[which]] = SPLITS[int(np.searchsorted(ends, place, side="right"))]
    return [{**row, "split": found[case]} for row, case in zip(rows, _cases(rows), strict=True)]


def fold_rows(rows, folds, fold, seed=0):
    """Rows with a `split` of k-fold cross-validation: fold `fold` tests, the next one validates, the others train.

    Every case tests in one fold; classes are dealt evenly, to one case.

    Args:
        rows: As in `split_rows`.
        folds: How many, 3 or more.
        fold: 0 to `folds` - 1.
        seed: Same seed, same folds.

    Raises:
        SourceError: There are fewer than 3 folds, or there is no such fold, or there are fewer cases than folds.
    """
    if folds < 3 or not 0 <= fold < folds:
        raise SourceError(
            f"--folds {folds}, --fold {fold}: expected 3 folds or more (one tests, one validates), and a fold from 0."
        )
    rng = np.random.default_rng(seed)
    dealt = {}
    for own in _cases_by_label(rows):
        for which in rng.permutation(len(own)):
            dealt[own[which]] = (len(dealt) - fold) % folds
    if len(dealt) < folds:
        raise SourceError(f"{len(dealt)} cases make no {folds} folds. Give fewer --folds.")
    return [
        {**row, "split": {0: "test", 1: "val"}.get(dealt[case], "train")}
        for row, case in zip(rows, _cases(rows), strict=True)
    ]


def read_clam_splits(path):
    """`{slide: split}` of a file `splits_0.csv` of CLAM, with columns `train`, `val` and `test`.

    Raises:
        SourceError: It is missing, or has not these columns, or a slide is in two of them.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path}: cannot be read ({error}). Check --splits.") from error
    if not rows or any(split not in rows[0] for split in SPLITS):
        raise SourceError(f"{path}: expected columns {', '.join(SPLITS)}, as CLAM has them.")
    found = {}
    for row in rows:
        for split in SPLITS:
            name = (row[split] or "").strip()
            if name and found.setdefault(name, split) != split:
                raise SourceError(f"{path}: slide {name} is in '{found[name]}' and in '{split}'.")
    return found


def write_clam_splits(path, rows):
    """The split of rows with `slide_id`, in columns, as CLAM has it."""
    columns = [[row["slide_id"] for row in rows if row["split"] == split] for split in SPLITS]
    lines = [
        {"": place, **dict(zip(SPLITS, names, strict=True))}
        for place, names in enumerate(zip_longest(*columns, fillvalue=""))
    ]
    run_folder.write_csv(path, lines)


def check_failed(failed, strict):
    """With `--strict` what cannot be used ends the run; else it is named on standard error.

    Raises:
        SourceError: strict, and something failed.
    """
    for name, reason in failed:
        if strict:
            raise SourceError(reason if name in reason else f"{name}: {reason}")
        print(f"left out {name}: {reason}", file=sys.stderr)


def write_notes(data, folder):
    """Writes which slide is in which split, `slides.csv`, and what was left out, `failed.csv`; gives the exit code."""
    if data.table:
        run_folder.write_csv(folder / "slides.csv", data.table)
    return exit_code(data.failed, folder)


def exit_code(failed, folder):
    """0, or 3 where something was left out, now or before, which `failed.csv` then names."""
    for name, reason in failed:
        row = {"slide": name, "reason": " ".join(reason.split())}
        run_folder.replace_row(folder / run_folder.FAILED, "slide", name, row)
    return 3 if (folder / run_folder.FAILED).exists() else 0


def _cases(rows):
    """The case of every row; one without is a case of its own."""
    return [
        row.get("case_id") or row.get("patient") or f"row {number}"
        for number, row in enumerate(rows)
    ]


def _cases_by_label(rows):
    """The cases of each label, which is that of their first row, by label."""
    labels = {}
    for row, case in zip(rows, _cases(rows), strict=True):
        labels.setdefault(case, row["label"])
    return [
        [case for case, own in labels.items() if own == label]
        for label in sorted(set(labels.values()))
    ]


def print_counts(data, kind, describe):
    """Prints items and classes of every split.

    Args:
        data: Of the run.
        kind: What an item is.
        describe: From a split to a few words on its items.
    """
    for split in SPLITS if data.train is not data.test else ("test",):
        found = getattr(data, split)
        counts = np.bincount(found.labels, minlength=len(data.classes))
        kinds = ", ".join(f"{n} {name}" for n, name in zip(counts, data.classes, strict=True))
        print(f"{split}: {len(found.labels)} {kind} {describe(found)} ({kinds})")
