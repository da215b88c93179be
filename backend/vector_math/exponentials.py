"""Exponentials, and what is made of them: hyperbolic functions, the logistic function; and the error function."""

from __future__ import annotations

import math
from dataclasses import replace

from relayc.backend.vector_math.builder import Builder
from relayc.te.dtype import dtype
from relayc.te.tir import Call, Max, Min, PrimExpr, Select, Var

_EXP_OF_EIGHTH = (1.0, 0.5000645518302917, 0.16666898131370544)
"""expm1(r) / r on |r| <= ln(2)/16"""
_COARSE_EXP_OF_QUARTER = (1.0, 0.17344923317432404, 0.015022988431155682)
"""2^(f/4) on |f| <= 1/2, with an error of 2^-15"""
_POWER_SLOPE, _POWER_START, _POWER_ADDED, _POWER_EXTRA = (
    0.34659267006326216, 0.3367850150746068, 0.7499643575113337, 0.11398104309157776,
)  # fmt: skip
"""2^(f + extra) = (v^2 + added)^2 + v, v = slope f + start, on 0 <= f <= 1, with an error of 2^-16. The best found that
three multiply-adds make of f, their numbers by linear programming; a polynomial of degree 3 has one of 2^-13.7."""
_FAST_EXP_MOST = 64.5
"""What is raised to, at most, where powers do not overflow by themselves: more than what `fast_exp` promises up to."""
# tanh(x) = x P(x^2) / Q(x^2) with an error of 2^-15, up to where it is 1 in float16
_COARSE_TANH_P = (0.9999679580156069, 0.10362492777165334, 0.0007095887304351945)
_COARSE_TANH_Q = (1.0, 0.4367474379309772, 0.013197110504837793)
_COARSE_TANH_REACH = 4.6
_HALF_REACH, _BRAIN_REACH = (-18.0, 12.0, 1.0), (-100.0, 100.0, 0.5)
"""e to what is below is 0 in float16 and in bfloat16, to what is above infinity; and the part that is raised to."""
# (sinh(r) / r - 1) / r^2 and (cosh(r) - 1) / r^2 in r^2, to ln(2)/2
_SINH = (0.1666666716337204, 0.00833317544311285, 0.00019974095630459487)
_COSH = (0.5, 0.041666459292173386, 0.0013935428578406572)
_GELU_ROOT = (0.7864480018615723, -0.04847414419054985, -0.009474602527916431)
_GELU_ADDED = (0.27375075221061707, -0.018210923299193382, -1.000840663909912, -0.9974647760391235)
"""The numbers of `fast_gelu`, found by search and least squares: for 0 <= x <= 5.5."""
_GELU_REACH, _GELU_LEAST = 6.904, 2.4271413004428588e-11
"""Where the 4th power is least, and a little more than what it is there."""
# erf(x) = x P(x^2) / Q(x^2) to 4, beyond which it is 1
_ERF_P = (1.2824761867523193, 0.21997691690921783, 0.060353368520736694, 0.004413599148392677, 0.000323411455610767,
          2.2579288270208053e-06)  # fmt: skip
_ERF_Q = (1.1365649700164795, 0.5738035440444946, 0.13110268115997314, 0.017283916473388672, 0.0013474320294335485,
          4.252772851032205e-05)  # fmt: skip


def exp(b: Builder, x: PrimExpr) -> PrimExpr:
    if b.coarse and b.scales():
        return _scaled_exp(b, x)
    if b.coarse and b.looks_up():
        return _short_exp(b, x)
    t, r = b.reduce_exp(b.clamp(x, b.format.exp_low, b.format.exp_high), 2 * b.format.bias)
    first, second = b.power_in_two(t)
    return b.grown_expm1(first, r, first) * second


def exp_nonpositive(b: Builder, x: PrimExpr) -> PrimExpr:
    """e^x for x <= 0, or little above, up to 64; or NaN.

    Nothing overflows, so one multiplication by a power of two does. At the least exponent that power is 0 itself, and
    so is the result: a vector with one that has to be rounded to a denormal number or to 0 takes processors more than
    twice as long, which masked elements of a softmax would pay for every time.
    """
    if b.coarse and b.scales():
        return _scaled_exp(b, x)
    x = b.let(Max(x, b.const(-b.format.bias * math.log(2))), "x")  # where the power of two is 0; NaN stays NaN
    if b.looks_up():
        return _exp_by_eighths(b, x)
    t, r = b.reduce_exp(x, b.format.bias)
    power = b.let(b.power_of_two(t), "power")
    return b.grown_expm1(power, r, power)


