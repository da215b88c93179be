"""Unshifted softmax: exponentials of the elements themselves, without subtracting the maximum of the row.

Subtracting the maximum keeps exponentials from overflowing or all underflowing. Values in models rarely do either; the
sum of a row's exponentials shows it, and rows where it does are recomputed (`Schedule.speculate`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Call, PrimExpr, Reduce, as_int, call_intrin, convert
from relayc.te.tir.substitute import substitute
from relayc.topi.groups import extent_of
from relayc.topi.registry import operations_behind

__all__ = [
    "can_be_unshifted",
    "clamp_logarithm",
    "element_of",
    "exponential_of",
    "factor_of",
    "is_logarithm",
    "is_valid_sum",
    "no_largest",
    "speculate",
    "stages_of",
    "sums_like",
    "sums_of",
]  # fmt: skip

_MOST_EXPONENT = 64.0
"""The largest exponent: beyond it the result of `exp_nonpositive` is unspecified."""
_LEAST_SUM, _MOST_SUM = 1e-6, 1e27
"""Bounds of a valid sum of exponentials. No exponent was clamped then, and underflowing ones are below 1e-32 of the
sum."""
_FORMATS = {
    32: (23, 0x3F2AAAAB, 0.693145751953125, 1.42860682030941723e-6),
    64: (52, 0x3FE5555555555555, 0.69314718036912381649, 1.9082149292705877e-10),
}
"""By the bits of a float: its stored mantissa bits, the bits of 2/3, and ln(2) in two parts, of which the first ends in
zeros, so that its multiples by exponents are exact."""


def can_be_unshifted(anchor: te.Operation) -> bool:
    """Is this a softmax, or its logarithm, of rows that may have more than one element?

    For a single element the result is exactly 1, or 0 for the logarithm, only if the maximum is subtracted.
    """
    if anchor.tag != "softmax":
        return False
    largest = stages_of(anchor)[0].op
    assert isinstance(largest, te.ComputeOp)
    unknown = 1 if is_logarithm(anchor) else 2
    return any((as_int(extent_of(k)) or unknown) > 1 for k in largest.reduce_axis)


def is_logarithm(anchor: te.Operation) -> bool:
    """Is this the logarithm of a softmax? It needs only the sums of exponentials."""
    return "log" in anchor.attrs


def stages_of(anchor: te.Operation) -> tuple[Tensor, Tensor, Tensor]:
    """The stages of `anchor`, a softmax or its logarithm: row maxima, exponentials of differences, and their sums."""
    found = {op.tag: op.output(0) for op in operations_behind([anchor.output(0)])}
    return found["softmax_max"], found["softmax_exp"], found["softmax_sum"]


def factor_of(anchor: te.Operation) -> Tensor:
    """The stage computed once for each row from its sum: the reciprocal, or the logarithm."""
    _, _, total = stages_of(anchor)
    return next(t for t in anchor.input_tensors if total in t.op.input_tensors)


def element_of(largest: te.Operation, axis: int) -> Callable[..., PrimExpr]:
    """The input elements of a softmax along `axis` whose row maxima are `largest`."""
    assert isinstance(largest, te.ComputeOp)
    (maximum,), (k,) = largest.body, largest.reduce_axis
    assert isinstance(maximum, Reduce)

    def element(*i: Any) -> PrimExpr:
        values = [convert(v) for v in (*i[:axis], *i[axis + 1 :], i[axis])]
        return substitute(maximum.source[0], {own.var: v for own, v in zip((*largest.axis, k), values, strict=True)})

    return element


def exponential_of(element: PrimExpr) -> PrimExpr:
    """The exponential of an element, which is clamped where the result would be invalid."""
    return te.exp_nonpositive(_limited(element))


def _limited(element: PrimExpr) -> PrimExpr:
    """The element, limited to `_MOST_EXPONENT`: sums with that are invalid, so NaN may become it, too.

    float32 is compared as int32, which orders values from 0 on correctly and negative ones below them: processors have
    more units for it.
    """
    if element.dtype != "float32":
        return te.minimum(element, te.const(_MOST_EXPONENT, element.dtype))
    most = te.const(int(np.float32(_MOST_EXPONENT).view(np.int32)), "int32")
    return call_intrin("float32", "reinterpret", te.minimum(call_intrin("int32", "reinterpret", element), most))


def _exponentials_of(element: Callable[..., PrimExpr], exact: Tensor) -> Tensor:
    """Exponentials of elements instead of differences, of equal precision; `fast_exp` takes any element."""
    op = exact.op
    assert isinstance(op, te.ComputeOp)
    (power,) = op.body
    assert isinstance(power, Call)
    find = te.fast_exp if power.op == "fast_exp" else exponential_of
    return te.compute(exact.shape, lambda *i: find(element(*i)), name="softmax_exponential")


def sums_of(power: Callable[..., PrimExpr], exact: Tensor, total: Tensor, axis: int | None = None) -> Tensor:
    """Sums of exponentials along a dimension, by default the last one."""
    axis = exact.ndim - 1 if axis is None else axis
    k = te.reduce_axis((0, exact.shape[axis]), name="k")
    return te.compute(total.shape, lambda *i: te.sum(power(*i[:axis], k, *i[axis:]), axis=k), name=total.op.name)


def speculate(
    s: te.Schedule, anchor: te.Operation, axis: int, *, keep: bool
) -> tuple[Tensor | None, Tensor, list[Tensor]]:
    """Speculate on unshifted exponentials of `anchor`, a softmax along `axis`: see `_speculate_sums`.

    Returns the exponentials, None unless they are to `keep`; their sums; and the speculated stages that read these.
    """
    largest, exact, total = stages_of(anchor)
    element = element_of(largest.op, axis)
    exponentials = _exponentials_of(element, exact) if keep else None
    power = exponentials or (lambda *i: exponential_of(element(*i)))
    sums = sums_of(power, exact, total, axis)
    return exponentials, sums, _speculate_sums(s, anchor, exponentials, sums)


def clamp_logarithm(s: te.Schedule, anchor: te.Operation) -> None:
    """Clamp `anchor` to at most 0 if it is the logarithm of a softmax, which rounding may exceed."""
    if not is_logarithm(anchor):
        return
    assert isinstance(anchor, te.ComputeOp)
    zero = te.const(0, anchor.output(0).dtype)

    def limited(*i: Any) -> PrimExpr:
        value = substitute(anchor.body[0], {axis.var: convert(v) for axis, v in zip(anchor.axis, i, strict=True)})
        return te.select(zero < value, zero, value)

    result = anchor.output(0)
    s.recompute(result, te.compute(result.shape, limited, name=anchor.name, tag=anchor.tag, attrs=anchor.attrs))


def sums_like(largest: Tensor, total: Tensor) -> Tensor:
    """Sums of exponentials of the elements that `largest` compares, to replace those of differences, `total`."""
    op = largest.op
    assert isinstance(op, te.ComputeOp)
    (maximum,) = op.body
    assert isinstance(maximum, Reduce)
    ks = [te.reduce_axis((0, extent_of(k)), name=k.var.name) for k in maximum.axis]

    def body(*i: Any) -> PrimExpr:
        of = [axis.var for axis in (*op.axis, *maximum.axis)]
        values = {var: convert(v) for var, v in zip(of, (*i, *ks), strict=True)}
        where = substitute(maximum.condition, values)
        return te.sum(exponential_of(substitute(maximum.source[0], values)), axis=ks, where=where)

    return te.compute(total.shape, body, name=total.op.name, attrs=largest.op.attrs)


def _speculate_sums(s: te.Schedule, anchor: te.Operation, exponentials: Tensor | None, sums: Tensor) -> list[Tensor]:
    """Speculate that `sums` can replace the sums of `anchor`, and `exponentials` its exponentials.

    Without `exponentials`, readers of the sums compute them again, as differences from 0 instead of the maximum. For a
    logarithm, which needs none, a multiple of ln(2) replaces the maximum: differences from it are exact, so that
    results near 0 keep their precision. Returns the speculated stages that read `sums`.
    """
    largest, exact, total = stages_of(anchor)
    if is_logarithm(anchor):
        large = te.compute(total.shape, lambda *i: _logarithm(sums(*i))[0], name="softmax_log_large")
        small = te.compute(total.shape, lambda *i: _logarithm(sums(*i))[1], name="softmax_log_small")
        speculations = {largest: large, factor_of(anchor): small, total: sums}
    elif exponentials is None:
        speculations = {largest: no_largest(largest, "softmax_zero"), total: sums}
    else:
        speculations = {exact: exponentials, total: sums}
    s.speculate([*speculations], [*speculations.values()], is_valid_sum)
    return [speculated for speculated in speculations.values() if sums in speculated.op.input_tensors]


def no_largest(largest: Tensor, name: str) -> Tensor:
    """Zeros to replace the maxima `largest`: differences from them are the elements themselves."""
    return te.compute(largest.shape, lambda *_: te.const(0.0, largest.dtype), name=name)


def _logarithm(total: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """The logarithm of a valid sum in two parts: a multiple of the high bits of ln(2), and a rest of at most 0.41."""
    of, bits = total.dtype, str(total.dtype).replace("float", "int")
    mantissa, start, high, low = _FORMATS[of.bits]
    whole = call_intrin(bits, "reinterpret", total)
    exponent = call_intrin(bits, "shift_right", whole - te.const(start, bits), te.const(mantissa, bits))
    scaled = call_intrin(of, "reinterpret", whole - call_intrin(bits, "shift_left", exponent, te.const(mantissa, bits)))
    n = te.cast(of, exponent)
    return n * te.const(high, of), te.log(scaled) + n * te.const(low, of)


def is_valid_sum(total: PrimExpr) -> PrimExpr:
    """Does the sum of a row's exponentials show that they are valid? NaN does not."""
    return te.all(total >= te.const(_LEAST_SUM, total.dtype), total <= te.const(_MOST_SUM, total.dtype))
