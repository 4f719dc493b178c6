"""Which patches are encoded anew in an inner step, and how much the gradient of each counts.

The gradient of the encoder is a sum over all n patches of an image, `sum_i J_i^T dL/dZ_i`. An inner step has that of
the m patches in its set alone, `sum_{i in set}`. With the weight 1 of the published loop that is m/n of it on
average. With weights `1 / (m p_i)`, for m draws with probabilities p_i, it is all of it on average; for sets that
take turns until all patches have been in one, the weight is their number, n/m.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import tensorflow as tf

SAMPLERS = ("shuffle", "replacement", "attention")
SCALES = ("published", "unbiased")


class Chooser:
    """The sets of one training step.

    Args:
        sampling: patches of a set: a number, or a share of all.
        sampler: "shuffle": the patches are shuffled and dealt into sets, anew when all have been in one;
            "replacement": each patch of each set is drawn from all; "attention": the same with the probability
            `(attention + 1/n) / 2`, of which the second half bounds the weights (defensive importance sampling,
            Hesterberg 1995).
        scale: "published": weights of 1; "unbiased": as above.
        batch, count: N and n, integers or tensors.
        seed: two integers, of the step.
    """

    def __init__(
        self,
        sampling: float | int,
        sampler: str,
        scale: str,
        batch: Any,
        count: Any,
        seed: tf.Tensor,
    ) -> None:
        self.sampler, self.scale, self.seed = sampler, scale, seed
        self.batch, self.count = batch, count
        self.size = set_size(sampling, count)
        self.num_sets = -(-count // self.size)

    def __call__(
        self, step: tf.Tensor, attention: Callable[[], tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The patches of inner step `step`, `[N, m]`, in the order of the grid, and their weights `[N, m]`.

        Args:
            step: which.
            attention: gives that of all patches, `[N, n]`.
        """
        if self.sampler == "shuffle":
            places = self._dealt(step)
            weights = tf.cast(tf.fill(tf.shape(places), self.num_sets), tf.float32)
        else:
            places, weights = self._drawn(step, attention)
        order = tf.argsort(places)  # neighbours are read together
        places, weights = (tf.gather(t, order, batch_dims=1) for t in (places, weights))
        return places, weights if self.scale == "unbiased" else tf.ones_like(weights)

    def _seed(self, number: tf.Tensor) -> tf.Tensor:
        return folded(self.seed, number + 1)

    def _dealt(self, step: tf.Tensor) -> tf.Tensor:
        turn, place = step // self.num_sets, step % self.num_sets
        numbers = tf.random.stateless_uniform([self.batch, self.count], self._seed(turn))
        start, stop = (self.count * (place + i) // self.num_sets for i in (0, 1))
        dealt = tf.argsort(numbers)[:, start:stop]
        exact = isinstance(self.count, int) and self.count % self.num_sets == 0
        size = self.count // self.num_sets if exact else None
        return tf.ensure_shape(dealt, [static(self.batch), size])

    def _drawn(
        self, step: tf.Tensor, attention: Callable[[], tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        even = 1.0 / tf.cast(self.count, tf.float32)
        chances = tf.fill([self.batch, self.count], even)
        if self.sampler == "attention":
            seen = tf.ensure_shape(tf.cast(attention(), tf.float32), chances.shape)
            chances = (seen / tf.reduce_sum(seen, 1, keepdims=True) + even) / 2
        places = tf.random.stateless_categorical(
            tf.math.log(chances), self.size, self._seed(step), tf.int32
        )
        drawn = tf.gather(chances, places, batch_dims=1)
        return places, 1.0 / (tf.cast(self.size, tf.float32) * drawn)


class Counted:
    """A layer or model that draws, mixed in before Keras' class; what it drew is saved, so that training goes on."""

    def count_draws(self, seed: int | None) -> None:
        """Makes the counter; without a seed one is drawn, from the generator that `set_random_seed` sets."""
        self.seed = random.randrange(2**31) if seed is None else seed
        self.draws = self.add_weight(  # type: ignore[attr-defined]
            shape=(),
            dtype="int32",
            initializer="zeros",
            trainable=False,
            aggregation="none",
            name="draws",
        )

    def next_seed(self) -> tf.Tensor:
        """Two integers that are new in each step."""
        number = tf.identity(self.draws.value)
        self.draws.assign(number + 1)
        return tf.stack([self.seed, number])


def folded(seed: tf.Tensor, number: Any) -> tf.Tensor:
    """The seed of a part of a step: 0 is the filling, `k + 1` the draw of number k."""
    return tf.random.experimental.stateless_fold_in(seed, number)


def set_size(sampling: float | int, count: Any) -> Any:
    """Patches of a set: a share is rounded up, a number is at most all of them."""
    if isinstance(sampling, int):
        return min(sampling, count) if isinstance(count, int) else tf.minimum(sampling, count)
    if isinstance(count, int):
        return max(ceil(count * sampling - 1e-6), 1)
    share = tf.cast(count, tf.float64) * sampling
    return tf.maximum(tf.cast(tf.math.ceil(share - 1e-6), tf.int32), 1)


def weighted(codes: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """`codes` `[N, m, ...]` as they are, with gradients times `weights` `[N, m]`."""

    @tf.custom_gradient
    def same(codes: tf.Tensor) -> Any:
        ones = [1] * (codes.shape.rank - 2)
        factors = tf.reshape(weights, tf.concat([tf.shape(weights), ones], 0))
        return tf.identity(codes), lambda d: d * tf.cast(factors, d.dtype)

    return same(codes)


def check(sampling: float | int, sampler: str, scale: str) -> None:
    """Refuses what is no sampling.

    Raises:
        ValueError: a setting is none that there is.
    """
    whole = isinstance(sampling, int) and sampling >= 1
    if isinstance(sampling, bool) or not (whole or 0 < sampling <= 1):
        raise ValueError(
            f"sampling={sampling!r}: expected a number of patches, 1 or more, or a share, above 0 and up to 1.0."
        )
    check_known("sampler", sampler, SAMPLERS)
    check_known("scale", scale, SCALES)


def check_known(name: str, value: str, known: Sequence[str]) -> None:
    """Refuses a word that is none of those known.

    Raises:
        ValueError: it is another one.
    """
    if value not in known:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, known))}.")


def check_counts(**counts: int | None) -> None:
    """Refuses counts that are none.

    Raises:
        ValueError: one is given and not positive.
    """
    for name, value in counts.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name}={value!r}: expected a number, 1 or more, or None.")


def static(size: Any) -> int | None:
    """A size as far as it is known while tracing."""
    return size if isinstance(size, int) else None