def fast_exp(b: Builder, x: PrimExpr) -> PrimExpr:
    """e^x to 15 digits, as if it were rounded to float16; of x > 64 infinity, or e^64 and a little more."""
    b = replace(b, rounded=dtype("float16"))
    return exp_nonpositive(b, x if b.scales() else b.let(Min(x, b.const(_FAST_EXP_MOST)), "x"))


def _scaled_exp(b: Builder, x: PrimExpr, factor: float = 1.0) -> PrimExpr:
    """e^(factor x) to 15 digits, where `scales`: nothing has to be limited, since that also goes for infinities."""
    exponent = b.let(b.fma(x, factor / math.log(2), -_POWER_EXTRA), "exponent")
    v = b.let(b.fma(b.unary("fraction", exponent), _POWER_SLOPE, _POWER_START), "v")
    w = b.let(b.fma(v, v, _POWER_ADDED), "w")
    return Call(b.of, "scale_by_power", (b.fma(w, w, v), exponent))


def _exp_by_eighths(b: Builder, x: PrimExpr) -> PrimExpr:
    """e^x = 2^k 2^(j/8) e^r: what is left for the polynomial is so small that two terms fewer will do."""
    if b.coarse:
        power, ratio = _coarse_exp(b, x)
        return power * ratio
    t, r = b.reduce_exp(x, 0, 1 / 8)
    power = b.let(b.scale_of_part(t, 8), "power")
    return b.fma(b.polynomial(r, _EXP_OF_EIGHTH), r * power, power)


def _short_exp(b: Builder, x: PrimExpr) -> PrimExpr:
    """e^x where few digits do: of bfloat16 a square, which may overflow or be denormal."""
    assert b.rounded is not None
    is_half = b.rounded.element == "float16"
    low, high, factor = _HALF_REACH if is_half else _BRAIN_REACH
    power, ratio = _coarse_exp(b, b.clamp(x, low, high), factor)
    root = b.let(power * ratio, "root")
    return root if is_half else root * root


def _coarse_exp(b: Builder, x: PrimExpr, factor: float = 1.0) -> tuple[PrimExpr, PrimExpr]:
    """(p, q) of e^(factor x) = p q, whose exponent is in the range of float32: p is 2^(n/4)."""
    start, scale = b.const(b.format.magic), factor * 4 / math.log(2)
    t = b.let(b.fma(x, scale, start), "t")
    fraction = b.let(b.fma(x, scale, -b.let(t - start, "whole")), "fraction")
    return b.scale_of_part(t, 4), b.polynomial(fraction, _COARSE_EXP_OF_QUARTER)


def exp2(b: Builder, x: PrimExpr) -> PrimExpr:
    f = b.format
    x = b.clamp(x, -float(f.bias + f.mantissa + 1), float(f.bias + 1))
    start = b.const(f.magic + 2 * f.bias)
    t = b.let(x + start, "t")
    r = b.let((x - (t - start)) * b.const(math.log(2)), "r")
    first, second = b.power_in_two(t)
    return b.grown_expm1(first, r, first) * second


def expm1(b: Builder, x: PrimExpr) -> PrimExpr:
    t, r = b.reduce_exp(b.clamp(x, b.format.expm1_low, b.format.exp_high - 1.0), b.format.bias - 1)
    half_power = b.let(b.power_of_two(t), "p")
    tail = b.grown_expm1(half_power, r, half_power - b.const(0.5)) * b.const(2.0)
    return b.with_sign_of(tail, x)  # the product turns -0 into 0


def tanh(b: Builder, x: PrimExpr) -> PrimExpr:
    """h / (h + 1), h = (e^2|x| - 1) / 2, with the sign of x; beyond 20 it is 1."""
    if b.coarse:
        x = b.clamp(x, -_COARSE_TANH_REACH, _COARSE_TANH_REACH)
        square = b.let(x * x, "square")
        return x * b.polynomial(square, _COARSE_TANH_P) / b.polynomial(square, _COARSE_TANH_Q)
    t, r = b.reduce_exp(b.let(Min(b.magnitude(x), b.const(20.0)), "x"), b.format.bias, 0.5)
    power = b.let(b.power_of_two(t), "p")
    half = b.let(b.grown_expm1(power, r, b.fma(power, 0.5, -0.5), 0.5), "h")
    return b.with_sign_of(half / (half + b.const(1.0)), x)


