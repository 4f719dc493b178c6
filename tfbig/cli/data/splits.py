"""Tables of training, validation and test data, and splits by patient where a table has none."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tfbig import SourceError
from tfbig.errors import one_line
from tfbig.results import run_folder
from tfbig.sources import Bag, Coords, Slide, csv_table
from tfbig.sources.names import whole_number

SPLITS = ("train", "val", "test")
Row: TypeAlias = dict[str, Any]
"""A row of a table."""
Placed: TypeAlias = tuple[Callable[[], Slide], Coords]
"""Function that opens the slide of a bag, and the tiles of the bag."""


@dataclass(frozen=True)
class Data:
    """Bags or images of a run, by split.

    Attributes:
        train: Training set, with `labels`, and `failed`: `(name, reason)` of items that were skipped.
        val: Validation set.
        test: Test set.
        classes: Names of the classes, or of several labels; empty for survival and numbers.
        cases: Names of the cases, if labels number them.
        table: Rows that say which slide is in which split, if known.
        decided: Settings that the data decide, which are saved with the run.
        placed_on: Function from a bag to a function that opens its slide, and its tiles; None for other bags.
    """

    train: Any
    val: Any
    test: Any
    classes: tuple[str, ...]
    cases: tuple[str, ...] = ()
    table: tuple[Row, ...] = ()
    decided: Mapping[str, Any] = field(default_factory=dict)
    placed_on: Callable[[Bag], Placed | None] = lambda bag: None

    @classmethod
    def of(cls, sets: Sequence[Any], classes: tuple[str, ...], **others: Any) -> Data:
        """Return the data of a training, a validation and a test set.

        Args:
            sets: The three sets.
            classes: Names of the classes.
            **others: Further attributes.
        """
        train, val, test = sets
        return cls(train, val, test, classes, **others)

    @classmethod
    def opened(
        cls,
        open_split: Callable[[str], Any],
        classes: tuple[str, ...],
        test_only: bool,
        **others: Any,
    ) -> Data:
        """Return the data of all splits, or in an evaluation of the test set alone.

        Args:
            open_split: Function from the name of a split to its set.
            classes: Names of the classes.
            test_only: Whether it is an evaluation.
            **others: Further attributes.
        """
        if test_only:
            return cls.of([open_split("test")] * 3, classes, **others)
        return cls.of([open_split(split) for split in SPLITS], classes, **others)

    def mapped(self, change: Callable[[Any], Any]) -> Data:
        """Return a copy with each set replaced by `change(set)`."""
        sets = [getattr(self, split) for split in SPLITS]
        changed = {id(part): change(part) for part in {id(s): s for s in sets}.values()}
        return replace(
            self,
            **{split: changed[id(part)] for split, part in zip(SPLITS, sets, strict=True)},
        )

    @property
    def failed(self) -> list[tuple[str, str]]:
        """Return `(name, reason)` of every skipped item."""
        return list(dict.fromkeys(f for split in SPLITS for f in getattr(self, split).failed))


def read_table(path: Path, columns: Sequence[str], numbered: Sequence[str] = ()) -> list[Row]:
    """Return the rows of a CSV file; `place` of a row names the file and its line in errors.

    Args:
        path: Path of the file.
        columns: Columns that it must have, with a value in each row.
        numbered: Columns that it must have too, such as `image`, or in its place `image_0`, `image_1`, ...

    Raises:
        SourceError: The file is missing, or lacks a column, a value or a split of that name.
    """
    named = [*(f"{name} (or {name}_0, {name}_1, ...)" for name in numbered), *columns]
    expected = f"expected a table with columns {', '.join(named)}"
    if not path.exists():
        raise SourceError(f"{path}: no such file; {expected}. Check --data.")
    rows = _csv_rows(path, "--data")
    if not rows:
        raise SourceError(f"{path}: has no rows; {expected}. Check --data.")
    missing = [name for name in numbered if not numbered_columns(rows[0], name)]
    if missing := missing + [name for name in columns if name not in rows[0]]:
        raise SourceError(
            f"{path}: line 1: has no column {' and no column '.join(map(repr, missing))}; {expected}. "
            f"{_about_columns(rows[0])}"
        )
    rows = [row | {"place": f"{path}: line {n}"} for n, row in enumerate(rows, start=2)]
    for row in rows:
        _check_row(row, columns)
    return rows


def numbered_columns(row: Row, name: str) -> list[str]:
    """Return the columns of a row that are `name`, or `name_0`, `name_1`, ...

    Args:
        row: The row.
        name: The name.
    """
    return [key for key in row if key == name or str(key).startswith(f"{name}_")]


def _about_columns(row: Row) -> str:
    """Return what columns a table has instead of others, and what to do."""
    names = [name for name in row if name]
    if not names:
        return "Its first line is empty."
    return f"It has {', '.join(names)}. Rename or add columns."


def _check_row(row: Row, columns: Sequence[str]) -> None:
    """Check that a row has a value in every column, and a split that exists.

    Raises:
        SourceError: It has not.
    """
    if empty := [name for name in columns if not (row[name] or "").strip()]:
        raise SourceError(f"{row['place']}: has no {empty[0]}. Add one, or remove the line.")
    split = row.get("split", "train")
    if split not in SPLITS:
        raise SourceError(f"{row['place']}: split '{split}'; expected train, val or test.")


def with_classes(
    rows: Sequence[Row],
    path: Path,
    names: Sequence[str] | None = None,
    count: int | None = None,
) -> tuple[list[Row], tuple[str, ...]]:
    """Return the rows with `label` as the number of a class, and the names of the classes.

    Args:
        rows: Rows of `read_table`.
        path: Path of the table, for errors.
        names: Names of the classes in order; by default the labels, sorted, or the numbers 0, 1, ... that they are.
        count: Number of classes, if labels are numbers.

    Raises:
        SourceError: A label is not one of the classes, a number up to the largest is no label, or there is one label.
    """
    rows = _with_whole_labels(rows, names)
    if names is None:
        names = [*map(str, range(count))] if count else _names(rows, path)
    number = {name: index for index, name in enumerate(names)}
    for row in rows:
        if row["label"] not in number:
            classes = ", ".join(names) if len(names) < 20 else f"{names[0]} to {names[-1]}"
            raise SourceError(f"{row['place']}: label '{row['label']}'; expected one of {classes}.")
    return [row | {"label": number[row["label"]]} for row in rows], tuple(names)


def _with_whole_labels(rows: Sequence[Row], names: Sequence[str] | None) -> Sequence[Row]:
    """Return the rows with labels 0, 1, ... where a spreadsheet wrote 0.0, 1.0, ..., unless classes have such names."""
    labels = [whole_number(row["label"]) for row in rows]
    if not all(label.isdecimal() for label in (*labels, *(names or ()))):
        return rows
    return [row | {"label": label} for row, label in zip(rows, labels, strict=True)]


def _names(rows: Sequence[Row], path: Path) -> list[str]:
    """Return the labels, sorted; if they are numbers, there is one for every number up to the largest."""
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
            f"{row['place']}: label '{row['label']}', but line 2 has '{rows[0]['label']}'; expected names, or numbers "
            "0, 1, 2, ..., in all lines. Check the labels, or name all with --class-names."
        )
    if not numbers:
        return kinds
    gap = next((n for n, number in enumerate(numbers) if n != number), None)
    if gap is not None:
        row = next(row for row in rows if int(row["label"]) > gap)
        raise SourceError(
            f"{row['place']}: label {row['label']}, but no line has label {gap}; expected 0, 1, 2, ... without gaps. "
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


def _csv_rows(path: Path, flag: str) -> list[Row]:
    """Return the rows of a CSV file.

    Raises:
        SourceError: The file cannot be read, or is not text.
    """
    try:
        return [
            {_stripped(name): _stripped(cell) for name, cell in row.items()}
            for row in csv_table.read_rows(path)
        ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(
            f"{path}: cannot be read as a CSV file in UTF-8 ({one_line(error)}). Check {flag}."
        ) from error


def _stripped(text: Any) -> Any:
    """Return a cell in one line without spaces around it; rows that are too short or too long have other values."""
    if not isinstance(text, str):
        return text
    return " ".join(text.split()) if {*text} & {*"\n\r\t"} else text.strip()


def check_inside(paths: Iterable[str | Path], folders: Iterable[str | Path]) -> None:
    """Check that files are inside the folders, after following links and `..`.

    Args:
        paths: Paths of the files.
        folders: Allowed folders.

    Raises:
        SourceError: A file is elsewhere.
    """
    allowed = [Path(folder).resolve() for folder in folders]
    for path in paths:
        real = Path(path).resolve()
        if not any(real.is_relative_to(folder) for folder in allowed):
            raise SourceError(
                f"{path}: lies outside of {' and '.join(map(str, dict.fromkeys(allowed)))}, and --confine is set. Copy "
                "it there, or remove --confine if you trust the table."
            )


def of_split(rows: Sequence[Row], split: str, path: Path) -> list[Row]:
    """Return the rows of a split.

    Args:
        rows: Rows of the table.
        split: Name of the split.
        path: Path of the table, for the error.

    Raises:
        SourceError: The split has no rows.
    """
    chosen = [row for row in rows if row["split"] == split]
    if not chosen:
        raise SourceError(
            f"{path}: none of {len(rows)} images of {len(set(cases_of(rows)))} cases is in split '{split}'. Correct "
            "the column split (train, val, test); if there is none, add images, or give the split a larger part in "
            "--shares."
        )
    return chosen


def none_usable(items: str, split: str, failed: Sequence[tuple[str, str]]) -> SourceError:
    """Return the error of a split of which nothing can be used.

    Args:
        items: What the items are, in the plural.
        split: Name of the split.
        failed: `(name, reason)` of all items of the split.
    """
    return SourceError(
        f"none of the {items} in split '{split}' can be used ({len(failed)} of {len(failed)} failed). The first: "
        f"{failed[0][1]} Correct it, or change the splits by --shares or a column split."
    )


def split_rows(
    rows: Sequence[Row], shares: Sequence[float] = (0.7, 0.1, 0.2), seed: int = 0
) -> list[Row]:
    """Return the rows with a `split`, stratified by `stratum`, else by label; all rows of a case are in one split.

    A case with several strata counts for its first. The shares of all cases are exact up to one case, those of each
    class up to one and a half; classes of few cases share a validation set.

    Args:
        rows: Rows with `stratum` or `label`, and with `case_id` or `patient` where images share one.
        shares: Shares of training, validation and test.
        seed: Random seed; same seed, same split.
    """
    rng = np.random.default_rng(seed)
    ordered = [
        cases[place] for cases in cases_by_stratum(rows) for place in rng.permutation(len(cases))
    ]
    split_of_case = dict(zip(ordered, _interleaved(shares, len(ordered)), strict=True))
    return [
        {**row, "split": split_of_case[case]}
        for row, case in zip(rows, cases_of(rows), strict=True)
    ]


def _interleaved(shares: Sequence[float], count: int) -> Iterator[str]:
    """Yield splits so that consecutive ones have nearly the shares: always the one that is most behind its share."""
    fractions, counts = np.array(shares) / sum(shares), np.zeros(len(shares), int)
    for number in range(1, count + 1):
        split = int(np.argmax(fractions * number - counts))
        counts[split] += 1
        yield SPLITS[split]


def read_clam_splits(path: Path) -> dict[str, str]:
    """Return `{slide: split}` of a file `splits_0.csv` of CLAM, with columns `train`, `val` and `test`.

    Args:
        path: Path of the file.

    Raises:
        SourceError: The file is missing, lacks a column, or has a slide in two of them.
    """
    rows = _csv_rows(path, "--splits")
    if not rows or any(split not in rows[0] for split in SPLITS):
        raise SourceError(f"{path}: expected columns {', '.join(SPLITS)}, the format of CLAM.")
    split_of_slide: dict[str, str] = {}
    for row in rows:
        for split in SPLITS:
            name = (row[split] or "").strip()
            if name and split_of_slide.setdefault(name, split) != split:
                raise SourceError(
                    f"{path}: slide {name} is in '{split_of_slide[name]}' and in '{split}'. Remove one."
                )
    return split_of_slide


def write_clam_splits(path: Path, rows: Sequence[Row]) -> None:
    """Write the splits of rows with `slide_id` in columns, the format of CLAM."""
    columns = [[row["slide_id"] for row in rows if row["split"] == split] for split in SPLITS]
    lines = [
        {"": place, **dict(zip(SPLITS, names, strict=True))}
        for place, names in enumerate(zip_longest(*columns, fillvalue=""))
    ]
    run_folder.write_csv(path, lines)


def check_failed(failed: Iterable[tuple[str, str]], strict: bool) -> None:
    """Print what was skipped to standard error, or raise it with `--strict`.

    Args:
        failed: `(name, reason)` of skipped items.
        strict: Whether to raise.

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
    """Write `slides.csv` with the split of each slide, and `failed.csv`.

    Args:
        table: Rows of the slides, if known.
        failed: `(name, reason)` of skipped items.
        folder: Run folder.
    """
    if table:
        run_folder.write_csv(folder / run_folder.SLIDES, table)
    for name, reason in failed:
        run_folder.save_failure(folder, name, one_line(reason).removeprefix(f"{name}: "))


