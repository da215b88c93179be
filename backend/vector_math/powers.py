"""Powers, roots and floating-point remainders, which need extended precision in intermediate results."""

from __future__ import annotations

import math
from collections.abc import Callable

from relayc.backend.vector_math.builder import Builder
from relayc.backend.vector_math.exponentials import PARTS, exp2, exp_of_sum
from relayc.backend.vector_math.logarithms import BINARY, NATURAL64, log2, piece
from relayc.te.tir import Call, Cast, Max, PrimExpr, Select, Var
from relayc.te.tir.ops import all as all_of

# 2 / ln(2) (atanh(s) / s - 1) / s^2 in s^2, to (sqrt(2) - 1) / (sqrt(2) + 1)
_ATANH = {
    32: (0.9617967009544373, 0.5770790576934814, 0.4119065999984741, 0.33692291378974915),
    64: (0.9617966939259756, 0.577078016355654, 0.4121985830826872, 0.3205989034384431,
         0.26230762092467264, 0.22198707901317508, 0.19119313211257483, 0.1908953488066483),
}  # fmt: skip
# (2^r - 1) / r on [-1/2, 1/2]
_EXP2 = (0.6931471824645996, 0.24022650718688965, 0.05550359562039375, 0.009618062525987625, 0.0013390984386205673,
         0.000154628767631948)  # fmt: skip
_TWO_OVER_LN2 = {32: (2.885390043258667, 3.851926067000022e-08), 64: (2.8853900817779268, 4.0710547481862066e-17)}
"""2 / ln(2) as an unevaluated sum of two values, by the bits of their type."""
_POWER_REACH = {32: 125.0, 64: 1020.0}
"""2^x is neither denormal nor infinite for |x| below this bound, by the bits of its type."""
_LONG_REACH = {32: 125.0, 64: 64.0}
"""The bound for logarithms to base 2 (of float32) or e, as sums of two floats, times exponents: that their errors, too,
don't matter."""
_SHORT_EXPONENT = 4.0
"""Up to this exponent, pow uses single-precision logarithms."""
_FLAT_EXPONENT = 0.75
"""Up to this exponent, powers within an interval of `BINARY` change by a factor below 2^(1/8)."""
_LOG2_OF_PIECE = {
    32: (1.4426950216293335, -0.7213462591171265, 0.4809090793132782, -0.36188673973083496, 0.28776225447654724),
    64: (1.4426950408889634, -0.721347520444478, 0.4808983469631632, -0.3606737602746485, 0.28853900706147406,
         -0.2404489692100698, 0.20610146106148694, -0.18063347715599826, 0.15911031920785074),
}  # fmt: skip
_FLAT_LOG2_OF_PIECE = (1.442693829536438, -0.7213498950004578, 0.4822123646736145, -0.35999807715415955)
"""Coefficients of log2(1 + r) / r on [-0.062, 0.0625], of float64 on [-0.0294, 0.0318]; for exponents up to
`_FLAT_EXPONENT` fewer suffice."""
# float64: -2 (log(1 + f) - f + f^2/2) / f^3 on [-0.0298, 0.0318]
_LOG_OF_PIECE = (-0.6666666666666582, 0.5000000000002387, -0.40000000009322373, 0.3333333318796095,
                 -0.2857139747291106, 0.2500025910818195, -0.22262777946548085, 0.19871344543174846)  # fmt: skip
# (2^f - 1) / f on [-0.13, 0.13], of float64 on [-0.0656, 0.0656]
_EXP2_OF_PART = {
    32: (0.6931470632553101, 0.24022655189037323, 0.05553215369582176, 0.009617200121283531),
    64: (0.6931471805599453, 0.24022650695912, 0.05550410866482668, 0.009618129080396878, 0.0013333558107830085,
         0.00015404622561461444, 1.5253814657136412e-05),
}  # fmt: skip


def sqrt(b: Builder, x: Var) -> PrimExpr:
    """The square root of float64, correctly rounded, from the processor's estimate, which takes less than half of the
    instruction's time. Zeros, very small and very large values, NaN and negative ones take the instruction."""
    fast = b.inner()
    result = fast.refined_root(x, fast.unary("rsqrt_estimate", x), 2)
    return b.likely_branch(b.rank(x, 1e-200), 1e300, fast.close(result), b.unary("sqrt", x), above=1e-200)


def rsqrt(b: Builder, x: PrimExpr) -> PrimExpr:
    """1 / sqrt(x): where the processor has an estimate of float64, by two steps of Newton's iteration from that, which
    take a quarter of the time of two instructions."""
    if not b.has_wide_lookup():
        return b.const(1.0) / b.unary("sqrt", x)
    estimate = root = b.let(b.unary("rsqrt_estimate", x), "estimate")
    for _ in range(2):
        error = b.fma(-(x * root), root * b.const(0.5), 0.5)
        root = b.let(b.fma(root, error, root), "root")
    return Select(root == root, root, estimate)  # of 0 or infinity, too


