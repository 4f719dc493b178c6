"""Sums of the gradients of several batches, and their averages over items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Sums:
    """Sum of the gradients of several batches, weighted by items.

        sum(items[i] * gradients[i] for i in batches)

    With one batch the gradients are stored unscaled, so that they are not rounded.

    Args:
        gradients: One for each variable, None for a variable without a gradient.
        batches: Number of batches.
        items: Number of items of all batches.
    """

    gradients: Sequence[Any] = ()
    batches: int = 0
    items: int = 0

    def with_more(self, gradients: Sequence[Any], items: int) -> Sums:
        """Return the sum with the gradients of one more batch."""
        if self.batches:
            more = _times(gradients, items)
            gradients = [_sum(a, b) for a, b in zip(self.weighted(), more, strict=True)]
        return Sums(gradients, self.batches + 1, self.items + items)

    def means(self) -> Sequence[Any]:
        """Return the means over all items."""
        if self.batches < 2:
            return self.gradients
        return [None if g is None else g / tf.cast(self.items, g.dtype) for g in self.gradients]

    def weighted(self) -> Sequence[Any]:
        """Return the sums over items."""
        return self.gradients if self.batches > 1 else _times(self.gradients, self.items)


def _times(gradients: Sequence[Any], factor: int) -> list[Any]:
    return [None if g is None else g * tf.cast(factor, g.dtype) for g in gradients]


def _sum(a: Any, b: Any) -> Any:
    gradients = [t for t in (a, b) if t is not None]
    return tf.add_n(gradients) if gradients else None
