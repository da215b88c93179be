"""Exponentials and functions based on them: hyperbolic functions, sigmoid; and the error function."""

from __future__ import annotations

import math
from dataclasses import replace

from relayc.backend.vector_math.builder import Builder
from relayc.te.dtype import dtype
from relayc.te.tir import Call, Max, Min, PrimExpr, Select, Var

EXP_OF_EIGHTH = {
    32: (1.0, 0.5000645518302917, 0.16666898131370544),
    64: (1.0, 0.5000000000000818, 0.16666666666667918, 0.04166666647790582, 0.008333333308606944,
         0.0013890133012593193, 0.00019842748381296947),
}  # fmt: skip
"""expm1(r) / r on |r| <= ln(2)/16, in float64 on |r| <= 0.05"""
_COARSE_EXP_OF_QUARTER = (1.0, 0.17344923317432404, 0.015022988431155682)
"""2^(f/4) on |f| <= 1/2, with an error of 2^-15"""
_POWER_SLOPE, _POWER_START, _POWER_ADDED, _POWER_EXTRA = (
    0.34659267006326216, 0.3367850150746068, 0.7499643575113337, 0.11398104309157776,
)  # fmt: skip
"""2^(f + extra) = (v^2 + added)^2 + v, v = slope f + start, on 0 <= f <= 1, with an error of 2^-16: the best
approximation by three multiply-adds, found by linear programming; a polynomial of degree 3 has an error of 2^-13.7."""
_FAST_EXP_MOST = 64.5
"""Clamp of `fast_exp` arguments where the power of two would overflow: above the 64 up to which it is specified."""
# tanh(x) = x P(x^2) / Q(x^2) with an error of 2^-15, up to where it is 1 in float16
_COARSE_TANH_P = (0.9999679580156069, 0.10362492777165334, 0.0007095887304351945)
_COARSE_TANH_Q = (1.0, 0.4367474379309772, 0.013197110504837793)
_COARSE_TANH_REACH = 4.6
_HALF_REACH, _BRAIN_REACH = (-18.0, 12.0, 1.0), (-100.0, 100.0, 0.5)
"""(low, high, factor) for float16 and bfloat16: e^x is 0 below low, infinite above high and computed from e^(factor x),
for bfloat16 as a square."""
# (sinh(r) / r - 1) / r^2 and (cosh(r) - 1) / r^2 in r^2, to ln(2)/2
_SINH = {
    32: (0.1666666716337204, 0.00833317544311285, 0.00019974095630459487),
    64: (0.16666666666666677, 0.008333333333321376, 0.0001984126988686874, 2.7557243372677723e-06,
         2.5109357567084116e-08),
}  # fmt: skip
_COSH = {
    32: (0.5, 0.041666459292173386, 0.0013935428578406572),
    64: (0.5000000000000012, 0.04166666666651929, 0.0013888888946096123, 2.4801490822658967e-05,
         2.7630986282359766e-07),
}  # fmt: skip
_GELU_ROOT = (0.7864480018615723, -0.04847414419054985, -0.009474602527916431)
_GELU_ADDED = (0.27375075221061707, -0.018210923299193382, -1.000840663909912, -0.9974647760391235)
"""Coefficients of `fast_gelu` for 0 <= x <= 5.5, found by search and least squares."""
_GELU_REACH, _GELU_LEAST = 6.904, 2.4271413004428588e-11
"""The argument at which the 4th power of the polynomial is least, and an upper bound of that minimum."""
# erf(x) = x P(x^2) / Q(x^2) to 4, beyond which it is 1
_ERF_P = (1.2824761867523193, 0.21997691690921783, 0.060353368520736694, 0.004413599148392677, 0.000323411455610767,
          2.2579288270208053e-06)  # fmt: skip
_ERF_Q = (1.1365649700164795, 0.5738035440444946, 0.13110268115997314, 0.017283916473388672, 0.0013474320294335485,
          4.252772851032205e-05)  # fmt: skip

