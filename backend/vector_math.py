"""Mathematical functions as arithmetic: polynomials in the loop IR, for scalars and vectors of any width.

A code generator without a vector library expands calls such as ``Call("exp", (x,))`` with these functions (see
`backend.lower_intrin`), so that no loop calls a scalar library function. Each function reduces its argument to a short
interval (Muller, *Elementary Functions*, ch. 8 and 11) and evaluates a minimax polynomial there; coefficients are
Chebyshev fits in 50 digits. NaN, infinities, zeros and denormals come out as IEEE 754 says, but for results of
exp_nonpositive and sigmoid that would be denormal: most of them are 0.

Largest error in units in the last place, found on dense samples (tests/backend/test_vector_math.py), with fused
multiply-add:

    float32   exp 1.2   exp_nonpositive 1.2   exp2 1.2   expm1 1.7   log 1.0   log2 1.0   log10 2.0   log1p 1.7
              pow 0.6   tanh 2.5   sigmoid 2.5   erf 5.5   sinh 2.5   cosh 2.5   sin 1.7   cos 1.7   tan 3.2
              asin 2.5   acos 1.7   atan 2.7   atan2 2.7   asinh 2.5   acosh 3.5   atanh 2.5   rsqrt 1.5
    float64   exp 1.2   exp_nonpositive 1.2   exp2 1.2   expm1 2.0   log 1.0   log2 1.2   log10 2.5   log1p 1.7
              tanh 2.7   sigmoid 3.0   sinh 3.5   cosh 2.5   rsqrt 1.5

Other functions of float64 are left to the C library. 16-bit floats are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from te.dtype import DType, dtype
from te.tir import Call, Cast, Let, Max, Min, PrimExpr, Select, Var, make_const
from te.tir.ops import all as all_of
from te.tir.ops import any as any_of

__all__ = ["EXPANSIONS", "Builder", "expand"]


@dataclass(frozen=True, slots=True)
class _Format:
    """A binary floating-point format and the constants that reductions in it use."""

    mantissa: int  # stored bits
    bias: int
    ln2_high: float  # ends in zero bits: a multiple by an exponent is exact
    ln2_low: float
    exp_low: float  # e^x is 0 below,
    exp_high: float  # infinite above, half of it too
    expm1_low: float  # e^x - 1 is -1 below
    smallest: float  # normal number
    exp: tuple[float, ...]  # (expm1(r) - r) / r^2 on |r| <= ln(2)/2

    @property
    def magic(self) -> float:
        """Adding it rounds to an integer, which is then in the low bits."""
        return 1.5 * 2.0**self.mantissa


_FLOAT32 = _Format(
    23, 127, 0.693359375, -2.12194440054690583e-4, -104.0, 90.0, -18.0, 2.0**-126,
    (0.5, 0.16666576266288757, 0.04166655242443085, 0.00836323294788599, 0.0013926250394433737),
)  # fmt: skip
_FLOAT64 = _Format(
    52, 1023, 0.69314718036912381649, 1.9082149292705877000e-10, -746.0, 711.0, -40.0, 2.0**-1022,
    (0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326084, 0.0013888888888883711, 0.0001984126987500228,
     2.480158732567746e-05, 2.755725517000089e-06, 2.755727347871858e-07, 2.5105312729622103e-08,
     2.09147553258932e-09),
)  # fmt: skip
# (log(1 + f) - f + f^2/2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1]
_LOG32 = (0.3333333134651184, -0.2499999701976776, 0.20000715553760529, -0.1666780263185501, 0.14249058067798615,
          -0.12425687164068222, 0.11685419827699661, -0.11479733884334564, 0.06971611827611923)  # fmt: skip
# (log((1 + s) / (1 - s)) - 2 s) / s^3 in s^2, s = f / (2 + f)
_LOG64 = (0.666666666666667, 0.39999999999899505, 0.28571428625975487, 0.2222221113479508, 0.18182889125261723,
          0.15331721600556042, 0.14616449685043406)  # fmt: skip
# (f(x) / x - 1) / x^2 in x^2: atan to 1, asin to 1/2, sin to pi/4, sinh to 1; cos: (cos(x) - 1 + x^2/2) / x^4
_ATAN = (-0.33333322405815125, 0.19998681545257568, -0.14257045090198517, 0.1086575910449028, -0.08009681850671768,
         0.04891432076692581, -0.02002674713730812, 0.003866738872602582)  # fmt: skip
_ASIN = (0.16666673123836517, 0.07498855143785477, 0.045001380145549774, 0.026554541662335396, 0.03808502480387688)
_SIN = (-0.166666641831398, 0.008332747034728527, -0.00019587638962548226)
_COS = (0.0416666641831398, -0.0013888301327824593, 2.4547689463361166e-05)
_SINH = (0.1666666716337204, 0.008333339355885983, 0.00019838102161884308, 2.806280235745362e-06)
# erf(x) = x P(x^2) / Q(x^2) to 4, beyond which it is 1
_ERF_P = (1.1283791065216064, 0.1935453861951828, 0.0531015545129776, 0.0038832789286971092, 0.00028455164283514023,
          1.9866249658662127e-06)  # fmt: skip
_ERF_Q = (1.0, 0.5048577189445496, 0.1153499186038971, 0.01520715095102787, 0.0011855300981551409,
          3.741776890819892e-05)  # fmt: skip
_TRIG_REACH = 2.0**48
_HALF_PI_LOW = 6.123233995736766e-17  # pi/2 - math.pi / 2


@dataclass
class Builder:
    """Arithmetic on values of one float type; `let` names values that are used more than once."""

    of: DType
    lets: list[tuple[Var, PrimExpr]] = field(default_factory=list[tuple[Var, PrimExpr]])

    @property
    def format(self) -> _Format:
        return _FLOAT64 if self.of.bits == 64 else _FLOAT32

    @property
    def words(self) -> DType:
        """Signed integers of the same width and lanes."""
        return dtype(f"int{self.of.bits}").with_lanes(self.of.lanes)

    def wide(self) -> Builder:
        """The same in float64; names go to the same list."""
        return Builder(dtype("float64").with_lanes(self.of.lanes), self.lets)

    def let(self, value: PrimExpr, name: str = "t") -> Var:
        var = Var(name, value.dtype)
        self.lets.append((var, value))
        return var

    def close(self, body: PrimExpr) -> PrimExpr:
        """`body` inside all definitions."""
        for var, value in reversed(self.lets):
            body = Let(var, value, body)
        return body

    def const(self, value: float) -> PrimExpr:
        return make_const(self.of, value)

    def word(self, value: int) -> PrimExpr:
        return make_const(self.words, value)

    def fma(self, a: PrimExpr, b: PrimExpr | float, c: PrimExpr | float) -> PrimExpr:
        """a * b + c"""
        b = b if isinstance(b, PrimExpr) else self.const(b)
        c = c if isinstance(c, PrimExpr) else self.const(c)
        return Call(self.of, "fma", (a, b, c))

    def unary(self, op: str, x: PrimExpr) -> PrimExpr:
        return Call(self.of, op, (x,))

    def magnitude(self, x: PrimExpr) -> Var:
        return self.let(self.unary("fabs", x), "size")

    def polynomial(self, x: PrimExpr, coefficients: Sequence[float]) -> PrimExpr:
        """c0 + c1 x + c2 x^2 + ..., by Horner's rule."""
        result = self.const(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            result = self.fma(result, x, c)
        return result

    def odd(self, x: PrimExpr, coefficients: Sequence[float]) -> PrimExpr:
        """x + x^3 p(x^2)"""
        square = self.let(x * x, "square")
        return self.fma(x * square, self.polynomial(square, coefficients), x)

    def bits(self, x: PrimExpr) -> PrimExpr:
        return Call(self.words, "reinterpret", (x,))

    def from_bits(self, x: PrimExpr) -> PrimExpr:
        return Call(self.of, "reinterpret", (x,))

    def with_sign_of(self, size: PrimExpr, x: PrimExpr) -> PrimExpr:
        """`size`, not negative, with the sign of `x`."""
        sign = Call(self.words, "bitwise_and", (self.bits(x), self.word(-1 << (self.of.bits - 1))))
        return self.from_bits(Call(self.words, "bitwise_or", (self.bits(size), sign)))

    def reduce_exp(self, x: PrimExpr, offset: int) -> tuple[Var, Var]:
        """(t, r) with x = n ln(2) + r; the low bits of t's are n + `offset`."""
        f = self.format
        start = f.magic + offset
        t = self.let(self.fma(x, 1 / math.log(2), start), "t")
        whole = self.let(t - self.const(start), "whole")
        return t, self.let(self.fma(whole, -f.ln2_low, self.fma(whole, -f.ln2_high, x)), "r")

    def exp_of_reduced(self, r: PrimExpr) -> PrimExpr:
        """e^r for a reduced r"""
        return self.polynomial(r, (1.0, 1.0, *self.format.exp))

    def expm1_of_reduced(self, r: PrimExpr) -> PrimExpr:
        """e^r - 1 for a reduced r"""
        return self.fma(r * r, self.polynomial(r, self.format.exp), r)

    def power_of_two(self, t: PrimExpr) -> PrimExpr:
        """2^n, whose biased exponent is in the low bits of t's."""
        return self.from_bits(self.exponent_bits(t))

    def exponent_bits(self, t: PrimExpr) -> PrimExpr:
        """The low bits of t's where a number has its exponent."""
        return Call(self.words, "shift_left", (self.bits(t), self.word(self.format.mantissa)))

    def scale(self, value: PrimExpr, t: PrimExpr) -> PrimExpr:
        """value * 2^n, n + 2 bias in the low bits of t's. In two steps, as the result may be denormal or overflow."""
        unsigned = dtype(f"uint{self.of.bits}").with_lanes(self.of.lanes)
        bits = self.let(self.exponent_bits(t), "bits")
        halved = Call(unsigned, "shift_right", (Call(unsigned, "reinterpret", (bits,)), make_const(unsigned, 1)))
        exponent = Call(self.words, "reinterpret", (halved,))
        half = self.let(Call(self.words, "bitwise_and", (exponent, self.word(-1 << self.format.mantissa))), "half")
        return value * self.from_bits(half) * self.from_bits(bits - half)

    def reduce_log(self, x: PrimExpr) -> tuple[PrimExpr, Var]:
        """(e, f) with x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); for positive finite x."""
        fmt = self.format
        tiny = self.let(x < self.const(fmt.smallest), "tiny")
        normal = self.let(Select(tiny, x * self.const(2.0**fmt.mantissa), x), "normal")
        bits = self.let(self.bits(normal), "bits")
        start = self.bits(self.const(math.sqrt(0.5)))
        e = self.let(Call(self.words, "shift_right", (bits - start, self.word(fmt.mantissa))), "e")
        m = self.from_bits(bits - Call(self.words, "shift_left", (e, self.word(fmt.mantissa))))
        f = self.let(m - self.const(1.0), "f")
        shift = Select(tiny, self.const(-fmt.mantissa), self.const(0.0))
        return self.let(Cast(self.of, e) + shift, "exponent"), f

    def log_tail(self, f: Var) -> PrimExpr:
        """log(1 + f) - f for a reduced f."""
        half_square = self.let(f * f * self.const(0.5), "h")
        if self.of.bits == 32:
            cube = f * f * f
            return self.fma(cube, self.polynomial(f, _LOG32), -half_square)
        s = self.let(f / (f + self.const(2.0)), "s")
        square = self.let(s * s, "square")
        rest = square * self.polynomial(square, _LOG64)
        return s * (half_square + rest) - half_square

    def log_specials(self, x: PrimExpr, result: PrimExpr) -> PrimExpr:
        """`result` for positive finite x; -inf at 0, NaN below, x itself at infinity and NaN."""
        special = Select(x < self.const(0.0), self.const(math.nan), Select(_is_zero(self, x), self.const(-math.inf), x))
        return Select(all_of(x > self.const(0.0), x < self.const(math.inf)), result, special)


def _is_zero(b: Builder, x: PrimExpr) -> PrimExpr:
    equal: PrimExpr = x == b.const(0.0)
    return equal


def _clamp(b: Builder, x: PrimExpr, low: float, high: float) -> Var:
    """x within [low, high]; NaN stays NaN."""
    return b.let(Min(Max(x, b.const(low)), b.const(high)), "x")


def exp(b: Builder, x: PrimExpr, shift: int = 0) -> PrimExpr:
    """e^x * 2^shift"""
    t, r = b.reduce_exp(_clamp(b, x, b.format.exp_low, b.format.exp_high), 2 * b.format.bias + shift)
    return b.scale(b.exp_of_reduced(r), t)


def exp_nonpositive(b: Builder, x: PrimExpr) -> PrimExpr:
    """e^x for x <= 0, or so little above as rounding makes a difference of equals, or NaN.

    Nothing overflows, so one multiplication by a power of two does. At the least exponent that power is 0 itself, and
    so is the result: a vector with one that has to be rounded to a denormal number or to 0 takes processors more than
    twice as long, which masked elements of a softmax would pay for every time.
    """
    f = b.format
    t, r = b.reduce_exp(b.let(Max(x, b.const(-f.bias * math.log(2))), "x"), f.bias)
    return b.exp_of_reduced(r) * b.power_of_two(t)


def exp2(b: Builder, x: PrimExpr) -> PrimExpr:
    f = b.format
    x = _clamp(b, x, -float(f.bias + f.mantissa + 1), float(f.bias + 1))
    start = b.const(f.magic + 2 * f.bias)
    t = b.let(x + start, "t")
    r = b.let((x - (t - start)) * b.const(math.log(2)), "r")
    return b.scale(b.exp_of_reduced(r), t)


def expm1(b: Builder, x: PrimExpr) -> PrimExpr:
    t, r = b.reduce_exp(_clamp(b, x, b.format.expm1_low, b.format.exp_high - 1.0), b.format.bias - 1)
    e, half_power = b.let(b.expm1_of_reduced(r), "e"), b.let(b.power_of_two(t), "p")
    tail = b.fma(half_power, e, half_power - b.const(0.5)) * b.const(2.0)
    # The product above turns -0 into 0.
    return Select(_is_zero(b, x), x, tail)


def log(b: Builder, x: PrimExpr) -> PrimExpr:
    return b.log_specials(x, _log_of_positive(b, x))


def _log_of_positive(b: Builder, x: PrimExpr) -> PrimExpr:
    e, f = b.reduce_log(x)
    tail = b.fma(e, b.format.ln2_low, b.log_tail(f))
    return b.fma(e, b.format.ln2_high, f + tail)


def log2(b: Builder, x: PrimExpr) -> PrimExpr:
    return _log_in_base(b, x, 2.0)


def log10(b: Builder, x: PrimExpr) -> PrimExpr:
    return _log_in_base(b, x, 10.0)


def _log_in_base(b: Builder, x: PrimExpr, base: float) -> PrimExpr:
    e, f = b.reduce_log(x)
    # 1/ln(base) in two parts, the first with few bits, so that its product with a rounded f is exact.
    whole = 1 / math.log(base)
    high = _truncated(whole, 8 if b.of.bits == 32 else 20)
    low = whole - high
    tail = b.let(b.log_tail(f), "tail")
    fraction = b.fma(f, high, b.fma(tail, high, (f + tail) * b.const(low)))
    exponent = e if base == 2.0 else e * b.const(math.log(2) / math.log(base))
    return b.log_specials(x, exponent + fraction)


def _truncated(value: float, bits: int) -> float:
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.floor(mantissa * 2**bits), exponent - bits)


