"""LinearAttention: a recurrent state per head, updated and read at every position."""

from __future__ import annotations

import math

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import reshape_to, zeros
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Expr
from relayc.relay.sizes import product, quotient
from relayc.relay.type import Dim, shapes_match

__all__ = ["linear_attention"]

_RULES = ("linear", "gated", "delta", "gated_delta")


@converter("LinearAttention")
def standard_linear_attention(node: OnnxNode) -> list[Expr]:
    """One kernel for all positions, in float32, with grouped queries."""
    return linear_attention(node, shares_queries=False)


def linear_attention(node: OnnxNode, shares_queries: bool) -> list[Expr]:
    """One kernel for all positions, in float32, with grouped queries.

    With `shares_queries`, several heads of values may have a head of queries or of keys in common, as in
    com.microsoft; how many heads of keys there are follows from their width.
    """
    heads, groups = node.attr_int("q_num_heads"), node.attr_int("kv_num_heads")
    shared = shares_queries and heads > 0 and groups % heads == 0
    if groups < 1 or heads < 1 or (heads % groups and not shared):
        raise node.unsupported(f"{heads} heads of queries for {groups} of keys", expected="a multiple")
    rule = node.attr_choice("update_rule", _RULES, "gated_delta")
    query, value = _heads(node, 0, heads), _heads(node, 2, groups)
    batch, steps, _, width = query.shape
    keys = quotient(node.type(1).shape[2:], (width,)) if shares_queries else None
    key = _heads(node, 1, keys if isinstance(keys, int) and keys and groups % keys == 0 else groups)
    heads = max(heads, groups)
    query, key = _repeated(query, heads), _repeated(key, groups)
    columns = value.shape[3]
    if not all(shapes_match(x.shape, (batch, steps, groups, d)) for x, d in ((key, width), (value, columns))):
        raise node.error(f"keys {node.type(1)} or values {node.type(2)} for {heads} heads of queries {node.type(0)}, "
                         f"{groups} of keys", expected="the same batch, length and width of a head")  # fmt: skip
    state = _first_state(node, (batch, groups, width, columns))
    decay = _decay(node, (batch, steps, groups, width)) if "gated" in rule else None
    rate = _rate(node, (batch, steps, groups)) if "delta" in rule else None
    scale = node.attr_float("scale", 0.0)
    if not scale and isinstance(width, int):
        scale = 1 / math.sqrt(max(width, 1))
    if scale:
        y, last = op.nn.linear_attention(query, key, value, state, decay, rate, scale=scale)
    else:  # dynamic head size
        q, k, v = [op.cast(x, "float32") for x in (query, key, value)]
        unscaled, last = op.nn.linear_attention(q, k, v, state, decay, rate, scale=1.0)
        y = op.cast(op.divide(unscaled, op.sqrt(op.cast(op.size_tensor((width,), ()), "float32"))), str(query.dtype))
    return [reshape_to(y, (batch, steps, product((heads, columns)))), last]


def _heads(node: OnnxNode, index: int, heads: int) -> Expr:
    """Reshape input `index` from [batch, length, heads * size] to [batch, length, heads, size]."""
    shape = node.type(index).shape
    size = quotient(shape[2:], (heads,)) if len(shape) == 3 else None
    if size is None:
        raise node.error(f"input {index} is {node.type(index)}", expected=f"[batch, length, {heads} heads * size]")
    return reshape_to(node[index], (*shape[:2], heads, size))


def _repeated(x: Expr, heads: int) -> Expr:
    """[batch, length, heads, size] with each of fewer heads next to its copies."""
    own = x.shape[2]
    return op.repeat(x, heads // own, 2) if isinstance(own, int) and own < heads else x


def _first_state(node: OnnxNode, shape: tuple[Dim, ...]) -> Expr:
    """The initial state; zeros of the queries' type when it is omitted."""
    state = node.get(3)
    if state is None:
        return zeros(shape, str(node.type(0).dtype))
    if not shapes_match(state.shape, shape):
        raise node.error(f"past_state is {state.tensor_type}", expected=f"{state.tensor_type.with_shape(shape)}")
    return state


def _decay(node: OnnxNode, shape: tuple[Dim, ...]) -> Expr:
    """exp(decay) [batch, length, heads, size or 1]: a factor per row of the state, or for all rows."""
    passed = node.get(4)
    if passed is not None:
        for whole in (shape, (*shape[:3], 1)):
            if shapes_match(passed.shape, (*shape[:2], product(whole[2:]))):
                return op.exp(op.cast(reshape_to(passed, whole), "float32"))
    found = "is left out" if passed is None else f"is {passed.tensor_type}"
    raise node.error(f"decay {found}", expected="for each position a value per head, or per row of its state")


def _rate(node: OnnxNode, shape: tuple[Dim, ...]) -> Expr:
    """beta, [batch, length, heads or 1]."""
    passed = node.get(5)
    if passed is not None and any(shapes_match(passed.shape, (*shape[:2], n)) for n in (shape[2], 1)):
        return passed
    found = "is left out" if passed is None else f"is {passed.tensor_type}"
    raise node.error(f"beta {found}", expected="for each position a value per head, or for all heads")
