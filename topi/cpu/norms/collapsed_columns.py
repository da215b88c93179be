"""Collapse the dimensions behind the normalised axis into one, so that planes of images are one run of columns."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from relayc import te
from relayc.te.rewrite import map_reads
from relayc.te.tir import IterVar, PrimExpr, ProducerLoad, Range, Var
from relayc.topi.cpu.norms.facts import is_worth_keeping, uses_reduction
from relayc.topi.registry import operations_behind
from relayc.topi.utils import ravel_index, unravel_index

__all__ = ["collapse_columns"]


def collapse_columns(
    s: te.Schedule, anchor: te.Operation, axis: int, keep: Sequence[te.Operation] = ()
) -> te.Operation:
    """Collapse the dimensions behind `axis` of `anchor` and of the stages it reads, which have statistics along `axis`.

    `keep`: stages to be computed once for all passes, besides those that `is_worth_keeping` names. Returns the new
    anchor operation, whose result is read back in the original shape. Nothing changes where there is one dimension
    already, sizes are dynamic, or elements are not read at their own indices.
    """
    shape = anchor.output(0).shape[axis + 1 :]
    sizes = [d for d in shape if isinstance(d, int)]
    if len(shape) < 2 or len(sizes) < len(shape):
        return anchor
    collapsed: dict[te.Tensor, te.Tensor] = {}
    ops = [op for op in operations_behind([anchor.output(0)]) if isinstance(op, te.ComputeOp)]
    for op in ops:
        if op in keep or uses_reduction(op) or is_worth_keeping(op, ops, anchor, in_l1=False):
            if op.num_outputs > 1 or not _reads_own_index(op, collapsed, len(sizes)):
                return anchor
            collapsed[op.output(0)] = _collapse(op, collapsed, sizes).output(0)
    flat = collapsed[anchor.output(0)]

    def in_shape(*i: Any) -> PrimExpr:
        return flat(*i[: axis + 1], ravel_index(i[axis + 1 :], sizes))

    s.recompute(anchor.output(0), te.compute(anchor.output(0).shape, in_shape, name=anchor.name, tag="injective"))
    return flat.op


def _reads_own_index(op: te.ComputeOp, collapsed: dict[te.Tensor, te.Tensor], count: int) -> bool:
    """True if inputs that will be collapsed are read at the element's own indices in the last `count` dimensions."""
    own = tuple([axis.var for axis in op.axis[-count:]])
    found = True

    def read(load: ProducerLoad) -> PrimExpr:
        nonlocal found
        if load.producer in collapsed:
            found = found and all(a is b for a, b in zip(load.indices[-count:], own, strict=True))
        return load

    for e in op.body:
        map_reads(e, read)
    return found


def _collapse(op: te.ComputeOp, collapsed: dict[te.Tensor, te.Tensor], sizes: Sequence[int]) -> te.ComputeOp:
    """Return the operation with its last dimensions, of `sizes`, collapsed into one."""
    count = len(sizes)
    column = IterVar(Range(0, prod(sizes)), Var("column"), "data")
    places = unravel_index(column.var, sizes)
    values = {axis.var: place for axis, place in zip(op.axis[-count:], places, strict=True)}

    def read(load: ProducerLoad) -> PrimExpr:
        flat = collapsed.get(load.producer)
        return load if flat is None else flat(*load.indices[:-count], column.var)

    body = [map_reads(e, read, values) for e in op.body]
    return te.ComputeOp(op.name, op.tag, op.attrs, [*op.axis[:-count], column], body)
