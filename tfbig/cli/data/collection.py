"""A public data set as it is downloaded: what its folder should hold, its reader, and the recipes that train on it.

Each is declared in a file of `tfbig/cli/data/collections`; nothing is downloaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfbig import SourceError
from tfbig.cli.data.collection_tables import Found


@dataclass(frozen=True)
class Recipe:
    """A recipe that goes with a data set.

    Attributes:
        name: Name of its file, without suffix.
        about: What it is.
        table: Table that it reads, without suffix; empty for the folder itself.
        of_run: Recipe of the run that it evaluates, or an empty text if it trains.
        run: Name of the run, if it is not that of the recipe.
        script: Module that trains in place of `tfbig train`, or an empty text.
    """

    name: str
    about: str
    table: str = ""
    of_run: str = ""
    run: str = ""
    script: str = ""


@dataclass(frozen=True)
class Collection:
    """A data set and its reader.

    Attributes:
        about: Description with its source.
        expected: Files that the folder should hold.
        read: Function from folder and seed to what is found.
        recipes: Recipes that go with it.
    """

    about: str
    expected: str
    read: Callable[[Path, int], Found]
    recipes: tuple[Recipe, ...]


def named(name: str) -> Collection:
    """Find the data set of a name, such as "tcga-prad", which is in `tcga_prad.py`."""
    module = importlib.import_module(f"tfbig.cli.data.collections.{name.replace('-', '_')}")
    found: Collection = module.COLLECTION
    return found


def read(name: str, folder: str | Path, seed: int = 0) -> Found:
    """Read a data set from the folder of its downloaded files; the seed is that of splits that are drawn.

    Raises:
        SourceError: There is no such folder, or a table with labels is missing or has other columns.
    """
    collection = named(name)
    if not Path(folder).is_dir():
        raise SourceError(f"{folder}: no such folder. Expected:\n{collection.expected}")
    return collection.read(Path(folder), seed)
