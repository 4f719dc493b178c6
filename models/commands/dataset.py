"""Reads a public collection of slides as it was downloaded, says what is missing, and writes its table and splits."""

from collections import Counter
from itertools import zip_longest
from pathlib import Path

from models import datasets
from tfbig import SourceError, runfolder

SHOWN = 10


def add_flags(add):
    """Flags of this command."""
    known = "; ".join(f"{name}: {c.about}" for name, c in datasets.COLLECTIONS.items())
    add("name", choices=list(datasets.COLLECTIONS), metavar="NAME", help=known)
    add(
        "folder",
        nargs="?",
        metavar="FOLDER",
        help="where it was downloaded to; without one: say what belongs there, and stop",
    )
    add("--out", metavar="DIR", help="write slides.csv and splits_0.csv, which CLAM reads, there")
    add("--seed", type=int, default=0, help="of splits that are drawn (default: 0)")


def run(settings):
    """Prints what is there and what is not; 3 if something is missing."""
    collection = datasets.COLLECTIONS[settings.name]
    if settings.folder is None:
        print(f"{settings.name}: {collection.about}\n{collection.expected}")
        return 0
    table = datasets.read(settings.name, settings.folder, settings.seed)
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
        write(table, Path(settings.out))
    return 3 if table.missing else 0


def write(table, folder):
    """`slides.csv`, and the split in columns, as CLAM has it."""
    folder.mkdir(parents=True, exist_ok=True)
    runfolder.write_csv(folder / "slides.csv", table.rows)
    splits = ("train", "val", "test")
    columns = [[row["slide_id"] for row in table.rows if row["split"] == split] for split in splits]
    rows = [
        {"": place, **dict(zip(splits, names, strict=True))}
        for place, names in enumerate(zip_longest(*columns, fillvalue=""))
    ]
    runfolder.write_csv(folder / "splits_0.csv", rows)
