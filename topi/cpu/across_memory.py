"""Softmax and normalisations of rows that lie across memory: neighbouring rows together, on CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import parallel
from topi.cpu.injective import element_cost, vectorize_elements
from topi.cpu.prefetch import LINE_BYTES
from topi.cpu.reduction import add_up_lines
from topi.cpu.row_statistics import prefetch_next_rows, split_at, uses_reduction
from topi.cpu.tiling import vector_lanes
from topi.groups import constant_size, extent_of, inline_injective
from topi.registry import operations_behind

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_across_memory"]

_PAGE_BYTES = 4096


def schedule_across_memory(s: te.Schedule, outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Rows across memory: neighbouring rows together, as many as keep a block in the second-level cache.

    Every stage passes over the lines of the block, vectors of neighbouring rows innermost.
    """
    inline_injective(s, outs, keep=[anchor, *[op for op in operations_behind(outs) if uses_reduction(op)]])
    out, lanes = outs[0], vector_lanes(target)
    axis = int(anchor.attrs["axis"])
    stages = [op for op in operations_behind(outs) if isinstance(op, te.ComputeOp) and uses_reduction(op)]
    before, behind = split_at(stages, anchor)
    for op in behind:
        if op is not out.op:
            s[op].compute_inline()
    *outer, last = s[out].op.axis
    block = _strip_columns(out, axis, target)
    part, within = s[out].split(last, factor=block, tail="shift" if isinstance(extent_of(last), int) else "guard")
    s[out].reorder(*outer[:axis], *outer[axis + 1 :], part, outer[axis], within)
    group = s[out].fuse(*outer[:axis], *outer[axis + 1 :], part)
    parallel(s, out, group, constant_size(out.shape) * element_cost(stages), lanes)
    vectorize_elements(s, out, within, block, lanes)
    for op in before:
        result = op.output(0)
        s[result].compute_at(s[out], group)
        if op.reduce_axis:
            add_up_lines(s, result, lanes)
        else:
            busy = vectorize_elements(s, result, op.axis[-1], block, lanes)
            prefetch_next_rows(s, out, (result, busy), block, target)
    return s


def _strip_columns(out: te.Tensor, axis: int, target: Target) -> int:
    """Neighbouring rows along `axis`, across memory, that are worked on together: as evenly as they can be divided.

    Two cache lines of each where what is read, kept, written and fetched ahead leaves half of the first-level cache
    free, an eighth of the second-level cache otherwise. Elements of a row that are whole pages apart share the sets of
    caches, which few lines fit in: there the lines are long, so that they are done with quickly.
    """
    length, columns = constant_size(out.shape[axis : axis + 1]), constant_size(out.shape[-1:])
    nbytes, caches = max(out.dtype.nbytes, 4), target.cache_bytes
    line = LINE_BYTES // nbytes
    apart = constant_size(out.shape[axis + 1 :]) * nbytes
    if apart % _PAGE_BYTES == 0:
        most = max(caches.l2 // 8 // (length * nbytes), 8 * line)
    elif 4 * length * 2 * LINE_BYTES <= caches.l1 // 2:
        most = 2 * line
    else:
        most = max(caches.l2 // 8 // (length * nbytes), 4 * line)
    parts = -(-columns // most)
    return min(-(-columns // parts // line) * line, columns)
