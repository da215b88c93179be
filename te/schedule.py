"""Schedules: how the operations of a tensor expression are computed. (TVM: `te.create_schedule`, `te.Schedule`.)"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

from relayc.te import staging
from relayc.te.deprecation import deprecated_alias
from relayc.te.errors import ScheduleError
from relayc.te.ir.visitor import post_order
from relayc.te.operation import ComputeOp, Operation, PlaceholderOp, ScanOp
from relayc.te.rewrite import replace_inputs
from relayc.te.speculation import Speculation
from relayc.te.stage import LoopAttrs, Stage
from relayc.te.tensor import Tensor
from relayc.te.tir.expr import Dim, IterVar, PrimExpr, ProducerLoad, Var

__all__ = ["AutoInlineBroadcast", "AutoInlineElemWise", "AutoInlineInjective", "Schedule", "create_schedule"]


class Schedule:
    """One stage for each operation, producers first. ``s[tensor]`` and ``s[operation]`` are stages.

    `cache_read`, `cache_write` and `rfactor` rewrite the graph of operations; the tensors a user holds keep naming
    the stages they named before.
    """

    def __init__(self, outputs: Sequence[Operation]) -> None:
        self.outputs = list(outputs)
        self.small: Schedule | None = None
        self.large_if: PrimExpr | None = None
        self.speculations: list[Speculation] = []
        self.stages: list[Stage] = []
        self.stage_map: dict[Operation, Stage] = {}
        for op in _operations(self.outputs):
            stage = Stage(op, is_output=op in self.outputs)
            self.stages.append(stage)
            self.stage_map[op] = stage
        for stage in self.stages:
            if isinstance(stage.op, ScanOp):
                for op in stage.op.body_operations():
                    self.stage_map[op].home = (stage, stage.op.scan_axis)
                    self.stage_map[op].compute_root()

    def __repr__(self) -> str:
        return "\n".join(["schedule of", *[f"  {stage}" for stage in self.stages]])

    def __getitem__(self, key: Tensor | Operation) -> Stage:
        op = key.op if isinstance(key, Tensor) else key
        stage = self.stage_map.get(op)
        if stage is None:
            names = ", ".join(s.name for s in self.stages)
            raise ScheduleError(f"{key} is not computed by this schedule; its stages are: {names}")
        return stage

    def current(self, tensor: Tensor) -> Tensor:
        """The tensor that stands for `tensor` in the graph as it has been rewritten."""
        return self[tensor].op.output(tensor.value_index)

    def cache_read(self, tensor: Tensor, scope: str, readers: Iterable[Tensor | Operation] | Tensor) -> Tensor:
        """A stage that copies `tensor` into `scope`, read by `readers` in its place. Gives the copy."""
        return staging.cache_read(self, tensor, scope, [readers] if isinstance(readers, Tensor) else list(readers))

    def cache_read_packed(
        self,
        tensor: Tensor,
        scope: str,
        readers: Iterable[Tensor | Operation],
        shape: Sequence[Dim],
        element: Callable[..., PrimExpr],
        place: Callable[..., Sequence[Any]],
    ) -> Tensor:
        """A stage that copies `tensor` into `scope` in another order, read by `readers` in its place. Gives the copy.

        The copy has `shape`; ``element(tensor, *j)`` is its element j, and ``place(*i)`` is where element i of the
        tensor is found in it. With the elements of one thread next to each other they stay in its registers.
        """
        return staging.cache_read_packed(self, tensor, scope, list(readers), shape, element, place)

    cache_tiled = deprecated_alias("Schedule.cache_tiled", "Schedule.cache_read_packed", cache_read_packed)

    @overload
    def cache_write(self, tensor: Tensor, scope: str) -> Tensor: ...
    @overload
    def cache_write(self, tensor: Sequence[Tensor], scope: str) -> list[Tensor]: ...
    def cache_write(self, tensor: Tensor | Sequence[Tensor], scope: str) -> Tensor | list[Tensor]:
        """A stage that computes `tensor` in `scope`, from where it is copied to its place. Gives the cached tensor.

        All outputs of an operation must be passed together, as a list. Call it before scheduling the
        reduce axes, which move to the new stage.
        """
        if isinstance(tensor, Tensor):
            return staging.cache_write(self, [tensor], scope)[0]
        return staging.cache_write(self, list(tensor), scope)

    def rfactor(self, tensor: Tensor, axis: IterVar, factor_axis: int = 0) -> Tensor | list[Tensor]:
        """Partial reductions for each value of the reduce axis `axis`, then a reduction of them. Gives the partials.

        `axis` becomes dimension `factor_axis` of the partial results.
        """
        made = staging.rfactor(self, tensor, axis, factor_axis)
        return made[0] if len(made) == 1 else made

    def recompute(self, tensor: Tensor, by: Tensor) -> None:
        """Compute `tensor` by the formula of `by`, an equivalent tensor of its shape and type.

        `by` is made with `te.compute` or `te.extern` from tensors of this schedule (`current`); operations in between
        become stages.
        For example a convolution becomes a matrix product of views. Call it before scheduling the stage's loops.
        Raises ScheduleError when shapes, types or inputs don't fit.
        """
        staging.recompute(self, tensor, by)

    def speculate(
        self, exact: Sequence[Tensor], by: Sequence[Tensor], is_valid: Callable[[PrimExpr], PrimExpr]
    ) -> None:
        """Compute each tensor of `exact` by a cheaper formula of `by` first, with the exact one as guarded fallback.

        Where `is_valid` fails for some element of the last tensor of `by` that an iteration has computed, the iteration
        recomputes all of `exact` by their own formulas, with the stages that only those need. `by` are made with
        `te.compute` from tensors of this schedule (`current`), of the same shapes and types; they become stages that
        are computed at the loop of the exact ones, which must be one loop, and in the same memory.
        Raises ScheduleError where shapes, types or loops break these rules.
        """
        staging.speculate(self, exact, by, is_valid)

    guess = deprecated_alias("Schedule.guess", "Schedule.speculate", speculate, trusted="is_valid")

    def specialize_small(self, other: Schedule, unless: PrimExpr | None = None) -> None:
        """Compute by `other` where a split with tail="shift" finds a symbolic extent below its factor, or where the
        condition `unless`, on symbolic sizes, is false.

        This multi-versions the code on a size. `other` is a schedule of the same outputs, and may be specialized for
        still smaller extents itself. Without one the splits are guarded there, which costs a test for each row of a
        register tile.
        """
        self.small, self.large_if = other, unless

    when_small = deprecated_alias("Schedule.when_small", "Schedule.specialize_small", specialize_small)

    def normalize(self) -> Schedule:
        """A copy with stages inlined, and attachments at split or fused loops moved to the resulting loops."""
        return staging.normalize(self)

    def copy(self) -> Schedule:
        """A schedule that can be changed without changing this one; the operations and axes are shared."""
        new = copy.copy(self)
        twins = {stage: copy.copy(stage) for stage in self.stages}
        new.outputs, new.stages = list(self.outputs), [twins[s] for s in self.stages]
        new.stage_map = {op: twins[s] for op, s in self.stage_map.items() if s in twins}
        for stage in new.stages:
            stage.all_iter_vars, stage.leaf_iter_vars = list(stage.all_iter_vars), list(stage.leaf_iter_vars)
            stage.relations = list(stage.relations)
            stage.loop_attrs = {iv: _copy_attrs(attrs) for iv, attrs in stage.loop_attrs.items()}
            if stage.attach_stage is not None:
                stage.attach_stage = twins[stage.attach_stage]
            if stage.home is not None:
                stage.home = (twins[stage.home[0]], stage.home[1])
        new.speculations = [g.of(twins) for g in self.speculations]
        return new

    def replace_tensors(self, tensors: Mapping[Tensor, Tensor], stages: Iterable[Stage]) -> None:
        """Let the operations of `stages` read other tensors, and rebuild the operations that depend on them."""
        mapping = dict(tensors)
        chosen = set(stages)
        for stage in self.stages:
            if stage in chosen:
                self.set_op(stage, replace_inputs(stage.op, mapping), mapping)
            else:
                follow = {old: new for old, new in mapping.items() if old not in tensors}
                self.set_op(stage, replace_inputs(stage.op, follow), mapping)

    def set_op(self, stage: Stage, op: Operation, mapping: dict[Tensor, Tensor]) -> None:
        """Let `stage` compute `op`; its outputs are noted in `mapping` as standing for the old ones."""
        if op is stage.op:
            return
        for old, new in zip(stage.op.outputs, op.outputs, strict=True):
            mapping[old] = new
        self.outputs = [op if o is stage.op else o for o in self.outputs]
        stage.op = op
        self.stage_map[op] = stage


def _copy_attrs(attrs: LoopAttrs) -> LoopAttrs:
    new = copy.copy(attrs)
    new.pragmas, new.prefetches = dict(attrs.pragmas), list(attrs.prefetches)
    return new


def _operations(outputs: Iterable[Operation]) -> list[Operation]:
    """All operations that `outputs` need, producers first. Iterative: a long chain must not overflow the stack."""
    done: dict[Operation, None] = {}
    stack: list[tuple[Operation, bool]] = [(op, False) for op in reversed(list(outputs))]
    while stack:
        op, ready = stack.pop()
        if op in done:
            continue
        if ready:
            done[op] = None
            continue
        stack.append((op, True))
        inputs = [t.op for t in op.input_tensors]
        if isinstance(op, ScanOp):
            inputs = [*[t.op for t in op.inputs], *[t.op for t in op.state_placeholder], *inputs]
        stack.extend((source, False) for source in reversed(inputs) if source not in done)
    return list(done)


def create_schedule(ops: Operation | Tensor | Sequence[Operation | Tensor]) -> Schedule:
    """The default schedule of some outputs: every stage at root, its loops in order. (TVM: `te.create_schedule`.)

    Raises ScheduleError for an output that is an input.
    """
    requested = list(ops) if isinstance(ops, Sequence) else [ops]
    for op in requested:
        if not isinstance(op, Operation | Tensor):
            raise ScheduleError(f"create_schedule of {op!r}; expected operations, or their tensors")
    outputs = list(dict.fromkeys([o.op if isinstance(o, Tensor) else o for o in requested]))
    if not outputs:
        raise ScheduleError("create_schedule needs at least one output operation")
    for op in outputs:
        if isinstance(op, PlaceholderOp):
            raise ScheduleError(f"output {op.name} is an input; expected the result of a compute, scan or extern")
    return Schedule(outputs)


def AutoInlineInjective(schedule: Schedule) -> None:
    """Inline every stage whose elements are formulas without a reduction, outputs apart."""
    _inline_where(schedule, lambda op: True)


def AutoInlineElemWise(schedule: Schedule) -> None:
    """Inline the stages that read every tensor at exactly their own indices."""
    _inline_where(schedule, lambda op: all(_same_axes(load, op.axis) for load in _loads(op)))


def AutoInlineBroadcast(schedule: Schedule) -> None:
    """Inline the stages that read every tensor at some of their own indices, in order."""
    _inline_where(schedule, lambda op: all(_axes_in_order(load, op.axis) for load in _loads(op)))


def _inline_where(schedule: Schedule, wanted: Callable[[ComputeOp], bool]) -> None:
    # formulas can only be written into formulas: no scan or extern may read them
    whole = {t.op for stage in schedule.stages if not isinstance(stage.op, ComputeOp) for t in stage.op.input_tensors}
    for stage in schedule.stages:
        op = stage.op
        plain = isinstance(op, ComputeOp) and not op.reduce_axis and not stage.is_output and stage.attach == "root"
        untouched = not stage.relations and not stage.loop_attrs and not stage.scope
        if plain and untouched and isinstance(op, ComputeOp) and op not in whole and wanted(op):
            stage.compute_inline()


def _loads(op: ComputeOp) -> list[ProducerLoad]:
    return [e for e in post_order(op.body) if isinstance(e, ProducerLoad)]


def _same_axes(load: ProducerLoad, axis: tuple[IterVar, ...]) -> bool:
    pairs = zip(load.indices, axis, strict=False)
    return len(load.indices) == len(axis) and all(index is iv.var for index, iv in pairs)


def _axes_in_order(load: ProducerLoad, axis: tuple[IterVar, ...]) -> bool:
    remaining = iter(axis)
    return all(isinstance(i, Var) and any(i is iv.var for iv in remaining) for i in load.indices)
