"""Bags of instances (tiles of a slide or their features), read by slices, and bags made from other bags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
from PIL import Image

from tfbig.errors import SourceError
from tfbig.sources import boxes
from tfbig.sources.source import Readable, RowArray

Indices = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


class Bag(Readable):
    """A bag `[n, ...]` of n instances, for example tiles `[n, H, W, C]` or features `[n, d]`.

    Subclasses call `super().__init__(shape, dtype, name)` and define `_read(start, stop)`. Those that can read single
    instances faster define `_take(places)` too.

    Args:
        shape: `(n, ...)`.
        dtype: Dtype of one sample.
        name: Name for error messages.
        coords: Positions of the instances, `[n, 2]`: x and y of the upper left corner in pixels of the slide.
        labels: Labels of the instances, `[n]`, if known: to evaluate the attention of a model, never to train it.

    Attributes:
        coords: Positions of the instances `[n, 2]`, or None.
        labels: Labels of the instances `[n]`, or None.

    Raises:
        SourceError: The bag is empty or has only one axis, or the number of coordinates or labels is not n.

    Example:
        >>> class Ramp(tfbig.sources.Bag):
        ...     def _read(self, start, stop):
        ...         return np.arange(start, stop, dtype="float32")[:, None]
        >>> bag = Ramp((100, 1), "float32", "ramp")
        >>> bag.take([5, 50]).tolist(), bag.sample(10, seed=0).shape
        ([[5.0], [50.0]], (10, 1))
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
        self.coords = _checked_shape(coords, "coordinates", (self.shape[0], 2), name)
        self.labels = _checked_shape(labels, "labels", (self.shape[0],), name)

    def take(self, indices: npt.ArrayLike) -> RowArray:
        """Read single instances.

        Args:
            indices: Indices of the instances, `[k]`.

        Returns:
            Array `[k, ...]` of `dtype`.

        Raises:
            IndexError: An index is outside the bag.
            SourceError: The file is damaged there.
        """
        places = np.asarray(indices, np.int64)
        if places.size and not 0 <= places.min() <= places.max() < self.shape[0]:
            raise IndexError(
                f"{self.name}: instances {places.min()} to {places.max()} requested, but the bag "
                f"has 0 to {self.shape[0] - 1}."
            )
        if not places.size:
            return np.empty((0, *self.shape[1:]), self.dtype)
        return self._take(places)

    def _take(self, places: Indices) -> RowArray:
        """Read valid instances; by default runs of consecutive ones are read together."""
        ends = np.flatnonzero(np.diff(places) != 1) + 1
        runs = np.split(places, ends)
        return np.concatenate([self._read(int(run[0]), int(run[-1]) + 1) for run in runs])

    def sample(self, count: int, seed: int) -> Bag:
        """Draw instances without replacement, in the order of the bag.

        Args:
            count: Number of instances; the whole bag is returned if it has no more.
            seed: Seed; the same seed draws the same instances.

        Raises:
            ValueError: `count` is below 1.
        """
        if count < 1:
            raise ValueError(f"{self.name}: count={count} instances to draw; expected 1 or more.")
        if count >= self.shape[0]:
            return self
        drawn = np.random.default_rng(seed).choice(self.shape[0], count, replace=False)
        return Subset(self, np.sort(drawn))

    def drawn_handle(
        self,
        count: int,
        seed: int,
        augmented: bool = False,
        each: bool = False,
        jitter: float = 0.0,
    ) -> str:
        """Make a handle of `sample(count, seed)`.

        The sample is drawn as it is read; no sampled bag has to be kept.

        Args:
            count: Number of instances.
            seed: Seed of the sample and of the augmentation.
            augmented: Whether to augment the instances by `Augmentation.draw(seed)`.
            each: Whether to augment each instance by parameters of its own, see `AugmentedEach`.
            jitter: Sigma of `Augmentation.with_jitter`, which changes the stains of all instances alike.
        """
        query = f"count={count}&seed={seed}&augmented={int(augmented)}&each={int(each)}"
        return f"{self.handle}?{query}&jitter={jitter}"


