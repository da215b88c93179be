"""Transposes by tiles that are stored where they belong, in the order of the input or of the output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused
from relayc.te.tir import PrimExpr, Var
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.prefetch import CONFLICT_BYTES, LINE_BYTES
from relayc.topi.cpu.register_transpose import untransposed
from relayc.topi.cpu.tiling import has_few_fill_buffers
from relayc.topi.cpu.transposes.facts import TransposeFacts
from relayc.topi.cpu.transposes.plan import SHARES, Share, Step, TransposePlan
from relayc.topi.groups import constant_size, has_gaps, is_static
from relayc.topi.utils import ravel_index

__all__ = ["ordered_tiles", "packed_tiles", "tiles_along_input", "tiles_along_output"]

_LINES, _LINES_IN_SETS = 1, 2
"""Cache lines written of each output row at a time: normally, and where output or input rows conflict in cache sets."""
_LINES_FEW_BUFFERS = (4, 2)
"""Cache lines written, the most that the L2 cache has room for, of rows that begin anywhere, where L1 has few line-fill
buffers and input rows conflict in cache sets."""
_WIDE_NBYTES = 4
"""Least element size in bytes for two cache lines where rows begin anywhere and one more line is transposed in vain."""
_BLOCKS_OF_CACHE = 3
"""Blocks that an L2 cache holds: one that is transposed, one that arrives, and room for the rest."""
_LEAST_PIECE_BYTES, _PIECE_BYTES = 512, 2048
"""Fewest and most bytes of an input row in a piece, where a block of whole rows doesn't fit: in C 0.5 to 4 KB were
alike."""
_MOST_REPEATED = 17 / 16
"""Most that all pieces of a row have together, relative to the row."""
_PIECES_OF_L2 = 8
"""Blocks of pieces are at most this fraction (1 / n) of the L2 cache, since pieces that lie pages apart conflict in its
sets."""
_LEAST_BELOW = 8
"""Fewest blocks below each other to take pieces down the rows: nothing is prefetched where their next column begins."""
_LINES_OF_PREFETCH = 4
"""Cache lines that one prefetch covers, contiguous; pieces are multiples of them."""


def ordered_tiles(facts: TransposeFacts) -> TransposePlan | Refused:
    """Blocks along the output's last axis, each by tiles of a cache line along the rows.

    A core reads fastest what is contiguous: then the hardware prefetcher works beside the software prefetches. So a
    block of input rows, as many as fill one or two cache lines of each output row, is brought into the L2 cache in
    order, while the block before is transposed there, one cache line of each row at a time. A part of the next block is
    prefetched with each tile that is transposed in registers, and the previous result is written with non-temporal
    stores between them: either in one burst would stall the other. Where rows are so long that the cache doesn't hold
    such a block, a block has a piece of each; prefetches still follow the rows, while the transpose goes across.

    Refused where input rows are short, or not even pieces of them fit into the L2 cache.
    """
    sizes = [*facts.out.shape, *facts.tensor.shape[facts.position + 1 :]]
    nbytes, l2, cores = facts.row_stride * facts.tensor.dtype.nbytes, facts.caches.l2, facts.target.num_cores
    rows, columns = facts.static_sizes
    if not is_static(sizes) or rows < 2 * facts.line_of_input:
        return Refused("sizes are dynamic, or input rows shorter than two cache lines")
    if facts.has_unaligned_rows and has_gaps(facts.out):
        return Refused("unaligned output rows with gaps between them")
    width = max(_lines_written(facts, nbytes, l2) * facts.line, facts.lanes)
    many = columns >= SHARES * cores * width
    if many and _BLOCKS_OF_CACHE * width * nbytes <= l2:
        return _ordered(facts, width, None)
    if facts.has_unaligned_rows:
        width = max(width, _LINES_IN_SETS * facts.line)
    else:  # blocks of about equal size
        width = -(-columns // (max(columns // width, 1) * facts.line)) * facts.line
        many = constant_size(facts.out.shape) >= SHARES * cores * width * _PIECE_BYTES
    piece = _piece(facts, width, l2)
    if not many or piece is None:
        return Refused(f"{columns} columns are few, or L2 doesn't hold pieces of {width} input rows")
    return _ordered(facts, width, piece)


def _ordered(facts: TransposeFacts, width: int, piece: int | None) -> TransposePlan:
    """Blocks of `width` elements of whole rows or of a `piece` of each.

    Tiles are copied before they are transposed where they conflict in sets of the L1 cache and would be evicted.
    """
    number, part = facts.number, Step(facts.out.ndim - 1, width)
    along = facts.static_sizes[1] < _LEAST_BELOW * width  # few blocks are below: the next piece is of the same rows
    if piece is None:
        blocks = (part, *[Step(n) for n in _axes_inside(facts)])
    else:
        blocks = (part, Step(number, piece)) if along else (Step(number, piece), part)
    unaligned, count = facts.has_unaligned_rows, len(blocks)
    transposed = width + (facts.line if unaligned else 0)
    lines = -(-(width * facts.block // facts.line_of_input) // -(-transposed // facts.lanes))
    place = partial(_in_next_block, facts, width, transposed, lines, piece, along)
    share = Share(lines, lines if piece is None else _LINES_OF_PREFETCH, place)
    fits = facts.at_once % facts.line == 0 and width % facts.at_once == 0
    return TransposePlan(
        facts, (*blocks, Step(number, facts.line_of_input), Step(number, facts.block)), outside=count, copied=count,
        stored=() if unaligned else (facts.at_once if fits else facts.line,), aligned=unaligned, by_vectors=False,
        lines_first=count if facts.has_set_conflicts else None, overlaps="together", share=share,
    )  # fmt: skip


def _in_next_block(
    facts: TransposeFacts, width: int, transposed: int, lines: int, piece: int | None, along: bool, _loop: Var,
    vector: Var, _block: Var, first: int, *place: PrimExpr,
) -> Sequence[PrimExpr]:  # fmt: skip
    """The place of a tile's share of the next block: of the rows below those `transposed` with this one, or a piece.

    It is as far into that block, in memory order, as the vector's columns are in theirs, one vector's behind the
    other's. The next piece of each row is one `along` the same rows, otherwise below.
    """
    index, position, shape = untransposed(place, facts.position), facts.position, facts.tensor.shape
    index[position] = index[position] - te.min(vector * facts.lanes, transposed - facts.lanes)
    behind = position + 1 if piece is None else len(shape) - 1  # the dimensions that a row, or a piece, lies along
    length = constant_size(shape[behind:])
    begin, column = ravel_index(index[:behind], shape[:behind]) * length, ravel_index(index[behind:], shape[behind:])
    share = (vector * lines + first) * facts.line_of_input
    if piece is None:
        return (begin + transposed * facts.row_stride + column * width + share,)
    number, within = column // piece, column % piece * width + share
    below, pieces = width * facts.row_stride, -(-length // piece)
    beside = te.if_then_else(number < pieces - 1, (number + 1) * piece, below)
    further = beside if along else below + number * piece
    return (begin + within // piece * facts.row_stride + further + within % piece,)


def _lines_written(facts: TransposeFacts, nbytes: int, l2: int) -> int:
    """Cache lines of each output row that a block fills, where whole input rows have `nbytes` bytes each."""
    if not facts.has_unaligned_rows:  # rows of two cache lines are contiguous
        whole = facts.static_sizes[1] == _LINES_IN_SETS * facts.line
        return _LINES_IN_SETS if facts.result_alignment >= CONFLICT_BYTES or whole else _LINES
    wide = facts.out.dtype.nbytes >= _WIDE_NBYTES
    if wide and facts.has_set_conflicts and has_few_fill_buffers(facts.target):
        return next((n for n in _LINES_FEW_BUFFERS if _BLOCKS_OF_CACHE * n * facts.line * nbytes <= l2), _LINES)
    fits = _LINES_IN_SETS * facts.line * nbytes <= l2 // _PIECES_OF_L2
    return _LINES_IN_SETS if fits and (facts.has_set_conflicts or wide) else _LINES


def _piece(facts: TransposeFacts, width: int, l2: int) -> int | None:
    """Elements of a piece of each of `width` rows; None where the L2 cache holds too few.

    The last piece of a row is shifted to end with the row: the size that overlaps least, none where the overlap is
    large.
    """
    size, unit = facts.tensor.dtype.nbytes, _LINES_OF_PREFETCH * facts.line_of_input
    length, most = constant_size(facts.tensor.shape[-1:]), min(_PIECE_BYTES, l2 // (_PIECES_OF_L2 * width)) // size
    pieces = range(most // unit * unit, _LEAST_PIECE_BYTES // size - 1, -unit)
    fitting = {piece: -(-length // piece) * piece for piece in pieces}
    best = min(fitting, key=fitting.__getitem__, default=0)
    return best if 0 < best <= length and fitting[best] <= _MOST_REPEATED * length else None


def _axes_inside(facts: TransposeFacts) -> tuple[int, ...]:
    """The output's axes, but for the exchanged ones, along which the input's dimensions behind `position` are read."""
    behind = [i for read, index in reads(facts.out.op) if read is facts.tensor
              for i in index[facts.position + 1 :]]  # fmt: skip
    variables = {e for e in post_order(behind) if isinstance(e, Var)}
    axes = enumerate(facts.out.op.axis)
    return tuple([n for n, axis in axes if n != facts.number and axis.var in variables])


_LINE_PARTS = 4
"""Cache lines that are written of each output row in a tile."""
_FEWEST_PARTS = 8
"""Fewest cache lines of an output row that is no whole number of them."""
_WHOLE_ROW_BYTES = 512
"""Input rows are taken whole up to so many bytes."""
_TILES_AHEAD = 4
"""Prefetch distance in tiles where tiles take up whole output rows."""
_ROWS_AHEAD = 64
"""Prefetch distance in input rows where they don't."""


