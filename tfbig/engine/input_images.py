"""Inputs of a model, which strips read as they read stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import tensorflow as tf

from tfbig.engine import read_ahead
from tfbig.ops.kernels import take
from tfbig.stores import host_store
from tfbig.stores.image_store import StripPart
from tfbig.stores.transfers import Reads


class InputImage(NamedTuple):
    """An input that is a tensor.

    Args:
        image: `[N, H, W, C]`.
    """

    image: tf.Tensor

    @property
    def needs_copy(self) -> bool:
        """True: what is read may be memory of the caller."""
        return True

    def map(self, function: Callable[[tf.Tensor], Any]) -> Self:
        """Return the input with a function applied to its tensor."""
        return self._replace(image=function(self.image))

    def read(self, reads: Reads, part: StripPart) -> Callable[[], tf.Tensor]:
        """Return a function that returns a part."""

        def rows() -> tf.Tensor:
            sizes = [(start, stop - start) for start, stop in part.intervals]
            return host_store.sent(take(self.image, sizes), part.device)

        return rows

    def whole(self, dtype: Any, rank: int) -> tf.Tensor:
        """Return the whole image."""
        return tf.cast(self.image, dtype)


class SourceImages(NamedTuple):
    """An input in files, of which parts are read ahead.

    Args:
        handles: String `[N]`, see `tfbig.sources.handles`.
    """

    handles: tf.Tensor

    @property
    def needs_copy(self) -> bool:
        """True: what is read may be memory of an image behind a handle."""
        return True

    def map(self, function: Callable[[tf.Tensor], Any]) -> Self:
        """Return the input, no tensor of which is an image."""
        return self

    def read(self, reads: Reads, part: StripPart) -> Callable[[], tf.Tensor]:
        """Return a function that returns a part, and lets the next one be read ahead."""

        def rows() -> tf.Tensor:
            ahead = None if part.ahead is None else part.ahead()
            dtype = tf.as_dtype(part.dtype)
            found = read_ahead.read_source(self.handles, part.intervals, dtype, ahead)
            return host_store.sent(tf.ensure_shape(found, part.shape), part.device)

        return rows

    def whole(self, dtype: Any, rank: int) -> tf.Tensor:
        """Return the whole images."""
        bounds = tf.unstack(read_ahead.source_shape(self.handles, rank), num=rank)[1:-1]
        part = [(tf.constant(0), tf.cast(bounds[0], tf.int32))]
        return read_ahead.read_source(self.handles, part, tf.as_dtype(dtype))


def known_batch(inputs: Iterable[tf.Tensor]) -> int | None:
    """Return N of the inputs of a step if it is known while tracing."""
    return next((t.shape[0] for t in inputs if t.shape.rank), None)


def input_image(tensor: tf.Tensor) -> InputImage | SourceImages:
    """Return an input by its tensor, an image or string handles."""
    return SourceImages(tensor) if tensor.dtype == tf.string else InputImage(tensor)