def log1p(b: Builder, x: PrimExpr) -> PrimExpr:
    u = b.let(x + b.const(1.0), "u")
    # What rounding u lost, to first order.
    lost = (x - (u - b.const(1.0))) / u
    result = b.log_specials(u, _log_of_positive(b, u) + lost)
    return Select(_is_zero(b, x), x, result)


def tanh(b: Builder, x: PrimExpr) -> PrimExpr:
    """h / (h + 1), h = (e^2|x| - 1) / 2, with the sign of x; beyond 20 it is 1."""
    size = b.magnitude(x)
    t, r = b.reduce_exp(b.let(Min(size, b.const(20.0)) * b.const(2.0), "x"), b.format.bias - 1)
    half_power = b.let(b.power_of_two(t), "p")
    half = b.let(b.fma(half_power, b.expm1_of_reduced(r), half_power - b.const(0.5)), "h")
    return b.with_sign_of(half / (half + b.const(1.0)), x)


def sigmoid(b: Builder, x: PrimExpr) -> PrimExpr:
    """e / (1 + e) below 0, else 1 / (1 + e), e = exp(-|x|)."""
    e = b.let(exp_nonpositive(b, -b.magnitude(x)), "e")
    return Select(b.bits(x) < b.word(0), e, b.const(1.0)) / (e + b.const(1.0))


