"""Bound inference: which part of each tensor a schedule computes, where.

Stages are visited consumers first. The part of a producer that is needed at its place of attachment comes from the
reads of its consumers: each index is written exactly in loop variables (so that axes which were fused or split stay
correlated), then the loops inside the attachment are relaxed over their ranges. Variables of the loops around the
attachment stay in the region's start. Thread axes are relaxed where the storage is visible to several threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import TYPE_CHECKING

from relayc.te.errors import ScheduleError
from relayc.te.index import IndexMath
from relayc.te.ir.visitor import post_order
from relayc.te.operation import ComputeOp, Operation, PlaceholderOp, ScanOp
from relayc.te.poly import Interval, Poly, number
from relayc.te.stage import Fuse, Relation, Split, SplitLines, Stage
from relayc.te.tensor import Tensor
from relayc.te.tir import ops
from relayc.te.tir.expr import Dim, IterVar, PrimExpr, ProducerLoad, Range, Var

if TYPE_CHECKING:
    from relayc.te.schedule import Schedule

__all__ = ["Bounds", "Guard", "Loops", "Region", "loop_extents", "path_of"]

_STORAGE_RANK = {"global": 0, "shared": 1, "shared.dyn": 1, "warp": 2}
_LOCAL_RANK = 3
"""Rank of the scopes that one thread owns: all but those in `_STORAGE_RANK`."""


@dataclass(frozen=True, slots=True)
class Guard:
    """`value < limit` (or `value >= 0` without a limit) must hold for an iteration to count.

    A `likely` guard is taken out of the main part of a loop by loop partitioning; others stay where they are. With
    `zeros` an iteration that does not count stores zeros.
    """

    value: Poly
    limit: Poly | None
    of_reduce_axis: bool
    likely: bool = True
    zeros: bool = False

    def variables(self) -> frozenset[Var]:
        """The loop variables and sizes it depends on."""
        polys = [self.value] if self.limit is None else [self.value, self.limit]
        return frozenset().union(*[a.vars for p in polys for a in p.atoms()])


@dataclass(slots=True)
class Region:
    """A box: first index and extent of each dimension."""

    mins: tuple[Poly, ...]
    extents: tuple[Poly, ...]

    def lines(self, elements: int) -> float:
        """The least number of cache lines, of `elements` each, that the box covers; infinity where that isn't known."""
        *outer, last = [inf if e.const is None else e.const for e in self.extents]
        return prod(outer) * (last if last == inf else -(-last // elements))


@dataclass(slots=True)
class Loops:
    """The loops of a stage: extent and value of every axis, and the guards that inexact splits leave.

    Values of root axes include the region's start; all others count from 0.
    """

    stage: Stage
    extents: dict[IterVar, Poly] = field(default_factory=dict)
    values: dict[IterVar, Poly] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    threads: dict[IterVar, IterVar] = field(default_factory=dict)
    """leaf -> the thread axis of the kernel that runs it"""

    def root_values(self) -> dict[Var, Poly]:
        """The value of each variable of the operation's axes, in loop variables."""
        return {iv.var: self.values[iv] for iv in self.stage.op.root_axes}


def path_of(stage: Stage) -> list[tuple[Stage, int]]:
    """The loops around a stage: (consumer, position of the leaf it stands in), outermost first."""
    path: list[tuple[Stage, int]] = []
    while stage.attach == "at":
        at, axis = stage.attach_stage, stage.attach_axis
        assert at is not None
        position = next(i for i, leaf in enumerate(at.leaf_iter_vars) if leaf is axis)
        path.append((at, position))
        stage = at
        if len(path) > 1000:
            raise ScheduleError(f"the stages around {stage.name} are computed at each other in a circle")
    path.reverse()
    return path


class Bounds:
    """The result of bound inference over a normalized schedule: `loops` of each stage, `regions` of its tensors."""

    def __init__(self, schedule: Schedule, assume_large: bool = True) -> None:
        """`assume_large`: splits of symbolic extents with tail="shift" take the extent to be at least the factor.

        `math.facts` then says what was assumed. Without it they are guarded.
        """
        self.schedule = schedule
        self.math = IndexMath()
        self.math.may_assume = assume_large
        self.loops: dict[Stage, Loops] = {}
        self.regions: dict[Stage, Region] = {}
        self.scopes: dict[Stage, str] = {}
        self.threads: dict[Stage, dict[object, IterVar]] = {}
        """thread axes of each kernel: a stage at root with all that is computed inside it"""
        self._paths = {stage: path_of(stage) for stage in schedule.stages}
        self._stage_of: dict[Operation, Stage] = {stage.op: stage for stage in schedule.stages}
        self._consumers: dict[Stage, list[Stage]] = {stage: [] for stage in schedule.stages}
        self.speculated = {by: exact for g in schedule.speculations for exact, by in zip(g.exact, g.by, strict=True)}
        """the stage of the exact formula, by the stage computed in its place first"""
        self._declare_sizes()
        for stage in schedule.stages:
            for source in dict.fromkeys([t.op for t in stage.op.input_tensors]):
                self._consumers[self._stage_of[source]].append(stage)
        for by, exact in self.speculated.items():
            self._consumers[by].append(exact)
        for stage in reversed(schedule.stages):
            if not isinstance(stage.op, PlaceholderOp):
                self._infer(stage)

    def _declare_sizes(self) -> None:
        for stage in self.schedule.stages:
            for tensor in stage.op.outputs:
                for dim in tensor.shape:
                    if isinstance(dim, PrimExpr):
                        for var in post_order(dim):
                            if isinstance(var, Var):
                                self.math.declare_size(var)
        computed = [stage for stage in self.schedule.stages if not isinstance(stage.op, PlaceholderOp)]
        self.math.declare_results([t.shape for stage in computed if stage.is_output for t in stage.op.outputs])

    def path(self, stage: Stage) -> list[tuple[Stage, int]]:
        """The loops around a stage, see `path_of`."""
        return self._paths[stage]

    def consumers(self, stage: Stage) -> list[Stage]:
        """The stages that read a stage's tensors."""
        return self._consumers[stage]

    def stage_of(self, tensor: Tensor) -> Stage:
        """The stage that computes a tensor."""
        return self._stage_of[tensor.op]

    # -- one stage -----------------------------------------------------------------------------------------------

    def _infer(self, stage: Stage) -> None:
        self._check_attachment(stage)
        self.scopes[stage] = stage.scope or self._default_scope(stage)
        region = self.regions[stage] = self._region(stage)
        starts: dict[IterVar, tuple[Poly, Poly]] = {}
        for axis, lo, extent in zip(stage.op.axis, region.mins, region.extents, strict=False):
            starts[axis] = (lo, extent)
        for axis in stage.op.root_axes:
            if axis not in starts:
                assert axis.dom is not None
                starts[axis] = (self.math.dim(axis.dom.min), self.math.dim(axis.dom.extent))
        threads = self.threads.setdefault(self.kernel_of(stage), {})
        self.loops[stage] = derive_loops(self.math, stage, starts, threads)
        self._check_overruns(stage)

    def _check_overruns(self, stage: Stage) -> None:
        """Raise ScheduleError for loops that compute of elements past the ends of tensors with no memory for them."""
        overrunning = {leaf.var: leaf for leaf in stage.leaf_iter_vars if stage.attrs_of(leaf).overrun == "computed"}
        if not overrunning:
            return
        values = self.loops[stage].root_values()
        for source in {t.op: None for t in stage.op.input_tensors if not self._paths[self._stage_of[t.op]]}:
            assert isinstance(stage.op, ComputeOp)
            for load in _reads_of(stage.op, source):
                for index, dim in zip(load.indices, load.producer.shape, strict=True):
                    read = self.math.poly(index, values)
                    past_end = [overrunning[v] for atom in read.atoms() for v in atom.vars if v in overrunning]
                    if past_end and not self._ends_with(stage, past_end, read, dim):
                        names = ", ".join(leaf.var.name for leaf in past_end)
                        raise ScheduleError(f"stage {stage.name}: overrun of {names}: it reads {source.name}, which "
                                            "has no elements past its end; compute that at a loop around this stage, "
                                            "store zeros there, or end it with a whole loop")  # fmt: skip

    def _ends_with(self, stage: Stage, overrunning: Sequence[IterVar], index: Poly, dim: Dim) -> bool:
        """Is the last element of a dimension that of a whole loop, whose iterations read consecutive ones?"""
        if len(overrunning) != 1:
            return False
        (leaf,) = overrunning
        extent = self.loops[stage].extents[leaf]
        others = index - self.math.var(leaf.var)
        return all(not self.math.floormod(p, extent).terms for p in (others, self.math.dim(dim)))

    def _check_attachment(self, stage: Stage) -> None:
        if stage.attach != "at":
            return
        at, position = self._paths[stage][-1]
        for consumer in self._consumers[stage]:
            inside = consumer is at or any(s is at and p >= position for s, p in self._paths[consumer])
            if not inside:
                assert stage.attach_axis is not None
                raise ScheduleError(
                    f"stage {stage.name} is computed at axis {stage.attach_axis.var.name} of stage {at.name}, but "
                    f"{consumer.name} reads it outside that loop; compute it at root, or at a loop around all readers"
                )
        if not self._consumers[stage]:
            raise ScheduleError(f"stage {stage.name} is computed at stage {at.name}, but nothing reads it")

    def kernel_of(self, stage: Stage) -> Stage:
        """The stage at root that this one is computed inside of, or itself."""
        path = self._paths[stage]
        return path[0][0] if path else stage

    def _default_scope(self, stage: Stage) -> str:
        """The scope private to the threads whose loops surround the stage: "global", "shared" or "local"."""
        rank = 0
        for outer, position in self._paths[stage]:
            for leaf in outer.leaf_iter_vars[: position + 1]:
                thread = outer.attrs_of(leaf).thread
                if thread is not None:
                    rank = max(rank, 1 if thread.thread_tag.startswith("blockIdx") else _LOCAL_RANK)
        return {0: "global", 1: "shared"}.get(rank, "local")

    # -- regions -------------------------------------------------------------------------------------------------

    def _region(self, stage: Stage) -> Region:
        shape = stage.op.output(0).shape if stage.op.axis else ()
        dims = tuple([self.math.dim(d) for d in shape])
        whole = Region(tuple([number(0) for _ in dims]), dims)
        if stage in self.speculated:
            return self.regions[self.speculated[stage]]
        scan = self._scan_updated_by(stage)
        if scan is not None:
            step = self.loops[scan].values[scan.op.root_axes[0]]
            return Region((step, *whole.mins[1:]), (number(1), *whole.extents[1:]))
        if stage.is_output or not isinstance(stage.op, ComputeOp):
            return whole
        fixed = self._fixed_variables(stage)
        intervals: list[Interval | None] | None = None
        for consumer in self._consumers[stage]:
            needed = self._needed_by(consumer, stage, fixed)
            if needed is None:
                return whole
            intervals = needed if intervals is None else self._union_all(intervals, needed)
        if intervals is None:
            return whole
        boxes = [self._clip(i, d, bool(fixed)) for i, d in zip(intervals, dims, strict=True)]
        return Region(tuple([b[0] for b in boxes]), tuple([b[1] for b in boxes]))

    def _scan_updated_by(self, stage: Stage) -> Stage | None:
        """The scan whose next state this stage computes."""
        for consumer in self._consumers[stage]:
            if isinstance(consumer.op, ScanOp) and any(t.op is stage.op for t in consumer.op.update):
                return consumer
        return None

    def _fixed_variables(self, stage: Stage) -> frozenset[Var]:
        """Variables of the loops around a stage, except those of threads that share its storage."""
        rank = _STORAGE_RANK.get(self.scopes[stage], _LOCAL_RANK)
        fixed: set[Var] = set()
        for outer, position in self._paths[stage]:
            loops = self.loops[outer]
            for i, leaf in enumerate(outer.leaf_iter_vars):
                thread = loops.threads.get(leaf)
                if thread is not None:
                    if rank > _thread_rank(thread.thread_tag):
                        fixed.add(thread.var)
                elif i <= position:
                    fixed.add(leaf.var)
        return frozenset(fixed)

    def _needed_by(self, consumer: Stage, stage: Stage, fixed: frozenset[Var]) -> list[Interval | None] | None:
        """What one consumer reads: an interval for each dimension (None: all of it), or None for everything."""
        if not isinstance(consumer.op, ComputeOp):
            return None
        values = self.loops[consumer].root_values()
        result: list[Interval | None] | None = None
        for load in _reads_of(consumer.op, stage.op):
            needed = [self._relaxed(self.math.poly(index, values), fixed) for index in load.indices]
            result = needed if result is None else self._union_all(result, needed)
        return result

    def region_read(self, stage: Stage, tensor: Tensor, leaf: IterVar, offset: Poly) -> Region | None:
        """What iteration `leaf` + `offset` of a stage reads of a tensor, in the variables of the loops around it."""
        inner, reads = self._indices_read(stage, tensor, leaf, offset)
        intervals: list[Interval | None] | None = None
        for polys in reads:
            needed = [self.math.relax(p, inner) for p in polys]
            intervals = needed if intervals is None else self._union_all(intervals, needed)
        if intervals is None:
            return None
        return self._box(tensor, intervals)

    def run_read(self, stage: Stage, tensor: Tensor, leaf: IterVar) -> list[Region]:
        """What iteration `leaf` of a stage reads of a tensor as one run of elements, places of its last dimension.

        Where the run crosses the end of a row, it becomes a box of whole rows. An empty list where no length is known.
        """
        inner, reads = self._indices_read(stage, tensor, leaf, number(0))
        sizes, run = [self.math.dim(d) for d in tensor.shape], None
        for polys in reads:
            place = polys[0]
            for index, size in zip(polys[1:], sizes[1:], strict=True):
                place = place * size + index
            needed = self.math.relax(self.math.merge(place), inner)
            run = needed if run is None or needed is None else self.math.union(run, needed)
            if run is None:
                return []
        if run is None or run.span.const is None:
            return []
        before = len(sizes) - 1
        return [Region((*[number(0)] * before, run.lo), (*[number(1)] * before, run.span + 1))]

    def _indices_read(
        self, stage: Stage, tensor: Tensor, leaf: IterVar, offset: Poly
    ) -> tuple[frozenset[Var], list[list[Poly]]]:
        """The loops inside `leaf`, and the indices at which iteration `leaf` + `offset` of a stage reads a tensor."""
        assert isinstance(stage.op, ComputeOp)
        position = next(i for i, v in enumerate(stage.leaf_iter_vars) if v is leaf)
        inner = frozenset([v.var for v in stage.leaf_iter_vars[position + 1 :]])
        shifted = {leaf.var: self.math.var(leaf.var) + offset}
        values = self.loops[stage].root_values()
        loads = [load for load in _reads_of(stage.op, tensor.op) if load.producer is tensor]
        return inner, [
            [self.math.poly(self.math.expr(self.math.poly(i, values)), shifted) for i in load.indices]
            for load in loads
        ]

    def region_computed(self, stage: Stage, leaf: IterVar) -> Region:
        """What an iteration `leaf` of a stage computes of its outputs, in the variables of the loops around it."""
        assert isinstance(stage.op, ComputeOp)
        position = next(i for i, v in enumerate(stage.leaf_iter_vars) if v is leaf)
        inner = frozenset([v.var for v in stage.leaf_iter_vars[position + 1 :]])
        values = self.loops[stage].root_values()
        return self._box(stage.op.output(0), [self.math.relax(values[a.var], inner) for a in stage.op.axis])

    def _box(self, tensor: Tensor, intervals: Sequence[Interval | None]) -> Region:
        dims = [self.math.dim(d) for d in tensor.shape]
        boxes = [(number(0), d) if i is None else (i.lo, i.span + 1) for i, d in zip(intervals, dims, strict=True)]
        return Region(tuple([b[0] for b in boxes]), tuple([b[1] for b in boxes]))

    def _union_all(
        self, a: Sequence[Interval | None], b: Sequence[Interval | None]
    ) -> list[Interval | None]:
        """The union of two boxes, dimension by dimension; None stands for a whole dimension."""
        return [None if x is None or y is None else self.math.union(x, y) for x, y in zip(a, b, strict=True)]

    def _relaxed(self, index: Poly, fixed: frozenset[Var]) -> Interval | None:
        variables = frozenset().union(*[a.vars for a in index.atoms()])
        if any(a.kind == "opaque" for a in index.atoms()):
            return None
        loose = frozenset([v for v in variables if v not in fixed and self.math.extent(v) is not None])
        return self.math.relax(index, loose)

    def _clip(self, interval: Interval | None, dim: Poly, attached: bool) -> tuple[Poly, Poly]:
        """(min, extent) of the region in a dimension, with a constant extent where one is known."""
        math = self.math
        whole = (number(0), dim)
        if interval is None:
            return whole
        is_known = attached and interval.span.const is not None and dim.const is None
        if math.nonneg(interval.span + 1 - dim) and not is_known:
            return whole
        lo, span = interval.lo, interval.span
        if span.const is None:
            most = math.bounds(span)[1]
            if most is not None and (dim.const is None or most + 1 < dim.const):
                span = number(most)
            elif dim.const is not None:
                return whole
        start, end, size = lo.const, (lo + span).const, dim.const
        if start is not None and end is not None and size is not None:
            start, end = max(start, 0), min(end, size - 1)
            return (number(start), number(end - start + 1)) if end >= start else whole
        inside = math.nonneg(lo) and math.nonneg(dim - 1 - lo - span)
        if not attached and not inside:
            return whole
        return lo, span + 1


def _reads_of(consumer: ComputeOp, producer: Operation) -> list[ProducerLoad]:
    return [e for e in post_order(consumer.body) if isinstance(e, ProducerLoad) and e.producer.op is producer]


def _thread_rank(tag: str) -> int:
    return 0 if tag.startswith("blockIdx") else 1


def _thread_key(thread: IterVar | None) -> object:
    """Virtual threads are told apart by their axis, hardware threads by their tag."""
    assert thread is not None
    return thread if thread.thread_tag.startswith(("vthread", "cthread")) else thread.thread_tag


# -- from root axes to loops -----------------------------------------------------------------------------------------


def derive_loops(
    math: IndexMath,
    stage: Stage,
    starts: Mapping[IterVar, tuple[Poly, Poly]],
    running: dict[object, IterVar],
) -> Loops:
    """Extents of all axes from those of the root axes, then values of all axes from the loop variables."""
    loops = Loops(stage)
    for axis, (_, extent) in starts.items():
        loops.extents[axis] = extent
    for relation in stage.relations:
        _extents_of(math, loops, relation)
    for leaf in stage.leaf_iter_vars:
        loops.values[leaf] = _leaf_value(math, loops, leaf, running)
    for thread in stage.launched_threads:
        _launch(math, loops, thread, thread, None, running)
    of_lines = list[Relation]()  # where a row lies in memory is known once the other axes are
    for relation in reversed(stage.relations):
        if isinstance(relation, SplitLines) or (isinstance(relation, Fuse) and relation.fused not in loops.values):
            of_lines.append(relation)
        else:
            _values_of(math, loops, relation)
    for relation in of_lines:
        _values_of(math, loops, relation)
    _root_guards(math, loops, starts)
    return loops


def _extents_of(math: IndexMath, loops: Loops, relation: object) -> None:
    extents = loops.extents
    if isinstance(relation, Split):
        parent = extents[relation.parent]
        if relation.factor is not None:
            factor = math.dim(relation.factor)
            thread = loops.stage.attrs_of(relation.inner).thread
            known, limit = factor.const, parent.const
            if relation.tail == "shift" and known is None:
                raise ScheduleError(f"stage {loops.stage.name}: split with tail='shift': loop "
                                    f"{relation.parent.var.name} runs {math.as_dim(parent)} times and the factor is "
                                    f"{relation.factor}; expected a constant factor")  # fmt: skip
            least = max(known or 0, relation.least)
            if relation.tail == "shift" and limit is None and least > 1:
                math.assume(parent - least)
            whole = thread is not None or relation.tail == "predicate"
            if known is not None and limit is not None and known > limit and not whole:
                factor = number(max(limit, 1))
            extents[relation.inner], extents[relation.outer] = factor, math.ceildiv(parent, factor)
        else:
            assert relation.nparts is not None
            parts = math.dim(relation.nparts)
            extents[relation.outer], extents[relation.inner] = parts, math.ceildiv(parent, parts)
    elif isinstance(relation, Fuse):
        extents[relation.fused] = extents[relation.outer] * extents[relation.inner]
    elif isinstance(relation, SplitLines):
        width, length = relation.width, relation.length
        extents[relation.tile] = math.ceildiv(extents[relation.parent] - length, number(width))
        extents[relation.line], extents[relation.element] = number(width // length + 2), number(length)
    else:
        extents[relation.axis] = number(1)  # type: ignore[attr-defined]


def _leaf_value(math: IndexMath, loops: Loops, leaf: IterVar, running: dict[object, IterVar]) -> Poly:
    extent = loops.extents[leaf]
    thread = loops.stage.attrs_of(leaf).thread
    if thread is not None:
        return _launch(math, loops, leaf, thread, extent, running)
    if extent.const == 1:
        return number(0)
    math.declare(leaf.var, extent)
    return math.var(leaf.var)


def _launch(
    math: IndexMath,
    loops: Loops,
    leaf: IterVar,
    thread: IterVar,
    extent: Poly | None,
    running: dict[object, IterVar],
) -> Poly:
    """Let a loop run on a thread axis: the one around it with the same tag, or a new one."""
    own = math.dim(thread.dom.extent) if thread.dom is not None else extent
    if own is None:
        raise ScheduleError(f"stage {loops.stage.name}: env_threads: {thread.thread_tag} has no extent; give "
                            "te.thread_axis a range")  # fmt: skip
    axis = running.get(_thread_key(thread))
    if axis is None:
        axis = IterVar(Range(0, math.as_dim(own)), Var(thread.var.name, thread.dtype), "thread", thread.thread_tag)
        running[_thread_key(thread)] = axis
        math.declare(axis.var, own)
    loops.threads[leaf] = axis
    assert axis.dom is not None
    launched = math.dim(axis.dom.extent)
    value = number(0) if launched.const == 1 else math.var(axis.var)
    loops.values[thread] = value
    if extent is None:
        return value
    if not math.nonneg(launched - extent):
        raise ScheduleError(
            f"stage {loops.stage.name}: bind: loop {leaf.var.name} runs {math.as_dim(extent)} times, but "
            f"{thread.thread_tag} has {axis.dom.extent} threads here; split the loop to fit the thread axis"
        )
    if not math.nonneg(extent - launched):
        loops.guards.append(Guard(value, extent, leaf.kind == "reduce"))
    return value


def _values_of(math: IndexMath, loops: Loops, relation: object) -> None:
    values, extents = loops.values, loops.extents
    if isinstance(relation, Split):
        inner_extent = extents[relation.inner]
        start = values[relation.outer] * inner_extent
        if relation.tail == "shift" and inner_extent.const != 1:
            last = extents[relation.parent] - inner_extent
            start = math.minimum(start, last) if math.nonneg(last) else start
        value = math.merge(start + values[relation.inner])
        values[relation.parent] = value
        likely = relation.tail != "predicate"
        _require(math, loops, value, extents[relation.parent], relation.parent.kind == "reduce", likely)
    elif isinstance(relation, Fuse):
        fused, inner_extent = values[relation.fused], extents[relation.inner]
        if extents[relation.outer].const == 1:  # else tiles of the fused loop would seem to go past the inner one
            values[relation.outer], values[relation.inner] = number(0), fused
        else:
            values[relation.outer] = math.floordiv(fused, inner_extent)
            values[relation.inner] = math.floormod(fused, inner_extent)
    elif isinstance(relation, SplitLines):
        _values_of_lines(math, loops, relation)


def _values_of_lines(math: IndexMath, loops: Loops, lines: SplitLines) -> None:
    """Derive the axes' values for `Stage.split_lines`, whose lines begin at cache lines of memory.

    The unaligned ends of a row come first in their tiles, its beginning, then its end, which fills only a part of a
    cache line: after a non-temporal store to the rest of that line, a processor would have to wait to read it back.
    """
    values, extents, length = loops.values, loops.extents, number(lines.length)
    tile, whole, width = values[lines.tile], lines.width // lines.length, number(lines.width)
    later = math.maximum(values[lines.line] - 1, number(0))
    is_end = math.minimum(values[lines.line], number(1)) - math.minimum(later, number(1))
    line = later + is_end * number(whole + 1)
    row = number(0)
    for axis in loops.stage.op.axis:
        row = row * extents[axis] + values.get(axis, number(0))
    start = math.minimum(tile * width, extents[lines.parent] - width - length)
    past = math.floormod(row + start, length)
    within = math.minimum(math.maximum(line * length - past, number(0)), width)
    values[lines.parent] = math.merge(start + within + values[lines.element])
    first = math.maximum(number(1) - tile, number(0))
    last = math.maximum(tile + 2 - extents[lines.tile], number(0))
    conditions = [line + first - 1, number(whole) + last - line]
    if lines.apart:
        element, other = values[lines.element], length.scale(2)
        before_first = length - math.floormod(row, length)
        behind_last = math.floormod(row + extents[lines.parent], length)
        conditions += [
            before_first - element - 1 + line * other,
            element + behind_last - length + (number(whole + 1) - line) * other,
        ]
    for value in conditions:
        if not math.nonneg(value):
            loops.guards.append(Guard(value, None, of_reduce_axis=False, likely=False))


def _require(
    math: IndexMath, loops: Loops, value: Poly, limit: Poly, of_reduce_axis: bool, likely: bool = True
) -> None:
    if math.nonneg(limit - 1 - value):
        return
    key = (value.key(), limit.key())
    if all(g.limit is None or (g.value.key(), g.limit.key()) != key for g in loops.guards):
        loops.guards.append(Guard(value, limit, of_reduce_axis, likely))


def _root_guards(math: IndexMath, loops: Loops, starts: Mapping[IterVar, tuple[Poly, Poly]]) -> None:
    """Root values begin at the region's start; where the region leaves the axis' domain, iterations don't count."""
    for axis, (start, _) in starts.items():
        value = loops.values[axis] = math.merge(loops.values[axis] + start)
        assert axis.dom is not None
        first, extent = math.dim(axis.dom.min), math.dim(axis.dom.extent)
        if axis.kind == "reduce":
            continue
        if not math.nonneg(value - first):
            loops.guards.append(Guard(value - first, None, of_reduce_axis=False))
        _require_before_end(math, loops, value, first + extent)


def _require_before_end(math: IndexMath, loops: Loops, value: Poly, end: Poly) -> None:
    """A guard for the end of a tensor, unless loops overrun it: then only their first iterations are tested."""
    kinds = {leaf.var: loops.stage.attrs_of(leaf).overrun for leaf in loops.stage.leaf_iter_vars}
    used = [kinds.get(var, "") for atom in value.atoms() for var in atom.vars]
    if not any(used):
        _require(math, loops, value, end, False)
    elif not math.nonneg(end - 1 - value):
        tested = math.poly(math.expr(value), {var: number(0) for var, kind in kinds.items() if kind == "computed"})
        loops.guards.append(Guard(tested, end, of_reduce_axis=False, likely=False, zeros="zeros" in used))


def loop_extents(stage: Stage) -> tuple[dict[IterVar, PrimExpr], list[PrimExpr], dict[IterVar, Dim]]:
    """A stage by itself over its operation's whole domain: (values of axes, guards of reduce axes, extents)."""
    math = IndexMath()
    starts: dict[IterVar, tuple[Poly, Poly]] = {}
    for axis in stage.op.root_axes:
        assert axis.dom is not None
        starts[axis] = (math.dim(axis.dom.min), math.dim(axis.dom.extent))
    loops = derive_loops(math, stage, starts, {})
    values = {axis: math.expr(value) for axis, value in loops.values.items()}
    guards = [guard_expr(math, replace(g, likely=False)) for g in loops.guards if g.of_reduce_axis]
    return values, guards, {axis: math.as_dim(extent) for axis, extent in loops.extents.items()}


def guard_expr(math: IndexMath, guard: Guard) -> PrimExpr:
    """The guard as a bool expression."""
    value = math.expr(guard.value)
    holds = value >= 0 if guard.limit is None else value < math.expr(guard.limit)
    return ops.likely(holds) if guard.likely else holds
