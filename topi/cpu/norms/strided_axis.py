"""Softmax and normalisations along a strided axis on CPUs: blocks of adjacent columns, over whose rows stages pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused, Serves, first_of, note, serves_if
from relayc.te.rewrite import map_reads
from relayc.te.tir import IterVar, PrimExpr, ProducerLoad, Range, Var
from relayc.topi.cpu.column_blocks import ColumnPlan, Columns, Loops, StagePass, prefetch_columns, prefetch_later_rows
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.elements import element_cost, vectorize_elements
from relayc.topi.cpu.norms.facts import RowFacts, inline_all_but, is_worth_keeping
from relayc.topi.cpu.norms.strided_softmax import softmax_by_parts, unshifted_block_lines, unshifted_softmax_in_blocks
from relayc.topi.cpu.prefetch import LINE_BYTES, is_beyond_caches, is_streamed, rows_ahead
from relayc.topi.cpu.reductions.lines import add_up_in_registers, add_up_lines, lines_per_step
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.groups import constant_size, extent_of, is_static, iterations, uses_reduction
from relayc.topi.registry import operations_behind
from relayc.topi.utils import ravel_index, unravel_index

__all__ = ["is_worth_copying", "schedule_strided_axis"]

_FEWEST_ROWS_OF_PARTS = 40
_LEAST_BYTES_OF_PARTS = 2048
"""Least rows, and bytes of columns, that are worth splitting into parts: smaller ones have too much overhead."""
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
"""Divisor of the L2 size: the most bytes of a copied block."""
_SHARE_OF_REGISTERS = 4
"""Divisor of the vector registers: how many hold sums of squares; as many hold means."""


@dataclass(frozen=True, eq=False)
class StridedKernel:
    """A kernel of rows along a strided axis, rewritten so that its columns are one dimension where they can be.

    `before`: the stages in front of the anchor that are computed once per row. `copied`: whether blocks of the input
    are worth copying, and `copy` the stage that does. `few`: whether registers hold a column of every row. `collapsed`:
    whether columns are one dimension.
    """

    s: te.Schedule
    rows: RowFacts
    columns: Columns
    before: list[te.ComputeOp]
    few: Serves | Refused
    copied: Serves | Refused
    collapsed: Serves | Refused

    @staticmethod
    def of(rows: RowFacts) -> StridedKernel:
        """The kernel, of which nothing is scheduled but that elementwise stages are inlined."""
        s, (axis, *_), target = rows.create_schedule(), rows.axes, rows.target
        few = _fits_in_registers(Columns(rows.out, axis, target), _stages_before(rows))
        copied = Refused("registers hold a column of every row") if few else is_worth_copying(rows)
        anchor = _with_cached_input(s, rows) if copied else rows.anchor
        anchor = _collapse_columns(s, anchor, axis, [rows.of(rows.out, anchor).elements.op] if copied else [])
        rows = rows.of(s.outputs[0].output(0), anchor)
        apart = "columns span dimensions that are not contiguous in all stages"
        collapsed = serves_if(len(anchor.axis) == axis + 2, apart)
        columns = Columns(rows.out, axis, target)
        kernel = StridedKernel(s, rows, columns, _stages_before(rows), few, copied, collapsed)
        copy = [] if kernel.copy is None else [kernel.copy.op]
        inline_all_but(s, rows.out, [*kernel.before, *copy])
        return kernel

    @property
    def copy(self) -> te.Tensor | None:
        """The stage that copies blocks of the input; None where none are."""
        return self.rows.elements if self.copied and self.collapsed else None

    @cached_property
    def work(self) -> float:
        """Scalar operations of the kernel, roughly."""
        return constant_size(self.columns.out.shape) * element_cost([*self.before, *self.rows.around[1]])


def schedule_strided_axis(rows: RowFacts) -> te.Schedule:
    """Schedule rows along a strided axis: blocks of adjacent columns, over whose lines every stage passes."""
    kernel = StridedKernel.of(rows)
    first_of("columns", [(name, partial(candidate, kernel)) for name, candidate in _CANDIDATES])
    return kernel.s


def _by_parts(kernel: StridedKernel) -> Serves | Refused:
    """Softmax, column block by column block, of parts of rows or with unshifted exponentials: see `strided_softmax`."""
    s, anchor, columns, target = kernel.s, kernel.rows.anchor, kernel.columns, kernel.rows.target
    largest = next((op for op in kernel.before if op.tag == "softmax_max"), None)
    if not kernel.collapsed:
        return kernel.collapsed
    if largest is None or anchor.attrs.get("log"):
        return Refused("no softmax, or its logarithm")
    worth = _is_worth_parts(columns)
    if worth and (lines := unshifted_block_lines(columns)):
        unshifted_softmax_in_blocks(s, anchor, lines, kernel.work, target)
    elif worth:
        keep = any(not uses_reduction(op) for op in kernel.before)
        softmax_by_parts(s, anchor, largest, keep, kernel.work, target)
    return worth


def _in_copied_blocks(kernel: StridedKernel) -> Serves | Refused:
    """Copy and accumulate each column block in one pass, which also stores the results of the block before.

    The copy has up to 512 bytes of each row contiguously, so cache-set conflicts between rows don't matter; memory
    reads and writes overlap.
    """
    s, columns, target, copy = kernel.s, kernel.columns, kernel.rows.target, kernel.copy
    if copy is None:
        return kernel.collapsed if kernel.copied else kernel.copied
    line, lanes, few = columns.line, vector_lanes(target), has_few_fill_buffers(target)
    nbytes = _BLOCK_BYTES
    if few and columns.are_whole_lines and not columns.have_set_conflicts:
        nbytes = _BLOCK_BYTES_FEW_BUFFERS
    width = nbytes // columns.out.dtype.nbytes
    statistics = [op.output(0) for op in kernel.before if uses_reduction(op)]
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
    _, loops = plan.apply(s, columns, [copied, *map(passed, statistics)], kernel.work)
    s[columns.out].unroll(loops[columns.out].vectors)
    later = rows_ahead(nbytes)
    prefetch_later_rows(s, columns, copy, loops[copy].vectors, line, rows=later, step=plan.step(columns))
    return True


def _in_registers(kernel: StridedKernel) -> Serves | Refused:
    """Keep a vector for each element of a row in registers, so that memory is read once, whatever the caches hold."""
    s, columns = kernel.s, kernel.columns
    if not kernel.few or not kernel.collapsed:
        return kernel.few if kernel.collapsed else kernel.collapsed
    plan = ColumnPlan(columns.line, columns.line, unrolled=columns.rows)
    note("block", "registers", plan)
    passes = [StagePass(op.output(0), columns.line, unroll="rows") for op in kernel.before]
    _, loops = plan.apply(s, columns, passes, kernel.work)
    _prefetch_blocks_ahead(kernel, plan, loops)
    return True


def _in_column_blocks(kernel: StridedKernel) -> Serves | Refused:
    """Compute a cache line of each row at a time: a column block stays in L1, its statistics in registers.

    Results of a block are stored while the next block is first read, so that neither's arithmetic waits for memory.
    """
    s, columns, target = kernel.s, kernel.columns, kernel.rows.target
    fits = _fits_in_blocks(columns) if kernel.collapsed else kernel.collapsed
    if not fits:
        return fits
    width = _block_width(columns)
    plan = ColumnPlan(width, width, unrolled=lines_per_step(columns.rows))
    note("block", "cache lines", plan)
    elementwise = [StagePass(op.output(0), width) for op in kernel.before if not op.reduce_axis]
    block, loops = plan.apply(s, columns, elementwise, kernel.work)
    for op in [op for op in kernel.before if op.reduce_axis]:
        for stage in add_up_in_registers(s, op.output(0), vector_lanes(target)):
            s[stage].compute_at(s[columns.out], block)
    if is_streamed(columns.out, width, target):
        _prefetch_blocks_ahead(kernel, plan, loops)
    return True


def _in_blocks(kernel: StridedKernel) -> Serves:
    """Split the last dimensions, or dimension, into blocks that stay in L2, and run every stage block by block."""
    s, columns, axis, target = kernel.s, kernel.columns, kernel.columns.axis, kernel.rows.target
    out, lanes, axes = columns.out, vector_lanes(target), s[columns.out].op.axis[axis + 1 if kernel.collapsed else -1 :]
    sizes, outer = [extent_of(a) for a in axes], s[out].op.axis[: -len(axes)]
    known, block = is_static(sizes), _block_columns(columns, constant_size(sizes))
    note("block", "in L2", columns=block)
    part, within = s[out].split(s[out].fuse(*axes), factor=block, tail="shift" if known else "guard")
    s[out].reorder(*outer[:axis], *outer[axis + 1 :], part, outer[axis], within)
    group = s[out].fuse(*outer[:axis], *outer[axis + 1 :], part)
    parallel(s, out, group, kernel.work, lanes)
    vectorize_elements(s, out, within, block, lanes)
    for op in kernel.before:
        result = op.output(0)
        s[result].compute_at(s[out], group)
        if op.reduce_axis:
            add_up_lines(s, result, lanes)
        else:
            busy = vectorize_elements(s, result, op.axis[-1], block, lanes)
            if len(outer) == axis + 1 and known and block >= 4 * lanes and is_streamed(out, block, target):
                _prefetch_ahead(s, result, busy, columns, 2 * lanes, block)
    return True


_CANDIDATES: tuple[tuple[str, Callable[[StridedKernel], Serves | Refused]], ...] = (
    ("parts of rows", _by_parts), ("copied blocks", _in_copied_blocks), ("registers", _in_registers),
    ("cache lines of every row", _in_column_blocks), ("blocks", _in_blocks),
)  # fmt: skip


def _stages_before(rows: RowFacts) -> list[te.ComputeOp]:
    """Return the stages in front of the anchor that are computed once per row."""
    return [op for op in rows.around[0] if uses_reduction(op) or op in rows.kept]


def _with_cached_input(s: te.Schedule, rows: RowFacts) -> te.Operation:
    """Return the anchor reading its elements from a stage that can be buffered: a computed one, or a `cache_read`."""
    x = rows.elements
    if isinstance(x.op, te.PlaceholderOp):
        s.cache_read(x, "local", [op for op in rows.stages if x in op.input_tensors])
    return s.current(rows.result).op


def _collapse_columns(s: te.Schedule, anchor: te.Operation, axis: int, keep: Sequence[te.Operation]) -> te.Operation:
    """Collapse the dimensions behind `axis` of `anchor` and of the stages it reads, which have statistics along `axis`.

    So planes of images are one run of columns. `keep`: stages to be computed once for all passes, besides those that
    `is_worth_keeping` names. Returns the new anchor operation, whose result is read back in the original shape. Nothing
    changes where there is one dimension already, sizes are dynamic, or elements are not read at their own indices.
    """
    shape = anchor.output(0).shape[axis + 1 :]
    sizes = [d for d in shape if isinstance(d, int)]
    if len(shape) < 2 or len(sizes) < len(shape):
        return anchor
    collapsed: dict[te.Tensor, te.Tensor] = {}
    ops = [op for op in operations_behind([anchor.output(0)]) if isinstance(op, te.ComputeOp)]
    for op in ops:
        if op in keep or uses_reduction(op) or is_worth_keeping(op, ops, anchor, in_l1=False):
            if op.num_outputs > 1 or not _reads_own_index(op, collapsed, len(sizes)):
                return anchor
            collapsed[op.output(0)] = _collapse(op, collapsed, sizes).output(0)
    flat = collapsed[anchor.output(0)]
    in_shape = lambda *i: flat(*i[: axis + 1], ravel_index(i[axis + 1 :], sizes))  # noqa: E731
    s.recompute(anchor.output(0), te.compute(anchor.output(0).shape, in_shape, name=anchor.name, tag="injective"))
    return flat.op


def _reads_own_index(op: te.ComputeOp, collapsed: dict[te.Tensor, te.Tensor], count: int) -> bool:
    """True if inputs that will be collapsed are read at the element's own indices in the last `count` dimensions."""
    own = tuple([axis.var for axis in op.axis[-count:]])
    loads = [e for e in post_order(op.body) if isinstance(e, ProducerLoad) and e.producer in collapsed]
    return all(a is b for load in loads for a, b in zip(load.indices[-count:], own, strict=True))