@final
class ArrayBag(Bag):
    """A bag that is an array in memory.

    Args:
        array: `[n, ...]`; not copied.
        name: Name for error messages.
        coords: Positions of the instances `[n, 2]`, as in `Bag`.
        labels: Labels of the instances `[n]`, as in `Bag`.

    Raises:
        SourceError: The array is empty or has only one axis, or the number of coordinates or labels is not n.

    Example:
        >>> bag = tfbig.sources.ArrayBag(np.arange(12, dtype="float32").reshape(4, 3))
        >>> bag.read(1, 2).tolist()
        [[3.0, 4.0, 5.0]]
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

    def _read(self, start: int, stop: int) -> RowArray:
        rows = np.ascontiguousarray(self._array[start:stop], self.dtype).view()
        rows.flags.writeable = False
        return rows

    def _take(self, places: Indices) -> RowArray:
        return np.ascontiguousarray(self._array[places], self.dtype)


@final
class Subset(Bag):
    """Some instances of a bag.

    Args:
        bag: The bag.
        places: Indices of the instances `[k]`.
        labels: Labels `[k]`; by default those of the bag.
        name: Name for error messages; by default that of the bag.

    Raises:
        SourceError: `places` is empty, or the number of labels is not k.

    Example:
        >>> bag = tfbig.sources.ArrayBag(np.arange(5)[:, None], labels=[0, 0, 1, 1, 0])
        >>> subset = tfbig.sources.Subset(bag, [4, 2])
        >>> subset.read(0, 2).tolist(), subset.labels.tolist()
        ([[4], [2]], [0, 1])
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
        coords, bag_labels = (
            None if values is None else values[self._places] for values in (bag.coords, bag.labels)
        )
        shape = (len(self._places), *bag.shape[1:])
        labels = bag_labels if labels is None else labels
        super().__init__(shape, bag.dtype, name or bag.name, coords, labels)

    def _read(self, start: int, stop: int) -> RowArray:
        return self._inner.take(self._places[start:stop])

    def _take(self, places: Indices) -> RowArray:
        return self._inner.take(self._places[places])

    def close(self) -> None:
        """Close the bag that the instances are read from."""
        self._inner.close()


@final
class Filled(Bag):
    """A bag filled up with constant instances at the end, so that all bags of a batch have one size.

    Labels of the added instances are 0; coordinates are dropped.

    Args:
        bag: The bag.
        count: Number of instances including the added ones, at least that of the bag.
        value: Value of every sample of the added instances; 255 is white.

    Raises:
        SourceError: The bag has more than `count` instances.

    Example:
        >>> bag = tfbig.sources.ArrayBag(np.zeros((2, 1), "uint8"))
        >>> tfbig.sources.Filled(bag, 4).read(0, 4)[:, 0].tolist()
        [0, 0, 255, 255]
    """

    def __init__(self, bag: Bag, count: int, value: float = 255) -> None:
        inner_count = bag.shape[0]
        if count < inner_count:
            raise SourceError(
                f"{bag.name}: has {inner_count} instances, and cannot be filled up to {count}."
            )
        labels = None if bag.labels is None else np.pad(bag.labels, (0, count - inner_count))
        super().__init__((count, *bag.shape[1:]), bag.dtype, bag.name, None, labels)
        self._inner, self._value = bag, value

    def _read(self, start: int, stop: int) -> RowArray:
        inner, places = self._inner, [(start, stop)]
        return boxes.padded(
            lambda inside: inner.read(*inside), places, inner.shape, self._value, self.dtype
        )

    def close(self) -> None:
        """Close the bag that is filled up."""
        self._inner.close()


