"""RecognizeBlockWeights: dense layers whose weights are dequantised in blocks keep them packed."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.indexing import Take
from relayc.relay.op.nn.dense import Dense
from relayc.relay.op.nn.dense_bits import dense_bits
from relayc.relay.op.qnn import DequantizeBlocks
from relayc.relay.stored import fetched
from relayc.relay.transform.builders import before_transposition
from relayc.relay.transform.function_pass import RewritePass

__all__ = ["RecognizeBlockWeights"]

Array = np.ndarray[Any, Any]
_WORD_CODES = 8
"""Blocks are whole words of codes."""


class RecognizeBlockWeights(RewritePass):
    """`nn.dense` with constant weights behind `qnn.dequantize_blocks`, transposed or not, becomes `nn.dense_bits`.

    Blocks lie along the reduction and are multiples of 8. Rows taken of a table are dequantised once they are taken.
    """

    opt_level: ClassVar[int] = 0

    def rewrite(self, call: Call) -> Expr:
        if isinstance(call.op, Take):
            return _taken(call, call.op)
        if not isinstance(call.op, Dense) or call.dtype != call.args[0].dtype:
            return call
        made, is_transposed = call.args[1], False
        while (before := before_transposition(made)) is not None:
            made, is_transposed = before, not is_transposed
        if not isinstance(made, Call) or not isinstance(made.op, DequantizeBlocks):
            return call
        along = made.op.axis == (0 if is_transposed else 1)
        if not along or not all(isinstance(a, Constant) for a in made.args):
            return call
        values = [fetched(a) for a in made.args if isinstance(a, Constant)]
        codes, scales, zeros = [x.T if is_transposed else x for x in values]
        blocks = scales.shape[1]
        block = made.op.block if blocks > 1 else -(-codes.shape[1] // _WORD_CODES) * _WORD_CODES
        if block % _WORD_CODES:
            return call
        bits = made.args[0].dtype.bits
        packed = _packed(_unsigned(codes, bits), blocks * block, bits)
        return dense_bits(call.args[0], packed, np.ascontiguousarray(scales), _unsigned(zeros, bits), bits)


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
    """take(dequantize_blocks(table), i) = dequantize_blocks(take(table, i)): rows, with blocks along the last axis."""
    made, indices = call.args
    if not isinstance(made, Call) or not isinstance(made.op, DequantizeBlocks):
        return call
    rank = len(made.shape)
    if op.axis not in (0, -rank) or rank < 2 or made.op.axis % rank != rank - 1:
        return call
    rows = [op(a, indices, span=call.span) for a in made.args]
    return made.op.replace(axis=len(call.shape) - 1)(*rows, span=made.span)
