"""RecognizeBlockWeights: dense layers whose weights are dequantised in blocks keep them packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.indexing import Take, take
from relayc.relay.op.nn.dense import BatchMatmul, Dense
from relayc.relay.op.nn.dense_bits import dense_bits, routed_bits
from relayc.relay.op.qnn import Dequantize, DequantizeBlocks
from relayc.relay.op.transform import transpose
from relayc.relay.sizes import dims_match, product
from relayc.relay.stored import fetched
from relayc.relay.transform.builders import before_transposition, reshaped, static_shape, swapped_axes, with_last
from relayc.relay.transform.function_pass import RewritePass
from relayc.te.tir import Dim

__all__ = ["RecognizeBlockWeights"]

Array = np.ndarray[Any, Any]
_BYTE = 8
_WORD_CODES = 8
"""Blocks are whole words of codes."""
_MANY_ROWS = 32
"""Rows of data from which on a product takes longer to compute than its weights to be read, as floats too, whose tiles
are wider: for 768 columns and 8,192 outputs floats take 1.9 times the time with one row, 2.7 with 4, as long with 16,
0.77 with 64 (AVX-512)."""


class RecognizeBlockWeights(RewritePass):
    """`nn.dense` of floats with constant weights behind `qnn.dequantize_blocks`, or 8-bit ones behind `qnn.dequantize`,
    becomes `nn.dense_bits`; transposed weights too.

    Blocks lie along the reduction and are multiples of 8; weights with one scale, or one for each output, are one
    block, and stay packed for data of few rows or an unknown number. Rows taken of a table are dequantised once they
    are taken. Matrices taken of several (weights of experts), dequantised in blocks, stay packed in the product that
    reads them; so do all of them in a product of as many.
    """

    opt_level: ClassVar[int] = 0

    def rewrite(self, call: Call) -> Expr:
        if isinstance(call.op, Take):
            return _taken(call, call.op)
        if not isinstance(call.op, Dense | BatchMatmul) or call.dtype != call.args[0].dtype:
            return call
        found = _weights(call.args[1], call.shape[:-1]) if isinstance(call.op, Dense) else None
        if found is None:
            return _of_experts(call, call.op)
        blocks, bits = found.scales.shape[1], found.bits
        block = found.block if blocks > 1 else -(-found.codes.shape[1] // _WORD_CODES) * _WORD_CODES
        if block % _WORD_CODES:
            return call
        packed = _packed(_unsigned(found.codes, bits), blocks * block, bits)
        data = with_last(call.args[0], found.codes.shape[1])
        return dense_bits(data, packed, found.scales, _unsigned(found.zeros, bits), bits)


class _Weights(NamedTuple):
    """Codes (N, K), and scales and zero points (N, blocks) for each `block` of K."""

    codes: Array
    scales: Array
    zeros: Array
    block: int
    bits: int


def _weights(e: Expr, row_dims: Sequence[Dim]) -> _Weights | None:
    """Dequantised constant weights (N, K) for data of these leading dimensions; None for other expressions, and if they
    are better floats."""
    made, is_transposed = _before_transpositions(e)
    if not isinstance(made, Call) or not isinstance(made.op, Dequantize | DequantizeBlocks):
        return None
    codes, is_stored_transposed = _before_transpositions(made.args[0])
    if not all(isinstance(a, Constant) for a in (codes, *made.args[1:])):
        return None
    parameters = [fetched(a) for a in made.args[1:] if isinstance(a, Constant)]
    bits, depth_axis = made.args[0].dtype.bits, 0 if is_transposed else 1
    if isinstance(made.op, DequantizeBlocks):
        if made.op.axis % 2 != depth_axis:
            return None
        scales, zeros = [x.T if is_transposed else x for x in parameters]
        block = made.op.block
    else:
        scales, zeros = parameters
        rows = product(row_dims)
        if bits != _BYTE or (isinstance(rows, int) and rows >= _MANY_ROWS):
            return None
        if (scales.ndim and made.op.axis % 2 == depth_axis) or not np.isfinite(scales).all():
            return None
        outputs = static_shape(made.shape)[1 - depth_axis]
        scales, zeros = [np.broadcast_to(x.reshape(-1, 1), (outputs, 1)) for x in (scales, zeros)]
        block = 0
    assert isinstance(codes, Constant)
    values = fetched(codes).T if is_transposed != is_stored_transposed else fetched(codes)
    return _Weights(values, np.ascontiguousarray(scales), zeros, block, bits)


def _of_experts(call: Call, op: Dense | BatchMatmul) -> Expr:
    """x times matrices dequantised in blocks that are taken of a constant (experts, N, K), or (experts, K, N)."""
    x, made = call.args
    made, is_transposed = _before_transpositions(made)
    is_transposed = is_transposed != (isinstance(op, Dense) or op.transpose_b)
    if not isinstance(made, Call) or not isinstance(made.op, DequantizeBlocks) or getattr(op, "transpose_a", False):
        return call
    parts, chosen = _taken_parts(made)
    rank = len(made.shape)
    depth_axis = rank - 1 if is_transposed else rank - 2
    if chosen is None or parts[0].ndim != 3 or made.op.axis % rank != depth_axis or made.op.block % _WORD_CODES:
        return call
    lead = chosen.shape
    same = len(x.shape) == len(lead) + 2 and all(map(dims_match, x.shape[:-2], lead))
    if not same and lead:
        return call
    bits, block = made.args[0].dtype.bits, made.op.block
    codes, scales, zeros = parts if is_transposed else [part.swapaxes(1, 2) for part in parts]
    experts, units, blocks = scales.shape
    columns = _unsigned(codes, bits).reshape(experts * units, -1)
    packed = _packed(columns, blocks * block, bits).reshape(experts, units, -1)
    groups, rows = product(lead), product(call.shape[len(lead) : -1])
    data = reshaped(x, (groups, rows, columns.shape[1]))
    result = routed_bits(data, reshaped(chosen, (groups,)), packed, scales, _unsigned(zeros, bits), bits)
    return reshaped(result, call.shape)


def _taken_parts(made: Call) -> tuple[list[Array], Expr | None]:
    """The constants of a dequantisation, and which of their first dimension it is of; None if not of constants."""
    args = made.args
    if all(isinstance(a, Call) and isinstance(a.op, Take) and a.op.axis % len(a.args[0].shape) == 0 for a in args):
        takes = [a for a in args if isinstance(a, Call)]
        tables, at, (op, *others) = [a.args[0] for a in takes], takes[0].args[1], [a.op for a in takes]
        if any(a.args[1] is not at for a in takes) or any(other != op for other in others):
            return [], None
        count = tables[0].shape[0]
        assert isinstance(op, Take)
        if op.batch_dims or not isinstance(count, int):
            return [], None
        if op.mode != "fast":
            at = take(Constant(np.arange(count)), at, axis=0, mode=op.mode)
    else:
        tables, count = list(args), made.shape[0]
        at = Constant(np.arange(count)) if isinstance(count, int) else None
    constants = [fetched(table) for table in tables if isinstance(table, Constant)]
    return constants, at if len(constants) == len(args) else None


def _before_transpositions(e: Expr) -> tuple[Expr, bool]:
    """The expression whose last two dimensions `e` exchanges any number of times, and whether that is odd."""
    is_transposed = False
    while (before := before_transposition(e)) is not None:
        e, is_transposed = before, not is_transposed
    return e, is_transposed


def _unsigned(codes: Array, bits: int) -> Array:
    """Codes as uint8; those of signed types are moved by half of their range."""
    if codes.dtype.name in ("uint8", "uint4"):
        return codes.astype(np.uint8)
    return (codes.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)


def _packed(codes: Array, depth: int, bits: int) -> Array:
    """Codes (N, K), padded to `depth`, as bytes (N, depth * bits / 8), the first in the low bits."""
    padded = np.pad(codes, [(0, 0), (0, depth - codes.shape[1])])
    return padded if bits == 8 else padded[:, ::2] | padded[:, 1::2] << np.uint8(4)


def _part(op: Take, table: Expr, indices: Expr) -> Expr:
    """Rows of a table; those of a constant at constant positions are one."""
    if isinstance(table, Constant) and isinstance(indices, Constant):
        return Constant(op.reference(fetched(table), fetched(indices)))
    return op(table, indices)


def _taken(call: Call, op: Take) -> Expr:
    """take(dequantize(table), i) = dequantize(take(table, i)): slices, with blocks along another axis, or one scale."""
    table, indices = call.args
    rank = len(table.shape)
    axis = op.axis % max(rank, 1)
    made, is_transposed = _before_transpositions(table) if axis < rank - 2 else (table, False)
    if not isinstance(made, Call) or rank < 2 or op.batch_dims:
        return call
    if isinstance(made.op, DequantizeBlocks) and made.op.axis % rank != axis:
        rows, blocked = [_part(op, a, indices) for a in made.args], made.op.axis % rank
        moved = len(call.shape) - rank if blocked > axis else 0
        result = made.op.replace(axis=blocked + moved)(*rows, span=made.span)
        return transpose(result, swapped_axes(result)) if is_transposed else result
    if is_transposed:
        return call
    if isinstance(made.op, Dequantize) and not made.args[1].shape:
        return made.op(op(made.args[0], indices, span=call.span), *made.args[1:], span=made.span)
    return call
