"""Softmax and normalisations along a strided axis on CPUs: blocks of adjacent columns, over whose rows stages pass."""

from __future__ import annotations

from functools import partial

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, first_of, note, serves_if
from relayc.topi.candidates import Candidate
from relayc.topi.cpu.column_blocks import ColumnPlan, Columns, Loops, StagePass, prefetch_columns
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.norms.facts import RowFacts, inline_all_but
from relayc.topi.cpu.prefetch import LINE_BYTES, is_beyond_caches, is_streamed, rows_ahead
from relayc.topi.cpu.reductions.lines import add_up_in_registers, add_up_lines, lines_per_step
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.groups import constant_size, extent_of, uses_reduction
from relayc.topi.unshifted_softmax import is_logarithm, speculate, stages_of

__all__ = ["is_worth_copying", "schedule_strided"]

_BLOCK_LINES = (32, 16, 8)
"""Cache lines of each row in an unshifted block: the first for which L2 holds the exponentials, or the last: with fewer
the line that unaligned blocks share is too much."""
_FEWEST_ROWS = 40
_LEAST_BYTES = 2048
"""Least rows, and bytes of columns, that are worth unshifted blocks: smaller ones have too much overhead."""
_OTHER_REGISTERS = 8
"""Vector registers for the exponential of a vector, its maximum and its sum."""
_BLOCKS_AHEAD = 4
"""Prefetch distance in column blocks, for reads and writes: a longer one evicts data still in use."""
_BLOCK_BYTES = 512
"""Bytes of each row in a copied block: less reads slowly under cache-set conflicts, more is no faster."""
_BLOCK_BYTES_FEW_BUFFERS = 256
"""`_BLOCK_BYTES` on cores with few line-fill buffers, for rows of whole cache lines without set conflicts."""
_FEW_ROWS = 28
"""Rows that the hardware prefetcher follows as concurrent streams, unless they have cache-set conflicts."""
_SHARE_OF_L2 = 2
"""Divisor of the L2 size: the most bytes of a copied block, and of the exponentials of an unshifted one."""
_SHARE_OF_REGISTERS = 4
"""Divisor of the vector registers: how many hold sums of squares; as many hold means."""


def _unshifted(rows: RowFacts) -> te.Schedule | Refused:
    """Softmax larger than the LLC, by column blocks whose exponentials L2 holds, so that memory is read for them once.

    Unshifted exponentials are computed and added up row by row as they are read; maxima, in a pass of their own, only
    where the speculation fails. That pays where column blocks exceed the caches, or results use non-temporal stores;
    column blocks of other types than float32 are bound by conversions or float64 arithmetic, not by a second pass.
    """
    columns, streamed = rows.columns, rows.columns.are_stored_by_lines
    if rows.anchor.tag != "softmax" or is_logarithm(rows.anchor):
        return Refused("no softmax, or its logarithm")
    if columns.rows < _FEWEST_ROWS or columns.row_bytes < _LEAST_BYTES:
        least = f"{_FEWEST_ROWS} rows of {_LEAST_BYTES} bytes"
        return Refused(f"{columns.rows} rows of {columns.row_bytes} bytes; unshifted blocks pay from {least} on")
    if _fits_in_blocks(columns):
        if not streamed or columns.out.dtype.nbytes != 4:
            return Refused("L2 holds column blocks, and results are not float32 in non-temporal stores")
    elif not streamed and columns.have_set_conflicts:
        return Refused("rows have cache-set conflicts")
    s, (axis,), lanes = rows.create_schedule(), rows.axes, vector_lanes(rows.target)
    line, room = columns.line, rows.target.cache_bytes.l2 // _SHARE_OF_L2
    of_a_line = columns.rows * line * stages_of(rows.anchor)[1].dtype.nbytes
    *fitting, least = [n for n in _BLOCK_LINES if 2 * n * LINE_BYTES <= columns.row_bytes]  # there are two blocks
    lines = next((n for n in fitting if n * of_a_line <= room), least)
    exponentials, sums, _ = speculate(s, rows.anchor, axis, keep=True)
    assert exponentials is not None
    inline_all_but(s, rows.out, rows.statistics)
    plan = ColumnPlan(lines * line, line, aligned=columns.are_stored_by_lines and not columns.are_whole_lines)
    note("block", "unshifted", plan)
    passes = [StagePass(op.output(0), lanes, unroll="vectors" if op.reduce_axis else "") for op in rows.statistics]
    plan.apply(s, columns, passes, rows.work)
    loops = StagePass(exponentials, max(lanes, line), fused=exponentials.op.axis[axis]).apply(s)
    StagePass(sums, lanes, unroll="vectors", fused=sums.op.reduce_axis[0]).apply(s)
    prefetch_columns(s, columns, exponentials, loops.vectors, line, plan.step(columns), rows_ahead(lines * LINE_BYTES))
    return s


