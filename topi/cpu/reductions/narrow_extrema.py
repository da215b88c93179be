"""Maximum and minimum of 16-bit floats, computed on order-preserving 16-bit integers, or in float32.

In float32 each vector takes two, with a conversion and three NaN-propagating instructions for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.tir import Cast, Max, Min, Reduce, call_intrin, is_const
from relayc.te.tir.substitute import substitute
from relayc.topi.groups import extent_of
from relayc.topi.tag import ELEMWISE

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayc.te.dtype import DType
    from relayc.te.tir import PrimExpr

__all__ = ["compare_as_float32", "compare_as_integers"]

_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80}
"""Bit patterns of infinity."""
_SIGN = 0x8000


def compare_as_integers(s: te.Schedule, anchor: te.Operation) -> te.Operation:
    """Rewrite `anchor`, an extremum of 16-bit floats, to reduce integers; returns the new reduction, or `anchor`."""
    found = _extremum(anchor)
    if found is None:
        return anchor
    value, flip = found
    return _reduce_by(
        s, anchor, value, te.max, lambda x: _order(x, flip=flip), lambda x: _from_order(x, value.dtype, flip=flip)
    )


def compare_as_float32(s: te.Schedule, anchor: te.Operation) -> te.Operation:
    """Rewrite `anchor`, an extremum of 16-bit floats, to convert each value once; returns the new reduction, or
    `anchor`."""
    found = _extremum(anchor)
    if found is None:
        return anchor
    value, is_least = found
    return _reduce_by(s, anchor, value, te.min if is_least else te.max, lambda x: te.cast("float32", x), lambda x: x)


def _extremum(anchor: te.Operation) -> tuple[PrimExpr, bool] | None:
    """What `anchor` takes the extremum of, if these are 16-bit floats, and whether it is the least."""
    assert isinstance(anchor, te.ComputeOp)
    reduction = anchor.body[0]
    if not isinstance(reduction, Reduce) or len(anchor.body) > 1 or reduction.init or not is_const(reduction.condition):
        return None
    result, value = reduction.combiner.result[0], reduction.source[0]
    value = value.value if isinstance(value, Cast) and value.dtype == "float32" else value
    if not isinstance(result, Max | Min) or str(value.dtype) not in _INFINITY:
        return None
    return value, isinstance(result, Min)


def _reduce_by(
    s: te.Schedule, anchor: te.Operation, value: PrimExpr, extremum: Callable[..., PrimExpr],
    to: Callable[[PrimExpr], PrimExpr], back: Callable[[PrimExpr], PrimExpr],
) -> te.Operation:  # fmt: skip
    """Recompute `anchor` as `back` of the extremum over `to` of the values; returns that reduction."""
    axes = [te.reduce_axis((0, extent_of(k)), name=k.var.name) for k in anchor.reduce_axis]

    def order(*i: Any) -> PrimExpr:
        places = zip((*anchor.axis, *anchor.reduce_axis), (*i, *[k.var for k in axes]), strict=True)
        return extremum(to(substitute(value, {a.var: v for a, v in places})), axis=axes)

    shape = [extent_of(axis) for axis in anchor.axis]
    found = te.compute(shape, order, name=f"{anchor.name}_order", tag=anchor.tag, attrs=anchor.attrs)
    out = anchor.output(0)
    by = te.compute(out.shape, lambda *i: te.cast(out.dtype, back(found(*i))), name=anchor.name, tag=ELEMWISE)
    s.recompute(out, by)
    return s.current(found).op


def _order(x: PrimExpr, *, flip: bool) -> PrimExpr:
    """Map `x` to a uint16 that increases with it, or decreases if `flip`; NaN map above all other values.

    The magnitude bits of negative values are inverted to order them. Then come infinity, positive NaN and, wrapping
    around 16 bits, negative NaN and minus infinity, which an offset maps to 0.
    """
    bits = call_intrin("int16", "reinterpret", x)
    ordered = _flip_magnitude(bits ^ te.const(-_SIGN, "int16") if flip else bits)
    return call_intrin("uint16", "reinterpret", ordered) + te.const(_INFINITY[str(x.dtype)] + 1, "uint16")


def _from_order(order: PrimExpr, of: DType, *, flip: bool) -> PrimExpr:
    """Invert `_order`: return the 16-bit float of an integer."""
    bits = _flip_magnitude(call_intrin("int16", "reinterpret", order - te.const(_INFINITY[str(of)] + 1, "uint16")))
    return call_intrin(of, "reinterpret", bits ^ te.const(-_SIGN, "int16") if flip else bits)


def _flip_magnitude(bits: PrimExpr) -> PrimExpr:
    """Invert the magnitude bits of negative values (those with the sign bit set)."""
    return bits ^ ((bits >> te.const(15, "int16")) & te.const(_SIGN - 1, "int16"))
