"""Exact attention in blocks of queries and keys, for sequences whose score matrix does not fit in memory.

The softmax over blocks of keys is online (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018),
the backward pass recomputes each block from its sum (Dao et al., "FlashAttention", NeurIPS 2022):

    s  = scale q_i k_j^T                       a block of scores, LEAST for pairs outside the mask
    p  = exp(s - top_i) / total_i              a block of the softmax: top_i = max over j of s, total_i = sum over j of
                                               exp(s - top_i), which a logarithm would lose if no pair is in the mask
    y_i += (p * f) v_j                         with factors f of dropout, 1 without it
    dv_j += (p * f)^T dy_i
    ds = p * (f * dy_i v_j^T - sum(dy_i * y_i))
    dq_i += scale ds k_j
    dk_j += scale ds^T q_i
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from tfbig.system import traces

OfPairs = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Function of the positions of queries `[r]` and keys `[c]`, to a tensor that broadcasts to `[N * heads, r, c]`."""


class Pairs(NamedTuple):
    """Mask and dropout of the pairs of queries and keys.

    Args:
        mask: Whether the query attends to the key; a query that attends to none attends equally to all.
        factors: Factors of the softmax, with which dropout leaves out pairs.
    """

    mask: OfPairs | None = None
    factors: OfPairs | None = None


ALL_PAIRS = Pairs()
"""Every query attends to every key."""


