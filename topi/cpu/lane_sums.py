"""Sums of the lanes of several vectors, as many as a vector has lanes, into one vector: halves are added by pairs.

A sum of one vector's lanes takes an extraction and an addition for each halving. Here two vectors share them: halves of
both are put side by side, twice, and added, which leaves one vector. lanes - 1 such steps of two shuffles and an
addition give all sums, first across lanes of 128 bits, then within them: one instruction for each shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from typing import Any

import te
from te.tir import Buffer, BufferLoad, BufferStore, LetStmt, PrimExpr, Ramp, Shuffle, Stmt, Var, const

__all__ = ["sum_lanes"]

_BLOCK = 4
"""Elements of 4 bytes in a lane of 128 bits."""


@cache
def sum_lanes(lanes: int, ndim: int, dtype: str) -> te.TensorIntrin:
    """T[..., t] = the sum of source[..., t, :] for `lanes` t, a power of two; all other of the `ndim` dimensions 1.

    For elements of 4 bytes. Tensorize the loop over t, the reduction inside of it.
    """
    ones = (1,) * (ndim - 1)
    source = te.placeholder((*ones, lanes, lanes), dtype, name="source")
    lane = te.reduce_axis((0, lanes), name="lane")
    sums = te.compute((*ones, lanes), lambda *i: te.sum(source(*i, lane), axis=lane), name="sums")

    def emit(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        first = [const(0)] * (ndim - 1)
        along = Ramp(const(0), const(1), lanes)
        loads = [BufferLoad(inputs[0], (*first, const(t), along)) for t in range(lanes)]
        definitions: list[tuple[Var, PrimExpr]] = []
        total = _total(loads, definitions)
        body: Stmt = BufferStore(outputs[0], total, (*first, along))
        return reduce(lambda inner, item: LetStmt(*item, inner), reversed(definitions), body)

    return te.decl_tensor_intrin(sums.op, emit, "sum_lanes")


def _total(vectors: Sequence[PrimExpr], definitions: list[tuple[Var, PrimExpr]]) -> PrimExpr:
    """The vector of the sums of each of `vectors`, in their order; what it is made of is added to `definitions`."""
    lanes = len(vectors)
    block = min(lanes, _BLOCK)

    def defined(value: PrimExpr) -> Var:
        variable = Var("sums", value.dtype)
        definitions.append((variable, value))
        return variable

    # Vector t's sum is to be in place t: that is lane t % block of block t // block. Blocks are told apart first.
    rows: list[list[PrimExpr]] = [[defined(vectors[t]) for t in range(w, lanes, block)] for w in range(block)]
    blocks = lanes // block
    while len(rows[0]) > 1:
        picks = [[2 * i + half for i in range(blocks)] for half in (0, 1)]
        rows = [[_pair(a, b, picks, block, defined) for a, b in zip(row[::2], row[1::2], strict=True)] for row in rows]
    (whole,) = zip(*rows, strict=True)
    columns: list[PrimExpr] = list(whole)
    while len(columns) > 1:
        halves = [_within_blocks(lanes, block, half) for half in (0, 1)]
        columns = [_pair(a, b, halves, 1, defined) for a, b in zip(columns[::2], columns[1::2], strict=True)]
    return columns[0]


def _within_blocks(lanes: int, block: int, half: int) -> list[int]:
    """The even or odd lanes of each block of a vector, then those of the block of a second vector behind it."""
    return [
        first + vector * lanes + i
        for first in range(0, lanes, block)
        for vector in (0, 1)
        for i in range(half, block, 2)
    ]


def _pair(a: PrimExpr, b: PrimExpr, picks: Sequence[Sequence[int]], unit: int, defined: Any) -> PrimExpr:
    """The sum of two shuffles of `a` and `b`, of pieces of `unit` lanes."""
    shuffled = [defined(Shuffle((a, b), tuple(p * unit + i for p in pick for i in range(unit)))) for pick in picks]
    return defined(shuffled[0] + shuffled[1])