def erf(b: Builder, x: PrimExpr) -> PrimExpr:
    square = b.let(Min(x * x, b.const(16.0)), "square")  # beyond 4 the ratio grows from 1 on
    ratio = x * b.polynomial(square, _ERF_P) / b.polynomial(square, _ERF_Q)
    return Min(Max(ratio, b.const(-1.0)), b.const(1.0))


def sinh(b: Builder, x: PrimExpr) -> PrimExpr:
    size = b.magnitude(x)
    if b.of.bits == 32:
        near, limit = b.odd(size, _SINH), 1.0
    else:
        t = b.let(expm1(b, Min(size, b.const(30.0))), "t")
        near, limit = (t + t / (t + b.const(1.0))) * b.const(0.5), 20.0
    e = b.let(exp(b, size, -1), "e")
    far = e - b.const(0.25) / e
    return b.with_sign_of(Select(size < b.const(limit), near, far), x)


def cosh(b: Builder, x: PrimExpr) -> PrimExpr:
    e = b.let(exp(b, b.magnitude(x), -1), "e")
    return e + b.const(0.25) / e


def _reduce_trig(b: Builder, x: PrimExpr) -> tuple[Var, Var, Var]:
    """(n mod 4, sin(r), cos(r)) with x = n pi/2 + r. The reduction is done in float64; see `_TRIG_REACH`."""
    w = b.wide()
    wide = w.let(Cast(w.of, x), "wide")
    t = w.let(w.fma(wide, 2 / math.pi, w.format.magic), "t")
    n = w.let(t - w.const(w.format.magic), "n")
    r = w.fma(n, -_HALF_PI_LOW, w.fma(n, -math.pi / 2, wide))
    quadrant = b.let(Call(b.words, "bitwise_and", (Cast(b.words, w.bits(t)), b.word(3))), "quadrant")
    r = b.let(Cast(b.of, r), "r")
    square = b.let(r * r, "square")
    sine = b.let(b.fma(r * square, b.polynomial(square, _SIN), r), "sine")
    tail = b.fma(square * square, b.polynomial(square, _COS), square * b.const(-0.5))
    return quadrant, sine, b.let(tail + b.const(1.0), "cosine")


