"""Self-attention of sequences whose matrix of scores fits nowhere: exact, in blocks of queries and keys.

The softmax over blocks of keys is online (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018),
the backward computes each block again from the logarithm of that sum (Dao et al., "FlashAttention", NeurIPS 2022):

    s  = q_i k_j^T / sqrt(d)                   a block of scores
    p  = exp(s - lse_i)                        of the softmax, where lse_i = log(sum over j of exp(s))
    dv_j += p^T dy_i
    ds = p * (dy_i v_j^T - sum(dy_i * y_i))
    dq_i += ds k_j / sqrt(d)
    dk_j += ds^T q_i / sqrt(d)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


@tf.autograph.experimental.do_not_convert
def blockwise_attention(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, block: int = 1024) -> tf.Tensor:
    """`softmax(q k^T / sqrt(d)) v`, without that matrix.

    Memory: `N * heads * (n + m) * (d + e)` numbers, and a few times `N * heads * block * block`; backward twice that.
    Nothing of a block is kept for the backward, in a graph or under an eager tape.

    Exactness: up to summation order, float64 rtol 1e-10. Sums of 16-bit numbers are in float32.

    Args:
        q: Queries `[N, heads, n, d]`.
        k: Keys `[N, heads, m, d]`, m at least 1.
        v: Values `[N, heads, m, e]`.
        block: Queries and keys of a block.

    Returns:
        `[N, heads, n, e]` in the element type of `q`. It is differentiable once.

    Raises:
        ValueError: `block` is not positive, or the shapes do not go together.
        tf.errors.InvalidArgumentError: a gradient of its gradients is computed.
    """
    q, k, v = (tf.convert_to_tensor(x) for x in (q, k, v))
    _check(q, k, v, block)

    @tf.custom_gradient
    def attend(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> Any:
        # Not even the loop in here may be on an eager tape, which would hold every block.
        q3, k3, v3 = (_merged(tf.stop_gradient(x)) for x in (q, k, v))
        y, lse = _forward(q3, k3, v3, block)
        y = tf.cast(y, q.dtype)

        @tf.custom_gradient
        def gradient(dy: tf.Tensor, *_: tf.Tensor) -> Any:
            found = _backward(q3, k3, v3, y, lse, _merged(tf.stop_gradient(dy)), block)
            shaped = [
                tf.cast(tf.reshape(g, tf.shape(x)), x.dtype)
                for g, x in zip(found, (q, k, v), strict=True)
            ]
            return shaped, _refuse

        # The inputs are arguments so that a gradient with respect to them, too, is refused.
        return tf.reshape(y, _outer(q, v)), lambda dy: gradient(dy, q, k, v)

    return attend(q, k, v)


def _check(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, block: int) -> None:
    if block < 1:
        raise ValueError(f"block={block}; expected at least 1 query and key.")
    shapes = [x.shape for x in (q, k, v)]
    alike = all(s.rank == 4 for s in shapes)
    alike = alike and all(s[:2].is_compatible_with(shapes[0][:2]) for s in shapes)
    alike = alike and shapes[0][3] is not None and shapes[0][3:].is_compatible_with(shapes[1][3:])
    if not alike or not shapes[1][2:3].is_compatible_with(shapes[2][2:3]) or shapes[1][2] == 0:
        raise ValueError(
            f"q, k, v have shapes {', '.join(map(str, shapes))}; expected [N, heads, n, d], [N, heads, m, d] and "
            "[N, heads, m, e], d known and m at least 1."
        )


def _refuse(*gradients: tf.Tensor) -> list[tf.Tensor]:
    """An error when it is computed, not when it is traced: tapes trace gradients that nothing needs."""
    text = "blockwise_attention is differentiable once; for gradients of gradients use the plain softmax."
    with tf.control_dependencies([tf.debugging.Assert(False, [text])]):
        zero = tf.zeros_like(gradients[0])
    return [zero, *gradients]


def _merged(x: tf.Tensor) -> tf.Tensor:
    """`[N, heads, n, d]` as `[N * heads, n, d]`."""
    shape = tf.shape(x)
    merged = tf.reshape(x, tf.stack([shape[0] * shape[1], shape[2], shape[3]]))
    return tf.ensure_shape(merged, [None, x.shape[2], x.shape[3]])


def _outer(q: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """The shape `[N, heads, n, e]`."""
    return tf.concat([tf.shape(q)[:3], tf.shape(v)[3:]], 0)


def _wide(x: tf.Tensor) -> tf.DType:
    return tf.float64 if x.dtype == tf.float64 else tf.float32


class _Blocks:
    """Consecutive parts of `[B, n, d]`, of `block` and the last of what is left, in float32 or wider."""

    def __init__(self, x: tf.Tensor, block: int, scale: float = 1.0) -> None:
        self.x, self.block, self.scale = x, block, scale
        self.count = (tf.shape(x)[1] + block - 1) // block

    def __getitem__(self, i: tf.Tensor) -> tf.Tensor:
        found = tf.cast(self.x[:, i * self.block : (i + 1) * self.block], _wide(self.x))
        return found if self.scale == 1 else found * self.scale

    def array(self) -> tf.TensorArray:
        """Takes the blocks of something of that many rows, each `[rows, B, .]`, for `_joined`."""
        return tf.TensorArray(_wide(self.x), self.count, infer_shape=False)


def _row_first(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [1, 0, 2])


def _joined(array: tf.TensorArray) -> tf.Tensor:
    """`[B, n, .]` of the blocks."""
    return _row_first(_concatenated(array))


def _concatenated(array: tf.TensorArray) -> tf.Tensor:
    """`[n, B, .]` of the blocks."""
    return tf.ensure_shape(array.concat(), [None, None, None])


def _loop(count: tf.Tensor, body: Callable[..., Any], *state: Any) -> list[Any]:
    """`state = body(i, *state)` for every i; its tensors change neither type nor rank."""
    open_shapes = [
        tf.TensorShape([None] * s.shape.rank) if isinstance(s, tf.Tensor) else None for s in state
    ]
    _, *found = tf.while_loop(
        lambda i, *_: i < count,
        lambda i, *state: (i + 1, *body(i, *state)),
        (tf.constant(0), *state),
        shape_invariants=(tf.TensorShape([]), *open_shapes),
        parallel_iterations=1,
    )
    return found


def _forward(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, block: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`[B, n, e]` and the logarithm of the sum of each row of the softmax, `[B, n, 1]`."""
    queries = _Blocks(q, block, q.shape[-1] ** -0.5)
    keys, values = _Blocks(k, block), _Blocks(v, block)

    def rows(i: tf.Tensor, y: tf.TensorArray, lse: tf.TensorArray) -> tuple[Any, Any]:
        found = [_row_first(x) for x in _attend(queries[i], keys, values)]
        return y.write(i, found[0]), lse.write(i, found[1])

    y, lse = _loop(queries.count, rows, queries.array(), queries.array())
    return _joined(y), _joined(lse)


