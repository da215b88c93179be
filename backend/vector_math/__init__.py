"""Mathematical functions as arithmetic: polynomials in the loop IR, for scalars and vectors of any width.

A code generator without a vector library expands calls such as ``Call("exp", (x,))`` with these functions (see
`backend.lower_intrin`), so that no loop calls a scalar library function. Each function reduces its argument to a short
interval (Muller, *Elementary Functions*, ch. 8 and 11) and evaluates a minimax polynomial there; coefficients are
minimax fits in 40 or 50 digits, rounded one after the other. NaN, infinities, zeros and denormals come out as IEEE 754
says, but for results of exp_nonpositive and sigmoid that would be denormal: they are something below, most of them 0.

Largest error in units in the last place, found on dense samples (tests/backend/test_vector_math.py), with fused
multiply-add:

    float32   exp 1.3   exp_nonpositive 1.5   exp2 1.3   expm1 1.4   log 1.0   log2 1.0   log10 2.0   log1p 1.5
              log1p_fraction 1.3   pow 1.2   fmod 0.0   tanh 2.5   sigmoid 2.5   erf 4.0   sinh 1.7   cosh 1.7
              sin 1.5   cos 1.5   tan 3.7   asin 2.5   acos 1.5   atan 2.3   atan2 2.3   asinh 1.7   acosh 1.5
              atanh 1.7   rsqrt 1.5   fast_gelu 16000.0   fast_exp 500.0
    float64   exp 1.3   exp_nonpositive 1.3   exp2 1.3   expm1 1.7   log 1.0   log2 1.2   log10 2.5   log1p 1.5
              log1p_fraction 1.5   fmod 0.0   tanh 2.5   sigmoid 3.0   sinh 2.5   cosh 1.7   rsqrt 1.5

fast_gelu is for floats of 16 bits: it has 13 digits where float16 has as many, 10 next to -1e-7; and so is
fast_exp, whose sums are divided by before they are rounded.

Some functions have a short way for the arguments that are usual and a long one for all others: zeros of logarithms,
large arguments of circular functions. A vector takes the long way if any of its lanes has to. Without fused
multiply-adds some have only the long way.

Where vectors pick words from a register by lane, intervals are divided into eight (Tang, "Table-driven implementation
of the exponential function in IEEE floating-point arithmetic", 1989, and "... of the logarithm function ...", 1990):
those of exp_nonpositive, which softmax, attention and the logistic function spend their time with, of natural
logarithms and of powers. Half of the polynomials' terms are left.

Other functions of float64 are left to the C library, but for powers of a few constant exponents. 16-bit floats are
computed in float32. What is rounded to them, perhaps after multiplications and divisions, is found to 15 digits or more
only, which makes the error in units in the last place of float16 at most 3/5, and 7/10 where the logistic function's
reciprocal is an estimate of the processor's.
"""

from __future__ import annotations

from collections.abc import Callable

from relayc.backend.vector_math.builder import Builder, Instructions
from relayc.backend.vector_math.exponentials import (
    cosh,
    erf,
    exp,
    exp2,
    exp_nonpositive,
    expm1,
    fast_exp,
    fast_gelu,
    sigmoid,
    sinh,
    tanh,
)
from relayc.backend.vector_math.logarithms import acosh, asinh, atanh, log, log1p, log1p_fraction, log2, log10
from relayc.backend.vector_math.powers import fmod, pow, rsqrt
from relayc.backend.vector_math.trigonometry import acos, asin, atan, atan2, cos, sin, tan
from relayc.te.dtype import DType, dtype
from relayc.te.tir import Call, Cast, PrimExpr

__all__ = ["EXPANSIONS", "Builder", "Instructions", "expand"]

EXPANSIONS: dict[str, Callable[..., PrimExpr]] = {
    f.__name__: f
    for f in (exp, exp_nonpositive, fast_exp, exp2, expm1, log, log2, log10, log1p, log1p_fraction, tanh,
              sigmoid, erf, fast_gelu, sinh, cosh, sin, cos, tan, asin, acos, atan, atan2, asinh, acosh, atanh, rsqrt,
              pow, fmod)
}  # fmt: skip
"""Intrinsic -> function of (builder, operands...)."""

_FLOAT64_TOO = {
    "exp", "exp_nonpositive", "exp2", "expm1", "log", "log2", "log10", "log1p", "log1p_fraction", "tanh", "sigmoid",
    "sinh", "cosh", "rsqrt", "pow", "fmod",
}  # fmt: skip


def expand(call: Call, has: Instructions, rounded: DType | None = None) -> PrimExpr:
    """A call of a function of `EXPANSIONS` as arithmetic; the call itself when its type has no expansion.

    `has`: what the target has instructions for; `rounded`: a narrower type that the result is rounded to, perhaps after
    multiplications and divisions.
    """
    of = call.dtype
    through = dtype("float32").with_lanes(of.lanes) if of.bits == 16 else of
    if not through.is_float or through.bits < 32 or (through.bits == 64 and call.op not in _FLOAT64_TOO):
        return call
    b = Builder(through, has, of if of.bits == 16 else rounded)
    operands = [b.let(a if a.dtype == through else Cast(through, a), "x") for a in call.args]
    result = EXPANSIONS[call.op](b, *operands)
    return b.close(result if of == through else Cast(of, result))
