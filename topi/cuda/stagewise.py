"""The fallback schedule for any computation on a GPU: every stage that is not inlined is a kernel of its own.

Used for operators without a schedule of their own, and if no other schedule can be launched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cuda.common import launch, thread_axis
from relayc.topi.cuda.cost import Gpu
from relayc.topi.cuda.extern import rewritten, schedule_extern
from relayc.topi.cuda.injective import schedule_elements
from relayc.topi.groups import constant_size, inline_injective
from relayc.topi.registry import Rank, register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_stage", "schedule_stagewise"]


@register_schedule(["elemwise", "broadcast", "injective", "pack", "pad"], "cuda", rank=Rank.ELEMENTWISE)
@register_schedule("default", "cuda", rank=Rank.ELEMENTWISE)
def schedule_stagewise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Inline injective operations, schedule every other one by itself."""
    s = te.create_schedule([out.op for out in outs])
    inline_injective(s, outs)
    for stage in list(s.stages):
        if stage.attach != "inline":
            schedule_stage(s, stage.op, target)
    return s


def schedule_stage(s: te.Schedule, op: te.Operation, target: Target) -> None:
    """Schedule an operation as a kernel: a thread per element or reduction; one thread if there are no data axes."""
    if isinstance(op, te.PlaceholderOp):
        return
    if isinstance(op, te.ExternOp):
        fill = op.attrs.get("for_threads")  # loops for threads, where those for CPUs are unsuitable
        schedule_extern(s, op, Gpu.of(target), None if fill is None else rewritten(op, fill))
    elif not isinstance(op, te.ComputeOp):
        s[op].env_threads([te.thread_axis((0, 1), "blockIdx.x"), thread_axis(1)])
    elif op.reduce_axis or op.num_outputs > 1:
        _schedule_reduction(s, op, target)
    else:
        schedule_elements(s, op.output(0), target)


def _schedule_reduction(s: te.Schedule, op: te.ComputeOp, target: Target) -> None:
    """A thread per result, which stays in a register over the reduction axes."""
    partial = s.cache_write(list(op.outputs), "local")
    out = op.output(0)
    results = constant_size(out.shape)
    item = launch(s, out, list(s[out].op.axis), Gpu.of(target).block_size(results))
    s[partial[0]].compute_at(s[out], item)
