"""Reductions of a short last dimension and of others before a kept one: over whole lines first, then along them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.tir import Reduce, convert, is_const
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.accesses import only_variable, reads
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of

if TYPE_CHECKING:
    from relayc.backend.target import Target
    from relayc.te.tir import PrimExpr

__all__ = ["reduce_lines_first"]


def reduce_lines_first(s: te.Schedule, anchor: te.Operation, target: Target) -> te.Tensor | None:
    """Rewrite `anchor`, a reduction, as one along the last dimension of a reduction over the other dimensions.

    Returns the latter, whose columns are the last two dimensions as one, in memory order; None where nothing changes:
    where rows have two vectors or more, or only adjacent dimensions are reduced.
    """
    assert isinstance(anchor, te.ComputeOp)
    *before, last = anchor.reduce_axis
    reduction, length = anchor.body[0], extent_of(last)
    assert isinstance(reduction, Reduce)
    plain = len(anchor.body) == 1 and is_const(reduction.condition) and not reduction.init
    if not plain or not before or not anchor.axis or not isinstance(length, int):
        return None
    *outer, column = anchor.axis
    lanes, columns = vector_lanes(target), extent_of(column)
    found = [(only_variable(i[-2]), only_variable(i[-1])) for _, i in reads(anchor) if len(i) > 1]
    adjacent = any(row is column.var and inner is last.var for row, inner in found)
    if length >= 2 * lanes or constant_size([columns]) * length < 2 * lanes or not adjacent:
        return None
    over = [te.reduce_axis((0, extent_of(axis)), name=axis.var.name) for axis in before]

    def reduced(axes: list[te.IterVar], *source: PrimExpr) -> PrimExpr:
        return Reduce(reduction.combiner, source, tuple(axes), convert(True), 0)

    def line(*i: Any) -> PrimExpr:
        at = {axis.var: v for axis, v in zip(outer, i[:-1], strict=True)}
        at |= {axis.var: k.var for axis, k in zip(before, over, strict=True)}
        at |= {column.var: i[-1] // length, last.var: i[-1] % length}
        return reduced(over, *[substitute(e, {v: convert(x) for v, x in at.items()}) for e in reduction.source])

    shape = [*[extent_of(axis) for axis in outer], columns * length]
    lines = te.compute(shape, line, name=f"{anchor.name}_of_lines")
    k = te.reduce_axis((0, length), name=last.var.name)

    def along(*i: Any) -> PrimExpr:
        return reduced([k], lines(*i[:-1], i[-1] * length + k))

    s.recompute(anchor.output(0), te.compute(anchor.output(0).shape, along, name=anchor.name, attrs=anchor.attrs))
    return s.current(lines)
