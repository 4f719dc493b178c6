"""Check a downloaded public data set, write its table and splits, and print the commands that train on it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfbig import SourceError
from tfbig.cli import paths
from tfbig.cli.data import collection, splits
from tfbig.cli.data.collection import Recipe
from tfbig.cli.data.collection_tables import CollectionTable, Found, shortened, with_features
from tfbig.cli.data.folds import fold_rows
from tfbig.cli.settings.commands import DatasetSettings
from tfbig.results import run_folder
from tfbig.sources.table import SPLITS, Table
from tfbig.system import output_folder

MANY_CLASSES = 12
"""Number of classes from which on they are not counted one by one."""
COLUMNS = {"images": "image", "bags": "bag"}
"""Column of the path in tables that are not of slides, by the name of the table; a run reads their folder."""


def run(settings: DatasetSettings) -> int:
    """Print what is there, what is missing and how to train; return 3 if something is missing."""
    declared = collection.named(settings.name)
    print(f"{settings.name}: {declared.about}")
    if settings.folder is None:
        print(declared.expected)
        return 0
    try:
        paths.check_path(settings.folder, settings.folder, "folder")
    except paths.FlagError:
        print(declared.expected)
        raise
    if settings.out:
        read = [settings.folder, *([settings.features] if settings.features else [])]
        paths.check_results(settings.out, read)
    found = collection.read(settings.name, settings.folder, settings.seed)
    if settings.features:
        _add_features(found, settings.features)
    trained = {recipe.table for recipe in declared.recipes if not recipe.of_run}
    found.missing += [
        gap for table in found.tables if table.name in trained for gap in table.gaps()
    ]
    _print_found(found)
    if found.folder is None and not any(table.rows for table in found.tables):
        print(declared.expected)
        raise SourceError(
            f"{settings.folder}: holds nothing of {settings.name} that can be used; expected the files above. Check "
            "the path."
        )
    out = Path(settings.out) if settings.out else None
    if out is not None:
        for table in found.tables:
            write(table, out, settings.folds, settings.seed)
    _print_commands(declared.recipes, found, out)
    return 3 if found.missing else 0


def _add_features(found: Found, folder: str) -> None:
    """Add the table of the features of slides, and say which slides have none.

    Raises:
        SourceError: The data set has no slides.
    """
    slides = next((table for table in found.tables if table.name == "slides"), None)
    if slides is None:
        raise paths.FlagError("--features: is for data sets of slides only. Remove it.")
    bags, without = with_features(slides, Path(folder))
    found.tables.append(bags)
    found.missing += shortened([f"{folder}: {name}" for name in without], "files of features")


def _print_found(found: Found) -> None:
    """Print the items of every split, what is missing, and the rules that were applied."""
    for table in found.tables:
        _print_counts(table)
        found.missing += [
            f"{path}: its slide has two files; this one is left out" for path in table.twice
        ]
    for line in found.there:
        print(line)
    for line in found.notes:
        print(f"note: {line}")
    for line in found.missing:
        print(f"missing: {line}")


def _print_counts(table: CollectionTable) -> None:
    """Print the items of every split of a table."""
    many = len(table.classes) >= MANY_CLASSES
    for split in (split for split in SPLITS if table.of_split(split)):
        kinds = f"{len(table.classes)} classes" if many else table.counts(split)
        print(f"{table.name}.csv, {split}: {len(table.of_split(split))} {_items(table)} ({kinds})")
    cases = {row["case_id"] for row in table.rows}
    if len(cases) < len(table.rows):
        print(f"{table.name}.csv: {len(table.rows)} {_items(table)} of {len(cases)} patients")


def _items(table: CollectionTable) -> str:
    return table.name if table.name in COLUMNS else "slides"


def _print_commands(recipes: Sequence[Recipe], found: Found, out: Path | None) -> None:
    """Print the commands that train and evaluate, which are the last lines."""
    tables = {table.name: table for table in found.tables}
    usable = [recipe for recipe in recipes if _is_usable(recipe, tables, found)]
    if out is None and any(recipe.table for recipe in usable):
        print("Add --out FOLDER to write the table and to see the commands that train on it.")
        return
    if out is not None and not tables:
        print(f"No table is written to {out}: training reads the files as they are.")
    if not usable:
        print("No command is printed, because training needs what is missing.")
    for recipe in usable:
        print(f"# {recipe.about}")
        print(command(recipe, _data(recipe, found, out)))


def _is_usable(recipe: Recipe, tables: Mapping[str, CollectionTable], found: Found) -> bool:
    """Tell whether there is what a recipe reads."""
    if not recipe.table:
        return found.folder is not None
    table = tables.get(recipe.table)
    return table is not None and bool(recipe.of_run or table.is_trainable)


def _data(recipe: Recipe, found: Found, out: Path | None) -> Path:
    """Find what a recipe reads: the folder, the folder of `images.csv` or `bags.csv`, or a table of slides."""
    if not recipe.table or out is None:
        return found.folder or Path()
    return out if recipe.table in COLUMNS else out / f"{recipe.table}.csv"


def command(recipe: Recipe, data: Path) -> str:
    """Write the command that trains or evaluates with a recipe on some data."""
    what = f"--config recipes/{recipe.name}.yaml --data {shlex.quote(str(data))}"
    if recipe.of_run:
        return f"tfbig evaluate runs/{recipe.of_run} {what}"
    program = f"python -m {recipe.script}" if recipe.script else "tfbig train"
    return f"{program} {what} --out runs/{recipe.run or recipe.name}"


def write(table: CollectionTable, folder: Path, folds: int | None, seed: int) -> None:
    """Write a table, and for `slides.csv` the split or each fold in the format of CLAM.

    Without `folds`, the split is that of the data set.

    Raises:
        SourceError: The folder has a table of other items.
    """
    if not table.rows:
        return
    file = folder / f"{table.name}.csv"
    rows = [_row(row, table) for row in table.rows]
    _check_same_items(file, rows)
    output_folder.claim(folder)
    run_folder.write_csv(file, rows)
    if table.name != "slides":
        return
    for fold in range(folds or 1):
        parts = fold_rows(table.rows, folds, fold, seed) if folds else table.rows
        splits.write_clam_splits(folder / f"splits_{fold}.csv", parts)


def _row(row: dict[str, str], table: CollectionTable) -> dict[str, str]:
    """A row with the columns of its file."""
    if table.name not in COLUMNS:
        return row
    return {COLUMNS[table.name]: row["path"], "label": row["label"], "split": row["split"]}


def _check_same_items(file: Path, rows: Sequence[dict[str, str]]) -> None:
    """Check that a file to write is new, or lists some of the same items.

    Raises:
        SourceError: It lists others.
    """
    if not file.exists():
        return
    column = COLUMNS.get(file.stem, "path")
    present = {row.get(column) for row in Table.read(file, ("label",)).rows}
    if not present & {row[column] for row in rows}:
        raise SourceError(
            f"{file}: is the table of another data set or folder. Use another --out, or delete it."
        )
