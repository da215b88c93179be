"""Pooling on CPUs: NHWC windows by tiles of columns and vectors of channels, other layouts by vectors of a line."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.topi.candidates import Candidate, KernelFacts, schedule_by
from relayc.topi.cpu.common import local_accumulator
from relayc.topi.cpu.pooling.plans import ColumnTiles, LineTiles, schedule_windows
from relayc.topi.cpu.pooling.window_lines import WindowLines
from relayc.topi.cpu.reductions.rewrites import compare_as_integers
from relayc.topi.cpu.stagewise import stage_by_stage
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import extent_of, inline_injective, iterations
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayc.backend.target import Target

__all__ = ["schedule_pool"]

_FEW_TAPS = 9
"""Most taps of windows that are reduced directly where few results share partial reductions across lines."""


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
    operation = compare_as_integers(s, operation)
    shared = WindowLines.of(operation) if len(operation.axis) == 4 else None
    schedule_windows(s, operation, shared, ColumnTiles.of(shared, target), target)
    return s


def _lines(kernel: KernelFacts) -> te.Schedule | Refused:
    """Schedule windows that span the last axis, in static lines or in those of `_by_parts`."""
    anchor, target, lanes = kernel.anchor, kernel.target, vector_lanes(kernel.target)
    if not kernel.has_one_result or len(anchor.axis) - 1 not in anchor.attrs["axes"]:
        return Refused("windows do not span the last dimension, or there are several results")
    width, stride = iterations([anchor.axis[-1]]), anchor.attrs.get("strides", (1,))[-1]
    many, longest = iterations(anchor.reduce_axis) > _FEW_TAPS, 4 * lanes
    native = anchor.output(0).dtype == "float16" and not target.features.isdisjoint(("avx512fp16", "fullfp16"))
    is_vector = native and stride == 1 and width <= vector_lanes(target, 2)

    def schedule(part: int) -> te.Schedule:
        s = kernel.create_schedule()
        operation = anchor if is_vector else compare_as_integers(s, anchor)
        shares = many or part == 0 or (part == longest and stride > 1)
        shared = WindowLines.of(operation) if shares else None
        schedule_windows(s, operation, shared, LineTiles.of(operation, shared, part, target), target)
        return s

    return _by_parts(schedule, anchor, (longest, 2 * lanes, lanes))


def _by_parts(schedule: Callable[[int], te.Schedule], anchor: te.Operation, parts: Sequence[int]) -> te.Schedule:
    """The ``schedule(0)`` of static lines; of dynamic ones versions by shorter and shorter `parts`, in results.

    The first part of a dynamic line, and the last, which is shifted inwards, are partitioned off: in lines longer than
    a part and a window it is known which vectors touch the border.
    """
    if isinstance(extent_of(anchor.axis[-1]), int):
        return schedule(0)
    versions = [schedule(part) for part in parts]
    for longer, shorter in pairwise(versions):
        longer.specialize_small(shorter)
    return versions[0]


_CANDIDATES: tuple[Candidate[KernelFacts], ...] = (
    ("columns of images", _columns),
    ("lines", _lines),
    ("stage by stage", stage_by_stage),
)


@register_schedule("pool_positions", "cpu")
def schedule_pool_positions(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule argmax pooling: the maximum of each window, then its first tap that has it, in two vectorised passes."""
    lanes = vector_lanes(target)

    def schedule(part: int) -> te.Schedule:
        s = te.create_schedule([out.op for out in outs])
        pool = next(op for op in anchor.input_tensors if op.op.tag == "pool").op
        inline_injective(s, outs, keep=[anchor, pool])
        for out, operation in zip(outs, (pool, anchor), strict=True):
            result = s.current(out)
            LineTiles(lanes, part=part).apply(s, result, local_accumulator(s, operation, result), (), target)
        return s

    return _by_parts(schedule, anchor, (2 * lanes, lanes))