def sigmoid(b: Builder, x: PrimExpr) -> PrimExpr:
    """e / (1 + e) below 0, else 1 / (1 + e), e = exp(-|x|)."""
    if b.coarse and b.scales():
        return b.unary("fast_reciprocal", _scaled_exp(b, x, -1.0) + b.const(1.0))
    if b.coarse and b.looks_up():  # e^-x from 0, at the least exponent, to infinity
        power, ratio = _coarse_exp(b, b.clamp(x, -(b.format.bias + 1) * math.log(2), b.format.bias * math.log(2)), -1.0)
        return b.unary("fast_reciprocal", b.fma(power, ratio, 1.0))
    e = b.let(exp_nonpositive(b, -b.magnitude(x)), "e")
    return Select(b.bits(x) < b.word(0), e, b.const(1.0)) / (e + b.const(1.0))


def erf(b: Builder, x: PrimExpr) -> PrimExpr:
    square = b.let(Min(x * x, b.const(16.0)), "square")  # beyond 4 the ratio grows from 1 on
    ratio = x * b.polynomial(square, _ERF_P) / b.polynomial(square, _ERF_Q)
    return Min(Max(ratio, b.const(-1.0)), b.const(1.0))


def fast_gelu(b: Builder, x: PrimExpr) -> PrimExpr:
    """max(x, 0) - a Phi(-a), a = |x|, Phi the normal distribution, which is found to 13 digits; from 6.9 on it is 0.

    That takes less than the error function, which has few digits where it is close to -1. A root of Phi is close to a
    polynomial (so is one over it: Abramowitz, Stegun, 7.1.28). Squares to which numbers are added make one of degree
    32 with six multiply-adds, whose 4th power is as close as the 32nd of one of degree 5.
    """
    size = b.let(Min(b.unary("fabs", x), b.const(_GELU_REACH)), "size")
    root = b.polynomial(size, _GELU_ROOT)
    for added in _GELU_ADDED:
        root = b.let(root, "root")
        root = b.fma(root, root, added)
    root = b.let(root, "root")
    square = b.let(root * root, "square")
    tail = Max(b.fma(square, square, -_GELU_LEAST), b.const(0.0))
    return b.fma(-size, tail, Max(x, b.const(0.0)))


def _half_exp(b: Builder, size: PrimExpr) -> PrimExpr:
    """e^size / 2 for size >= 0, which may overflow though e^size / 4 does not."""
    t, r = b.reduce_exp(b.let(Min(size, b.const(b.format.exp_high - 0.5)), "x"), b.format.bias - 2)
    power = b.let(b.power_of_two(t), "power")
    quarter = b.let(b.grown_expm1(power, r, power), "quarter")
    return b.let(quarter + quarter, "e")


def _halves(b: Builder, size: Var) -> tuple[Var, Var, PrimExpr, PrimExpr]:
    """(p + q, p - q, sinh(r), cosh(r) - 1) of float32, with p = 2^n / 4, q = 2^-n / 4, size = n ln(2) + r >= 0.

    Half of e^size and half of e^-size by one reduction: their sums are (p + q) cosh(r) + (p - q) sinh(r), their
    differences (p - q) cosh(r) + (p + q) sinh(r), once doubled; p alone would overflow where these do not.
    """
    bias, mantissa = b.format.bias, b.format.mantissa
    t, r = b.reduce_exp(b.let(Min(size, b.const(b.format.exp_high - 0.5)), "x"), bias - 2)
    bits = b.let(b.exponent_bits(t), "bits")
    inverse = Max(b.word(2 * (bias - 2) << mantissa) - bits, b.word(0))  # 0 where it is too small to count
    p, q, square = b.let(b.from_bits(bits), "p"), b.let(b.from_bits(inverse), "q"), b.let(r * r, "square")
    sine = b.fma(b.polynomial(square, _SINH), r * square, r)
    return b.let(p + q, "sum"), b.let(p - q, "difference"), sine, b.polynomial(square, _COSH) * square


def sinh(b: Builder, x: PrimExpr) -> PrimExpr:
    size = b.magnitude(x)
    if b.of.bits == 32:
        total, difference, sine, cosine = _halves(b, size)
        half = b.let(difference + b.fma(total, sine, difference * cosine), "half")
        return b.with_sign_of(half + half, x)
    t = b.let(expm1(b, Min(size, b.const(30.0))), "t")
    near, e = (t + t / (t + b.const(1.0))) * b.const(0.5), _half_exp(b, size)
    return b.with_sign_of(Select(size < b.const(20.0), near, e - b.const(0.25) / e), x)


def cosh(b: Builder, x: PrimExpr) -> PrimExpr:
    size = b.magnitude(x)
    if b.of.bits == 32:
        total, difference, sine, cosine = _halves(b, size)
        half = b.let(total + b.fma(total, cosine, difference * sine), "half")
        return half + half
    e = _half_exp(b, size)
    return e + b.const(0.25) / e