def pow(b: Builder, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """x^y = 2^(y log2(x)).

    There are three paths, each falling back on the next: small exponents; all other exponents, by logarithms as
    unevaluated sums of two floats; and zero, negative or denormal bases, overflowing results and special values,
    through float64. Powers of float64 take the first two for a base of zero, too, and the C library's instead of the
    third.
    """
    simple = _SIMPLE_POWERS.get(b.constant_of(y))
    if simple is not None:
        return simple(b, x)
    if not b.has.fused:
        return Call(b.of, "pow", (x, y)) if b.of.bits == 64 else _power_in_float64(b, x, y)
    constant, has_lookup = b.constant_of(y), b.has_lookup() or b.has_wide_lookup()
    if not has_lookup or not (constant is None or abs(constant) <= _SHORT_EXPONENT):
        return _long_power(b, x, y)
    rank, result = _short_power(b, x, y, constant)
    far = b.inner()
    return b.likely_branch(rank, math.inf, result, far.close(_long_power(far, x, y)), above=b.format.smallest)


def _short_power(b: Builder, x: PrimExpr, y: PrimExpr, constant: float | None) -> tuple[PrimExpr, Var]:
    """x^y for positive normal x, |y| <= `_SHORT_EXPONENT`, where the power is normal; and its rank for `likely_branch`.

    log2(x) is k + log2(1 + r), with k of low enough precision to be exact and a small rest, so that with a small
    exponent the rounding error of a single float does not matter. If y log2(1 + r) stays below an eighth, it need not
    be known before the power is split at a multiple of an eighth. `constant` is the exponent if it is a constant.
    """
    bits, parts = b.of.bits, PARTS[b.of.bits]
    base = _base(b, x, y)
    at = piece(b, base, BINARY[bits])
    assert at.log is not None
    r, k = at.fraction(b), b.let(b.fma(at.n, b.format.unit, at.log), "k")
    flat = bits == 32 and constant is not None and abs(constant) <= _FLAT_EXPONENT
    log2 = _FLAT_LOG2_OF_PIECE if flat else _LOG2_OF_PIECE[bits]
    scaled, log2 = (b.let(r * y, "yr"), log2) if constant is None else (r, [constant * c for c in log2])
    start = b.const(b.format.magic / parts)
    t = b.let(b.fma(k, y, start if flat else b.fma(scaled, log2[0], start)), "t")
    n = b.let(t - start, "n")
    f = b.let(b.fma(b.polynomial(r, log2), scaled, b.fma(k, y, -n)), "f")
    power = b.let(b.power_of_two_fraction(t, parts), "power")
    result = b.let(b.fma(b.polynomial(f, _EXP2_OF_PART[bits]), f * power, power), "result")
    rank, reach = b.rank(base, b.format.smallest), _POWER_REACH[bits]
    if constant is None or abs(constant) * (b.format.bias + 1) > reach:
        rank = Max(rank, _raised_rank(b, n, reach))
    result = _power_of_base(b, x, result)
    return rank if constant is not None else Max(rank, _raised_rank(b, y, _SHORT_EXPONENT)), result


def _base(b: Builder, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """x or, where x is 0 in float64, y: it is positive where the power is 0, and takes the rare path where it is not.
    """
    return x if b.of.bits == 32 else b.let(Select(b.bits(x) == b.word(0), y, x), "base")


def _power_of_base(b: Builder, x: PrimExpr, result: Var) -> Var:
    """0 where `_base` replaced a zero."""
    return result if b.of.bits == 32 else b.let(Select(b.bits(x) == b.word(0), b.const(0.0), result), "result")


def _raised_rank(b: Builder, x: PrimExpr, reach: float) -> PrimExpr:
    """The rank of |x|, offset so that |x| = `reach` has the rank of infinity above the least normal number."""
    difference = b.rank(b.const(math.inf), b.format.smallest) - b.rank(b.const(reach))
    return b.rank(b.unary("fabs", x)) + difference


def _long_power(b: Builder, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """x^y for any x and y: by a logarithm as an unevaluated sum of two floats, or through float64, or by the C
    library."""
    base = _base(b, x, y)
    exponent, result = (_power_by_pieces if b.has_wide_lookup() else _power)(b, base, y)
    rank = Max(b.rank(base, b.format.smallest), _raised_rank(b, exponent, _LONG_REACH[b.of.bits]))
    result = _power_of_base(b, x, result)
    far = b.inner()
    rare = Call(b.of, "pow", (x, y)) if b.of.bits == 64 else far.close(_power_in_float64(far, x, y))
    return b.likely_branch(rank, math.inf, result, rare, above=b.format.smallest)


def _root(b: Builder, x: PrimExpr, power: PrimExpr, of_lowest: float) -> PrimExpr:
    """`power`, computed from a root of x, corrected for minus infinity (not NaN) and -0 (as 0)."""
    return Select(x == b.const(-math.inf), b.const(of_lowest), b.unary("fabs", power))


_SIMPLE_POWERS: dict[float | None, Callable[[Builder, PrimExpr], PrimExpr]] = {
    -1.0: lambda b, x: b.const(1.0) / x,
    -0.5: lambda b, x: _root(b, x, rsqrt(b, x), 0.0),
    0.5: lambda b, x: _root(b, x, b.unary("sqrt", x), math.inf),
    1.0: lambda b, x: x,
    1.5: lambda b, x: _root(b, x, b.unary("fabs", x) * b.unary("sqrt", x), math.inf),
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
    z_low = b.let(b.fma(y, low, b.fma(y, total, -z)), "z_low")  # not small: multiplied by an exponent
    start = b.const(b.format.magic + b.format.bias)
    t = b.let((z + z_low) + start, "t")
    r = b.let((z - (t - start)) + z_low, "r")
    power = b.let(b.power_of_two(t), "power")
    if b.of.bits == 64:
        return z, b.let(b.scaled_expm1(power, b.let(r * b.const(math.log(2)), "r"), power), "result")
    return z, b.let(b.fma(b.polynomial(r, _EXP2), r * power, power), "result")


def _power_by_pieces(b: Builder, x: PrimExpr, y: PrimExpr) -> tuple[Var, Var]:
    """(y log(x), x^y) in float64 for positive normal x, where the power is normal; requires `has_wide_lookup`.

    log(x) is a sum of two floats: the first has the piece's logarithm and f - f^2/2, the other their rounding errors
    and the terms from f^3 on.
    """
    at, unit = piece(b, x, NATURAL64), b.format.unit
    assert at.log is not None
    f, rounding = at.fraction_and_rest(b)
    whole = b.let(b.fma(at.n, b.format.ln2_high * unit, at.log), "whole")
    total = b.let(whole + f, "total")
    half = b.let(f * b.const(-0.5), "half")
    square = b.let(half * f, "square")
    high = b.let(total + square, "high")
    errors = ((whole - total) + f) + ((total - high) + square) + b.fma(half, f, -square)
    small = b.fma(at.n, b.format.ln2_low * unit, rounding) + errors
    low = b.fma(b.polynomial(f, _LOG_OF_PIECE), f * square, small)
    z = b.let(y * high, "z")
    rest = b.let(b.fma(y, low, b.fma(y, high, -z)), "rest")
    return z, b.let(exp_of_sum(b, z, rest), "result")


def _log2_of_reduced(b: Builder, m: Var) -> tuple[Var, PrimExpr]:
    """log2(m) as an unevaluated sum of two floats, for sqrt(1/2) <= m < sqrt(2): 2/ln(2) atanh(s), s = (m - 1) / (m +
    1)."""
    one = b.const(1.0)
    f, d = b.let(m - one, "f"), b.let(m + one, "d")
    s = b.let(f / d, "s")
    lost = m - (d - one)  # rounding error of d
    rest = b.fma(-s, d, f) - s * lost
    s_low = rest * b.fma(s, -0.5, 0.5)  # 1 / d = (1 - s) / 2
    square = b.let(s * s, "square")
    whole, part = _TWO_OVER_LN2[b.of.bits]
    high = b.let(s * b.const(whole), "high")
    tail = b.fma(b.polynomial(square, _ATANH[b.of.bits]), square, part)
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

    A quotient rounded up to an integer is one too large, and one by a reciprocal, which fast math allows, may be one
    too small; both are corrected. Vectors with a quotient beyond the type's precision, infinite or NaN call the C
    library.
    """
    if b.of.bits == 64 and not b.has.fused:
        return Call(b.of, "fmod", (x, y))
    quotient = b.let(b.unary("fabs", x / y), "quotient")
    whole, size, divisor = b.unary("trunc", quotient), b.magnitude(x), b.let(b.unary("fabs", y), "divisor")
    rest = b.let(_exact_rest(b, whole, size, divisor), "rest")
    rest = b.let(Select(rest < b.const(0.0), rest + divisor, rest), "rest")
    rest = b.with_sign_of(Select(rest >= divisor, rest - divisor, rest), x)
    result = b.let(Select(divisor == b.const(math.inf), x, rest), "result")
    # infinite operands have quotients that are NaN or infinite, unless they are divisors
    return b.likely_branch(b.rank(quotient), 2.0 ** (b.format.mantissa - 1), result, Call(b.of, "fmod", (x, y)))


def _exact_rest(b: Builder, whole: PrimExpr, size: Var, divisor: Var) -> PrimExpr:
    """size - whole * divisor, exactly."""
    if b.has.fused:
        return b.fma(-whole, divisor, size)
    w = b.wide()
    product = Cast(w.of, whole) * Cast(w.of, divisor)  # exact there
    return Cast(b.of, Cast(w.of, size) - product)
