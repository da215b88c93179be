"""Schedules for reductions: several threads or several blocks per result, whichever fills the GPU.

Threads run along contiguous memory. A reduction with fewer results than the GPU has threads is distributed over the
threads of a row; one with fewer than it has multiprocessors also over several blocks, each of which makes a partial
result that a second kernel combines.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.tir import product
from relayc.topi.cuda.cost import Gpu, power_of_two
from relayc.topi.cuda.rows import Plan, RowMap, bind_results, hold_rows, memory_order, plan_rows, reduce_rows
from relayc.topi.cuda.stagewise import schedule_stage, schedule_stagewise
from relayc.topi.groups import constant_size, inline_injective
from relayc.topi.registry import Rank, operations_behind, register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_reduce", "schedule_reduction"]

_MIN_STEPS = 16
"""Minimum columns that a thread reduces in a part; less is not worth a second kernel."""


@register_schedule(["comm_reduce", "comm_reduce_idx", "log_sum_exp", "variance"], "cuda", rank=Rank.REDUCTION)
def schedule_reduce(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule every reduction of the group; an elementwise operation after the last one is fused."""
    if not isinstance(anchor, te.ComputeOp):
        return schedule_stagewise(outs, anchor, target)
    s = te.create_schedule([out.op for out in outs])
    inline_injective(s, outs, keep=[anchor])
    out = outs[0]
    alone = len({id(t.op) for t in outs}) == 1 and tuple(out.shape) == tuple(anchor.output(0).shape)
    main = out if alone else anchor.output(0)
    schedule_reduction(s, anchor, main, Gpu.of(target))
    for op in operations_behind(outs):
        if op is anchor or op is main.op or s[op].attach == "inline":
            continue
        if isinstance(op, te.ComputeOp) and op.reduce_axis and op.num_outputs == 1:
            schedule_reduction(s, op, op.output(0), Gpu.of(target))
        else:
            schedule_stage(s, op, target)
    return s


def schedule_reduction(s: te.Schedule, op: te.ComputeOp, main: te.Tensor, gpu: Gpu) -> None:
    """Schedule `op` on threads; `main`, of the same shape, is `op` itself or computed from it."""
    count, columns = constant_size([a.extent for a in op.axis]), constant_size([a.extent for a in op.reduce_axis])
    source = _source(op)
    along = _reduces_last_axis(op) if source is None else source[1].along_memory
    order = list(op.reduce_axis) if source is None else memory_order(op, source[0])
    itemsize = max(t.dtype.nbytes for t in (*op.input_tensors, main))
    length = product([a.extent for a in op.reduce_axis])
    plan = plan_rows(gpu, count, length, itemsize, along_memory=along, hold=False)
    parts = _parts(gpu, math.ceil(count / plan.rows), columns // plan.threads)
    if parts == 1:
        _reduce_together(s, op, main, order, plan, source)
        return
    part, _ = s[op].split(s[op].fuse(*order), nparts=parts)
    made = s.rfactor(op.output(0), part)
    partial = made[0] if isinstance(made, list) else made
    assert isinstance(partial.op, te.ComputeOp)
    plan = plan_rows(gpu, count * parts, math.ceil(columns / parts), itemsize, along_memory=along, hold=False)
    _reduce_together(s, partial.op, partial, list(partial.op.reduce_axis), plan.scalar(), None)
    final = s[op].op
    assert isinstance(final, te.ComputeOp)
    plan = plan_rows(gpu, count, parts, itemsize, along_memory=count == 1, hold=False)
    _reduce_together(s, final, main, list(final.reduce_axis), plan.scalar(), None)


def _reduce_together(
    s: te.Schedule,
    op: te.ComputeOp,
    main: te.Tensor,
    order: list[te.IterVar],
    plan: Plan,
    source: tuple[te.Tensor, RowMap] | None,
) -> None:
    """A single kernel; with a `source` its elements are read as vectors."""
    local = op.output(0)
    if s[main] is s[op]:
        local = s.cache_write(list(op.outputs), "local")[0]
    at = bind_results(s, main, plan)
    chunk = reduce_rows(s, local, order, plan)
    s[local].compute_at(s[main], at)
    if source is not None and plan.lanes > 1:
        tensor, rows = source
        s[hold_rows(s, tensor, [local.op], rows, plan)].compute_at(s[local], chunk)


def _source(op: te.ComputeOp) -> tuple[te.Tensor, RowMap] | None:
    """The largest tensor that `op` reads row by row, and its rows."""
    found: list[tuple[te.Tensor, RowMap]] = []
    for tensor in op.input_tensors:
        rows = RowMap.of(op, tensor)
        if rows is not None:
            found.append((tensor, rows))
    return max(found, key=lambda pair: constant_size(pair[0].shape), default=None)


def _reduces_last_axis(op: te.ComputeOp) -> bool:
    """Is the innermost reduction axis contiguous? Taken from the operation's attributes, or judged by its last data
    axis."""
    return not op.axis or constant_size([op.axis[-1].extent]) == 1 or op.attrs.get("reduces_last_axis", False)


def _parts(gpu: Gpu, blocks: int, steps: int) -> int:
    """The number of blocks per reduction, where `blocks` run `steps` steps each otherwise."""
    if blocks >= gpu.processors or blocks == 0:
        return 1
    return power_of_two(min(2 * gpu.processors // blocks, steps // _MIN_STEPS, gpu.limits.threads_per_block))
