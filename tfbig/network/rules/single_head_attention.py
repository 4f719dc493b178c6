"""Rules for `layers.Attention` between tokens, which has no projections, and for attention that models write out."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import tensorflow as tf

from tfbig.network.rules.call import Call
from tfbig.network.rules.channel_shapes import any_channel_shape
from tfbig.network.rules.multi_head_attention import Attention, Mask, attend, image_of, mask_of
from tfbig.network.rules.nodes import cast
from tfbig.network.rules.pooling import has_fixed_size, read_whole
from tfbig.network.rules.registry import rule
from tfbig.network.written_attention import WrittenAttention

layers = keras.layers


@rule(layers.Attention)
def single_head_attention(call: Call) -> int | list[int]:
    """Add an attention of queries, values and keys by their products, along the last axis of pixels."""
    given = _arguments(call)
    if call.layer.score_mode != "dot":
        return _of_whole_images(call, f"has score_mode='{call.layer.score_mode}'")
    if given.get("return_attention_scores"):
        return _of_whole_images(call, "returns its scores")
    query, value, *key = (image_of(call, slot)[0] for slot in given["inputs"])
    attention = Attention(
        heads=1,
        shared=1,
        scale=1.0,
        attended=(
            call.graph.to_graph_order(range(call.graph.spatial)).index(call.graph.spatial - 1),
        ),
        causal=bool(given.get("use_causal_mask")),
        rate=call.layer.dropout if call.training else 0.0,
    )
    of_queries, of_values, *_ = given.get("mask") or (None, None)
    masks = [] if of_values is None else [mask_of(call, of_values, "value_mask")]
    generator = getattr(call.layer, "seed_generator", None)
    images = _scaled(call, query), *(key or [value]), value
    result = attend(call, attention, images, masks, generator)
    return (
        result
        if of_queries is None
        else _kept(call, result, mask_of(call, of_queries, "query_mask"))
    )


@rule(WrittenAttention)
@any_channel_shape
def written_attention(call: Call) -> int:
    """Add an attention that a model writes out, between tokens with heads or without."""
    graph, operation = call.graph, call.layer
    shapes = [graph.channel_shapes.get(v, (graph.values[v].channels,)) for v in call.inputs]
    heads = {shape[:-1] for shape in shapes}
    if graph.spatial != 1 or len(heads) > 1 or len(shapes[0]) != len(call.outputs[0].shape) - 2:
        call.refuse(
            "attends to other axes than those of tokens; expected [N, tokens, heads, size]."
        )
    rate = operation.dropout.rate if operation.dropout and call.training else 0.0
    widest = keras.backend.result_type(*(graph.values[v].dtype for v in call.inputs))
    images = [cast(graph, v, widest) for v in call.inputs]
    attention = Attention(
        heads=shapes[0][0] if len(shapes[0]) == 2 else 1,
        shared=1,
        scale=operation.scale,
        attended=(0,),
        rate=rate,
    )
    generator = operation.dropout.seed_generator if rate else None
    result = attend(call, attention, images, (), generator)
    if len(shapes[0]) == 2:
        graph.channel_shapes[result] = (shapes[0][0], shapes[2][1])
    return result


@rule(layers.AdditiveAttention)
def additive_attention(call: Call) -> list[int]:
    """Add an attention by sums of queries and keys, of whole images of fixed size."""
    return _of_whole_images(call, "adds each query to each key")


def _arguments(call: Call) -> dict[str, Any]:
    args, kwargs = call.arguments
    return inspect.signature(call.layer.call).bind(*args, **kwargs).arguments


def _of_whole_images(call: Call, reason: str) -> list[int]:
    """Run a layer on whole images of fixed size.

    Raises:
        UnsupportedLayerError: Their size is unknown.
    """
    if not has_fixed_size(call):
        call.refuse(
            f"{reason}, with numbers for each pair of pixels; use layers.MultiHeadAttention, or layers.Attention with "
            "score_mode='dot' and without its scores."
        )
    return read_whole(call)


def _scaled(call: Call, query: int) -> int:
    """Add queries times the scale of the scores, if the layer has one."""
    if call.layer.scale is None:
        return query
    return call.local(
        lambda x, w, strip: x[0] * tf.cast(w[0], x[0].dtype),
        weights=[call.layer.scale],
        inputs=[query],
        channels=call.graph.values[query].channels,
        name="scaled",
    )


def _kept(call: Call, value: int, mask: Mask) -> int:
    """Add an image that is zero where a mask `[N, tokens]` of queries is not set."""
    graph = call.graph
    wholes = [] if mask.value is None else [mask.value]

    def run(x: list[tf.Tensor], w: Any, strip: Any) -> tf.Tensor:
        kept, _ = mask.given(dict(zip(wholes, x[1:], strict=True)), graph)
        return tf.where(kept[:, 0, strip.start : strip.stop], x[0], 0)

    return call.local(run, inputs=[value, *wholes], name="kept", uniform=False, tiles=False)
