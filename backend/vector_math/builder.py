"""Expression builder in which the expansions of mathematical functions are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from relayc.te.dtype import DType, dtype
from relayc.te.tir import (
    Broadcast,
    Call,
    Cast,
    FloatImm,
    IntImm,
    Let,
    Max,
    Min,
    PrimExpr,
    Var,
    likely,
    make_const,
)

__all__ = ["Builder", "Format", "Instructions"]


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format and the constants that reductions in it use."""

    mantissa: int  # stored bits
    bias: int
    ln2_high: float  # ends in zero bits: a multiple by an exponent is exact
    ln2_low: float  # positive
    exp_low: float  # e^x underflows to 0 below,
    exp_high: float  # and overflows above, even when halved
    expm1_low: float  # e^x - 1 is -1 below
    smallest: float  # normal number
    exp: tuple[float, ...]  # (expm1(r) - r) / r^2 on |r| <= ln(2)/2

    @property
    def unit(self) -> float:
        """One unit of the exponent field, for integers that hold exponents in the exponent's bit position: 1 /
        2^mantissa."""
        return 2.0**-self.mantissa

    @property
    def magic(self) -> float:
        """Adding it rounds to an integer, which is then in the low bits."""
        return 1.5 * 2.0**self.mantissa


_FLOAT32 = Format(
    23, 127, 0.693145751953125, 1.42860682030941723e-6, -104.0, 90.0, -18.0, 2.0**-126,
    (0.5, 0.16666576266288757, 0.04166655242443085, 0.00836323294788599, 0.0013926250394433737),
)  # fmt: skip
_FLOAT64 = Format(
    52, 1023, 0.69314718036912381649, 1.9082149292705877000e-10, -746.0, 711.0, -40.0, 2.0**-1022,
    (0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326084, 0.0013888888888883711, 0.0001984126987500228,
     2.480158732567746e-05, 2.755725517000089e-06, 2.755727347871858e-07, 2.5105312729622103e-08,
     2.09147553258932e-09),
)  # fmt: skip
_COARSE_EXP = (0.5, 0.16749244928359985, 0.041832536458969116)
"""(expm1(r) - r) / r^2 on |r| <= ln(2)/2, with an error of 2^-15."""


