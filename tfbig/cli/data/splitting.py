"""Which rows of a table train, validate and test: by a file of splits, folds, the column `split`, or drawn by case."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tfbig.cli import machine, paths
from tfbig.cli.data import side_tables, splits
from tfbig.cli.data.folds import fold_rows
from tfbig.cli.settings.yaml_flags import read_yaml
from tfbig.errors import SourceError
from tfbig.results import run_folder
from tfbig.sources.names import Names
from tfbig.sources.table import Table
from tfbig.units import counted


class SplitFlags(Protocol):
    """Settings that say how data are split: the flags of these names, and in some tasks `splits`, `folds`, ..."""

    @property
    def data(self) -> str | None:
        """Folder or table of the run."""

    @property
    def test_only(self) -> str | None:
        """Folder of the run to evaluate; None for a training."""

    @property
    def shares(self) -> Sequence[float]:
        """Shares of training, validation and test."""

    @property
    def seed(self) -> int:
        """Seed of the run."""


def with_splits(
    table: Table, settings: SplitFlags, key: str = "slide_id", files: str | None = "path"
) -> Table:
    """Find the `split` of each row of a table; rows whose `key` a file of splits does not name are dropped.

    In an evaluation of other data than those of the run, all rows without a split are for testing. Splits that are
    drawn depend on the table alone, not on which files are there: a run that is resumed when a missing file was added
    must not test on what it was trained on.

    Args:
        table: The table.
        settings: Settings of the run.
        key: Column of the names in a file of splits.
        files: Column of the files; None if a file may be in two splits, with labels of different parts of it.

    Raises:
        SourceError: A split is none of the three, or in training a case is in several.
        FlagError: There are groups without folds.
    """
    table = _split(table, settings, key)
    if files is not None and not settings.test_only:
        _warn_of_files(table, files)
    return table


def _warn_of_files(table: Table, column: str) -> None:
    """Print to standard error which files are trained on and judged; of several workers the first does."""
    twice = table.files_in_two_splits(column)
    if twice and machine.is_chief():
        path, (one, other) = next(iter(twice.items()))
        are = "file is" if len(twice) == 1 else "files are"
        print(
            f"warning: {table.path}: {len(twice)} {are} in two splits, such as {path} in {one['split']} by {one.line} "
            f"and in {other['split']} by {other.line}: results on them say nothing about other images. Remove a row "
            "of each, or if splits are drawn, give both one case.",
            file=sys.stderr,
        )


def _split(table: Table, settings: SplitFlags, key: str) -> Table:
    """Return the table with the `split` of each row, see `with_splits`."""
    file, folds, group = (getattr(settings, name, None) for name in ("splits", "folds", "group"))
    if group and not folds:
        raise paths.FlagError(f"--group {group}: needs --folds. Add it.")
    if file:
        table = _of_file(table, Path(file), key)
    elif folds:
        fold = getattr(settings, "fold", None) or 0
        return table.with_rows(fold_rows(table.rows, folds, fold, settings.seed, group))
    elif "split" in table.columns:
        table.check_splits()
    elif settings.test_only and is_other_data(settings):
        return table.with_rows(row | {"split": "test"} for row in table.rows)
    else:
        return table.with_rows(splits.split_rows(table.rows, settings.shares, settings.seed))
    if not settings.test_only:
        table.check_cases()
    return table


def is_other_data(settings: SplitFlags) -> bool:
    """Tell whether an evaluated run was trained on data in another place."""
    config = read_yaml(Path(settings.test_only or "") / run_folder.CONFIG)
    return Path(config.get("data") or "").resolve() != Path(settings.data or "").resolve()


def _of_file(table: Table, path: Path, key: str) -> Table:
    """Keep the rows that a file of splits names, with their split, and say which it does not name.

    Raises:
        SourceError: It names none of them, or one in two splits.
    """
    names = [row[key] for row in table.rows]
    split_of_name = side_tables.assigned(
        path, splits.read_clam_splits(path), Names((name, name) for name in names)
    )
    if not split_of_name:
        raise SourceError(
            f"{path}: names none of the {len(names)} slides of the table, such as {names[0]}. Check --splits."
        )
    if left := [name for name in names if name not in split_of_name]:
        verb = "has no split and is" if len(left) == 1 else "have no split and are"
        line = f"{path}: {len(left)} of {counted(len(names), 'slide')} {verb} left out, such as {left[0]}"
        print(line, file=sys.stderr)
    return table.with_rows(
        row | {"split": split_of_name[row[key]]} for row in table.rows if row[key] in split_of_name
    )
