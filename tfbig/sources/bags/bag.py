"""Bags: instances, tiles of a slide or their features, of which any slice is read; and bags made of other bags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
from PIL import Image

from tfbig.errors import SourceError
from tfbig.sources.source import Readable, Rows

Indices = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


class Bag(Readable):
    """A bag `[n, ...]` of n instances, for example tiles `[n, H, W, C]` or features `[n, d]`.

    Subclasses call `super().__init__(shape, dtype, name)` and define `_read`; those that find single instances fast
    define `_take` too.

    Args:
        shape: `(n, ...)`.
        dtype: Type of one sample.
        name: What error messages call the bag.
        coords: Where the instances lie, `[n, 2]`: x and y of the upper left corner in pixels of the slide.
        labels: Of the instances, `[n]`, where they are known: to judge what a model looked at, never to train.

    Raises:
        SourceError: The bag is empty, has one axis, or has another number of coordinates or labels than instances.
    """

    what = "bag"
    rows = "instances"

    def __init__(
        self,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        name: str,
        coords: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(_bag_shape(shape, name), dtype, name)
        self.coords = _of_each(coords, "coordinates", (self.shape[0], 2), name)
        self.labels = _of_each(labels, "labels", (self.shape[0],), name)

    def take(self, indices: npt.ArrayLike) -> Rows:
        """The instances at these places, `[k, ...]`.

        Raises:
            IndexError: A place is outside the bag.
            SourceError: As `read`.
        """
        places = np.asarray(indices, np.int64)
        if places.size and not 0 <= places.min() <= places.max() < self.shape[0]:
            raise IndexError(
                f"{self.name}: instances {places.min()} to {places.max()} were asked for, the bag "
                f"has 0 to {self.shape[0] - 1}."
            )
        if not places.size:
            return np.empty((0, *self.shape[1:]), self.dtype)
        return self._take(places)

    def _take(self, places: Indices) -> Rows:
        """As `take`; by runs of neighbours."""
        ends = np.flatnonzero(np.diff(places) != 1) + 1
        runs = np.split(places, ends)
        return np.concatenate([self._read(int(run[0]), int(run[-1]) + 1) for run in runs])

    def sample(self, count: int, seed: int) -> Bag:
        """Instances drawn without replacement, in the order of the bag.

        Args:
            count: How many; all of them if the bag has no more.
            seed: Same seed, same instances.
        """
        if count < 1:
            raise ValueError(f"{self.name}: count={count} instances to draw; expected 1 or more.")
        if count >= self.shape[0]:
            return self
        drawn = np.random.default_rng(seed).choice(self.shape[0], count, replace=False)
        return Subset(self, np.sort(drawn))

    def drawn_handle(self, count: int, seed: int, augmented: bool = False) -> str:
        """The handle of `sample(count, seed)`, drawn when it is read, so that none has to be kept.

        Args:
            count, seed: As in `sample`.
            augmented: The instances are changed as `Augmentation.draw(seed)` says.
        """
        return f"{self.handle}?count={count}&seed={seed}&augmented={int(augmented)}"


@final
class ArrayBag(Bag):
    """A bag that is an array in memory, or a memory map, whose file is then read.

    Args:
        array: `[n, ...]`; not copied.
        name: What error messages call it.
        coords, labels: As in `Bag`.
    """

    def __init__(
        self,
        array: Array,
        name: str = "array",
        coords: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(array.shape, array.dtype, name, coords, labels)
        self._array = array

    def _read(self, start: int, stop: int) -> Rows:
        rows = np.ascontiguousarray(self._array[start:stop], self.dtype).view()
        rows.flags.writeable = False
        return rows

    def _take(self, places: Indices) -> Rows:
        return np.ascontiguousarray(self._array[places], self.dtype)


@final
class Subset(Bag):
    """Some instances of a bag.

    Args:
        bag: The bag.
        places: Which, `[k]`.
        labels: As in `Bag`; by default those of the bag.
        name: What error messages call it; by default as the bag.
    """

    def __init__(
        self,
        bag: Bag,
        places: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
        name: str | None = None,
    ) -> None:
        self._inner = bag
        self._places = np.asarray(places, np.int64)
        coords, known = (None if t is None else t[self._places] for t in (bag.coords, bag.labels))
        shape = (len(self._places), *bag.shape[1:])
        labels = known if labels is None else labels
        super().__init__(shape, bag.dtype, name or bag.name, coords, labels)

    def _read(self, start: int, stop: int) -> Rows:
        return self._inner.take(self._places[start:stop])

    def _take(self, places: Indices) -> Rows:
        return self._inner.take(self._places[places])

    def close(self) -> None:
        self._inner.close()


@final
class Filled(Bag):
    """A bag with instances of one value behind its own, so that bags of a batch have one size.

    Args:
        bag: The bag.
        count: Instances in all, as many as the bag has or more.
        value: Of every sample of the new ones; 255 is white.

    Raises:
        SourceError: The bag has more instances.
    """

    def __init__(self, bag: Bag, count: int, value: float = 255) -> None:
        own = bag.shape[0]
        if count < own:
            raise SourceError(
                f"{bag.name}: has {own} instances, and cannot be filled up to {count}."
            )
        labels = None if bag.labels is None else np.pad(bag.labels, (0, count - own))
        super().__init__((count, *bag.shape[1:]), bag.dtype, bag.name, None, labels)
        self._inner, self._own, self._value = bag, own, value

    def _read(self, start: int, stop: int) -> Rows:
        found = np.full((stop - start, *self.shape[1:]), self._value, self.dtype)
        if start < self._own:
            inside = self._inner.read(start, min(stop, self._own))
            found[: len(inside)] = inside
        return found

    def close(self) -> None:
        self._inner.close()


@final
class Resized(Bag):
    """A bag of images whose instances are made larger or smaller as they are read (bilinear).

    Args:
        bag: `[n, H, W, C]` of uint8.
        size: `(rows, columns)`.
    """

    def __init__(self, bag: Bag, size: tuple[int, int]) -> None:
        if len(bag.shape) != 4 or bag.dtype != np.uint8:
            raise SourceError(
                f"{bag.name}: is {bag.shape} {bag.dtype}; expected images [n, H, W, C] of uint8."
            )
        shape = (bag.shape[0], *size, bag.shape[3])
        super().__init__(shape, bag.dtype, bag.name, bag.coords, bag.labels)
        self._inner, self._size = bag, size

    def _read(self, start: int, stop: int) -> Rows:
        return np.stack([resize(image, self._size) for image in self._inner.read(start, stop)])

    def _take(self, places: Indices) -> Rows:
        return np.stack([resize(image, self._size) for image in self._inner.take(places)])

    def close(self) -> None:
        self._inner.close()


def resize(image: Rows, size: tuple[int, int]) -> Rows:
    """An image `[H, W, C]` of uint8 at `(rows, columns)`, bilinear, with the filter as wide as the shrinking asks."""
    if image.shape[:2] == tuple(size):
        return image
    channels = [
        np.asarray(Image.fromarray(image[..., c]).resize(size[::-1], Image.Resampling.BILINEAR))
        for c in range(image.shape[2])
    ]
    return np.stack(channels, axis=-1)


def _bag_shape(shape: Sequence[int], name: str) -> tuple[int, ...]:
    found = tuple(int(n) for n in shape)
    if len(found) < 2:
        raise SourceError(
            f"{name}: has shape {found}; expected a bag [n, ...] of n instances, such as tiles "
            "[n, H, W, C] or features [n, d]."
        )
    if found[0] == 0:
        raise SourceError(f"{name}: is an empty bag; it needs one instance at least. Leave it out.")
    if 0 in found:
        raise SourceError(f"{name}: has shape {found}; its instances are empty.")
    return found


def _of_each(
    given: npt.ArrayLike | None, what: str, shape: tuple[int, ...], name: str
) -> Array | None:
    if given is None:
        return None
    found = np.asarray(given)
    if found.shape != shape:
        raise SourceError(
            f"{name}: has {what} of shape {found.shape} for {shape[0]} instances; expected {shape}."
        )
    return found
