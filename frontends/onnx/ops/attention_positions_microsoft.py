"""Relative position biases and Gemma's rotary embedding, of com.microsoft."""

from __future__ import annotations

import math

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.attention_microsoft import number, require_absent
from relayc.frontends.onnx.ops.attention_parts import split_heads
from relayc.frontends.onnx.ops.common import MICROSOFT, counted, float_const, require_rank, reshape_to
from relayc.frontends.onnx.ops.linear import matmul
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Expr, const


@converter("RelativePositionBias", domain=MICROSOFT)
def relative_position_bias(node: OnnxNode) -> Expr:
    """T5's relative position bias [1, heads, queries, keys].

    Inputs: a table, the numbers of queries and of keys. The table is declared [buckets, heads] and stored
    column-major.
    """
    require_rank(node, 0, 2, 2)
    buckets, heads = node.shape(0)
    both_ways = node.attr_bool("is_bidirectional", False)
    one_way = buckets // 2 if both_ways else buckets
    exact, longest = one_way // 2, node.attr_int("max_distance")
    if exact < 1 or longest <= exact:
        raise node.error(f"{buckets} buckets for distances up to {longest}", expected="some for longer distances, too")
    queries, keys = (node.sizes(i, "the number of positions", 1)[0] for i in (1, 2))
    offset = op.subtract(op.expand_dims(counted(keys), 0), op.expand_dims(counted(queries), 1))
    zero = number(0, offset)
    distance = op.abs(offset) if both_ways else op.maximum(op.negative(offset), zero)
    bucket = _bucket(distance, exact, one_way, longest)
    if both_ways:
        bucket = op.add(bucket, op.where(op.greater(offset, zero), number(one_way, offset), zero))
    table = reshape_to(node[0], (heads, buckets))
    return op.expand_dims(op.take(table, bucket, axis=1), 0)


def _bucket(distance: Expr, exact: int, count: int, longest: int) -> Expr:
    """T5's buckets: one per distance below `exact`, then logarithmic ones, the last from `longest` on."""
    ratio = op.divide(op.cast(op.maximum(distance, number(1, distance)), "float32"), const(float(exact), "float32"))
    share = op.divide(op.log(ratio), const(math.log(longest / exact), "float32"))
    wide = op.cast(op.multiply(share, const(float(count - exact), "float32")), "int64")
    far = op.minimum(op.add(wide, number(exact, distance)), number(count - 1, distance))
    return op.where(op.less(distance, number(exact, distance)), distance, far)


@converter("GatedRelativePositionBias", domain=MICROSOFT)
def gated_relative_position_bias(node: OnnxNode) -> Expr:
    """WavLM's position bias, gated by each query: [batch, heads, length, length].

    Inputs: queries [batch, length, heads * size], their bias, the position bias [1, heads, length, length], weights
    [size, 2 * parts] and bias of the gate's two halves, a factor per head.
    """
    require_absent(node, 6, "rows of different lengths in one")
    require_rank(node, 0, 3, 3)
    require_rank(node, 3, 2, 2)
    queries = split_heads(node, op.add(node[0], node[1]), node.attr_int("num_heads"), "the queries")
    gates = op.add(matmul(node, queries, node[3]), node[4])
    *lead, width = gates.shape
    if not isinstance(width, int) or width % 2:
        raise node.error(f"{width} columns of the gate", expected="an even number")
    halves = op.sigmoid(op.sum(reshape_to(gates, (*lead, 2, width // 2)), axis=-1))
    update, reset = (op.strided_slice(halves, (i,), (i + 1,), axes=(3,)) for i in (0, 1))
    inner = op.subtract(op.multiply(reset, node[5]), float_const(1.0, halves))
    return op.multiply(op.add(op.multiply(update, inner), float_const(2.0, halves)), node[2])


@converter("GemmaRotaryEmbedding", domain=MICROSOFT)
def gemma_rotary_embedding(node: OnnxNode) -> list[Expr | None]:
    """x * cos + y * sin for Q and K, y being x rotated by 90 degrees.

    Inputs: angles [batch, length, size], Q [batch, heads, length, size], its y, K, its y."""
    require_rank(node, 0, 3, 3)
    for index in range(1, 5):
        require_rank(node, index, 4, 4)
    angles = op.expand_dims(node[0], 1)
    cosine, sine = (op.cast(function(angles), node.dtype(1)) for function in (op.cos, op.sin))
    return [op.add(op.multiply(node[i], cosine), op.multiply(node[i + 1], sine)) for i in (1, 3)]