# float64: erf(x) / x - 1 in x^2 to 1, and e^(x^2) erfc(x) in 1 / (x + 5/2) from 1 to 6, beyond which erf(x) is 1
_ERF_NEAR = (0.12837916709551256, -0.3761263890318352, 0.11283791670944185, -0.02686617064311144, 0.005223977606118201,
             -0.0008548325929299105, 0.00012055293576377236, -1.4924712290815609e-05, 1.6447131419803634e-06,
             -1.6206312501505267e-07, 1.3710974567104329e-08, -7.779456921471641e-10)  # fmt: skip
_ERFC_FAR = (-4.8737517525736984e-05, 0.5666835005637173, 1.3526012441023727, 4.046951295135479, -0.6803415291182501,
             58.86204299550432, -193.10734252287307, 652.669735153297, -1289.0216875682, 1263.8143857041202,
             -498.4971193972685)  # fmt: skip

# float64: erf(x) / x on eight intervals of 3/4 from 0 on, as polynomials around their centres: each coefficient by
# interval, and what the first ones lack
_ERF_PIECE, _ERF_REACH = 0.75, 5.9999
_ERF_PIECES = (
    (1.0776450918261928, 0.7896784281792958, 0.5290613640907307, 0.3808741425767081, 0.2962957584351326,
     0.2424242411094786, 0.20512820512709468, 0.17777777777777745),
    (-0.2594460860807598, -0.41902619526980134, -0.26427495235547444, -0.14465762569555254, -0.08778755753906159,
     -0.05876950184715644, -0.042077580527845326, -0.03160493827160124),
    (-0.2884965799972178, 0.05419377062794647, 0.1074008128320359, 0.05395979180575651, 0.02599837641892218,
     0.014247105972988727, 0.008631298515965722, 0.005618655692708641),
    (0.1429876961160195, 0.09622983320606643, -0.021311850811121073, -0.018693091614550073, -0.007675790657034231,
     -0.0034537211162146645, -0.0017705226011794607, -0.0009988721230726552),
    (0.06292184384983901, -0.060672476509151696, -0.011172283039763458, 0.005058589641085598, 0.0022322674473769103,
     0.0008370278708272846, 0.00036318372366052, 0.0001775772661183736),
    (-0.04652398345908959, -0.000578850752926695, 0.012071928749182175, -0.00032027011023086257,
     -0.0006128869638278001, -0.00020256021466012473, -7.449849743036424e-05, -3.156929131432023e-05),
    (-0.009553791969068115, 0.014325054432047814, -0.004248928870903599, -0.0007339290406986231, 0.000138215727996172,
     4.867993929175574e-05, 1.5280666741622998e-05, 5.612317685612605e-06),
    (0.010919727647856217, -0.004193920156557808, -0.0003623813555789897, 0.0005389703380699122,
     -1.067541663482305e-05, -1.1384310424945799e-05, -3.133169899502875e-06, -9.977442331766875e-07),
    (0.000877824935997568, -0.001633192586807298, 0.0009562045433534177, -0.00019212407860334416,
     -1.3087658879424353e-05, 2.4211108988329586e-06, 6.413163083909619e-07, 1.7737532412931172e-07),
    (-0.0020100848648186994, 0.001131555337813865, -0.00031677225358781524, 1.505663502315495e-05,
     1.017861323686258e-05, -3.5750235278370413e-07, -1.3030920153893093e-07, -3.1531825794090716e-08),
    (2.591635772837751e-06, 1.9312194388389192e-05, -3.9142711607478014e-05, 2.243835040116212e-05,
     -4.379925237875429e-06, -4.239484361030554e-08, 2.576424840115523e-08, 5.604150956866546e-09),
    (0.00030422158464986994, -0.00017444842262996036, 6.019775966265049e-05, -1.2481877319635959e-05,
     1.1037455677612627e-06, 6.953173040154472e-08, -4.632516032480056e-09, -9.950076899805723e-10),
    (-1.887697010282248e-05, 2.912897286068492e-05, -1.2833046309101015e-05, 2.203622037906579e-06,
     -1.0985384684351813e-08, -3.80674262464266e-08, 5.691029178891393e-10, 1.7591407183765406e-10),
    (-3.897915921348245e-05, 1.7972082031907055e-05, -4.242810375226868e-06, 7.451358133389962e-07,
     -1.335403714950085e-07, 1.4325330214618135e-08, 7.888699907308816e-11, -3.061630545579368e-11),
    (4.032519529967569e-06, -5.9761575848128975e-06, 2.5509596261684224e-06, -5.254317847409322e-07,
     6.274114582589258e-08, -3.55246428091448e-09, -1.1356931740420247e-10, 5.038483443542456e-12),
    (4.1043352381464596e-06, -1.135105415986301e-06, -1.3152665905848865e-07, 9.00414232608691e-08,
     -1.1779407384665226e-08, 2.973625723252185e-10, 5.578387307237391e-11, -6.466733449071375e-13),
)  # fmt: skip
_ERF_LOW = (-3.726704100996145e-17, -1.7924721237936555e-18, -2.7174425744135254e-17, 1.0702959554128854e-17,
            -6.518999493769098e-18, -1.1338883054611495e-17, 9.834079495681254e-18, 7.70087680665516e-18)  # fmt: skip