def _in_registers(rows: RowFacts) -> te.Schedule | Refused:
    """Keep a vector for each element of a row in registers, so that memory is read once, whatever the caches hold.

    Vectors must be cache lines, with results in non-temporal stores. Kernels with more arithmetic than a softmax would
    unroll to too much code.
    """
    columns, nbytes, most = rows.columns, rows.out.dtype.nbytes, rows.target.vector_registers - _OTHER_REGISTERS
    if rows.kept:
        return Refused("values beside the statistics are kept")
    whole = columns.are_whole_lines and vector_lanes(rows.target) * nbytes == LINE_BYTES
    if nbytes != 4 or not whole or not columns.are_stored_by_lines:
        return Refused("vectors are no cache lines, or results are no whole cache lines in non-temporal stores")
    if columns.rows > most:
        return Refused(f"{columns.rows} rows exceed {most} registers")
    if not columns.have_set_conflicts:
        return Refused("rows have no cache-set conflicts: the caches hold them")
    s, plan = _started(rows), ColumnPlan(columns.line, columns.line, unrolled=columns.rows)
    note("block", "registers", plan)
    passes = [StagePass(op.output(0), columns.line, unroll="rows") for op in rows.of_rows]
    _, loops = plan.apply(s, columns, passes, rows.work)
    _prefetch_blocks_ahead(s, rows, plan, loops)
    return s


