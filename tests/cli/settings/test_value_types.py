"""Types of flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tfbig.cli.settings import value_types as types


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (types.count, "3", 3),
        (types.count_from_zero, "0", 0),
        (types.positive, "0.5", 0.5),
        (types.above_one, "1.5", 1.5),
        (types.share, "1", 1.0),
        (types.byte_size, "512MB", "512MB"),
        (types.byte_size_or_zero, "0", "0"),
        (types.shard, "7/8", "7/8"),
        (types.crop, "128X256", "128x256"),
        (types.crop, "whole", "whole"),
        (types.from_zero, "0", 0.0),
        (types.sampling, "1.0", 1.0),
        (types.sampling, "16", 16),
        (types.inner_steps, "all", "all"),
        (types.inner_steps, "2", 2),
        (types.tissue_or_masks, "otsu", "otsu"),
        (types.sha256, "0a" * 32, "0a" * 32),
    ],
)
def test_values(parse: Callable[[str], Any], text: str, value: Any) -> None:
    assert parse(text) == value
    assert type(parse(text)) is type(value)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (types.count, "0", "'0' must be at least 1"),
        (types.count_from_zero, "-1", "'-1' must be at least 1"),
        (types.positive, "inf", "'inf' must be a positive number"),
        (types.from_zero, "-1", "'-1' must be 0 or more"),
        (types.above_one, "1", "'1' must be above 1"),
        (types.share, "2", "'2' must be a share from 0 to 1"),
        (types.byte_size, "five", "five"),
        (types.shard, "8/8", "is not I/N with I from 0 to N - 1"),
        (types.sha256, "0a" * 31, "is not a SHA-256 of 64 hexadecimal digits"),
        (types.sha256, "xy" * 32, "is not a SHA-256 of 64 hexadecimal digits"),
        (
            types.tissue_or_masks,
            "no such folder",
            "is neither one of colour, otsu, grey nor a mask",
        ),
        (types.crop, "128", "is not rows x columns"),
        (types.crop, "128x100", "both must be multiples of 128"),
    ],
)
def test_wrong_values(parse: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(types.WrongValue, match=message):
        parse(text)


def test_crop_size() -> None:
    assert types.crop_size("128x256") == (128, 256)
