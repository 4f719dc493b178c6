"""How shifts of images go together."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tfbig.geometry.rates import Link, rate_of, together
from tfbig.geometry.selection import Slice
from tfbig.geometry.windows import Everything, Fixed, Resize, Transposed, Window


def test_rates_of_an_encoder_and_a_decoder() -> None:
    """Image 0 is halved twice to 1 and 2, and 2 is doubled to 3, which is joined with 1 to 4."""
    half, double = rate_of(Window(3, 2)), rate_of(Transposed(4, 2))
    links = [Link(1, 0, half), Link(2, 1, half), Link(3, 2, double)]
    same = rate_of(Window())
    links += [Link(4, 3, same), Link(4, 1, same)]
    assert together(range(5), links) == {0: 4, 1: 2, 2: 1, 3: 2, 4: 2}


def test_order_of_links_does_not_matter() -> None:
    """An image that nothing reads follows the ones that it is computed from."""
    links = [Link(1, 0, Fraction(1)), Link(2, 0, Fraction(2)), Link(3, 2, Fraction(3))]
    expected = {0: 6, 1: 6, 2: 3, 3: 1}
    assert together(range(4), links) == together(range(4), links[::-1]) == expected


def test_no_rates_where_two_ways_differ() -> None:
    links = [Link(1, 0, Fraction(2)), Link(2, 0, Fraction(1)), Link(2, 1, Fraction(1))]
    assert together(range(3), links) is None


def test_images_without_links_have_one_row() -> None:
    assert together([5, 7], []) == {5: 1, 7: 1}
    assert together([5, 7], [Link(7, 5, None)]) is None


@pytest.mark.parametrize(
    "axis", [Everything(), Fixed(3), Resize(3), Slice(1, None, 1)], ids=lambda a: type(a).__name__
)
def test_axes_that_depend_on_the_place(axis: object) -> None:
    """All rows, parts of a given size, centres that float32 rounds, and rows counted from the end."""
    assert rate_of(axis) is None  # type: ignore[arg-type]


def test_resizing_by_powers_of_two_is_exact_anywhere() -> None:
    assert rate_of(Resize(4)) == Fraction(1, 4)
