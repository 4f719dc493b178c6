"""Check a downloaded public collection of slides, and write its table and splits."""

from collections import Counter
from pathlib import Path

from tfbig import SourceError
from tfbig.cli import paths
from tfbig.cli import settings as command_line
from tfbig.cli.data import published_datasets, splits
from tfbig.results import run_folder

SHOWN = 10


def add_flags(add):
    """Add the flags of this command."""
    names = "; ".join(f"{name}: {c.about}" for name, c in published_datasets.COLLECTIONS.items())
    add("name", choices=list(published_datasets.COLLECTIONS), metavar="NAME", help=names)
    add(
        "folder",
        nargs="?",
        metavar="FOLDER",
        help="folder of the downloaded files; without it, print which files are expected, and stop",
    )
    add(
        "--out",
        metavar="DIR",
        help="folder for slides.csv and splits_0.csv, in the format of CLAM (default: not written)",
    )
    add(
        "--folds",
        type=command_line.count,
        help="write splits_0.csv, splits_1.csv, ... of k-fold cross-validation: by case, stratified by label",
    )
    add("--seed", type=int, default=0, help="random seed of splits that are drawn (default: 0)")


def run(settings):
    """Print what is there and what is missing; return 3 if something is missing."""
    collection = published_datasets.COLLECTIONS[settings.name]
    if settings.folder is None:
        print(f"{settings.name}: {collection.about}\n{collection.expected}")
        return 0
    try:
        paths.check_argument("folder", settings.folder)
    except paths.FlagError as error:
        raise paths.FlagError(f"{error} Expected:\n{collection.expected}") from error
    table = published_datasets.read(settings.name, settings.folder, settings.seed)
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
    if not table.rows:
        raise SourceError(
            f"{settings.folder}: has no slides of {settings.name}. Expected:\n{collection.expected}"
        )
    if settings.out:
        write(table, Path(settings.out), settings.folds, settings.seed)
    return 3 if table.missing else 0


def write(table, folder, folds, seed):
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
