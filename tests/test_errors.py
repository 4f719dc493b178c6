"""Texts of errors."""

from __future__ import annotations

import pytest

from tfbig.errors import one_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a\n  b\x1b[0m."), "a b?[0m."),
        (ValueError(), "ValueError"),
        ("a\r\n\tb\x7f", "a b?"),
        (KeyError("größe"), "'größe'"),
    ],
)
def test_one_line(error: object, line: str) -> None:
    assert one_line(error) == line


def test_rest_of_a_long_text() -> None:
    assert one_line("x" * 1000) == "x" * 297 + "..."
    assert one_line("x" * 1000, most=0) == "x" * 1000