def exp(b: Builder, x: PrimExpr) -> PrimExpr:
    if b.coarse and b.has_scaling():
        return _scaled_exp(b, x)
    if b.coarse and b.has_lookup():
        return _short_exp(b, x)
    t, r = b.reduce_exp(b.clamp(x, b.format.exp_low, b.format.exp_high), 2 * b.format.bias)
    first, second = b.split_power_of_two(t)
    return b.scaled_expm1(first, r, first) * second


def exp_nonpositive(b: Builder, x: PrimExpr) -> PrimExpr:
    """e^x for x <= 64, NaN for NaN; fastest for x <= 0, as softmax has it.

    Nothing overflows, so a single multiplication by a power of two suffices. At the least exponent that power is 0, and
    so is the result: rounding a vector with a denormal or underflowing lane takes processors more than twice as long,
    which masked elements of a softmax would cost every time.
    """
    if b.coarse and b.has_scaling():
        return _scaled_exp(b, x)
    x = b.let(Max(x, b.const(-b.format.bias * math.log(2))), "x")  # here 2^n is 0; NaN stays NaN
    if b.has_lookup() or b.has_wide_lookup():
        return _exp_by_eighths(b, x)
    t, r = b.reduce_exp(x, b.format.bias)
    power = b.let(b.power_of_two(t), "power")
    return b.scaled_expm1(power, r, power)


def fast_exp(b: Builder, x: PrimExpr) -> PrimExpr:
    """e^x with a relative error of 2^-15, for results rounded to float16; for x > 64 infinity, or a little above
    e^64."""
    b = replace(b, rounded=dtype("float16"))
    return exp_nonpositive(b, x if b.has_scaling() else b.let(Min(x, b.const(_FAST_EXP_MOST)), "x"))


def _scaled_exp(b: Builder, x: PrimExpr, factor: float = 1.0) -> PrimExpr:
    """e^(factor x) with a relative error of 2^-15, where `has_scaling`: scaling needs no clamp, even for infinities."""
    exponent = b.let(b.fma(x, factor / math.log(2), -_POWER_EXTRA), "exponent")
    v = b.let(b.fma(b.unary("fraction", exponent), _POWER_SLOPE, _POWER_START), "v")
    w = b.let(b.fma(v, v, _POWER_ADDED), "w")
    return Call(b.of, "scale_by_power", (b.fma(w, w, v), exponent))


def _exp_by_eighths(b: Builder, x: PrimExpr) -> PrimExpr:
    """e^x = 2^k 2^(j/8) e^r: the table of eighths shortens the polynomial by two terms."""
    if b.coarse:
        power, ratio = _coarse_exp(b, x)
        return power * ratio
    t, r = b.reduce_exp(x, 0, 1 / 8)
    power = b.let(b.power_of_two_fraction(t, 8), "power")
    return b.fma(b.polynomial(r, EXP_OF_EIGHTH[b.of.bits]), r * power, power)


