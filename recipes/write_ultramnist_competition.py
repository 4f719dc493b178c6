"""Write the table of the images of the UltraMNIST competition, for the recipe `patchgd-ultramnist-competition`.

    python -m tfbig.recipes.write_ultramnist_competition data/competition --data ultra-mnist
    tfbig train --config recipes/patchgd-ultramnist-competition.yaml --data data/competition --out runs/competition

The competition (Gupta et al., 2022) has 28,000 images `train/ID.jpeg`, whose sums of digits, 0 to 27, are in
`train.csv`. They are split 70:10:20 by sum. The images of `test/` have no published labels and are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfbig.cli.data.splits import split_rows
from tfbig.errors import SourceError
from tfbig.recipes import folders
from tfbig.results import run_folder
from tfbig.sources.table import Table

SUMS = tuple(map(str, range(28)))


def rows(folder: Path, seed: int) -> list[dict[str, str]]:
    """The rows of `images.csv`.

    Raises:
        SourceError: `train.csv` is missing or has other columns, or an image is missing.
    """
    file = folder / "train.csv"
    found = []
    for row in Table.read(file, ["id", "digit_sum"], flag="").rows:
        image = (folder / "train" / f"{row['id']}.jpeg").resolve()
        if row["digit_sum"] not in SUMS:
            raise SourceError(f"{row.place}: digit_sum '{row['digit_sum']}'; expected 0 to 27.")
        if not image.exists():
            raise SourceError(f"{row.place}: {image}: no such file. Download it again.")
        # `split_rows` keeps the rows of a case together; each image is its own
        found.append(
            {"case_id": image.stem, "label": row["digit_sum"], "split": "", "image": str(image)}
        )
    return split_rows(found, (0.7, 0.1, 0.2), seed)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, and write the folder."""
    parser = folders.parser(__doc__, "the table")
    parser.add_argument("--data", type=Path, required=True, help="folder of the competition")
    given = parser.parse_args(argv)
    table = [
        {name: row[name] for name in ("image", "label", "split")}
        for row in rows(given.data, given.seed)
    ]
    run_folder.write_csv(folders.create(given.out) / "images.csv", table)


if __name__ == "__main__":
    folders.run(main)
