"""Transposition in registers: a square of vectors is loaded by rows, turned by shuffles, and used by columns.

Where an output's vectors lie across the memory of an input, each vector would take as many loads as it has lanes. A
square tile of the input, as many rows as a vector has lanes, is loaded by whole vectors instead. Shuffles within
lanes of 128 bits turn blocks of 4 x 4, then shuffles of whole 128-bit lanes put the blocks in place: log2(lanes) for
each vector, of the kinds that AVX2, AVX-512 and NEON have one instruction for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import te
from te.tir import Buffer, BufferLoad, BufferStore, LetStmt, PrimExpr, Ramp, Shuffle, Stmt, Var, const, seq

__all__ = ["transpose_in_registers", "turn", "turned"]

_BLOCK = 4
"""Elements of a 128-bit lane: elements are of 4 bytes."""


def turned(rows: Sequence[PrimExpr]) -> tuple[list[tuple[Var, PrimExpr]], list[PrimExpr]]:
    """The columns of a square of n = 4, 8, 16... vectors of n lanes each, and what is to be defined for them."""
    n = len(rows)
    definitions: list[tuple[Var, PrimExpr]] = []

    def shuffle(a: PrimExpr, b: PrimExpr, indices: Sequence[int]) -> Var:
        value = Shuffle((a, b), tuple(indices))
        variable = Var("turned", value.dtype)
        definitions.append((variable, value))
        return variable

    starts = range(0, n, _BLOCK)
    low = [s + i + half for s in starts for i in (0, 1) for half in (0, n)]
    high = [s + i + half for s in starts for i in (2, 3) for half in (0, n)]
    first = [s + i + half for s in starts for half in (0, n) for i in (0, 1)]
    second = [s + i + half for s in starts for half in (0, n) for i in (2, 3)]
    blocks: list[list[PrimExpr]] = []
    for g in range(0, n, _BLOCK):
        a, b, c, d = rows[g : g + _BLOCK]
        ab, cd = [shuffle(a, b, i) for i in (low, high)], [shuffle(c, d, i) for i in (low, high)]
        blocks.append([shuffle(x, y, i) for x, y in zip(ab, cd, strict=True) for i in (first, second)])
    # blocks[g][k]: in its 128-bit lane l, column 4 l + k of rows 4 g ... 4 g + 3
    lanes = n // _BLOCK
    distance = 1
    while distance < lanes:
        for g in [g for g in range(lanes) if not g & distance]:
            keep, take = blocks[g], blocks[g | distance]
            pick = [(i, (i // _BLOCK) & distance) for i in range(n)]
            a = [n + i - distance * _BLOCK if odd else i for i, odd in pick]
            b = [n + i if odd else i + distance * _BLOCK for i, odd in pick]
            blocks[g] = [shuffle(x, y, a) for x, y in zip(keep, take, strict=True)]
            blocks[g | distance] = [shuffle(x, y, b) for x, y in zip(keep, take, strict=True)]
        distance *= 2
    return definitions, [blocks[c // _BLOCK][c % _BLOCK] for c in range(n)]


@cache
def turn(lanes: int, ndim: int, position: int, dtype: str) -> te.TensorIntrin:
    """T[..., r, c] = source[..., c at `position`, ..., r], both `lanes` long, all other dimensions 1."""
    shape = [lanes if i in (position, ndim - 1) else 1 for i in range(ndim)]
    source = te.placeholder(shape, dtype, name="source")
    rest = [i for i in range(ndim) if i not in (position, ndim - 1)]

    def element(*i: Any) -> PrimExpr:
        at = {position: i[-1], ndim - 1: i[-2], **dict(zip(rest, i, strict=False))}
        return source(*[at[d] for d in range(ndim)])

    tile = te.compute((*[1] * len(rest), lanes, lanes), element, name="turned")

    def emit(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        def index(buffer: Buffer, row: int, axis: int) -> tuple[PrimExpr, ...]:
            last = len(buffer.shape) - 1
            return tuple([Ramp(const(0), const(1), lanes) if i == last else const(row if i == axis else 0)
                          for i in range(last + 1)])  # fmt: skip

        loads = [BufferLoad(inputs[0], index(inputs[0], i, position)) for i in range(lanes)]
        rows = [Var("row", load.dtype) for load in loads]
        definitions, columns = turned(rows)
        body = seq([BufferStore(outputs[0], c, index(outputs[0], i, ndim - 2)) for i, c in enumerate(columns)])
        for variable, value in reversed([*zip(rows, loads, strict=True), *definitions]):
            body = LetStmt(variable, value, body)
        return body

    return te.decl_tensor_intrin(tile.op, emit, "transpose_in_registers")


def transpose_in_registers(
    s: te.Schedule, tensor: te.Tensor, readers: Sequence[te.Operation], position: int, lanes: int
) -> tuple[te.Tensor, te.IterVar]:
    """A copy of `tensor` for `readers` with its dimensions `position` and last as the last two, the other way round.

    Attach it where multiples of `lanes` of both are read. Also returns its loop over squares along `position`.
    """
    ndim = len(tensor.shape)
    rest = [i for i in range(ndim) if i not in (position, ndim - 1)]
    order = (*rest, ndim - 1, position)

    def element(source: te.Tensor, *i: Any) -> PrimExpr:
        at = {position: i[-1], ndim - 1: i[-2], **dict(zip(rest, i, strict=False))}
        return source(*[at[d] for d in range(ndim)])

    shape = [tensor.shape[d] for d in order]
    copy = s.cache_tiled(tensor, "local", readers, shape, element, lambda *i: [i[d] for d in order])
    *_, row, column = s[copy].op.axis
    row_outer, row = s[copy].split(row, factor=lanes)
    outer, inner = s[copy].split(column, factor=lanes)
    s[copy].reorder(row_outer, outer, row, inner)
    s[copy].unroll(outer)
    s[copy].tensorize(row, turn(lanes, ndim, position, str(tensor.dtype)))
    return copy, outer