def sin(b: Builder, x: PrimExpr) -> PrimExpr:
    return _sine(b, x, 0)


def cos(b: Builder, x: PrimExpr) -> PrimExpr:
    return _sine(b, x, 1)


def _sine(b: Builder, x: PrimExpr, turns: int) -> PrimExpr:
    quadrant, sine, cosine = _reduce_trig(b, x)
    quarter = b.let(quadrant + b.word(turns), "quarter") if turns else quadrant
    odd = Call(b.words, "bitwise_and", (quarter, b.word(1)))
    sign = Call(b.words, "shift_left", (Call(b.words, "bitwise_and", (quarter, b.word(2))), b.word(30)))
    chosen = Select(odd == b.word(0), sine, cosine)
    result = b.from_bits(Call(b.words, "bitwise_xor", (b.bits(chosen), sign)))
    return result if turns else Select(_is_zero(b, x), x, result)


def tan(b: Builder, x: PrimExpr) -> PrimExpr:
    quadrant, sine, cosine = _reduce_trig(b, x)
    even = b.let(Call(b.words, "bitwise_and", (quadrant, b.word(1))) == b.word(0), "even")
    return Select(_is_zero(b, x), x, Select(even, sine, -cosine) / Select(even, cosine, sine))


def asin(b: Builder, x: PrimExpr) -> PrimExpr:
    near, far, is_near = _arcs(b, x)
    return b.with_sign_of(Select(is_near, near, b.fma(far, -2.0, math.pi / 2)), x)


