"""Schedules for depthwise convolutions and others with few channels per group: memory-bound, so without shared memory.

A thread computes a few adjacent outputs: lanes of channels if they come last, and a run of positions along one spatial
axis, whose windows overlap. It reads the inputs of a line of taps once into registers; inputs shared with other threads
come from the L1 cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.tir import IterVar, as_int
from relayc.topi.cuda.common import block_axis, thread_axis
from relayc.topi.cuda.cost import VECTOR_BYTES, Gpu
from relayc.topi.cuda.epilogue import start_schedule
from relayc.topi.groups import constant_size, extent_of
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_direct"]

_LAYOUTS = ("ncw", "nwc", "nchw", "nhwc", "ncdhw", "ndhwc")
_RUN = 4
"""Outputs per thread along a spatial axis, where there is enough work for all threads."""
_UNROLLED_TAPS = 64
"""Maximum number of taps whose loops are unrolled."""


@register_schedule([f"depthwise_conv{len(x) - 2}d_{x}" for x in _LAYOUTS], "cuda")
def schedule_direct(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """A schedule where each thread accumulates a run of outputs over all taps, its inputs in registers."""
    assert isinstance(anchor, te.ComputeOp)
    s, out = start_schedule(outs, anchor, target)
    layout = str(anchor.tag).rsplit("_", 1)[1]
    source, _ = anchor.input_tensors
    total = s.cache_write(out, "local") if anchor is out.op else anchor.output(0)
    assert isinstance(total, te.Tensor)
    s[total].set_scope("local")
    lanes = _channel_lanes(anchor, layout)
    run = _run_length(anchor, layout, lanes, target)
    stage = s[out]
    axes = dict(zip(layout, stage.op.axis, strict=True))
    last: IterVar | None = None
    if lanes > 1:
        axes["c"], last = stage.split(axes["c"], factor=lanes)
    along = _run_axis(layout)
    each: IterVar | None = None
    if along is not None and run > 1:
        axes[along], each = stage.split(axes[along], factor=run, tail="predicate")
    inner = [a for a in (each, last) if a is not None]
    stage.reorder(*axes.values(), *inner)
    threads = Gpu.of(target).block_size(constant_size(out.shape) // (lanes * run))
    block, thread = stage.split(stage.fuse(*axes.values()), factor=threads, tail="predicate")
    stage.bind(block, block_axis())
    stage.bind(thread, thread_axis(threads))
    if each is not None:
        stage.unroll(each)
    if last is not None:
        stage.vectorize(last)
    s[total].compute_at(stage, thread)
    _accumulate(s, total, layout, lanes)
    if run > 1 and str(anchor.tag).startswith("depthwise"):
        _keep_inputs(s, total, source, lanes)
    return s


def _channel_lanes(anchor: te.ComputeOp, layout: str) -> int:
    """Channels per thread: a vector where channels come last and have inputs of their own."""
    result = anchor.output(0)
    channels, groups = as_int(result.shape[-1]), int(anchor.attrs["groups"])
    weights = str(anchor.attrs.get("kernel_layout", "")).lower()
    if not layout.endswith("c") or channels is None or channels != groups or not weights.endswith("o"):
        return 1
    narrow = min(t.dtype.nbytes for t in anchor.input_tensors)
    return math.gcd(channels, VECTOR_BYTES // narrow)


def _run_axis(layout: str) -> str | None:
    """The spatial axis along which a thread computes several outputs: not the one that adjacent threads cover."""
    spatial = [a for a in layout if a not in "nc"]
    if layout.endswith("c"):
        return spatial[-1]
    return spatial[-2] if len(spatial) > 1 else None


def _run_length(anchor: te.ComputeOp, layout: str, lanes: int, target: Target) -> int:
    """Outputs per thread along that axis: as many as leave every multiprocessor a full set of threads."""
    axis, gpu = _run_axis(layout), Gpu.of(target)
    extent = None if axis is None else as_int(anchor.output(0).shape[layout.index(axis)])
    if extent is None:
        return 1
    items = constant_size(anchor.output(0).shape) // lanes
    affordable = items // (gpu.processors * gpu.limits.threads_per_sm // 2)
    return next((r for r in (_RUN, 2) if r <= affordable and r <= extent), 1)


def _accumulate(s: te.Schedule, total: te.Tensor, layout: str, lanes: int) -> None:
    """Order the accumulation with taps outside and the thread's outputs inside, channels as vectors."""
    stage = s[total]
    taps = stage.op.reduce_axis
    data = dict(zip(layout, stage.op.axis, strict=True))
    order = [data[a] for a in layout if a != "c"] + [data["c"]] if layout.endswith("c") else list(data.values())
    stage.reorder(*taps, *order)
    if constant_size([extent_of(a) for a in taps]) <= _UNROLLED_TAPS:
        for tap in taps:
            stage.unroll(tap)
    for axis in order[:-1] if lanes > 1 else order:
        stage.unroll(axis)
    if lanes > 1:
        stage.vectorize(order[-1])


def _keep_inputs(s: te.Schedule, total: te.Tensor, source: te.Tensor, lanes: int) -> None:
    """Keep the inputs of one line of taps, border included, in registers."""
    stage = s[total]
    lines = stage.op.reduce_axis
    if len(lines) < 2:
        return
    kept = s[source].op.output(0) if s[source].attach == "inline" else s.cache_read(source, "local", [total])
    s[kept].set_scope("local")
    s[kept].compute_at(stage, lines[-2])
    for axis in s[kept].op.axis[:-1]:
        s[kept].unroll(axis)
    if lanes > 1:
        s[kept].vectorize(s[kept].op.axis[-1])
    else:
        s[kept].unroll(s[kept].op.axis[-1])
