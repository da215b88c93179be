"""In-register transpose of columns of short rows into contiguous rows, stored in whole vectors.

Rows of 10 elements don't end with a vector: stored row by row they take several partial stores per vector, and loads
from lines just stored in pieces stall on store forwarding. Processors with a two-source permute (`vpermt2ps`) build
whole vectors in registers instead.
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
    """True if the target permutes any elements of two vectors of `lanes` as fast as it shuffles within lanes."""
    return "avx512f" in target.features and dtype.nbytes == 4 and lanes * dtype.nbytes == target.vector_bytes


@dataclass(frozen=True, slots=True)
class _Vector:
    """A vector, and for each of its elements its offset in memory; -1 where it doesn't matter."""

    value: PrimExpr
    places: tuple[int, ...]


class _Shuffles:
    """Builder of two-vector shuffles; `definitions` has the let-bindings emitted so far."""

    def __init__(self) -> None:
        self.definitions: list[tuple[Var, PrimExpr]] = []

    def pick(self, a: _Vector, b: _Vector, indices: Sequence[int]) -> _Vector:
        """Shuffle: select elements at `indices` from the concatenation of `a` and `b`."""
        value, places = Shuffle((a.value, b.value), tuple(indices)), a.places + b.places
        variable = Var("packed", value.dtype)
        self.definitions.append((variable, value))
        return _Vector(variable, tuple([places[i] for i in indices]))

    def interleaved(self, columns: Sequence[_Vector]) -> list[_Vector]:
        """Interleave `columns`, a power of two of them, into as many vectors of row pieces."""
        vectors, lanes = list(columns), len(columns[0].places)
        half = len(vectors) // 2
        parts = [[i + other for i in range(first, first + lanes // 2) for other in (0, lanes)]
                 for first in (0, lanes // 2)]  # fmt: skip
        for _ in range(half.bit_length()):  # each pass moves one bit of the column index into the lane index
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [self.pick(a, b, part) for a, b in pairs for part in parts]
        return vectors

    def gathered(self, pieces: Sequence[_Vector], places: range) -> _Vector:
        """Assemble the vector of the offsets `places` from all pieces that hold some of them."""
        found = [piece for piece in pieces if any(p in places for p in piece.places)]
        return reduce(lambda a, b: self._joined(a, b, places), found)

    def _joined(self, a: _Vector, b: _Vector, places: range) -> _Vector:
        both = a.places + b.places
        return self.pick(a, b, [both.index(p) if p in both else lane for lane, p in enumerate(places)])


def _packed(columns: Sequence[PrimExpr]) -> tuple[list[tuple[Var, PrimExpr]], list[PrimExpr]]:
    """Transpose `columns` into vectors of rows in memory order; returns the let-bindings and those vectors."""
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
    """Tensor intrinsic T[..., r, c] = source[..., c, r] for `lanes` rows of `width`; other dimensions of `ndim` are 1.

    The output must be compact, since its vectors cross from one row into the next.
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
