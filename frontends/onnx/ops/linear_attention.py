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
def linear_attention(node: OnnxNode) -> list[Expr]:
    """One kernel for all positions, in float32, with grouped queries."""
    heads, groups = node.attr_int("q_num_heads"), node.attr_int("kv_num_heads")
    if groups < 1 or heads < 1 or heads % groups:
        raise node.unsupported(f"{heads} heads of queries for {groups} of keys", expected="a multiple")
    rule = node.attr_choice("update_rule", _RULES, "gated_delta")
    query, key, value = _heads(node, 0, heads), _heads(node, 1, groups), _heads(node, 2, groups)
    batch, steps, _, width = query.shape
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
