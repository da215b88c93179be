"""In-register transpose: a tile is loaded by rows, transposed by shuffles, and used by columns.

Where an output's vectors lie along a strided axis of an input, each would take as many loads as it has lanes. Instead,
a tile of the input, as many rows as a vector has lanes, of 128 bits each, is loaded by rows. Rows a block apart are
joined in one register, which AVX has loads for; shuffles within lanes of 128 bits then transpose the blocks side by
side (4 x 4 elements of 4 bytes, 16 x 16 bytes): log2(block) for each vector, of the kinds that SSE, AVX2, AVX-512 and
NEON have one instruction for.

Short rows that don't end with a vector are transposed back by `pack_rows`: stored row by row they take several partial
stores per vector, and loads from lines just stored in pieces stall on store forwarding. Processors with a two-source
permute (`vpermt2ps`) build whole vectors in registers instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.dtype import dtype as as_dtype
from relayc.te.tir import Buffer, BufferLoad, BufferStore, LetStmt, PrimExpr, Ramp, Shuffle, Stmt, Var, const, seq
from relayc.topi.cpu.tiling import vector_lanes

if TYPE_CHECKING:
    from relayc.backend.target import Target
    from relayc.te.dtype import DType

__all__ = [
    "Bindings", "block_of", "can_pack", "pack_rows", "transpose_by_shuffles", "transpose_in_registers",
    "transpose_intrin", "transposed_vectors", "untransposed",
]  # fmt: skip

_BLOCK_BYTES = 16
"""Bytes of a 128-bit lane, within which any shuffle is one instruction."""
_SHORTEST = 4


def transposed_vectors(target: Target, dtype: DType, shape: tuple[te.Dim, te.Dim] | None = None) -> list[int]:
    """Lengths of the vectors that tiles of `dtype` transpose into, longest first; none if unsupported.

    With a `shape`, the rows and columns of the result, those of which a tile fits in; dynamic sizes are long enough.
    """
    if dtype.bits % 8 or (dtype.is_float and dtype.bits == 8):  # others are not held as they are stored
        return []
    most = vector_lanes(target, dtype.nbytes)
    lengths = [1 << p for p in range(most.bit_length() - 1, 0, -1) if 1 << p >= min(_SHORTEST, most)]
    rows, columns = [d if isinstance(d, int) else most for d in shape or (most, most)]
    return [n for n in lengths if n <= columns and block_of(n, dtype) <= rows]


def block_of(lanes: int, dtype: DType) -> int:
    """Columns of a tile that is transposed into vectors of `lanes`: as many elements as a 128-bit lane has."""
    return min(lanes, _BLOCK_BYTES // dtype.nbytes)


class Bindings:
    """Variables, each bound to the vector that it stands for, in the order in which they were made."""

    def __init__(self) -> None:
        self.values: list[tuple[Var, PrimExpr]] = []

    def define(self, name: str, value: PrimExpr) -> Var:
        """A new variable for a value."""
        variable = Var(name, value.dtype)
        self.values.append((variable, value))
        return variable

    def shuffle(self, name: str, a: PrimExpr, b: PrimExpr, indices: Sequence[int]) -> Var:
        """A variable for the elements at `indices` of the concatenation of `a` and `b`."""
        return self.define(name, Shuffle((a, b), tuple(indices)))

    def around(self, body: Stmt) -> Stmt:
        """The statement in which all variables are bound."""
        return reduce(lambda inner, item: LetStmt(*item, inner), reversed(self.values), body)


def transpose_by_shuffles(rows: Sequence[PrimExpr], bindings: Bindings) -> list[PrimExpr]:
    """The columns of a tile whose `rows` are a power of two, no fewer than the columns."""
    block = rows[0].dtype.lanes
    blocks: list[Sequence[PrimExpr]] = [rows[first : first + block] for first in range(0, len(rows), block)]
    while len(blocks) > 1:
        joined, pairs = range(2 * blocks[0][0].dtype.lanes), zip(blocks[::2], blocks[1::2], strict=True)
        blocks = [[bindings.shuffle("shuffled", a, b, joined) for a, b in zip(*pair, strict=True)] for pair in pairs]
    (tile,), n = blocks, len(rows)
    halves = [range(first, first + block // 2) for first in (0, block // 2)]
    interleaved = [[s + i + other for s in range(0, n, block) for i in half for other in (0, n)] for half in halves]
    for _ in range(block.bit_length() - 1):  # each exchanges a bit of the row's number into the column's and back
        pairs = zip(tile[: block // 2], tile[block // 2 :], strict=True)
        tile = [bindings.shuffle("shuffled", a, b, picks) for a, b in pairs for picks in interleaved]
    return list(tile)


def _order(ndim: int, position: int) -> list[int]:
    """The dimensions of a tensor in the order of its transposed copy: `position` and last at the end, exchanged."""
    return [*[d for d in range(ndim - 1) if d != position], ndim - 1, position]


def untransposed(place: Sequence[Any], position: int) -> list[Any]:
    """The index in a tensor of element `place` of its transposed copy, as `transpose_in_registers` makes it."""
    order = _order(len(place), position)
    return [place[order.index(d)] for d in range(len(place))]


@cache
def transpose_intrin(lanes: int, ndim: int, position: int, dtype: str) -> te.TensorIntrin:
    """T[..., r, c] = source[..., c at `position`, ..., r], for `lanes` c and a block of r; all other dimensions 1."""
    block = block_of(lanes, as_dtype(dtype))
    shape = [1] * (ndim - 2) + [block, lanes]
    source = te.placeholder(untransposed(shape, position), dtype, name="source")
    tile = te.compute(shape, lambda *i: source(*untransposed(i, position)), name="transposed")

    def emit(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        def index(buffer: Buffer, row: int, axis: int, length: int) -> tuple[PrimExpr, ...]:
            last = len(buffer.shape) - 1
            return tuple([Ramp(const(0), const(1), length) if i == last else const(row if i == axis else 0)
                          for i in range(last + 1)])  # fmt: skip

        bindings, loads = Bindings(), [index(inputs[0], i, position, block) for i in range(lanes)]
        rows = [bindings.define("row", BufferLoad(inputs[0], at)) for at in loads]
        columns = transpose_by_shuffles(rows, bindings)
        stores = [BufferStore(outputs[0], c, index(outputs[0], i, ndim - 2, lanes)) for i, c in enumerate(columns)]
        return bindings.around(seq(stores))

    return te.decl_tensor_intrin(tile.op, emit, "transpose_in_registers")


def transpose_in_registers(
    s: te.Schedule, tensor: te.Tensor, readers: Sequence[te.Operation], position: int, lanes: int
) -> tuple[te.Tensor, te.IterVar, te.IterVar]:
    """A copy of `tensor` for `readers` with its dimensions `position` and last moved to the end and exchanged.

    Attach it where at least `lanes` of the first and a block of the last are read. Also returns its loops over tiles
    along the last, and inside of it along `position`.
    """
    ndim = len(tensor.shape)
    order = _order(ndim, position)
    copy = s.cache_read_packed(
        tensor, "local", readers, [tensor.shape[d] for d in order],
        lambda source, *i: source(*untransposed(i, position)), lambda *i: [i[d] for d in order],
    )  # fmt: skip
    *_, row, column = s[copy].op.axis
    blocks, row = s[copy].split(row, factor=block_of(lanes, tensor.dtype), tail="shift")
    vectors, inner = s[copy].split(column, factor=lanes, tail="shift")
    s[copy].reorder(blocks, vectors, row, inner)
    s[copy].tensorize(row, transpose_intrin(lanes, ndim, position, str(tensor.dtype)))
    return copy, blocks, vectors


def can_pack(target: Target, lanes: int, dtype: DType) -> bool:
    """True if the target permutes any elements of two vectors of `lanes` as fast as it shuffles within lanes."""
    return "avx512f" in target.features and dtype.nbytes == 4 and lanes * dtype.nbytes == target.vector_bytes


@dataclass(frozen=True, slots=True)
class _Vector:
    """A vector, and for each of its elements its offset in memory; -1 where it doesn't matter."""

    value: PrimExpr
    places: tuple[int, ...]


