"""Reductions on CPUs: along memory (the last axis) and along a strided axis, where lines are the contiguous runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused, first_of, note
from relayc.te.tir import Call, Cast, Max, Min, PrimExpr, Var
from relayc.topi.cpu.column_blocks import StagePass
from relayc.topi.cpu.common import attach, parallel, reduce_by_vectors
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.prefetch import (
    LINE_BYTES,
    in_sequence,
    inputs_of,
    is_streamed,
    level_of,
    prefetch_ahead,
    prefetch_rows,
    rows_ahead,
)
from relayc.topi.cpu.reductions.lines import add_up_lines, partial_results
from relayc.topi.cpu.reductions.rewrites import compare_as_integers, reduce_lines_first, sum_bytes_in_parts
from relayc.topi.cpu.reductions.short_rows import reduce_short_rows, rows_are_short
from relayc.topi.cpu.tiling import (
    has_few_fill_buffers,
    has_high_latency_llc,
    parallel_worthwhile,
    vector_lanes,
)
from relayc.topi.groups import constant_size, extent_of, inline_injective, iterations
from relayc.topi.registry import Rank, register_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["reduce_across", "reduce_along", "schedule_reduce", "vectorize_reduction"]

_ACCUMULATORS = 4
"""Vector accumulators of partial results: enough to hide the latency of an addition."""
_FEW_LANES = 8
"""Most lanes of a vector that are added up sequentially; of wider vectors, quarters are added first."""
_NARROW_BYTES = 2
"""Bytes of 16-bit results, whose elements are converted."""
_BLOCK = 1024
"""Columns whose partial results a reduction along a strided axis keeps in L1, for 32-bit results; as many bytes for
others."""
_SMALLEST_BLOCK = 256
"""Least columns of a block that several passes take: shorter runs don't stream well."""
_FEW_LINES = 32
"""Most lines that the hardware prefetcher follows as concurrent streams. (48 were slower.)"""
_SHARE_OF_REGISTERS = 8
"""Divisor of the vector registers: how many may hold one result for each column of a cache line."""


def _reduces_last_axis(op: te.Operation) -> bool:
    """True if the innermost reduction axis is contiguous, by its attribute or for lack of a last data axis."""
    return not op.axis or iterations([op.axis[-1]]) == 1 or op.attrs.get("reduces_last_axis", False)


def vectorize_reduction(
    s: te.Schedule, tensor: te.Tensor, lanes: int, at: tuple[te.Tensor, te.IterVar] | None = None
) -> list[te.Tensor]:
    """Split the innermost reduction axis into vectors of partial results; returns the tensors of partial results.

    These are computed at a loop of a tensor, `at`, or by default where the results are, outside of all their loops.
    Several vectors are reduced to one, that to quarters, and those to lanes. Contiguous axes ("reduces_trailing_axes")
    are fused. The list is empty, and the reduction stays scalar, when the axis is too short or several results depend
    on each other. Dynamic lengths are assumed to be long enough.
    """
    contiguous = _contiguous_axes(s[tensor].op)
    axis, length = s[tensor].fuse(*contiguous), iterations(contiguous)
    if length < 2 * lanes or not _are_independent(s[tensor].op):
        return []
    factor = _ACCUMULATORS * lanes if length >= _ACCUMULATORS * lanes else lanes
    _, inner = s[tensor].split(axis, factor=factor)
    partial = [_rfactor_lanes(s, tensor, inner)]
    counts = [lanes] if factor > lanes else []
    while lanes > _FEW_LANES:
        lanes //= 4
        counts.append(lanes)
    for count in counts:
        _, lane = s[tensor].split(s[tensor].op.reduce_axis[0], factor=count)
        partial.append(_rfactor_lanes(s, tensor, lane))
        s[partial[-1]].unroll(s[partial[-1]].op.reduce_axis[0])
    s[tensor].unroll(s[tensor].op.reduce_axis[0])
    if at is not None:
        for stage in partial:
            s[stage].compute_at(s[at[0]], at[1])
    return partial


def _contiguous_axes(op: te.Operation) -> list[te.IterVar]:
    """The reduction axes whose elements are one run of memory for each result."""
    return list(op.reduce_axis) if op.attrs.get("reduces_trailing_axes", False) else [op.reduce_axis[-1]]