def acos(b: Builder, x: PrimExpr) -> PrimExpr:
    near, far, is_near = _arcs(b, x)
    quarter = b.const(math.pi / 2)
    negative = b.let(x < b.const(0.0), "negative")
    inner = quarter - b.with_sign_of(near, x)
    outer = Select(negative, b.fma(far, -2.0, math.pi), far * b.const(2.0))
    return Select(is_near, inner, outer)


def _arcs(b: Builder, x: PrimExpr) -> tuple[Var, Var, Var]:
    """(asin(|x|), asin(sqrt((1 - |x|) / 2)), |x| <= 1/2): each right where it is wanted."""
    size = b.magnitude(x)
    is_near = b.let(size <= b.const(0.5), "near")
    rest = b.unary("sqrt", (b.const(1.0) - size) * b.const(0.5))
    arc = b.let(Select(is_near, size, rest), "arc")
    value = b.let(b.odd(arc, _ASIN), "value")
    return value, value, is_near


def atan(b: Builder, x: PrimExpr) -> PrimExpr:
    size = b.magnitude(x)
    steep = b.let(size > b.const(1.0), "steep")
    t = b.let(Select(steep, b.const(1.0) / size, size), "t")
    angle = b.let(b.odd(t, _ATAN), "angle")
    return b.with_sign_of(Select(steep, b.const(math.pi / 2) - angle, angle), x)


