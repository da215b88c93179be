"""Transposition in registers: a square of vectors is loaded by rows, turned by shuffles, and used by columns.

Where an output's vectors lie across the memory of an input, each vector would take as many loads as it has lanes. A
square tile of the input, as many rows as a vector has lanes, is loaded by whole vectors instead. Shuffles within
lanes of 128 bits turn blocks (4 x 4 elements of 4 bytes, 16 x 16 bytes), then shuffles of whole 128-bit lanes put the
blocks in place: log2(lanes) for each vector, of the kinds that AVX2, AVX-512 and NEON have one instruction for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import te
from te.tir import Buffer, BufferLoad, BufferStore, LetStmt, PrimExpr, Ramp, Shuffle, Stmt, Var, const, seq
from topi.cpu.tiling import vector_lanes

if TYPE_CHECKING:
    from backend.target import Target
    from te.dtype import DType

__all__ = ["square_sides", "transpose_in_registers", "turn", "turned"]

_BLOCK_BYTES = 16
"""A 128-bit lane, within which any shuffle is one instruction."""
_SMALLEST_SIDE = 4


def square_sides(target: Target, dtype: DType) -> list[int]:
    """Sides of the squares of `dtype` that are turned in registers, longest first; none for types that aren't.

    A square fills half of the registers, or takes blocks of 128 bits where these are more: of bytes.
    """
    if dtype.bits % 8 or (dtype.is_float and dtype.bits == 8):  # others are not held as they are stored
        return []
    most = min(vector_lanes(target, dtype.nbytes), max(target.vector_registers // 2, _BLOCK_BYTES // dtype.nbytes))
    return [1 << p for p in range(most.bit_length() - 1, 0, -1) if 1 << p >= min(_SMALLEST_SIDE, most)]


def turned(rows: Sequence[PrimExpr]) -> tuple[list[tuple[Var, PrimExpr]], list[PrimExpr]]:
    """The columns of a square of n = 2, 4, 8... vectors of n lanes each, and what is to be defined for them."""
    n = len(rows)
    block = min(n, _BLOCK_BYTES // rows[0].dtype.element.nbytes)
    definitions: list[tuple[Var, PrimExpr]] = []

    def shuffle(a: PrimExpr, b: PrimExpr, indices: Sequence[int]) -> Var:
        value = Shuffle((a, b), tuple(indices))
        variable = Var("turned", value.dtype)
        definitions.append((variable, value))
        return variable

    halves = [range(first, first + block // 2) for first in (0, block // 2)]
    interleaved = [[s + i + other for s in range(0, n, block) for i in half for other in (0, n)] for half in halves]
    blocks: list[Sequence[PrimExpr]] = []
    for g in range(0, n, block):
        square: Sequence[PrimExpr] = rows[g : g + block]
        for _ in range(block.bit_length() - 1):  # each moves a bit of the row's number into the column's and back
            pairs = zip(square[: block // 2], square[block // 2 :], strict=True)
            square = [shuffle(a, b, picks) for a, b in pairs for picks in interleaved]
        blocks.append(square)
    # blocks[g][k]: in its 128-bit lane l, column l * block + k of rows g * block ...
    lanes = n // block
    distance = 1
    while distance < lanes:
        for g in [g for g in range(lanes) if not g & distance]:
            keep, take = blocks[g], blocks[g | distance]
            pick = [(i, (i // block) & distance) for i in range(n)]
            a = [n + i - distance * block if odd else i for i, odd in pick]
            b = [n + i if odd else i + distance * block for i, odd in pick]
            blocks[g] = [shuffle(x, y, a) for x, y in zip(keep, take, strict=True)]
            blocks[g | distance] = [shuffle(x, y, b) for x, y in zip(keep, take, strict=True)]
        distance *= 2
    return definitions, [blocks[c // block][c % block] for c in range(n)]


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
