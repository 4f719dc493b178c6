"""Names and folders of the runs of a series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfbig import SourceError
from tfbig.cli.settings.series import members


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, []),
        ({"seed": 3, "folds": None}, []),
        ({"folds": 5, "fold": 0}, []),
        ({"seed": 3, "seeds": 2}, ["seed 3", "seed 4"]),
        ({"seed": 3, "folds": 3}, ["fold 0", "fold 1", "fold 2"]),
        ({"folds": 3, "fold": 1, "seeds": 2}, ["seed 0", "seed 1"]),
        (
            {"seed": 1, "seeds": 2, "folds": 3, "fold": None},
            [f"fold {fold} seed {seed}" for fold in range(3) for seed in (1, 2)],
        ),
    ],
)
def test_members(settings: dict[str, Any], names: list[str]) -> None:
    found = members(settings)
    assert [member.name for member in found] == names
    assert [member.folder("runs").name for member in found] == [n.replace(" ", "-") for n in names]
    assert all(member.folder("runs").parent == Path("runs") for member in found)


def test_each_member_has_its_seed_and_fold() -> None:
    found = members({"seed": 1, "seeds": 2, "folds": 3})
    assert [(m.fold, m.seed) for m in found] == [(f, s) for f in range(3) for s in (1, 2)]
    assert {member.seed for member in members({"seed": 7, "folds": 3})} == {7}


@pytest.mark.parametrize("settings", [{"seed": "x"}, {"seeds": 10**9}, {"folds": [2]}])
def test_settings_of_a_damaged_run(settings: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match=r"c\.yaml: seed .*expected whole numbers"):
        members(settings, "c.yaml")
