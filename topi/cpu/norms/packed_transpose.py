"""Columns of short rows into rows that lie one behind the other in memory, whole vectors of them at a time.

Rows of 10 don't end with vectors: stored row by row, results leave in pieces, several for each vector, and lines that
were just stored in pieces have to wait before they can be read again. Processors that pick any elements of two vectors
by one instruction put the vectors together as memory has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.dtype import dtype as as_dtype
from relayc.te.tir import Buffer, BufferLoad, BufferStore, LetStmt, PrimExpr, Ramp, Shuffle, Stmt, Var, const, seq

if TYPE_CHECKING:
    from relayc.backend.target import Target
    from relayc.te.dtype import DType

__all__ = ["can_pack", "pack_rows"]


def can_pack(target: Target, lanes: int, dtype: DType) -> bool:
    """Does the target pick any elements of two vectors of so many, as fast as it turns parts of them?"""
    return "avx512f" in target.features and dtype.nbytes == 4 and lanes * dtype.nbytes == target.vector_bytes


@dataclass(frozen=True, slots=True)
class _Vector:
    """A vector, and of which place in memory each of its elements is; -1 for any."""

    value: PrimExpr
    places: tuple[int, ...]


class _Shuffles:
    """Shuffles of two vectors, and the definitions that they become."""

    def __init__(self) -> None:
        self.definitions: list[tuple[Var, PrimExpr]] = []

    def pick(self, a: _Vector, b: _Vector, indices: Sequence[int]) -> _Vector:
        """The elements of both, one behind the other, at `indices`."""
        value, places = Shuffle((a.value, b.value), tuple(indices)), a.places + b.places
        variable = Var("packed", value.dtype)
        self.definitions.append((variable, value))
        return _Vector(variable, tuple([places[i] for i in indices]))

    def interleaved(self, columns: Sequence[_Vector]) -> list[_Vector]:
        """Vectors of whole rows, as many as there are columns, a power of two."""
        vectors, lanes = list(columns), len(columns[0].places)
        half = len(vectors) // 2
        parts = [[i + other for i in range(first, first + lanes // 2) for other in (0, lanes)]
                 for first in (0, lanes // 2)]  # fmt: skip
        for _ in range(half.bit_length()):  # each moves a bit of the column's number into the lane's
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [self.pick(a, b, part) for a, b in pairs for part in parts]
        return vectors

    def gathered(self, pieces: Sequence[_Vector], places: range) -> _Vector:
        """The vector of these places, out of all pieces that have some of them."""
        found = [piece for piece in pieces if any(p in places for p in piece.places)]
        return reduce(lambda a, b: self._joined(a, b, places), found)

    def _joined(self, a: _Vector, b: _Vector, places: range) -> _Vector:
        both = a.places + b.places
        return self.pick(a, b, [both.index(p) if p in both else lane for lane, p in enumerate(places)])


def _packed(columns: Sequence[PrimExpr]) -> tuple[list[tuple[Var, PrimExpr]], list[PrimExpr]]:
    """Vectors of the rows that `columns` have, in the order of memory, and what is to be defined for them."""
    width, lanes = len(columns), columns[0].dtype.lanes
    vectors = [_Vector(e, tuple(range(c, lanes * width, width))) for c, e in enumerate(columns)]
    shuffles, pieces = _Shuffles(), list[_Vector]()
    while vectors:
        count = min(lanes, 1 << (len(vectors).bit_length() - 1))
        pieces += shuffles.interleaved(vectors[:count])
        vectors = vectors[count:]
    results = [shuffles.gathered(pieces, range(n * lanes, (n + 1) * lanes)).value for n in range(width)]
    return shuffles.definitions, results


@cache
def pack_rows(lanes: int, width: int, ndim: int, dtype: str) -> te.TensorIntrin:
    """T[..., r, c] = source[..., c, r], for `lanes` rows of `width`; all other of the `ndim` dimensions are 1.

    What it writes to is compact: its vectors reach from one row into the next.
    """
    ones = (1,) * (ndim - 2)
    source = te.placeholder((*ones, width, lanes), as_dtype(dtype), name="source")
    rows = te.compute((*ones, lanes, width), lambda *i: source(*i[:-2], i[-1], i[-2]), name="rows")

    def emit(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        first = [const(0)] * (ndim - 2)
        along = Ramp(const(0), const(1), lanes)
        loads = [BufferLoad(inputs[0], (*first, const(c), along)) for c in range(width)]
        columns = [Var("column", load.dtype) for load in loads]
        definitions, vectors = _packed(columns)

        def stored(number: int, vector: PrimExpr) -> Stmt:
            row, column = divmod(number * lanes, width)
            return BufferStore(outputs[0], vector, (*first, const(row), Ramp(const(column), const(1), lanes)))

        body = seq([stored(*each) for each in enumerate(vectors)])
        defined = [*zip(columns, loads, strict=True), *definitions]
        return reduce(lambda inner, item: LetStmt(*item, inner), reversed(defined), body)

    return te.decl_tensor_intrin(rows.op, emit, "pack_rows")
