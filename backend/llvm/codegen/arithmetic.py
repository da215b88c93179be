"""Arithmetic of floats and integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from relayc.backend.llvm.codegen.convert import cast, computed, convert, rounded
from relayc.backend.llvm.codegen.emitter import Emitter
from relayc.backend.llvm.codegen.index import floor_division, is_nonnegative, splatted_int
from relayc.backend.llvm.codegen.vectors import call_overloaded, splat, value_of_branches
from relayc.backend.llvm.types import compute_type, constant, register_type, suffix
from relayc.te.dtype import DType, dtype
from relayc.te.errors import CompileError
from relayc.te.tir import (
    Add,
    Binary,
    Broadcast,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mod,
    Mul,
    PrimExpr,
    Sub,
)

__all__ = ["emit_binary", "emit_maximum", "emit_minimum", "float_extremum"]

_FLOAT_OPS: dict[type, str] = {Add: "fadd", Sub: "fsub", Mul: "fmul", Div: "fdiv", Mod: "frem"}
_INT_OPS: dict[type, str] = {Add: "add", Sub: "sub", Mul: "mul"}


def emit_binary(e: Emitter, expr: Binary) -> str:
    """A sum, difference, product, quotient or remainder."""
    if not expr.dtype.is_float:
        return _int_binary(e, expr)
    operation = _FLOAT_OPS.get(expr.__class__)
    if operation is None:
        raise CompileError(f"{type(expr).__name__} is defined on integers, not on {expr.dtype}: {expr}")
    kind = register_type(compute_type(expr.dtype))
    a, b = computed(e, expr.a), computed(e, expr.b)
    return rounded(e, e.text.pure(f"{operation} {e.machine.fast}{kind} {a}, {b}"), expr.dtype)


def _int_binary(e: Emitter, expr: Binary) -> str:
    operation, kind = _INT_OPS.get(expr.__class__), register_type(expr.dtype)
    if operation is not None:
        return e.text.pure(f"{operation} {kind} {e.value(expr.a)}, {e.value(expr.b)}")
    return divide_integers(e, expr)


def emit_minimum(e: Emitter, expr: Min) -> str:
    """The smaller of two values; NaN if either is."""
    return _extremum(e, expr, "olt", "smin", "umin")


def emit_maximum(e: Emitter, expr: Max) -> str:
    """The larger of two values; NaN if either is."""
    return _extremum(e, expr, "ogt", "smax", "umax")


def _extremum(e: Emitter, expr: Binary, ordered: str, signed: str, unsigned: str) -> str:
    of = expr.dtype
    if not of.is_float:
        name = signed if of.is_int else unsigned
        return call_overloaded(e.text, name, of, e.value(expr.a), e.value(expr.b))
    a, b = expr.a, expr.b
    if _never_nan(b):
        a, b = b, a
    return rounded(e, float_extremum(e, of, ordered, computed(e, a), computed(e, b), _never_nan(a)), of)


def float_extremum(e: Emitter, of: DType, ordered: str, a: str, b: str, a_is_number: bool) -> str:
    """The minimum or maximum of two floats, NaN if either is.

    A compare that fails on NaN selects b, which is the min and max instruction of x86: a NaN in b survives. A NaN
    in a has to be put back, which LLVM does for its own operation in a compare and a blend.
    """
    if not a_is_number:
        return call_overloaded(
            e.text, "maximum" if ordered == "ogt" else "minimum", compute_type(of), a, b, flags="nsz "
        )
    pure, kind = e.text.pure, register_type(compute_type(of))
    flag = register_type(dtype("bool").with_lanes(of.lanes))
    better = pure(f"fcmp {ordered} {kind} {a}, {b}")
    return pure(f"select {flag} {better}, {kind} {a}, {kind} {b}")


def _never_nan(expr: PrimExpr) -> bool:
    if isinstance(expr, Broadcast):
        expr = expr.value
    return isinstance(expr, FloatImm) and not math.isnan(expr.value)


def divide_integers(e: Emitter, expr: Any) -> str:
    """The quotient or remainder of integers, floored or truncated."""
    of, kind = expr.dtype, register_type(expr.dtype)
    divisor = splatted_int(e, expr.b)
    if divisor == 0:
        raise CompileError(f"division by the constant 0: {expr}")
    x, y = e.value(expr.a), e.value(expr.b)
    is_quotient, floors = isinstance(expr, FloorDiv | Div), isinstance(expr, FloorDiv | FloorMod)
    unsigned = of.is_uint or (
        is_nonnegative(expr.a, e.nonnegative) and is_nonnegative(expr.b, e.nonnegative)
    )  # fmt: skip
    if unsigned:
        name = "udiv" if is_quotient else "urem"
    elif floors and divisor is not None and divisor > 0:
        scalar_divisor = divisor if of.lanes == 1 else None
        return floor_division(e.text, kind, is_quotient, x, y, scalar_divisor)
    else:
        name = "sdiv" if is_quotient else "srem"
    if divisor is not None and divisor != -1:
        if floors and not unsigned:
            return floor_division(e.text, kind, is_quotient, x, y, None)
        return e.text.pure(f"{name} {kind} {x}, {y}")
    return _guarded_division(e, of, is_quotient, floors and not unsigned, name, x, y)


def _guarded_division(e: Emitter, of: DType, is_quotient: bool, floors: bool, name: str, x: str, y: str) -> str:
    """Integer division by a variable, guarded against traps: x / 0 is 0, as in numpy, and min / -1 wraps."""
    pure, kind, flag = e.text.pure, register_type(of), register_type(dtype("bool").with_lanes(of.lanes))
    one, zero = ("1", "0") if of.lanes == 1 else (f"splat ({register_type(of.element)} 1)", "zeroinitializer")
    by_zero = pure(f"icmp eq {kind} {y}, {zero}")
    unsafe, negated = by_zero, None
    if name[0] == "s":
        minus_one = "-1" if of.lanes == 1 else f"splat ({register_type(of.element)} -1)"
        negated = pure(f"icmp eq {kind} {y}, {minus_one}")
        unsafe = pure(f"or {flag} {by_zero}, {negated}")
    safe = pure(f"select {flag} {unsafe}, {kind} {one}, {kind} {y}")

    def divided() -> str:
        if floors:
            return floor_division(e.text, kind, is_quotient, x, safe, None)
        return pure(f"{name} {kind} {x}, {safe}")

    if of.lanes > 1 and of.bits <= 32:
        result = _divided_as_floats(e, of, is_quotient, floors, x, safe)
    elif of.lanes > 1:
        result = _usually_divided_as_floats(e, of, is_quotient, floors, x, safe, divided)
    else:
        result = divided()
    if negated is not None and is_quotient:
        minus_x = pure(f"sub {kind} {zero}, {x}")
        result = pure(f"select {flag} {negated}, {kind} {minus_x}, {kind} {result}")
    return pure(f"select {flag} {by_zero}, {kind} {zero}, {kind} {result}")


def _divided_as_floats(e: Emitter, of: DType, is_quotient: bool, floors: bool, x: str, y: str) -> str:
    """Quotient or remainder of integer vectors, for which processors have no division instruction, by float
    division.

    Floats of more than twice the precision represent the operands exactly, and a non-integral quotient is too far
    from the next integer to be rounded to it.
    """
    through = dtype("float32" if of.bits <= 16 else "float64").with_lanes(of.lanes)
    result = _divided(e, through, is_quotient, floors, convert(e, x, of, through), convert(e, y, of, through))
    return convert(e, result, through, of)


def _divided(e: Emitter, through: DType, is_quotient: bool, floors: bool, a: str, b: str) -> str:
    """Quotient or remainder of integral floats."""
    kind, pure = register_type(through), e.text.pure
    quotient = call_overloaded(e.text, "floor" if floors else "trunc", through, pure(f"fdiv {kind} {a}, {b}"))
    return quotient if is_quotient else pure(f"fsub {kind} {a}, {pure(f'fmul {kind} {quotient}, {b}')}")


def _usually_divided_as_floats(
    e: Emitter, of: DType, is_quotient: bool, floors: bool, x: str, y: str, otherwise: Callable[[], str]
) -> str:
    """Quotient or remainder of 64-bit integers, by float division if all operands have at most 51 bits.

    Non-integral quotients are then too far from the next integer to be rounded to it. Few processors convert such
    vectors; instead an integer is added to 1.5 2^52, which leaves it in the low bits.
    """
    text, pure, kind = e.text, e.text.pure, register_type(of)
    through = dtype("float64").with_lanes(of.lanes)
    lowest, floats = -(1 << 51) if of.is_int else 0, register_type(through)
    above = [pure(f"sub {kind} {v}, {splat(e.text, str(lowest), of)}") for v in (x, y)]
    beyond = splat(e.text, str(-1 << (52 if lowest else 51)), of)
    large = pure(f"and {kind} {pure(f'or {kind} {above[0]}, {above[1]}')}, {beyond}")
    name = f"llvm.vector.reduce.or.{suffix(of)}"
    text.module.declare(name, "i64", kind)
    is_small = pure(f"icmp eq i64 {pure(f'call i64 @{name}({kind} {large})')}, 0")
    magic, bits = splat(e.text, constant(through.element, 1.5 * 2.0**52), through), splat(e.text, str(0x4338 << 48), of)

    def as_floats(v: str) -> str:
        raised = cast(e.text, "bitcast", pure(f"add {kind} {v}, {bits}"), of, through)
        return pure(f"fsub {floats} {raised}, {magic}")

    def short() -> str:
        result = _divided(e, through, is_quotient, floors, as_floats(x), as_floats(y))
        raised = cast(e.text, "bitcast", pure(f"fadd {floats} {result}, {magic}"), through, of)
        return pure(f"sub {kind} {raised}, {bits}")

    return value_of_branches(e.text, is_small, kind, short, otherwise, likely=True)
