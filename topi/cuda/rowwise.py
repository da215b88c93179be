"""Schedules for softmax and normalisations in one kernel: statistics of each row, and elementwise operations with them.

Producers (a sum with a residual, say) are computed once for each element, into registers; consumers are fused into the
output loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cuda.cost import Gpu
from relayc.topi.cuda.rows import Plan, RowMap, bind_rows, hold_rows, memory_order, plan_rows, reduce_rows
from relayc.topi.cuda.stagewise import schedule_stage, schedule_stagewise
from relayc.topi.groups import constant_size, is_injective
from relayc.topi.registry import operations_behind, register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_rows", "schedule_rowwise"]


@register_schedule(
    ["softmax", "layer_norm", "rms_norm", "instance_norm", "group_norm", "l2_normalize", "standardize"], "cuda"
)
def schedule_rowwise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """One kernel for the anchor and the elementwise operations after it; other outputs are kernels of their own."""
    result = anchor.output(0)
    sources = _sources(result)
    if sources is None:
        return schedule_stagewise(outs, anchor, target)
    s = te.create_schedule([out.op for out in outs])
    outputs = {id(out.op) for out in outs}
    alone = len(outputs) == 1 and tuple(outs[0].shape) == tuple(result.shape)
    main = outs[0] if alone else result
    inside = [op for op in operations_behind([main]) if isinstance(op, te.ComputeOp) and id(op) not in outputs]
    inside = [op for op in inside if op is not main.op and (is_injective(op) or _uses_reduction(op))]
    schedule_rows(s, main, inside, sources, Gpu.of(target))
    here = {id(op) for op in (*inside, main.op)}
    for op in operations_behind(outs):
        if id(op) in here:
            continue
        if is_injective(op) and id(op) not in outputs:
            s[op].compute_inline()
        else:
            schedule_stage(s, op, target)
    return s


def _sources(result: te.Tensor) -> dict[te.ComputeOp, tuple[te.Tensor, RowMap]] | None:
    """The source that each statistic of `result` reads row by row; None unless they agree on the rows."""
    sources: dict[te.ComputeOp, tuple[te.Tensor, RowMap]] = {}
    for op in operations_behind([result]):
        if not isinstance(op, te.ComputeOp) or not op.reduce_axis:
            continue
        whole = [t for t in op.input_tensors if tuple(t.shape) == tuple(result.shape)]
        rows = RowMap.of(op, whole[0]) if whole else None
        if rows is None or any(rows != other for _, other in sources.values()):
            return None
        sources[op] = whole[0], rows
    return sources or None


def _uses_reduction(op: te.Operation) -> bool:
    """Is this a reduction, or computed from the result of one?"""
    return any(isinstance(o, te.ComputeOp) and o.reduce_axis for o in operations_behind([op.output(0)]))


def schedule_rows(
    s: te.Schedule,
    main: te.Tensor,
    inside: list[te.ComputeOp],
    sources: dict[te.ComputeOp, tuple[te.Tensor, RowMap]],
    gpu: Gpu,
) -> None:
    """Schedule `main` on threads, and in its loops the operations `inside`: statistics in registers, others inlined."""
    first, rows = next(iter(sources.values()))
    itemsize = max(first.dtype.nbytes, main.dtype.nbytes)
    plan = plan_rows(
        gpu, constant_size(rows.row_shape), rows.columns, itemsize, along_memory=rows.along_memory, hold=True
    )
    if rows.grouped and not plan.exact:
        plan = replace(plan, registers=False)  # beyond the last column, a group's columns would be the next group's
    at = bind_rows(s, main, rows, plan)
    for op in inside:
        result = op.output(0)
        if op.reduce_axis:
            order = memory_order(op, sources[op][0])
            reduce_rows(s, result, order, plan)
            s[result].compute_at(s[main], at)
        elif tuple(result.shape) != rows.shape and _uses_reduction(op):
            s[result].set_scope("local")
            s[result].compute_at(s[main], at)
        else:
            s[result].compute_inline()
    if plan.registers:
        _hold_shared(s, main, [*inside, main.op], at, rows, plan)


def _hold_shared(
    s: te.Schedule,
    main: te.Tensor,
    ops: list[te.Operation],
    at: te.IterVar,
    rows: RowMap,
    plan: Plan,
) -> None:
    """Keep every tensor of rows that several operations of the kernel read in registers."""
    readers: dict[te.Tensor, list[te.Operation]] = {}
    for op in ops:
        for tensor in op.input_tensors:
            if tuple(tensor.shape) == rows.shape:
                readers.setdefault(tensor, []).append(op)
    for tensor, reading in readers.items():
        if len(reading) > 1:
            s[hold_rows(s, tensor, reading, rows, plan)].compute_at(s[main], at)
