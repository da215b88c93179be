"""Reductions rewritten before they are scheduled: whole lines first, 16-bit floats compared as integers, bytes added
up in 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.dtype import BOOL
from relayc.te.tir import Add, Cast, Max, Min, ProducerLoad, Reduce, call_intrin, convert, is_const
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.accesses import only_variable, reads
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of, is_injective
from relayc.topi.tag import ELEMWISE

if TYPE_CHECKING:
    from relayc.backend.target import Target
    from relayc.te.dtype import DType
    from relayc.te.tir import PrimExpr, Var

__all__ = ["compare_as_integers", "reduce_lines_first", "sum_bytes_in_parts"]

_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80}
"""Bit patterns of infinity."""
_SIGN = 0x8000
_LINES = 256
"""Most rows of 8-bit integers that 16-bit sums hold: 256 * -128 is the least int16, 256 * 255 fits uint16."""
_FEWEST_LINES = 16
"""Fewest rows for which 16-bit partial sums are used."""


def _plain(anchor: te.Operation) -> Reduce | None:
    """The reduction that `anchor` consists of; None if it has several results, a condition or initial values."""
    assert isinstance(anchor, te.ComputeOp)
    (reduction, *others) = anchor.body
    plain = isinstance(reduction, Reduce) and not others and is_const(reduction.condition) and not reduction.init
    return reduction if plain and isinstance(reduction, Reduce) else None


def reduce_lines_first(s: te.Schedule, anchor: te.Operation, target: Target) -> te.Tensor | None:
    """Rewrite `anchor`, a reduction, as one along the last dimension of a reduction over the other dimensions.

    Returns the latter, whose columns are the last two dimensions as one, in memory order; None where nothing changes:
    where rows have two vectors or more, or only adjacent dimensions are reduced.
    """
    *before, last = anchor.reduce_axis
    reduction, length = _plain(anchor), extent_of(last)
    assert isinstance(anchor, te.ComputeOp)
    kept = [n for n, axis in enumerate(anchor.axis) if extent_of(axis) != 1]
    if reduction is None or not before or not kept or not isinstance(length, int):
        return None
    at = kept[-1]  # dimensions of 1 follow where reduced ones are kept
    outer, column = anchor.axis[:at], anchor.axis[at]
    lanes, columns = vector_lanes(target), extent_of(column)
    found = [(only_variable(i[-2]), only_variable(i[-1])) for _, i in reads(anchor) if len(i) > 1]
    adjacent = any(row is column.var and inner is last.var for row, inner in found)
    if length >= 2 * lanes or constant_size([columns]) * length < 2 * lanes or not adjacent:
        return None
    over = [te.reduce_axis((0, extent_of(axis)), name=axis.var.name) for axis in before]

    def reduced(axes: list[te.IterVar], *source: PrimExpr) -> PrimExpr:
        return Reduce(reduction.combiner, source, tuple(axes), convert(True), 0)

    def line(*i: Any) -> PrimExpr:
        places = {axis.var: v for axis, v in zip(outer, i[:-1], strict=True)}
        places |= {axis.var: k.var for axis, k in zip(before, over, strict=True)}
        places |= {column.var: i[-1] // length, last.var: i[-1] % length}
        places |= {axis.var: te.const(0) for axis in anchor.axis[at + 1 :]}
        return reduced(over, *[substitute(e, {v: convert(x) for v, x in places.items()}) for e in reduction.source])

    shape = [*[extent_of(axis) for axis in outer], columns * length]
    lines = te.compute(shape, line, name=f"{anchor.name}_of_lines")
    k = te.reduce_axis((0, length), name=last.var.name)
    along = lambda *i: reduced([k], lines(*i[:at], i[at] * length + k))  # noqa: E731
    s.recompute(anchor.output(0), te.compute(anchor.output(0).shape, along, name=anchor.name, attrs=anchor.attrs))
    return s.current(lines)


def compare_as_integers(s: te.Schedule, anchor: te.Operation) -> te.Operation:
    """Rewrite `anchor`, an extremum of 16-bit floats, to reduce order-preserving 16-bit integers.

    Returns the new reduction, or `anchor`. In float32 each vector takes two, with a conversion and three
    NaN-propagating instructions for each.
    """
    reduction = _plain(anchor)
    if reduction is None:
        return anchor
    assert isinstance(anchor, te.ComputeOp)
    result, value = reduction.combiner.result[0], reduction.source[0]
    value = value.value if isinstance(value, Cast) and value.dtype == "float32" else value
    if not isinstance(result, Max | Min) or str(value.dtype) not in _INFINITY:
        return anchor
    flip, of = isinstance(result, Min), value.dtype
    axes = [te.reduce_axis((0, extent_of(k)), name=k.var.name) for k in anchor.reduce_axis]

    def order(*i: Any) -> PrimExpr:
        places = zip((*anchor.axis, *anchor.reduce_axis), (*i, *[k.var for k in axes]), strict=True)
        return te.max(_order(substitute(value, {a.var: v for a, v in places}), flip=flip), axis=axes)

    shape, out = [extent_of(axis) for axis in anchor.axis], anchor.output(0)
    found = te.compute(shape, order, name=f"{anchor.name}_order", tag=anchor.tag, attrs=anchor.attrs)
    back = lambda *i: te.cast(out.dtype, _from_order(found(*i), of, flip=flip))  # noqa: E731
    s.recompute(out, te.compute(out.shape, back, name=anchor.name, tag=ELEMWISE))
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


def sum_bytes_in_parts(s: te.Schedule, anchor: te.Operation) -> te.Tensor | None:
    """Rewrite a sum of many rows of int8 or uint8 as one of 16-bit sums, which it returns; None for other operations.

    These have as many rows as can't overflow. A 32-bit vector holds only a quarter of the elements of an 8-bit vector,
    and converting costs as much as adding.
    """
    reduction = _plain(anchor)
    assert isinstance(anchor, te.ComputeOp)
    if reduction is None or not isinstance(reduction.combiner.result[0], Add):
        return None
    *before, line = anchor.reduce_axis
    lines, value = extent_of(line), _narrow(reduction.source[0])
    if value is None or not isinstance(lines, int) or lines < _FEWEST_LINES or anchor.output(0).dtype.bits < 32:
        return None
    length = next((n for n in range(_LINES, _LINES // 4, -1) if lines % n == 0), min(lines, _LINES))
    *outer, column = anchor.axis
    # columns stay the last dimension, in the order of memory
    shape = [*[extent_of(a) for a in (*outer, *before)], -(-lines // length), extent_of(column)]
    own = te.reduce_axis((0, length), name="line")

    def narrow(*i: Any) -> PrimExpr:
        at = i[-2] * length + own
        values = zip((*outer, *before, line, column), (*i[:-2], at, i[-1]), strict=True)
        element = substitute(value, {a.var: v for a, v in values})
        kept = te.cast("int16" if element.dtype.is_int else "uint16", element)
        return te.sum(kept, axis=own, where=at < lines if lines % length else None)

    parts = te.compute(shape, narrow, name=f"{anchor.name}_of_lines")
    over = [te.reduce_axis((0, d), name=f"part{n}") for n, d in enumerate(shape[len(outer) : -1])]
    dtype = anchor.output(0).dtype
    wide = lambda *i: te.sum(te.cast(dtype, parts(*i[:-1], *over, i[-1])), axis=over)  # noqa: E731
    s.recompute(anchor.output(0), te.compute(anchor.output(0).shape, wide, name=anchor.name, attrs=anchor.attrs))
    return s.current(parts)


def _narrow(value: PrimExpr) -> PrimExpr | None:
    """Return the 8-bit expression that is converted to `value`; None where there is none."""
    places: list[dict[Var, PrimExpr]] = []
    while isinstance(value, ProducerLoad):
        op = value.producer.op
        if not isinstance(op, te.ComputeOp) or not is_injective(op):
            return None
        places.append({axis.var: i for axis, i in zip(op.axis, value.indices, strict=True)})
        value = op.body[value.producer.value_index]
    if not isinstance(value, Cast) or value.dtype.bits < 32 or value.dtype.is_float:
        return None
    narrow, of = value.value, value.value.dtype
    for at in reversed(places):
        narrow = substitute(narrow, at)
    return narrow if of == BOOL or (of.bits == 8 and not of.is_float) else None
