"""Horizontal sums of as many vectors as a vector has lanes, into one vector: halves are added by pairs.

A sum of one vector's lanes takes an extraction and an addition for each halving. Here two vectors share them: halves of
both are shuffled into one vector, twice, and added. lanes - 1 such steps of two shuffles and an addition give all sums,
first across lanes of 128 bits, then within them: one instruction for each shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from operator import add

from relayc import te
from relayc.te.tir import (
    And,
    Broadcast,
    Buffer,
    BufferLoad,
    BufferStore,
    PrimExpr,
    Ramp,
    Select,
    Stmt,
    const,
    make_const,
)  # fmt: skip
from relayc.topi.cpu.register_transpose import Bindings

__all__ = ["sum_rows"]

_BLOCK = 4
"""Elements of 4 bytes in a lane of 128 bits."""


@cache
def sum_rows(lanes: int, length: int, ndim: int, dtype: str) -> te.TensorIntrin:
    """T[..., t] = the sum of source[..., t, :] for `lanes` t, a power of two; all other of the `ndim` dimensions 1.

    For elements of 4 bytes. Rows of any `length` but that of a vector are contiguous: whole vectors are read that begin
    where the first row does, since most that begin with rows would straddle two cache lines. A vector in which a row
    ends and another begins is split. Tensorize the loop over t, the reduction inside of it.
    """
    ones = (1,) * (ndim - 1)
    source = te.placeholder((*ones, lanes, length), dtype, name="source")
    k = te.reduce_axis((0, length), name="k")
    sums = te.compute((*ones, lanes), lambda *i: te.sum(source(*i, k), axis=k), name="sums")

    def emit(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        first, bindings = [const(0)] * (ndim - 1), Bindings()

        def piece(at: int, begin: int, end: int) -> PrimExpr:
            """A vector of the line, with zeros in the lanes outside of `begin` to `end`."""
            along = Ramp(const(at % length), const(1), lanes)
            value = BufferLoad(inputs[0], (*first, const(at // length), along))
            if end - begin == lanes:
                return value
            lane, zero = Ramp(const(0), const(1), lanes), make_const(value.dtype, 0)
            inside = And(lane >= Broadcast(const(begin), lanes), lane < Broadcast(const(end), lanes))
            return Select(inside, value, zero)

        rows = [reduce(add, [piece(*p) for p in _pieces(t * length, length, lanes)]) for t in range(lanes)]
        total = _total(rows, bindings)
        return bindings.around(BufferStore(outputs[0], total, (*first, Ramp(const(0), const(1), lanes))))

    return te.decl_tensor_intrin(sums.op, emit, "sum_rows")


def _pieces(begin: int, length: int, lanes: int) -> list[tuple[int, int, int]]:
    """(position, first lane, last lane + 1) of the vectors that a row lies in, whole ones first."""
    if length <= lanes and begin + lanes <= lanes * length:
        return [(begin, 0, length)]
    last = begin + length
    found = [(at, max(begin - at, 0), min(last - at, lanes)) for at in range(begin // lanes * lanes, last, lanes)]
    return sorted(found, key=lambda piece: piece[1] - piece[2])


def _total(vectors: Sequence[PrimExpr], bindings: Bindings) -> PrimExpr:
    """The vector of the sums of each of `vectors`, in their order."""
    lanes = len(vectors)
    block = min(lanes, _BLOCK)
    # Vector t's sum is to be in place t: that is lane t % block of block t // block. Blocks are told apart first.
    rows: list[list[PrimExpr]] = [
        [bindings.define("sums", vectors[t]) for t in range(w, lanes, block)] for w in range(block)
    ]
    blocks = lanes // block
    while len(rows[0]) > 1:
        picks = [[2 * i + half for i in range(blocks)] for half in (0, 1)]
        rows = [[_pair(a, b, picks, block, bindings) for a, b in zip(row[::2], row[1::2], strict=True)] for row in rows]
    (whole,) = zip(*rows, strict=True)
    columns: list[PrimExpr] = list(whole)
    while len(columns) > 1:
        halves = [_within_blocks(lanes, block, half) for half in (0, 1)]
        columns = [_pair(a, b, halves, 1, bindings) for a, b in zip(columns[::2], columns[1::2], strict=True)]
    return columns[0]


def _within_blocks(lanes: int, block: int, half: int) -> list[int]:
    """The even or odd lanes of each block of a vector, then those of the same block of a second vector."""
    return [
        first + vector * lanes + i
        for first in range(0, lanes, block)
        for vector in (0, 1)
        for i in range(half, block, 2)
    ]


def _pair(a: PrimExpr, b: PrimExpr, picks: Sequence[Sequence[int]], unit: int, bindings: Bindings) -> PrimExpr:
    """The sum of two shuffles of `a` and `b`, of pieces of `unit` lanes."""
    even, odd = [bindings.shuffle("sums", a, b, [p * unit + i for p in pick for i in range(unit)]) for pick in picks]
    return bindings.define("sums", even + odd)
