"""What a store of an image, or of its gradient, does for the strips of a sweep: the protocols of all kinds of stores.

The tensors of a store are those of the graph that is being traced. Each store is a named tuple of them, because loops
and functions of TensorFlow accept nothing else.
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
        is_pattern: Whether the part is the pattern of background, int32 scalar; None if no background is skipped.
        uninitialised: First row to which no strip has added, and the end of the rows that contain sums afterwards; None
            if the store has been initialised.
        ahead: Function that returns the part that a strip reads next, so that its files are read early.
    """

    intervals: list[Interval]
    size: list[tf.Tensor]
    shape: list[int | None]
    dtype: Any
    device: str | None = None
    is_pattern: tf.Tensor | None = None
    uninitialised: Interval | None = None
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
    def is_the_pattern(self) -> tf.Tensor:
        """True if the part is the pattern of background; only for images in tiles."""
        assert self.is_pattern is not None
        return self.is_pattern > 0

    def shaped(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the rows of the part with their static shape, in the dtype that strips compute with."""
        with tf.device(self.device):
            return tf.cast(tf.ensure_shape(rows, self.shape), self.dtype)


class StripSource(Protocol):
    """A source of the parts of an image that strips read."""

    @property
    def needs_copy(self) -> bool:
        """True if what was read may be memory that TensorFlow does not own, so that parts of it must be copied."""

    def map(self, function: Callable[[tf.Tensor], Any]) -> Self:
        """Return the store with a function applied to the tensor that holds the image."""

    def read(self, reads: Reads, part: StripPart) -> Callable[[], tf.Tensor]:
        """Request a part, and return a function that returns it when the reads have been made."""


class StripTarget(Protocol):
    """A target of the parts of an image that strips write."""

    @property
    def state(self) -> Any:
        """The tensor that carries changes through a loop; `()` if the order of calls to Python does."""

    def with_state(self, state: Any) -> Self:
        """Return the store with the state after some changes."""

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
        """Return the store; what reads it waits until `done` is computed."""


class GradientStore(ImageStore, Protocol):
    """A store of the gradient of an image."""

    def add(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Add a part, and return the store for what is computed after the change."""
