"""How shifts of images go together: rows of each image for each row of the coarsest one. Arithmetic only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from tfbig.geometry.windows import Axis

Rates = dict[int, int]
"""Rows by image. Images that are shifted by multiples of these rows give the same results, shifted."""


class Link(NamedTuple):
    """An image that is computed from another one.

    Args:
        output: The image.
        source: The other one.
        rate: Rows of the other one for each row of the image, see `rate_of`; None if a shift changes results.
    """

    output: int
    source: int
    rate: Fraction | None


def rate_of(axis: Axis) -> Fraction | None:
    """Return the input rows that results are shifted by one row with; None if a shift changes results.

    Args:
        axis: Axis of a local operation. Of its kinds, those that shift have an attribute `rate`.
    """
    rate: Fraction | None = getattr(axis, "rate", None)
    return rate


def together(images: Sequence[int], links: Iterable[Link]) -> Rates | None:
    """Return the rates of images; None if no shift of all of them gives the same results.

    Args:
        images: The images.
        links: What is computed from what; all of it among the images.
    """
    known: dict[int, list[tuple[int, Fraction]]] = {v: [] for v in images}
    for output, source, rate in links:
        if rate is None:
            return None
        known[output].append((source, rate))
        known[source].append((output, 1 / rate))
    found: dict[int, Fraction] = {}
    for image in images:
        waiting = [] if image in found else [(image, Fraction(1))]
        while waiting:
            value, rate = waiting.pop()
            if found.setdefault(value, rate) != rate:
                return None
            waiting += [(v, rate * r) for v, r in known[value] if found.get(v) != rate * r]
    scale = lcm(*(r.denominator for r in found.values()))
    return {v: int(r * scale) for v, r in found.items()}
