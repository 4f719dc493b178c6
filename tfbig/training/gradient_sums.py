"""Gradients of several batches, averaged over their items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Sums:
    """Gradients of some batches, added up.

        sum(items[i] * gradients[i] for i in batches)

    Those of one batch are kept as they are, so that nothing is rounded where nothing is added.

    Args:
        gradients: one for each variable, None where there is none.
        batches, items: how many.
    """

    gradients: Sequence[Any] = ()
    batches: int = 0
    items: int = 0

    def with_more(self, gradients: Sequence[Any], items: int) -> Sums:
        """With those of one more batch."""
        if self.batches:
            more = _times(gradients, items)
            gradients = [_sum(a, b) for a, b in zip(self.weighted(), more, strict=True)]
        return Sums(gradients, self.batches + 1, self.items + items)

    def means(self) -> Sequence[Any]:
        """Over all items."""
        if self.batches < 2:
            return self.gradients
        return [None if g is None else g / tf.cast(self.items, g.dtype) for g in self.gradients]

    def weighted(self) -> Sequence[Any]:
        """Sums over items."""
        return self.gradients if self.batches > 1 else _times(self.gradients, self.items)


def _times(gradients: Sequence[Any], factor: int) -> list[Any]:
    return [None if g is None else g * tf.cast(factor, g.dtype) for g in gradients]


def _sum(a: Any, b: Any) -> Any:
    known = [t for t in (a, b) if t is not None]
    return tf.add_n(known) if known else None