def atan2(b: Builder, y: PrimExpr, x: PrimExpr) -> PrimExpr:
    """The angle of (x, y), in (-pi, pi]."""
    width, height = b.let(b.unary("fabs", x), "width"), b.let(b.unary("fabs", y), "height")
    steep = b.let(height > width, "steep")
    small, large = b.let(Min(width, height), "small"), b.let(Max(width, height), "large")
    flat = any_of(_is_zero(b, large), all_of(small == b.const(math.inf), large == b.const(math.inf)))
    ratio = Select(flat, Select(_is_zero(b, large), b.const(0.0), b.const(1.0)), small / large)
    angle = b.let(b.odd(b.let(ratio, "ratio"), _ATAN), "angle")
    angle = b.let(Select(steep, b.const(math.pi / 2) - angle, angle), "angle")
    behind = b.bits(x) < b.word(0)
    return b.with_sign_of(Select(behind, b.const(math.pi) - angle, angle), y)


def asinh(b: Builder, x: PrimExpr) -> PrimExpr:
    size = b.magnitude(x)
    large = b.let(size > b.const(1e9), "large")
    square = b.let(size * size, "square")
    root = b.unary("sqrt", square + b.const(1.0))
    near = b.let(log1p(b, b.let(size + square / (root + b.const(1.0)), "u")), "near")
    return b.with_sign_of(Select(large, log(b, size) + b.const(math.log(2)), near), x)


