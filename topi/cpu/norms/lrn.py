"""Local response normalisation (LRN) on CPUs: sums of squares over a window of channels."""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.te.tir import PrimExpr
from relayc.te.tir.substitute import substitute
from relayc.topi.candidates import Candidate, KernelFacts, schedule_by
from relayc.topi.cpu.column_blocks import Columns
from relayc.topi.cpu.common import parallel_outer
from relayc.topi.cpu.elements import element_cost, vectorize_elements
from relayc.topi.cpu.prefetch import LINE_BYTES, inputs_of, is_streamed, level_of
from relayc.topi.cpu.stagewise import stage_by_stage
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective, iterations
from relayc.topi.registry import Rank, operations_behind, register_schedule
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = ["schedule_lrn"]

_MOST_NEIGHBOURS = 16
"""Most channels of a window that is unrolled."""
_LEAST_BYTES = 2048
"""Least bytes of a plane whose results are prefetched for writing a plane ahead: shorter ones are written too soon."""
_VECTORS_AT_ONCE = 4
"""Vectors that are computed together, to hide the latency of roots."""
_LINES_FEW_BUFFERS = 2
"""Most cache lines of a plane that are computed together, and prefetched, on cores with few line-fill buffers."""


@register_schedule("lrn", "cpu", rank=Rank.HEAVY)
def schedule_lrn(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Sum the window of channels in registers where it is short."""
    return schedule_by(_CANDIDATES, KernelFacts(outs, anchor, target))


def _window_in_registers(kernel: KernelFacts) -> te.Schedule | Refused:
    """One pass over memory; only loop ends test for borders."""
    anchor, target, axis = kernel.anchor, kernel.target, int(kernel.anchor.attrs["axis"])
    sums = [op for op in kernel.stages if op.reduce_axis]
    window = iterations(sums[0].reduce_axis)
    if not kernel.has_one_result or len(sums) != 1 or window > _MOST_NEIGHBOURS:
        return Refused(f"several results or sums, or a window of {window} channels, more than {_MOST_NEIGHBOURS}")
    s = kernel.create_schedule()
    total = sums[0].output(0)
    s.recompute(total, _as_one_expression(sums[0], window))
    s[s.current(total)].compute_inline()
    out = s.outputs[0].output(0)
    inline_injective(s, [out])
    if s[anchor].op is not out.op:
        s[anchor].compute_inline()
    work = constant_size(out.shape) * element_cost(operations_behind([out]))
    if axis < len(out.shape) - 1:
        _lrn_across_channels(s, out, axis, window, work, target)
        return s
    *outer, channel = s[out].op.axis  # several vectors at once hide the latency of roots
    vectors = vectorize_elements(s, out, channel, extent_of(channel), vector_lanes(target), _VECTORS_AT_ONCE)
    s[out].pragma(vectors, "loop_partition_hint")
    parallel_outer(s, out, outer, work, target)
    return s


_CANDIDATES: tuple[Candidate[KernelFacts], ...] = (
    ("window in registers", _window_in_registers),
    ("stage by stage", stage_by_stage),
)


def _as_one_expression(op: te.ComputeOp, window: int) -> te.Tensor:
    """Unroll a sum over a short `window` into one expression."""
    (term,), (k,) = op.body[0].source, op.reduce_axis  # type: ignore[attr-defined]

    def total(*i: Any) -> PrimExpr:
        at = {axis.var: v for axis, v in zip(op.axis, i, strict=True)}
        terms: list[PrimExpr] = [substitute(term, {**at, k.var: te.const(n, k.var.dtype)}) for n in range(window)]
        return reduce(lambda a, b: a + b, terms)

    return te.compute(tuple([extent_of(a) for a in op.axis]), total, name=op.name)


def _lrn_across_channels(
    s: te.Schedule, out: te.Tensor, axis: int, window: int, work: float, target: Target
) -> None:
    """Split planes into blocks of which a window of channels stays in L1.

    Blocks that only fit L2 take a third longer on a processor with 48 KB of L1 and 1 MB of L2. Cores with few line-fill
    buffers prefetch into L2 anyway, and blocks may be twice as large there.
    """
    lanes, nbytes, few = vector_lanes(target), max(out.dtype.nbytes, 4), has_few_fill_buffers(target)
    axes = list(s[out].op.axis)
    sizes = [extent_of(a) for a in axes[axis + 1 :]]
    size = constant_size(sizes)
    fitting = target.cache_bytes.l1 // (1 if few else 2) // ((window + 2) * nbytes)
    share = -(-size * iterations(axes[:axis]) // target.num_cores)
    most = _LINES_FEW_BUFFERS * LINE_BYTES // nbytes if few else size
    parts, step = -(-size // max(min(fitting, share), 2 * lanes)), min(_VECTORS_AT_ONCE * lanes, max(most, lanes))
    columns, outer = s[out].fuse(*axes[axis + 1 :]), axes[:axis]
    length: te.Dim = next((d for d in sizes if not isinstance(d, int)), size)
    if parts > 1 and isinstance(length, int):
        length = -(-size // parts // step) * step if size >= step else -(-size // lanes) * lanes
        part, columns = s[out].split(columns, factor=length, tail="shift")
        outer = [*outer, part]
    s[out].reorder(*outer, axes[axis], columns)
    s[out].pragma(axes[axis], "loop_partition_hint")
    if isinstance(length, int) and length >= step:
        group, inner = s[out].split(columns, factor=step, tail="shift")
        s[out].vectorize(inner)
        _prefetch_next_plane(s, out, axis, window, group, step, target)
    else:
        vectorize_elements(s, out, columns, length, lanes)
    if outer:
        parallel_outer(s, out, outer, work, target)


def _prefetch_next_plane(
    s: te.Schedule, out: te.Tensor, axis: int, window: int, group: te.IterVar, step: int, target: Target
) -> None:
    """Prefetch, in each group of `step` elements, those of the plane that enters the window next.

    Blocks of a plane are too short for the hardware prefetcher to detect the stream early. The cache lines of the next
    plane's results are prefetched for writing, too, where stores are not non-temporal.
    """
    columns = Columns(out, axis, target)

    def ahead(planes: int, *i: Any) -> Sequence[Any]:
        return (*i[:axis], i[axis] + planes, ravel_index(i[axis + 1 :], out.shape[axis + 1 :]))

    for data in inputs_of(s[out].op):
        if tuple(data.shape) == tuple(out.shape) and is_streamed(data, 1, target):
            lines, order = -(-step * data.dtype.nbytes // LINE_BYTES), partial(ahead, window // 2 + 1)
            s[out].prefetch(data, group, te.Prefetch(0, level_of(target), order, lines=lines))
    if columns.row_bytes >= _LEAST_BYTES and not columns.are_whole_lines and is_streamed(out, 1, target):
        lines = -(-step * out.dtype.nbytes // LINE_BYTES)
        s[out].prefetch(out, group, te.Prefetch(0, order=partial(ahead, 1), written=True, lines=lines))
