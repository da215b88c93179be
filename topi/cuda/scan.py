"""Schedules for cumulative sums and scattered updates: parallel algorithms that do more work.

With enough lines in a tensor, each is processed by one thread in order. Few lines of cumulative sums take passes that
combine every element with the one 1, 2, 4, ... positions before (Hillis and Steele, 1986). Where few updates of a
scatter are known to have different targets, each element searches for the updates that target it, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.tir import EQ, Buffer, PrimExpr, Stmt, Var, as_int, ir_builder
from relayc.te.tir.ir_builder import IRBuilder
from relayc.te.tir.ops import match_types
from relayc.topi.cuda.cost import Gpu
from relayc.topi.cuda.extern import rewritten, schedule_extern
from relayc.topi.cuda.stagewise import schedule_stage
from relayc.topi.groups import constant_size, inline_injective
from relayc.topi.indexing import SCATTER_REDUCTIONS
from relayc.topi.loops import loop_nest
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_scan"]

_MAX_COMPARISONS = 1 << 34
"""Maximum comparisons of elements with updates for which searching beats making the updates in one thread."""


@register_schedule(["scan", "scatter"], "cuda")
def schedule_scan(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Rewrite the loops of each scan and scatter for threads; schedule all else stage by stage."""
    s = te.create_schedule([out.op for out in outs])
    inline_injective(s, outs)
    gpu = Gpu.of(target)
    for stage in list(s.stages):
        op = stage.op
        if isinstance(op, te.ExternOp) and "combine" in op.attrs:
            schedule_extern(s, op, gpu, _scan(op, gpu))
        elif isinstance(op, te.ExternOp) and "met_by" in op.attrs:
            schedule_extern(s, op, gpu, _scatter(op, gpu))
        elif stage.attach != "inline":
            schedule_stage(s, op, target)
    return s


# -- running sums


def _scan(op: te.ExternOp, gpu: Gpu) -> te.ExternOp:
    """Scan by lines, or in passes where lines are few."""
    shape, axis = op.outputs[0].shape, int(op.attrs["axis"])
    length = as_int(shape[axis])
    lines = constant_size([*shape[:axis], *shape[axis + 1 :]])
    if length is None or length <= gpu.limits.warp or lines >= gpu.processors * gpu.limits.warp:
        return rewritten(op, lambda ins, outs: _scan_lines(op, ins, outs))
    return rewritten(op, lambda ins, outs: _scan_passes(op, length, ins, outs))


