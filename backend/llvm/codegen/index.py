"""Index arithmetic.

An index is computed in 64 bits: the loop IR has it in int32, but an index never overflows, so widening preserves the
meaning and LLVM needs no proof to address memory with it. It is kept as ``value + constant``, so that the elements of a
register tile share one address and differ by a displacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, NamedTuple

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.types import register_type
from relayc.te.ir.visitor import Visitor
from relayc.te.tir import (
    Add,
    Broadcast,
    Cast,
    Div,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Max,
    Min,
    Mod,
    Mul,
    PrimExpr,
    Ramp,
    SizeVar,
    Sub,
    Var,
)
from relayc.te.tir.analysis import free_variables

__all__ = ["Index", "IndexEmitter", "is_nonnegative"]

_ARITHMETIC = (Add, Sub, Mul, FloorDiv, FloorMod, Div, Mod, Min, Max)


class Index(NamedTuple):
    """``value + constant`` in 64 bits; without a `value` it is the constant. `factor` divides the value (0: it is
    0)."""

    value: str | None
    constant: int
    factor: int = 1

    @property
    def multiple(self) -> int:
        """A divisor of the whole index; 0 when the index is 0."""
        return gcd(self.factor if self.value is not None else 0, self.constant)


class IndexEmitter(Visitor[str]):
    """Emits values (`visit`, see expr.py) and scalar indices (`index`)."""

    text: FunctionText

    def __init__(self, text: FunctionText) -> None:
        self.text = text
        self.env: dict[Var, str] = {}
        """Variable -> operand that holds its value."""
        self.wide: dict[Var, Index] = {}
        """Loop variables, sizes and values computed from them -> 64-bit index; these have no entry in `env`."""
        self.nonnegative: set[Var] = set()
        self.ranges: dict[Var, tuple[int, int]] = {}
        """Loop variable -> (lower bound, exclusive upper bound), where both are constant."""

    def is_index(self, expr: PrimExpr) -> bool:
        """Is this arithmetic on positions, sizes and constants only? Data is excluded: it may wrap around."""
        if not expr.dtype.is_int or expr.dtype.lanes > 1:
            return False
        if isinstance(expr, IntImm):
            return True
        if isinstance(expr, Var):
            return expr in self.wide
        if isinstance(expr, _ARITHMETIC):
            return self.is_index(expr.a) and self.is_index(expr.b)
        return isinstance(expr, Cast) and self.is_index(expr.value)

    def index(self, expr: PrimExpr) -> Index:
        """The scalar integer `expr` in 64 bits."""
        cls = expr.__class__
        if cls is IntImm:
            return Index(None, expr.value, 0)  # type: ignore[attr-defined]
        if cls is Add or cls is Sub or cls is Mul:
            return self._arithmetic(expr)
        if isinstance(expr, Var):
            known = self.wide.get(expr)
            return self._widen(expr) if known is None else known
        if cls is FloorDiv or cls is FloorMod or cls is Div or cls is Mod:
            return self._division(expr)
        if cls is Min or cls is Max:
            return self._nearest_bound(expr)
        if cls is Cast and expr.value.dtype.is_int:  # type: ignore[attr-defined]
            return self.index(expr.value)  # type: ignore[attr-defined]
        if cls is Let:
            return self._let(expr)
        return self._widen(expr)

    def operand(self, index: Index) -> str:
        """An index as one 64-bit operand."""
        if index.value is None:
            return str(index.constant)
        return self.text.pure(f"add nsw i64 {index.value}, {index.constant}") if index.constant else index.value

    def _arithmetic(self, expr: Any) -> Index:
        if expr.__class__ is Mul:
            return self.product(self.index(expr.a), self.index(expr.b))
        terms = _terms(expr)
        divides = len(terms) > 2 and any(_divides(term) for term, _ in terms)
        return self._sum_of(terms) if divides else self._sum_as_written(expr)

    def _sum_as_written(self, expr: Any) -> Index:
        if expr.__class__ is not Add and expr.__class__ is not Sub:
            return self.index(expr)
        a, b = self._sum_as_written(expr.a), self._sum_as_written(expr.b)
        return self.sum(a, b, 1 if expr.__class__ is Add else -1)

    def _sum_of(self, terms: Sequence[tuple[PrimExpr, int]]) -> Index:
        """The sum of signed terms, those of outer loops first, so that partial sums are loop-invariant inside."""
        depth = {var: at for at, var in enumerate(self.wide)}  # variables of outer loops are bound before those inside
        depths = [max((depth.get(v, 0) for v in free_variables(term)), default=-1) for term, _ in terms]
        total = Index(None, 0, 0)
        for at in sorted(range(len(terms)), key=depths.__getitem__):
            term, sign = terms[at]
            total = self.sum(total, self.index(term), sign)
        return total

    def sum(self, a: Index, b: Index, sign: int = 1) -> Index:
        """a + sign * b"""
        constant = a.constant + sign * b.constant
        if b.value is None:
            return Index(a.value, constant, a.factor)
        if a.value is None and sign == 1:
            return Index(b.value, constant, b.factor)
        value = self.text.pure(f"{'add' if sign == 1 else 'sub'} nsw i64 {a.value or 0}, {b.value}")
        return Index(value, constant, gcd(a.factor, b.factor))

    def product(self, a: Index, b: Index) -> Index:
        """a * b"""
        if a.value is None:
            a, b = b, a
        if b.value is not None:
            value = self.text.pure(f"mul nsw i64 {self.operand(a)}, {self.operand(b)}")
            return Index(value, 0, (a.multiple or 1) * (b.multiple or 1))
        scale = b.constant
        if scale == 0 or a.value is None:
            return Index(None, a.constant * scale, 0)
        value = a.value if scale == 1 else self.text.pure(f"mul nsw i64 {a.value}, {scale}")
        return Index(value, a.constant * scale, a.factor * abs(scale))

    def _nearest_bound(self, expr: Any) -> Index:
        a, b = self.index(expr.a), self.index(expr.b)
        smaller = expr.__class__ is Min
        if a.value is None and b.value is None:
            return Index(None, min(a.constant, b.constant) if smaller else max(a.constant, b.constant), 0)
        name = f"llvm.s{'min' if smaller else 'max'}.i64"
        self.text.module.declare(name, "i64", "i64, i64")
        value = self.text.pure(f"call i64 @{name}(i64 {self.operand(a)}, i64 {self.operand(b)})")
        return Index(value, 0, gcd(a.multiple, b.multiple))

    def _division(self, expr: Any) -> Index:
        a, b = self.index(expr.a), self.index(expr.b)
        cls = expr.__class__
        if a.value is None and b.value is None and b.constant != 0:
            return Index(None, _fold_division(cls, a.constant, b.constant), 0)
        is_quotient = cls is FloorDiv or cls is Div
        x, y = self.operand(a), self.operand(b)
        if is_nonnegative(expr.a, self.nonnegative) and is_nonnegative(expr.b, self.nonnegative):
            return Index(self.text.pure(f"{'udiv' if is_quotient else 'urem'} i64 {x}, {y}"), 0)
        if cls is Div or cls is Mod:
            return Index(self.text.pure(f"{'sdiv' if is_quotient else 'srem'} i64 {x}, {y}"), 0)
        return Index(self.floor_division("i64", is_quotient, x, y, b.constant if b.value is None else None), 0)

    def floor_division(self, kind: str, is_quotient: bool, x: str, y: str, divisor: int | None) -> str:
        """The floored quotient or remainder of signed integers (also vectors if `divisor` is None)."""
        pure = self.text.pure
        if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
            if is_quotient:
                return pure(f"ashr {kind} {x}, {divisor.bit_length() - 1}")
            return pure(f"and {kind} {x}, {divisor - 1}")
        zero = "0" if kind[0] == "i" else "zeroinitializer"
        bit = "i1" if kind[0] == "i" else f"{kind.split(' x ')[0]} x i1>"
        remainder = pure(f"srem {kind} {x}, {y}")
        # The truncated remainder has the sign of x: round down once more if y's sign differs.
        signs = pure(f"xor {kind} {remainder}, {y}")
        differ = pure(f"icmp slt {kind} {signs}, {zero}")
        inexact = pure(f"icmp ne {kind} {remainder}, {zero}")
        due = pure(f"and {bit} {differ}, {inexact}")
        if is_quotient:
            step = pure(f"sext {bit} {due} to {kind}")
            return pure(f"add {kind} {pure(f'sdiv {kind} {x}, {y}')}, {step}")
        step = pure(f"select {bit} {due}, {kind} {y}, {kind} {zero}")
        return pure(f"add {kind} {remainder}, {step}")

    def _let(self, expr: Any) -> Index:
        self.bind(expr.var, expr.value)
        return self.index(expr.body)

    def bind(self, var: Var, value: PrimExpr) -> None:
        """Bind `var` to the value of an expression; indices stay indices."""
        if self.is_index(value):
            if is_nonnegative(value, self.nonnegative):
                self.nonnegative.add(var)
            self.wide[var] = self.index(value)
        else:
            self.env[var] = self.visit(value)

    def _widen(self, expr: PrimExpr) -> Index:
        value, of = self.visit(expr), expr.dtype
        if of.bits == 64:
            return Index(value, 0)
        if value in ("true", "false"):
            return Index(None, int(value == "true"), 0)
        how = "sext" if of.is_int else "zext"
        return Index(self.text.pure(f"{how} {register_type(of)} {value} to i64"), 0)


def _terms(expr: PrimExpr, sign: int = 1) -> list[tuple[PrimExpr, int]]:
    """The terms of a sum, with their signs."""
    if isinstance(expr, Add | Sub):
        other = sign if isinstance(expr, Add) else -sign
        return [*_terms(expr.a, sign), *_terms(expr.b, other)]
    return [(expr, sign)]


def _divides(term: PrimExpr) -> bool:
    """Is it a quotient or a remainder, possibly scaled?"""
    return isinstance(term, FloorDiv | FloorMod) or (isinstance(term, Mul) and (_divides(term.a) or _divides(term.b)))


def _fold_division(cls: type, a: int, b: int) -> int:
    if cls is FloorDiv:
        return a // b
    if cls is FloorMod:
        return a % b
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient if cls is Div else a - quotient * b


def is_nonnegative(expr: PrimExpr, known: set[Var]) -> bool:
    """Is this index provably non-negative? `known` are non-negative variables."""
    if isinstance(expr, IntImm):
        return expr.value >= 0
    if isinstance(expr, Var):
        return expr in known or isinstance(expr, SizeVar)
    if isinstance(expr, Add | Mul | FloorDiv | Div):
        return is_nonnegative(expr.a, known) and is_nonnegative(expr.b, known)
    if isinstance(expr, FloorMod):
        return is_nonnegative(expr.b, known)
    if isinstance(expr, Min):
        return is_nonnegative(expr.a, known) and is_nonnegative(expr.b, known)
    if isinstance(expr, Max):
        return is_nonnegative(expr.a, known) or is_nonnegative(expr.b, known)
    if isinstance(expr, Mod):
        return is_nonnegative(expr.a, known)
    if isinstance(expr, Cast):
        return expr.dtype.is_int and expr.value.dtype.is_int and is_nonnegative(expr.value, known)
    if isinstance(expr, Ramp):
        return is_nonnegative(expr.base, known) and is_nonnegative(expr.stride, known)
    return isinstance(expr, Broadcast) and is_nonnegative(expr.value, known)
