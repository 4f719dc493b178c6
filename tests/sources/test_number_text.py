"""Numbers with decimal commas, points and thousands."""

from __future__ import annotations

import pytest

from tfbig.sources import number_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        (" 0.25 ", 0.25),
        ("-1.5e-3", -0.0015),
        ("5.", 5),
        (".5", 0.5),
        ("+7", 7),
        ("12,5", 12.5),
        ("0,5000", 0.5),
        ("1,5000", 1.5),
        ("0,500", 0.5),
        ("-0,125", -0.125),
        (",25", 0.25),
        ("1234,567", 1234.567),
        ("00,250", 0.25),
        ("1,5e3", 1500),
        ("1.234,56", 1234.56),
        ("12.345.678,9", 12345678.9),
    ],
)
def test_numbers(text: str, value: float) -> None:
    assert number_text.number(text) == value


@pytest.mark.parametrize("text", ["1,500", "-12,345", "999,999", "1,500e2"])
def test_a_comma_that_may_stand_between_thousands(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' has a comma, which may be a decimal comma or"):
        number_text.number(text)
    assert number_text.number("1,500", thousands=False) == 1.5
    assert number_text.number("-12,345", thousands=False) == -12.345


@pytest.mark.parametrize(
    "text", ["1,234,567", "1,234.5", "1,2,3", "12,", ",", "a,b", "1.23,4", "1, 5", "1,5 mm"]
)
def test_other_commas(text: str) -> None:
    for thousands in (True, False):
        with pytest.raises(ValueError, match="has a comma; write the number with a decimal point"):
            number_text.number(text, thousands)


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "1_000", "1 000", "0x10", "\u0661", "1.2.3", "12 %", "1e", "."]
)
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="is no number"):
        number_text.number(text)


def test_a_column_has_one_decimal_mark() -> None:
    """1.500 beside 12,5 may be fifteen hundred."""
    column = number_text.Column()
    assert [column.number(text) for text in ("12,5", "3", "1.234,5")] == [12.5, 3, 1234.5]
    with pytest.raises(ValueError, match=r"has '12,5' with a decimal comma and '1\.500' with a po"):
        column.number("1.500")
    column = number_text.Column()
    assert column.number("0.5") == 0.5
    with pytest.raises(ValueError, match=r"'0,5' with a decimal comma and '0\.5' with a point"):
        column.number("0,5")
