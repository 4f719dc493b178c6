"""Splits of tables without a column `split`: drawn by `--shares`, or all for testing in an evaluation of other data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tfbig.cli.data import splits
from tfbig.cli.data.splits import Row
from tfbig.cli.settings.yaml_flags import read_yaml
from tfbig.results import run_folder


class SplitFlags(Protocol):
    """Settings that say how data are split: the flags of these names."""

    @property
    def data(self) -> str | None:
        """Folder or table of the run."""

    @property
    def test_only(self) -> str | None:
        """Folder of the run to evaluate; None for a training."""

    @property
    def shares(self) -> Sequence[float]:
        """Shares of training, validation and test."""

    @property
    def seed(self) -> int:
        """Seed of the run."""


def with_splits(rows: Sequence[Row], settings: SplitFlags) -> list[Row]:
    """Return the rows with a `split`: that of the table if it has one.

    Args:
        rows: Rows with `label` or `stratum`, and with `case_id` or `patient` where items share one.
        settings: Settings of the run.

    Raises:
        SourceError: The table has a case in several splits.
    """
    if "split" in rows[0]:
        if not settings.test_only:
            splits.check_cases(rows)
        return list(rows)
    if settings.test_only and is_other_data(settings):
        return [row | {"split": "test"} for row in rows]
    return splits.split_rows(rows, settings.shares, settings.seed)


def is_other_data(settings: SplitFlags) -> bool:
    """Return whether an evaluated run was trained on data in another place.

    Args:
        settings: Settings of the evaluation.
    """
    config = read_yaml(Path(settings.test_only or "") / run_folder.CONFIG)
    return Path(config.get("data") or "").resolve() != Path(settings.data or "").resolve()
