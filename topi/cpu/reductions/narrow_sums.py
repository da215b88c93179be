"""Sums of int8 or uint8 along a strided axis: 16-bit partial sums of as many rows as can't overflow, then 32-bit sums.

A 32-bit vector holds only a quarter of the elements of an 8-bit vector, and converting costs as much as adding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.dtype import BOOL
from relayc.te.tir import Add, Cast, ProducerLoad, Reduce, is_const
from relayc.te.tir.substitute import substitute
from relayc.topi.groups import extent_of, is_injective

if TYPE_CHECKING:
    from relayc.te.tir import PrimExpr

__all__ = ["sum_bytes_in_parts"]

_LINES = 256
"""Most rows of 8-bit integers that 16-bit sums hold: 256 * -128 is the least int16, 256 * 255 fits uint16."""
_FEWEST_LINES = 16
"""Fewest rows for which 16-bit partial sums are used."""


def sum_bytes_in_parts(s: te.Schedule, anchor: te.Operation) -> te.Tensor | None:
    """Rewrite `anchor` as a sum of 16-bit sums; returns those, or None if it is no sum of many rows of int8 or
    uint8."""
    assert isinstance(anchor, te.ComputeOp)
    reduction = anchor.body[0]
    assert isinstance(reduction, Reduce)
    *before, line = anchor.reduce_axis
    lines, value = extent_of(line), _narrow(reduction.source[0])
    adds = len(anchor.body) == 1 and isinstance(reduction.combiner.result[0], Add) and not reduction.init
    if value is None or not adds or not is_const(reduction.condition) or not isinstance(lines, int):
        return None
    if lines < _FEWEST_LINES or anchor.output(0).dtype.bits < 32:
        return None
    length = next((n for n in range(_LINES, _LINES // 4, -1) if lines % n == 0), min(lines, _LINES))
    many = -(-lines // length)
    shape = [*[extent_of(a) for a in (*anchor.axis, *before)], many]
    own = te.reduce_axis((0, length), name="line")

    def narrow(*i: Any) -> PrimExpr:
        at = i[-1] * length + own
        axes = [*anchor.axis, *before, line]
        element = substitute(value, {a.var: v for a, v in zip(axes, (*i[:-1], at), strict=True)})
        kept = te.cast("int16" if element.dtype.is_int else "uint16", element)
        return te.sum(kept, axis=own, where=at < lines if lines % length else None)

    # columns stay the last dimension, in the order of memory
    last = len(anchor.axis) - 1
    order = [*range(last), *range(last + 1, len(shape)), last]
    place = {dimension: position for position, dimension in enumerate(order)}
    parts = te.compute(
        [shape[d] for d in order],
        lambda *i: narrow(*[i[place[d]] for d in range(len(shape))]),
        name=f"{anchor.name}_of_lines",
    )
    over = [te.reduce_axis((0, shape[last + 1 + n]), name=f"part{n}") for n in range(len(before) + 1)]

    def wide(*i: Any) -> PrimExpr:
        return te.sum(te.cast(anchor.output(0).dtype, parts(*i[:-1], *over, i[-1])), axis=over)

    s.recompute(anchor.output(0), te.compute(anchor.output(0).shape, wide, name=anchor.name, attrs=anchor.attrs))
    return s.current(parts)


def _narrow(value: PrimExpr) -> PrimExpr | None:
    """Return the 8-bit expression that is converted to `value`; None where there is none."""
    if isinstance(value, ProducerLoad):
        op = value.producer.op
        if not isinstance(op, te.ComputeOp) or not is_injective(op):
            return None
        inner = _narrow(op.body[value.producer.value_index])
        at = {axis.var: i for axis, i in zip(op.axis, value.indices, strict=True)}
        return None if inner is None else substitute(inner, at)
    if isinstance(value, Cast) and value.dtype.bits >= 32 and not value.dtype.is_float:
        of = value.value.dtype
        return value.value if of == BOOL or (of.bits == 8 and not of.is_float) else None
    return None
