"""RecognizeBlockWeights: dense layers whose weights are dequantised in blocks keep them packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.indexing import Take
from relayc.relay.op.nn.dense import Dense
from relayc.relay.op.nn.dense_bits import dense_bits
from relayc.relay.op.qnn import Dequantize, DequantizeBlocks
from relayc.relay.sizes import product
from relayc.relay.stored import fetched
from relayc.relay.transform.builders import before_transposition, static_shape
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
    are taken.
    """

    opt_level: ClassVar[int] = 0

    def rewrite(self, call: Call) -> Expr:
        if isinstance(call.op, Take):
            return _taken(call, call.op)
        if not isinstance(call.op, Dense) or call.dtype != call.args[0].dtype:
            return call
        found = _weights(call.args[1], call.shape[:-1])
        if found is None:
            return call
        blocks, bits = found.scales.shape[1], found.bits
        block = found.block if blocks > 1 else -(-found.codes.shape[1] // _WORD_CODES) * _WORD_CODES
        if block % _WORD_CODES:
            return call
        packed = _packed(_unsigned(found.codes, bits), blocks * block, bits)
        return dense_bits(call.args[0], packed, found.scales, _unsigned(found.zeros, bits), bits)


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


def _taken(call: Call, op: Take) -> Expr:
    """take(dequantize(table), i) = dequantize(take(table, i)): rows, with blocks along the last axis, or one scale."""
    made, indices = call.args
    rank = len(made.shape)
    if not isinstance(made, Call) or op.axis not in (0, -rank) or rank < 2:
        return call
    if isinstance(made.op, DequantizeBlocks) and made.op.axis % rank == rank - 1:
        rows = [op(a, indices, span=call.span) for a in made.args]
        return made.op.replace(axis=len(call.shape) - 1)(*rows, span=made.span)
    if isinstance(made.op, Dequantize) and not made.args[1].shape:
        return made.op(op(made.args[0], indices, span=call.span), *made.args[1:], span=made.span)
    return call
