"""Schedule primitives that rewrite the graph of operations: inlining, cached copies, factored reductions."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relayc.te.bounds import loop_extents
from relayc.te.errors import ScheduleError
from relayc.te.ir.structural import structural_equal
from relayc.te.operation import ComputeOp, ExternOp, Operation, PlaceholderOp
from relayc.te.rewrite import map_reads, replace_inputs
from relayc.te.speculation import Speculation, check as check_speculation, move_with_exact
from relayc.te.stage import Fuse, Split, Stage
from relayc.te.tensor import Tensor
from relayc.te.tir import ops
from relayc.te.tir.expr import Dim, IterVar, PrimExpr, ProducerLoad, Range, Reduce, Var
from relayc.te.tir.numbering import ValueNumbers
from relayc.te.tir.ops import const
from relayc.te.tir.substitute import substitute

if TYPE_CHECKING:
    from relayc.te.schedule import Schedule

__all__ = ["cache_read", "cache_read_packed", "cache_write", "normalize", "recompute", "rfactor", "speculate"]


def cache_read(schedule: Schedule, tensor: Tensor, scope: str, readers: Sequence[Tensor | Operation]) -> Tensor:
    """The implementation of `Schedule.cache_read`."""
    source_stage, source = schedule[tensor], schedule.current(tensor)
    reading = _reading("cache_read", schedule, source, readers)
    axis = [IterVar(Range(0, d), Var(f"ax{i}"), "data") for i, d in enumerate(source.shape)]
    copy_op = ComputeOp(f"{source.name}.{scope}", "", None, axis, [source(*axis)])
    stage = _insert_stage(schedule, copy_op, after=source_stage)
    stage.scope = scope
    schedule.replace_tensors({source: copy_op.output(0)}, reading)
    return copy_op.output(0)


def _reading(
    primitive: str, schedule: Schedule, source: Tensor, readers: Sequence[Tensor | Operation]
) -> list[Stage]:
    """The stages of the readers, each of which must read `source`."""
    reading = [schedule[r] for r in readers]
    for stage in reading:
        if source not in stage.op.input_tensors:
            names = ", ".join(t.name for t in stage.op.input_tensors) or "nothing"
            raise ScheduleError(
                f"{primitive} of {source.name} for reader {stage.name}, which does not read it; it reads {names}"
            )
    return reading


def cache_read_packed(
    schedule: Schedule,
    tensor: Tensor,
    scope: str,
    readers: Sequence[Tensor | Operation],
    shape: Sequence[Dim],
    element: Callable[..., PrimExpr],
    place: Callable[..., Sequence[Any]],
) -> Tensor:
    """The implementation of `Schedule.cache_read_packed`."""
    source_stage, source = schedule[tensor], schedule.current(tensor)
    reading = _reading("cache_read_packed", schedule, source, readers)
    for stage in reading:
        if not isinstance(stage.op, ComputeOp):
            raise ScheduleError(f"cache_read_packed of {source.name} for reader {stage.name}, which is no compute")
    axis = [IterVar(Range(0, d), Var(f"ax{i}"), "data") for i, d in enumerate(shape)]
    copy_op = ComputeOp(f"{source.name}.{scope}", "", None, axis, [element(source, *[iv.var for iv in axis])])
    stage = _insert_stage(schedule, copy_op, after=source_stage)
    stage.scope = scope
    copied = copy_op.output(0)

    def read(load: ProducerLoad) -> PrimExpr:
        return copied(*place(*load.indices)) if load.producer is source else load

    for reader in reading:
        op = reader.op
        assert isinstance(op, ComputeOp)
        body = [map_reads(e, read) for e in op.body]
        _replace_op(schedule, reader, ComputeOp(op.name, op.tag, op.attrs, op.axis, body))
    return copied


def _insert_stage(
    schedule: Schedule, op: Operation, *, after: Stage | None = None, before: Stage | None = None
) -> Stage:
    stage = Stage(op, is_output=False)
    anchor = after if after is not None else before
    assert anchor is not None
    stage.home = None if isinstance(anchor.op, PlaceholderOp) else anchor.home
    stage.compute_root()
    position = schedule.stages.index(anchor) + (1 if after is not None else 0)
    schedule.stages.insert(position, stage)
    schedule.stage_map[op] = stage
    return stage


def cache_write(schedule: Schedule, tensors: Sequence[Tensor], scope: str) -> list[Tensor]:
    """The implementation of `Schedule.cache_write`."""
    stage = schedule[tensors[0]]
    op = stage.op
    names = ", ".join(t.name for t in tensors)
    if not isinstance(op, ComputeOp):
        raise ScheduleError(f"cache_write of {names}: expected the result of a compute, got a {type(op).__name__}")
    if any(schedule[t] is not stage for t in tensors) or len(tensors) != op.num_outputs:
        raise ScheduleError(
            f"cache_write of {names}: operation {op.name} has {op.num_outputs} outputs; give all of them and no other"
        )
    _check_reduce_axes_untouched(stage, "cache_write")
    new_axis = [IterVar(iv.dom, Var(iv.var.name + ".c", iv.dtype), "data") for iv in op.axis]
    renaming = {old.var: new.var for old, new in zip(op.axis, new_axis, strict=True)}
    cache_op = ComputeOp(f"{op.name}.{scope}", op.tag, op.attrs, new_axis, [substitute(e, renaming) for e in op.body])
    indices = [iv.var for iv in op.axis]
    copy_op = ComputeOp(op.name, op.tag, op.attrs, op.axis, [t(*indices) for t in cache_op.outputs])
    cached = _insert_stage(schedule, cache_op, before=stage)
    cached.scope = scope
    reduce_axes = op.reduce_axis
    stage.leaf_iter_vars = [iv for iv in stage.leaf_iter_vars if not _is_among(iv, reduce_axes)]
    stage.all_iter_vars = [iv for iv in stage.all_iter_vars if not _is_among(iv, reduce_axes)]
    _replace_op(schedule, stage, copy_op)
    return [schedule.current(t) for t in cache_op.outputs]


def _is_among(axis: IterVar, axes: Sequence[IterVar]) -> bool:
    return any(axis is a for a in axes)


def _check_reduce_axes_untouched(stage: Stage, primitive: str) -> None:
    for axis in stage.op.reduce_axis:
        if not _is_among(axis, stage.leaf_iter_vars) or axis in stage.loop_attrs:
            raise ScheduleError(
                f"{primitive} of {stage.name}, whose reduce axis {axis.var.name} is scheduled already; call "
                f"{primitive} first and schedule the reduce axes of the stage it gives"
            )


def _replace_op(schedule: Schedule, stage: Stage, op: Operation) -> None:
    mapping: dict[Tensor, Tensor] = {}
    schedule.set_op(stage, op, mapping)
    schedule.replace_tensors(mapping, schedule.stages)


def rfactor(schedule: Schedule, tensor: Tensor, axis: IterVar, factor_axis: int = 0) -> list[Tensor]:
    """The implementation of `Schedule.rfactor`."""
    stage = schedule[tensor]
    op = stage.op
    if not isinstance(op, ComputeOp) or not op.reduce_axis:
        raise ScheduleError(f"rfactor of {tensor.name}, which is no reduction")
    stage._check_leaf("rfactor", axis)
    if axis.kind != "reduce":
        name = axis.var.name
        raise ScheduleError(f"rfactor of {tensor.name} along {name}, a {axis.kind} axis; expected a reduce axis")
    position = factor_axis if factor_axis >= 0 else len(op.axis) + 1 + factor_axis
    if not 0 <= position <= len(op.axis):
        raise ScheduleError(f"rfactor of {tensor.name}: factor_axis {factor_axis} is outside its {len(op.axis)} axes")
    factored = _insert_stage(schedule, _factored_op(stage, op, axis, position), before=stage)
    factored.scope = stage.scope
    final = _final_op(op, factored.op, axis, position)
    old = [iv for iv in stage.all_iter_vars if iv.kind == "reduce"]
    stage.all_iter_vars = [iv for iv in stage.all_iter_vars if iv.kind != "reduce"] + list(final.reduce_axis)
    stage.leaf_iter_vars = [iv for iv in stage.leaf_iter_vars if iv.kind != "reduce"] + list(final.reduce_axis)
    stage.relations = [r for r in stage.relations if not _relates(r, old)]
    stage.loop_attrs = {iv: attrs for iv, attrs in stage.loop_attrs.items() if iv.kind != "reduce"}
    _replace_op(schedule, stage, final)
    return list(factored.op.outputs)


def recompute(schedule: Schedule, tensor: Tensor, by: Tensor) -> None:
    """The implementation of `Schedule.recompute`."""
    stage = schedule[tensor]
    old, new = stage.op, by.op
    kinds = isinstance(old, ComputeOp) and isinstance(new, ComputeOp | ExternOp)
    if not kinds or old.num_outputs != 1 or new.num_outputs != 1:
        raise ScheduleError(f"recompute of {tensor.name} by {by.name}: expected a compute of one result, by another or "
                            "by an extern")  # fmt: skip
    same = tensor.ndim == by.ndim and tensor.dtype == by.dtype
    if not same or not all(_same_dim(a, b) for a, b in zip(old.output(0).shape, by.shape, strict=True)):
        raise ScheduleError(f"recompute of {tensor.name}, {tuple(tensor.shape)} of {tensor.dtype}, by {by.name}, "
                            f"{tuple(by.shape)} of {by.dtype}; expected the same")  # fmt: skip
    if stage.relations or stage.loop_attrs:
        raise ScheduleError(f"recompute of {tensor.name}, whose loops are scheduled already; recompute it first")
    for op in _new_operations(schedule, new):
        _insert_stage(schedule, op, before=stage)
    stage.all_iter_vars, stage.leaf_iter_vars = list(new.root_axes), list(new.root_axes)
    _replace_op(schedule, stage, new)
    _drop_unread(schedule, old)


def speculate(
    schedule: Schedule, exact: Sequence[Tensor], by: Sequence[Tensor], is_valid: Callable[[PrimExpr], PrimExpr]
) -> None:
    """The implementation of `Schedule.speculate`."""
    check_speculation(schedule, exact, by)
    stages = [schedule[t] for t in exact]
    first = min(stages, key=schedule.stages.index)
    for tensor in by:
        for op in [*_new_operations(schedule, tensor.op), tensor.op]:
            if op not in schedule.stage_map:
                _insert_stage(schedule, op, before=first)
    schedule.speculations.append(Speculation(tuple(stages), tuple([schedule[t] for t in by]), is_valid))


def _drop_unread(schedule: Schedule, reader: Operation) -> None:
    """Remove the stages that only `reader`, a removed operation, has read, and those that only these have read."""
    sources = [schedule.stage_map[t.op] for t in reader.input_tensors if t.op in schedule.stage_map]
    for source in dict.fromkeys(sources):
        read = any(t in stage.op.input_tensors for stage in schedule.stages for t in source.op.outputs)
        if source in schedule.stages and not source.is_output and not read and isinstance(source.op, ComputeOp):
            schedule.stages.remove(source)
            _drop_unread(schedule, source.op)


def _same_dim(a: Dim, b: Dim) -> bool:
    return structural_equal(ops.convert(a), ops.convert(b))


def _new_operations(schedule: Schedule, op: Operation) -> list[Operation]:
    """The operations that `op` reads, directly or through others, that are not stages yet; producers first."""
    found: dict[Operation, None] = {}
    for source in [t.op for t in op.input_tensors]:
        if source not in schedule.stage_map:
            if isinstance(source, PlaceholderOp):
                raise ScheduleError(f"recompute by {op.name}, which reads {source.name}, an input that the schedule "
                                    "does not have")  # fmt: skip
            found.update(dict.fromkeys(_new_operations(schedule, source)))
            found[source] = None
    return list(found)


def _relates(relation: object, axes: Sequence[IterVar]) -> bool:
    if isinstance(relation, Split):
        return _is_among(relation.parent, axes)
    return isinstance(relation, Fuse) and _is_among(relation.fused, axes)


def _factored_op(stage: Stage, op: ComputeOp, axis: IterVar, position: int) -> ComputeOp:
    """The partial reductions: data axes with `axis` among them, the other reduce loops as reduce axes."""
    values, guards, extents = loop_extents(stage)
    factor = IterVar(Range(0, extents[axis]), Var(axis.var.name, axis.dtype), "data")
    renaming: dict[Var, PrimExpr] = {axis.var: factor.var}
    reduce_axes: list[IterVar] = []
    for leaf in stage.leaf_iter_vars:
        if leaf.kind == "reduce" and leaf is not axis:
            reduce_axes.append(IterVar(Range(0, extents[leaf]), Var(leaf.var.name, leaf.dtype), "reduce"))
            renaming[leaf.var] = reduce_axes[-1].var
    roots = {root.var: substitute(values[root], renaming) for root in op.reduce_axis}
    conditions = [substitute(g, renaming) for g in guards]
    data = [IterVar(iv.dom, Var(iv.var.name, iv.dtype), "data") for iv in op.axis]
    roots.update({old.var: new.var for old, new in zip(op.axis, data, strict=True)})
    body: list[PrimExpr] = []
    for i, expr in enumerate(op.body):
        assert isinstance(expr, Reduce)
        condition = ops.all(substitute(expr.condition, roots), *conditions)
        source = tuple([substitute(e, roots) for e in expr.source])
        if reduce_axes:
            body.append(Reduce(expr.combiner, source, tuple(reduce_axes), condition, i))
        else:
            body.append(ops.if_then_else(condition, source[i], expr.combiner.identity[i]))
    data.insert(position, factor)
    return ComputeOp(f"{op.name}.rf", op.tag, op.attrs, data, body)


def _final_op(op: ComputeOp, factored: Operation, axis: IterVar, position: int) -> ComputeOp:
    extent = factored.output(0).shape[position]
    over = IterVar(Range(0, extent), Var(f"{axis.var.name}.v", axis.dtype), "reduce")
    indices: list[IterVar] = list(op.axis)
    indices.insert(position, over)
    source = tuple([t(*indices) for t in factored.outputs])
    first = op.body[0]
    assert isinstance(first, Reduce)
    body = [Reduce(first.combiner, source, (over,), const(True), i, first.init) for i in range(len(op.body))]
    return ComputeOp(op.name, op.tag, op.attrs, op.axis, body)


def normalize(schedule: Schedule) -> Schedule:
    """The implementation of `Schedule.normalize`."""
    result = schedule.copy()
    move_with_exact(result)
    _move_attachments(result)
    _inject_inline(result)
    return result


def _move_attachments(schedule: Schedule) -> None:
    """Attachments at a loop that was split move to its inner part, at one that was fused to the fused loop."""
    for stage in schedule.stages:
        at = stage.attach_stage
        if stage.attach != "at" or at is None:
            continue
        while not any(stage.attach_axis is leaf for leaf in at.leaf_iter_vars):
            for relation in at.relations:
                if isinstance(relation, Split) and relation.parent is stage.attach_axis:
                    stage.attach_axis = relation.inner
                    break
                if isinstance(relation, Fuse) and (
                    relation.outer is stage.attach_axis or relation.inner is stage.attach_axis
                ):
                    stage.attach_axis = relation.fused
                    break
            else:
                raise ScheduleError(f"stage {stage.name} is computed at an axis that stage {at.name} no longer has; "
                                    "call compute_at after cache_write and rfactor")  # fmt: skip


def _inject_inline(schedule: Schedule) -> None:
    """Write the formulas of inlined stages into the stages that stay."""
    inlined = {stage.op: stage for stage in schedule.stages if stage.attach == "inline"}
    if not inlined:
        return
    _check_inlinable(schedule, inlined)
    schedule.stages[:] = [stage for stage in schedule.stages if stage.attach != "inline"]
    mapping: dict[Tensor, Tensor] = {}
    for stage in schedule.stages:
        op = stage.op
        new = _inline_into(op, inlined, mapping) if isinstance(op, ComputeOp) else replace_inputs(op, mapping)
        schedule.set_op(stage, new, mapping)


def _check_inlinable(schedule: Schedule, inlined: Mapping[Operation, Stage]) -> None:
    for reader in schedule.stages:
        read = [t.op.name for t in reader.op.input_tensors if t.op in inlined]
        if read and not isinstance(reader.op, ComputeOp):
            raise ScheduleError(f"compute_inline of {read[0]}, which {reader.name} (a {type(reader.op).__name__}) "
                                "reads as a whole tensor; leave it at root")  # fmt: skip
        at = reader.attach_stage
        if reader.attach == "at" and at is not None and at.attach == "inline":
            raise ScheduleError(f"stage {reader.name} is computed at stage {at.name}, which is inlined and has no "
                                "loops; attach it at a loop of the stage that reads the inlined one")  # fmt: skip


def _inline_into(
    reader: ComputeOp, inlined: Container[Operation], mapping: Mapping[Tensor, Tensor]
) -> ComputeOp:
    """`reader` with reads of `inlined` operations replaced by their formulas, and other tensors by those in `mapping`.

    It walks from the reader towards the inputs, so that each formula is expanded once for each element that is read of
    it: an element that several formulas read becomes one expression that they share.
    """
    numbers = ValueNumbers()
    done: dict[int, PrimExpr] = {}

    def read(load: ProducerLoad) -> PrimExpr:
        op = load.producer.op
        if op in inlined:
            key = numbers(load)
            if key not in done:
                assert isinstance(op, ComputeOp)
                indices = {iv.var: index for iv, index in zip(op.axis, load.indices, strict=True)}
                done[key] = map_reads(op.body[load.producer.value_index], read, indices)
            return done[key]
        tensor = mapping.get(load.producer)
        return load if tensor is None else ProducerLoad(tensor, load.indices)

    if not any(t.op in inlined or t in mapping for t in reader.input_tensors):
        return reader
    return ComputeOp(reader.name, reader.tag, reader.attrs, reader.axis, [map_reads(e, read) for e in reader.body])