def _pick(bindings: Bindings, a: _Vector, b: _Vector, indices: Sequence[int]) -> _Vector:
    places = a.places + b.places
    return _Vector(bindings.shuffle("packed", a.value, b.value, indices), tuple([places[i] for i in indices]))


def _interleaved(bindings: Bindings, columns: Sequence[_Vector]) -> list[_Vector]:
    """Interleave `columns`, a power of two of them, into as many vectors of row pieces."""
    vectors, lanes, half = list(columns), len(columns[0].places), len(columns) // 2
    parts = [[i + other for i in range(first, first + lanes // 2) for other in (0, lanes)]
             for first in (0, lanes // 2)]  # fmt: skip
    for _ in range(half.bit_length()):  # each pass moves one bit of the column index into the lane index
        pairs = zip(vectors[:half], vectors[half:], strict=True)
        vectors = [_pick(bindings, a, b, part) for a, b in pairs for part in parts]
    return vectors


def _packed(columns: Sequence[PrimExpr], bindings: Bindings) -> list[PrimExpr]:
    """Transpose `columns` into vectors of rows in memory order."""
    width, lanes = len(columns), columns[0].dtype.lanes
    vectors = [_Vector(e, tuple(range(c, lanes * width, width))) for c, e in enumerate(columns)]
    pieces: list[_Vector] = []
    while vectors:
        count = min(lanes, 1 << (len(vectors).bit_length() - 1))
        pieces += _interleaved(bindings, vectors[:count])
        vectors = vectors[count:]

    def gathered(places: range) -> PrimExpr:
        """The vector of these offsets, of all pieces that hold some of them."""

        def joined(a: _Vector, b: _Vector) -> _Vector:
            both = a.places + b.places
            return _pick(bindings, a, b, [both.index(p) if p in both else lane for lane, p in enumerate(places)])

        return reduce(joined, [piece for piece in pieces if any(p in places for p in piece.places)]).value

    return [gathered(range(n * lanes, (n + 1) * lanes)) for n in range(width)]


@cache
def pack_rows(lanes: int, width: int, ndim: int, dtype: str) -> te.TensorIntrin:
    """Tensor intrinsic T[..., r, c] = source[..., c, r] for `lanes` rows of `width`; other dimensions of `ndim` are 1.

    The output must be compact, since its vectors cross from one row into the next.
    """
    ones = (1,) * (ndim - 2)
    source = te.placeholder((*ones, width, lanes), as_dtype(dtype), name="source")
    rows = te.compute((*ones, lanes, width), lambda *i: source(*i[:-2], i[-1], i[-2]), name="rows")

    def emit(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        bindings, first, along = Bindings(), [const(0)] * (ndim - 2), Ramp(const(0), const(1), lanes)
        loads = [BufferLoad(inputs[0], (*first, const(c), along)) for c in range(width)]
        columns = [bindings.define("column", load) for load in loads]

        def stored(number: int, vector: PrimExpr) -> Stmt:
            row, column = divmod(number * lanes, width)
            return BufferStore(outputs[0], vector, (*first, const(row), Ramp(const(column), const(1), lanes)))

        return bindings.around(seq([stored(*each) for each in enumerate(_packed(columns, bindings))]))

    return te.decl_tensor_intrin(rows.op, emit, "pack_rows")
