"""Packing of row-major matrices into panels on CPUs: rows are transposed in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.accesses import only_variable, reads
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.elementwise.injective import schedule_injective
from relayc.topi.cpu.prefetch import CONFLICT_BYTES
from relayc.topi.cpu.register_transpose import block_of, transposed_vectors
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.cpu.transposes.facts import TransposeFacts
from relayc.topi.cpu.transposes.plan import Step, TransposePlan
from relayc.topi.groups import constant_size, inline_injective, is_static
from relayc.topi.registry import Rank, register_schedule
from relayc.topi.tag import PACK

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_panel_rows"]

_ROWS_OF_L1 = 1 / 2
"""The part of a panel's rows that is copied before it is transposed, as a share of the L1 cache."""
_COST = 4.0
"""Operations for each element."""


@register_schedule(PACK, "cpu", rank=Rank.ELEMENTWISE)
def schedule_panel_rows(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Panels (..., N / NR, K, NR) of rows (..., N, K), some steps of a panel at a time; short rows are gathered."""
    out = outs[0]
    *_, depth, width = out.shape
    fitting = [lanes for lanes in transposed_vectors(target, out.dtype) if constant_size([width]) % lanes == 0]
    if len(outs) > 1 or anchor is not out.op or not fitting or not _lies_along(anchor.input_tensors[0].op):
        return schedule_injective(outs, anchor, target)
    lanes, block = fitting[0], block_of(fitting[0], out.dtype)
    if not isinstance(depth, int) or depth < block:
        return schedule_injective(outs, anchor, target)
    s = te.create_schedule([out.op])
    (rows,) = anchor.input_tensors
    copied = _are_copied(rows, depth)
    inline_injective(s, outs, keep=[rows.op] if copied else [])
    most = int(_ROWS_OF_L1 * target.cache_bytes.l1) // (constant_size([width]) * out.dtype.nbytes)
    chunk, number = min(max(most // block, 1) * block, depth), out.ndim - 2
    tensor = rows if copied else rows.op.input_tensors[0]
    facts = TransposeFacts(out, number, tensor, tensor.ndim - 2, lanes, lanes, target)
    steps = Step(number, chunk), Step(number, block)
    each = s[out].fuse(*TransposePlan(facts, steps, outside=1, copied=1, unrolled=True).apply(s))
    parallel(s, out, each, _COST * constant_size(out.shape), vector_lanes(target))
    if copied:
        vectorize_elements(s, rows, s[rows].op.axis[-1], min(depth, most), vector_lanes(target, rows.dtype.nbytes))
        s[rows].compute_at(s[out], each)
    return s


def _are_copied(rows: te.Tensor, depth: int) -> bool:
    """Whether rows are copied before they are transposed; not if whole panels of them lie in memory and don't alias."""
    sources = rows.op.input_tensors
    if len(sources) != 1 or not isinstance(sources[0].op, te.PlaceholderOp) or sources[0].ndim != rows.ndim - 1:
        return True
    known = is_static(rows.shape)
    whole = known and constant_size(sources[0].shape) == constant_size(rows.shape)
    return not whole or depth * rows.dtype.nbytes % CONFLICT_BYTES == 0


def _lies_along(rows: te.Operation) -> bool:
    """Whether memory is contiguous along the rows that are packed."""
    step = rows.axis[-1].var
    found = [only_variable(index[-1]) is step for tensor, index in reads(rows) if tensor.ndim > 1]
    return bool(found) and all(found)