def _scan_lines(op: te.ExternOp, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
    axis, kind = int(op.attrs["axis"]), str(outs[0].dtype)
    shape, exclusive, combine = outs[0].shape, op.attrs["exclusive"], op.attrs["combine"]
    ib = ir_builder.create()
    source, out = ib.buffer(ins[0]), ib.buffer(outs[0])
    with loop_nest(ib, (*shape[:axis], *shape[axis + 1 :]), independent=True) as line:
        total = ib.allocate(kind, 1, "total")
        total[0] = te.const(op.attrs["start"], kind)
        with ib.for_range(0, shape[axis], "k") as k:
            at = (*line[:axis], shape[axis] - 1 - k if op.attrs["reverse"] else k, *line[axis:])
            if exclusive:
                out[at] = total[0]
            total[0] = combine(total[0], te.cast(kind, source[at]))
            if not exclusive:
                out[at] = total[0]
    return ib.get()


def _scan_passes(op: te.ExternOp, length: int, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
    """Pass p combines every element with the one 2 ** p positions before; pass -1 copies."""
    axis, kind, shape = int(op.attrs["axis"]), str(outs[0].dtype), outs[0].shape
    exclusive, combine = op.attrs["exclusive"], op.attrs["combine"]
    passes, step = (length - 1).bit_length(), -1 if op.attrs["reverse"] else 1
    ib = ir_builder.create()
    source, out = ib.buffer(ins[0]), ib.buffer(outs[0])
    scratch = ib.allocate(kind, shape, "sums", scope="global")
    buffers = [out if (passes - i) % 2 == 0 else scratch for i in range(passes + 1)]

    def in_front(i: Sequence[PrimExpr]) -> PrimExpr:
        return length - 1 - i[axis] if op.attrs["reverse"] else i[axis]

    with loop_nest(ib, shape, independent=True) as i:
        previous = (*i[:axis], i[axis] - step, *i[axis + 1 :])
        value = te.cast(kind, source[previous if exclusive else i])
        first = te.const(op.attrs["start"], kind)
        buffers[0][i] = te.if_then_else(in_front(i) > 0, value, first) if exclusive else value
    for p in range(passes):
        with loop_nest(ib, shape, independent=True) as i:
            front = (*i[:axis], i[axis] - step * (1 << p), *i[axis + 1 :])
            here = buffers[p][i]
            both = combine(buffers[p][front], here)
            buffers[p + 1][i] = te.if_then_else(in_front(i) >= 1 << p, both, here)
    return ib.get()


# -- scattered updates


def _equal(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return EQ(*match_types(a, b))


def _scatter(op: te.ExternOp, gpu: Gpu) -> te.ExternOp:
    """A thread for each line of updates that can't collide, or for each element where such lines are few."""
    updates = op.inputs[2].shape
    ordered = op.attrs["ordered"]
    steps = constant_size([updates[d] for d in ordered])
    lines = constant_size([d for i, d in enumerate(updates) if i not in ordered])
    looks = constant_size(op.outputs[0].shape) * steps
    if lines >= gpu.processors * gpu.limits.warp or looks > _MAX_COMPARISONS:
        return rewritten(op, lambda ins, outs: _scatter_lines(op, ins, outs))
    return rewritten(op, lambda ins, outs: _scatter_by_search(op, ins, outs))


def _scatter_lines(op: te.ExternOp, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
    ordered, shape = op.attrs["ordered"], ins[2].shape
    free = [d for d in range(len(shape)) if d not in ordered]
    ib = ir_builder.create()
    source, positions, new = (ib.buffer(b) for b in ins)
    out = ib.buffer(outs[0])
    with loop_nest(ib, outs[0].shape, independent=True) as i:
        out[i] = source[i]
    with loop_nest(ib, [shape[d] for d in free], independent=True) as line, _steps(ib, op, ins[2]) as steps:
        places = dict(zip((*free, *ordered), (*line, *steps), strict=True))
        update = tuple([places[d] for d in range(len(shape))])
        at = op.attrs["target"](positions, update)
        out[at] = SCATTER_REDUCTIONS[op.attrs["reduction"]](out[at], new[update])
    return ib.get()


def _scatter_by_search(op: te.ExternOp, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
    ordered, shape = op.attrs["ordered"], ins[2].shape
    ib = ir_builder.create()
    source, positions, new = (ib.buffer(b) for b in ins)
    out = ib.buffer(outs[0])
    with loop_nest(ib, outs[0].shape, independent=True) as i:
        value = ib.allocate(str(outs[0].dtype), 1, "value")
        value[0] = source[i]
        with _steps(ib, op, ins[2]) as steps:
            update = op.attrs["met_by"](i, steps)
            exists = [update[d] < shape[d] for d in range(len(shape)) if d not in ordered]
            with ib.if_scope(te.all(te.const(True), *exists)):
                at = op.attrs["target"](positions, update)
                with ib.if_scope(te.all(te.const(True), *[_equal(a, b) for a, b in zip(at, i, strict=True)])):
                    value[0] = SCATTER_REDUCTIONS[op.attrs["reduction"]](value[0], new[update])
        out[i] = value[0]
    return ib.get()


def _steps(ib: IRBuilder, op: te.ExternOp, updates: Buffer) -> AbstractContextManager[tuple[Var, ...]]:
    """Loops over the dimensions of the updates whose order matters."""
    return loop_nest(ib, [updates.shape[d] for d in op.attrs["ordered"]], "u")
