"""Building blocks of attention operators: heads, grouped products, softmax, rotary embedding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import float_const, reshape_to, transposed
from relayc.relay import op
from relayc.relay.errors import TypeInferenceError
from relayc.relay.expr import Expr, const
from relayc.relay.sizes import dims_equal, product, quotient
from relayc.te.tir import Dim

__all__ = ["attend", "columns", "grouped_product", "merged_heads", "power_of_size", "rotated", "split_heads"]


def columns(x: Expr, widths: Sequence[int]) -> list[Expr]:
    """Split the last axis of `x` into parts of these widths."""
    ends = [0, *accumulate(widths)]
    return [op.strided_slice(x, (a,), (b,), axes=(len(x.shape) - 1,)) for a, b in pairwise(ends)]


def split_heads(node: OnnxNode, x: Expr, heads: int, what: str) -> Expr:
    """Reshape [batch, length, heads * size] to [batch, heads, length, size]."""
    shape = x.shape
    size = quotient(shape[2:], (heads,)) if len(shape) == 3 and heads >= 1 else None
    if size is None:
        raise node.error(f"{what} {x.ty} in {heads} heads", expected="[batch, length, a multiple of the heads]")
    return transposed(reshape_to(x, (shape[0], shape[1], heads, size)), (0, 2, 1, 3))


def merged_heads(x: Expr) -> Expr:
    """Reshape [batch, heads, length, size] to [batch, length, heads * size]."""
    batch, heads, length, size = x.shape
    return reshape_to(transposed(x, (0, 2, 1, 3)), (batch, length, product((heads, size))))


def grouped_product(a: Expr, b: Expr) -> Expr:
    """Grouped matrix product of a [B, H, M, K] and b [B, G, K, N]: head h of `a` uses head h // (H / G) of `b`."""
    batch, heads, rows, depth = a.shape
    groups, columns = b.shape[1], b.shape[3]
    shared = 1 if dims_equal(heads, groups) else quotient((heads,), (groups,))
    if shared is None:
        raise TypeInferenceError(f"{heads} query heads can't share {groups} heads of keys and values")
    if shared == 1:
        return op.nn.matmul(a, b)
    left = reshape_to(a, (batch, groups, product((shared, rows)), depth))
    return reshape_to(op.nn.matmul(left, b), (batch, heads, rows, columns))


def power_of_size(size: Dim, exponent: float, like: Expr) -> Expr:
    """size ** exponent as a scalar of the element type of `like`."""
    if isinstance(size, int):
        return float_const(size**exponent, like)
    return op.cast(op.power(op.cast(op.size_tensor((size,), ()), "float64"), const(exponent, "float64")), like.dtype)


def attend(
    query: Expr,
    key: Expr,
    value: Expr,
    scale: Expr,
    bias: Expr | None = None,
    cap: float = 0.0,
    sink: Expr | None = None,
) -> tuple[Expr, Expr]:
    """softmax(Q * K' * scale + bias) * V, and the softmax: [B, H, S, D] and [B, H, S, T].

    Scores are soft-capped to +-`cap`. An attention `sink` [H] is an extra score per head without a value.
    """
    scores = grouped_product(op.multiply(query, scale), transposed(key, (0, 1, 3, 2)))
    if cap > 0.0:
        limit = float_const(cap, scores)
        scores = op.multiply(op.tanh(op.divide(scores, limit)), limit)
    if bias is not None:
        scores = op.add(scores, bias)
    weights = op.nn.softmax(scores, axis=-1) if sink is None else _softmax_with_sink(scores, sink)
    return grouped_product(weights, value), weights


def _softmax_with_sink(scores: Expr, sink: Expr) -> Expr:
    """Softmax over the scores and the sink, without the sink's column."""
    batch, heads, length, keys = scores.shape
    extra = op.broadcast_to(reshape_to(sink, (1, heads, 1, 1)), (batch, heads, length, 1))
    weights = op.nn.softmax(op.concatenate([scores, op.cast(extra, scores.dtype)], axis=3), axis=-1)
    return op.strided_slice(weights, (0,), (keys,), axes=(3,))


def rotated(x: Expr, cosine: Expr, sine: Expr, rotary_size: Dim, interleaved: bool) -> Expr:
    """Rotary embedding of the first `rotary_size` channels of x [batch, length, heads, size].

    `cosine` and `sine` are [batch or 1, length, 1, rotary_size / 2]. Pairs are adjacent channels when `interleaved`,
    else a channel of the first half and one of the second.
    """
    size = x.shape[3]
    if dims_equal(size, rotary_size):
        return op.nn.rotary_embedding(x, cosine, sine, interleaved)
    result = op.nn.rotary_embedding(op.strided_slice(x, (0,), (rotary_size,), axes=(3,)), cosine, sine, interleaved)
    return op.concatenate([result, op.strided_slice(x, (rotary_size,), (size,), axes=(3,))], axis=-1)
