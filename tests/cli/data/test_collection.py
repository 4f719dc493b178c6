"""Every data set is described in a file, and its recipes exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from dataset_folders import FOLDERS

from tfbig import SourceError
from tfbig.cli.data import collection
from tfbig.cli.settings import choices, yaml_flags


def test_every_data_set_has_a_folder_to_test() -> None:
    assert {*choices.COLLECTIONS} == {*FOLDERS, "nnunet"}  # of volumes, see test_nnunet.py


@pytest.mark.parametrize("name", choices.COLLECTIONS)
def test_recipes(name: str, tmp_path: Path) -> None:
    found = collection.named(name)
    assert found.about and found.recipes
    for recipe in found.recipes:
        settings = yaml_flags.read_yaml(f"recipes/{recipe.name}.yaml")
        reads = settings.get("bags") or settings.get("images")
        tables = {"slides": ("slides", "patchgd"), "folder": ("images", "bags")}
        assert recipe.table in tables.get(reads, ("",))
    with pytest.raises(SourceError, match=r"no such folder\. Expected:\n"):
        collection.read(name, tmp_path / "none")
