"""Sampling of the patches that an inner step encodes again, and the weight of the gradient of each.

The gradient of the encoder is a sum over all n patches of an image, `sum_i J_i^T dL/dZ_i`. An inner step computes it
for the m patches of its set alone, `sum_{i in set}`. With the weight 1 of the published loop that is m/n of the sum on
average. With weights `1 / (m p_i)`, for m draws with probabilities p_i, it is the whole sum on average; for sets that
take turns until every patch has been in one, the weight is their number, n/m.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import tensorflow as tf

from tfbig.choices import SAMPLERS, SCALES
from tfbig.system import traces
from tfbig.units import ceil_div


class Chooser:
    """Sampler of the patches of each inner step of one training step.

    Part of PatchGD (Gupta et al., "Patch gradient descent: training neural networks on very large images"); weights as
    in importance sampling, see `tfbig.PatchGD` under "Scale".

    Args:
        sampling: Patches of a set: a number, or a share of all.
        sampler: "shuffle": patches are shuffled and dealt into sets, again when all have been in one; "replacement":
            each patch of each set is drawn from all; "attention": the same with the probability `(attention + 1/n) /
            2`, whose second half bounds the weights (defensive importance sampling, Hesterberg 1995).
        scale: "published": weights of 1; "unbiased": weights that make the gradient of the encoder exact on average.
        batch: Number of images N, an integer or a tensor.
        count: Number of patches of an image n, an integer or a tensor.
        seed: Two integers, the seed of the training step.

    Returns:
        Called with the number of an inner step and a function that returns the attention `[N, n]`: the numbers of the
        patches of the set, int32 `[N, m]` in ascending order, and their weights, float32 `[N, m]`.

    Raises:
        TypeError: `sampling` is not a number.

    Example:
        >>> choose = tfbig.patchgd.Chooser(2, "shuffle", "unbiased", batch=1, count=6, seed=tf.constant([0, 1]))
        >>> sets = [choose(tf.constant(step), lambda: None) for step in range(choose.num_sets)]
        >>> sorted(int(n) for indices, _ in sets for n in indices[0])  # each patch is in one set
        [0, 1, 2, 3, 4, 5]
        >>> sets[0][1].numpy()  # three sets
        array([[3., 3.]], dtype=float32)
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
        self.num_sets = ceil_div(count, self.size)

    def __call__(
        self, step: tf.Tensor, attention: Callable[[], tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the patches of an inner step, `[N, m]` in the order of the grid, and their weights `[N, m]`.

        Args:
            step: Number of the inner step.
            attention: Function that returns the attention to all patches, `[N, n]`.
        """
        if self.sampler == "shuffle":
            indices = self._dealt(step)
            weights = tf.cast(tf.fill(tf.shape(indices), self.num_sets), tf.float32)
        else:
            indices, weights = self._drawn(step, attention)
        order = tf.argsort(indices)  # adjacent patches are read together
        indices, weights = (tf.gather(t, order, batch_dims=1) for t in (indices, weights))
        return indices, weights if self.scale == "unbiased" else tf.ones_like(weights)

    def _seed(self, number: tf.Tensor) -> tf.Tensor:
        return seed_of_part(self.seed, number + 1)

    def _dealt(self, step: tf.Tensor) -> tf.Tensor:
        turn, number = step // self.num_sets, step % self.num_sets
        keys = tf.random.stateless_uniform([self.batch, self.count], self._seed(turn))
        start, stop = (self.count * (number + i) // self.num_sets for i in (0, 1))
        dealt = tf.argsort(keys)[:, start:stop]
        exact = isinstance(self.count, int) and self.count % self.num_sets == 0
        size = self.count // self.num_sets if exact else None
        return tf.ensure_shape(dealt, [static(self.batch), size])

    def _drawn(
        self, step: tf.Tensor, attention: Callable[[], tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        uniform = 1.0 / tf.cast(self.count, tf.float32)
        probabilities = tf.fill([self.batch, self.count], uniform)
        if self.sampler == "attention":
            weights = tf.ensure_shape(tf.cast(attention(), tf.float32), probabilities.shape)
            probabilities = (weights / tf.reduce_sum(weights, 1, keepdims=True) + uniform) / 2
        indices = tf.random.stateless_categorical(
            tf.math.log(probabilities), self.size, self._seed(step), tf.int32
        )
        drawn = tf.gather(probabilities, indices, batch_dims=1)
        return indices, 1.0 / (tf.cast(self.size, tf.float32) * drawn)


class DrawCounter:
    """Mixin, before Keras' class, for layers and models that sample: a saved counter gives each step a new seed."""

    def count_draws(self, seed: int | None) -> None:
        """Create the counter.

        Args:
            seed: Seed of the layer; None to draw one from the generator that `keras.utils.set_random_seed` seeds.
        """
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
        """Return two integers that are new in each step."""
        number = tf.identity(self.draws.value)
        self.draws.assign(number + 1)
        return tf.stack([self.seed, number])


def seed_of_part(seed: tf.Tensor, number: Any) -> tf.Tensor:
    """Derive the seed of one part of a step: part 0 fills Z, part `k + 1` draws patch set `k`."""
    return tf.random.experimental.stateless_fold_in(seed, number)


def set_size(sampling: float | int, count: Any) -> Any:
    """Return the number of patches in a set: a share is rounded up, a number is at most `count`."""
    if isinstance(sampling, int):
        return min(sampling, count) if isinstance(count, int) else tf.minimum(sampling, count)
    if isinstance(count, int):
        return max(ceil(count * sampling - 1e-6), 1)
    share = tf.cast(count, tf.float64) * sampling
    return tf.maximum(tf.cast(tf.math.ceil(share - 1e-6), tf.int32), 1)


def weighted(codes: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return codes unchanged, with gradients multiplied by weights.

    PatchGD weights the gradient of each patch of a set with it, see `Chooser`.

    Args:
        codes: Codes of patches, `[N, m, ...]`.
        weights: Weight of each patch, `[N, m]`.

    Returns:
        `codes`.

    Raises:
        tf.errors.InvalidArgumentError: In the backward pass, if the shapes do not match.

    Example:
        >>> codes = tf.ones([1, 2, 3])  # codes of two patches
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(codes)
        ...     total = tf.reduce_sum(tfbig.patchgd.weighted(codes, tf.constant([[1.0, 4.0]])))
        >>> float(total)
        6.0
        >>> tape.gradient(total, codes)[0].numpy()
        array([[1., 1., 1.],
               [4., 4., 4.]], dtype=float32)
    """

    @traces.custom_gradient
    def same(codes: tf.Tensor) -> Any:
        ones = [1] * (codes.shape.rank - 2)
        factors = tf.reshape(weights, tf.concat([tf.shape(weights), ones], 0))
        return tf.identity(codes), lambda d: d * tf.cast(factors, d.dtype)

    return same(codes)


def check_sampling(sampling: float | int, sampler: str, scale: str) -> None:
    """Check the settings of the sampling of patches.

    Raises:
        ValueError: A setting is not one of the options, or out of range.
    """
    whole = isinstance(sampling, int) and sampling >= 1
    if isinstance(sampling, bool) or not (whole or 0 < sampling <= 1):
        raise ValueError(
            f"sampling={sampling!r}: expected a number of patches, 1 or more, or a share, above 0 and up to 1.0."
        )
    check_option("sampler", sampler, SAMPLERS)
    check_option("scale", scale, SCALES)


def check_option(name: str, value: str, options: Sequence[str]) -> None:
    """Check that a setting is one of the options.

    Raises:
        ValueError: `value` is not in `options`.
    """
    if value not in options:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, options))}.")


def check_counts(**counts: int | None) -> None:
    """Check that counts are positive integers or None.

    Raises:
        ValueError: A count is neither.
    """
    for name, value in counts.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name}={value!r}: expected a number, 1 or more, or None.")


def static(size: Any) -> int | None:
    """Return a size if it is known while tracing, else None."""
    return size if isinstance(size, int) else None
