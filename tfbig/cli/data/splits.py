"""Tables of training, validation and test data, and splits by patient where a table has none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from tfbig import SourceError
from tfbig.cli import machine
from tfbig.cli.data.run_data import Data
from tfbig.errors import one_line
from tfbig.results import run_folder
from tfbig.sources.names import whole_number
from tfbig.sources.table import SPLITS, Cells, Table, cases_of


def with_classes(
    table: Table, names: Sequence[str] | None = None, count: int | None = None
) -> tuple[Table, tuple[str, ...]]:
    """Write the number of a class as `label` into a table, and name the classes.

    Names are in order; by default they are the labels, sorted, or the numbers 0, 1, ... that these are, up to a count.

    Raises:
        SourceError: A label is not one of the classes, a number up to the largest is no label, or there is one label.
    """
    table = _with_whole_labels(table, names)
    if names is None:
        names = [*map(str, range(count))] if count else _names(table)
    number = {name: index for index, name in enumerate(names)}
    for row in table.rows:
        if row["label"] not in number:
            classes = ", ".join(names) if len(names) < 20 else f"{names[0]} to {names[-1]}"
            raise SourceError(f"{row.place}: label '{row['label']}'; expected one of {classes}.")
    numbered = (row | {"label": number[row["label"]]} for row in table.rows)
    return table.with_rows(numbered), tuple(names)


def _with_whole_labels(table: Table, names: Sequence[str] | None) -> Table:
    """Write labels 0, 1, ... for 0.0, 1.0, ... of spreadsheets, unless classes are named so."""
    labels = [whole_number(row["label"]) for row in table.rows]
    if not all(label.isdecimal() for label in (*labels, *(names or ()))):
        return table
    return table.with_rows(
        row | {"label": label} for row, label in zip(table.rows, labels, strict=True)
    )


def _names(table: Table) -> list[str]:
    """Sort the labels; if they are numbers, there is one for every number up to the largest."""
    rows, path = table.rows, table.path
    kinds = sorted({row["label"] for row in rows})
    numbers = sorted(int(label) for label in kinds if label.isdecimal())
    _warn_of_similar(kinds, path)
    if len(kinds) == 1:
        raise SourceError(
            f"{path}: has only one label: {kinds[0]}. Check the labels, or name all with --class-names."
        )
    if 0 < len(numbers) < len(kinds):
        row = next(row for row in rows if row["label"].isdecimal() != rows[0]["label"].isdecimal())
        raise SourceError(
            f"{row.place}: label '{row['label']}', but {rows[0].line} has '{rows[0]['label']}'; expected names, or "
            "numbers 0, 1, 2, ..., in all lines. Check the labels, or name all with --class-names."
        )
    if not numbers:
        return kinds
    gap = next((n for n, number in enumerate(numbers) if n != number), None)
    if gap is not None:
        row = next(row for row in rows if int(row["label"]) > gap)
        raise SourceError(
            f"{row.place}: label {row['label']}, but no line has label {gap}; expected 0, 1, 2, ... without gaps. "
            f"Correct the label, or name all classes with --class-names {' '.join(map(str, numbers))}."
        )
    return [str(number) for number in numbers]


def _warn_of_similar(names: Sequence[str], path: Path) -> None:
    """Print to standard error which names of classes differ only in upper and lower case."""
    by_letters: dict[str, list[str]] = {}
    for name in names:
        by_letters.setdefault(name.casefold(), []).append(name)
    for similar in by_letters.values():
        if len(similar) > 1:
            print(
                f"warning: {path}: the labels {' and '.join(similar)} differ only in case, and count as different "
                "classes",
                file=sys.stderr,
            )


def split_rows(
    rows: Sequence[dict[str, Any]], shares: Sequence[float] = (0.7, 0.1, 0.2), seed: int = 0
) -> list[Any]:
    """Draw the `split` of rows, stratified by `stratum`, else by label; all rows of a case are in one split.

    A case with several strata counts for its first. The shares of all cases are exact up to one case, those of each
    class up to one and a half; classes of few cases share a validation set. The same seed makes the same split.
    """
    rng = np.random.default_rng(seed)
    ordered = [
        cases[place] for cases in cases_by_stratum(rows) for place in rng.permutation(len(cases))
    ]
    split_of_case = dict(zip(ordered, _interleaved(shares, len(ordered)), strict=True))
    return [
        row | {"split": split_of_case[case]} for row, case in zip(rows, cases_of(rows), strict=True)
    ]


def _interleaved(shares: Sequence[float], count: int) -> Iterator[str]:
    """Yield splits so that consecutive ones have nearly the shares: always the one that is most behind its share."""
    fractions, counts = np.array(shares) / sum(shares), np.zeros(len(shares), int)
    for number in range(1, count + 1):
        split = int(np.argmax(fractions * number - counts))
        counts[split] += 1
        yield SPLITS[split]


def read_clam_splits(path: Path) -> dict[str, str]:
    """Read the split of each slide in a file `splits_0.csv` of CLAM, with columns `train`, `val` and `test`.

    Raises:
        SourceError: The file is missing, lacks a column, or has a slide in two of them.
    """
    table = Table.read(path, either=[(split,) for split in SPLITS], flag="--splits")
    split_of_slide: dict[str, str] = {}
    for row in table.rows:
        for split in SPLITS:
            name = row[split]
            if name and split_of_slide.setdefault(name, split) != split:
                raise SourceError(
                    f"{path}: slide {name} is in '{split_of_slide[name]}' and in '{split}'. Remove one."
                )
    return split_of_slide


def write_clam_splits(path: Path, rows: Sequence[Cells]) -> None:
    """Write the splits of rows with `slide_id` in columns, the format of CLAM."""
    columns = [[row["slide_id"] for row in rows if row["split"] == split] for split in SPLITS]
    lines = [
        {"": place, **dict(zip(SPLITS, names, strict=True))}
        for place, names in enumerate(zip_longest(*columns, fillvalue=""))
    ]
    run_folder.write_csv(path, lines)


def check_failed(failed: Iterable[tuple[str, str]], strict: bool) -> None:
    """Print what was skipped to standard error, or raise it with `--strict`.

    Raises:
        SourceError: `strict` is set, and something failed.
    """
    for name, reason in failed:
        if strict:
            raise SourceError(reason if name in reason else f"{name}: {reason}")
        print(
            f"skipped {reason if reason.startswith(name) else f'{name}: {reason}'}", file=sys.stderr
        )


def write_tables(
    table: Sequence[Mapping[str, Any]], failed: Sequence[tuple[str, str]], folder: Path
) -> None:
    """Write `slides.csv` with the split of each slide, and `failed.csv`."""
    if table:
        run_folder.write_csv(folder / run_folder.SLIDES, table)
    for name, reason in failed:
        run_folder.save_failure(folder, name, one_line(reason).removeprefix(f"{name}: "))


def exit_code(folder: Path) -> int:
    """The exit code: 3 if something was skipped, now or before, and is listed in `failed.csv`, else 0."""
    return 3 if (folder / run_folder.FAILED).exists() else 0


def print_failed(folder: Path) -> None:
    """Print to standard error how many items were skipped, if any."""
    if failed := run_folder.read_rows(folder / run_folder.FAILED):
        print(f"{len(failed)} skipped, see {folder / run_folder.FAILED}", file=sys.stderr)


def strata_of(rows: Sequence[Cells]) -> dict[str, Any]:
    """The stratum of each case, or its label if it has any; a case has that of its first row."""
    strata: dict[str, Any] = {}
    for row, case in zip(rows, cases_of(rows), strict=True):
        strata.setdefault(case, row.get("stratum", row.get("label", "")))
    return strata


def cases_by_stratum(rows: Sequence[Cells]) -> list[list[str]]:
    """Group the cases by stratum, in the order of the strata."""
    groups: dict[Any, list[str]] = {}
    for case, stratum in strata_of(rows).items():
        groups.setdefault(stratum, []).append(case)
    return [groups[stratum] for stratum in sorted(groups)]


def print_counts(
    data: Data,
    describe: Callable[[Any], str],
    count: Callable[[Any], str] | None = None,
) -> None:
    """Print what `describe` and `count` say of every split; by default, `count` says the items of each class."""
    for split, part in ((split, part) for split, part in data.sets.items() if len(part.labels)):
        words = count(part) if count else _class_counts(part, data.classes)
        number, items = len(part.labels), part.ITEMS
        noun = items.removesuffix("s") if number == 1 else items
        print(f"{split}: {number} {noun} {describe(part)} ({words})")
        if not count:
            counts = np.bincount(part.labels, minlength=len(data.classes))
            missing = [name for n, name in zip(counts, data.classes, strict=True) if not n]
            warn_of_missing(split, items, missing)


def _class_counts(part: Any, classes: Sequence[str]) -> str:
    counts = np.bincount(part.labels, minlength=len(classes))
    return ", ".join(f"{n} {name}" for n, name in zip(counts, classes, strict=True))


def warn_of_missing(split: str, items: str, missing: Sequence[str], reason: str = "") -> None:
    """Print to standard error which classes no item of a split has, and what follows; of several workers the first."""
    if not missing or not machine.is_chief():
        return
    where, follows = f"in {split}", "which its metrics cannot judge"
    if split == "train":
        where, follows = "to train on", "which cannot be learned"
    text = f"none of the {items} {where} has the class {', '.join(missing)}, {follows}{reason}"
    print(f"warning: {text}", file=sys.stderr)
