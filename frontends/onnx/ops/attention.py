"""Scaled dot-product attention and rotary position embedding."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.attention_parts import grouped_product, power_of_size, rotated
from relayc.frontends.onnx.ops.cast import cast_to
from relayc.frontends.onnx.ops.common import counted, float_const, reshape_to, transposed
from relayc.frontends.onnx.registry import converter
from relayc.frontends.onnx.tensors import check_computed, dtype_name
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, const
from relayc.relay.sizes import add_sizes, is_at_least, product, quotient
from relayc.te.tir import Dim

RAW_SCORES, CAPPED_SCORES, BIASED_SCORES, PROBABILITIES = range(4)
"""Contents of the fourth output of Attention, by `qk_matmul_output_mode`."""


@converter("Attention", since=23)
def attention(node: OnnxNode) -> list[Expr | None]:
    """softmax(Q * K' * scale + bias) * V per head, with grouped queries.

    Outputs: Y, keys and values appended to the KV cache, and the scores at the stage that the mode selects.
    """
    flat = node.rank(0) == 3
    query = _heads(node, 0, node.attr_int("q_num_heads", 0))
    groups = node.attr_int("kv_num_heads", 0)
    key, value = _cached(node, 4, _heads(node, 1, groups)), _cached(node, 5, _heads(node, 2, groups))
    masks = _Masks(node, query, key)
    mode = node.attr_int("qk_matmul_output_mode", RAW_SCORES)
    precision = node.attrs.get_int("softmax_precision")

    scores = shown = _scores(node, query, key)
    cap = node.attr_float("softcap", 0.0)
    if cap > 0.0:
        limit = float_const(cap, scores)
        scores = shown = op.multiply(op.tanh(op.divide(scores, limit)), limit)
    scores = masks.applied(scores)
    shown = scores if mode == BIASED_SCORES else shown
    # Rounding probabilities of low-precision floats to their type would cost precision.
    narrow = query.dtype.bits < 32 and precision is None
    wide = "float32" if narrow else str(query.dtype) if precision is None else dtype_name(precision, node.where)
    weights = masks.without_blind_rows(op.nn.softmax(cast_to(scores, wide), axis=-1))
    weights = weights if narrow else cast_to(weights, query.dtype)
    shown = cast_to(weights, query.dtype) if mode == PROBABILITIES else shown
    result = cast_to(grouped_product(weights, cast_to(value, weights.dtype)), query.dtype)
    if flat:
        batch, heads, length, size = result.shape
        result = reshape_to(transposed(result, (0, 2, 1, 3)), (batch, length, product((heads, size))))
    return [result, key, value, shown]


def _heads(node: OnnxNode, index: int, heads: int) -> Expr:
    """Input `index` as [batch, heads, length, size]; rank 3 has the heads in the last axis."""
    shape = node.type(index).shape
    if len(shape) == 4:
        return node[index]
    size = quotient(shape[2:], (heads,)) if len(shape) == 3 and heads >= 1 else None
    if size is None:
        problem = f"input {index} of type {node.type(index)} with {heads} heads"
        raise node.error(problem, expected="rank 4, or rank 3 with the number of heads given")
    return transposed(reshape_to(node[index], (shape[0], shape[1], heads, size)), (0, 2, 1, 3))


def _cached(node: OnnxNode, index: int, x: Expr) -> Expr:
    """`x` appended to the KV cache in input `index`."""
    past = node.get(index)
    return x if past is None else op.concatenate([past, x], axis=2)


def _scores(node: OnnxNode, query: Expr, key: Expr) -> Expr:
    """Q * K' * scale: [batch, query heads, queries, keys]. Low-precision floats scale both operands, against
    overflow."""
    passed, size = node.attrs.get_float("scale"), query.shape[3]
    narrow = query.dtype.bits < 32
    if passed is None:
        scale = power_of_size(size, -0.25 if narrow else -0.5, query)
    else:
        scale = float_const(math.sqrt(passed) if narrow else passed, query)
    key = op.multiply(key, scale) if narrow else key
    query = op.multiply(query, scale)
    return grouped_product(query, transposed(key, (0, 1, 3, 2)))


class _Masks:
    """Attention masks: the mask input, causality, a sliding window, and the number of valid keys per batch entry."""

    def __init__(self, node: OnnxNode, query: Expr, key: Expr) -> None:
        self.node = node
        self.queries, self.keys = query.shape[2], key.shape[2]
        self.like = query
        self.lengths = node.get(6)
        self.window = (node.attr_int("left_window_size", -1), node.attr_int("right_window_size", -1))
        self.causal = node.attr_bool("is_causal", False)
        self.bias = self._bias()

    def applied(self, scores: Expr) -> Expr:
        return scores if self.bias is None else op.add(scores, self.bias)

    def without_blind_rows(self, weights: Expr) -> Expr:
        """`weights` with zeros for fully masked queries."""
        if self.bias is None:
            return weights
        if self.node.get(3) is None and self.lengths is None and self.window[0] < 0:
            return weights  # the first key is visible to all
        if isinstance(self.bias, Constant) and bool(np.all(self.bias.data.max(axis=-1) > -np.inf)):
            return weights
        blind = op.equal(op.max(self.bias, axis=(-1,), keepdims=True), float_const(-math.inf, self.bias))
        return op.where(blind, float_const(0.0, weights), weights)

    def _bias(self) -> Expr | None:
        """Additive mask: 0 for visible keys, -inf for others, plus a floating-point mask input."""
        parts = [part for part in (self._mask_input(), self._positions(), self._valid_keys()) if part is not None]
        if not parts:
            return None
        total = parts[0]
        for part in parts[1:]:
            total = op.add(total, part)
        return total

    def _barred(self, allowed: Expr) -> Expr:
        return op.where(allowed, float_const(0.0, self.like), float_const(-math.inf, self.like))

    def _mask_input(self) -> Expr | None:
        """The mask input, padded to all keys with masked ones."""
        mask = self.node.get(3)
        if mask is None:
            return None
        mask = self._barred(mask) if mask.dtype.is_bool else mask
        shape = mask.shape
        if is_at_least(shape[-1], self.keys) or (shape[-1] == 1 and len(shape) == 1):
            return mask
        missing = add_sizes(self.keys, product((-1, shape[-1])))
        rest = op.full(-math.inf, (*shape[:-1], missing), str(mask.dtype))
        return op.concatenate([mask, rest], axis=-1)

    def _positions(self) -> Expr | None:
        """Causal and sliding-window mask. Query i has position i + offset, after the cached keys."""
        left, right = self.window
        if not self.causal and left < 0 and right < 0:
            return None
        queries, keys = self.queries, self.keys
        cached = self.node.get(4)
        if self.lengths is None or cached is not None:
            past = 0 if cached is None else cached.shape[2]
            if isinstance(queries, int) and isinstance(keys, int) and isinstance(past, int):
                check_computed((queries, keys), self.node.where)
                distance = np.arange(queries)[:, None] - np.arange(keys)[None, :] + past
                return self._barred(Constant(self._visible(distance)))
            return self._seen(op.add(self._distances("int64"), op.size_tensor((past,), ())))
        kind = str(self.lengths.dtype)
        offset = op.subtract(self.lengths, op.size_tensor((self.queries,), (), kind))
        return self._seen(op.add(op.reshape(offset, (self.lengths.shape[0], 1, 1, 1)), self._distances(kind)))

    def _distances(self, dtype: str) -> Expr:
        """Query index minus key index: [queries, keys]."""
        return op.subtract(op.reshape(counted(self.queries, dtype), (self.queries, 1)), counted(self.keys, dtype))

    def _seen(self, at: Expr) -> Expr:
        """`_visible` for dynamic distances."""
        left, right = self.window
        conditions: list[Expr] = []
        if self.causal:
            conditions.append(op.greater_equal(at, const(0, at.dtype)))
        if left >= 0:
            conditions.append(op.less_equal(at, const(left, at.dtype)))
        if right >= 0:
            conditions.append(op.greater_equal(at, const(-right, at.dtype)))
        return self._barred(reduce(op.logical_and, conditions))

    def _visible(self, distance: np.ndarray) -> np.ndarray:
        """Which keys are visible, by their distance behind the query."""
        left, right = self.window
        seen = np.ones(distance.shape, bool)
        if self.causal:
            seen &= distance >= 0
        if left >= 0:
            seen &= distance <= left
        if right >= 0:
            seen &= -distance <= right
        return seen

    def _valid_keys(self) -> Expr | None:
        if self.lengths is None:
            return None
        positions = counted(self.keys, str(self.lengths.dtype))
        return self._barred(op.less(positions, op.reshape(self.lengths, (self.lengths.shape[0], 1, 1, 1))))


@converter("RotaryEmbedding", since=23)
def rotary_embedding(node: OnnxNode) -> Expr:
    """Pairs of channels rotated by position-dependent angles, whose cosines and sines are inputs."""
    shape, heads = node.type(0).shape, node.attr_int("num_heads", 0)
    flat = len(shape) == 3
    if flat:
        size = quotient(shape[2:], (heads,)) if heads >= 1 else None
        if size is None:
            raise node.error(f"{shape[2]} channels in {heads} heads", expected="num_heads that divides the channels")
        x = reshape_to(node[0], (shape[0], shape[1], heads, size))
    else:
        x = transposed(node[0], (0, 2, 1, 3))
    size = x.shape[3]
    rotary_size: Dim = node.attr_int("rotary_embedding_dim", 0) or size
    if isinstance(rotary_size, int) and (rotary_size % 2 or rotary_size < 1 or is_at_least(rotary_size - 1, size)):
        raise node.error(f"rotary_embedding_dim is {rotary_size}", expected=f"an even number up to {size}")
    cosine, sine = (_angles(node, index) for index in (1, 2))
    interleaved = node.attr_bool("interleaved", False)
    result = rotated(x, cosine, sine, rotary_size, interleaved)
    return reshape_to(result, shape) if flat else transposed(result, (0, 2, 1, 3))


def _angles(node: OnnxNode, index: int) -> Expr:
    """Cosines or sines as [batch, length, 1, pairs], gathered by position if there are positions."""
    positions = node.get(3)
    cache = node[index] if positions is None else op.take(node[index], positions, axis=0, mode="clip")
    return op.expand_dims(cache, 2)