def acosh(b: Builder, x: PrimExpr) -> PrimExpr:
    large = b.let(x > b.const(1e9), "large")
    t = b.let(x - b.const(1.0), "t")
    near = log1p(b, b.let(t + b.unary("sqrt", t * (t + b.const(2.0))), "u"))
    result = Select(large, log(b, x) + b.const(math.log(2)), near)
    return Select(x < b.const(1.0), b.const(math.nan), result)


def atanh(b: Builder, x: PrimExpr) -> PrimExpr:
    size = b.magnitude(x)
    u = b.let(size * b.const(2.0) / (b.const(1.0) - size), "u")
    return b.with_sign_of(log1p(b, u) * b.const(0.5), x)


def rsqrt(b: Builder, x: PrimExpr) -> PrimExpr:
    return b.const(1.0) / b.unary("sqrt", x)


def pow(b: Builder, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """x^y, through float64: the logarithm needs more bits than float32 has."""
    w = b.wide()
    base, power = w.let(Cast(w.of, x), "base"), w.let(Cast(w.of, y), "power")
    size = w.magnitude(base)
    logarithm = w.let(log2(w, size), "logarithm")
    exponent = Select(_is_zero(w, logarithm), w.const(0.0), power * logarithm)
    result = w.let(exp2(w, Select(_is_zero(w, power), w.const(0.0), exponent)), "result")
    whole = w.let(w.unary("trunc", power) == power, "whole")
    half = w.let(power * w.const(0.5), "half")
    is_odd = all_of(whole, w.unary("trunc", half) != half)
    negative = w.let(w.bits(base) < w.word(0), "negative")
    signed = w.let(Select(all_of(negative, is_odd), -result, result), "signed")
    undefined = all_of(base < w.const(0.0), base > w.const(-math.inf), _not(whole))
    return Cast(b.of, Select(undefined, w.const(math.nan), signed))


def _not(condition: PrimExpr) -> PrimExpr:
    return ~condition


EXPANSIONS: dict[str, Callable[..., PrimExpr]] = {
    f.__name__: f
    for f in (exp, exp_nonpositive, exp2, expm1, log, log2, log10, log1p, tanh, sigmoid, erf, sinh, cosh, sin, cos,
              tan, asin, acos, atan, atan2, asinh, acosh, atanh, rsqrt, pow)
}  # fmt: skip
"""Intrinsic -> function of (builder, operands...)."""

_FLOAT64_TOO = {
    "exp", "exp_nonpositive", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "sinh", "cosh",
    "rsqrt",
}  # fmt: skip


def expand(call: Call) -> PrimExpr:
    """A call of a function of `EXPANSIONS` as arithmetic; the call itself when its type has no expansion."""
    of = call.dtype
    through = dtype("float32").with_lanes(of.lanes) if of.bits == 16 else of
    if not through.is_float or through.bits < 32 or (through.bits == 64 and call.op not in _FLOAT64_TOO):
        return call
    b = Builder(through)
    operands = [b.let(a if a.dtype == through else Cast(through, a), "x") for a in call.args]
    result = EXPANSIONS[call.op](b, *operands)
    if call.op in ("sin", "cos", "tan"):
        # Beyond the reduction's reach, for any lane, all lanes go to the C library.
        is_far = Cast(b.words, b.unary("fabs", operands[0]) > b.const(_TRIG_REACH))
        any_far = Call(b.words.element, "vector_reduce_max", (is_far,)) > make_const(b.words.element, 0)
        result = Call(through, "if_then_else", (any_far, Call(through, call.op, (operands[0],)), result))
    return b.close(result if of == through else Cast(of, result))
