"""Mixture of experts (MoE) of com.microsoft: each token passes through the top-k experts of a router."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import MICROSOFT, counted, float_const, require_rank, reshape_to, transposed
from relayc.frontends.onnx.ops.linear_microsoft import constant_of, in_4_bits, unpacked, unpacked_zeros
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, const
from relayc.relay.sizes import add_sizes, dims_match, floor_divide, normal, product
from relayc.te.tir import Dim, as_dim
from relayc.te.tir.ops import minimum

Array = np.ndarray[Any, Any]

FEW_TOKENS = 16
"""Most tokens for which only the weights of the chosen experts are gathered; also used for a dynamic number."""

MANY_EXPERTS = 3
"""Ratio of experts to chosen ones from which on computing all tokens with all experts is wasteful. (150 tokens, 8 float
experts of 1024 x 1024 and 512, an Emerald Rapids: 2 of them chosen take 21 ms, all 36; 4 chosen 35, all 31.)"""

_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")
_SEPARATE, _INTERLEAVED, _SIDE_BY_SIDE = range(3)
"""Layout of the two halves of SwiGLU, by `swiglu_fusion`."""


class _Packed(NamedTuple):
    """Codes [experts, N, K * bits / 8], scales and zero points [experts, N, blocks]."""

    codes: Array
    scales: Array
    zeros: Array | None
    bits: int


class _Groups(NamedTuple):
    """Rows of tokens in groups of one expert each."""

    tokens: Expr
    """the token of each row [T, rows]; any token where the expert has no more"""
    expert: Expr
    """the expert of each group [T]"""
    places: Expr
    """where in all groups the rows of each token lie, [tokens * chosen]"""

    @staticmethod
    def of(which: Expr, tokens: Dim, chosen: int, experts: int) -> _Groups:
        """The groups for the experts `which` [tokens * chosen] are chosen."""
        count = product((tokens, chosen))
        order = op.argsort(which, dtype="int64")
        rows, groups = _sizes(count, experts)
        if rows == 1:
            owner = op.floor_divide(order, const(chosen, "int64"))
            expert = op.take(which, order, axis=0, mode="fast")
            return _Groups(op.expand_dims(owner, 1), expert, op.argsort(order, dtype="int64"))
        length = op.size_tensor([rows], ())
        one_hot = op.cast(op.equal(op.expand_dims(which, 1), counted(experts)), "int64")
        own = op.sum(one_hot, axis=0)
        of_expert = op.floor_divide(op.add(own, op.subtract(length, const(1, "int64"))), length)
        ends = op.cumsum(of_expert, axis=0)
        shift = op.subtract(op.multiply(op.subtract(ends, of_expert), length), op.subtract(op.cumsum(own, axis=0), own))
        done = op.less_equal(op.expand_dims(ends, 0), op.expand_dims(counted(groups), 1))
        expert = op.minimum(op.sum(op.cast(done, "int64"), axis=1), const(experts - 1, "int64"))
        first = op.subtract(op.multiply(counted(groups), length), op.take(shift, expert, axis=0, mode="fast"))
        row = op.add(op.expand_dims(first, 1), counted(rows))
        last = op.size_tensor([add_sizes(count, -1)], ())
        row = op.maximum(op.minimum(row, last), const(0, "int64"))
        owner = op.floor_divide(op.take(order, row, axis=0, mode="fast"), const(chosen, "int64"))
        places = op.add(op.argsort(order, dtype="int64"), op.take(shift, which, axis=0, mode="fast"))
        return _Groups(owner, expert, places)


_LENGTHS = ((4, 2), (8, 6))
"""Rows of a group, which share the unpacking of weights, from so many rows for each expert on; with fewer, groups are
single rows. (8 of 1024 x 1024, 4 bits, floats, an Emerald Rapids.)"""


def _sizes(rows: Dim, experts: int) -> tuple[Dim, Dim]:
    """The rows of a group, and the number of groups that is enough however `rows` are distributed over experts."""
    chosen: tuple[Dim, Dim] = (1, rows)
    before = chosen
    for longer, each in _LENGTHS:
        these = longer, floor_divide(add_sizes(rows, experts * (longer - 1)), longer)
        many = normal(as_dim(minimum(floor_divide(rows, each * experts), 1)))
        steps = [product((many, add_sizes(new, product((-1, old))))) for new, old in zip(these, before, strict=True)]
        chosen, before = (add_sizes(chosen[0], steps[0]), add_sizes(chosen[1], steps[1])), these
    return chosen


@dataclass(frozen=True)
class _Layer:
    """One layer: weights [experts, columns, depth] and bias [experts, columns].

    Quantized weights are bytes [experts, columns, depth * bits / 8] with scales [experts, columns, blocks], and zero
    points of the same layout, the middle of the range by default.
    """

    weights: Expr
    bias: Expr | None
    scales: Expr | None = None
    zeros: Expr | None = None
    bits: int = 0
    int8_activations: bool = False
    """whether the model lets data be quantised to int8: at accuracy_level 4, and 8-bit blocks at every level"""

    def of_experts(self, x: Expr) -> Expr:
        """Apply every expert to rows x [T, K] or [experts, T, K]: [experts, T, N]."""
        weights = _real(self.weights, self.scales, self.zeros, self.bits, str(x.dtype))
        rows = x if len(x.shape) == 3 else op.expand_dims(x, 0)
        result = op.nn.matmul(rows, transposed(weights, (0, 2, 1)))
        return result if self.bias is None else op.add(result, op.expand_dims(self.bias, 1))

    @cached_property
    def packed(self) -> _Packed | None:
        """Constant weights of 4 and 8 bits, those of 2 bits in 4, in blocks of whole words; None for others."""
        if self.scales is None:
            return None
        codes, scales, zeros = [None if part is None else constant_of(part)
                                for part in (self.weights, self.scales, self.zeros)]  # fmt: skip
        if codes is None or scales is None or (zeros is None and self.zeros is not None):
            return None
        depth = codes.shape[2] * 8 // self.bits
        if depth % (8 * scales.shape[2]):
            return None
        if zeros is not None:
            experts, columns, blocks = scales.shape
            zeros = unpacked_zeros(zeros, (experts * columns, blocks), self.bits).reshape(scales.shape)
        if self.bits != 2:
            return _Packed(codes, scales, zeros, self.bits)
        zeros = np.full(scales.shape, 2, np.uint8) if zeros is None else zeros
        return _Packed(in_4_bits(codes), scales, zeros, 4)

    @property
    def has_groups(self) -> bool:
        """Whether products of groups of rows read the weights of their experts in place: constants, packed or float32.
        """
        return self.packed is not None or (self.scales is None and self.weights.dtype == "float32"
                                           and isinstance(self.weights, Constant))  # fmt: skip

    def of_groups(self, x: Expr, expert: Expr) -> Expr:
        """Apply to each group of rows x [T, rows, K] its expert [T]: [T, rows, N]. The layer `has_groups`."""
        if self.packed is not None:
            result = op.nn.routed_bits(x, expert, *self.packed, int8_activations=self.int8_activations)
        else:
            result = op.nn.batch_matmul(x, op.take(self.weights, expert, axis=0, mode="fast"), transpose_b=True)
        if self.bias is None:
            return result
        return op.add(result, op.expand_dims(op.take(self.bias, expert, axis=0, mode="fast"), 1))

    def of_rows(self, x: Expr, expert: Expr) -> Expr:
        """Apply to each row of x [R, K] its expert [R]: [R, N]. Gathers the weights of these experts only."""
        parts = [None if part is None else op.take(part, expert, axis=0, mode="fast")
                 for part in (self.weights, self.scales, self.zeros, self.bias)]  # fmt: skip
        weights, scales, zeros, bias = parts
        assert weights is not None
        real = _real(weights, scales, zeros, self.bits, str(x.dtype))
        rows = op.nn.batch_matmul(op.expand_dims(x, 1), real, transpose_b=True)
        result = reshape_to(rows, (x.shape[0], self.weights.shape[1]))
        return result if bias is None else op.add(result, bias)


def _real(quantized: Expr, scales: Expr | None, zeros: Expr | None, bits: int, dtype: str) -> Expr:
    """Dequantise weights; floats are unchanged."""
    if scales is None:
        return quantized
    lead = quantized.shape[:-1]
    depth, blocks = product((quantized.shape[-1], 8 // bits)), scales.shape[-1]
    assert isinstance(depth, int) and isinstance(blocks, int)
    form = (*lead, blocks, depth // blocks)
    values = reshape_to(op.cast(unpacked(quantized, bits), dtype), form)
    middle: Expr = const(float(1 << (bits - 1)), dtype)
    if zeros is not None:
        middle = reshape_to(op.cast(unpacked(zeros, bits), dtype), (*lead, product((zeros.shape[-1], 8 // bits))))
        middle = op.expand_dims(op.strided_slice(middle, (0,), (blocks,), axes=(len(lead),)), len(lead) + 1)
    real = op.multiply(op.subtract(values, middle), op.cast(op.expand_dims(scales, len(lead) + 1), dtype))
    return reshape_to(real, (*lead, depth))


@converter("MoE", domain=MICROSOFT)
def moe(node: OnnxNode) -> Expr:
    """Mixture of experts.

    Inputs: x [tokens, K] or [batch, length, K], router scores [tokens, experts], weights and bias of three layers, the
    third for SwiGLU in two products."""
    layers = [None if node.get(i) is None else _Layer(node[i], node.get(i + 1)) for i in (2, 4, 6)]
    return _mixture(node, layers, None)


@converter("QMoE", domain=MICROSOFT)
def q_moe(node: OnnxNode) -> Expr:
    """MoE with quantised weights.

    Inputs: x, router scores, weights, scales and bias of three layers, their zero points, router weights, which replace
    the scores in the weighted sum."""
    kind = node.attr_str("quant_type", "int")
    if kind != "int":
        raise node.unsupported(f"weights of quant_type {kind!r}", expected="'int'")
    if node.attr_int("weights_prepacked", -1) > 0:
        raise node.unsupported("weights laid out for one GPU (weights_prepacked)", expected="0")
    to_int8 = node.attr_int("accuracy_level", 0) == 4
    for index in range(15, 21):
        if node.get(index) is not None:
            raise node.unsupported(f"scales of other quantizations (input {index})", expected="the input left out")
    bits, size = node.attr_int("expert_weight_bits", 4), node.attr_int("block_size", 0)
    layers: list[_Layer | None] = []
    for number, first in enumerate((2, 5, 8)):
        own = node.attr_int(f"fc{number + 1}_expert_weight_bits", 0) or bits
        layers.append(None if node.get(first) is None else
                      _quantized_layer(node, first, 11 + number, own, size, to_int8=to_int8))  # fmt: skip
    return _mixture(node, layers, node.get(14))


def _quantized_layer(node: OnnxNode, first: int, zeros: int, bits: int, size: int, *, to_int8: bool) -> _Layer:
    require_rank(node, first, 3, 3)
    if bits not in (2, 4, 8) or node.dtype(first) != "uint8" or node.get(first + 1) is None:
        raise node.unsupported(f"weights {node.type(first)} of {bits} bits", expected="uint8 of 2, 4 or 8, and scales")
    experts, columns, width = node.shape(first)
    depth = width * 8 // bits
    blocks = -(-depth // size) if size else 1
    scales = node.shape(first + 1)
    if scales not in ((experts, columns), (experts, columns, blocks)) or blocks * size not in (0, depth):
        raise node.error(f"scales {list(scales)} of weights {experts} x {columns} x {depth} in blocks of {size}")
    points = node.get(zeros)
    if points is not None:
        stored = -(-blocks * bits // 8)
        points_shape = node.shape(zeros)
        if size == 0 and bits < 8:
            raise node.unsupported("zero points of whole columns", expected="zero points of blocks")
        if points_shape not in ((experts, columns), (experts, columns, stored)):
            raise node.error(f"zero points {list(points_shape)}", expected=f"{[experts, columns, stored]}")
        points = _laid(points, (experts, columns, stored))
    laid = _laid(node[first + 1], (experts, columns, blocks))
    return _Layer(node[first], node.get(first + 2), laid, points, bits, size > 0 and (to_int8 or bits == 8))


def _laid(x: Expr, shape: tuple[int, ...]) -> Expr:
    """`x` reshaped; a constant stays one."""
    values = constant_of(x)
    return reshape_to(x, shape) if values is None else Constant(values.reshape(shape))


def _mixture(node: OnnxNode, layers: list[_Layer | None], shares: Expr | None) -> Expr:
    require_rank(node, 0, 2, 3)
    require_rank(node, 1, 2, 2)
    expand, contract, gate = layers
    if expand is None or contract is None or min(len(e.weights.shape) for e in (expand, contract, gate or expand)) != 3:
        raise node.error("weights of other ranks than 3, or none", expected="[experts, columns, depth]")
    if node.attr_bool("use_sparse_mixer", False):
        raise node.unsupported("use_sparse_mixer", expected="0")
    shape, chosen = node.type(0).shape, node.attr_int("k", 1)
    experts = node.extent(node[1], 1, "the experts")
    tokens = product(shape[:-1])
    if not 1 <= chosen <= experts or not dims_match(tokens, node.type(1).shape[0]):
        raise node.error(f"{chosen} experts for each of {tokens} tokens, scores {node.type(1)}")
    x = reshape_to(node[0], (tokens, shape[-1]))
    weights, which = _routed(node, chosen, shares)
    activation = _Activation(node, gate is not None)
    if all(layer is None or layer.has_groups for layer in layers):
        groups = _Groups.of(reshape_to(which, (product((tokens, chosen)),)), tokens, chosen, experts)
        rows = op.take(x, groups.tokens, axis=0, mode="fast")
        other = None if gate is None else gate.of_groups(rows, groups.expert)
        hidden = activation(expand.of_groups(rows, groups.expert), other)
        results = contract.of_groups(hidden, groups.expert)
        results = reshape_to(results, (product(results.shape[:2]), results.shape[2]))
        results = op.take(results, reshape_to(groups.places, (tokens, chosen)), axis=0, mode="fast")
        result = op.sum(op.multiply(results, op.expand_dims(weights, 2)), axis=1)
    elif isinstance(tokens, int) and tokens > FEW_TOKENS and experts < MANY_EXPERTS * chosen:
        hidden = activation(expand.of_experts(x), None if gate is None else gate.of_experts(x))
        results = contract.of_experts(hidden)
        share = op.sum(op.multiply(_one_hot(which, experts, str(x.dtype)), op.expand_dims(weights, 2)), axis=1)
        result = op.sum(op.multiply(results, op.expand_dims(transposed(share, (1, 0)), 2)), axis=0)
    else:
        rows = product((tokens, chosen))
        unsorted = reshape_to(which, (rows,))
        order = op.argsort(unsorted, dtype="int64")  # rows of an expert, one after the other, find it in the caches
        expert = op.take(unsorted, order, axis=0, mode="fast")
        repeated = op.take(x, op.floor_divide(order, const(chosen, "int64")), axis=0, mode="fast")
        hidden = activation(expand.of_rows(repeated, expert), None if gate is None else gate.of_rows(repeated, expert))
        results = op.take(contract.of_rows(hidden, expert), op.argsort(order, dtype="int64"), axis=0, mode="fast")
        results = reshape_to(results, (tokens, chosen, contract.weights.shape[1]))
        result = op.sum(op.multiply(results, op.expand_dims(weights, 2)), axis=1)
    return reshape_to(result, (*shape[:-1], contract.weights.shape[1]))


def _routed(node: OnnxNode, chosen: int, shares: Expr | None) -> tuple[Expr, Expr]:
    """Top-k routing: weights and indices of the experts of each token, both [tokens, chosen]."""
    scores = op.cast(node[1], "float32")
    probabilities = op.nn.softmax(scores, axis=1)
    best = op.topk(scores, chosen, 1, is_ascend=False, dtype="int64")
    which = best[1]
    weights = op.gather(probabilities if shares is None else op.cast(shares, "float32"), 1, which)
    if node.attr_bool("normalize_routing_weights", False):
        weights = op.divide(weights, op.sum(weights, axis=1, keepdims=True))
    return op.cast(weights, node.dtype(0)), which


def _one_hot(which: Expr, count: int, dtype: str) -> Expr:
    return op.cast(op.equal(op.expand_dims(which, 2), counted(count)), dtype)


def _fast_gelu(x: Expr) -> Expr:
    return op.nn.gelu(x, approximate=True)


class _Activation:
    """The activation between the layers of an expert."""

    def __init__(self, node: OnnxNode, gated: bool) -> None:
        self.name = node.attr_choice("activation_type", _ACTIVATIONS, "relu")
        self.fusion = node.attr_int("swiglu_fusion", _SEPARATE)
        self.limit = node.attrs.get_float("swiglu_limit")
        self.alpha, self.beta = node.attr_float("activation_alpha", 1.0), node.attr_float("activation_beta", 0.0)
        fused = self.fusion != _SEPARATE
        if self.fusion not in (_SEPARATE, _INTERLEAVED, _SIDE_BY_SIDE) or (fused and gated):
            raise node.error(f"swiglu_fusion {self.fusion}", expected="0, or 1 or 2 without a third layer")
        if self.name == "swiglu" and not fused and not gated:
            raise node.error("SwiGLU of one product", expected="swiglu_fusion 1 or 2, or a third layer")

    def __call__(self, x: Expr, other: Expr | None) -> Expr:
        if self.name == "swiglu":
            left, right = self._halves(x) if other is None else (x, other)
            return self._swiglu(left, right)
        plain = {"relu": op.nn.relu, "gelu": _fast_gelu, "silu": op.nn.silu}
        result = plain[self.name](x) if self.name in plain else x
        return result if other is None else op.multiply(result, other)

    def _halves(self, x: Expr) -> tuple[Expr, Expr]:
        last, width = len(x.shape) - 1, x.shape[-1]
        assert isinstance(width, int)
        if self.fusion == _SIDE_BY_SIDE:
            return self._cut(x, last, 0, width // 2, 1), self._cut(x, last, width // 2, width, 1)
        return self._cut(x, last, 0, width, 2), self._cut(x, last, 1, width, 2)

    def _cut(self, x: Expr, axis: int, begin: Dim, end: Dim, step: int) -> Expr:
        return op.strided_slice(x, (begin,), (end,), (step,), axes=(axis,))

    def _swiglu(self, gate: Expr, linear: Expr) -> Expr:
        if self.limit is not None:
            gate = op.minimum(gate, float_const(self.limit, gate))
            linear = op.clip(linear, -self.limit, self.limit)
        opened = op.multiply(gate, op.sigmoid(op.multiply(gate, float_const(self.alpha, gate))))
        return op.multiply(opened, op.add(linear, float_const(self.beta, linear)))