def _collapse(op: te.ComputeOp, collapsed: dict[te.Tensor, te.Tensor], sizes: Sequence[int]) -> te.ComputeOp:
    """Return the operation with its last dimensions, of `sizes`, collapsed into one."""
    count = len(sizes)
    column = IterVar(Range(0, prod(sizes)), Var("column"), "data")
    places = unravel_index(column.var, sizes)
    values = {axis.var: place for axis, place in zip(op.axis[-count:], places, strict=True)}

    def read(load: ProducerLoad) -> PrimExpr:
        flat = collapsed.get(load.producer)
        return load if flat is None else flat(*load.indices[:-count], column.var)

    body = [map_reads(e, read, values) for e in op.body]
    return te.ComputeOp(op.name, op.tag, op.attrs, [*op.axis[:-count], column], body)


def is_worth_copying(facts: RowFacts) -> Serves | Refused:
    """True for a norm along a strided axis whose rows exceed the caches or conflict in them, while a block fits L2."""
    out, target = facts.out, facts.target
    columns = Columns(out, facts.axes[0], target)
    norm, rows = facts.anchor.tag in ("standardize", "l2_normalize"), columns.rows
    if not facts.has_one_result or not norm or not columns.are_static or out.dtype.nbytes < 4:
        return Refused("no norm of one result of a static shape, in at least 32 bits")
    if uses_reduction(facts.elements.op) or rows * _BLOCK_BYTES * _SHARE_OF_L2 > target.cache_bytes.l2:
        return Refused(f"elements are reduced ones, or {rows} rows of {_BLOCK_BYTES} bytes exceed half of L2")
    by_lines = columns.are_stored_by_lines or columns.are_whole_lines
    if columns.row_bytes < 2 * _BLOCK_BYTES or not by_lines:
        return Refused("rows are shorter than two blocks, or are not stored by whole cache lines")
    large = rows > _FEW_ROWS and is_beyond_caches(out, target)
    return serves_if(large or columns.have_set_conflicts, "the caches hold the rows, without set conflicts")


