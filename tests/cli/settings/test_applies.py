"""Which settings apply with the values of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from tfbig.cli.settings import applies
from tfbig.cli.settings.flag import GIVEN, Unless, flag, flags_of
from tfbig.tasks import TASKS


@dataclass(frozen=True, kw_only=True)
class Survival:
    ONLY_IF: ClassVar = {"target": ("survival",)}

    loss: str = flag("discrete", help="loss")
    bins: int = flag(4, help="bins", only_if={"loss": ("discrete",)})


@dataclass(frozen=True, kw_only=True)
class Settings(Survival):
    target: str = flag("class", help="target")
    crop: str = flag("1x1", help="crop")
    crops: int = flag(1, help="crops", only_if={"crop": Unless(("whole",))})
    folds: int | None = flag(help="folds")
    fold: int | None = flag(help="fold", only_if={"folds": GIVEN})
    other: int = flag(1, help="other", only_if={"absent": ("x",)})


FLAGS = flags_of(Settings)


@pytest.mark.parametrize(
    ("name", "changes", "condition"),
    [
        ("loss", {}, "--target survival"),
        ("loss", {"target": "survival"}, None),
        ("bins", {"target": "survival"}, None),
        ("bins", {"target": "survival", "loss": "cox"}, "--loss discrete"),
        ("bins", {}, "--target survival"),
        ("crops", {}, None),
        ("crops", {"crop": "whole"}, "--crop other than whole"),
        ("fold", {}, "--folds"),
        ("fold", {"folds": 3}, None),
        ("other", {}, None),
        ("target", {}, None),
    ],
)
def test_conditions(name: str, changes: dict[str, Any], condition: str | None) -> None:
    found = applies.unmet(name, FLAGS, vars(Settings(**changes)))
    assert (found and str(found)) == condition


def test_a_value_that_is_not_known_fits() -> None:
    assert applies.unmet("loss", FLAGS, {}) is None


def test_words() -> None:
    values = vars(Settings())
    for name, words in (
        ("loss", "belongs to --target survival; this run has --target class."),
        ("fold", "belongs to --folds; this run has no --folds. Leave it out, or change --folds."),
    ):
        condition = applies.unmet(name, FLAGS, values)
        assert condition is not None
        assert words in applies.in_words(condition, values)


def test_conditions_are_on_flags_and_their_values() -> None:
    """Each condition is on a flag of some task, and its values are among those that this flag has in some task."""
    flags = [each for task in TASKS.values() for each in flags_of(task.settings_class()).values()]
    values: dict[str, set[Any]] = {}
    for each in flags:
        values.setdefault(each.name, set()).update(each.choices or ())
    for each in flags:
        for other, accepted in each.only_if.items():
            is_chosen = {*accepted} <= values[other]
            assert is_chosen or isinstance(accepted, Unless), (each.name, other)


@pytest.mark.parametrize(
    ("flag", "given", "condition"),
    [
        ("hidden", {"model": "mean"}, "--model abmil or"),
        ("hidden", {"model": "transmil"}, "--model abmil or"),
        ("hidden", {"model": "dsmil"}, None),
        ("tile", {"bags": "folder"}, "--bags slides"),
        ("tile", {"bags": "features"}, "--bags slides"),
        ("tile", {"bags": "slides"}, None),
    ],
)
def test_flags_of_bags_without_a_use(
    flag: str, given: dict[str, Any], condition: str | None
) -> None:
    flags = flags_of(TASKS["mil"].settings_class())
    found = applies.unmet(flag, flags, given)
    assert (found and condition and str(found).startswith(condition)) or found is condition
