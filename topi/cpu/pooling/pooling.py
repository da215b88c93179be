"""Pooling on CPUs: NHWC windows by tiles of columns and vectors of channels, other layouts by vectors of a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused, note
from relayc.topi.candidates import Candidate, KernelFacts, schedule_by
from relayc.topi.cpu.pooling.images import ImagePlan
from relayc.topi.cpu.pooling.lines import LinePlan
from relayc.topi.cpu.pooling.window_lines import WindowLines
from relayc.topi.cpu.reductions.rewrites import compare_as_float32, compare_as_integers
from relayc.topi.cpu.stagewise import stage_by_stage
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import extent_of, inline_injective, iterations
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_pool"]

_FEW_TAPS = 9
"""Most taps of windows that are reduced directly where few results share partial reductions across lines."""
_LONG_LINE = 6
"""Vectors of a line of a plane from which on 16-bit floats are compared as integers; shorter lines only if they are
whole vectors, since LLVM moves the elements of partial 16-bit vectors singly."""


@register_schedule("pool", "cpu")
def schedule_pool(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule a reduction over a window for every output; the last data axis is vectorised if no window spans it.

    The anchor's attribute "axes" holds the dimensions that the window spans.
    """
    return schedule_by(_CANDIDATES, KernelFacts(outs, anchor, target))


def _columns(kernel: KernelFacts) -> te.Schedule | Refused:
    """Schedule images with channels last one column at a time, or by tiles of windows that share reductions."""
    operation, target = kernel.anchor, kernel.target
    if [*operation.attrs["axes"]] != [*range(1, len(operation.axis) - 1)] or not kernel.has_one_result:
        return Refused("no images with channels last and one result")
    s = kernel.create_schedule()
    if iterations([operation.axis[-1]]) >= vector_lanes(target):
        operation = compare_as_integers(s, operation)
    shared = WindowLines.of(operation) if len(operation.axis) == 4 else None
    plan = ImagePlan.of(operation, shared, target)
    note("windows", "one by one" if plan.levels is None else "shared reductions", plan)
    plan.apply(s, operation, shared, target)
    return s


def _lines(kernel: KernelFacts) -> te.Schedule | Refused:
    """Schedule windows that span the last axis; dynamic lines have specialised versions for shorter and shorter ones.

    The first part of a dynamic line, and the last, which is shifted inwards, are partitioned off: in lines longer than
    a part and a window it is known which vectors touch the border.
    """
    if not kernel.has_one_result or len(kernel.anchor.axis) - 1 not in kernel.anchor.attrs["axes"]:
        return Refused("windows do not span the last dimension, or there are several results")
    if isinstance(extent_of(kernel.anchor.axis[-1]), int):
        return _schedule_lines(kernel)
    lanes, strided = vector_lanes(kernel.target), kernel.anchor.attrs.get("strides", (1,))[-1] > 1
    many = iterations(kernel.anchor.reduce_axis) > _FEW_TAPS
    s = _schedule_lines(kernel, part=4 * lanes, share=strided or many)
    fewer = _schedule_lines(kernel, part=2 * lanes, share=many)
    s.specialize_small(fewer)
    fewer.specialize_small(_schedule_lines(kernel, part=lanes, share=many))
    return s


def _schedule_lines(kernel: KernelFacts, part: int = 0, *, share: bool = True) -> te.Schedule:
    """Schedule windows that span the last axis; with `share` adjacent windows share reductions across lines."""
    s, operation, target = kernel.create_schedule(), kernel.anchor, kernel.target
    lanes, width = vector_lanes(target), iterations([operation.axis[-1]])
    if width >= _LONG_LINE * lanes or width % (2 * lanes) == 0:
        operation = compare_as_integers(s, operation)
    elif not _is_vector_of_float16(operation, target):
        operation = compare_as_float32(s, operation)
    shared = WindowLines.of(operation) if share else None
    plan = LinePlan.of(operation, shared, part, target)
    note("windows", "vectors of a line", plan)
    lines = plan.share(s, shared)
    out, anchor = s.outputs[0].output(0), s[operation].op
    inline_injective(s, [out], keep=[anchor, *[s[t].op for t in lines]])
    plan.apply(s, out, anchor, lines, target)
    return s


def _is_vector_of_float16(operation: te.Operation, target: Target) -> bool:
    """True if a line is at most a vector of float16, read at stride 1, that the target compares without conversion."""
    width, strides = iterations([operation.axis[-1]]), operation.attrs.get("strides", (1,))
    native = operation.output(0).dtype == "float16" and not target.features.isdisjoint(("avx512fp16", "fullfp16"))
    return native and strides[-1] == 1 and width <= vector_lanes(target, 2)


_CANDIDATES: tuple[Candidate[KernelFacts], ...] = (
    ("columns of images", _columns),
    ("lines", _lines),
    ("stage by stage", stage_by_stage),
)


@register_schedule("pool_positions", "cpu")
def schedule_pool_positions(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule argmax pooling: the maximum of each window, then its first tap that has it, in two vectorised passes."""
    lanes, known = vector_lanes(target), isinstance(extent_of(anchor.axis[-1]), int)

    def by_parts(part: int) -> te.Schedule:
        s = te.create_schedule([out.op for out in outs])
        pool = next(op for op in anchor.input_tensors if op.op.tag == "pool").op
        inline_injective(s, outs, keep=[anchor, pool])
        for out, operation in zip(outs, (pool, anchor), strict=True):
            LinePlan(lanes, part=part).apply(s, s.current(out), operation, (), target)
        return s

    s = by_parts(0 if known else 2 * lanes)
    if not known:
        s.specialize_small(by_parts(lanes))
    return s
