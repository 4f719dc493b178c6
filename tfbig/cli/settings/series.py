"""The runs of a series: one for each seed, for each fold of cross-validation, or for each pair of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfbig.errors import SourceError, reason_of

MOST_MEMBERS = 10_000
"""Most seeds, and most folds, of a series."""


@dataclass(frozen=True)
class Member:
    """A run of a series.

    Attributes:
        seed: Seed of the run.
        fold: Index of the fold that it tests; None without cross-validation.
        names_seed: Whether the series has several seeds, so that names say which.
    """

    seed: int
    fold: int | None = None
    names_seed: bool = True

    @property
    def name(self) -> str:
        """The name of the run, such as "fold 0 seed 3"."""
        fold = [] if self.fold is None else [f"fold {self.fold}"]
        return " ".join([*fold, *([f"seed {self.seed}"] if self.names_seed else [])])

    def folder(self, series: str | Path) -> Path:
        """The run folder, such as `series/fold-0-seed-3`."""
        return Path(series) / self.name.replace(" ", "-")


def members(settings: Mapping[str, Any], where: str = "settings") -> tuple[Member, ...]:
    """The runs that `seed`, `seeds`, `folds` and `fold` ask for; none if they are those of a single run.

    `where` says in the error where the settings are from.

    Raises:
        SourceError: They are no numbers, or those of more than `MOST_MEMBERS` runs.
    """
    first, number = settings.get("seed", 0), settings.get("seeds")
    folds = settings.get("folds") if settings.get("fold") is None else None
    if not isinstance(first, int) or not all(
        n is None or (isinstance(n, int) and n <= MOST_MEMBERS) for n in (number, folds)
    ):
        raise SourceError(
            f"{where}: seed {reason_of(first)}, seeds {reason_of(number)}, folds {reason_of(folds)}; expected whole "
            f"numbers, of seeds and folds at most {MOST_MEMBERS}. Correct them."
        )
    if not number and not folds:
        return ()
    return tuple(
        Member(seed, fold, bool(number))
        for fold in (range(folds) if folds else (None,))
        for seed in range(first, first + (number or 1))
    )
