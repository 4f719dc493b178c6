"""The registry of data sets: readers, expected files, and recipes that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from dataset_folders import FOLDERS

from tfbig import SourceError
from tfbig.cli.data import published_datasets
from tfbig.cli.settings import choices, yaml_flags


def test_every_data_set_is_described() -> None:
    assert published_datasets.COLLECTIONS.keys() == choices.COLLECTIONS.keys()
    assert choices.COLLECTIONS.keys() == {
        *FOLDERS,
        "nnunet",
    }  # of volumes, see test_volume_collections.py


@pytest.mark.parametrize("name", published_datasets.COLLECTIONS)
def test_recipes(name: str, tmp_path: Path) -> None:
    for recipe in published_datasets.COLLECTIONS[name].recipes:
        settings = yaml_flags.read_yaml(f"recipes/{recipe.name}.yaml")
        reads = settings.get("bags") or settings.get("images")
        tables = {"slides": ("slides", "patchgd"), "folder": ("images", "bags")}
        assert recipe.table in tables.get(reads, ("",))
    with pytest.raises(SourceError, match=r"no such folder\. Expected:\n"):
        published_datasets.read(name, tmp_path / "none")
