"""Background of the input images of a step: that of images behind handles, and what labels share with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.engine import read_ahead
from tfbig.geometry.background import Background, BoolArray

BAND_BYTES = 2**24
"""Bytes of an image that are compared at a time."""

_CONSTANT: WeakKeyDictionary[Any, dict[Background, Background]] = WeakKeyDictionary()
"""Where each source is constant on a background."""


def expected(images: Mapping[int, tf.Tensor]) -> dict[int, Background]:
    """Return the background of input images; other images of the same size are assumed to share it.

    Args:
        images: Eager tensors, or string handles `[N]`, by value id.

    Returns:
        Background by value id; empty if no image has any.
    """
    known = _of_handles({v: t.numpy() for v, t in images.items() if t.dtype == tf.string})
    shapes = {v: read_ahead.shape_of(t) for v, t in images.items()} if known else {}
    shared = _shared(known, shapes)
    return known | {v: shared[_size(s)] for v, s in shapes.items() if _size(s) in shared}


def found(images: Mapping[int, np.ndarray]) -> dict[int, Background]:
    """Return the background of input images; other images of the same size are searched for where they share it.

    Args:
        images: Arrays, or string handles `[N]`, by value id.

    Returns:
        Background by value id; empty if no image has any.
    """
    handles = {v: a for v, a in images.items() if a.dtype.kind not in "biuf" and a.ndim == 1}
    known = _of_handles(handles)
    if not known:
        return {}
    shapes = {v: _shape(a, v in handles) for v, a in images.items()}
    shared = _shared(known, shapes)
    for v, array in images.items():
        if v not in known and (background := shared.get(_size(shapes[v]))):
            constant = (
                _of_sources(array, background) if v in handles else _of_array(array, background)
            )
            if constant is not None:
                known[v] = constant
    return known


def _shape(array: np.ndarray, is_handle: bool) -> tuple[int, ...]:
    if is_handle:
        return read_ahead.shape_of_all(read_ahead.resolved(array))
    return array.shape


def _size(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[1:-1]


def _of_handles(handles: Mapping[int, np.ndarray]) -> dict[int, Background]:
    """Return the background that all images behind each batch of handles have in common."""
    known = {}
    for v, names in handles.items():
        sources_of = read_ahead.resolved(names)
        each = [b for r in sources_of if (b := getattr(r, "background", None)) is not None]
        if len(each) == len(sources_of):
            known[v] = reduce(Background.joined, each)
    return known


def _shared(
    known: Mapping[int, Background], shapes: Mapping[int, tuple[int, ...]]
) -> dict[tuple[int, ...], Background]:
    """Return what the images of each size have in common."""
    shared: dict[tuple[int, ...], Background] = {}
    for v, background in known.items():
        size = _size(shapes[v])
        shared[size] = background.joined(shared[size]) if size in shared else background
    return shared


def _of_sources(names: np.ndarray, background: Background) -> Background | None:
    """Return the part of a background on which all images behind handles are constant, None without any."""
    parts = [_of_source(r, background) for r in read_ahead.resolved(names)]
    return None if None in parts else reduce(Background.joined, parts)  # type: ignore[arg-type]


def _of_source(source: sources.Readable, background: Background) -> Background | None:
    known = _CONSTANT.setdefault(source, {})
    if background not in known:
        constant = constant_part(
            lambda a, b: source.read(a, b)[None], (1, *source.shape), background
        )
        if constant is None:
            return None
        known[background] = constant
    return known[background]


def _of_array(array: np.ndarray, background: Background) -> Background | None:
    return constant_part(lambda a, b: array[:, a:b], array.shape, background)


def constant_part(
    read: Callable[[int, int], np.ndarray], shape: tuple[int, ...], background: Background
) -> Background | None:
    """Return the part of a background on which images have one colour each.

    Args:
        read: Function that returns rows `[N, rows, W, C]`.
        shape: `(N, H, W, C)`.
        background: Where to look; an image of the same size.

    Returns:
        The part; None if there is no background.
    """
    places = np.argwhere(~background.foreground)
    if not len(places):
        return None
    cell = background.cell
    first = places[len(places) // 2] * cell
    colour = read(int(first[0]), int(first[0]) + 1)
    if len(first) > 1:
        colour = colour[:, :, first[1] : first[1] + 1]
    rows = max(BAND_BYTES // max(colour.nbytes * int(np.prod(shape[2:-1])), 1) // cell, 1) * cell
    differs = [
        _cells_that_differ(read(start, min(start + rows, shape[1])), colour, cell)
        for start in range(0, shape[1], rows)
    ]
    return Background(background.foreground | np.concatenate(differs), cell)


def _cells_that_differ(rows: np.ndarray, colour: np.ndarray, cell: int) -> BoolArray:
    """Return which cells have pixels of another colour."""
    differs = (rows != colour).any(axis=(0, -1))
    differs = differs.reshape(*differs.shape[:2], -1).any(-1) if differs.ndim > 2 else differs
    for axis, size in enumerate(differs.shape):
        differs = np.logical_or.reduceat(differs, np.arange(0, size, cell), axis=axis)
    return differs