def _attend(q: tf.Tensor, keys: _Blocks, values: _Blocks) -> tuple[tf.Tensor, tf.Tensor]:
    """One block of queries over all keys."""

    def add(j: tf.Tensor, top: tf.Tensor, total: tf.Tensor, y: tf.Tensor) -> Any:
        s = tf.matmul(q, keys[j], transpose_b=True)  # [B, rows, columns]
        higher = tf.maximum(top, tf.reduce_max(s, -1, keepdims=True))
        p, before = tf.exp(s - higher), tf.exp(top - higher)
        total = total * before + tf.reduce_sum(p, -1, keepdims=True)
        return higher, total, y * before + tf.matmul(p, values[j])

    none = tf.zeros_like(q[..., :1])
    y = tf.zeros(tf.concat([tf.shape(q)[:2], tf.shape(values.x)[2:]], 0), q.dtype)
    top, total, y = _loop(keys.count, add, none - float("inf"), none, y)
    return y / total, top + tf.math.log(total)


def _backward(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    y: tf.Tensor,
    lse: tf.Tensor,
    dy: tf.Tensor,
    block: int,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gradients of q, k and v, each as wide as the sums."""
    scale = q.shape[-1] ** -0.5
    keys, values = _Blocks(k, block), _Blocks(v, block)
    wide = [tf.cast(x, _wide(q)) for x in (dy, y)]
    inner = tf.reduce_sum(wide[0] * wide[1], -1, keepdims=True)
    rows = [_Blocks(x, block) for x in (dy, lse, inner)]
    queries = _Blocks(q, block, scale)

    def column(j: tf.Tensor, dq: tf.Tensor, dk: tf.TensorArray, dv: tf.TensorArray) -> Any:
        parts, dk_j, dv_j = _column(queries, rows, keys[j], values[j])
        return dq + parts, dk.write(j, _row_first(dk_j)), dv.write(j, _row_first(dv_j))

    start = _row_first(tf.zeros_like(q, _wide(q)))
    dq, dk, dv = _loop(keys.count, column, start, keys.array(), keys.array())
    return _row_first(dq) * scale, _joined(dk), _joined(dv)


def _column(
    queries: _Blocks, rows: list[_Blocks], k: tf.Tensor, v: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """What one block of keys adds to the gradient of all queries, `[n, B, d]`, and the gradients of its k and v."""

    def add(i: tf.Tensor, dq: tf.TensorArray, dk: tf.Tensor, dv: tf.Tensor) -> Any:
        q, (dy, lse, inner) = queries[i], (x[i] for x in rows)
        p = tf.exp(tf.matmul(q, k, transpose_b=True) - lse)  # [B, rows, columns]
        ds = p * (tf.matmul(dy, v, transpose_b=True) - inner)
        dv += tf.matmul(p, dy, transpose_a=True)
        dk += tf.matmul(ds, q, transpose_a=True)
        return dq.write(i, _row_first(tf.matmul(ds, k))), dk, dv

    start = queries.array(), tf.zeros_like(k), tf.zeros_like(v)
    dq, dk, dv = _loop(queries.count, add, *start)
    return _concatenated(dq), dk, dv