@final
class Resized(Bag):
    """A bag of images resized as they are read, with Pillow's filters.

    Args:
        bag: Images `[n, H, W, C]`, uint8.
        size: `(rows, columns)` of the result.
        interpolation: "bilinear" or "bicubic".
        shorter: Length of the shorter side after resizing, which keeps the proportions; the middle `size` is then cut
            out, as `Resize` and `CenterCrop` of torchvision do. None: both sides are resized to `size`.

    Raises:
        SourceError: The bag has another number of axes or another dtype, or `shorter` is less than `size`.

    Example:
        >>> bag = tfbig.sources.ArrayBag(np.full((5, 8, 8, 3), 7, "uint8"))
        >>> tfbig.sources.Resized(bag, (4, 6)).read(0, 2).shape
        (2, 4, 6, 3)
    """

    def __init__(
        self,
        bag: Bag,
        size: tuple[int, int],
        interpolation: str = "bilinear",
        shorter: int | None = None,
    ) -> None:
        if len(bag.shape) != 4 or bag.dtype != np.uint8:
            raise SourceError(
                f"{bag.name}: is {bag.shape} {bag.dtype}; expected images [n, H, W, C] of uint8."
            )
        shape = (bag.shape[0], *size, bag.shape[3])
        super().__init__(shape, bag.dtype, bag.name, bag.coords, bag.labels)
        self._inner, self._size = bag, size
        self._interpolation, self._shorter = interpolation, shorter
        if shorter is not None and shorter < max(size):
            raise SourceError(
                f"{bag.name}: a shorter side of {shorter} is less than {max(size)}, which is cut out. Use a larger one."
            )

    def _read(self, start: int, stop: int) -> RowArray:
        return np.stack([self._resized(image) for image in self._inner.read(start, stop)])

    def _take(self, places: Indices) -> RowArray:
        return np.stack([self._resized(image) for image in self._inner.take(places)])

    def _resized(self, image: RowArray) -> RowArray:
        if self._shorter is None:
            return resize(image, self._size, self._interpolation)
        least = min(image.shape[:2])
        rows, columns = (self._shorter * n // least for n in image.shape[:2])
        image = resize(image, (rows, columns), self._interpolation)
        top, left = (round((n - m) / 2) for n, m in zip((rows, columns), self._size, strict=True))
        return image[top : top + self._size[0], left : left + self._size[1]]

    def close(self) -> None:
        """Close the bag that is resized."""
        self._inner.close()


def resize(image: RowArray, size: tuple[int, int], interpolation: str = "bilinear") -> RowArray:
    """Resize an image `[H, W, C]`, uint8, to rows and columns, with a filter of Pillow.

    The filter is "bilinear" or "bicubic", and widens when it shrinks an image. An image that has this size is
    returned.
    """
    if image.shape[:2] == tuple(size):
        return image
    kind = Image.Resampling[interpolation.upper()]
    channels = [
        np.asarray(Image.fromarray(image[..., c]).resize(size[::-1], kind))
        for c in range(image.shape[2])
    ]
    return np.stack(channels, axis=-1)


def _bag_shape(shape: Sequence[int], name: str) -> tuple[int, ...]:
    """Check a shape: raise SourceError if a bag cannot have it."""
    extents = tuple(int(n) for n in shape)
    if len(extents) < 2:
        raise SourceError(
            f"{name}: has shape {extents}; expected a bag [n, ...] of n instances, such as tiles "
            "[n, H, W, C] or features [n, d]."
        )
    if extents[0] == 0:
        raise SourceError(f"{name}: is an empty bag; expected at least one instance. Exclude it.")
    if 0 in extents:
        raise SourceError(f"{name}: has shape {extents}; its instances are empty.")
    return extents


def _checked_shape(
    values: npt.ArrayLike | None, what: str, shape: tuple[int, ...], name: str
) -> Array | None:
    """Check that values have a shape; None if there are none."""
    if values is None:
        return None
    array = np.asarray(values)
    if array.shape != shape:
        raise SourceError(
            f"{name}: has {what} of shape {array.shape} for {shape[0]} instances; expected {shape}."
        )
    return array
