"""Attention of com.microsoft: with packed projections, and MultiHeadAttention."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.attention_parts import attend, columns, merged_heads, power_of_size, split_heads
from relayc.frontends.onnx.ops.common import MICROSOFT, float_const, require_rank, reshape_to, transposed
from relayc.frontends.onnx.ops.linear import matmul
from relayc.frontends.onnx.ops.quantization import along, centred
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.sizes import add_sizes, dims_equal, product
from relayc.relay.type import dims_match
from relayc.te.tir import Dim

__all__ = ["attend_masked", "number", "require_absent", "scale_of"]


def number(value: int, like: Expr) -> Constant:
    """An integer of the element type of `like`."""
    return Constant(np.array(value, str(like.dtype)))


def scale_of(node: OnnxNode, query: Expr) -> Expr:
    """The scale of the scores; 0 means the default, 1 / sqrt(head size)."""
    scale = node.attr_float("scale", 0.0)
    return power_of_size(query.shape[3], -0.5, query) if scale == 0.0 else float_const(scale, query)


def require_absent(node: OnnxNode, index: int, what: str) -> None:
    """Raise an unsupported-operator error if input `index`, used by GPU or decoding kernels only, is present."""
    if node.get(index) is not None:
        raise node.unsupported(f"{what} (input {index})", expected="the input left out")


# packed projections ---------------------------------------------------------------------------------------------------


@converter("Attention", domain=MICROSOFT)
def attention(node: OnnxNode) -> list[Expr | None]:
    """Self-attention of X W + b.

    Inputs: X, W, b, mask, past keys and values, a bias of the scores."""
    _check_weights(node)
    projected = matmul(node, node[0], node[1])
    projected = projected if node.get(2) is None else op.add(projected, node[2])
    require_absent(node, 6, "a past of its own length")
    return _self_attention(node, projected, mask=node.get(3), past=node.get(4), bias=node.get(5))


@converter("QAttention", domain=MICROSOFT)
def q_attention(node: OnnxNode) -> list[Expr | None]:
    """Attention of quantized X and W.

    Inputs: X, W, b, their scales, mask, their zero points, the past."""
    _check_weights(node)
    x, weight = centred(node, node[0], node.get(6), -1), centred(node, node[1], node.get(7), -1)
    scale = op.multiply(along(node, node[3], -1, 3), along(node, node[4], -1, 3))
    projected = op.add(op.multiply(op.cast(matmul(node, x, weight), "float32"), scale), node[2])
    return _self_attention(node, projected, mask=node.get(5), past=node.get(8), bias=None)


def _check_weights(node: OnnxNode) -> None:
    require_rank(node, 0, 3, 3)
    require_rank(node, 1, 2, 2)
    for name in ("do_rotary", "past_present_share_buffer"):
        if node.attr_bool(name, False):
            raise node.unsupported(f"{name}=1", expected=f"{name}=0")
    node.attrs.ignore("rotary_embedding_dim")


def _self_attention(
    node: OnnxNode, projected: Expr, mask: Expr | None, past: Expr | None, bias: Expr | None
) -> list[Expr | None]:
    """Attention of Q, K and V packed in the last axis. The second output is past and new K and V."""
    heads, width = node.attr_int("num_heads"), projected.shape[2]
    assert isinstance(width, int)
    sizes = node.attr_ints("qkv_hidden_sizes", ()) or (width // 3,) * 3
    if len(sizes) != 3 or min(sizes) < 1 or sum(sizes) != width or sizes[0] != sizes[1]:
        raise node.error(f"weights of {width} columns for Q, K and V of {list(sizes)}", expected="sizes that add up")
    parts = columns(projected, sizes)
    query, key, value = [split_heads(node, part, heads, "a projection of") for part in parts]
    before, present = 0, None
    if (past is not None or node.wants(1)) and sizes[2] != sizes[0]:
        raise node.error(f"a past of K and V of {sizes[0]} and {sizes[2]} columns", expected="V as wide as K")
    if past is not None:
        if len(past.shape) != 5 or past.shape[0] != 2:
            raise node.error(f"a past of {past.ty}", expected="[2, batch, heads, length, size]")
        before, present = past.shape[3], op.concatenate([past, op.stack([key, value], axis=0)], axis=3)
        key, value = _half(present, 0), _half(present, 1)
    elif node.wants(1):
        present = op.stack([key, value], axis=0)
    result, _ = attend_masked(node, (query, key, value), mask, bias, before)
    return [merged_heads(result), present if node.wants(1) else None]


def _half(past: Expr, index: int) -> Expr:
    return op.squeeze(op.strided_slice(past, (index,), (index + 1,), axes=(0,)), axis=(0,))


# scores and masks -----------------------------------------------------------------------------------------------------


def attend_masked(
    node: OnnxNode, heads: tuple[Expr, Expr, Expr], mask: Expr | None, bias: Expr | None, before: Dim
) -> tuple[Expr, Expr]:
    """Attention of Q, K, V [batch, heads, length, size] with the node's mask and causality.

    `before` is the number of past keys.
    """
    query, key, value = heads
    if len(key.shape) != 4 or len(value.shape) != 4:
        raise node.error(f"keys {key.ty} and values {value.ty}", expected="[batch, heads, length, size]")
    batch, _, length, _ = query.shape
    total = key.shape[2]
    floor = node.attr_float("mask_filter_value", -10000.0)
    kept = None if mask is None else _kept(node, mask, batch, length, total)
    terms: list[Expr] = [] if bias is None else [op.cast(bias, query.dtype)]
    if kept is not None:
        terms.append(op.where(kept, float_const(0.0, query), float_const(floor, query)))
    if node.attr_bool("unidirectional", False):
        terms.append(_causal(query, length, total, before))
    added: Expr | None = None
    for term in terms:
        added = term if added is None else op.add(added, term)
    return attend(query, key, value, scale_of(node, query), added)


def _causal(query: Expr, length: Dim, total: Dim, before: Dim) -> Expr:
    """Additive causal mask [length, total]: -inf for keys after the query."""
    rows = op.expand_dims(op.arange(0, length, 1, "int64"), 1)
    allowed = op.less_equal(op.arange(0, total, 1, "int64"), op.add(rows, op.size_tensor((before,), ())))
    return op.where(allowed, float_const(0.0, query), float_const(-math.inf, query))


def _kept(node: OnnxNode, mask: Expr, batch: Dim, length: Dim, total: Dim) -> Expr:
    """Boolean mask of valid keys, broadcastable with [batch, heads, length, total].

    A mask input is 0 for masked keys, [batch, total], [batch, length, total] or [batch, 1, most, most]; or holds the
    number of valid keys, [batch]; or the ends, then the starts of the valid range, [2 * batch].
    """
    shape = mask.shape
    if len(shape) == 1:
        return _between(node, mask, batch, total)
    forms: dict[int, Sequence[Dim]] = {2: (batch, total), 3: (batch, length, total)}
    found = reshape_to(mask, shape)
    if len(shape) == 4 and shape[1] == 1:
        start = add_sizes(total, product((-1, length)))
        found = op.strided_slice(mask, (start, 0), (total, total), axes=(2, 3))
    elif not _matches(shape, forms.get(len(shape), ())):
        expected = f"[{batch}], [2 * {batch}], [{batch}, {total}], [{batch}, {length}, {total}] or of 4 axes"
        raise node.error(f"a mask of {mask.ty}", expected=expected)
    axes = {2: (1, 2), 3: (1,), 4: ()}[len(shape)]
    for axis in axes:
        found = op.expand_dims(found, axis)
    return op.greater(found, number(0, mask))


def _between(node: OnnxNode, mask: Expr, batch: Dim, total: Dim) -> Expr:
    """Mask of the keys before the ends and, if there are starts, from the starts on."""
    count, shape = mask.shape[0], (batch, 1, 1, 1)
    positions = op.arange(0, total, 1, str(mask.dtype))
    if dims_equal(count, product((2, batch))):
        ends = op.strided_slice(mask, (0,), (batch,), axes=(0,))
        starts = op.strided_slice(mask, (batch,), (count,), axes=(0,))
        after = op.greater_equal(positions, reshape_to(starts, shape))
        return op.logical_and(op.less(positions, reshape_to(ends, shape)), after)
    if dims_match(count, batch):
        return op.less(positions, reshape_to(mask, shape))
    problem = f"a mask of {mask.ty} for a batch of {batch}"
    raise node.unsupported(problem, expected="one or two numbers for each of them")


def _matches(shape: Sequence[Dim], expected: Sequence[Dim]) -> bool:
    return len(shape) == len(expected) and all(dims_match(a, b) for a, b in zip(shape, expected, strict=True))


# MultiHeadAttention ---------------------------------------------------------------------------------------------------


@converter("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(node: OnnxNode) -> list[Expr | None]:
    """Multi-head attention of projected Q, K and V.

    Inputs: Q, K, V, their bias, key mask, bias of the scores, past keys and values. Q, K and V are [batch, length,
    heads * size]; packed QKV or KV is [batch, length, heads, 3 or 2, size]; cross-attention K and V are [batch, heads,
    length, size]. Outputs: Y, K and V with the past, the softmax.
    """
    require_absent(node, 8, "a past in a buffer of its own")
    require_absent(node, 9, "the beams of a cache")
    query, key, value = _three(node, node.attr_int("num_heads"))
    past_key, past_value = node.get(6), node.get(7)
    before = 0 if past_key is None else past_key.shape[2]
    if past_key is not None and past_value is not None:
        key, value = op.concatenate([past_key, key], axis=2), op.concatenate([past_value, value], axis=2)
    elif past_key is not None or past_value is not None:
        raise node.error("past keys without values, or values without keys", expected="both or none")
    result, weights = attend_masked(node, (query, key, value), node.get(4), node.get(5), before)
    return [merged_heads(result), key, value, weights]


def _three(node: OnnxNode, heads: int) -> tuple[Expr, Expr, Expr]:
    """Q, K and V as [batch, heads, length, size], with their bias."""
    require_rank(node, 0, 3, 5)
    if node.rank(0) == 5:
        found = _unpacked(node, 0, heads, 3)
        return found[0], found[1], found[2]
    biases = _biases(node)
    query = split_heads(node, _plus(node[0], biases[0]), heads, "queries of")
    if node.rank(1) == 5:
        if node.get(3) is not None:
            raise node.unsupported("a bias of packed keys and values", expected="the bias left out")
        key, value = _unpacked(node, 1, heads, 2)
        return query, key, value
    if node.rank(1) == 4:
        return query, node[1], node[2]
    key, value = [split_heads(node, _plus(node[i], biases[i]), heads, "keys or values of") for i in (1, 2)]
    return query, key, value


def _unpacked(node: OnnxNode, index: int, heads: int, count: int) -> list[Expr]:
    """The `count` tensors packed in input `index` [batch, length, heads, count, size]."""
    x, shape = node[index], node.type(index).shape
    if shape[2] != heads or shape[3] != count:
        raise node.error(f"packed heads {x.ty}", expected=f"[batch, length, {heads}, {count}, size]")
    parts = [op.squeeze(op.strided_slice(x, (i,), (i + 1,), axes=(3,)), axis=(3,)) for i in range(count)]
    return [transposed(part, (0, 2, 1, 3)) for part in parts]


def _biases(node: OnnxNode) -> tuple[Expr | None, Expr | None, Expr | None]:
    """The bias split for Q, K and V."""
    if node.get(3) is None:
        return None, None, None
    require_rank(node, 3, 1, 1)
    hidden, total = node.type(0).shape[2], node.shape(3)[0]
    if not isinstance(hidden, int) or total <= 2 * hidden:
        raise node.error(f"a bias of {node.type(3)}", expected=f"{hidden} elements for each of Q and K, and those of V")
    first, second, third = columns(node[3], (hidden, hidden, total - 2 * hidden))
    return first, second, third


def _plus(x: Expr, bias: Expr | None) -> Expr:
    return x if bias is None else op.add(x, bias)