def _short_exp(b: Builder, x: PrimExpr) -> PrimExpr:
    """e^x at low precision; for bfloat16 a square, which may overflow or be denormal."""
    assert b.rounded is not None
    is_half = b.rounded.element == "float16"
    low, high, factor = _HALF_REACH if is_half else _BRAIN_REACH
    power, ratio = _coarse_exp(b, b.clamp(x, low, high), factor)
    root = b.let(power * ratio, "root")
    return root if is_half else root * root


def _coarse_exp(b: Builder, x: PrimExpr, factor: float = 1.0) -> tuple[PrimExpr, PrimExpr]:
    """(p, q) with e^(factor x) = p q, for exponents in the range of float32: p is 2^(n/4)."""
    start, scale = b.const(b.format.magic), factor * 4 / math.log(2)
    t = b.let(b.fma(x, scale, start), "t")
    fraction = b.let(b.fma(x, scale, -b.let(t - start, "whole")), "fraction")
    return b.power_of_two_fraction(t, 4), b.polynomial(fraction, _COARSE_EXP_OF_QUARTER)


def exp2(b: Builder, x: PrimExpr) -> PrimExpr:
    f = b.format
    x = b.clamp(x, -float(f.bias + f.mantissa + 1), float(f.bias + 1))
    start = b.const(f.magic + 2 * f.bias)
    t = b.let(x + start, "t")
    r = b.let((x - (t - start)) * b.const(math.log(2)), "r")
    first, second = b.split_power_of_two(t)
    return b.scaled_expm1(first, r, first) * second


def expm1(b: Builder, x: PrimExpr) -> PrimExpr:
    t, r = b.reduce_exp(b.clamp(x, b.format.expm1_low, b.format.exp_high - 1.0), b.format.bias - 1)
    half_power = b.let(b.power_of_two(t), "p")
    tail = b.scaled_expm1(half_power, r, half_power - b.const(0.5)) * b.const(2.0)
    return b.with_sign_of(tail, x)  # the product maps -0 to 0


def tanh(b: Builder, x: PrimExpr) -> PrimExpr:
    """h / (h + 1), h = (e^2|x| - 1) / 2, with the sign of x; beyond 20 it is 1."""
    if b.coarse:
        x = b.clamp(x, -_COARSE_TANH_REACH, _COARSE_TANH_REACH)
        square = b.let(x * x, "square")
        return x * b.polynomial(square, _COARSE_TANH_P) / b.polynomial(square, _COARSE_TANH_Q)
    t, r = b.reduce_exp(b.let(Min(b.magnitude(x), b.const(20.0)), "x"), b.format.bias, 0.5)
    power = b.let(b.power_of_two(t), "p")
    half = b.let(b.scaled_expm1(power, r, b.fma(power, 0.5, -0.5), 0.5), "h")
    return b.with_sign_of(half / (half + b.const(1.0)), x)


def sigmoid(b: Builder, x: PrimExpr) -> PrimExpr:
    """e / (1 + e) below 0, else 1 / (1 + e), e = exp(-|x|)."""
    if b.coarse and b.has_scaling():
        return b.unary("fast_reciprocal", _scaled_exp(b, x, -1.0) + b.const(1.0))
    if b.coarse and b.has_lookup():  # e^-x from 0, at the least exponent, to infinity
        power, ratio = _coarse_exp(b, b.clamp(x, -(b.format.bias + 1) * math.log(2), b.format.bias * math.log(2)), -1.0)
        return b.unary("fast_reciprocal", b.fma(power, ratio, 1.0))
    e = b.let(exp_nonpositive(b, -b.magnitude(x)), "e")
    return Select(b.bits(x) < b.word(0), e, b.const(1.0)) / (e + b.const(1.0))