def _is_worth_parts(columns: Columns) -> Serves | Refused:
    """True if splitting rows into parts pays: column blocks exceed the caches, or the results use non-temporal stores.

    Column blocks of other types than float32 are bound by conversions or float64 arithmetic, not by a second pass.
    """
    nbytes, rank = columns.out.dtype.nbytes, len(columns.out.shape)
    if not columns.are_static:
        return Refused("the shape is dynamic")
    if columns.rows < _FEWEST_ROWS_OF_PARTS or columns.row_bytes < _LEAST_BYTES_OF_PARTS:
        least = f"{_FEWEST_ROWS_OF_PARTS} rows of {_LEAST_BYTES_OF_PARTS} bytes"
        return Refused(f"{columns.rows} rows of {columns.row_bytes} bytes; parts pay from {least} on")
    streamed = columns.are_stored_by_lines
    if rank > columns.axis + 2 and not columns.are_whole_lines:  # shorter vectors are compute-bound
        streamed = streamed and vector_lanes(columns.target) * nbytes >= LINE_BYTES
    if _fits_in_blocks(columns):
        pays = streamed and nbytes == 4
        return serves_if(pays, "L2 holds column blocks, and results are not float32 in non-temporal stores")
    return serves_if(streamed or not columns.have_set_conflicts, "rows have cache-set conflicts")


