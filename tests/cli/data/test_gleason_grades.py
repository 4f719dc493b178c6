"""ISUP grades of Gleason patterns."""

import pytest

from tfbig.cli.data import gleason_grades


@pytest.mark.parametrize(
    ("patterns", "grade"),
    [
        ((3, 3), 1),
        ((3, 4), 2),
        ((4, 3), 3),
        ((4, 4), 4),
        ((3, 5), 4),
        ((5, 3), 4),
        ((4, 5), 5),
        ((5, 5), 5),
        ((2, 3), 0),
    ],
)
def test_isup_grades(patterns, grade):
    assert gleason_grades.isup(*patterns) == grade
