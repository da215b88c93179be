"""Logarithms and functions based on them: inverse hyperbolic functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from relayc.backend.vector_math.builder import Builder
from relayc.te.tir import Cast, PrimExpr, Select, Var

# (log(1 + f) - f + f^2/2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1]
_LOG32 = (0.3333333134651184, -0.2499999701976776, 0.20000715553760529, -0.1666780263185501, 0.14249058067798615,
          -0.12425687164068222, 0.11685419827699661, -0.11479733884334564, 0.06971611827611923)  # fmt: skip
# (log((1 + s) / (1 - s)) - 2 s) / s^3 in s^2, s = f / (2 + f), for such f; and for 0 <= f <= 1
_LOG64 = (0.666666666666667, 0.39999999999899505, 0.28571428625975487, 0.2222221113479508, 0.18182889125261723,
          0.15331721600556042, 0.14616449685043406)  # fmt: skip
_LOG64_OF_FRACTION = (0.6666666666666631, 0.4000000000015622, 0.28571428547950795, 0.2222222396509703,
                      0.18181744051761273, 0.15386557842687737, 0.13300993897525296, 0.12105975893374807,
                      0.08340375589700545, 0.17018442538133632)  # fmt: skip
# (log(1 + x) - x) / x^2 on [0, 1]
_LOG1P = (-0.4999993145465851, 0.333304762840271, -0.24958248436450958, 0.19693760573863983, -0.15350909531116486,
          0.10673291236162186, -0.057595446705818176, 0.020169047638773918, -0.0033108105417340994)  # fmt: skip
# (log(1 + f) - f) / f^2 on [-0.056, 0.065], of float64 on [-0.0313, 0.0334]
_LOG_OF_PIECE = {
    32: (-0.49999943375587463, 0.3333406150341034, -0.2506967782974243, 0.19716960191726685),
    64: (-0.49999999999999667, 0.33333333333334964, -0.25000000004540557, 0.19999999989840095,
         -0.16666650114521014, 0.1428572856517408, -0.12522300639773049, 0.1111358807797086),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pieces:
    """A table of 8 or 16 equal intervals of the bits of mantissas from `start` to 2 `start`: 1/16 or 1/32 long below 1,
    twice as long above. Mantissas in an interval are close to 1 / inverse, whose logarithm is that of `logs`.

    The logs have few bits, so that adding them to a multiple of ln(2) is exact; the inverses are chosen so that nothing
    is left. In the neighbours of the interval around 1, the terms added to them are small: rounding errors there would
    be large relative to a logarithm close to 0.
    """

    start: float
    inverses: tuple[float, ...]
    logs: tuple[float, ...]


_NATURAL = Pieces(
    0.72,
    (1.333566665649414, 1.2237682342529297, 1.1325607299804688, 1.0434434413909912, 1.0, 0.8867082595825195,
     0.7998161315917969, 0.7224082946777344),
    tuple([n / 2.0**16 for n in (-18865, -13234, -8158, -2787, 0, 7880, 14639, 21310)]),
)  # fmt: skip
NATURAL64 = Pieces(
    0.734628,
    (1.3328837095863826, 1.2795856123298266, 1.2303861053641378, 1.1848299071438615, 1.1425267834780852,
     1.103140312428033, 1.066378885614548, 1.031399996771203, 1.0, 0.9407284626548245, 0.8884892688506468,
     0.8417465902965915, 0.7996762943580805, 0.7616111459371544, 0.7270051876925878, 0.6954073939675627),
    tuple([n / 2.0**40 for n in (-315938946330, -271069512190, -227959576369, -186476321059, -146501443187,
                         -107929097120, -70664171957, -33993710402, 0, 67180978025, 129998238645, 189419763903,
                         245793917014, 299418083673, 350548128647, 399405764623)]),
)  # fmt: skip
"""Logarithms above the interval around 1 exceed 1/32 but reduced arguments don't, so that rounding these hardly
matters."""
BINARY = {
    32: Pieces(
        0.71875,
        (1.326582908630371, 1.2302879095077515, 1.142250657081604, 1.0715739727020264, 1.0, 0.8828942179679871,
         0.803688108921051, 0.7301344871520996),
        tuple([n / 2.0**16 for n in (-26720, -19595, -12575, -6536, 0, 11776, 20663, 29738)]),
    ),
    64: Pieces(
        0.734628,
        (1.3328837115585126, 1.279585619739314, 1.2303861093946555, 1.1848299154967852, 1.1425267861344488,
         1.103140308040085, 1.0663788876119067, 1.0319885486129385, 1.0, 0.9407284629298434, 0.888489263515231,
         0.8417465882430963, 0.7996762914577232, 0.7616111445109346, 0.7270051881536211, 0.6954073914135065),
        tuple([n / 2.0**40 for n in (-455803553441, -391070650158, -328876155547, -269028474818, -211356909257,
                             -155708766873, -101946853422, -49947473030, 0, 96921663375, 187547823743,
                             273274957899, 354605670910, 431968987438, 505734045786, 576220721750)]),
    ),
}  # fmt: skip
"""Tables for logarithms to base 2, by the bits of their type."""
_FIFTEENTH_INVERSES = (1.0, 0.9375028271460906, 0.8823542140752954, 0.8333342064482471, 0.7894755774912866,
                        0.7500003925524652, 0.7142880791798234, 0.6818207059140232, 0.65217610327122,
                        0.6250010308576748, 0.6000016557052731, 0.5769232612174864, 0.5555573178248273,
                        0.5357143690343946, 0.517241920762021, 0.5000015427358449)  # fmt: skip
_FIFTEENTH_LOGS = (0.0, 0.06453550551962155, 0.12516170033637852, 0.18232050905660702, 0.23638637991147626,
                    0.28768154904863097, 0.33646892577494103, 0.38298855025572415, 0.42744065648337487,
                    0.4700019798748161, 0.5108228642610096, 0.5500460174756799, 0.5877834928224609,
                    0.624154153542136, 0.6592445820782379, 0.6931440950930157)  # fmt: skip
"""Approximate reciprocals of 1 + i/15 in float64, those whose logarithms are hardly rounded, and minus their
logarithms, for i to 15."""
_LOGS = {2.0: (1.0, 1.4426950408889634), 10.0: (0.3010299956639812, 0.4342944819032518)}
"""Base -> logarithms of 2 and e to it."""
_LARGE = {32: 1e9, 64: 1e17}
"""Above this argument, by the bits of its type, the inverse hyperbolic sine and cosine of x are log(2 x)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The interval of x = 2^n m; if it is the only one it has no `log`, and the inverse 1.

    `exponent` is n in the exponent field, and `n` a float, in intervals with a `log` times one unit of the exponent
    field.
    """

    exponent: PrimExpr
    n: PrimExpr
    m: PrimExpr
    inverse: PrimExpr
    log: PrimExpr | None = None

    def fraction(self, b: Builder) -> Var:
        """The reduced argument f, with m = (1 + f) / inverse."""
        return b.let(b.fma(self.m, self.inverse, -1.0), "f")

    def fraction_and_rest(self, b: Builder) -> tuple[Var, PrimExpr]:
        """(f, r), with log(m inverse) = log(1 + f) + r: r is about e (1 - f) for the rounding error e of 1 + f."""
        product = b.let(self.m * self.inverse, "product")
        f, e = b.let(product - b.const(1.0), "f"), b.let(b.fma(self.m, self.inverse, -product), "e")
        return f, b.fma(-e, f, e)


def piece(b: Builder, x: PrimExpr, pieces: Pieces | None) -> Piece:
    """The interval of a positive normal x if `pieces` is a table (see `natural_pieces`), else the only one."""
    if pieces is None:
        n, m = b.split_exponent(x)
        return Piece(b.in_exponent(n), b.let(Cast(b.of, n), "n"), m, b.const(1.0))
    exponent, m, index = b.split_parts(x, pieces.start, len(pieces.inverses))
    inverse, log = b.lookup_float(index, pieces.inverses), b.lookup_float(index, pieces.logs)
    return Piece(exponent, b.let(Cast(b.of, exponent), "n"), m, inverse, log)


def natural_pieces(b: Builder) -> Pieces | None:
    """The table of natural logarithms, if the target has an instruction that looks up in it."""
    return _NATURAL if b.has_lookup() else NATURAL64 if b.has_wide_lookup() else None


def _binary_pieces(b: Builder) -> Pieces | None:
    """The table of logarithms to base 2 in float64, if the target looks up in it; that of float32, for powers, is too
    coarse near 1."""
    return BINARY[64] if b.has_wide_lookup() else None


_LogOfPiece = Callable[[Builder, Piece], PrimExpr]
"""Logarithm of the x that an interval was found for."""


def _with_special_cases(b: Builder, x: PrimExpr, function: _LogOfPiece, pieces: Pieces | None = None) -> PrimExpr:
    """A logarithm of x, computed by `function`.

    Vectors with a zero, denormal, negative, infinite or NaN lane take a separate path, twice as long.
    """
    result = b.let(function(b, piece(b, x, pieces)), "result")
    rare = b.inner()
    rank, least = b.rank(x, b.format.smallest), b.format.smallest
    return b.likely_branch(rank, math.inf, result, rare.close(_log_of_any(rare, x, function)), above=least)


def _log_of_any(b: Builder, x: PrimExpr, function: _LogOfPiece) -> PrimExpr:
    mantissa, zero = b.format.mantissa, b.const(0.0)
    tiny = b.let(x < b.const(b.format.smallest), "tiny")
    at = piece(b, b.let(Select(tiny, x * b.const(2.0**mantissa), x), "normal"), None)
    n = b.let(at.n + Select(tiny, b.const(-mantissa), zero), "n")
    result = function(b, replace(at, n=n))
    outside = Select(b.is_zero(x), b.const(-math.inf), b.const(math.nan))
    return Select(x > zero, _finite_or_itself(b, x, result), outside)


def _finite_or_itself(b: Builder, x: PrimExpr, result: PrimExpr) -> PrimExpr:
    """`result` for finite x, x itself for infinity and NaN."""
    return Select(x < b.const(math.inf), result, x)


def _tail(b: Builder, f: PrimExpr, of_fraction: bool = False) -> PrimExpr:
    """log(1 + f) - f for a reduced f, or for 0 <= f <= 1 in float64."""
    square = b.let(f * f, "square")
    if b.of.bits == 32:
        return square * b.fma(f, b.polynomial(f, _LOG32), -0.5)
    half_square = b.let(square * b.const(0.5), "h")
    s = b.let(f / (f + b.const(2.0)), "s")
    square = b.let(s * s, "square")
    series = b.polynomial(square, _LOG64_OF_FRACTION if of_fraction else _LOG64)
    return b.fma(s, b.fma(square, series, half_square), -half_square)


def _natural(b: Builder, n: PrimExpr, f: Var, log: PrimExpr | None) -> PrimExpr:
    """n ln(2) + log(1 + f), and the logarithm of the interval if there are several."""
    high, low = b.format.ln2_high, b.format.ln2_low
    square = b.let(f * f, "square")
    if log is not None:
        whole = b.fma(n, high * b.format.unit, log)
        return whole + b.fma(b.polynomial(f, _LOG_OF_PIECE[b.of.bits]), square, b.fma(n, low * b.format.unit, f))
    if b.of.bits == 32:
        rest = b.fma(square, -0.5, n * b.const(low))  # independent of the polynomial, so computed in parallel with it
        return b.fma(n, high, f + b.fma(b.polynomial(f, _LOG32), square * f, rest))
    return b.fma(n, high, f + b.fma(n, low, _tail(b, f)))


def _in_base(b: Builder, at: Piece, base: float) -> PrimExpr:
    if at.log is not None:
        return _in_base_by_pieces(b, at, at.log, base)
    f, (of_two, whole) = at.fraction(b), _LOGS[base]
    # 1/ln(base) in two parts, the first with few bits, so that its product with a rounded f is exact.
    high = _truncated(whole, 8 if b.of.bits == 32 else 20)
    low = whole - high
    tail = b.let(_tail(b, f), "tail")
    fraction = b.fma(f, high, b.fma(tail, high, (f + tail) * b.const(low)))
    exponent = at.n if base == 2.0 else at.n * b.const(of_two)
    return exponent + fraction


def _in_base_by_pieces(b: Builder, at: Piece, log: PrimExpr, base: float) -> PrimExpr:
    """k log(2) + log(1 + f) + rest to a base; k, the logarithm to base 2 of the interval times 2^n, is exact."""
    of_two, of_e = _LOGS[base]
    k, (f, rest) = b.fma(at.n, b.format.unit, log), at.fraction_and_rest(b)
    coefficients = [of_e * c for c in _LOG_OF_PIECE[b.of.bits]]
    tail = b.fma(b.let(f * f, "square"), b.polynomial(f, coefficients), rest * b.const(of_e))
    fraction = b.fma(f, of_e, tail)
    return k + fraction if base == 2.0 else b.fma(k, of_two, fraction)


def _truncated(value: float, bits: int) -> float:
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.floor(mantissa * 2**bits), exponent - bits)


def log(b: Builder, x: PrimExpr) -> PrimExpr:
    return _with_special_cases(b, x, lambda b, at: _natural(b, at.n, at.fraction(b), at.log), natural_pieces(b))


def log2(b: Builder, x: PrimExpr) -> PrimExpr:
    return _with_special_cases(b, x, partial(_in_base, base=2.0), _binary_pieces(b))


def log10(b: Builder, x: PrimExpr) -> PrimExpr:
    return _with_special_cases(b, x, partial(_in_base, base=10.0), _binary_pieces(b))


def log1p(b: Builder, x: PrimExpr) -> PrimExpr:
    """log(1 + x). With 1 + x = 2^n (1 + f) / c, f is computed as 2^-n c x + (2^-n c - 1) with one rounding, without the
    rounding error of 1 + x."""
    u, least = b.let(x + b.const(1.0), "u"), b.format.smallest
    at = piece(b, u, natural_pieces(b))
    scale = b.let(b.from_bits(b.bits(at.inverse) - at.exponent), "scale")
    f = b.let(b.fma(x, scale, scale - b.const(1.0)), "f")
    result = b.let(b.with_sign_of(_natural(b, at.n, f, at.log), x), "result")
    rare = b.inner()
    return b.likely_branch(b.rank(u, least), 0.25 / least, result, rare.close(_log1p_of_any(rare, x)), above=least)


def _log1p_of_any(b: Builder, x: PrimExpr) -> PrimExpr:
    u = b.let(x + b.const(1.0), "u")
    n, _ = b.split_exponent(u)
    scale = b.let(b.from_bits(b.bits(b.const(4.0)) - b.in_exponent(n)), "scale")  # 4 * 2^-n: 2^-n may be denormal
    f = b.let(b.fma(x * b.const(0.25), scale, b.fma(scale, 0.25, -1.0)), "f")
    result = _finite_or_itself(b, x, _natural(b, b.let(Cast(b.of, n), "n"), f, None))
    outside = Select(b.is_zero(u), b.const(-math.inf), b.const(math.nan))
    return Select(b.unary("fabs", x) < b.const(1e-30), x, Select(u > b.const(0.0), result, outside))


def log1p_fraction(b: Builder, x: PrimExpr) -> PrimExpr:
    """log(1 + x) for 0 <= x <= 1, or NaN."""
    if b.has_wide_lookup():
        return _log1p_by_fifteenths(b, x)
    if b.of.bits == 64:
        return x + _tail(b, x, of_fraction=True)
    return b.fma(b.let(x * x, "square"), b.polynomial(x, _LOG1P), x)


def _log1p_by_fifteenths(b: Builder, x: PrimExpr) -> PrimExpr:
    """log(1 + x) from the multiple of 1/15 next to x."""
    index = b.let(b.bits(b.fma(x, 15.0, b.format.magic)), "index")
    inverse = b.let(b.lookup_float(index, _FIFTEENTH_INVERSES), "inverse")
    f = b.let(b.fma(x, inverse, inverse - b.const(1.0)), "f")
    tail = b.fma(b.let(f * f, "square"), b.polynomial(f, _LOG_OF_PIECE[64]), f)
    return b.lookup_float(index, _FIFTEENTH_LOGS) + tail


def _log_of_double(b: Builder, large: PrimExpr, size: PrimExpr, rest: PrimExpr) -> PrimExpr:
    """log(2 size) where `large`, else log(1 + rest)."""
    logarithm = log1p(b, b.let(Select(large, size, rest), "u"))
    return logarithm + Select(large, b.const(math.log(2)), b.const(0.0))


def asinh(b: Builder, x: PrimExpr) -> PrimExpr:
    size = b.magnitude(x)
    large = b.let(size > b.const(_LARGE[b.of.bits]), "large")
    square = b.let(size * size, "square")
    root = b.root(b.let(square + b.const(1.0), "sum"))
    return b.with_sign_of(_log_of_double(b, large, size, size + square / (root + b.const(1.0))), x)


def acosh(b: Builder, x: PrimExpr) -> PrimExpr:
    large = b.let(x > b.const(_LARGE[b.of.bits]), "large")
    t = b.let(x - b.const(1.0), "t")
    root = b.root(b.let(t * (t + b.const(2.0)), "product"))
    result = _log_of_double(b, large, x, t + root)
    return Select(x < b.const(1.0), b.const(math.nan), result)


def atanh(b: Builder, x: PrimExpr) -> PrimExpr:
    size = b.magnitude(x)
    u = b.let(size * b.const(2.0) / (b.const(1.0) - size), "u")
    return b.with_sign_of(log1p(b, u) * b.const(0.5), x)
