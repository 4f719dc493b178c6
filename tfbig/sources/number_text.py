"""Numbers as people, spreadsheets and scanners write them: the one parser of numbers in files and tables."""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DECIMAL_COMMA: Final = re.compile(r"([+-]?)(\d*),(\d+)([eE][+-]?\d+)?")
_POINTS_AND_COMMA: Final = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+,\d+([eE][+-]?\d+)?")
"""Points between thousands, and then a comma, as in 1.234,56."""
_THOUSANDS: Final = re.compile(r"[1-9]\d{0,2}")
"""Digits before a comma between thousands."""


def number(text: str, thousands: bool = True) -> float:
    """Parse a number in a text.

    A comma is a decimal comma where it can be nothing else: 12,5 and 0,500 and 1,5000 and 1.234,56 are numbers, but
    1,500 may be one and a half or fifteen hundred.

    Args:
        text: The text, such as a cell of a table. Infinity, NaN and underscores are no numbers.
        thousands: Whether a comma may stand between thousands. False for values that are never written so, such as the
            size of a pixel: all commas are then decimal commas.

    Raises:
        ValueError: It is no number, or has a comma of unclear meaning; the message says which.

    Example:
        >>> from tfbig.sources import number_text
        >>> number_text.number("12,5"), number_text.number("0.25"), number_text.number("1,500", thousands=False)
        (12.5, 0.25, 1.5)
    """
    text = text.strip()
    if text.isascii() and _PLAIN.fullmatch(text):
        return float(text)
    if text.isascii() and _POINTS_AND_COMMA.fullmatch(text):
        return float(text.replace(".", "").replace(",", "."))
    if "," not in text:
        raise ValueError(f"'{text}' is no number")
    found = _DECIMAL_COMMA.fullmatch(text) if text.isascii() else None
    if found is None:
        raise ValueError(f"'{text}' has a comma; write the number with a decimal point alone")
    if thousands and len(found[3]) == 3 and _THOUSANDS.fullmatch(found[2]):
        raise ValueError(
            f"'{text}' has a comma, which may be a decimal comma or stand between thousands; write the number with a "
            "decimal point"
        )
    return float(text.replace(",", "."))


class Column:
    """The numbers of one column of a table, all of which have the same decimal mark.

    Example:
        >>> from tfbig.sources import number_text
        >>> column = number_text.Column()
        >>> [column.number(text) for text in ("12,5", "7")]
        [12.5, 7.0]
    """

    def __init__(self) -> None:
        self._with: dict[str, str] = {}

    def number(self, text: str) -> float:
        """Parse the number in a cell.

        Raises:
            ValueError: It is no number, or has a decimal comma where another cell has a point, or the reverse.
        """
        value = number(text)
        mark = "comma" if "," in text else "point" if "." in text else ""
        if mark:
            self._with.setdefault(mark, text.strip())
        if len(self._with) > 1:
            raise ValueError(
                f"the column has '{self._with['comma']}' with a decimal comma and '{self._with['point']}' with a "
                "point; write all with a point"
            )
        return value
