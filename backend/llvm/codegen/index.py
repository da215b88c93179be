"""Index arithmetic.

An index is computed in 64 bits: the loop IR has it in int32, but an index never overflows, so widening preserves the
meaning and LLVM needs no proof to address memory with it. It is kept as ``value + constant``, so that the elements of a
register tile share one address and differ by a displacement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, TypeVar

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.types import register_type
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

__all__ = [
    "add_index", "bind", "floor_division", "index_of", "index_operand", "is_index", "is_nonnegative", "known_or",
    "multiply_index", "set_index", "splatted_int",
]  # fmt: skip

R = TypeVar("R")

_ARITHMETIC = (Add, Sub, Mul, FloorDiv, FloorMod, Div, Mod, Min, Max)
_SUMS = frozenset((Add, Sub))
_FLOORS = frozenset((FloorDiv, FloorMod))
_HIDDEN = 'asm "", "=r,0"'
"""An empty inline assembly, whose result is its operand, unknown to LLVM.

LLVM's loop strength reduction leaves addresses alone that contain a division by a variable, since it may not divide by
0 where the program does not. All of such an address is then computed anew in each iteration of the inner loop.
"""


def splatted_int(e: Emitter, expr: PrimExpr) -> int | None:
    """The value of an integer constant, scalar or broadcast; None when it is not constant."""
    if isinstance(expr, Broadcast):
        expr = expr.value
    if isinstance(expr, Var) and expr in e.indices and e.indices[expr].value is None:
        return e.indices[expr].constant
    return expr.value if isinstance(expr, IntImm) else None


def is_index(e: Emitter, expr: PrimExpr) -> bool:
    """Is this arithmetic on positions, sizes and constants only? Data is excluded: it may wrap around."""
    if not expr.dtype.is_int or expr.dtype.lanes > 1:
        return False
    if isinstance(expr, IntImm):
        return True
    if isinstance(expr, Var):
        return expr in e.indices
    if isinstance(expr, _ARITHMETIC):
        return is_index(e, expr.a) and is_index(e, expr.b)
    return isinstance(expr, Cast) and is_index(e, expr.value)


def index_of(e: Emitter, expr: PrimExpr) -> Index:
    """The scalar integer `expr` in 64 bits."""
    cls = expr.__class__
    if cls is IntImm:
        return Index(None, expr.value, 0)  # type: ignore[attr-defined]
    if cls is Add or cls is Sub or cls is Mul:
        return known_or(e, e.text.indices, expr, _arithmetic)
    if isinstance(expr, Var):
        known = e.indices.get(expr)
        return _widen(e, expr) if known is None else known
    if cls is FloorDiv or cls is FloorMod or cls is Div or cls is Mod:
        return _division(e, expr)
    if cls is Min or cls is Max:
        return _nearest_bound(e, expr)
    if cls is Cast and expr.value.dtype.is_int:  # type: ignore[attr-defined]
        return index_of(e, expr.value)  # type: ignore[attr-defined]
    if cls is Let:
        return _let(e, expr)
    return _widen(e, expr)


def known_or(e: Emitter, known: dict[Any, R], expr: PrimExpr, make: Callable[[Emitter, Any], R]) -> R:
    """Return the entry of `expr` in `known`, or else ``make(e, expr)``, which is added unless it loads anything."""
    found = known.get(expr)
    if found is None:
        before = e.text.written_once
        found = make(e, expr)
        if e.text.written_once == before:
            known[expr] = found
    return found


def index_operand(e: Emitter, index: Index) -> str:
    """An index as one 64-bit operand."""
    if index.value is None:
        return str(index.constant)
    return e.text.pure(f"add nsw i64 {index.value}, {index.constant}") if index.constant else index.value


def _arithmetic(e: Emitter, expr: Any) -> Index:
    if expr.__class__ is Mul:
        return multiply_index(e, index_of(e, expr.a), index_of(e, expr.b))
    if expr.a.__class__ in _SUMS or expr.b.__class__ in _SUMS:
        if expr not in e.sums:
            terms = _terms(expr)
            e.sums[expr] = _outer_first(e, terms) if any(_divides(term) for term, _ in terms) else None
        terms = e.sums[expr]
        if terms is not None:
            return _sum_of_terms(e, terms)
    return _sum_as_written(e, expr)


def _sum_as_written(e: Emitter, expr: Any) -> Index:
    cls = expr.__class__
    if cls not in _SUMS:
        return index_of(e, expr)
    a, b = _sum_as_written(e, expr.a), _sum_as_written(e, expr.b)
    return add_index(e, a, b, 1 if cls is Add else -1)


def _outer_first(e: Emitter, terms: Sequence[tuple[PrimExpr, int]]) -> list[tuple[PrimExpr, int]]:
    """Signed terms, those of outer loops first, so that partial sums are loop-invariant inside."""
    depth = {var: at for at, var in enumerate(e.indices)}  # variables of outer loops are bound before those inside
    return sorted(terms, key=lambda term: max((depth.get(v, 0) for v in free_variables(term[0])), default=-1))


def _sum_of_terms(e: Emitter, terms: Sequence[tuple[PrimExpr, int]]) -> Index:
    total = Index(None, 0, 0)
    for term, sign in terms:
        total = add_index(e, total, index_of(e, term), sign)
    return total


def add_index(e: Emitter, a: Index, b: Index, sign: int = 1) -> Index:
    """a + sign * b"""
    constant = a.constant + sign * b.constant
    if b.value is None:
        return Index(a.value, constant, a.factor)
    if a.value is None and sign == 1:
        return Index(b.value, constant, b.factor)
    value = e.text.pure(f"{'add' if sign == 1 else 'sub'} nsw i64 {a.value or 0}, {b.value}")
    return Index(value, constant, gcd(a.factor, b.factor))


def multiply_index(e: Emitter, a: Index, b: Index) -> Index:
    """a * b"""
    if a.value is None:
        a, b = b, a
    if b.value is not None:
        value = e.text.pure(f"mul nsw i64 {index_operand(e, a)}, {index_operand(e, b)}")
        return Index(value, 0, (a.multiple or 1) * (b.multiple or 1))
    scale = b.constant
    if scale == 0 or a.value is None:
        return Index(None, a.constant * scale, 0)
    value = a.value if scale == 1 else e.text.pure(f"mul nsw i64 {a.value}, {scale}")
    return Index(value, a.constant * scale, a.factor * abs(scale))


def _nearest_bound(e: Emitter, expr: Any) -> Index:
    a, b = index_of(e, expr.a), index_of(e, expr.b)
    smaller = expr.__class__ is Min
    if a.value is None and b.value is None:
        return Index(None, min(a.constant, b.constant) if smaller else max(a.constant, b.constant), 0)
    name = f"llvm.s{'min' if smaller else 'max'}.i64"
    e.text.module.declare(name, "i64", "i64, i64")
    value = e.text.pure(f"call i64 @{name}(i64 {index_operand(e, a)}, i64 {index_operand(e, b)})")
    return Index(value, 0, gcd(a.multiple, b.multiple))


def _division(e: Emitter, expr: Any) -> Index:
    a, b = index_of(e, expr.a), index_of(e, expr.b)
    cls = expr.__class__
    if a.value is None and b.value is None and b.constant != 0:
        return Index(None, _fold_division(cls, a.constant, b.constant), 0)
    is_quotient = cls is FloorDiv or cls is Div
    x, y = index_operand(e, a), index_operand(e, b)
    if is_nonnegative(expr.a, e.nonnegative) and is_nonnegative(expr.b, e.nonnegative):
        value = e.text.pure(f"{'udiv' if is_quotient else 'urem'} i64 {x}, {y}")
        return Index(value if b.value is None else e.text.pure(f'call i64 {_HIDDEN}(i64 {value})'), 0)
    if cls is Div or cls is Mod:
        return Index(e.text.pure(f"{'sdiv' if is_quotient else 'srem'} i64 {x}, {y}"), 0)
    return Index(floor_division(e.text, "i64", is_quotient, x, y, b.constant if b.value is None else None), 0)


def floor_division(text: FunctionText, kind: str, is_quotient: bool, x: str, y: str, divisor: int | None) -> str:
    """The floored quotient or remainder of signed integers (also vectors if `divisor` is None)."""
    pure = text.pure
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


def _let(e: Emitter, expr: Any) -> Index:
    bind(e, expr.var, expr.value)
    return index_of(e, expr.body)


def set_index(e: Emitter, var: Var, index: Index) -> None:
    """Set the value of a variable that is an index; what was computed from another value of it is forgotten."""
    if var in e.indices:
        e.text.forget()
    e.indices[var] = index


def bind(e: Emitter, var: Var, value: PrimExpr) -> None:
    """Bind `var` to the value of an expression; indices stay indices."""
    if is_index(e, value):
        if is_nonnegative(value, e.nonnegative):
            e.nonnegative.add(var)
        set_index(e, var, index_of(e, value))
        return
    if var in e.values:
        e.text.forget()
    e.values[var] = e.value(value)


def _widen(e: Emitter, expr: PrimExpr) -> Index:
    value, of = e.value(expr), expr.dtype
    if of.bits == 64:
        return Index(value, 0)
    if value in ("true", "false"):
        return Index(None, int(value == "true"), 0)
    how = "sext" if of.is_int else "zext"
    return Index(e.text.pure(f"{how} {register_type(of)} {value} to i64"), 0)


def _terms(expr: Any, sign: int = 1) -> list[tuple[PrimExpr, int]]:
    """The terms of a sum, with their signs."""
    cls = expr.__class__
    if cls in _SUMS:
        return [*_terms(expr.a, sign), *_terms(expr.b, sign if cls is Add else -sign)]
    return [(expr, sign)]


def _divides(term: Any) -> bool:
    """Is it a quotient or a remainder, possibly scaled?"""
    cls = term.__class__
    return cls in _FLOORS or (cls is Mul and (_divides(term.a) or _divides(term.b)))


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
    if isinstance(expr, (Add, Mul, FloorDiv, Div)):
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