def erf(b: Builder, x: PrimExpr) -> PrimExpr:
    if b.has_wide_lookup():
        return b.with_sign_of(_erf_by_pieces(b, b.let(Min(b.magnitude(x), b.const(_ERF_REACH)), "size")), x)
    if b.of.bits == 64:
        size = b.let(Min(b.magnitude(x), b.const(6.0)), "size")
        square = b.let(size * size, "square")
        near = b.fma(size, b.polynomial(square, _ERF_NEAR), size)
        inverse = b.let(b.const(1.0) / (size + b.const(2.5)), "inverse")
        far = b.fma(-exp_nonpositive(b, -square), b.polynomial(inverse, _ERFC_FAR), 1.0)
        return b.with_sign_of(Select(size < b.const(1.0), near, far), x)
    square = b.let(Min(x * x, b.const(16.0)), "square")  # beyond 4 the ratio grows from 1 on
    ratio = x * b.polynomial(square, _ERF_P) / b.polynomial(square, _ERF_Q)
    return Min(Max(ratio, b.const(-1.0)), b.const(1.0))


def _erf_by_pieces(b: Builder, size: Var) -> PrimExpr:
    """erf(size) for sizes up to `_ERF_REACH`, from where it is 1."""
    t = b.let(b.fma(size, 1 / _ERF_PIECE, -0.5) + b.const(b.format.magic), "t")
    number = b.let(t - b.const(b.format.magic), "number")
    offset = b.let(size - b.fma(number, _ERF_PIECE, _ERF_PIECE / 2), "offset")
    index = b.let(b.bits(t), "index")
    first, *others = [b.lookup_float(index, coefficients) for coefficients in _ERF_PIECES]
    rest = b.fma(offset, b.polynomial(offset, others), b.lookup_float(index, _ERF_LOW))
    return Min(b.fma(size, first, size * rest), b.const(1.0))


def fast_gelu(b: Builder, x: PrimExpr) -> PrimExpr:
    """max(x, 0) - a Phi(-a), a = |x|, with the normal distribution function Phi accurate to 13 bits; from 6.9 on it is
    0.

    This costs less than the error function, which loses precision where it is close to -1. A root of Phi is close to a
    polynomial (so is its reciprocal: Abramowitz, Stegun, 7.1.28). Repeated squaring with added constants gives one of
    degree 32 in six multiply-adds, whose 4th power is as accurate as the 32nd power of one of degree 5.
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


def _halves(b: Builder, size: Var) -> tuple[Var, Var, PrimExpr, PrimExpr]:
    """(p + q, p - q, sinh(r), cosh(r) - 1), with p = 2^n / 4, q = 2^-n / 4, size = n ln(2) + r >= 0.

    One reduction serves half of e^size and half of e^-size: their sum is (p + q) cosh(r) + (p - q) sinh(r), their
    difference (p - q) cosh(r) + (p + q) sinh(r), both to be doubled; scaled by 2^n / 2, p would overflow first.
    """
    bias, mantissa = b.format.bias, b.format.mantissa
    t, r = b.reduce_exp(b.let(Min(size, b.const(b.format.exp_high - 0.5)), "x"), bias - 2)
    bits = b.let(b.exponent_bits(t), "bits")
    inverse = Max(b.word(2 * (bias - 2) << mantissa) - bits, b.word(0))  # 0 where it is negligible
    p, q, square = b.let(b.from_bits(bits), "p"), b.let(b.from_bits(inverse), "q"), b.let(r * r, "square")
    sine = b.fma(b.polynomial(square, _SINH[b.of.bits]), r * square, r)
    return b.let(p + q, "sum"), b.let(p - q, "difference"), sine, b.polynomial(square, _COSH[b.of.bits]) * square


def sinh(b: Builder, x: PrimExpr) -> PrimExpr:
    total, difference, sine, cosine = _halves(b, b.magnitude(x))
    half = b.let(difference + b.fma(total, sine, difference * cosine), "half")
    return b.with_sign_of(half + half, x)


def cosh(b: Builder, x: PrimExpr) -> PrimExpr:
    total, difference, sine, cosine = _halves(b, b.magnitude(x))
    half = b.let(total + b.fma(total, cosine, difference * sine), "half")
    return half + half
