"""Gathers of com.microsoft, from quantised tables."""

from __future__ import annotations

import math

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import MICROSOFT, float_const, require_rank, reshape_to
from relayc.frontends.onnx.ops.linear_microsoft import constant_of, rows_of, unpacked, unpacked_zeros
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.sizes import product
from relayc.te.tir import Dim


@converter("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(node: OnnxNode) -> Expr:
    """Slices of a block-quantised table along any axis; out-of-range indices give zeros.

    Inputs: quantised table, indices, scales, zero points. Blocks may lie along any axis too, the taken one included;
    where a uint8 holds several values, along the last, and slices along the first.
    """
    rank, kind, size = node.rank(0), str(node.dtype(0)), node.attr_int("block_size", 128)
    require_rank(node, 2, rank)
    taken = node.axis(node.attr_int("gather_axis", 0), rank)
    blocked = node.axis(node.attr_int("quantize_axis", 1), rank)
    known = kind in ("uint4", "int4") or (kind == "uint8" and taken == 0 and blocked == rank - 1 > 0)
    if not known or size < 1:
        problem = f"slices along axis {taken} of {kind} in blocks of {size} along axis {blocked}"
        raise node.unsupported(problem, expected="uint4 or int4; or uint8, the first axis and blocks along the last")
    bits = node.attr_int("bits", 4) if kind == "uint8" else 8  # other types hold one value per element
    if bits not in (2, 4, 8):
        raise node.unsupported(f"values of {bits} bits", expected="2, 4 or 8")
    packed = _packed_rows(node, bits, size) if kind == "uint8" and bits > 2 else None
    if packed is not None:
        return op.where(_inside(node, rank, taken), packed, float_const(0.0, packed))
    parameters = _of_blocks(node, taken, size) if taken == blocked else node[1]
    scales = op.take(node[2], parameters, axis=taken, mode="numpy")
    values = op.cast(_fields(op.take(node[0], node[1], axis=taken, mode="numpy"), bits), scales.dtype)
    axis = blocked + (node.rank(1) - 1 if blocked > taken else 0)
    depth = node.shape(0)[blocked] if taken == blocked else values.shape[axis]
    blocks = node.shape(2)[blocked]
    if not isinstance(depth, int) or not isinstance(blocks, int) or not (blocks - 1) * size < depth <= blocks * size:
        raise node.error(f"{blocks} scales for {depth} values in blocks of {size}")

    def of_values(x: Expr) -> Expr:
        return x if taken == blocked else _spread(x, axis, size, depth)

    zeros: Expr = float_const(float(1 << (bits - 1)) if kind == "uint8" else 0.0, scales)
    if node.get(3) is not None:
        fields = _fields(op.take(node[3], parameters, axis=taken, mode="numpy"), bits)
        if kind == "uint8":
            fields = op.strided_slice(fields, (0,), (blocks,), axes=(axis,))
        zeros = of_values(op.cast(fields, scales.dtype))
    result = op.multiply(op.subtract(values, zeros), of_values(scales))
    return op.where(_inside(node, rank, taken), result, float_const(0.0, result))


def _packed_rows(node: OnnxNode, bits: int, size: int) -> Expr | None:
    """Slices of a constant in the layout of MatMulNBits, with which it may share its weights; None for others.

    Those of more dimensions are rows of their blocks, one after the other.
    """
    *lead, nbytes = node.shape(0)
    table = rows_of(node[0], lead[0]) if isinstance(lead[0], int) else None
    scales, zeros = [constant_of(node.get(index)) for index in (2, 3)]
    if table is None or scales is None or (zeros is None and node.get(3) is not None) or size % 8:
        return None
    *others, blocks = scales.shape
    if nbytes * 8 != blocks * size * bits or others != lead:
        return None
    rows, lines = lead[0], math.prod(lead[1:])
    points = None if zeros is None else unpacked_zeros(zeros, (rows * lines, blocks), bits).reshape(rows, -1)
    result = op.nn.take_bits(table, scales.reshape(rows, -1), points, bits, node[1], str(scales.dtype), mode="numpy")
    return reshape_to(result, (*node[1].shape, *lead[1:], blocks * size))


def _of_blocks(node: OnnxNode, axis: int, size: int) -> Expr:
    """The block that each index is in, along the axis that is taken from; invalid ones are in any."""
    zero, count = (Constant(np.array(v, str(node.dtype(1)))) for v in (0, node.shape(0)[axis]))
    from_start = op.where(op.less(node[1], zero), op.add(node[1], count), node[1])
    return op.floor_divide(from_start, Constant(np.array(size, str(node.dtype(1)))))


def _fields(x: Expr, bits: int) -> Expr:
    """Unpack the values in bytes along the last axis."""
    if bits == 8:
        return x
    fields = unpacked(x, bits)
    lead: tuple[Dim, ...] = tuple(x.shape[:-1])
    return reshape_to(fields, (*lead, product(fields.shape[-2:])))


def _spread(x: Expr, axis: int, size: int, depth: int) -> Expr:
    """Repeat each element of an axis over its block."""
    return op.strided_slice(op.repeat(x, size, axis), (0,), (depth,), axes=(axis,))


def _inside(node: OnnxNode, rank: int, axis: int) -> Expr:
    """Mask of valid (possibly negative) indices, with trailing axes to broadcast over a slice."""
    rows = node.shape(0)[axis]
    low, high = (Constant(np.array(v, str(node.dtype(1)))) for v in (-rows, rows))
    inside = op.logical_and(op.greater_equal(node[1], low), op.less(node[1], high))
    return op.expand_dims(inside, node.rank(1), rank - 1 - axis)


@converter("ExpandDims", domain=MICROSOFT)
def expand_dims(node: OnnxNode) -> Expr:
    """Inserts an axis of size 1 at input 1."""
    (axis,) = node.constant_ints(1, "the axis")
    return op.expand_dims(node[0], node.axis(axis, node.rank(0) + 1))
