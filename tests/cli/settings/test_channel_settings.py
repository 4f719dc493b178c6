"""Flags of channels, planes and percentiles."""

from __future__ import annotations

import pytest

from tfbig.cli.paths import FlagError
from tfbig.cli.settings import training


def test_values() -> None:
    words = ["--channels", "DAPI", "2", "--z", "max", "--percentiles", "1", "99.8"]
    settings = training.parse(["--task", "instances", "--data", ".", *words])
    assert (settings.channels, settings.z) == (("DAPI", "2"), "max")
    assert settings.percentiles == (1.0, 99.8)
    assert training.parse(["--task", "instances", "--z", "3"]).z == 3


@pytest.mark.parametrize("words", [["--z", "mean"], ["--z", "-1"], ["--percentiles", "1"]])
def test_refused(words: list[str]) -> None:
    with pytest.raises(FlagError, match=words[0]):
        training.parse(["--task", "instances", *words])