def _in_copied_blocks(rows: RowFacts) -> te.Schedule | Refused:
    """Copy and accumulate each column block in one pass, which also stores the results of the block before.

    The copy has up to 512 bytes of each row contiguously, so cache-set conflicts between rows don't matter; memory
    reads and writes overlap.
    """
    worth, x = is_worth_copying(rows), rows.elements
    if not worth:
        return worth
    s = rows.create_schedule()
    if isinstance(x.op, te.PlaceholderOp):
        s.cache_read(x, "local", [op for op in rows.stages if x in op.input_tensors])
    rows = rows.of(s.outputs[0].output(0), s.current(rows.result).op)
    columns, target, copy = rows.columns, rows.target, rows.elements
    inline_all_but(s, rows.out, [*rows.of_rows, copy.op])
    line, lanes, few = columns.line, vector_lanes(target), has_few_fill_buffers(target)
    nbytes = _BLOCK_BYTES
    if few and columns.are_whole_lines and not columns.have_set_conflicts:
        nbytes = _BLOCK_BYTES_FEW_BUFFERS
    width = nbytes // columns.out.dtype.nbytes
    statistics = [op.output(0) for op in rows.statistics]
    first = next(t for t in statistics if t.op.reduce_axis)
    in_registers = min(target.vector_registers // _SHARE_OF_REGISTERS * lanes, width)

    def passed(tensor: te.Tensor) -> StagePass:
        if tensor is first:  # fused with the copy, so that the reduction needs no pass of its own
            return StagePass(tensor, LINE_BYTES // tensor.dtype.nbytes, 0, "vectors", tensor.op.reduce_axis[0])
        if tensor.op.reduce_axis:  # as many columns at a time as have their sums in registers
            return StagePass(tensor, lanes, in_registers, "vectors")
        return StagePass(tensor, LINE_BYTES // tensor.dtype.nbytes)

    plan = ColumnPlan(width, line, aligned=not columns.are_whole_lines)
    note("block", "copied", plan)
    unroll = "" if few else "vectors"  # unrolling would issue all prefetches of a row at once
    copied = StagePass(copy, LINE_BYTES // copy.dtype.nbytes, 0, unroll, s[copy].op.axis[-2])
    _, loops = plan.apply(s, columns, [copied, *map(passed, statistics)], rows.work)
    s[columns.out].unroll(loops[columns.out].vectors)
    prefetch_columns(s, columns, copy, loops[copy].vectors, line, plan.step(columns), rows_ahead(nbytes))
    return s


def _in_column_blocks(rows: RowFacts) -> te.Schedule | Refused:
    """Compute a cache line of each row at a time: a column block stays in L1, its statistics in registers.

    Results of a block are stored while the next block is first read, so that neither's arithmetic waits for memory.
    """
    fits, columns, target = _fits_in_blocks(rows.columns), rows.columns, rows.target
    if not fits:
        return fits
    s, width = _started(rows), _block_width(columns)
    plan = ColumnPlan(width, width, unrolled=lines_per_step(columns.rows))
    note("block", "cache lines", plan)
    elementwise = [StagePass(op.output(0), width) for op in rows.of_rows if not op.reduce_axis]
    block, loops = plan.apply(s, columns, elementwise, rows.work)
    for op in [op for op in rows.of_rows if op.reduce_axis]:
        for stage in add_up_in_registers(s, op.output(0), vector_lanes(target)):
            s[stage].compute_at(s[columns.out], block)
    if is_streamed(columns.out, width, target):
        _prefetch_blocks_ahead(s, rows, plan, loops)
    return s


def _in_blocks(rows: RowFacts) -> te.Schedule:
    """Split the last dimension into blocks that stay in L2, and run every stage block by block."""
    s, columns, (axis,), target = _started(rows), rows.columns, rows.axes, rows.target
    out, lanes, (*outer, last) = rows.out, vector_lanes(target), s[rows.out].op.axis
    size = extent_of(last)
    known, block = isinstance(size, int), _block_columns(columns, constant_size([size]))
    note("block", "in L2", columns=block)
    part, within = s[out].split(last, factor=block, tail="shift" if known else "guard")
    s[out].reorder(*outer[:axis], *outer[axis + 1 :], part, outer[axis], within)
    group = s[out].fuse(*outer[:axis], *outer[axis + 1 :], part)
    parallel(s, out, group, rows.work, lanes)
    vectorize_elements(s, out, within, block, lanes)
    for op in rows.of_rows:
        result = op.output(0)
        s[result].compute_at(s[out], group)
        if op.reduce_axis:
            add_up_lines(s, result, lanes)
        else:
            busy, are_rows = vectorize_elements(s, result, op.axis[-1], block, lanes), len(op.axis) == out.ndim
            if rows.columns_are_one_run and are_rows and block >= 4 * lanes and is_streamed(out, block, target):
                prefetch_columns(s, columns, result, busy, 2 * lanes, block)
    return s


_OF_ONE_RUN: tuple[Candidate[RowFacts], ...] = (
    ("unshifted blocks", _unshifted),
    ("registers", _in_registers),
    ("copied blocks", _in_copied_blocks),
    ("cache lines of every row", _in_column_blocks),
)
"""How rows whose columns are one run of memory are scheduled, in the order in which that is tried."""


def schedule_strided(rows: RowFacts) -> te.Schedule:
    """Schedule rows along a strided axis."""
    others, run = Refused("a dynamic shape, or not one dimension of rows and one of columns"), rows.columns_are_one_run
    candidates = [(name, partial(candidate, rows) if run else lambda: others) for name, candidate in _OF_ONE_RUN]
    return first_of("columns", [*candidates, ("blocks", partial(_in_blocks, rows))])


def _started(rows: RowFacts) -> te.Schedule:
    """A schedule in which only the stages of rows are not inlined."""
    s = rows.create_schedule()
    inline_all_but(s, rows.out, rows.of_rows)
    return s


def is_worth_copying(rows: RowFacts) -> Serves | Refused:
    """True for a norm along a strided axis whose rows exceed the caches or conflict in them, while a block fits L2."""
    out, target, columns = rows.out, rows.target, rows.columns
    if not rows.has_one_result or rows.anchor.tag not in ("standardize", "l2_normalize") or out.dtype.nbytes < 4:
        return Refused("no norm of one result, in at least 32 bits")
    if uses_reduction(rows.elements.op) or columns.rows * _BLOCK_BYTES * _SHARE_OF_L2 > target.cache_bytes.l2:
        return Refused(f"elements are reduced ones, or {columns.rows} rows of {_BLOCK_BYTES} bytes exceed half of L2")
    by_lines = columns.are_stored_by_lines or columns.are_whole_lines
    if columns.row_bytes < 2 * _BLOCK_BYTES or not by_lines:
        return Refused("rows are shorter than two blocks, or are not stored by whole cache lines")
    large = columns.rows > _FEW_ROWS and is_beyond_caches(out, target)
    return serves_if(large or columns.have_set_conflicts, "the caches hold the rows, without set conflicts")


def _fits_in_blocks(columns: Columns) -> Serves | Refused:
    """True if there are at least two column blocks, so small that L2 holds them and the next ones.

    False where all columns are one block in L2, already in order, and under cache-set conflicts along rows.
    """
    width = _block_width(columns)
    if columns.count < 2 * width or _block_columns(columns, columns.count) == columns.count:
        return Refused(f"{columns.count} columns are fewer than two blocks, or one block in L2")
    kept, room = columns.rows * width * max(columns.out.dtype.nbytes, 4), columns.target.cache_bytes.l2 // 10
    if kept > room:
        return Refused(f"a block of {kept} bytes exceeds a tenth of L2, {room} bytes")
    return serves_if(not columns.have_set_conflicts, "rows have cache-set conflicts")


def _block_width(columns: Columns) -> int:
    """Columns of a block: whole cache lines of the result, at least two vectors."""
    return max(columns.line, 2 * vector_lanes(columns.target))


def _prefetch_blocks_ahead(
    s: te.Schedule, rows: RowFacts, plan: ColumnPlan, loops: dict[te.Tensor, Loops]
) -> None:
    """Prefetch with each row of a block what is read and written some blocks later, in the stage that keeps rows."""
    stage = (rows.out, *[op.output(0) for op in rows.of_rows if len(op.axis) == rows.result.ndim])[-1]
    prefetch_columns(s, rows.columns, stage, loops[stage].rows, plan.width, _BLOCKS_AHEAD * plan.width)


def _block_columns(columns: Columns, count: int) -> int:
    """Return the columns of a block, which divides `count` of them as evenly as can be.

    A block is two cache lines of each row if what is read, kept, written and prefetched fits half of L1, else it takes
    an eighth of L2. Under cache-set conflicts, where few lines stay, it has 512 bytes of each row: these are finished
    quickly, and memory bandwidth is as good as for more.
    """
    nbytes, caches = max(columns.out.dtype.nbytes, 4), columns.target.cache_bytes
    line = LINE_BYTES // nbytes
    if columns.have_set_conflicts:
        most = 8 * line
    elif 4 * columns.rows * 2 * LINE_BYTES <= caches.l1 // 2:
        most = 2 * line
    else:
        most = max(caches.l2 // 8 // (columns.rows * nbytes), 4 * line)
    parts = -(-count // most)
    return min(-(-count // parts // line) * line, count)