def exit_code(folder: Path) -> int:
    """Return 0, or 3 if something was skipped, now or before, and is listed in `failed.csv`."""
    return 3 if (folder / run_folder.FAILED).exists() else 0


def print_failed(folder: Path) -> None:
    """Print to standard error how many items were skipped, if any."""
    if failed := run_folder.read_rows(folder / run_folder.FAILED):
        print(f"{len(failed)} skipped, see {folder / run_folder.FAILED}", file=sys.stderr)


def cases_of(rows: Sequence[Row]) -> list[str]:
    """Return the case of every row; a row without one is its own case.

    Args:
        rows: Rows of a table.
    """
    return [case_of(row) or f"row {number}" for number, row in enumerate(rows)]


def check_cases(rows: Sequence[Row]) -> None:
    """Check that all rows of a case are in one split: what is tested on would else be trained on.

    Args:
        rows: Rows with a `split`.

    Raises:
        SourceError: A case is in several.
    """
    found: dict[str, set[str]] = {}
    for row in rows:
        if case_of(row) and row["split"]:
            found.setdefault(case_of(row), set()).add(row["split"])
    several = {case: split for case, split in found.items() if len(split) > 1}
    if several:
        case, names = next(iter(several.items()))
        more = f", and so are {len(several) - 1} more cases in several" if len(several) > 1 else ""
        raise SourceError(
            f"the case '{case}' is in the splits {' and '.join(sorted(names))}{more}; expected all rows of a case in "
            "one. Correct the splits, or leave out the column split to draw them by case."
        )


