"""Instances in maps of foreground and distance, strip by strip: equal to labelling the whole image at once.

The instances of an image are those of scikit-image:

    mask = foreground > threshold
    markers = label(mask & (distance > marker), connectivity=1)
    heights = -distance.astype(float)
    heights[markers > 0] = heights.min() - 1 - np.arange(np.count_nonzero(markers))[::-1]
    instances = watershed(heights, markers, mask=mask)

The line before the last lets the pixels of markers enter the flood first, row by row. Otherwise scikit-image takes
those of equal distance in an order that depends on the whole image.

Strips give the same, for any height, because each step is local or a union:

- Connected components of `mask` and of the markers, by union-find over the parts in strips: two parts are one component
  exactly if pixels of both are neighbours across the border of two strips.
- The watershed of a component depends on its own pixels alone. A flood passes from pixel to pixel of the mask, so it
  never leaves a component. Its queue is ordered by height and then by age, the number of the push; no two entries are
  equal in both. What one component pushes changes the ages of another one, but never their order. So the flood of the
  whole image, seen at the pixels of one component, is the flood of that component, ties included.
- A component without a marker has no instance, and one with a single marker is one instance; only the others are
  flooded.
- Instances are numbered in the order of their first pixels, row by row, which is the same for all strips.

So a component is flooded as soon as it is complete, and held until then: memory is that of a strip and of the
components that are not complete, and strips wait, compressed, for the components that touch them. A component is
flooded in the rectangle around it. Where the foreground is connected across an image, that is the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, final

import imagecodecs
import numpy as np
import numpy.typing as npt
from scipy import ndimage
from skimage.segmentation import watershed

from tfbig.errors import BudgetError, SourceError
from tfbig.sources import Source
from tfbig.system import budget
from tfbig.units import format_bytes

MOST_OPEN: Final = 2**28
"""Most pixels of components that are not complete: 4 GB."""

STRIP_PIXELS: Final = 2**24
"""Pixels of a strip, of which each takes some 50 bytes while it is labelled."""

FLOODED_BYTES: Final = 60
"""Bytes for each pixel of the rectangle around a component while it is flooded; 50 to 60 were measured."""

Rows = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]


class Thresholds(NamedTuple):
    """Values above which a pixel is part of an instance, and of its marker.

    Args:
        foreground: Of the first channel, the probability of foreground.
        marker: Of the second channel, the distance from the border of the instance, 1 in its middle.
    """

    foreground: float
    marker: float


def label_strips(maps: Iterable[Rows], thresholds: Thresholds) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the instances of an image, strip by strip.

    Args:
        maps: Strips `[r, W, 2]` of an image from top to bottom, of any height: foreground and distance, of an unsigned
            integer dtype or float.
        thresholds: Thresholds in the same units.

    Yields:
        Strips `[r, W]` of the same heights: 0 is background, instances are numbered from 1 in the order of their first
        pixels, row by row.

    Raises:
        BudgetError: Components that are not complete have more than `MOST_OPEN` pixels, or one is so large that the
            host has no memory to flood it.
    """
    state = _State(thresholds)
    for strip in maps:
        state.add(strip)
        yield from state.complete_strips()
    state.end()
    yield from state.complete_strips()


