"""Check a downloaded public collection of slides, and write its table and splits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tfbig import SourceError
from tfbig.cli import paths
from tfbig.cli.data import published_datasets, splits
from tfbig.cli.data.published_datasets import Table
from tfbig.cli.settings.commands import DatasetSettings
from tfbig.results import run_folder

SHOWN = 10


def run(settings: DatasetSettings) -> int:
    """Print what is there and what is missing; return 3 if something is missing."""
    collection = published_datasets.COLLECTIONS[settings.name]
    if settings.folder is None:
        print(f"{settings.name}: {collection.about}\n{collection.expected}")
        return 0
    try:
        paths.check_path(settings.folder, settings.folder, "folder")
    except paths.FlagError as error:
        raise paths.FlagError(f"{error} Expected:\n{collection.expected}") from error
    table = published_datasets.read(settings.name, settings.folder, settings.seed)
    _print_counts(table)
    if not table.rows:
        raise SourceError(
            f"{settings.folder}: has no slides of {settings.name}. Expected:\n{collection.expected}"
        )
    if settings.out:
        write(table, Path(settings.out), settings.folds, settings.seed)
    return 3 if table.missing else 0


def _print_counts(table: Table) -> None:
    """Print the slides of every split, and what is missing."""
    for split in ("train", "val", "test"):
        counts = Counter(int(row["label"]) for row in table.rows if row["split"] == split)
        kinds = ", ".join(f"{counts[n]} {name}" for n, name in enumerate(table.classes))
        print(f"{split}: {counts.total()} slides ({kinds})")
    cases = len({row["case_id"] for row in table.rows})
    print(
        f"{len(table.rows)} slides of {cases} cases; {len(table.missing)} missing files or entries"
    )
    for line in table.missing[:SHOWN]:
        print(f"  missing: {line}")
    if len(table.missing) > SHOWN:
        print(f"  and {len(table.missing) - SHOWN} more")


def write(table: Table, folder: Path, folds: int | None, seed: int) -> None:
    """Write `slides.csv`, and the split or each fold in the format of CLAM.

    Args:
        table: Table of the collection.
        folder: Folder for the files.
        folds: Number of folds, or None for the split of the collection.
        seed: Random seed of the folds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_csv(folder / "slides.csv", table.rows)
    for fold in range(folds or 1):
        rows = splits.fold_rows(table.rows, folds, fold, seed) if folds else table.rows
        splits.write_clam_splits(folder / f"splits_{fold}.csv", rows)