def case_of(row: Row) -> str:
    """Return the case of a row, or an empty string; 10005.0 of a spreadsheet is the case 10005."""
    return whole_number(row.get("case_id") or row.get("patient") or "")


def strata_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the stratum, or label, of each case; a case has that of its first row.

    Args:
        rows: Rows as in `split_rows`.
    """
    strata: dict[str, Any] = {}
    for row, case in zip(rows, cases_of(rows), strict=True):
        strata.setdefault(case, row["stratum"] if "stratum" in row else row["label"])
    return strata


def cases_by_stratum(rows: Sequence[Row]) -> list[list[str]]:
    """Return the cases of each stratum, sorted by it.

    Args:
        rows: Rows as in `split_rows`.
    """
    groups: dict[Any, list[str]] = {}
    for case, stratum in strata_of(rows).items():
        groups.setdefault(stratum, []).append(case)
    return [groups[stratum] for stratum in sorted(groups)]


def print_counts(
    data: Data,
    items: str,
    describe: Callable[[Any], str],
    count: Callable[[Any], str] | None = None,
) -> None:
    """Print the items of every split, and their classes or other labels.

    Args:
        data: Data of the run.
        items: What the items are, in the plural.
        describe: Function from a split to a few words about its items.
        count: Function from a split to a few words about its labels; by default the items of each class.
    """
    for split in SPLITS if data.train is not data.test else ("test",):
        part = getattr(data, split)
        words = count(part) if count else _class_counts(part, data.classes)
        number = len(part.labels)
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
    """Print to standard error which classes no item of a split has, and what follows from it.

    Args:
        split: The split.
        items: What its items are, in the plural.
        missing: The classes; nothing is printed for none.
        reason: Why, if it is known.
    """
    if not missing:
        return
    where, follows = f"in {split}", "which its metrics cannot judge"
    if split == "train":
        where, follows = "to train on", "which cannot be learned"
    text = f"none of the {items} {where} has the class {', '.join(missing)}, {follows}{reason}"
    print(f"warning: {text}", file=sys.stderr)
