"""Schedules for pooling and local response normalisation: a thread per window, several channels if they are
contiguous."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.tir import as_int
from relayc.topi.cuda.common import launch
from relayc.topi.cuda.cost import VECTOR_BYTES, Gpu
from relayc.topi.cuda.stagewise import schedule_stage
from relayc.topi.groups import constant_size, inline_injective
from relayc.topi.registry import operations_behind, register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_windows"]

_UNROLL_WINDOW = 49
"""Maximum taps of an unrolled window, so that all its loads are in flight together."""


@register_schedule(["pool", "lrn", "overlap_add"], "cuda")
def schedule_windows(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """One kernel: windows reduced in registers, with borders tested inline and the consumers fused.

    The anchor's attribute "axes" (or "axis") has the dimensions of the windows.
    """
    s = te.create_schedule([out.op for out in outs])
    inline_injective(s, outs, keep=[anchor])
    result = anchor.output(0)
    alone = len({id(t.op) for t in outs}) == 1 and tuple(outs[0].shape) == tuple(result.shape)
    main = outs[0] if alone else result
    spanned = anchor.attrs["axes"] if "axes" in anchor.attrs else (anchor.attrs["axis"],)
    windows = [op for op in operations_behind([main]) if isinstance(op, te.ComputeOp) and op.reduce_axis]
    _schedule_kernel(s, main, windows, len(result.shape) - 1 in spanned, Gpu.of(target))
    if anchor is not main.op and not anchor.reduce_axis:
        s[anchor].compute_inline()
    here = {id(op) for op in (*windows, anchor, main.op)}
    for op in operations_behind(outs):
        if id(op) not in here and s[op].attach != "inline":
            schedule_stage(s, op, target)
    return s


def _schedule_kernel(
    s: te.Schedule, main: te.Tensor, windows: list[te.ComputeOp], along_memory: bool, gpu: Gpu
) -> None:
    """Schedule `main` with a thread for each group of elements, and in it the reductions `windows` of the same
    shape."""
    extent = as_int(main.shape[-1])
    nbytes = max(t.dtype.nbytes for op in windows for t in (main, *op.input_tensors))
    lanes = 1 if along_memory or extent is None else math.gcd(VECTOR_BYTES // nbytes, max(extent, 1))
    reductions: list[te.Tensor] = []
    for op in windows:
        own = s[op] is s[main]
        reductions.append(s.cache_write(list(op.outputs), "local")[0] if own else op.output(0))
    *outer, last = s[main].op.axis
    group, lane = s[main].split(last, factor=lanes)
    groups = constant_size(main.shape) // lanes
    at = launch(s, main, [*outer, group], gpu.block_size(groups))
    if lanes > 1:
        s[main].vectorize(lane)
    for reduction in reductions:
        _schedule_window(s, reduction, lanes)
        s[reduction].compute_at(s[main], at)


def _schedule_window(s: te.Schedule, reduction: te.Tensor, lanes: int) -> None:
    stage = s[reduction]
    stage.set_scope("local")
    op = stage.op
    stage.reorder(*op.axis[:-1], *op.reduce_axis, op.axis[-1])
    if lanes > 1:
        stage.vectorize(op.axis[-1])
    taps = constant_size([axis.extent for axis in op.reduce_axis])
    if taps <= _UNROLL_WINDOW:
        for axis in op.reduce_axis:
            stage.unroll(axis)
