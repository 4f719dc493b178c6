"""Read damaged features, weights, settings and tables one after another, and print what happened as lines of JSON.

Usage: python damaged_features.py SECONDS FILE...
"""

from __future__ import annotations

import sys
from pathlib import Path

from damaged_files import run

from tfbig.cli import load_model
from tfbig.models import weight_files
from tfbig.results import run_folder
from tfbig.sources import open_bag, read_coords
from tfbig.sources.table import Table


def read(path: Path) -> None:
    """Read a file as the command line does, by the kind in its name.

    Raises:
        SourceError: The file is damaged; so is a ValueError for weights, which `--encoder-weights` turns into one.
    """
    kind = path.stem.rpartition("-")[2]
    if kind == "bag":
        bag = open_bag(path)
        assert bag.read(0, bag.shape[0]).shape == bag.shape
        if path.suffix == ".h5":
            assert read_coords(path).coords.shape[1] == 2
    elif kind == "weights":
        assert all(array.nbytes >= 0 for array in weight_files.read(path).values())
    elif kind == "model":
        assert load_model.load(path).count_params() > 0
    elif kind == "settings":
        assert isinstance(run_folder.read_yaml(path), dict)
    else:
        assert all(row["slide_id"] for row in Table.read(path, ["slide_id", "label"]).rows)


if __name__ == "__main__":
    run(read, int(sys.argv[1]), sys.argv[2:])