@tf.autograph.experimental.do_not_convert
def blockwise_attention(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    block: Any = 1024,
    scale: float | None = None,
    pairs: Pairs = ALL_PAIRS,
) -> tf.Tensor:
    """Compute `softmax(scale q k^T) v` without storing the softmax.

    Memory: `N * heads * (n + m) * (d + e)` numbers plus a few times `N * heads * block * block`; twice that in the
    backward pass. No block is stored for the backward pass, neither in a graph nor by an eager tape.

    Exactness: equal to plain attention up to summation order, float64 rtol 1e-10. 16-bit inputs are summed in float32.

    Args:
        q: Queries `[N, heads, n, d]`.
        k: Keys `[N, heads, m, d]`, m at least 1.
        v: Values `[N, heads, m, e]`.
        block: Number of queries, and of keys, per block: an integer, or an int32 scalar.
        scale: Factor of the scores, `d ** -0.5` by default.
        pairs: Mask and dropout.

    Returns:
        Tensor `[N, heads, n, e]` with the dtype of `q`. It is differentiable once.

    Raises:
        ValueError: `block` is not positive, or the shapes are incompatible.
        tf.errors.InvalidArgumentError: A gradient of its gradients is computed.
    """
    q, k, v = (tf.convert_to_tensor(x) for x in (q, k, v))
    _check(q, k, v, block)
    scores = _Scores(q.shape[-1] ** -0.5 if scale is None else scale, pairs)

    @traces.custom_gradient
    def attend(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> Any:
        # Keep the loops in here off an eager tape, which would hold every block.
        q3, k3, v3 = (_merged(tf.stop_gradient(x)) for x in (q, k, v))
        y, *softmax = _forward(q3, k3, v3, block, scores)
        y = tf.cast(y, q.dtype)

        @traces.custom_gradient
        def gradient(dy: tf.Tensor, *_: tf.Tensor) -> Any:
            gradients = _backward(
                q3, k3, v3, y, softmax, _merged(tf.stop_gradient(dy)), block, scores
            )
            shaped = [
                tf.cast(tf.reshape(g, tf.shape(x)), x.dtype)
                for g, x in zip(gradients, (q, k, v), strict=True)
            ]
            return shaped, _refuse

        # The inputs are arguments so that a gradient with respect to them is refused as well.
        return tf.reshape(y, _outer(q, v)), lambda dy: gradient(dy, q, k, v)

    return attend(q, k, v)


def _check(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, block: Any) -> None:
    if isinstance(block, int) and block < 1:
        raise ValueError(f"block={block}: expected at least 1 query and key.")
    shapes = [x.shape for x in (q, k, v)]
    compatible = all(s.rank == 4 for s in shapes)
    compatible = compatible and all(s[:2].is_compatible_with(shapes[0][:2]) for s in shapes)
    compatible = (
        compatible and shapes[0][3] is not None and shapes[0][3:].is_compatible_with(shapes[1][3:])
    )
    if not compatible or not shapes[1][2:3].is_compatible_with(shapes[2][2:3]) or shapes[1][2] == 0:
        raise ValueError(
            f"q, k, v have shapes {', '.join(map(str, shapes))}; expected [N, heads, n, d], [N, heads, m, d] and "
            "[N, heads, m, e], d known and m at least 1."
        )


def _refuse(*gradients: tf.Tensor) -> list[tf.Tensor]:
    """Raise an error when it runs, not when it is traced: tapes trace gradients that nothing needs."""
    text = "blockwise_attention is differentiable once; for gradients of gradients use the plain softmax."
    with tf.control_dependencies([tf.debugging.Assert(False, [text])]):
        zero = tf.zeros_like(gradients[0])
    return [zero, *gradients]


def _merged(x: tf.Tensor) -> tf.Tensor:
    """Reshape `[N, heads, n, d]` to `[N * heads, n, d]`."""
    shape = tf.shape(x)
    merged = tf.reshape(x, tf.stack([shape[0] * shape[1], shape[2], shape[3]]))
    return tf.ensure_shape(merged, [None, x.shape[2], x.shape[3]])


def _outer(q: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """Return the output shape `[N, heads, n, e]`."""
    return tf.concat([tf.shape(q)[:3], tf.shape(v)[3:]], 0)


def _wide(x: tf.Tensor) -> tf.DType:
    return tf.float64 if x.dtype == tf.float64 else tf.float32


@dataclass(frozen=True)
class _Scores:
    """Scores of blocks of queries and keys.

    Args:
        scale: Factor of all scores.
        pairs: Mask and dropout.
    """

    scale: float
    pairs: Pairs

    def masked(self, s: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """Return scores `[B, r, c]` with the least number for pairs outside a mask."""
        return s if mask is None else tf.where(mask, s, s.dtype.min / 2)

    def of_pairs(self, rows: tf.Tensor, columns: tf.Tensor) -> tuple[Any, Any]:
        """Return the mask and the factors of a block of queries and a block of keys; None without one."""
        mask, factors = self.pairs
        return mask and mask(rows, columns), factors and factors(rows, columns)


def _times(x: tf.Tensor, factors: tf.Tensor | None) -> tf.Tensor:
    return x if factors is None else x * tf.cast(factors, x.dtype)


class _Blocks:
    """Consecutive blocks of `block` rows of `[B, n, d]`, cast to at least float32; the last may be shorter."""

    def __init__(self, x: tf.Tensor, block: Any, scale: float = 1.0) -> None:
        self.x, self.block, self.scale = x, block, scale
        self.count = (tf.shape(x)[1] + block - 1) // block

    def __getitem__(self, i: tf.Tensor) -> tf.Tensor:
        rows = tf.cast(self.x[:, i * self.block : (i + 1) * self.block], _wide(self.x))
        return rows if self.scale == 1 else rows * self.scale

    def positions(self, i: tf.Tensor) -> tf.Tensor:
        """Return the positions of the rows of a block, int32 `[rows]`."""
        return tf.range(i * self.block, tf.minimum((i + 1) * self.block, tf.shape(self.x)[1]))

    def array(self) -> tf.TensorArray:
        """Create an array for results with as many rows, written in blocks `[rows, B, .]` and read by `_joined`."""
        return tf.TensorArray(_wide(self.x), self.count, infer_shape=False)


def _row_first(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [1, 0, 2])


def _joined(array: tf.TensorArray) -> tf.Tensor:
    """Concatenate blocks to `[B, n, .]`."""
    return _row_first(_concatenated(array))


def _concatenated(array: tf.TensorArray) -> tf.Tensor:
    """Concatenate blocks to `[n, B, .]`."""
    return tf.ensure_shape(array.concat(), [None, None, None])


def _loop(count: tf.Tensor, body: Callable[..., Any], *state: Any) -> list[Any]:
    """Repeat `state = body(i, *state)` for every i; dtype and rank of the tensors do not change."""
    open_shapes = [
        tf.TensorShape([None] * s.shape.rank) if isinstance(s, tf.Tensor) else None for s in state
    ]
    _, *final = tf.while_loop(
        lambda i, *_: i < count,
        lambda i, *state: (i + 1, *body(i, *state)),
        (tf.constant(0), *state),
        shape_invariants=(tf.TensorShape([]), *open_shapes),
        parallel_iterations=1,
    )
    return final


def _forward(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, block: Any, scores: _Scores
) -> tuple[tf.Tensor, ...]:
    """Return the output `[B, n, e]`, and the maximum and the sum of the softmax of each query, `[B, n, 1]`."""
    queries = _Blocks(q, block, scores.scale)
    keys, values = _Blocks(k, block), _Blocks(v, block)

    def rows(i: tf.Tensor, *results: tf.TensorArray) -> list[tf.TensorArray]:
        attended = _attend(queries[i], queries.positions(i), keys, values, scores)
        return [r.write(i, _row_first(x)) for r, x in zip(results, attended, strict=True)]

    return tuple(map(_joined, _loop(queries.count, rows, *(queries.array() for _ in range(3)))))


def _attend(
    q: tf.Tensor, rows: tf.Tensor, keys: _Blocks, values: _Blocks, scores: _Scores
) -> tuple[tf.Tensor, ...]:
    """Return what `_forward` does for one block of queries, at positions `rows`."""

    def add(j: tf.Tensor, top: tf.Tensor, total: tf.Tensor, y: tf.Tensor) -> Any:
        mask, factors = scores.of_pairs(rows, keys.positions(j))
        s = scores.masked(tf.matmul(q, keys[j], transpose_b=True), mask)  # [B, rows, columns]
        higher = tf.maximum(top, tf.reduce_max(s, -1, keepdims=True))
        p, before = tf.exp(s - higher), tf.exp(top - higher)
        total = total * before + tf.reduce_sum(p, -1, keepdims=True)
        return higher, total, y * before + tf.matmul(_times(p, factors), values[j])

    none = tf.zeros_like(q[..., :1])
    y = tf.zeros(tf.concat([tf.shape(q)[:2], tf.shape(values.x)[2:]], 0), q.dtype)
    top, total, y = _loop(keys.count, add, none - float("inf"), none, y)
    return y / total, top, total


def _backward(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    y: tf.Tensor,
    softmax: list[tf.Tensor],
    dy: tf.Tensor,
    block: Any,
    scores: _Scores,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the gradients of q, k and v in the dtype of the sums."""
    keys, values = _Blocks(k, block), _Blocks(v, block)
    wide = [tf.cast(x, _wide(q)) for x in (dy, y)]
    inner = tf.reduce_sum(wide[0] * wide[1], -1, keepdims=True)
    rows = [_Blocks(x, block) for x in (dy, *softmax, inner)]
    queries = _Blocks(q, block, scores.scale)

    def column(j: tf.Tensor, dq: tf.Tensor, dk: tf.TensorArray, dv: tf.TensorArray) -> Any:
        columns = keys.positions(j)
        parts, dk_j, dv_j = _column(queries, rows, keys[j], values[j], columns, scores)
        return dq + parts, dk.write(j, _row_first(dk_j)), dv.write(j, _row_first(dv_j))

    start = _row_first(tf.zeros_like(q, _wide(q)))
    dq, dk, dv = _loop(keys.count, column, start, keys.array(), keys.array())
    return _row_first(dq) * scores.scale, _joined(dk), _joined(dv)


def _column(
    queries: _Blocks,
    rows: list[_Blocks],
    k: tf.Tensor,
    v: tf.Tensor,
    columns: tf.Tensor,
    scores: _Scores,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the contribution of a block of keys, at positions `columns`, to dq, `[n, B, d]`, and its own gradients."""

    def add(i: tf.Tensor, dq: tf.TensorArray, dk: tf.Tensor, dv: tf.Tensor) -> Any:
        q, (dy, top, total, inner) = queries[i], (x[i] for x in rows)
        mask, factors = scores.of_pairs(queries.positions(i), columns)
        s = scores.masked(tf.matmul(q, k, transpose_b=True), mask)  # [B, rows, columns]
        p = tf.exp(s - top) / total
        ds = p * (_times(tf.matmul(dy, v, transpose_b=True), factors) - inner)
        ds = ds if mask is None else tf.where(mask, ds, 0)
        dv += tf.matmul(_times(p, factors), dy, transpose_a=True)
        dk += tf.matmul(ds, q, transpose_a=True)
        return dq.write(i, _row_first(tf.matmul(ds, k))), dk, dv

    start = queries.array(), tf.zeros_like(k), tf.zeros_like(v)
    dq, dk, dv = _loop(queries.count, add, *start)
    return _concatenated(dq), dk, dv