def _fits_in_registers(columns: Columns, before: list[te.ComputeOp]) -> Serves | Refused:
    """True if registers hold a vector for each element of a row, while cache-set conflicts keep caches from it.

    Vectors must be cache lines, with results in non-temporal stores. Kernels with more arithmetic than a softmax would
    unroll to too much code.
    """
    if not columns.are_static or not all(uses_reduction(op) for op in before):
        return Refused("the shape is dynamic, or values beside the statistics are kept")
    nbytes, most = columns.out.dtype.nbytes, columns.target.vector_registers - _OTHER_REGISTERS
    whole = columns.are_whole_lines and vector_lanes(columns.target) * nbytes == LINE_BYTES
    if nbytes != 4 or not whole or not columns.are_stored_by_lines:
        return Refused("vectors are no cache lines, or results are no whole cache lines in non-temporal stores")
    if columns.rows > most:
        return Refused(f"{columns.rows} rows exceed {most} registers")
    return serves_if(columns.have_set_conflicts, "rows have no cache-set conflicts: the caches hold them")


def _fits_in_blocks(columns: Columns) -> Serves | Refused:
    """True if there are at least two column blocks, so small that L2 holds them and the next ones.

    False where all columns are one block in L2, already in order, and under cache-set conflicts along rows.
    """
    if not columns.are_static:
        return Refused("the shape is dynamic")
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


def _prefetch_blocks_ahead(kernel: StridedKernel, plan: ColumnPlan, loops: dict[te.Tensor, Loops]) -> None:
    """Prefetch with each row of a block what is read and written some blocks later, in the stage that keeps rows."""
    columns = kernel.columns
    kept = [op.output(0) for op in kernel.before if not op.reduce_axis and len(op.axis) > columns.axis + 1]
    stage = (columns.out, *kept)[-1]
    _prefetch_ahead(kernel.s, stage, loops[stage].rows, columns, plan.width, _BLOCKS_AHEAD * plan.width)


def _prefetch_ahead(
    s: te.Schedule, stage: te.Tensor, loop: te.IterVar, columns: Columns, width: int, ahead: int
) -> None:
    """Prefetch, in each iteration of `loop`, the `width` columns of a line that are read and written `ahead` later."""
    axis = columns.axis
    own = [iterations([a]) for a in s[stage].op.axis[axis + 1 :]]

    def place(*i: Any) -> tuple[Any, Any]:
        return i[axis], ravel_index(i[axis + 1 : axis + 1 + len(own)], own) + ahead

    prefetch_columns(s, columns, stage, loop, width, place)


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
