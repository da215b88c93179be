"""Expansions of mathematical functions to arithmetic in the loop IR, for scalars and vectors of any width.

A code generator without a vector library expands calls such as ``Call("exp", (x,))`` with these functions (see
`backend.lower_intrin`), so that no loop calls a scalar library function. Each function reduces its argument to a short
interval (Muller, *Elementary Functions*, ch. 8 and 11) and evaluates a minimax polynomial there; coefficients are
minimax fits in 40 or 50 digits, rounded one after the other. NaN, infinities, zeros and denormals follow IEEE 754,
except that denormal results of exp_nonpositive and sigmoid may be flushed to a smaller value, mostly 0.

Largest error in units in the last place, found on dense samples (tests/backend/test_vector_math.py), with fused
multiply-add:

    float32   exp 1.3   exp_nonpositive 1.5   exp2 1.3   expm1 1.4   log 1.0   log2 1.0   log10 2.0   log1p 1.5
              log1p_fraction 1.3   pow 1.2   fmod 0.0   tanh 2.5   sigmoid 2.5   erf 4.0   sinh 1.7   cosh 1.7
              sin 1.5   cos 1.5   tan 3.7   asin 2.5   acos 1.5   atan 2.3   atan2 2.3   asinh 1.7   acosh 1.5
              atanh 1.7   rsqrt 1.5   sqrt 0.5   fast_gelu 16000.0   fast_exp 500.0
    float64   exp 1.3   exp_nonpositive 1.3   exp2 1.3   expm1 1.7   log 1.2   log2 1.2   log10 1.2   log1p 1.5
              log1p_fraction 1.5   pow 1.5   fmod 0.0   tanh 2.5   sigmoid 3.0   erf 2.0   sinh 2.5   cosh 1.7
              sin 1.6   cos 1.6   tan 3.0   asin 3.0   acos 2.5   atan 2.3   atan2 2.3   asinh 2.0   acosh 2.5
              atanh 2.2   rsqrt 1.5   sqrt 0.5

Powers beyond 2^40 or below 2^-40 have errors of up to 5/2 in float32, 3 in float64. fast_gelu is for 16-bit floats:
it is accurate to 13 bits where float16 has as many, to 10 bits near -1e-7. So is fast_exp, for softmax whose
exponentials are divided by their sum before rounding.

Some functions have a fast path for common arguments and a slow path for all others: zeros of logarithms, large
arguments of circular functions. A vector takes the slow path if any of its lanes requires it. Without fused
multiply-adds some functions have the slow path only.

Where a vector permutation can look up words in a register, intervals are divided into eight (Tang, "Table-driven
implementation of the exponential function in IEEE floating-point arithmetic", 1989, and "... of the logarithm function
...", 1990): those of exp_nonpositive (the hot function of softmax, attention and sigmoid), of natural logarithms and of
pow. This halves the number of polynomial terms. In float64 they are divided into sixteen, as are those of exp, log2,
log10, erf, asin, acos and atan; for the last four the table has polynomials or angles.

16-bit floats are computed in float32. Results rounded to 16 bits, possibly after multiplications and divisions, have a
relative error of 2^-15 or less, which bounds the error in units in the last place of float16 by 3/5, or by 7/10 where
sigmoid uses the processor's reciprocal estimate.
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
from relayc.backend.vector_math.powers import fmod, pow, rsqrt, sqrt
from relayc.backend.vector_math.trigonometry import acos, asin, atan, atan2, cos, sin, tan
from relayc.te.dtype import DType, dtype
from relayc.te.tir import Call, Cast, PrimExpr

__all__ = ["EXPANSIONS", "Builder", "Instructions", "expand"]

EXPANSIONS: dict[str, Callable[..., PrimExpr]] = {
    f.__name__: f
    for f in (exp, exp_nonpositive, fast_exp, exp2, expm1, log, log2, log10, log1p, log1p_fraction, tanh,
              sigmoid, erf, fast_gelu, sinh, cosh, sin, cos, tan, asin, acos, atan, atan2, asinh, acosh, atanh, rsqrt,
              sqrt, pow, fmod)
}  # fmt: skip
"""Intrinsic name -> function of (builder, operands...) that returns its expansion."""

_OF_16_BITS = {fast_exp.__name__, fast_gelu.__name__}
"""Functions whose precision is that of 16-bit floats."""


def expand(call: Call, has: Instructions, rounded: DType | None = None) -> PrimExpr:
    """A call of a function of `EXPANSIONS` as arithmetic; the call itself when its type has no expansion.

    `has` describes the target's instructions; `rounded` is a lower-precision type that the result is rounded to,
    possibly after multiplications and divisions.
    """
    of = call.dtype
    through = dtype("float32").with_lanes(of.lanes) if of.bits == 16 else of
    if not through.is_float or through.bits < 32 or (through.bits == 64 and call.op in _OF_16_BITS):
        return call
    b = Builder(through, has, of if of.bits == 16 else rounded)
    if call.op == sqrt.__name__ and not b.has_wide_lookup():  # the processor's instruction
        return call
    operands = [b.let(a if a.dtype == through else Cast(through, a), "x") for a in call.args]
    result = EXPANSIONS[call.op](b, *operands)
    return b.close(result if of == through else Cast(of, result))
