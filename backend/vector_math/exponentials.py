"""Exponentials and functions based on them: hyperbolic functions, sigmoid; and the error function."""

from __future__ import annotations

import math
from dataclasses import replace

from relayc.backend.vector_math.builder import Builder
from relayc.te.dtype import dtype
from relayc.te.tir import Call, Max, Min, PrimExpr, Select, Var

PARTS = {32: 8, 64: 16}
"""Parts of an octave whose powers of two are looked up, by the bits of their type."""
_EXP_OF_PART = {
    32: (1.0, 0.5000645518302917, 0.16666898131370544),
    64: (1.0, 0.5000000000000007, 0.1666666666404857, 0.04166666665854942, 0.008333482870477204,
         0.0013889147402793487),
}  # fmt: skip
"""expm1(r) / r on |r| <= ln(2)/16, in float64 on |r| <= 0.0225"""
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

# float64: erf around multiples of an interval's length, as polynomials in the distance: each coefficient by multiple
_ERF_PIECE, _ERF_REACH = 0.3827742375433445, 5.93
_ERF_PIECES = (
    (0.0, 0.41171607605810306, 0.7210357669327286, 0.8956185471844821, 0.9696351340896128, 0.9932028518531769,
     0.9988375912363928, 0.9998489103621163, 0.9999851293801298, 0.9999988948144846, 0.9999999381073496,
     0.9999999973924302, 0.9999999999174584, 0.9999999999980389, 0.999999999999965, 0.9999999999999996),
    (1.1283791670955126, 0.9745944148573515, 0.6279578515878079, 0.3018386081040675, 0.10823227864213865,
     0.028951864133901946, 0.0057774205257360945, 0.0008600607843115991, 9.551289955875035e-05,
     7.912844494417004e-06, 4.890361347273838e-07, 2.2546907715853263e-08, 7.754802509615071e-10,
     1.9897211433061934e-11, 3.8084775986857536e-13, 5.438114078395131e-15),
    (3.1417843073971695e-17, -0.37304963406102387, -0.48073217570176024, -0.34660812923453654, -0.1657141117392934,
     -0.055410138596564136, -0.013268686420235475, -0.002304463776690603, -0.0002924790184332305,
     -2.7259497163347838e-05, -1.8719043360148475e-06, -9.493412950879568e-08, -3.5620063414620157e-09,
     -9.900981915618238e-11, -2.0409019522085297e-12, -3.1223549529057426e-14),
    (-0.3761263890318471, -0.22966894545686564, 0.03602990549292601, 0.16473245542027212, 0.13307215450913631,
     0.061047957133546556, 0.018389838468918895, 0.003829730108894847, 0.0005652473442970069,
     5.9967784622564014e-05, 4.613766321511633e-06, 2.589655171041563e-07, 1.0649060687932874e-08,
     3.218204673109745e-10, 7.1642946041371965e-12, 1.1770300301183671e-13),
    (1.006882425768227e-12, 0.16830555576216155, 0.14645273896367425, 0.020953033045160444, -0.046635147714690545,
     -0.039948916914602874, -0.016694573722008377, -0.0043625724862688025, -0.0007679554788071645,
     -9.420705460844804e-05, -8.206186317339121e-06, -5.13544596064448e-07, -2.3269781056718414e-08,
     -7.676965225035857e-10, -1.8515851173400783e-11, -3.274947298439748e-13),
    (0.11283791665653917, 0.04313147135730271, -0.05565563997975913, -0.059044074169740945, -0.011360473388828058,
     0.012268445302926045, 0.00981965500497715, 0.003526745964198488, 0.0007710772300484881, 0.00011182578554387393,
     1.1180336965652992e-05, 7.872255495117921e-07, 3.955922661531628e-08, 1.4314965402105956e-09,
     3.754006961115053e-11, 7.168270874174532e-13),
    (1.6221961389943723e-09, -0.05038468680423291, -0.024851700322244295, 0.01701307495725192, 0.018234034801895012,
     0.0028263031895375316, -0.0030655355955654592, -0.0019865248320075747, -0.0005822745349689637,
     -0.00010329020799550994, -1.2076833546745562e-05, -9.679302099936686e-07, -5.436373888097472e-08,
     -2.169687797358077e-09, -6.211951807421301e-11, -1.2845831510989221e-12),
    (-0.02686620187631276, -0.004759127243703562, 0.018687102046111213, 0.008476260710824572,
     -0.0052717170685403734, -0.0044665404199908006, -0.0003264563858162104, 0.0006810799861035991,
     0.00032584945957678187, 7.504091197280672e-05, 1.0545729344334847e-05, 9.76991817115313e-07,
     6.192686893731588e-08, 2.7439352138020326e-09, 8.617626014185948e-11, 1.9367769611113447e-12),
    (3.942426073041159e-07, 0.01125212966871676, 0.0017488965581113935, -0.006079026715961282,
     -0.001889417626821242, 0.0015314587768144581, 0.0008443396383074186, -3.054079643030021e-05,
     -0.0001246805105630417, -4.249478703807524e-05, -7.503687901046744e-06, -8.209949797679547e-07,
     -5.9462423074787476e-08, -2.948546245303349e-09, -1.0213871488853979e-10, -2.5047475083609615e-12),
    (0.005220663542754781, -3.1550488089441315e-05, -0.003930784687191525, -9.715167351007911e-05,
     0.0016678590329802826, 0.0002172545097649843, -0.00036744700071418703, -0.00011426491232119011,
     2.148480980629812e-05, 1.7942371362426164e-05, 4.332253964790517e-06, 5.781184004336183e-07,
     4.8631008009299776e-08, 2.7243784980967033e-09, 1.0470762351070197e-10, 2.8121843846682295e-12),
    (1.840263114311401e-05, -0.0019976990524692164, 0.000290817563787859, 0.0011029143672563948,
     -0.00017475911763047033, -0.00035539528124901924, 1.8654037480529905e-05, 6.665857119922127e-05,
     9.00997888702869e-06, -4.806923057780035e-06, -1.9826755965210643e-06, -3.409400227378585e-07,
     -3.4113824295476816e-08, -2.1880182060746716e-09, -9.411295479033464e-11, -2.7857936808804824e-12),
    (-0.0009197909050879679, 0.00014000406928637435, 0.0005947557828906984, -0.00020850217432008387,
     -0.00022288849630869103, 8.586370754947771e-05, 5.240124772898121e-05, -1.3370027102348319e-05,
     -8.552915611947059e-06, 3.2128313763893506e-08, 6.685026156460761e-07, 1.6853112272847725e-07,
     2.1061360646679524e-08, 1.5931157476402624e-09, 7.846223245000542e-11, 2.611793407222199e-12),
    (0.00013259281270053893, 0.0002886793310946858, -0.00011787486564055836, -0.0001250100099111502,
     8.191656658428359e-05, 2.6002913238380022e-05, -2.2492362973555063e-05, -4.0579934069130684e-06,
     2.948271560976088e-06, 6.976406425074126e-07, -1.2389310085934807e-07, -6.546100678219382e-08,
     -1.0766152855399943e-08, -9.726857875675078e-10, -5.485713796684811e-11, -2.041593953539353e-12),
)  # fmt: skip
"""The length has 28 bits, so that distances are exact, and is one for which the first two coefficients are hardly
rounded where erf is small."""