def packed_tiles(facts: TransposeFacts) -> TransposePlan | Refused:
    """Tiles of a cache line of columns of the input, which are transposed in L1.

    Memory is slow where few bytes of many places are touched at once. So of each output row a few cache lines are
    written at a time, with non-temporal stores. Tiles of short rows take them up whole and are contiguous; so are
    matrices that L1 holds. Refused where the output is neither contiguous nor its rows whole cache lines, nor long.
    """
    (rows, columns), out = facts.static_sizes, facts.out
    height, line = min(facts.line_of_input, rows), columns * out.dtype.nbytes
    if facts.is_of_whole_lines:
        batch = len(out.shape) > 2 and facts.position == len(facts.tensor.shape) - 2
        if batch and rows * line <= facts.caches.l1:
            return _packed(facts, rows, columns, columns, rows * columns)
        if height * line <= facts.caches.l2 // 16:
            return _of_whole_lines(facts, height)
    if line >= (_LINE_PARTS if line % LINE_BYTES == 0 else _FEWEST_PARTS) * LINE_BYTES:
        return _of_long_lines(facts, height)
    return Refused(f"rows of {line} bytes are short, and the output is no matrices of whole cache lines")


def _packed(
    facts: TransposeFacts, height: int, width: int, run: int, ahead: int, *, lines_first: bool = False,
    aligned: bool = False,
) -> TransposePlan:  # fmt: skip
    """Tiles of `height` output rows, `width` elements of each, `run` elements of a row before the next rows.

    The prefetch distance in the input is `ahead` elements; whole rows are copied first (`lines_first`) where a cache
    could not keep the rest of them while a part is used. `aligned`: tiles of the output begin at cache lines of memory.
    """
    last = facts.out.ndim - 1
    return TransposePlan(
        facts, (Step(last, run), Step(facts.number, height), Step(last, width)), outside=2, copied=2,
        stored=() if aligned else (facts.elements_stored(width),), aligned=aligned,
        fused=not aligned and width == run and facts.is_all_read, lines_first=-1 if lines_first else None,
        ahead=ahead if lines_first else ahead + facts.block - 1,  # a block that begins in a line may end in the next
    )  # fmt: skip


