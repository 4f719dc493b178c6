"""Write the series of UCI HAR as a folder of `.npy` files with a table, for the recipes `patchgd-har-*`.

    python -m tfbig.recipes.write_har data/har --data 'UCI HAR Dataset'
    tfbig train --config recipes/patchgd-har-as-published.yaml --data data/har --out runs/har

UCI HAR (Anguita et al., 2013) has nine signals of a smartphone in windows of 128 samples, and the activity of each. A
tenth of the training windows validates; the test is the published one, of other persons.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.recipes import folders
from tfbig.results import run_folder

SIGNALS = [f"{kind}_{axis}" for kind in ("total_acc", "body_acc", "body_gyro") for axis in "xyz"]
ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")

Series = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]
"""Windows `[n, 128, 9]` and the activity of each, `[n]`."""


def read(folder: Path, part: str) -> Series:
    """Read the windows of a part of UCI HAR, "train" or "test".

    Raises:
        SourceError: A file is missing or has another format.
    """
    files = [folder / part / "Inertial Signals" / f"{name}_{part}.txt" for name in SIGNALS]
    files.append(folder / part / f"y_{part}.txt")
    for file in files:
        if not file.exists():
            raise SourceError(f"{file}: no such file; expected the folder 'UCI HAR Dataset'.")
    try:
        *signals, labels = (np.loadtxt(file, dtype=np.float32) for file in files)
        series = np.stack(signals, -1)
    except ValueError as error:
        raise SourceError(f"{folder / part}: is not in the format of UCI HAR ({error}).") from error
    for line in np.flatnonzero((labels < 1) | (labels > len(ACTIVITIES)))[:1]:
        raise SourceError(
            f"{files[-1]}: line {line + 1}: label {labels[line]:g}; expected 1 to {len(ACTIVITIES)}."
        )
    return series, labels.astype(np.int64) - 1


def split(folder: Path, seed: int) -> dict[str, Series]:
    """Divide the windows for training, validation and testing."""
    series, labels = read(folder, "train")
    order = np.random.default_rng(seed).permutation(len(labels))
    tenth = len(order) // 10
    val, train = ((series[part], labels[part]) for part in (order[:tenth], order[tenth:]))
    return {"train": train, "val": val, "test": read(folder, "test")}


def write(folder: Path, out: Path, seed: int = 0) -> None:
    """Write the folder: a `.npy` file `[128, 9]` for each window, and `images.csv`."""
    sets = split(folder, seed)
    folders.create(out)
    rows: list[dict[str, Any]] = []
    for name, (series, labels) in sets.items():
        for number, (window, label) in enumerate(zip(series, labels, strict=True)):
            file = f"{name}-{number}.npy"
            np.save(out / file, window)
            rows.append({"image": file, "label": ACTIVITIES[label], "split": name})
    run_folder.write_csv(out / "images.csv", rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, and write the folder."""
    parser = folders.parser(__doc__, "the windows")
    parser.add_argument("--data", type=Path, required=True, help="the folder 'UCI HAR Dataset'")
    given = parser.parse_args(argv)
    write(given.data, given.out, given.seed)


if __name__ == "__main__":
    folders.run(main)
