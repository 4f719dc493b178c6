"""Reads a public collection of slides as it was downloaded, says what is missing, and writes its table and splits."""

from collections import Counter
from pathlib import Path

from tfbig import SourceError
from tfbig.cli import settings as command_line
from tfbig.cli.data import published_datasets, splits
from tfbig.results import run_folder

SHOWN = 10


def add_flags(add):
    """Flags of this command."""
    known = "; ".join(f"{name}: {c.about}" for name, c in published_datasets.COLLECTIONS.items())
    add("name", choices=list(published_datasets.COLLECTIONS), metavar="NAME", help=known)
    add(
        "folder",
        nargs="?",
        metavar="FOLDER",
        help="where it was downloaded to; without one: say what belongs there, and stop",
    )
    add("--out", metavar="DIR", help="write slides.csv and splits_0.csv, as CLAM has them, there")
    add(
        "--folds",
        type=command_line.count,
        help="write splits_0.csv, splits_1.csv, ... of k-fold cross-validation instead: by case, stratified by label",
    )
    add("--seed", type=int, default=0, help="of splits that are drawn (default: 0)")


def run(settings):
    """Prints what is there and what is not; 3 if something is missing."""
    collection = published_datasets.COLLECTIONS[settings.name]
    if settings.folder is None:
        print(f"{settings.name}: {collection.about}\n{collection.expected}")
        return 0
    table = published_datasets.read(settings.name, settings.folder, settings.seed)
    for split in ("train", "val", "test"):
        counts = Counter(int(row["label"]) for row in table.rows if row["split"] == split)
        kinds = ", ".join(f"{counts[n]} {name}" for n, name in enumerate(table.classes))
        print(f"{split}: {counts.total()} slides ({kinds})")
    cases = len({row["case_id"] for row in table.rows})
    print(f"{len(table.rows)} slides of {cases} cases; {len(table.missing)} things are missing")
    for line in table.missing[:SHOWN]:
        print(f"  missing: {line}")
    if len(table.missing) > SHOWN:
        print(f"  and {len(table.missing) - SHOWN} more")
    if not table.rows:
        raise SourceError(
            f"{settings.folder}: has no slide of {settings.name}. Expected there:\n{collection.expected}"
        )
    if settings.out:
        write(table, Path(settings.out), settings.folds, settings.seed)
    return 3 if table.missing else 0


def write(table, folder, folds, seed):
    """`slides.csv`, and the split, or each of the folds, as CLAM has it."""
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_csv(folder / "slides.csv", table.rows)
    for fold in range(folds or 1):
        rows = splits.fold_rows(table.rows, folds, fold, seed) if folds else table.rows
        splits.write_clam_splits(folder / f"splits_{fold}.csv", rows)
