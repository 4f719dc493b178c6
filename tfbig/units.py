"""Numbers: division that rounds up, byte counts formatted for people, and the element size of each dtype."""

from __future__ import annotations

from math import ceil
from typing import Any, overload

ITEMSIZE = {"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2}
ITEMSIZE |= {"int32": 4, "float32": 4, "int64": 8, "float64": 8}


WORD = 8
"""Bytes of a word; rows of images on an accelerator consist of whole words."""
ALIGNMENT = 64
"""Alignment in bytes; TensorFlow copies an array of host memory whose address is no multiple of it."""


@overload
def ceil_div(a: int, b: int) -> int: ...


@overload
def ceil_div(a: Any, b: Any) -> Any: ...


def ceil_div(a: Any, b: Any) -> Any:
    """Return `a / b`, rounded up, of integers, arrays or tensors of them.

    Example:
        >>> from tfbig.units import ceil_div
        >>> ceil_div(7, 2)
        4
    """
    return -(-a // b)


def aligned(size: int) -> int:
    """The bytes that an array of `size` bytes occupies: whole alignments, and at least one."""
    return max(ceil_div(size, ALIGNMENT), 1) * ALIGNMENT


def itemsize(dtype: str | None) -> int:
    """The bytes of one element of `dtype`; None is float32."""
    return ITEMSIZE[dtype or "float32"]


def format_bytes(count: float) -> str:
    """Format a number of bytes, rounded up so that a budget of the printed size is enough.

    Example:
        >>> from tfbig.units import format_bytes
        >>> format_bytes(1536)
        '1.5 KiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{ceil(count * 10) / 10:.1f} {unit}"
        count /= 1024
    raise AssertionError


def counted(count: int, noun: str) -> str:
    """Write a number of things in words.

    Example:
        >>> from tfbig.units import counted
        >>> counted(1, "scene"), counted(2, "class")
        ('1 scene', '2 classes')
    """
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"
