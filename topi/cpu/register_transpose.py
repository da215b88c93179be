"""In-register transpose: a tile is loaded by rows, transposed by shuffles, and used by columns.

Where an output's vectors lie along a strided axis of an input, each would take as many loads as it has lanes. Instead,
a tile of the input, as many rows as a vector has lanes, of 128 bits each, is loaded by rows. Rows a block apart are
joined in one register, which AVX has loads for; shuffles within lanes of 128 bits then transpose the blocks side by
side (4 x 4 elements of 4 bytes, 16 x 16 bytes): log2(block) for each vector, of the kinds that SSE, AVX2, AVX-512 and
NEON have one instruction for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.dtype import dtype as as_dtype
from relayc.te.tir import Buffer, BufferLoad, BufferStore, LetStmt, PrimExpr, Ramp, Shuffle, Stmt, Var, const, seq
from relayc.topi.cpu.tiling import vector_lanes

if TYPE_CHECKING:
    from relayc.backend.target import Target
    from relayc.te.dtype import DType

__all__ = ["block_of", "transpose_by_shuffles", "transpose_in_registers", "transpose_intrin", "transposed_vectors"]

_BLOCK_BYTES = 16
"""Bytes of a 128-bit lane, within which any shuffle is one instruction."""
_SHORTEST = 4


def transposed_vectors(target: Target, dtype: DType) -> list[int]:
    """Lengths of the vectors that tiles of `dtype` transpose into, longest first; none if unsupported."""
    if dtype.bits % 8 or (dtype.is_float and dtype.bits == 8):  # others are not held as they are stored
        return []
    most = vector_lanes(target, dtype.nbytes)
    return [1 << p for p in range(most.bit_length() - 1, 0, -1) if 1 << p >= min(_SHORTEST, most)]


def block_of(lanes: int, dtype: DType) -> int:
    """Columns of a tile that is transposed into vectors of `lanes`: as many elements as a 128-bit lane has."""
    return min(lanes, _BLOCK_BYTES // dtype.nbytes)


def transpose_by_shuffles(rows: Sequence[PrimExpr]) -> tuple[list[tuple[Var, PrimExpr]], list[PrimExpr]]:
    """Shuffles that transpose `rows` of a tile, a power of two: variables to define, and its columns.

    There are no fewer rows than columns.
    """
    block = rows[0].dtype.lanes
    definitions: list[tuple[Var, PrimExpr]] = []

    def shuffle(a: PrimExpr, b: PrimExpr, indices: Sequence[int]) -> Var:
        value = Shuffle((a, b), tuple(indices))
        variable = Var("shuffled", value.dtype)
        definitions.append((variable, value))
        return variable

    blocks: list[Sequence[PrimExpr]] = [rows[first : first + block] for first in range(0, len(rows), block)]
    while len(blocks) > 1:
        lanes = 2 * blocks[0][0].dtype.lanes
        pairs = zip(blocks[::2], blocks[1::2], strict=True)
        blocks = [[shuffle(a, b, range(lanes)) for a, b in zip(*pair, strict=True)] for pair in pairs]
    (tile,), n = blocks, len(rows)
    halves = [range(first, first + block // 2) for first in (0, block // 2)]
    interleaved = [[s + i + other for s in range(0, n, block) for i in half for other in (0, n)] for half in halves]
    for _ in range(block.bit_length() - 1):  # each exchanges a bit of the row's number into the column's and back
        pairs = zip(tile[: block // 2], tile[block // 2 :], strict=True)
        tile = [shuffle(a, b, picks) for a, b in pairs for picks in interleaved]
    return definitions, list(tile)


@cache
def transpose_intrin(lanes: int, ndim: int, position: int, dtype: str) -> te.TensorIntrin:
    """T[..., r, c] = source[..., c at `position`, ..., r], for `lanes` c and a block of r; all other dimensions 1."""
    block = block_of(lanes, as_dtype(dtype))
    shape = [lanes if i == position else block if i == ndim - 1 else 1 for i in range(ndim)]
    source = te.placeholder(shape, dtype, name="source")
    rest = [i for i in range(ndim) if i not in (position, ndim - 1)]

    def element(*i: Any) -> PrimExpr:
        at = {position: i[-1], ndim - 1: i[-2], **dict(zip(rest, i, strict=False))}
        return source(*[at[d] for d in range(ndim)])

    tile = te.compute((*[1] * len(rest), block, lanes), element, name="transposed")

    def emit(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        def index(buffer: Buffer, row: int, axis: int, length: int) -> tuple[PrimExpr, ...]:
            last = len(buffer.shape) - 1
            return tuple([Ramp(const(0), const(1), length) if i == last else const(row if i == axis else 0)
                          for i in range(last + 1)])  # fmt: skip

        loads = [BufferLoad(inputs[0], index(inputs[0], i, position, block)) for i in range(lanes)]
        rows = [Var("row", load.dtype) for load in loads]
        definitions, columns = transpose_by_shuffles(rows)
        stores = [BufferStore(outputs[0], c, index(outputs[0], i, ndim - 2, lanes)) for i, c in enumerate(columns)]
        body = seq(stores)
        for variable, value in reversed([*zip(rows, loads, strict=True), *definitions]):
            body = LetStmt(variable, value, body)
        return body

    return te.decl_tensor_intrin(tile.op, emit, "transpose_in_registers")


def transpose_in_registers(
    s: te.Schedule, tensor: te.Tensor, readers: Sequence[te.Operation], position: int, lanes: int
) -> tuple[te.Tensor, te.IterVar, te.IterVar]:
    """A copy of `tensor` for `readers` with its dimensions `position` and last moved to the end and exchanged.

    Attach it where at least `lanes` of the first and a block of the last are read. Also returns its loops over tiles
    along the last, and inside of it along `position`.
    """
    ndim = len(tensor.shape)
    rest = [i for i in range(ndim) if i not in (position, ndim - 1)]
    order = (*rest, ndim - 1, position)

    def element(source: te.Tensor, *i: Any) -> PrimExpr:
        at = {position: i[-1], ndim - 1: i[-2], **dict(zip(rest, i, strict=False))}
        return source(*[at[d] for d in range(ndim)])

    shape = [tensor.shape[d] for d in order]
    copy = s.cache_read_packed(tensor, "local", readers, shape, element, lambda *i: [i[d] for d in order])
    *_, row, column = s[copy].op.axis
    blocks, row = s[copy].split(row, factor=block_of(lanes, tensor.dtype), tail="shift")
    vectors, inner = s[copy].split(column, factor=lanes, tail="shift")
    s[copy].reorder(blocks, vectors, row, inner)
    s[copy].tensorize(row, transpose_intrin(lanes, ndim, position, str(tensor.dtype)))
    return copy, blocks, vectors
