"""Which settings apply: those whose `only_if` is met by the values of others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfbig.cli.settings.flag import GIVEN, Flag, Unless, with_dashes


@dataclass(frozen=True)
class Condition:
    """A condition on a setting: the values of it with which another one applies, or `Unless` those with which not."""

    name: str
    accepted: tuple[Any, ...]

    def is_met(self, value: Any) -> bool:
        """Tell whether a value meets the condition."""
        listed = value in self.accepted
        return not listed if isinstance(self.accepted, Unless) else listed

    def __str__(self) -> str:
        """The condition as flags are typed, such as `--model dtfd`."""
        flag = with_dashes(self.name)
        if self.accepted is GIVEN:
            return flag
        other = "other than " if isinstance(self.accepted, Unless) else ""
        return f"{flag} {other}{' or '.join(map(str, self.accepted))}"


def unmet(name: str, flags: Mapping[str, Flag], values: Mapping[str, Any]) -> Condition | None:
    """Find the condition that keeps a setting from applying; None if it applies.

    A setting that belongs to another one does not apply either if that one does not. A condition on a setting that the
    class does not have, or whose value is not known, is met.
    """
    for other, accepted in flags[name].only_if.items():
        if other not in flags:
            continue
        condition = Condition(other, accepted)
        if other in values and not condition.is_met(values[other]):
            return condition
        if deeper := unmet(other, flags, values):
            return deeper
    return None


def in_words(condition: Condition, values: Mapping[str, Any]) -> str:
    """Say what a setting that does not apply belongs to, and what to do."""
    flag, value = with_dashes(condition.name), values[condition.name]
    has = f"no {flag}" if value in GIVEN else f"{flag} {value}"
    return f"belongs to {condition}; this run has {has}. Leave it out, or change {flag}."
