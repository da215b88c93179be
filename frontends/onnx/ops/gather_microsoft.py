"""Gathers of com.microsoft, from quantised tables."""

from __future__ import annotations

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import MICROSOFT, float_const, require_rank, reshape_to
from relayc.frontends.onnx.ops.linear_microsoft import unpacked, unpacked_zeros
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.sizes import product
from relayc.relay.stored import fetched
from relayc.te.tir import Dim


@converter("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(node: OnnxNode) -> Expr:
    """Rows of a block-quantised table; out-of-range indices give zeros.

    Inputs: quantised table, indices, scales, zero points.
    """
    for index in (0, 2):
        require_rank(node, index, 2)
    rank, kind, size = node.rank(0), str(node.dtype(0)), node.attr_int("block_size", 128)
    axes = node.axis(node.attr_int("gather_axis", 0), rank), node.axis(node.attr_int("quantize_axis", 1), rank)
    if axes != (0, rank - 1) or kind not in ("uint8", "uint4", "int4") or size < 1:
        problem = f"rows along axis {axes[0]} of {kind} in blocks of {size} along axis {axes[1]}"
        raise node.unsupported(problem, expected="the first axis of uint8, uint4 or int4, blocks along the last")
    bits = node.attr_int("bits", 4) if kind == "uint8" else 8  # other types hold one value per element
    if bits not in (2, 4, 8):
        raise node.unsupported(f"values of {bits} bits", expected="2, 4 or 8")
    packed = _packed_rows(node, bits, size) if kind == "uint8" and bits > 2 else None
    if packed is not None:
        return op.where(_inside(node, rank), packed, float_const(0.0, packed))
    scales = _rows(node, 2)
    values = op.cast(_fields(_rows(node, 0), bits), scales.dtype)
    depth, blocks = values.shape[-1], scales.shape[-1]
    if not isinstance(depth, int) or not isinstance(blocks, int) or not (blocks - 1) * size < depth <= blocks * size:
        raise node.error(f"{blocks} scales for {depth} values in blocks of {size}")
    middle = float_const(float(1 << (bits - 1)) if kind == "uint8" else 0.0, scales)
    zeros: Expr = middle
    if node.get(3) is not None:
        quantized = op.cast(_fields(_rows(node, 3), bits), scales.dtype)
        zeros = _spread(op.strided_slice(quantized, (0,), (blocks,), axes=(len(quantized.shape) - 1,)), size, depth)
    result = op.multiply(op.subtract(values, zeros), _spread(scales, size, depth))
    return op.where(_inside(node, rank), result, float_const(0.0, result))


def _packed_rows(node: OnnxNode, bits: int, size: int) -> Expr | None:
    """Rows of a constant matrix in the layout of MatMulNBits, with which it may share its weights; None for others."""
    table, scales, zeros = node[0], node[2], node.get(3)
    if not isinstance(table, Constant) or not isinstance(scales, Constant) or len(table.shape) != 2 or size % 8:
        return None
    if not (zeros is None or isinstance(zeros, Constant)):
        return None
    (rows, nbytes), blocks = table.ty.static_shape, scales.ty.static_shape[1]
    if nbytes * 8 != blocks * size * bits or scales.shape[0] != rows:
        return None
    points = None if zeros is None else unpacked_zeros(zeros.data, (rows, blocks), bits)
    return op.nn.take_bits(fetched(table), fetched(scales), points, bits, node[1], str(scales.dtype), mode="numpy")


def _rows(node: OnnxNode, index: int) -> Expr:
    return op.take(node[index], node[1], axis=0, mode="numpy")


def _fields(x: Expr, bits: int) -> Expr:
    """Unpack the values in bytes along the last axis."""
    if bits == 8:
        return x
    fields = unpacked(x, bits)
    lead: tuple[Dim, ...] = tuple(x.shape[:-1])
    return reshape_to(fields, (*lead, product(fields.shape[-2:])))


def _spread(x: Expr, size: int, depth: int) -> Expr:
    """Repeat each element of the last axis over its block."""
    axis = len(x.shape) - 1
    return op.strided_slice(op.repeat(x, size, axis), (0,), (depth,), axes=(axis,))


def _inside(node: OnnxNode, rank: int) -> Expr:
    """Mask of valid (possibly negative) row indices, with trailing axes to broadcast over a row."""
    rows = node.shape(0)[0]
    low, high = (Constant(np.array(v, str(node.dtype(1)))) for v in (-rows, rows))
    inside = op.logical_and(op.greater_equal(node[1], low), op.less(node[1], high))
    return op.expand_dims(inside, node.rank(1), rank - 1)


@converter("ExpandDims", domain=MICROSOFT)
def expand_dims(node: OnnxNode) -> Expr:
    """Inserts an axis of size 1 at input 1."""
    (axis,) = node.constant_ints(1, "the axis")
    return op.expand_dims(node[0], node.axis(axis, node.rank(0) + 1))
