"""Decoder operators of com.microsoft: grouped-query attention with a KV cache, and rotary embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.attention_microsoft import number, require_absent, scale_of
from relayc.frontends.onnx.ops.attention_parts import attend, columns, merged_heads, rotated, split_heads
from relayc.frontends.onnx.ops.cast import cast_to
from relayc.frontends.onnx.ops.common import MICROSOFT, float_const, require_rank, reshape_to, transposed
from relayc.frontends.onnx.ops.control import constant_branches
from relayc.frontends.onnx.ops.normalization import rms_normalized
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Expr, const
from relayc.relay.sizes import add_sizes, dims_equal, floor_divide, product, smaller
from relayc.te.tir import Dim

__all__ = ["GroupedAttention"]


@converter("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(node: OnnxNode) -> Expr:
    """Pairs of channels rotated by position-dependent angles.

    Inputs: x [batch, length, heads * size] or [batch, heads, length, size], positions [batch, length] or [1] (the first
    one), cosines, sines.
    """
    if node.attr_bool("is_packed_batching", False):
        raise node.unsupported("batches of different lengths in one (is_packed_batching)", expected="0")
    node.attrs.ignore("scale")  # no kernel of onnxruntime's reads it
    require_rank(node, 0, 3, 4)
    require_rank(node, 2, 2, 2)
    shape, pairs = node.type(0).shape, node.type(2).shape[1]
    if not isinstance(pairs, int):
        raise node.value_needed(f"the cosines are {node.type(2)}, and their columns have to be known", node[2])
    heads, rotary_size = node.attr_int("num_heads", 0), node.attr_int("rotary_embedding_dim", 0) or 2 * pairs
    if len(shape) == 4:
        x = transposed(node[0], (0, 2, 1, 3))
    else:
        width = shape[2] if len(shape) == 3 else None
        heads = heads if heads or not isinstance(width, int) else width // rotary_size
        x = transposed(split_heads(node, node[0], heads, "data"), (0, 2, 1, 3))
    size = x.shape[3]
    if rotary_size != 2 * pairs or not isinstance(size, int) or rotary_size > size:
        raise node.error(f"{rotary_size} of {size} channels rotated by {pairs} angles", expected="two per angle")
    angles = _angles(node, _positions(node, x.shape[1]), (2, 3))
    result = rotated(x, *angles, rotary_size, node.attr_bool("interleaved", False))
    return transposed(result, (0, 2, 1, 3)) if len(shape) == 4 else reshape_to(result, shape)


def _positions(node: OnnxNode, length: Dim) -> Expr:
    """[batch or 1, length]"""
    require_rank(node, 1, 0, 2)
    if node.rank(1) == 2:
        return node[1]
    steps = op.expand_dims(op.arange(0, length, 1, str(node.dtype(1))), 0)
    return op.add(steps, reshape_to(node[1], (1, 1)))


def _angles(node: OnnxNode, positions: Expr, indices: tuple[int, int]) -> tuple[Expr, Expr]:
    """Cosines and sines of positions [batch or 1, length] as [batch or 1, length, 1, pairs]."""
    cosine, sine = [op.expand_dims(_rows_at(node[index], positions), 2) for index in indices]
    return cosine, sine


def _rows_at(table: Expr, positions: Expr) -> Expr:
    """The rows of a table at `positions`. One of two constant tables (LongRoPE, by the number of positions) is read as
    part of both, one behind the other, rather than copied in every run."""
    both = constant_branches(table)
    if both is None or not dims_equal(both[1].shape[1], both[2].shape[1]):
        return op.take(table, positions, axis=0)
    condition, first, second = both
    counts = [number(x.tensor_type.static_shape[0], positions) for x in (first, second)]
    last = op.subtract(op.where(condition, *counts), number(1, positions))
    begin = op.where(condition, number(0, positions), counts[0])
    return op.take(op.concatenate([first, second], axis=0), op.add(op.minimum(positions, last), begin), axis=0)


_DEPENDENT = ("kv_cache_bit_width", "qk_norm_epsilon", "rotary_interleaved", "smooth_softmax")
"""Attributes that only matter in combination with others."""


@converter("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(node: OnnxNode) -> list[Expr | None]:
    """Grouped-query attention over a KV cache and new positions.

    Inputs: Q (or packed QKV), K, V, past keys and values [batch, groups, length, size], the number of keys minus one of
    each row, the largest number of keys, cosines, sines, positions, bias of the scores, attention sinks of the heads,
    two scales of a quantized cache, scales of Q and K norms. Outputs: Y, and the cache, whose length is the maximum of
    the past's and the largest number of keys. A cache that drops positions outside of the window (sliding_window_cache)
    keeps its length; compiled with `caches`, it is a whole one.
    """
    return GroupedAttention(node).outputs()


@dataclass(frozen=True)
class _CacheForm:
    """Storage of a KV cache: floats, or quantised to integers of 8 bits, or of 4, two in a byte, or to a type `float8`.

    `scale` broadcasts.
    """

    scale: Expr | None = None
    bits: int = 8
    float8: str = ""

    def quantized(self, x: Expr) -> Expr:
        """Quantise new values [batch, heads, length, size] for the cache."""
        if self.scale is None:
            return x
        scaled = op.divide(op.cast(x, "float32"), op.cast(self.scale, "float32"))
        if self.float8:
            return cast_to(scaled, self.float8)
        lowest = 1 << (self.bits - 1)
        code = op.cast(op.clip(op.round(scaled), -lowest, lowest - 1), "int8")
        if self.bits == 8:
            return code
        upper = op.cast(op.add(code, const(lowest, "int8")), "uint8")
        pairs = op.reshape(upper, (*x.shape[:3], floor_divide(x.shape[3], 2), 2))
        low, high = [op.squeeze(part, axis=(4,)) for part in op.split(pairs, 2, axis=4)]
        return op.bitwise_or(low, op.left_shift(high, const(4, "uint8")))

    def values(self, quantized: Expr, dtype: str) -> Expr:
        """Dequantise the cache."""
        if self.scale is None:
            return quantized
        whole = quantized
        if self.bits == 4:
            low, high = op.bitwise_and(quantized, const(15, "uint8")), op.right_shift(quantized, const(4, "uint8"))
            both = op.reshape(op.stack([low, high], axis=4), (*quantized.shape[:3], product((quantized.shape[3], 2))))
            whole = op.subtract(op.cast(both, "int8"), const(8, "int8"))
        return op.cast(op.multiply(op.cast(whole, "float32"), op.cast(self.scale, "float32")), dtype)


class GroupedAttention:
    """The conversion of one grouped-query attention node."""

    def __init__(self, node: OnnxNode) -> None:
        self.node = node
        self._refuse_other_forms()
        self.heads, self.groups = node.attr_int("num_heads"), node.attr_int("kv_num_heads")
        if self.groups < 1 or self.heads < 1 or self.heads % self.groups:
            raise node.error(f"{self.heads} heads of queries for {self.groups} of keys", expected="a multiple")
        self.query, self.key, self.value = self._three()
        self.batch, _, self.length, self.size = self.query.shape
        self.lengths = node[5]
        self.total = self._largest_total()
        self.past = self._past_lengths()
        self.drops = self._drops_positions()

    def outputs(self) -> list[Expr | None]:
        """The result, and the updated key and value caches."""
        node = self.node
        query, key = self._normalised(self.query, 14), self._normalised(self.key, 15)
        if node.attr_bool("do_rotary", False):
            query, key = self._rotated(query, key)
        forms = self._cache_form("k", cache=3, scale=12), self._cache_form("v", cache=4, scale=13)
        new = forms[0].quantized(key), forms[1].quantized(self.value)
        if self.drops:
            window = _WindowedCache(self)
            whole = [window.staged(x, index) for index, x in enumerate(new, 3)]
            present, bias = [window.latest(x) for x in whole], window.bias()
        else:
            present = [self._cached(x, index) for index, x in enumerate(new, 3)]
            whole, bias = [self._in_use(x) for x in present], self.bias(self.total)
        sink = node.get(11)
        if sink is None and node.attr_int("smooth_softmax", -1) > 0:
            sink = op.zeros((self.heads,), str(query.dtype))
        kind, cap = str(query.dtype), node.attr_float("softcap", 0.0)
        keys, values = [form.values(x, kind) for form, x in zip(forms, whole, strict=True)]
        result, _ = attend(query, keys, values, scale_of(node, query), bias, cap, sink)
        return [merged_heads(result), *present]

    def _cache_form(self, name: str, *, cache: int, scale: int) -> _CacheForm:
        """The storage of the key ("k") or value ("v") cache; `cache` and `scale` are the inputs that have them."""
        node = self.node
        kind = node.attr_choice(f"{name}_quant_type", ("NONE", "PER_TENSOR", "PER_CHANNEL"), "NONE")
        if kind == "NONE":
            require_absent(node, scale, "the scale of a cache that is not quantized")
            return _CacheForm()
        bits = node.attr_int("kv_cache_bit_width", 8)
        if bits not in (4, 8):
            raise node.error(f"values of {bits} bits (kv_cache_bit_width)", expected="4 or 8")
        if bits == 4 and (not isinstance(self.size, int) or self.size % 2):
            raise node.error(f"two channels in a byte of heads of {self.size}", expected="an even size")
        shape = (1, 1, 1, 1) if kind == "PER_TENSOR" else (1, self.groups, 1, self.size)
        stored = str(node[cache].dtype) if node.get(cache) is not None else ""
        return _CacheForm(reshape_to(node[scale], shape), bits, stored if stored.startswith("float8") else "")

    def _refuse_other_forms(self) -> None:
        node = self.node
        if node.attr_int("qk_output", 0) or node.wants(3):
            raise node.unsupported("the scores as an output (qk_output)", expected="0")
        node.attrs.ignore(*_DEPENDENT)

    def _drops_positions(self) -> bool:
        """Does the cache hold the latest positions only?"""
        node = self.node
        if not node.attr_bool("sliding_window_cache", False):
            return False
        if node.attr_int("local_window_size", -1) < 1 or node.get(3) is None or node.get(10) is not None:
            raise node.unsupported("sliding_window_cache=1 without a window or a past, or with a bias (input 10)")
        return not node.takes_whole_caches

    def _three(self) -> tuple[Expr, Expr, Expr]:
        """Q, K and V as [batch, heads, length, size]."""
        node = self.node
        require_rank(node, 0, 3, 3)
        if node.get(1) is not None:
            parts = [node[0], node[1], node[2]]
        else:
            width, count = node.type(0).shape[-1], self.heads + 2 * self.groups
            if not isinstance(width, int) or node.rank(0) != 3 or width % count:
                raise node.error(f"packed heads {node.type(0)}", expected=f"{count} heads side by side")
            size = width // count
            parts = columns(node[0], (self.heads * size, self.groups * size, self.groups * size))
        counts = (self.heads, self.groups, self.groups)
        query, key, value = [split_heads(node, x, n, "heads of") for x, n in zip(parts, counts, strict=True)]
        return query, key, value

    def _largest_total(self) -> Dim:
        """The largest number of keys, past and new, of any row."""
        past = self.node.get(3)
        if past is None or past.shape[2] == 0:
            return self.length
        return self.node.sizes(6, "the largest number of keys")[0]

    def _past_lengths(self) -> Expr:
        """The number of cached positions per row: 0 in the prefill phase, when all keys are new."""
        node = self.node
        zero, one = number(0, self.lengths), number(1, self.lengths)
        if node.get(3) is None:
            return op.zeros((self.batch,), str(self.lengths.dtype))
        new = op.size_tensor((self.length,), (), str(self.lengths.dtype))
        past = op.maximum(op.subtract(op.add(self.lengths, one), new), zero)
        return op.where(op.equal(reshape_to(node[6], ()), op.cast(new, node.dtype(6))), zero, past)

    def _normalised(self, x: Expr, index: int) -> Expr:
        """RMS normalisation of each head, if there is a scale."""
        if self.node.get(index) is None:
            return x
        return rms_normalized(x, self.node[index], 3, self.node.attr_float("qk_norm_epsilon", 1e-6))[0]

    def _rotated(self, query: Expr, key: Expr) -> tuple[Expr, Expr]:
        node = self.node
        steps = op.expand_dims(op.arange(0, self.length, 1, str(self.past.dtype)), 0)
        positions = node[9] if node.get(9) is not None else op.add(op.expand_dims(self.past, 1), steps)
        angles = _angles(node, positions, (7, 8))
        require_rank(node, 7, 2, 2)
        pairs, interleaved = node.type(7).shape[1], node.attr_bool("rotary_interleaved", False)
        if not isinstance(pairs, int):
            raise node.value_needed(f"the cosines are {node.type(7)}, and their columns have to be known", node[7])
        rotary_size = 2 * pairs
        if not isinstance(self.size, int) or rotary_size > self.size:
            raise node.error(f"{rotary_size} channels of {self.size} rotated", expected="at most those of a head")
        flat = [rotated(transposed(x, (0, 2, 1, 3)), *angles, rotary_size, interleaved) for x in (query, key)]
        return transposed(flat[0], (0, 2, 1, 3)), transposed(flat[1], (0, 2, 1, 3))

    def _cached(self, new: Expr, index: int) -> Expr:
        """Append each row of `new` at its past length, zero-padded."""
        past = self.node.get(index)
        if past is None:
            return new
        return new if past.shape[2] == 0 else op.cache.update(past, new, self.past, self.total)

    def _in_use(self, cache: Expr) -> Expr:
        """The valid part of the cache, whose capacity may be larger."""
        if dims_equal(cache.shape[2], self.total):
            return cache
        return op.strided_slice(cache, (0,), (self.total,), axes=(2,))

    def bias(self, total: Dim, first: Expr | None = None) -> Expr:
        """Additive mask plus the bias input: [batch, 1 or heads, length, total].

        `first` is the position of key 0 in each row of the batch, int64 [batch, 1, 1, 1]; 0 by default.
        """
        node = self.node
        keys = op.arange(0, total, 1, "int64")
        keys = keys if first is None else op.add(first, keys)
        begin = reshape_to(op.cast(self.past, "int64"), (self.batch, 1, 1, 1))
        at = op.add(begin, op.expand_dims(op.arange(0, self.length, 1, "int64"), 1))
        if node.attr_bool("causal", True):
            allowed = op.less_equal(keys, at)
        else:
            lengths = reshape_to(op.cast(self.lengths, "int64"), (self.batch, 1, 1, 1))
            allowed = op.less_equal(keys, lengths)
        window = node.attr_int("local_window_size", -1)
        if window > 0:
            allowed = op.logical_and(allowed, op.greater(keys, op.subtract(at, number(window, at))))
        bias = op.where(allowed, float_const(0.0, self.query), float_const(-math.inf, self.query))
        passed = node.get(10)
        if passed is None:
            return bias
        have = passed.shape[3]
        if not dims_equal(have, total):  # the cache's capacity may exceed its length
            rest = add_sizes(total, -have) if isinstance(have, int) else None
            if not isinstance(rest, int) or rest < 0:
                raise node.error(f"a bias of {passed.ty} for {total} keys")
            passed = op.nn.pad(passed, [(0, 0), (0, 0), (0, 0), (0, rest)])
        return op.add(bias, op.cast(passed, bias.dtype))


class _WindowedCache:
    """A cache of C rows that holds the latest of T positions, in order from row 0 on, W (the window) or more of them.

    Where T exceeds C, C - W + 1 positions are dropped at once, as often as it takes.
    """

    def __init__(self, attention: GroupedAttention) -> None:
        self.attention = attention
        node, past = attention.node, attention.node[3]
        self.room, self.window = past.shape[2], node.attr_int("local_window_size")
        at_least = f"a cache of at least {self.window} positions"
        if isinstance(self.room, int) and self.room < self.window:
            raise node.error(f"a cache of {self.room} positions", expected=at_least)
        node.check_equal(smaller(self.room, self.window), self.window, at_least)
        self.past = op.cast(attention.past, "int64")
        new = op.size_tensor((attention.length,), ())
        self.held = self._held(self.past)
        self.dropped = op.subtract(op.add(self.held, new), self._held(op.add(self.past, new)))

    def _held(self, positions: Expr) -> Expr:
        """How many of the positions [batch] the cache holds."""
        room = op.size_tensor((self.room,), ())
        step = op.maximum(op.add(op.subtract(room, number(self.window, room)), number(1, room)), number(1, room))
        excess = op.maximum(op.subtract(positions, room), number(0, room))
        steps = op.floor_divide(op.add(excess, op.subtract(step, number(1, step))), step)
        return op.subtract(positions, op.multiply(step, steps))

    def staged(self, new: Expr, index: int) -> Expr:
        """The rows of the cache in input `index` and `new` ones behind them."""
        rows = add_sizes(self.room, self.attention.length)
        return op.cache.update(self.attention.node[index], new, self.held, rows)

    def latest(self, staged: Expr) -> Expr:
        """The rows that the cache holds after the step, of `staged` ones."""
        at = op.add(op.expand_dims(self.dropped, 1), op.expand_dims(op.arange(0, self.room, 1, "int64"), 0))
        return op.take(staged, at, axis=2, batch_dims=1, mode="clip")

    def bias(self) -> Expr:
        """The mask of `staged` rows."""
        first = reshape_to(op.subtract(self.past, self.held), (self.attention.batch, 1, 1, 1))
        return self.attention.bias(add_sizes(self.room, self.attention.length), first)
