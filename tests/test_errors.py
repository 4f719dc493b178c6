"""Texts of errors."""

from __future__ import annotations

import pytest

from tfbig.errors import one_line, reason_of


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (ValueError("a\n  b\x1b[0m."), "a b?[0m."),
        ("a\r\n\tb\x7f", "a b?"),
        (KeyError("größe"), "'größe'"),
        ("a\udcff", "a?"),
        ("", ""),
    ],
)
def test_one_line(text: object, line: str) -> None:
    assert one_line(text) == line


def test_reason_in_a_sentence() -> None:
    assert reason_of(ValueError("a\nb.")) == "a b"
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of("x" * 1000) == "x" * 297 + "..."
    assert reason_of("x" * 300) == "x" * 300