def exp(b: Builder, x: PrimExpr) -> PrimExpr:
    if b.coarse and b.has_scaling():
        return _scaled_exp(b, x)
    if b.coarse and b.has_lookup():
        return _short_exp(b, x)
    x = b.clamp(x, b.format.exp_low, b.format.exp_high)
    if b.has_wide_lookup():
        return _exp_by_scaling(b, x)
    t, r = b.reduce_exp(x, 2 * b.format.bias)
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
        return _exp_by_parts(b, x)
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


def _exp_by_parts(b: Builder, x: PrimExpr) -> PrimExpr:
    """e^x where 2^(j/8), of float64 2^(j/16), is looked up, which shortens the polynomial by two terms."""
    if b.coarse:
        power, ratio = _coarse_exp(b, x)
        return power * ratio
    return exp_of_sum(b, x)


def _exp_by_scaling(b: Builder, x: PrimExpr) -> PrimExpr:
    """e^x of any size in float64, by powers of 2^(1/16) that are looked up and an instruction that scales."""
    parts = PARTS[64]
    t, r = b.reduce_exp(x, 0, 1 / parts)
    root = b.let(b.lookup_float(b.bits(t), [2 ** (j / parts) for j in range(parts)]), "root")
    exponent = (t - b.const(b.format.magic)) * b.const(1 / parts)
    return Call(b.of, "scale_by_power", (b.fma(b.polynomial(r, _EXP_OF_PART[64]), r * root, root), exponent))


def exp_of_sum(b: Builder, x: PrimExpr, rest: PrimExpr | None = None) -> PrimExpr:
    """e^x, or e^(x + rest) with a small rest, where it is normal; requires a lookup."""
    parts = PARTS[b.of.bits]
    t, r = b.reduce_exp(x, 0, 1 / parts, rest)
    power = b.let(b.power_of_two_fraction(t, parts), "power")
    return b.fma(b.polynomial(r, _EXP_OF_PART[b.of.bits]), r * power, power)


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
    t = b.let(b.fma(size, 1 / _ERF_PIECE, b.format.magic), "t")
    offset = b.let(b.fma(t - b.const(b.format.magic), -_ERF_PIECE, size), "offset")
    first, second, *others = [b.lookup_float(b.bits(t), coefficients) for coefficients in _ERF_PIECES]
    return b.fma(offset, b.fma(offset, b.polynomial(offset, others), second), first)


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