def _powers(of: Format, bits: int, parts: int) -> list[int]:
    """Bits of 2^(j/parts) less (j << mantissa) // parts, the contribution of j when n = parts k + j is shifted to the
    exponent."""
    powers = np.array([2 ** (j / parts) for j in range(parts)], f"f{bits // 8}").view(f"i{bits // 8}")
    return [int(power) - (j << of.mantissa) // parts for j, power in enumerate(powers)]


_POWERS = {(32, 4): _powers(_FLOAT32, 32, 4), (32, 8): _powers(_FLOAT32, 32, 8), (64, 16): _powers(_FLOAT64, 64, 16)}
"""The tables of `Builder.power_of_two_fraction`, by the bits of their type and the number of parts."""


@dataclass(frozen=True, slots=True)
class Instructions:
    """Instructions of a target that expansions depend on.

    `fused`: `fma` rounds once, so it recovers rounding errors of products. `lookups`: vectors of a multiple of 8 words
    have an instruction that looks up each lane in a table of 8 words, `wide_lookups`: those of 8 words of 64 bits, in
    a table of 8 or 16, and they have "rsqrt_estimate" and "scale_by_power". `scaling`: vectors of a multiple of 16
    words have the instructions "fraction" and "scale_by_power".
    """

    fused: bool = False
    lookups: bool = False
    wide_lookups: bool = False
    scaling: bool = False


@dataclass
class Builder:
    """Builds arithmetic on values of one float type; `let` names values that are used more than once.

    `has` describes the target's instructions. `rounded` is the type of lower precision that results are rounded to
    before any addition or subtraction, if there is one.
    """

    of: DType
    has: Instructions
    rounded: DType | None = None
    lets: list[tuple[Var, PrimExpr]] = field(default_factory=list[tuple[Var, PrimExpr]])

    @property
    def format(self) -> Format:
        return _FLOAT64 if self.of.bits == 64 else _FLOAT32

    @property
    def coarse(self) -> bool:
        """Is a relative error of 2^-15 sufficient?"""
        return self.rounded is not None and self.rounded.bits == 16

    @property
    def words(self) -> DType:
        """The signed integer type of the same width and lanes."""
        return dtype(f"int{self.of.bits}").with_lanes(self.of.lanes)

    def wide(self) -> Builder:
        """A builder for float64 values that shares this one's list of definitions."""
        return Builder(dtype("float64").with_lanes(self.of.lanes), self.has, lets=self.lets)

    def inner(self) -> Builder:
        """A builder with a separate list of definitions, for values computed in one side of a branch only."""
        return Builder(self.of, self.has, self.rounded)

    def let(self, value: PrimExpr, name: str = "t") -> Var:
        var = Var(name, value.dtype)
        self.lets.append((var, value))
        return var

    def constant_of(self, x: PrimExpr) -> float | None:
        """The constant that a value, or the definition of a name, has in all lanes, or None."""
        value = next((value for var, value in self.lets if var is x), x)
        while isinstance(value, Broadcast | Cast):
            value = value.value
        return float(value.value) if isinstance(value, FloatImm | IntImm) else None

    def close(self, body: PrimExpr) -> PrimExpr:
        """`body` enclosed in all definitions."""
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

    def clamp(self, x: PrimExpr, low: float, high: float) -> Var:
        """x within [low, high]; NaN stays NaN."""
        return self.let(Min(Max(x, self.const(low)), self.const(high)), "x")

    def is_zero(self, x: PrimExpr) -> PrimExpr:
        equal: PrimExpr = x == self.const(0.0)
        return equal

    @property
    def unsigned(self) -> DType:
        """The unsigned integer type of the same width and lanes."""
        return dtype(f"uint{self.of.bits}").with_lanes(self.of.lanes)

    def rank(self, x: PrimExpr, above: float = 0.0) -> PrimExpr:
        """The bits of x as an unsigned integer, less those of `above`.

        Ranks are ordered as floats from `above` to infinity, then NaN; negative values and those below `above` rank
        highest.
        """
        bits = Call(self.unsigned, "reinterpret", (x,))
        return bits - Call(self.unsigned, "reinterpret", (self.const(above),)) if above else bits

    def likely_branch(
        self, rank: PrimExpr, limit: float, then: PrimExpr, otherwise: PrimExpr, above: float = 0.0
    ) -> PrimExpr:
        """Branch to all lanes of `then` if the `rank` of every lane is below that of `limit`, else to `otherwise`."""
        highest = Call(rank.dtype.element, "vector_reduce_max", (rank,)) if rank.dtype.lanes > 1 else rank
        scalar = Builder(self.of.element, self.has)
        is_below = likely(highest < scalar.rank(scalar.const(limit), above))
        return Call(then.dtype, "if_then_else", (is_below, then, otherwise))

    def polynomial(self, x: PrimExpr, coefficients: Sequence[PrimExpr | float]) -> PrimExpr:
        """c0 + c1 x + c2 x^2 + ..., by Estrin's scheme.

        Horner's rule is a chain of dependent multiply-adds; for a vector its latency is so long that the dependent
        instructions fill the processor's scheduler before the next vectors start.
        """
        return self._estrin(x, [c if isinstance(c, PrimExpr) else self.const(c) for c in coefficients])

    def _estrin(self, x: PrimExpr, terms: Sequence[PrimExpr]) -> PrimExpr:
        if len(terms) <= 3:
            result = terms[-1]
            for term in reversed(terms[:-1]):
                result = self.fma(result, x, term)
            return result
        last = len(terms) - 2 - len(terms) % 2
        pairs = [self.fma(terms[i + 1], x, terms[i]) for i in range(0, last, 2)]
        return self._estrin(self.let(x * x, "power"), [*pairs, self._estrin(x, terms[last:])])

    def odd(self, x: PrimExpr, coefficients: Sequence[float]) -> PrimExpr:
        """x + x^3 p(x^2)"""
        square = self.let(x * x, "square")
        return self.fma(x * square, self.polynomial(square, coefficients), x)

    def root(self, x: Var) -> PrimExpr:
        """The square root of 0 or a value between 1e-270 and 1e300, to 1 ulp, NaN of a negative one: by Goldschmidt's
        iteration where the processor has an estimate, which takes a quarter of an instruction's time in float64."""
        if not self.has_wide_lookup():
            return self.unary("sqrt", x)
        return self.refined_root(x, self.unary("rsqrt_estimate", x + self.const(self.format.smallest)), 1)

    def refined_root(self, x: Var, estimate: PrimExpr, steps: int) -> PrimExpr:
        """The square root of x from an estimate of its inverse, by steps of Goldschmidt's iteration and Markstein's
        correction (IBM Journal of Research and Development 34, 1990). From 14 bits of float64, the result of two steps
        is correctly rounded."""
        inverse = self.let(estimate, "estimate")
        root, half = self.let(x * inverse, "root"), self.let(inverse * self.const(0.5), "half")
        for _ in range(steps):
            error = self.let(self.fma(-root, half, 0.5), "error")
            root, half = self.let(self.fma(root, error, root), "root"), self.let(self.fma(half, error, half), "half")
        return self.fma(self.fma(-root, root, x), half, root)

    def bits(self, x: PrimExpr) -> PrimExpr:
        return Call(self.words, "reinterpret", (x,))

    def from_bits(self, x: PrimExpr) -> PrimExpr:
        return Call(self.of, "reinterpret", (x,))

    def with_sign_of(self, size: PrimExpr, x: PrimExpr) -> PrimExpr:
        """The non-negative `size` with the sign of `x`."""
        sign = Call(self.words, "bitwise_and", (self.bits(x), self.word(-1 << (self.of.bits - 1))))
        return self.from_bits(Call(self.words, "bitwise_or", (self.bits(size), sign)))

    def negated_by_sign_of(self, x: PrimExpr, by: PrimExpr) -> PrimExpr:
        """-x where the sign bit of `by` is set, else x."""
        sign = Call(self.words, "bitwise_and", (self.bits(by), self.word(-1 << (self.of.bits - 1))))
        return self.from_bits(Call(self.words, "bitwise_xor", (self.bits(x), sign)))

    # Exponents

    def reduce_exp(
        self, x: PrimExpr, offset: int, unit: float = 1.0, rest: PrimExpr | None = None
    ) -> tuple[Var, Var]:
        """(t, r) with x = unit n ln(2) + r, or x + `rest`; the low bits of t hold n + `offset`. `unit` is a power of
        two."""
        f = self.format
        start = f.magic + offset
        t = self.let(self.fma(x if rest is None else x + rest, 1 / (unit * math.log(2)), start), "t")
        whole = self.let(t - self.const(start), "whole")
        if self.coarse:
            return t, self.let(self.fma(whole, -unit * math.log(2), x), "r")
        r = self.fma(whole, -unit * f.ln2_low, self.fma(whole, -unit * f.ln2_high, x))
        return t, self.let(r if rest is None else r + rest, "r")

    def scaled_expm1(self, power: PrimExpr, r: PrimExpr, rest: PrimExpr, unit: float = 1.0) -> PrimExpr:
        """power unit (e^(r / unit) - 1) + rest, for an r reduced in this unit.

        Two terms of the series are added to `rest` first, in parallel with the polynomial of the remaining terms.
        """
        series = _COARSE_EXP if self.coarse else self.format.exp
        coefficients = [c / unit ** (i + 1) for i, c in enumerate(series)]
        return self.fma(self.polynomial(r, coefficients), self.let(r * r, "square") * power, self.fma(power, r, rest))

    def power_of_two(self, t: PrimExpr) -> PrimExpr:
        """2^n, with the biased exponent in the low bits of t."""
        return self.from_bits(self.exponent_bits(t))

    def has_lookup(self) -> bool:
        """Is `lookup` a single instruction for values of this type?"""
        return self.has.lookups and self.of.bits == 32 and self.of.lanes % 8 == 0

    def has_wide_lookup(self) -> bool:
        """Is `lookup` a single instruction for values of this type, which has 64 bits?"""
        return self.has.wide_lookups and self.of.bits == 64 and self.of.lanes % 8 == 0

    def has_scaling(self) -> bool:
        """Are "fraction" and "scale_by_power" single instructions for values of this type?"""
        return self.has.scaling and self.of.bits == 32 and self.of.lanes % 16 == 0

    def lookup(self, index: PrimExpr, words: Sequence[int]) -> PrimExpr:
        """Look up each lane in a table of 4 or 8 words, or 16 of 64 bits, indexed by the last bits of `index`."""
        return Call(self.words, "lookup", (index, *[make_const(self.words.element, word) for word in words]))

    def lookup_float(self, index: PrimExpr, values: Sequence[float]) -> PrimExpr:
        """Look up each lane in a table of 8 values, or 16 of float64, indexed by the last bits of `index`."""
        words = np.array(values, f"f{self.of.bits // 8}").view(f"i{self.of.bits // 8}")
        return self.from_bits(self.lookup(index, words.tolist()))

    def power_of_two_fraction(self, t: PrimExpr, parts: int) -> PrimExpr:
        """2^(n/parts) with n in the low bits of t, for 4 or 8 parts of float32, 16 of float64; requires a lookup."""
        n, bits = self.let(self.bits(t), "n"), parts.bit_length() - 1
        exponent = Call(self.words, "shift_left", (n, self.word(self.format.mantissa - bits)))
        return self.from_bits(exponent + self.lookup(n, _POWERS[self.of.bits, parts]))

    def exponent_bits(self, t: PrimExpr) -> PrimExpr:
        """The low bits of t, shifted to the exponent field."""
        return self.in_exponent(self.bits(t))

    def in_exponent(self, n: PrimExpr) -> PrimExpr:
        """An integer shifted to the exponent field."""
        return Call(self.words, "shift_left", (n, self.word(self.format.mantissa)))

    def split_power_of_two(self, t: PrimExpr) -> tuple[Var, PrimExpr]:
        """Two factors of 2^n, with n + 2 bias in the low bits of t: their product may be denormal or overflow."""
        bits = self.let(self.exponent_bits(t), "bits")
        word = Call(self.unsigned, "reinterpret", (bits,))
        halved = Call(self.unsigned, "shift_right", (word, make_const(self.unsigned, 1)))
        exponent = Call(self.words, "reinterpret", (halved,))
        half = self.let(Call(self.words, "bitwise_and", (exponent, self.word(-1 << self.format.mantissa))), "half")
        return self.let(self.from_bits(half), "power"), self.from_bits(bits - half)

    # Logarithms

    def split_exponent(self, x: PrimExpr) -> tuple[Var, PrimExpr]:
        """(e, m) with x = m 2^e, sqrt(1/2) <= m < sqrt(2), for positive normal x; e is an integer."""
        bits = self.let(self.bits(x), "bits")
        start = self.bits(self.const(math.sqrt(0.5)))
        e = self.let(Call(self.words, "shift_right", (bits - start, self.word(self.format.mantissa))), "e")
        return e, self.from_bits(bits - self.in_exponent(e))

    def split_parts(self, x: PrimExpr, start: float, parts: int) -> tuple[Var, PrimExpr, PrimExpr]:
        """(e, m, i) with x = m 2^e, start <= m < 2 start, for positive normal x; e is shifted to the exponent field.
        The last bits of i index the part of the interval that m is in, of 2^k `parts`."""
        bits, mantissa = self.let(self.bits(x), "bits"), self.format.mantissa
        above = self.let(bits - self.bits(self.const(start)), "above")
        e = self.let(Call(self.words, "bitwise_and", (above, self.word(-1 << mantissa))), "e")
        shift = self.word(mantissa - parts.bit_length() + 1)
        return e, self.from_bits(bits - e), self.let(Call(self.words, "shift_right", (above, shift)), "index")
