"""Choice of channels and planes."""

from __future__ import annotations

import pytest

from tfbig import SourceError
from tfbig.sources.slides.stacks import chosen_channels, chosen_planes

NAMES = ("DAPI 2 (387)", "CD3", "CD31")


def test_planes() -> None:
    assert chosen_planes(None, 1, "a") == range(1)
    assert chosen_planes("max", 5, "a") == range(5)
    assert chosen_planes(4, 5, "a") == range(4, 5)
    with pytest.raises(
        SourceError, match=r"a: is a stack of 5 planes along z; .* up to 4, or z='max'"
    ):
        chosen_planes(None, 5, "a")
    for wrong in (5, -1, "mean"):
        with pytest.raises(SourceError, match=r"a: plane .* along z requested; it has 5"):
            chosen_planes(wrong, 5, "a")


def test_channels() -> None:
    assert chosen_channels([2, 0], NAMES, 3, "a") == (2, 0)
    assert chosen_channels(["cd3", "dapi"], NAMES, 3, "a") == (1, 0)
    assert chosen_channels(["1"], (), 3, "a") == (1,)
    for wrong in (["CD"], ["CD4"], [3], [-1], [], [0, "dapi"], ["3"]):
        with pytest.raises(
            SourceError, match=r"a: channels .* requested; it has 0 'DAPI 2 \(387\)', 1 'CD3', 2"
        ):
            chosen_channels(wrong, NAMES, 3, "a")
