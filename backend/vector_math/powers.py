"""Powers and roots, and remainders of divisions: what needs more bits than a number has."""

from __future__ import annotations

import math
from collections.abc import Callable

from backend.vector_math.builder import Builder
from backend.vector_math.exponentials import exp2
from backend.vector_math.logarithms import log2
from te.tir import Call, Cast, Max, PrimExpr, Select, Var
from te.tir.ops import all as all_of

# (atanh(s) / s - 1) / s^2 in s^2, to (sqrt(2) - 1) / (sqrt(2) + 1)
_ATANH = (0.3333333134651184, 0.20000486075878143, 0.1424938589334488, 0.12139878422021866)
# (2^r - 1) / r on [-1/2, 1/2]
_EXP2 = (0.6931471824645996, 0.24022650718688965, 0.05550359562039375, 0.009618062525987625, 0.0013390984386205673,
         0.000154628767631948)  # fmt: skip
_TWO_OVER_LN2 = (2.885390043258667, 3.851926067000022e-08)
"""2 / ln(2) as a sum of numbers of float32."""
_POWER_REACH = 125.0
"""2^x is neither denormal nor infinite for |x| below."""


def rsqrt(b: Builder, x: PrimExpr) -> PrimExpr:
    return b.const(1.0) / b.unary("sqrt", x)


def pow(b: Builder, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """x^y = 2^(y log2(x)), the logarithm a sum of two numbers.

    Vectors with zeros, negative or denormal bases, results that overflow and all the special values go through float64.
    """
    simple = _SIMPLE_POWERS.get(b.number(y))
    if simple is not None:
        return simple(b, x)
    if b.of.bits == 64:
        return Call(b.of, "pow", (x, y))
    far = b.inner() if b.fused else b
    wide = _power_in_float64(far, x, y)
    if not b.fused:
        return wide
    exponent, result = _power(b, x, y)
    least = b.format.smallest
    # Infinity ranks as high above the least number as the power's reach, raised by the difference, above 0.
    reach = b.rank(b.const(math.inf), least) - b.rank(b.const(_POWER_REACH))
    rank = Max(b.rank(x, least), b.rank(b.unary("fabs", exponent)) + reach)
    return b.usually(rank, math.inf, result, far.close(wide), above=least)


def _root(b: Builder, x: PrimExpr, of_lowest: float, function: Callable[[PrimExpr], PrimExpr]) -> PrimExpr:
    """`function` of the root of x, which is not NaN for minus infinity, nor -0 for -0."""
    root = b.let(b.unary("fabs", b.unary("sqrt", x)), "root")
    return Select(x == b.const(-math.inf), b.const(of_lowest), function(root))


_SIMPLE_POWERS: dict[float | None, Callable[[Builder, PrimExpr], PrimExpr]] = {
    -1.0: lambda b, x: b.const(1.0) / x,
    -0.5: lambda b, x: _root(b, x, 0.0, lambda root: b.const(1.0) / root),
    0.5: lambda b, x: _root(b, x, math.inf, lambda root: root),
    1.0: lambda b, x: x,
    1.5: lambda b, x: _root(b, x, math.inf, lambda root: b.unary("fabs", x) * root),
    2.0: lambda b, x: x * x,
    3.0: lambda b, x: x * x * x,
    4.0: lambda b, x: (x * x) * (x * x),
}


def _power(b: Builder, x: PrimExpr, y: PrimExpr) -> tuple[Var, Var]:
    """(y log2(x), x^y) for positive normal x, where the power is normal."""
    exponent, m = b.split_exponent(x)
    e = b.let(Cast(b.of, exponent), "e")
    high, low = _log2_of_reduced(b, b.let(m, "m"))
    total = b.let(e + high, "total")
    low = b.let(low + (high - (total - e)), "low")
    z = b.let(y * total, "z")
    z_low = b.fma(y, low, b.fma(y, total, -z))
    start = b.const(b.format.magic + b.format.bias)
    t = b.let(z + start, "t")
    r = b.let((z - (t - start)) + z_low, "r")
    power = b.let(b.power_of_two(t), "power")
    return z, b.let(b.fma(b.polynomial(r, _EXP2), r * power, power), "result")


def _log2_of_reduced(b: Builder, m: Var) -> tuple[Var, PrimExpr]:
    """log2(m) as a sum of two numbers, of sqrt(1/2) <= m < sqrt(2): 2/ln(2) atanh(s), s = (m - 1) / (m + 1)."""
    one = b.const(1.0)
    f, d = b.let(m - one, "f"), b.let(m + one, "d")
    s = b.let(f / d, "s")
    lost = m - (d - one)  # of d
    rest = b.fma(-s, d, f) - s * lost
    s_low = rest * b.fma(s, -0.5, 0.5)  # 1 / d = (1 - s) / 2
    square = b.let(s * s, "square")
    whole, part = _TWO_OVER_LN2
    high = b.let(s * b.const(whole), "high")
    tail = b.fma(square * b.polynomial(square, _ATANH), whole, part)
    return high, b.fma(s, tail, b.fma(s_low, whole, b.fma(s, whole, -high)))


def _power_in_float64(b: Builder, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    w = b.wide()
    base, power = w.let(Cast(w.of, x), "base"), w.let(Cast(w.of, y), "power")
    size = w.magnitude(base)
    logarithm = w.let(log2(w, size), "logarithm")
    exponent = Select(w.is_zero(logarithm), w.const(0.0), power * logarithm)
    result = w.let(exp2(w, Select(w.is_zero(power), w.const(0.0), exponent)), "result")
    whole = w.let(w.unary("trunc", power) == power, "whole")
    half = w.let(power * w.const(0.5), "half")
    is_odd = all_of(whole, w.unary("trunc", half) != half)
    negative = w.let(w.bits(base) < w.word(0), "negative")
    signed = w.let(Select(all_of(negative, is_odd), -result, result), "signed")
    undefined = all_of(base < w.const(0.0), base > w.const(-math.inf), ~whole)
    return Cast(b.of, Select(undefined, w.const(math.nan), signed))


def fmod(b: Builder, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """x - trunc(x / y) y, exactly, with the sign of x.

    A quotient that was rounded up to an integer is one too large, and one by a reciprocal, which fast math allows, may
    be one too small. Vectors with quotients that have more digits than the type (or none: infinities and NaN) go to the
    C library.
    """
    if b.of.bits == 64 and not b.fused:
        return Call(b.of, "fmod", (x, y))
    quotient = b.let(b.unary("fabs", x / y), "quotient")
    whole, size, divisor = b.unary("trunc", quotient), b.magnitude(x), b.let(b.unary("fabs", y), "divisor")
    rest = b.let(_exact_rest(b, whole, size, divisor), "rest")
    rest = b.let(Select(rest < b.const(0.0), rest + divisor, rest), "rest")
    rest = b.with_sign_of(Select(rest >= divisor, rest - divisor, rest), x)
    result = b.let(Select(divisor == b.const(math.inf), x, rest), "result")
    # Infinite numbers have quotients that are none or infinite, unless they are divisors.
    return b.usually(b.rank(quotient), 2.0 ** (b.format.mantissa - 1), result, Call(b.of, "fmod", (x, y)))


def _exact_rest(b: Builder, whole: PrimExpr, size: Var, divisor: Var) -> PrimExpr:
    """size - whole * divisor"""
    if b.fused:
        return b.fma(-whole, divisor, size)
    w = b.wide()
    product = Cast(w.of, whole) * Cast(w.of, divisor)  # exact there
    return Cast(b.of, Cast(w.of, size) - product)
