"""Transposes larger than the caches whose results are packed in one before they are stored, by whole cache lines.

Result rows that begin anywhere share cache lines with each other, but blocks of some of them, whole matrices or groups
of these don't. While one is transposed, the input of the next is prefetched in memory order, a share with each tile:
hardware prefetchers can't follow so many streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.te.tir import PrimExpr, Var, const
from relayc.topi.cpu.prefetch import LINE_BYTES, PAGE_BYTES, rows_of_whole_lines
from relayc.topi.cpu.register_transpose import untransposed
from relayc.topi.cpu.tiling import has_high_latency_llc
from relayc.topi.cpu.transposes.facts import TransposeFacts
from relayc.topi.cpu.transposes.plan import SHARES, Share, Step, TransposePlan
from relayc.topi.groups import constant_size, is_static
from relayc.topi.utils import ravel_index

__all__ = ["copied_runs", "packed_blocks", "packed_matrices"]

_WHOLE_SHARE = 2 / 5
"""Largest matrix that is prefetched whole, as a share of the L2 cache: the one that is transposed stays there, too."""
_WHOLE_SHARE_HIGH_LATENCY, _LEAST_PIECE = 4 / 5, 1024
"""For unaligned rows with a high-latency LLC: largest matrix that is prefetched whole, as a share of the L2 cache, and
least bytes of pieces, each on another page."""
_PIECE_BYTES, _PART_OF_L2 = 2048, 8
"""Most bytes of each row of larger matrices that are prefetched together; all pieces, or all copied runs, take at most
1 / 8 of the L2 cache, and what is transposed meanwhile as much."""
_BLOCK_SHARE_OF_CACHE = 3 / 32
"""Largest block as a share of the L2 cache, which holds two blocks of the result."""
_LEAST_NBYTES = 4
"""Least element size in bytes for larger matrices: a block of narrower elements has more rows, which a tile takes
together, than the L1 cache holds."""
_VECTOR_BYTES = 32
"""Bytes of the vectors that whole matrices are transposed into: a tile of longer ones has more rows than stay in the L1
cache."""
_MOST_BYTES = 8192
"""Largest block of whole cache lines in bytes: L1 caches of 32 to 48 KB hold it, and two of the result, in half of
their size."""
_SHORT_BYTES, _SHARE_OF_L1 = 512, 4
"""Matrices that fit in L1 are done by blocks where their rows are shorter than so many bytes, and they take more than 1
/ n of it: ordered tiles, and whole matrices, are faster otherwise."""
_MOST_BLOCKS, _FEWEST_BLOCKS = 128, 4
"""Most and fewest blocks in one loop: the last block is stored while nothing is transposed."""

def packed_blocks(facts: TransposeFacts) -> TransposePlan | Refused:
    """Blocks of result rows of a matrix are packed one after the other, a part of a matrix in one loop.

    A block is written while the next one is transposed, a share of it with each few input rows, so that reads and
    writes overlap. A piece of each input row, a multiple of a block's height, is prefetched together, or a whole
    matrix. Refused where matrices are no whole cache lines, or small, or blocks too large.
    """
    if not facts.is_of_matrices or not facts.is_of_whole_lines:
        return Refused("the output is no static matrices of the input, of whole cache lines each")
    (rows, columns), caches = facts.static_sizes, facts.caches
    size, of_result = facts.tensor.dtype.nbytes, facts.out.dtype.nbytes
    height, widest = max(facts.line, facts.line_of_input), max(size, of_result)
    if height * columns * widest > _BLOCK_SHARE_OF_CACHE * caches.l2:
        return Refused(f"L2 doesn't hold blocks of {height} rows of {columns}")
    matrices = constant_size(facts.out.shape[:-2])
    loops = max(-(-rows // (_MOST_BLOCKS * height)), -(-SHARES * facts.target.num_cores // matrices))
    loop = min(-(-rows // (loops * height)) * height, rows)
    if loop < _FEWEST_BLOCKS * height or rows * columns * widest <= caches.l1 // _SHARE_OF_L1:
        return Refused(f"matrices of {rows} x {columns} have few blocks of {height} rows")
    if rows * size >= _SHORT_BYTES and rows * columns * widest <= caches.l1:
        return Refused("L1 holds a matrix, whose input rows are long")
    are_lines = columns % facts.line == 0  # which ordered tiles support as well
    high_latency = has_high_latency_llc(facts.target)
    share = _WHOLE_SHARE_HIGH_LATENCY if high_latency and not are_lines else _WHOLE_SHARE
    if rows * columns * widest <= share * caches.l2:
        if are_lines and height * columns * widest > _MOST_BYTES:
            return Refused(f"output rows are whole cache lines, blocks of them over {_MOST_BYTES} bytes")
        return _blocks(replace(facts, lanes=min(facts.lanes, _VECTOR_BYTES // size)), height, loop, None)
    if are_lines or min(size, of_result) < _LEAST_NBYTES or not facts.is_all_read:
        return Refused("L2 doesn't hold a matrix, whose rows are whole cache lines, narrow or fused with others")
    most = min(_PIECE_BYTES, caches.l2 // (_PART_OF_L2 * columns)) // size
    piece = height << max((min(most, rows) // height).bit_length() - 1, 0)
    if high_latency and piece * size < _LEAST_PIECE:
        return Refused(f"pieces of {piece * size} bytes, each on another page, with a high-latency LLC")
    return _blocks(facts, height, loop, piece)


def _blocks(facts: TransposeFacts, height: int, loop: int, piece: int | None) -> TransposePlan:
    """Blocks of `height` rows, `loop` rows of them in one loop, and `piece` elements that are prefetched together."""
    lines = max(facts.lanes * facts.block // facts.line_of_input, 1)
    together = lines if piece is None else min(lines, piece // facts.line_of_input)
    plan = TransposePlan(
        facts, (Step(facts.number, loop), Step(facts.number, height)), outside=1, copied=1, stored=(facts.line,),
        share=Share(lines, together, partial(_in_next_piece, facts, height, lines, piece)),
    )  # fmt: skip
    if not facts.is_all_read:
        return plan
    of_block = height * facts.static_sizes[1] // facts.line
    of_vector = -(-of_block // -(-facts.static_sizes[1] // facts.lanes)) * facts.line
    return replace(plan, stored=(of_vector, facts.line), fused=True, overlaps="apart")


def _in_next_piece(
    facts: TransposeFacts, height: int, lines: int, piece: int | None, _loop: Var, vector: Var, block: Var, first: int,
    *place: PrimExpr,
) -> Sequence[PrimExpr]:  # fmt: skip
    """The place of a tile's share of the next piece or matrix. Shares are contiguous, in the order of the tiles."""
    columns, line_of_input, shape = facts.static_sizes[1], facts.line_of_input, facts.tensor.shape
    blocks, vectors = -(-height // facts.block), -(-columns // facts.lanes)
    *outer, _, row = untransposed(place, facts.position)
    begin = const(0) if piece is None else row // piece * piece
    row_block = (row - block * facts.block - begin + height - 1) // height
    line = ((row_block * vectors + vector) * blocks + block) * lines + first
    if piece is None:
        return (ravel_index([*outer, columns, 0], shape) + line * line_of_input,)
    further = te.if_then_else(begin + piece < facts.row_stride, begin + piece, columns * facts.row_stride)
    of_piece = piece // line_of_input
    at = ravel_index([*outer, te.min(line // of_piece, columns - 1), 0], shape)
    return (at + further + line % of_piece * line_of_input,)


_MATRICES_OF_L2 = 4
"""Matrices that are stored together take at most this fraction (1 / n) of the L2 cache: so do the next ones."""


def packed_matrices(facts: TransposeFacts) -> TransposePlan | Refused:
    """Groups of matrices along the last of the batch dimensions are packed.

    One that is whole cache lines stays in L1, otherwise as many as are whole lines together, 64 at most, in L2. Refused
    where matrices aren't the input's own, or the caches don't hold a group.
    """
    if not facts.is_of_matrices or facts.out.ndim < 3:
        return Refused("the output is no batch of static matrices of the input")
    (rows, columns), shape = facts.static_sizes, facts.out.shape
    nbytes = rows * columns * facts.out.dtype.nbytes
    count = rows_of_whole_lines(nbytes)
    few = constant_size(shape[:-2]) < SHARES * facts.target.num_cores * count or constant_size([shape[-3]]) < count
    if few or count * nbytes > (facts.caches.l1 if count == 1 else facts.caches.l2 // _MATRICES_OF_L2):
        return Refused(f"matrices of {nbytes} bytes are few, or the caches don't hold {count} together")
    of_block, of_matrix = -(-columns // facts.lanes), -(-rows * columns // facts.line_of_input)
    lines = -(-of_matrix // (of_block * -(-rows // facts.block)))

    def in_next(_loop: Var, vector: Var, block: Var, _first: int, *index: PrimExpr) -> Sequence[PrimExpr]:
        matrix = ravel_index(index[:-2], shape[:-2]) + count
        return (matrix * (rows * columns) + (block * of_block + vector) * (lines * facts.line_of_input),)

    return TransposePlan(
        facts, (Step(facts.number - 1, count),), outside=1, copied=0, stored=(facts.line,), fused=True, tail="guard",
        by_vectors=False, share=Share(lines, lines, in_next),
    )  # fmt: skip


_LINES_OF_RUN = 8
"""Cache lines of a run. (Runs of 4 were slower, runs of 16 equal.)"""
_LEAST_ALIGNMENT = PAGE_BYTES // 2
"""Bytes: rows whose distance is a multiple of this are copied; others stay in the caches."""
_FEW = 24
"""Up to so many rows stay in the caches, too."""


def copied_runs(facts: TransposeFacts) -> TransposePlan | Refused:
    """Runs of input rows that conflict in cache sets are copied, and transposed a line of each at a time.

    Planes of an image lie pages apart where its sides are multiples of 64 or so. On the way to channels-last a cache
    line of each would be evicted before it is used up, so runs are copied to where they don't alias. Each tile that is
    transposed prefetches its share of the next runs, one run's after the other's. Refused where rows don't conflict in
    cache sets, or make no whole cache lines.
    """
    rows, columns = facts.static_sizes
    if not facts.is_of_whole_lines or not is_static(facts.tensor.shape):
        return Refused("the output is no static matrices of whole cache lines")
    if columns <= _FEW or facts.stride_alignment < _LEAST_ALIGNMENT:
        return Refused(f"{columns} input rows, {facts.row_stride} elements apart, don't conflict in cache sets")
    line, run = facts.line_of_input, _LINES_OF_RUN * facts.line_of_input
    fits = columns * _LINES_OF_RUN * LINE_BYTES <= facts.caches.l2 // _PART_OF_L2
    if not fits or rows < 2 * run:
        return Refused("L2 doesn't hold the runs, or input rows are no longer than two of them")
    of_group, of_vectors = line // facts.block, -(-columns // facts.lanes)
    lines = 1 << (-(-columns // (of_group * of_vectors)) - 1).bit_length()  # so that none reaches over the end of a run
    last, shape = facts.tensor.ndim - 1, facts.tensor.shape

    def in_next(group: Var, vector: Var, block: Var, first: int, *place: PrimExpr) -> Sequence[PrimExpr]:
        index = untransposed(place, facts.position)
        number = ((group * of_vectors + vector) * of_group + block) * lines + first
        begin = index[last] - group * line - block * facts.block
        index[facts.position] = te.min(number // _LINES_OF_RUN, columns - 1)
        index[last] = begin + run + number % _LINES_OF_RUN * line
        return (ravel_index(index, shape),)

    return TransposePlan(
        facts, (Step(facts.number, run), Step(facts.number, line)), outside=1, copied=1,
        stored=(facts.elements_stored(facts.at_once),), fused=True, lines_first=0,
        share=Share(lines, _LINES_OF_RUN, in_next),
    )  # fmt: skip
