"""Flags of `--task instances`."""

from __future__ import annotations

import pytest

from tfbig.cli.paths import FlagError
from tfbig.cli.settings import training


def test_defaults_and_values() -> None:
    settings = training.parse(["--task", "instances", "--data", ".", "--crop", "64x96"])
    assert (settings.crop, settings.depth, settings.marker_threshold) == ("64x96", 3, 0.5)


@pytest.mark.parametrize("words", [["--crop", "100x100"], ["--crop", "64"], ["--depth", "6"]])
def test_refused(words: list[str]) -> None:
    with pytest.raises(FlagError, match=words[0]):
        training.parse(["--task", "instances", *words])