def _of_whole_lines(facts: TransposeFacts, height: int) -> TransposePlan:
    """Tiles of whole output rows; wider ones, prefetched less far, where input rows conflict in cache sets."""
    rows, columns = facts.static_sizes
    lines_first = facts.has_set_conflicts and facts.tensor.dtype.nbytes == 1  # tiles of bytes have the most lines
    tiles_ahead = 1 if facts.has_set_conflicts and not lines_first else _TILES_AHEAD
    height = min(height * _TILES_AHEAD // tiles_ahead, rows)
    return _packed(facts, height, columns, columns, height * tiles_ahead, lines_first=lines_first)


def _of_long_lines(facts: TransposeFacts, height: int) -> TransposePlan:
    """Tiles of so many input rows that the L2 cache keeps the rest of their cache lines.

    The rest is a part of the next tile where rows begin anywhere.
    """
    (rows, columns), l2, unaligned = facts.static_sizes, facts.caches.l2, facts.has_unaligned_rows
    whole_rows = rows == facts.row_stride and rows * facts.tensor.dtype.nbytes <= _WHOLE_ROW_BYTES
    width = min(max(_LINE_PARTS * facts.line, facts.lanes), columns)
    run = min(max(l2 // (16 * LINE_BYTES) // width, 1) * width, columns)
    ahead = min(_ROWS_AHEAD, max(l2 // facts.stride_alignment, facts.block)) * facts.row_stride
    height = rows if whole_rows else height
    return _packed(facts, height, width, run, ahead, lines_first=facts.has_set_conflicts, aligned=unaligned)


_ROWS = 256
"""Elements of an input row that tiles take, one after the other."""
_PLANES = 16
"""Elements of an input row where output rows lie planes apart, so that few streams are written together: a cache line
of float32, a part of one of narrower types, whose rest is then found in the L2 cache."""
_LONG_BYTES = 1024
"""Least bytes of an output row for tiles to follow it, not the input's rows, where memory is streamed."""
_RUN_BYTES = 2048
"""Bytes of an output row that these tiles take before they move on along the input's rows."""


def tiles_along_output(facts: TransposeFacts) -> TransposePlan | Refused:
    """Tiles along output rows; refused where the caches hold both tensors, or rows of the output are short.

    Where the L2 cache could not keep input rows until they are used up, they are copied first.
    """
    rows, columns, nbytes = facts.rows, facts.columns, facts.out.dtype.nbytes
    both = constant_size(facts.out.shape) * (facts.tensor.dtype.nbytes + nbytes)
    if both <= max(facts.caches.l2, facts.caches.l3):
        return Refused(f"the caches hold both tensors, of {both} bytes")
    if not isinstance(rows, int) or not isinstance(columns, int) or columns * nbytes < _LONG_BYTES:
        return Refused(f"output rows are dynamic or shorter than {_LONG_BYTES} bytes")
    planes = facts.number < facts.out.ndim - 2
    height = max(min(facts.line_of_input, _PLANES) if planes else facts.line_of_input, facts.block)
    conflict = facts.caches.l2 // facts.stride_alignment < 2 * _ROWS_AHEAD
    run = min(_RUN_BYTES // nbytes, columns)
    return _plain(facts, height if rows >= height else facts.block, run, lines_first=conflict)


def tiles_along_input(facts: TransposeFacts) -> TransposePlan:
    """Tiles along input rows, of even height, enough of them for an even share to each core."""
    rows, out, number = facts.rows, facts.out, facts.number
    most = _ROWS if number == out.ndim - 2 else max(_PLANES, facts.line_of_input)
    if not isinstance(rows, int):
        return _plain(facts, most)
    others = constant_size([*out.shape[:number], *out.shape[number + 1 : -1]])
    others *= -(-constant_size(out.shape[-1:]) // _width(facts))
    parts = max(-(-rows // most), min(-(-SHARES * facts.target.num_cores // others), rows // facts.block))
    return _plain(facts, -(-rows // parts // facts.block) * facts.block if parts > 1 else 0)


def _plain(facts: TransposeFacts, height: int, run: int = 0, *, lines_first: bool = False) -> TransposePlan:
    """Tiles of `height` elements of the input's rows (0: all), a cache line of each of the output's, for any transpose.

    They follow the input's rows or, with `run`, the output's: so many elements of each before they move on along the
    input's.
    """
    last, width = facts.out.ndim - 1, _width(facts)
    around = [Step(axis, by) for axis, by in ((last, run), (facts.number, height)) if by]
    along = len(around)
    return TransposePlan(
        facts, (*around, Step(last, width), Step(facts.number, facts.block)), outside=along if run else along + 1,
        copied=along + 1, unrolled=True, lines_first=along if lines_first else None,
        ahead=_ROWS_AHEAD * facts.row_stride if run else 0, written_ahead=width if run else 0,
    )  # fmt: skip


def _width(facts: TransposeFacts) -> int:
    """Elements of an output row in a tile: a cache line, or a vector or two."""
    columns, lanes = facts.columns, facts.lanes
    return next(w for w in (max(facts.line, lanes), 2 * lanes, lanes) if not isinstance(columns, int) or w <= columns)
