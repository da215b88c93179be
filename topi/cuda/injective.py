"""Schedules for elementwise, broadcasting and index-mapping groups: one kernel per output, with 128-bit accesses if
possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cuda.common import launch
from relayc.topi.cuda.cost import Gpu
from relayc.topi.cuda.lanes import flat_lanes, is_flat, row_lanes
from relayc.topi.cuda.transpose import schedule_transpose, strided_reads
from relayc.topi.groups import constant_size

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_elements"]


def schedule_elements(s: te.Schedule, out: te.Tensor, target: Target) -> None:
    """One pass over the elements of `out`, a vector for each thread, with all injective operations inlined."""
    gpu = Gpu.of(target)
    strided = strided_reads(out) if len(s.outputs) == 1 else None
    if strided is not None:
        schedule_transpose(s, out, strided)
        return
    axes = list(s[out].op.axis)
    if is_flat(out):
        axes, lanes = [s[out].fuse(*axes)], flat_lanes(out)
    else:
        lanes = row_lanes(out)
    vector: te.IterVar | None = None
    if lanes > 1:
        axes[-1], vector = s[out].split(axes[-1], factor=lanes)
    groups = constant_size(out.shape) // lanes
    threads = gpu.block_size(groups)
    items = gpu.items_per_thread(groups, threads, lanes * out.dtype.nbytes)
    launch(s, out, axes, threads, items)
    if vector is not None:
        s[out].vectorize(vector)