def _are_independent(op: te.Operation) -> bool:
    """True if no result of a reduction depends on another one."""
    assert isinstance(op, te.ComputeOp)
    combiner = op.body[0].combiner  # type: ignore[attr-defined]
    several = zip(combiner.result, combiner.lhs, combiner.rhs, strict=True)
    return all({e for e in post_order(result) if isinstance(e, Var)} <= {*own} for result, *own in several)


def _rfactor_lanes(s: te.Schedule, tensor: te.Tensor, lane: te.IterVar) -> te.Tensor:
    """Factor the reduction (`rfactor`) into partial results per `lane`, vectorised innermost.

    The tail of a row is partitioned off as a shorter vector: a mask would keep partial results in memory.
    """
    partial = partial_results(s, tensor, lane)
    s[partial].set_scope("local")
    first, *data = s[partial].op.axis
    *_, over = s[partial].op.reduce_axis
    s[partial].reorder(*data, *s[partial].op.reduce_axis, first)
    for loop in (over, first):
        s[partial].pragma(loop, "loop_partition_hint")
    s[partial].vectorize(first)
    return partial


@dataclass(frozen=True, eq=False)
class Passes:
    """Reductions over the same rows or lines, and `out`, which they are for, or which the only one is.

    `speculation`: the reduction that speculates on the result of the last pass. `narrow`: 16-bit partial sums of which
    the only pass is the sum.
    """

    s: te.Schedule
    out: te.Tensor
    reductions: tuple[te.Tensor, ...]
    target: Target
    speculation: te.Tensor | None = None
    narrow: te.Tensor | None = None

    @property
    def result(self) -> te.Tensor:
        """The result of the last pass."""
        return self.reductions[-1]

    @property
    def is_single(self) -> bool:
        """Whether there is one pass."""
        return len(self.reductions) == 1

    @cached_property
    def length(self) -> int:
        """Elements that are reduced to one result."""
        return max(iterations(self.s[self.result].op.reduce_axis), 1)

    @cached_property
    def work(self) -> float:
        """Scalar operations of a pass, roughly."""
        op = self.s[self.result].op
        return iterations((*op.axis, *op.reduce_axis)) * 2.0

    def part_of_a_core(self, tasks: int) -> int | Refused:
        """Iterations of the first reduction axis for each core, if there are fewer `tasks` to share than cores."""
        cores, extent = self.target.num_cores, self.s[self.result].op.reduce_axis[0].extent
        if not self.is_single:
            return Refused("there are several passes")
        if tasks >= cores:
            return Refused(f"{tasks} results are enough for {cores} cores")
        worthwhile = parallel_worthwhile(self.work, vector_lanes(self.target))
        if not isinstance(extent, int) or extent < 2 * cores or not worthwhile:
            return Refused("the reduction is dynamic, or too short for several cores")
        return -(-extent // cores)

    def split(self, part: int) -> te.Tensor:
        """Split the first reduction axis into parts of so many iterations; returns their partial results."""
        each, _ = self.s[self.result].split(self.s[self.result].op.reduce_axis[0], factor=part)
        return partial_results(self.s, self.result, each)


@register_schedule("comm_reduce", "cpu", rank=Rank.REDUCTION)
def schedule_reduce(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule a reduction with an elementwise tail, by vectors of partial results or, if strided, of outputs."""
    s = te.create_schedule([out.op for out in outs])
    anchor = compare_as_integers(s, anchor)
    outs = [out.output(0) for out in s.outputs]
    inline_injective(s, outs, keep=[anchor])
    if _reduces_last_axis(anchor):
        lines = reduce_lines_first(s, anchor, target)
        if lines is not None:
            note("reduction", "lines first, then lanes")
            reduce_across(s, lines, [lines], target)
        reduce_along(s, s.outputs[0].output(0), [s.current(anchor.output(0))], target)
        return s
    narrow = sum_bytes_in_parts(s, anchor) if anchor.reduce_axis else None
    reduce_across(s, s.outputs[0].output(0), [s.current(anchor.output(0))], target, narrow=narrow)
    return s


def reduce_along(
    s: te.Schedule, out: te.Tensor, passes: Sequence[te.Tensor], target: Target, speculation: te.Tensor | None = None
) -> None:
    """Schedule `passes` along memory, over the same rows, and `out`: see `Passes`."""
    of, op = Passes(s, out, tuple(passes), target, speculation), s[passes[-1]].op
    lanes = _lanes_along(op, target) if of.is_single else vector_lanes(target)

    def several_at_a_time() -> RowPlan | Refused:
        short, nbytes = rows_are_short(op, out, target), max(4, *[t.dtype.nbytes for t in passes])
        return RowPlan(vector_lanes(target, nbytes), together=True) if short else short

    def split_between_cores() -> RowPlan | Refused:
        part = of.part_of_a_core(iterations(s[out].op.axis))
        return part if isinstance(part, Refused) else RowPlan(lanes, part)

    plan = first_of("reduction along memory", (
        ("several rows in a vector", several_at_a_time), ("rows split between cores", split_between_cores),
        ("row by row", lambda: RowPlan(lanes)),
    ))  # fmt: skip
    note("rows", type(plan).__name__, plan)
    plan.apply(of)


@dataclass(frozen=True)
class RowPlan:
    """Rows are reduced one after the other, by vectors of `lanes` partial results.

    Or as many rows `together`, the lanes of a vector; or each core reduces a `part` of every row, so many elements.
    """

    lanes: int
    part: int = 0
    together: bool = False

    def apply(self, passes: Passes) -> None:
        """Schedule all passes over a row, and then the next."""
        s, out, work = passes.s, passes.out, passes.work
        if self.together:
            local = [s.cache_write(t, "local") if s[t].op is s[out].op else t for t in passes.reductions]
            reduce_short_rows(s, out, local, work, self.lanes, passes.target, passes.speculation)
        elif self.part:
            shared = passes.split(self.part)
            row = s[shared].fuse(*s[shared].op.axis)
            parallel(s, shared, row, work, self.lanes)
            _prefetch_along(s, vectorize_reduction(s, shared, self.lanes, (shared, row)), passes.target)
        else:
            self._row_by_row(s, out, passes)

    def _row_by_row(self, s: te.Schedule, out: te.Tensor, passes: Passes) -> None:
        """Reduce row by row: the last pass prefetches the next row, or the speculation on its result does."""
        speculation, length, axes = passes.speculation, passes.length, list(s[out].op.axis)
        partials = list[te.Tensor]()
        at = (out, s[out].fuse(*axes)) if axes else None  # one row may have several results, which are no loop's
        if at is not None:
            parallel(s, *at, passes.work, self.lanes)
        for each in passes.reductions:
            if at is not None and s[each].op is not s[out].op:
                attach(s, each, *at)
            partials = vectorize_reduction(s, each, self.lanes, at)
        if speculation is not None:
            partials = vectorize_reduction(s, speculation, self.lanes, (speculation, s[speculation].op.axis[-1]))
        if passes.is_single:
            _prefetch_along(s, partials, passes.target)
        elif partials:
            loop, size, always = s[partials[0]].op.reduce_axis[0], iterations(axes) * length, speculation is not None
            prefetch_rows(s, partials[0], loop, size, length, passes.target, once=always, always=always)


def _prefetch_along(s: te.Schedule, partials: Sequence[te.Tensor], target: Target) -> None:
    """Prefetch the input of vectors of partial results, for 16-bit results or with a high-latency last-level cache."""
    high_latency = has_high_latency_llc(target)
    if partials and (partials[0].dtype.nbytes == _NARROW_BYTES or high_latency):
        _prefetch_ahead(s, partials[0], s[partials[0]].op.reduce_axis[0], target, always=high_latency)


def _lanes_along(op: te.Operation, target: Target) -> int:
    """Return the lanes of vectors in which `op` reduces rows, halved while rows are shorter than two vectors."""
    lanes, length = vector_lanes(target, op.output(0).dtype.nbytes), iterations(_contiguous_axes(op))
    while length < 2 * lanes > 2 * vector_lanes(target):
        lanes //= 2
    return lanes


def reduce_across(
    s: te.Schedule, out: te.Tensor, passes: Sequence[te.Tensor], target: Target, speculation: te.Tensor | None = None,
    narrow: te.Tensor | None = None,
) -> None:  # fmt: skip
    """Schedule `passes` along a strided axis, over the same lines, and `out`: see `Passes`."""
    of = Passes(s, out, tuple(passes), target, speculation, narrow)
    plan = LinePlan.of(of)
    note("reduction across lines", "lines split between cores" if plan.part else "blocks of columns", plan)
    plan.apply(of)


@dataclass(frozen=True)
class LinePlan:
    """Lines are accumulated several at a time, while partial results of a `block` of columns stay in L1.

    Vectors have `lanes` columns, those that read lines `together`. With `width`, all lines of so many columns are read
    at once, and partial results stay in registers. Where columns are few, each core has a `part` of the lines of the
    only pass, so that memory is read in long runs; 0 elsewhere.
    """

    block: int
    lanes: int
    together: int
    width: int = 0
    part: int = 0

    @staticmethod
    def of(passes: Passes) -> LinePlan:
        """Plan the passes by their sizes and the caches."""
        s, result, target, shape = passes.s, passes.result, passes.target, passes.s[passes.out].op.output(0).shape
        if passes.is_single:
            nbytes = result.dtype.nbytes
            block, lanes = _BLOCK * max(4 // nbytes, 1), vector_lanes(target, nbytes)
            part = passes.part_of_a_core(constant_size(shape[:-1]) * -(-constant_size(shape[-1:]) // block))
            together = 2 * lanes if nbytes == 2 else lanes  # little arithmetic for each cache line
            return LinePlan(block, lanes, together, part=part or 0)
        lanes, length = vector_lanes(target), passes.length
        width = _columns_per_step(s[passes.reductions[0]].op, shape[-1], length, target)
        fitting = target.cache_bytes.l2 // 4 // (4 * length) // (2 * lanes) * 2 * lanes
        return LinePlan(_BLOCK if width else min(max(fitting, _SMALLEST_BLOCK), _BLOCK), lanes, lanes, width)

    def apply(self, passes: Passes) -> None:
        """Schedule the output by blocks of columns, and all passes over the lines of a block."""
        s, out, reductions = passes.s, passes.out, list(passes.reductions)
        last, lanes, work = extent_of(s[out].op.axis[-1]), self.lanes, passes.work * len(reductions)
        if self.part:
            shared = passes.split(self.part)
            for tensor in {id(s[t].op): t for t in (passes.result, out)}.values():
                vectorize_elements(s, tensor, s[tensor].op.axis[-1], last, lanes)
            out, reductions = shared, [shared]
        if passes.is_single:
            reductions = [s.cache_write(t, "local") if s[t].op is s[out].op else t for t in reductions]
        *outer, columns = s[out].op.axis
        part, within = _split_blocks(s, out, columns, self.block)
        if self.width:
            steps, column = s[out].split(within, factor=self.width, tail="shift")
            s[out].vectorize(column)
            _combine_lines(s, out, steps, reductions, self.width, passes.speculation)
        else:
            vectorize_elements(s, out, within, min(self.block, constant_size([last])), lanes)
        group = s[out].fuse(*outer, part)
        parallel(s, out, group, work, lanes)
        if not self.width:
            for each in reductions:
                attach(s, each, out, group)
            self._pass_over_lines(passes, reductions, last)

    def _pass_over_lines(self, passes: Passes, reductions: Sequence[te.Tensor], columns: te.Dim) -> None:
        """Order the loops of each pass over the lines of a block, and prefetch."""
        s, target, narrow = passes.s, passes.target, passes.narrow
        if narrow is not None:
            StagePass(reductions[0], self.lanes).apply(s)
            attach(s, narrow, reductions[0], s[reductions[0]].op.reduce_axis[-1])
            add_up_lines(s, narrow, vector_lanes(target, narrow.dtype.nbytes))
            return
        loops = [add_up_lines(s, each, self.together) for each in reductions]
        if passes.is_single:
            _prefetch_ahead(s, *loops[0], target)
        elif has_few_fill_buffers(target) and isinstance(columns, int) and columns <= self.block:
            _prefetch_next_block(s, loops, passes.length * columns, target)
        if passes.speculation is not None:
            _prefetch_ahead(s, *add_up_lines(s, passes.speculation, self.lanes), target)


def _split_blocks(s: te.Schedule, out: te.Tensor, columns: te.IterVar, block: int) -> tuple[te.IterVar, te.IterVar]:
    """Split the loop over `columns` of `out` into blocks, of which there may be only one."""
    count = extent_of(columns)
    if isinstance(count, int) and count <= block:
        return s[out].split(columns, nparts=1)
    return s[out].split(columns, factor=block, tail="shift" if isinstance(count, int) else "guard")


def _prefetch_ahead(
    s: te.Schedule, tensor: te.Tensor, loop: te.IterVar, target: Target, *, always: bool = False
) -> None:
    """Prefetch, in each iteration of `loop`, a little ahead in a line of inputs that exceed the caches.

    Only where an element takes several instructions, for NaN tests of extrema or conversions of 16-bit floats, so that
    out-of-order execution doesn't run far ahead. Other sums gain nothing, except along memory with a high-latency
    last-level cache (`always`; Xeon, 128 MB: 15 and 18 GB/s).
    """
    op = s[tensor].op
    assert isinstance(op, te.ComputeOp)
    nodes = list(post_order((*op.body, *op.body[0].combiner.result)))  # type: ignore[attr-defined]
    slow: list[PrimExpr] = [e for e in nodes if isinstance(e, Max | Min) and e.dtype.is_float]
    narrow: list[PrimExpr] = [e for e in nodes if isinstance(e, Cast) and e.value.dtype.is_float]
    narrow += [e for e in nodes if isinstance(e, Call) and e.op == "reinterpret"]
    if not (always or slow or narrow):
        return
    prefetch_ahead(s, tensor, loop, _read_from_memory(op), target, busy=True)


def _prefetch_next_block(
    s: te.Schedule, passes: Sequence[tuple[te.Tensor, te.IterVar]], elements: int, target: Target
) -> None:
    """Prefetch into L2: the next block, of so many elements, in the last pass, and a little ahead in the first.

    `passes`: stages that read lines, with their loops.

    (Zen 4, argmax over 255, 1000 and 40 channels of planes of 13 x 13, 7 x 7 and 40 x 40, GB/s: 17 to 21, 19 to 23,
    15 to 17; with one of the two prefetches 15 to 19.)
    """
    (first, first_loop), (last, last_loop) = passes[0], passes[-1]
    again = _read_from_memory(s[last].op)
    for tensor in _read_from_memory(s[first].op):
        if tensor in again and is_streamed(tensor, 1, target):
            s[first].prefetch(tensor, first_loop, in_sequence(tensor, target))
            s[last].prefetch(tensor, last_loop, te.Prefetch(elements, level_of(target)))


def _columns_per_step(op: te.Operation, columns: te.Dim, lines: int, target: Target) -> int:
    """Return the columns of a cache line if `op`, and passes behind it, should read all lines at once from memory.

    0 where lines are many, span several dimensions, are in caches, or where results of so many columns take too many
    registers.
    """
    if not isinstance(op, te.ComputeOp) or len(op.reduce_axis) != 1:
        return 0
    width = LINE_BYTES // min([t.dtype.nbytes for t in _read_from_memory(op)], default=LINE_BYTES)
    streamed = any(is_streamed(t, lines * width, target) for t in _read_from_memory(op))
    if not streamed or lines > _FEW_LINES or not isinstance(columns, int) or columns < width:
        return 0
    lanes = vector_lanes(target)
    return width if lanes <= width <= target.vector_registers // _SHARE_OF_REGISTERS * lanes else 0


def _combine_lines(
    s: te.Schedule, out: te.Tensor, block_loop: te.IterVar, passes: Sequence[te.Tensor], width: int,
    speculation: te.Tensor | None,
) -> None:  # fmt: skip
    """Unroll `passes` over a vector of `width` columns, kept in registers, at the loop `block_loop` of `out`.

    Out-of-order execution doesn't run far ahead through so much arithmetic: lines of later blocks are prefetched.
    """
    for result in passes:
        attach(s, result, out, block_loop)
    for result in (*passes, *([] if speculation is None else [speculation])):
        reduce_by_vectors(s, result, unrolled=_FEW_LINES)
    first = passes[0] if speculation is None else speculation
    (line,) = s[first].op.reduce_axis
    for tensor in _read_from_memory(first.op):
        s[first].prefetch(tensor, line, te.Prefetch(rows_ahead(iterations([line]) * LINE_BYTES) * width))


def _read_from_memory(op: te.Operation) -> list[te.Tensor]:
    """Return the largest inputs of the kernel that `op` reads, directly or through elementwise stages."""
    found = [[t] if isinstance(t.op, te.PlaceholderOp) else inputs_of(t.op) for t in op.input_tensors]
    most = max([constant_size(t.shape) for tensors in found for t in tensors], default=0)
    return [t for tensors in found for t in dict.fromkeys(tensors) if constant_size(t.shape) == most]
