"""Local response normalisation on CPUs: sums over neighbouring channels."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.tir import PrimExpr
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.column_blocks import are_whole_lines
from relayc.topi.cpu.common import parallel_outer
from relayc.topi.cpu.elements import element_cost, vectorize_elements
from relayc.topi.cpu.prefetch import LINE_BYTES, inputs_of, is_streamed
from relayc.topi.cpu.stagewise import schedule_stagewise
from relayc.topi.cpu.tiling import has_few_fill_buffers, prefetches_to_l1, vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective
from relayc.topi.registry import Rank, operations_behind, register_schedule
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayc.backend.target import Target

__all__ = ["schedule_lrn"]

_MOST_NEIGHBOURS = 16
"""Channels in the window of a local response normalisation that is unrolled."""
_LEAST_BYTES = 2048
"""Of planes for whose results memory is asked a plane ahead: shorter ones are written before it answers."""
_ROOTS_AT_ONCE = (4, 2)
"""Vectors of a local response normalisation that are computed together, in the order of preference."""
_LINES_OF_FEW = 2
"""Cache lines of a plane that are computed together, and asked for, at most, where a core waits for few lines."""


@register_schedule("lrn", "cpu", rank=Rank.HEAVY)
def schedule_lrn(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """The sum over neighbouring channels in registers, in one pass over memory; borders are tested for at the ends."""
    out, axis = outs[0], int(anchor.attrs["axis"])
    sums = [op for op in operations_behind(outs) if isinstance(op, te.ComputeOp) and op.reduce_axis]
    window = constant_size([extent_of(a) for a in sums[0].reduce_axis])
    if len(outs) > 1 or len(sums) != 1 or window > _MOST_NEIGHBOURS:
        return schedule_stagewise(outs, anchor, target)
    s = te.create_schedule([out.op])
    total = sums[0].output(0)
    s.recompute(total, _as_one_expression(sums[0], window))
    s[s.current(total)].compute_inline()
    out = s.outputs[0].output(0)
    inline_injective(s, [out])
    if s[anchor].op is not out.op:
        s[anchor].compute_inline()
    work = constant_size(out.shape) * element_cost(operations_behind([out]))
    if axis == len(out.shape) - 1:
        _lrn_along_channels(s, out, work, target)
    else:
        _lrn_across_channels(s, out, axis, window, work, target)
    return s


def _as_one_expression(op: te.ComputeOp, window: int) -> te.Tensor:
    """A sum over a short `window`, its terms written one by one."""
    (term,), (k,) = op.body[0].source, op.reduce_axis  # type: ignore[attr-defined]

    def total(*i: Any) -> PrimExpr:
        at = {axis.var: v for axis, v in zip(op.axis, i, strict=True)}
        terms: list[PrimExpr] = [substitute(term, {**at, k.var: te.const(n, k.var.dtype)}) for n in range(window)]
        return reduce(lambda a, b: a + b, terms)

    return te.compute(tuple([extent_of(a) for a in op.axis]), total, name=op.name)


def _lrn_along_channels(s: te.Schedule, out: te.Tensor, work: float, target: Target) -> None:
    """Lines of channels, as vectors: several at once hide that a root takes long."""
    *outer, channel = s[out].op.axis
    size, lanes = extent_of(channel), vector_lanes(target)
    dividing = [n for n in _ROOTS_AT_ONCE if isinstance(size, int) and size % (n * lanes) == 0]
    factor = dividing[0] * lanes if dividing else lanes
    group, within = s[out].split(channel, factor=factor)
    parallel_outer(s, out, outer, work, target)
    if isinstance(size, int) and size <= 2 * factor:
        s[out].unroll(group)
    else:
        s[out].pragma(group, "loop_partition_hint")
    s[out].vectorize(within)


def _lrn_across_channels(
    s: te.Schedule, out: te.Tensor, axis: int, window: int, work: float, target: Target
) -> None:
    """Strips of planes, a window of channels of which stays in the first-level cache.

    In the second-level cache, which a processor with 48 KB and 1 MB reads them from, they take a third longer. Where
    a core waits for few lines they are asked into that anyway, and strips may take twice as much.
    """
    lanes, nbytes, few = vector_lanes(target), max(out.dtype.nbytes, 4), has_few_fill_buffers(target)
    axes = list(s[out].op.axis)
    sizes = [extent_of(a) for a in axes[axis + 1 :]]
    size = constant_size(sizes)
    fitting = target.cache_bytes.l1 // (1 if few else 2) // ((window + 2) * nbytes)
    share = -(-size * constant_size([extent_of(a) for a in axes[:axis]]) // target.num_cores)
    most = _LINES_OF_FEW * LINE_BYTES // nbytes if few else size
    parts, step = -(-size // max(min(fitting, share), 2 * lanes)), min(_ROOTS_AT_ONCE[0] * lanes, max(most, lanes))
    strip, outer = s[out].fuse(*axes[axis + 1 :]), axes[:axis]
    length: te.Dim = next((d for d in sizes if not isinstance(d, int)), size)
    if parts > 1 and isinstance(length, int):
        length = -(-size // parts // step) * step if size >= step else -(-size // lanes) * lanes
        part, strip = s[out].split(strip, factor=length, tail="shift")
        outer = [*outer, part]
    s[out].reorder(*outer, axes[axis], strip)
    s[out].pragma(axes[axis], "loop_partition_hint")
    if isinstance(length, int) and length >= step:
        group, inner = s[out].split(strip, factor=step, tail="shift")
        s[out].vectorize(inner)
        _fetch_next_plane(s, out, axis, window, group, step, target)
    else:
        vectorize_elements(s, out, strip, length, lanes)
    if outer:
        parallel_outer(s, out, outer, work, target)


def _fetch_next_plane(
    s: te.Schedule, out: te.Tensor, axis: int, window: int, group: te.IterVar, step: int, target: Target
) -> None:
    """Ask, in each of a strip's groups of `step` elements, for those of the plane that joins the window next.

    It is read from memory, a strip long at most: too short for the processor to foresee it soon. So are the cache lines
    of the next plane's results, before they are written, where those aren't stored past the caches.
    """
    around, near = axis + 1, prefetches_to_l1(target)

    def ahead(planes: int, element: int) -> Callable[..., Sequence[Any]]:
        def place(*i: Any) -> Sequence[Any]:
            return (*i[:axis], i[axis] + planes, ravel_index(i[around:], out.shape[around:]) + element)

        return place

    for data in inputs_of(s[out].op):
        if tuple(data.shape) == tuple(out.shape) and is_streamed(data, 1, target):
            for element in range(0, step, LINE_BYTES // data.dtype.nbytes):
                s[out].prefetch_line(data, group, ahead(window // 2 + 1, element), to_l1=near)
    plane = constant_size(out.shape[around:]) * out.dtype.nbytes
    if plane >= _LEAST_BYTES and not are_whole_lines(out, axis) and is_streamed(out, 1, target):
        for element in range(0, step, LINE_BYTES // out.dtype.nbytes):
            s[out].prefetch_line(out, group, ahead(1, element), written=True)
