"""Where an image or a gradient is stored between sweeps: what a store does for the strips of a sweep.

A store of another kind is one more class like these. Its tensors are those of the graph that is being traced, and a
named tuple of tensors is what functions and loops of TensorFlow take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import tensorflow as tf

from tfbig.stores.transfers import Changes, Reads

Interval = tuple[tf.Tensor, tf.Tensor]
"""First row (column, ...) and the one after the last, int32 scalars."""


class StripPart(NamedTuple):
    """The part of an image that a strip reads or changes.

    Args:
        intervals: Its rows; then its columns, ... if images are cut along them.
        size: Size of the image along all spatial axes, int32 scalars.
        shape: Static shape of the part, `[N, rows, ..., C]`.
        dtype: Element type that strips compute with.
        device: Device that computes the strip; None leaves it to TensorFlow.
        is_background: Whether the part stands for all background of the image, int32 scalar; None if none is skipped.
        uncovered: Rows that contain anything before the strip adds to the image, and sums afterwards; None if all
            contain sums.
        ahead: Function that returns the part that is read next, to begin with it.
    """

    intervals: list[Interval]
    size: list[tf.Tensor]
    shape: list[int | None]
    dtype: Any
    device: str | None = None
    is_background: tf.Tensor | None = None
    uncovered: Interval | None = None
    ahead: Callable[[], list[Interval]] | None = None

    @property
    def firsts(self) -> list[tf.Tensor]:
        """First row, and column, ... of the part."""
        return [first for first, _ in self.intervals]

    @property
    def bounds(self) -> list[tf.Tensor]:
        """First row and the one after the last, then the same of the columns, ..."""
        return [bound for interval in self.intervals for bound in interval]

    @property
    def stands_for_background(self) -> tf.Tensor:
        """Whether the part stands for all background of the image, a truth value; of images with tiles."""
        assert self.is_background is not None
        return self.is_background > 0

    def shaped(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the rows of the part with their static shape, in the dtype that strips compute with."""
        with tf.device(self.device):
            return tf.cast(tf.ensure_shape(rows, self.shape), self.dtype)


class StripSource(Protocol):
    """Where strips read the parts of an image."""

    @property
    def in_place(self) -> bool:
        """Whether rows that were read may be memory of the store, which TensorFlow does not own."""

    def map(self, function: Callable[[tf.Tensor], Any]) -> Self:
        """Return the store with a function applied to the tensor that holds the image."""

    def read(self, reads: Reads, part: StripPart) -> Callable[[], tf.Tensor]:
        """Request a part, and return a function that returns it when the reads have been made."""


class StripTarget(Protocol):
    """Where strips write the parts of an image."""

    @property
    def state(self) -> Any:
        """The tensor that a change replaces; `()` if changes are made in place."""

    def with_state(self, state: Any) -> Self:
        """Return the store with the tensor of `state` after some changes."""

    def map(self, function: Callable[[tf.Tensor], Any]) -> Self:
        """Return the store with a function applied to the tensor that holds the image."""

    def write(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Write a part, and return the store for what is computed after the change."""


class ImageSource(StripSource, Protocol):
    """A store of an image, or an input."""

    def whole(self, dtype: Any, rank: int) -> tf.Tensor:
        """Return the whole image, `[N, rows, ..., C]` with `rank` axes."""


class ImageStore(ImageSource, StripTarget, Protocol):
    """A store of an image."""

    def after(self, done: tf.Tensor) -> Self:
        """Return the store for sweeps that read it when the changes of another sweep are `done`."""


class GradientStore(ImageSource, StripTarget, Protocol):
    """A store of the gradient of an image."""

    def after(self, done: tf.Tensor) -> Self:
        """Return the store for sweeps that read it when the changes of another sweep are `done`."""

    def add(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Add a part, and return the store for what is computed after the change."""
