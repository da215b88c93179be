"""Softmax without the largest number of each row: powers of e of the elements themselves, where that does.

The largest number is subtracted so that no power of e overflows and not all of them vanish. Numbers that models have
are far from that; the sum of a row's powers tells, and what it does not vouch for is computed again (`Schedule.guess`).
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
    "exponentials_of",
    "factor_of",
    "is_logarithm",
    "is_trusted",
    "no_largest",
    "speculate_sums",
    "stages_of",
    "sums_like",
    "sums_of",
]  # fmt: skip

_MOST_EXPONENT = 64.0
"""Powers are of this at most: of more, `exp_nonpositive` gives anything."""
_LEAST_SUM, _MOST_SUM = 1e-6, 1e27
"""Of powers that are trusted. No power was limited then; those that vanish are less than 1e-32 of their row's sum."""
_FORMATS = {
    32: (23, 0x3F2AAAAB, 0.693145751953125, 1.42860682030941723e-6),
    64: (52, 0x3FE5555555555555, 0.69314718036912381649, 1.9082149292705877e-10),
}
"""Of floats of so many bits: stored bits of the mantissa, the bits of 2/3, and ln(2) in two parts, of which the first
ends in zeros: multiples by exponents are exact."""


def can_be_unshifted(anchor: te.Operation) -> bool:
    """Is this a softmax of more than one number, or the logarithm of one, of known size?

    Of a single number it is 1 and the logarithm 0 to the last digit, by the distance from the largest.
    """
    if anchor.tag != "softmax":
        return False
    largest = stages_of(anchor)[0].op
    assert isinstance(largest, te.ComputeOp)
    unknown = 1 if is_logarithm(anchor) else 2
    return any((as_int(extent_of(k)) or unknown) > 1 for k in largest.reduce_axis)


def is_logarithm(anchor: te.Operation) -> bool:
    """Is this the logarithm of a softmax? It needs sums of powers, and not powers themselves."""
    return "log" in anchor.attrs


def stages_of(anchor: te.Operation) -> tuple[Tensor, Tensor, Tensor]:
    """The largest number of each row of `anchor`, a softmax or its logarithm, the powers of distances, their sum."""
    found = {op.tag: op.output(0) for op in operations_behind([anchor.output(0)])}
    return found["softmax_max"], found["softmax_exp"], found["softmax_sum"]


def factor_of(anchor: te.Operation) -> Tensor:
    """What is found once for each row of its sum: one over it, or its logarithm."""
    _, _, total = stages_of(anchor)
    return next(t for t in anchor.input_tensors if total in t.op.input_tensors)


def element_of(largest: te.Operation, axis: int) -> Callable[..., PrimExpr]:
    """The elements that a softmax along `axis` is of, whose stage for the largest number of a row is `largest`."""
    assert isinstance(largest, te.ComputeOp)
    (maximum,), (k,) = largest.body, largest.reduce_axis
    assert isinstance(maximum, Reduce)

    def element(*i: Any) -> PrimExpr:
        values = [convert(v) for v in (*i[:axis], *i[axis + 1 :], i[axis])]
        return substitute(maximum.source[0], {own.var: v for own, v in zip((*largest.axis, k), values, strict=True)})

    return element


def exponential_of(element: PrimExpr) -> PrimExpr:
    """e to an element; of one so large that it can't be trusted, less."""
    return te.exp_nonpositive(_limited(element))


def _limited(element: PrimExpr) -> PrimExpr:
    """The element, or the most exponent: sums of its power aren't trusted, so NaN may become it, too.

    Of 32 bits as integers, which are in the order of numbers from 0 on and below others: processors have more units for
    them.
    """
    if element.dtype != "float32":
        return te.minimum(element, te.const(_MOST_EXPONENT, element.dtype))
    most = te.const(int(np.float32(_MOST_EXPONENT).view(np.int32)), "int32")
    return call_intrin("float32", "reinterpret", te.minimum(call_intrin("int32", "reinterpret", element), most))


def exponentials_of(element: Callable[..., PrimExpr], exact: Tensor) -> Tensor:
    """Powers of elements in the place of those of distances, to as many digits; of few digits of any element."""
    op = exact.op
    assert isinstance(op, te.ComputeOp)
    (power,) = op.body
    assert isinstance(power, Call)
    find = te.fast_exp if power.op == "fast_exp" else exponential_of
    return te.compute(exact.shape, lambda *i: find(element(*i)), name="softmax_exponential")


def sums_of(power: Callable[..., PrimExpr], exact: Tensor, total: Tensor) -> Tensor:
    """Sums of powers along the last dimension."""
    k = te.reduce_axis((0, exact.shape[-1]), name="k")
    return te.compute(total.shape, lambda *i: te.sum(power(*i, k), axis=k), name=total.op.name)


def clamp_logarithm(s: te.Schedule, anchor: te.Operation) -> None:
    """Let `anchor` be 0 at most if it is the logarithm of a softmax: rounding of what is guessed does not see to it."""
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
    """Sums of powers of what `largest` compares, in the place of those of distances from it, `total`."""
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


def speculate_sums(s: te.Schedule, anchor: te.Operation, powers: Tensor | None, sums: Tensor) -> list[Tensor]:
    """Let `sums` stand for those of `anchor`, `powers` for its powers.

    Without `powers` what reads sums finds them once more, by the distances from 0 in the place of the largest. Of a
    logarithm, which needs none, a multiple of ln(2) takes that place, from which an element has an exact distance: near
    0 results keep their digits. Returns what is found of the sums for that.
    """
    largest, exact, total = stages_of(anchor)
    if is_logarithm(anchor):
        large = te.compute(total.shape, lambda *i: _logarithm(sums(*i))[0], name="softmax_log_large")
        small = te.compute(total.shape, lambda *i: _logarithm(sums(*i))[1], name="softmax_log_small")
        guesses = {largest: large, factor_of(anchor): small, total: sums}
    elif powers is None:
        guesses = {largest: no_largest(largest, "softmax_zero"), total: sums}
    else:
        guesses = {exact: powers, total: sums}
    s.speculate([*guesses], [*guesses.values()], is_trusted)
    return [guess for guess in guesses.values() if sums in guess.op.input_tensors]


def no_largest(largest: Tensor, name: str) -> Tensor:
    """0 in the place of `largest` numbers: the distances from it are the elements themselves."""
    return te.compute(largest.shape, lambda *_: te.const(0.0, largest.dtype), name=name)


def _logarithm(total: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """A multiple of the high bits of ln(2), and the rest, 0.41 at most, of the logarithm of a sum that is trusted."""
    of, bits = total.dtype, str(total.dtype).replace("float", "int")
    mantissa, start, high, low = _FORMATS[of.bits]
    whole = call_intrin(bits, "reinterpret", total)
    exponent = call_intrin(bits, "shift_right", whole - te.const(start, bits), te.const(mantissa, bits))
    scaled = call_intrin(of, "reinterpret", whole - call_intrin(bits, "shift_left", exponent, te.const(mantissa, bits)))
    n = te.cast(of, exponent)
    return n * te.const(high, of), te.log(scaled) + n * te.const(low, of)


def is_trusted(total: PrimExpr) -> PrimExpr:
    """Does the sum of a row's powers show that they are right? That of a NaN does not."""
    return te.all(total >= te.const(_LEAST_SUM, total.dtype), total <= te.const(_MOST_SUM, total.dtype))
