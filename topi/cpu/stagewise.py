"""A fallback schedule for any computation on CPUs: stage after stage, each vectorised and in parallel.

Operators without a schedule of their own get it. Cheap stages are inlined; a reduction keeps a vector of neighbouring
outputs in registers while it runs over its reduction axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.common import parallel, parallel_outer, reduce_by_vectors
from relayc.topi.cpu.elements import element_cost, vectorize_elements
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target
    from relayc.topi.candidates import KernelFacts

__all__ = ["schedule_stagewise", "stage_by_stage"]

_CONVOLUTIONS = [
    f"{kind}{rank}d{suffix}_{layout}"
    for rank, layouts in ((1, ("ncw", "nwc")), (2, ("nchw", "nhwc")), (3, ("ncdhw", "ndhwc")))
    for layout in layouts
    for kind, suffix in (("conv", ""), ("depthwise_conv", ""), ("conv", "_transpose"))
    if kind == "conv" or layout[-1] != "c"
]
_OTHERS = [
    "attention", "default", "dense", "dense_bits", "recurrent", "scan", "scatter", "sort",
]  # fmt: skip


@register_schedule([*_CONVOLUTIONS, *_OTHERS], "cpu")
def schedule_stagewise(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule every stage that is not inlined: its outer axes in parallel, its last axis vectorised."""
    s = te.create_schedule([out.op for out in outs])
    inline_injective(s, outs, keep=[anchor])
    for stage in list(s.stages):
        op = stage.op
        if isinstance(op, te.ComputeOp) and stage.attach != "inline" and op.axis:
            _schedule_stage(s, op, target)
    return s


def stage_by_stage(kernel: KernelFacts) -> te.Schedule:
    """`schedule_stagewise` as a candidate."""
    return schedule_stagewise(kernel.outs, kernel.anchor, kernel.target)


def _schedule_stage(s: te.Schedule, op: te.ComputeOp, target: Target) -> None:
    result = op.output(0)
    lanes = vector_lanes(target, max(result.dtype.nbytes, 4))
    work = constant_size([extent_of(a) for a in (*op.axis, *op.reduce_axis)]) * element_cost([op])
    if op.num_outputs > 1:
        parallel(s, result, s[result].fuse(*op.axis), work, lanes)
        return
    accumulator = s.cache_write(result, "local") if op.reduce_axis else None
    *outer, last = s[result].op.axis
    vectors = vectorize_elements(s, result, last, extent_of(last), lanes)
    group = parallel_outer(s, result, [*outer, vectors], work, target)[-1]
    if accumulator is not None:
        s[accumulator].compute_at(s[result], group)
        reduce_by_vectors(s, accumulator)