def strip_height(width: int) -> int:
    """The number of rows of a strip of `STRIP_PIXELS`, at least one."""
    return max(STRIP_PIXELS // width, 1)


@final
class Instances(Source):
    """The instances of an image as a source that is read once, from top to bottom.

    Args:
        maps: Image `[H, W, 2]` of foreground and distance, as in `label_strips`; read once.
        thresholds: Thresholds in its units.
        strip_rows: Rows of the strips in which it is read; by default as many as have `STRIP_PIXELS`.
        ticked: Called with the number of strips that are read and the number of all strips.
    """

    def __init__(
        self,
        maps: Source,
        thresholds: Thresholds,
        strip_rows: int | None = None,
        ticked: Callable[[int, int], None] = lambda done, count: None,
    ) -> None:
        super().__init__((*maps.shape[:2], 1), np.int32, maps.name)
        self.mpp = maps.mpp
        self._strips = label_strips(
            _strips(maps, strip_rows or strip_height(maps.shape[1]), ticked), thresholds
        )
        self._held = np.zeros((0, maps.shape[1]), np.int32)
        self._start = 0

    def _read(self, start: int, stop: int) -> Rows:
        if start < self._start:
            raise SourceError(
                f"{self.name}: rows {start}:{stop} of its instances were read before; they are read from top to bottom."
            )
        parts = [self._held]
        count = len(self._held)
        while self._start + count < stop:
            parts.append(next(self._strips))
            count += len(parts[-1])
        held = np.concatenate(parts) if len(parts) > 1 else self._held
        rows = held[start - self._start : stop - self._start]
        self._held, self._start = held[stop - self._start :].copy(), stop
        return rows[..., None]


def _strips(maps: Source, height: int, ticked: Callable[[int, int], None]) -> Iterator[Rows]:
    starts = range(0, maps.shape[0], height)
    for number, start in enumerate(starts, 1):
        yield maps.read(start, min(start + height, maps.shape[0]))
        ticked(number, len(starts))


class _Piece(NamedTuple):
    """The pixels of a component in one strip."""

    strip: int
    rows: npt.NDArray[np.int32]  # in the image
    columns: npt.NDArray[np.int32]
    distances: Rows


@dataclass
class _Waiting:
    """A strip whose labels are not complete: those of inner components, and those of others that are added later."""

    shape: tuple[int, int]
    inner: bytes
    others: list[tuple[Numbers, Numbers]] = field(default_factory=list)

    def labels(self) -> Numbers:
        """Decode the labels of all components."""
        labels = np.frombuffer(imagecodecs.zstd_decode(self.inner), np.int64).copy()
        for places, numbers in self.others:
            labels[places] = numbers
        return labels.reshape(self.shape)


class _State:
    """Strips that wait, and components that are not complete."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._waiting: dict[int, _Waiting] = {}
        self._starts: list[int] = [0]
        self._emitted = 0
        self._parent: dict[int, int] = {}
        self._pieces: dict[int, list[_Piece]] = {}  # by the root of a component
        self._last_row: Numbers | None = None  # part at each column of the row above the next strip
        self._parts = 0
        self._labels = 0
        self._final = np.zeros(1, np.int32)  # number of each provisional label, 0 for none yet
        self._count = 0

    def add(self, strip: Rows) -> None:
        """Label the inner components of a strip, and join the others to those of the strip above."""
        mask, distance = strip[..., 0] > self._thresholds.foreground, strip[..., 1]
        parts, count = ndimage.label(mask)
        at_border = np.zeros(count + 1, bool)
        at_border[parts[-1]] = True
        if self._last_row is not None:
            at_border[parts[0]] = True
        at_border[0] = False
        inner = mask & ~at_border[parts]
        labels = self._labelled(np.where(inner, parts, 0), distance)
        number, start = len(self._starts) - 1, self._starts[-1]
        self._waiting[number] = _Waiting(
            mask.shape, bytes(imagecodecs.zstd_encode(labels.tobytes(), level=1))
        )
        self._hold(number, start, parts, at_border, distance)
        numbers = np.zeros(count + 1, np.int64)
        numbers[at_border] = self._parts + 1 + np.arange(at_border.sum())
        self._join(numbers[parts[0]])
        self._parts += int(at_border.sum())
        self._last_row = numbers[parts[-1]]
        self._starts.append(start + len(strip))
        self._close({self._root(int(part)) for part in np.unique(self._last_row) if part})

    def end(self) -> None:
        """Complete the components that touch the last row of the image."""
        self._close(set())

    def complete_strips(self) -> Iterator[npt.NDArray[np.int32]]:
        """Yield the strips that no open component touches, numbered in the order of first pixels."""
        firsts = (pieces[0].strip for pieces in self._pieces.values())
        limit = min(firsts, default=len(self._starts) - 1)
        while self._emitted < limit:
            labels = self._waiting.pop(self._emitted).labels()
            self._emitted += 1
            yield self._numbered(labels)

    def _labelled(self, parts: npt.NDArray[np.int32], distance: Rows) -> Numbers:
        """Label complete components, which are given by the numbers of their pixels, provisionally."""
        markers, count = ndimage.label((parts > 0) & (distance > self._thresholds.marker))
        owner = np.zeros(count + 1, np.int64)
        owner[markers] = parts
        per_part = np.bincount(owner[1:], minlength=int(parts.max(initial=0)) + 1)
        only = np.zeros(len(per_part), np.int64)
        only[owner[1:]] = np.arange(1, count + 1)
        only[per_part > 1] = 0
        labels = only[parts]
        several = per_part[parts] > 1
        if several.any():
            chosen = np.where(several, markers, 0)
            flooded = watershed(_heights(distance, chosen), chosen, mask=several)
            labels[several] = flooded[several]
        labels[labels > 0] += self._labels
        self._labels += count
        return labels

    def _hold(
        self,
        strip: int,
        start: int,
        parts: npt.NDArray[np.int32],
        at_border: npt.NDArray[np.bool_],
        distance: Rows,
    ) -> None:
        """Keep the pixels of the parts at the borders of a strip; their numbers follow those of earlier parts."""
        rows, columns = np.nonzero(at_border[parts])
        numbers = parts[rows, columns]
        order = np.argsort(numbers, kind="stable")
        rows, columns, numbers = rows[order], columns[order], numbers[order]
        ends = np.flatnonzero(np.diff(numbers, append=-1)) + 1
        begins = [0, *ends][:-1]
        for index, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            part = slice(begin, end)
            values = distance[rows[part], columns[part]]
            at = (rows[part] + start).astype(np.int32)
            piece = _Piece(strip, at, columns[part].astype(np.int32), values)
            number = self._parts + 1 + index
            self._parent[number], self._pieces[number] = number, [piece]
        held = sum(len(piece.rows) for pieces in self._pieces.values() for piece in pieces)
        if held > MOST_OPEN:
            raise BudgetError(
                f"components of foreground that are not complete have {held} pixels, up to row {start + len(parts)}; "
                f"{MOST_OPEN} are allowed. The foreground is connected across the image: raise its threshold."
            )

    def _join(self, first_row: Numbers) -> None:
        """Join parts that are neighbours across the border above a strip."""
        if self._last_row is None:
            return
        both = (first_row > 0) & (self._last_row > 0)
        pairs = np.unique(np.stack([self._last_row[both], first_row[both]]), axis=1)
        for above, below in pairs.T.tolist():
            a, b = sorted((self._root(above), self._root(below)))
            if a != b:
                self._parent[b] = a
                self._pieces[a] = sorted(
                    self._pieces[a] + self._pieces.pop(b), key=lambda piece: piece.strip
                )

    def _root(self, part: int) -> int:
        while self._parent[part] != part:
            self._parent[part] = self._parent[self._parent[part]]
            part = self._parent[part]
        return part

    def _close(self, still_open: set[int]) -> None:
        """Label the components that the next strip cannot reach, and free their pixels."""
        for root in [root for root in self._pieces if root not in still_open]:
            self._flood(self._pieces.pop(root))
        used = (
            {part: self._root(part) for part in np.unique(self._last_row).tolist() if part}
            if (self._last_row is not None and still_open)
            else {}
        )
        self._parent = {root: root for root in still_open} | used

    def _flood(self, pieces: list[_Piece]) -> None:
        """Label a component in its bounding box, and add its labels to the strips that it touches."""
        rows, columns = (
            np.concatenate([getattr(p, name) for p in pieces]) for name in ("rows", "columns")
        )
        top, left = int(rows.min()), int(columns.min())
        size = int(rows.max()) - top + 1, int(columns.max()) - left + 1
        _check_memory(top, left, size)
        parts, distance = np.zeros(size, np.int32), np.zeros(size, pieces[0].distances.dtype)
        parts[rows - top, columns - left] = 1
        distance[rows - top, columns - left] = np.concatenate([p.distances for p in pieces])
        labels = self._labelled(parts, distance)
        for piece in pieces:
            waiting = self._waiting[piece.strip]
            inside = piece.rows.astype(np.int64) - self._starts[piece.strip]
            places = inside * waiting.shape[1] + piece.columns
            waiting.others.append((places, labels[piece.rows - top, piece.columns - left]))

    def _numbered(self, labels: Numbers) -> npt.NDArray[np.int32]:
        """Give instances their final numbers; those that were not seen in strips above get the next ones."""
        if self._labels >= len(self._final):
            grown = np.zeros(2 * self._labels + 1, np.int32)
            grown[: len(self._final)] = self._final
            self._final = grown
        places = np.flatnonzero(labels)
        numbers = labels.ravel()[places]
        new = self._final[numbers] == 0
        places, numbers = places[new], numbers[new]
        if numbers.size:
            low, high = int(numbers.min()), int(numbers.max())
            first = np.full(high - low + 1, -1, np.int64)
            first[numbers[::-1] - low] = places[
                ::-1
            ]  # where numbers are equal, the last assignment counts
            found = np.flatnonzero(first >= 0)
            ordered = found[np.argsort(first[found])] + low
            self._final[ordered] = self._count + 1 + np.arange(len(ordered))
            self._count += len(ordered)
        return self._final[labels]


def _check_memory(top: int, left: int, size: tuple[int, int]) -> None:
    """Raise BudgetError if the host has no memory to flood a component."""
    needed, free = FLOODED_BYTES * size[0] * size[1], budget.available_bytes()
    if needed > free:
        raise BudgetError(
            f"the foreground is connected across rows {top} to {top + size[0] - 1} and columns {left} to "
            f"{left + size[1] - 1}: to divide it into instances takes {format_bytes(needed)} of host memory, but "
            f"{format_bytes(free)} are free. Raise its threshold, or train the network for longer."
        )


def _heights(distance: Rows, markers: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """The heights of a flood: low in the middle of an instance, lowest at markers, where they grow by row."""
    heights = -distance.astype(np.float64)
    places = np.flatnonzero(markers)
    heights.ravel()[places] = heights.min() - 1 - np.arange(len(places))[::-1]
    return heights
