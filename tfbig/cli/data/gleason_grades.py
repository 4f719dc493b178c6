"""ISUP grades of the prostate, 0 to 5, of slides and of Gleason patterns."""

from __future__ import annotations

from pathlib import Path

from tfbig import SourceError

ISUP_CLASSES = tuple(f"ISUP {grade}" for grade in range(6))
ISUP = {(3, 3): 1, (3, 4): 2, (4, 3): 3}
"""ISUP grades of primary and secondary Gleason pattern; a sum of 8 is 4, of 9 or 10 is 5."""


def isup(primary: int, secondary: int) -> int:
    """The ISUP grade of two Gleason patterns: 3+3 is 1, 3+4 2, 4+3 3, sums of 8 are 4, of 9 and 10 are 5."""
    if primary + secondary < 6:
        return 0
    return ISUP.get((primary, secondary)) or (4 if primary + secondary == 8 else 5)


def grade_of(text: str, file: Path, line: int) -> int:
    """Read the grade of a cell.

    Raises:
        SourceError: It is none.
    """
    if text not in tuple("012345"):
        raise SourceError(f"{file}: line {line}: ISUP grade '{text}'; expected 0 to 5.")
    return int(text)
