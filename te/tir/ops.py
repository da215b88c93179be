"""Constructors of expressions and statements, which check types and fold constants.

Python operators on expressions end here. Operand types are brought together as in TVM: constants take the other
side's type, integers of different widths widen, an integer meets a float as that float.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from relayc.te.dtype import BOOL, FLOAT32, INT32, INT64, DType, dtype
from relayc.te.errors import CompileError
from relayc.te.tir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    Binary,
    Broadcast,
    Call,
    Cast,
    Compare,
    Dim,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    IterVar,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    Or,
    PrimExpr,
    Ramp,
    Select,
    StringImm,
    Sub,
)  # fmt: skip
from relayc.te.tir.intrinsics import INTRINSICS
from relayc.te.tir.operators import OPERATIONS
from relayc.te.tir.stmt import Evaluate, SeqStmt, Stmt

__all__ = [
    "all", "any", "as_dim", "as_int", "broadcast", "call_intrin", "cast", "const", "convert", "div", "equal",
    "floordiv", "floormod", "greater", "greater_equal", "if_then_else", "indexdiv", "indexmod", "infinity", "is_const",
    "is_one", "is_zero", "less", "less_equal", "likely", "logical_not", "make_const", "max_value", "maximum",
    "min_value", "minimum", "neg", "no_op", "not_equal", "ramp", "select", "seq", "truncdiv", "truncmod",
]  # fmt: skip

Value = Any  # PrimExpr | IterVar | int | float | bool | numpy scalar | str

_BOOLS = (bool, np.bool_)
_FLOATS = (float, np.floating)
_INTEGERS = (int, np.integer)
_NUMBERS = (IntImm, FloatImm)


def const(value: int | float | bool, dtype_: str | None = None) -> PrimExpr:
    """A constant; the default types are int32, float32 and bool."""
    if dtype_ is None:
        dtype_ = "bool" if isinstance(value, bool | np.bool_) else "float32" if isinstance(value, float) else "int32"
    return make_const(dtype(dtype_), value)


def make_const(to: DType, value: int | float) -> PrimExpr:
    """`value` as a constant of type `to`; integers wrap; a vector type gives a Broadcast."""
    if to.lanes > 1:
        return Broadcast(make_const(to.element, value), to.lanes)
    if to.is_float:
        return FloatImm(to, float(value))
    if to.is_bool:
        return IntImm(to, int(bool(value)))
    return IntImm(to, _wrap(to, int(value)))


def _wrap(to: DType, value: int) -> int:
    if to.is_handle:
        return value
    value &= (1 << to.bits) - 1
    return value - (1 << to.bits) if to.is_int and value >> (to.bits - 1) else value


def convert(value: Value) -> PrimExpr:
    """A Python value, axis or expression as an expression."""
    if isinstance(value, PrimExpr):
        return value
    if isinstance(value, IterVar):
        return value.var
    if isinstance(value, _BOOLS):
        return IntImm(BOOL, int(value))
    if isinstance(value, _INTEGERS):
        fits = -(1 << 31) <= int(value) < (1 << 31)
        return IntImm(INT32 if fits else INT64, int(value))
    if isinstance(value, _FLOATS):
        return FloatImm(FLOAT32, float(value))
    if isinstance(value, str):
        return StringImm(value)
    raise CompileError(f"cannot use a {type(value).__name__} ({value!r}) as an expression; expected a number, an axis "
                       "or an expression")  # fmt: skip


def as_dim(value: Value) -> Dim:
    """A size: a Python int when it is constant, an expression otherwise."""
    if isinstance(value, _INTEGERS):
        return int(value)
    expr = convert(value)
    return expr.value if isinstance(expr, IntImm) else expr


def as_int(value: Value) -> int | None:
    """The Python int that a constant stands for, or None."""
    if isinstance(value, int):
        return value
    return value.value if isinstance(value, IntImm) else None


def is_const(expr: Value) -> bool:
    """Is this a scalar constant?"""
    return isinstance(expr, IntImm | FloatImm | int | float)


def _const_value(expr: PrimExpr) -> int | float | None:
    if isinstance(expr, _NUMBERS):
        return expr.value
    if isinstance(expr, Broadcast) and isinstance(expr.value, _NUMBERS):
        return expr.value.value
    return None


def is_zero(expr: Value) -> bool:
    """Is this the constant 0 (in every lane)?"""
    return _const_value(convert(expr)) == 0


def is_one(expr: Value) -> bool:
    """Is this the constant 1 (in every lane)?"""
    return _const_value(convert(expr)) == 1


def match_types(a: Value, b: Value) -> tuple[PrimExpr, PrimExpr]:
    """Both operands brought to one type, see the module's docstring. Raises CompileError when there is none."""
    if isinstance(a, PrimExpr) and isinstance(b, PrimExpr) and a.dtype is b.dtype:
        return a, b
    a_literal, b_literal = not _is_expr(a), not _is_expr(b)
    a, b = convert(a), convert(b)
    if a.dtype == b.dtype:
        return a, b
    if a.dtype.lanes != b.dtype.lanes:
        if a.dtype.lanes == 1:
            a = broadcast(a, b.dtype.lanes)
        elif b.dtype.lanes == 1:
            b = broadcast(b, a.dtype.lanes)
        else:
            raise CompileError(f"operands have {a.dtype.lanes} and {b.dtype.lanes} lanes: {a} and {b}")
        if a.dtype == b.dtype:
            return a, b
    if b_literal and not a_literal and _fits(b, a.dtype):
        return a, _as_literal(a.dtype, b)
    if a_literal and not b_literal and _fits(a, b.dtype):
        return _as_literal(b.dtype, a), b
    to = _common_type(a.dtype, b.dtype)
    return cast(to, a), cast(to, b)


def _is_expr(value: Value) -> bool:
    return isinstance(value, (PrimExpr, IterVar))


def _fits(literal: PrimExpr, to: DType) -> bool:
    return to.is_float or (literal.dtype.is_integral and to.is_integral) or literal.dtype.is_bool


def _as_literal(to: DType, literal: PrimExpr) -> PrimExpr:
    """A literal in the type of the other operand. Raises CompileError for one with more bits than an index has."""
    value = _const_value(literal)
    if isinstance(value, int) and to.is_integral and to.bits >= 32 and not -(1 << to.bits - 1) <= value < 1 << to.bits:
        raise CompileError(f"the number {value} does not fit into {to.element}, the type of the other operand")
    return cast(to, literal)


def _common_type(a: DType, b: DType) -> DType:
    if a.is_handle or b.is_handle:
        raise CompileError(f"no arithmetic between {a} and {b}")
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_bool != b.is_bool:
        return b if a.is_bool else a
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    if a.is_integral and b.is_integral:
        return a if a.is_int else b
    raise CompileError(f"no common type of {a} and {b}; cast one side")


def cast(to: str, value: Value) -> PrimExpr:
    """`value` converted to type `to`, lanes kept; constants are converted at once."""
    value = convert(value)
    target = dtype(to)
    if target.lanes == 1 and value.dtype.lanes > 1:
        target = target.with_lanes(value.dtype.lanes)
    if value.dtype == target:
        return value
    if target.lanes > 1 and value.dtype.lanes == 1:
        return broadcast(cast(target.element, value), target.lanes)
    if isinstance(value, IntImm) and not target.is_handle:
        return make_const(target, value.value)
    if isinstance(value, FloatImm) and (target.is_float or math.isfinite(value.value)):
        return make_const(target, value.value)
    if isinstance(value, Broadcast):
        return Broadcast(cast(target.element, value.value), value.lanes)
    return Cast(target, value)


def broadcast(value: Value, lanes: int) -> PrimExpr:
    """A scalar repeated `lanes` times; 1 lane gives the scalar."""
    value = convert(value)
    return value if lanes == 1 else Broadcast(value, lanes)


def ramp(base: Value, stride: Value, lanes: int) -> PrimExpr:
    """base, base + stride, ...; 1 lane gives `base`."""
    base = convert(base)
    return base if lanes == 1 else Ramp(base, cast(base.dtype, stride), lanes)


def _fold(
    node: type[Binary] | type[Compare], compute: Callable[[Any, Any], Any], a: PrimExpr, b: PrimExpr
) -> PrimExpr | None:
    x, y = _const_value(a), _const_value(b)
    if x is None or y is None or (a.dtype.is_float and not issubclass(node, Compare) and a.dtype.bits < 64):
        return None if not (x is not None and y is not None and a.dtype == "float32") else _fold_f32(compute, a, x, y)
    return make_const(BOOL.with_lanes(a.dtype.lanes) if issubclass(node, Compare) else a.dtype, compute(x, y))


def _fold_f32(compute: Callable[[Any, Any], Any], a: PrimExpr, x: float, y: float) -> PrimExpr:
    with np.errstate(all="ignore"):
        return make_const(a.dtype, float(compute(np.float32(x), np.float32(y))))


def add(a: Value, b: Value) -> PrimExpr:
    """a + b"""
    a, b = match_types(a, b)
    x, y = _const_value(a), _const_value(b)
    if x is None and y is None:
        return Add(a, b)
    folded = _fold(Add, operator.add, a, b)
    if folded is not None:
        return folded
    if not a.dtype.is_float:
        if x == 0:
            return b
        if y == 0:
            return a
    return Add(a, b)


def sub(a: Value, b: Value) -> PrimExpr:
    """a - b"""
    a, b = match_types(a, b)
    folded = _fold(Sub, operator.sub, a, b)
    if folded is not None:
        return folded
    if _const_value(b) == 0:
        return a
    if a is b and not a.dtype.is_float:
        return make_const(a.dtype, 0)
    return Sub(a, b)


def mul(a: Value, b: Value) -> PrimExpr:
    """a * b"""
    a, b = match_types(a, b)
    x, y = _const_value(a), _const_value(b)
    if x is None and y is None:
        return Mul(a, b)
    folded = _fold(Mul, operator.mul, a, b)
    if folded is not None:
        return folded
    if x == 1:
        return b
    if y == 1:
        return a
    if not a.dtype.is_float and (x == 0 or y == 0):
        return make_const(a.dtype, 0)
    return Mul(a, b)


def _check_divisor(b: PrimExpr, what: str) -> None:
    if not b.dtype.is_float and is_zero(b):
        raise CompileError(f"{what} by the constant 0")


def div(a: Value, b: Value) -> PrimExpr:
    """a / b; on integers truncated towards zero."""
    a, b = match_types(a, b)
    _check_divisor(b, "division")
    if is_one(b):
        return a
    if a.dtype.is_float:
        folded = None if is_zero(b) else _fold(Div, operator.truediv, a, b)
    else:
        folded = _fold(Div, _trunc_div, a, b)
    return Div(a, b) if folded is None else folded


truncdiv = div


def _trunc_div(x: int, y: int) -> int:
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def truncmod(a: Value, b: Value) -> PrimExpr:
    """C remainder."""
    a, b = match_types(a, b)
    _check_divisor(b, "remainder")
    folded = None if a.dtype.is_float else _fold(Mod, lambda x, y: x - y * _trunc_div(x, y), a, b)
    return Mod(a, b) if folded is None else folded


def floordiv(a: Value, b: Value) -> PrimExpr:
    """a // b, rounded down."""
    a, b = match_types(a, b)
    _check_divisor(b, "division")
    if a.dtype.is_float:
        return call_intrin(a.dtype, "floor", div(a, b))
    if is_one(b):
        return a
    if is_zero(a):
        return a
    folded = _fold(FloorDiv, operator.floordiv, a, b)
    return FloorDiv(a, b) if folded is None else folded


def floormod(a: Value, b: Value) -> PrimExpr:
    """a % b with the sign of b."""
    a, b = match_types(a, b)
    _check_divisor(b, "remainder")
    if a.dtype.is_float:
        return sub(a, mul(floordiv(a, b), b))
    if is_one(b):
        return make_const(a.dtype, 0)
    folded = _fold(FloorMod, operator.mod, a, b)
    return FloorMod(a, b) if folded is None else folded


indexdiv, indexmod = floordiv, floormod


def minimum(a: Value, b: Value) -> PrimExpr:
    """The smaller of two values."""
    a, b = match_types(a, b)
    if a is b:
        return a
    folded = None if a.dtype.is_float else _fold(Min, min, a, b)
    return Min(a, b) if folded is None else folded


def maximum(a: Value, b: Value) -> PrimExpr:
    """The larger of two values."""
    a, b = match_types(a, b)
    if a is b:
        return a
    folded = None if a.dtype.is_float else _fold(Max, max, a, b)
    return Max(a, b) if folded is None else folded


def neg(a: Value) -> PrimExpr:
    """-a; a float's sign is flipped (0 gives -0)."""
    a = convert(a)
    if a.dtype.is_float:
        value = _const_value(a)
        return make_const(a.dtype, -value) if value is not None else mul(make_const(a.dtype, -1.0), a)
    return sub(make_const(a.dtype, 0), a)


def _comparison(node: type[Compare], compute: Callable[[Any, Any], bool]) -> Callable[[Value, Value], PrimExpr]:
    def compare(a: Value, b: Value) -> PrimExpr:
        a, b = match_types(a, b)
        folded = _fold(node, compute, a, b)
        return node(a, b) if folded is None else folded

    compare.__doc__ = f"a {node.sign} b, a bool expression"
    return compare


equal = _comparison(EQ, operator.eq)
not_equal = _comparison(NE, operator.ne)
less = _comparison(LT, operator.lt)
less_equal = _comparison(LE, operator.le)
greater = _comparison(GT, operator.gt)
greater_equal = _comparison(GE, operator.ge)


def _bool(value: Value) -> PrimExpr:
    expr = convert(value)
    return expr if expr.dtype.is_bool else not_equal(expr, make_const(expr.dtype, 0))


def logical_and(a: Value, b: Value) -> PrimExpr:
    """a and b"""
    a, b = match_types(_bool(a), _bool(b))
    for x, other in ((a, b), (b, a)):
        value = _const_value(x)
        if value is not None:
            return other if value else x
    return And(a, b)


def logical_or(a: Value, b: Value) -> PrimExpr:
    """a or b"""
    a, b = match_types(_bool(a), _bool(b))
    for x, other in ((a, b), (b, a)):
        value = _const_value(x)
        if value is not None:
            return x if value else other
    return Or(a, b)


def logical_not(a: Value) -> PrimExpr:
    """not a"""
    a = _bool(a)
    value = _const_value(a)
    if value is not None:
        return make_const(a.dtype, not value)
    return a.a if isinstance(a, Not) else Not(a)


def all(*conditions: Value) -> PrimExpr:
    """True when every condition holds."""
    result = convert(True)
    for condition in conditions:
        result = logical_and(result, condition)
    return result


def any(*conditions: Value) -> PrimExpr:
    """True when some condition holds."""
    result = convert(False)
    for condition in conditions:
        result = logical_or(result, condition)
    return result


def _choose(condition: Value, a: Value, b: Value) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
    a, b = match_types(a, b)
    return _bool(condition), a, b


def select(condition: Value, true_value: Value, false_value: Value) -> PrimExpr:
    """Both sides may be evaluated; neither may fault."""
    test, a, b = _choose(condition, true_value, false_value)
    value = _const_value(test)
    return Select(test, a, b) if value is None else (a if value else b)


def if_then_else(condition: Value, true_value: Value, false_value: Value) -> PrimExpr:
    """Only the chosen side is evaluated."""
    test, a, b = _choose(condition, true_value, false_value)
    value = _const_value(test)
    return Call(a.dtype, "if_then_else", (test, a, b)) if value is None else (a if value else b)


def likely(condition: Value) -> PrimExpr:
    """A guard made by the schedule."""
    condition = convert(condition)
    return condition if is_const(condition) else Call(condition.dtype, "likely", (condition,))


def call_intrin(to: str, op: str, *args: Value) -> PrimExpr:
    """A call of intrinsic `op` with result type `to`. Raises CompileError for an unknown one or a wrong arity."""
    row = INTRINSICS.get(op)
    if row is None:
        raise CompileError(f"unknown intrinsic {op!r}; known are: {', '.join(sorted(INTRINSICS))}")
    if row.arity is not None and row.arity != len(args):
        raise CompileError(f"intrinsic {op} takes {row.arity} arguments, got {len(args)}")
    return Call(dtype(to), op, tuple([convert(a) for a in args]))


def min_value(of: str) -> PrimExpr:
    """The lowest value of a type; the lowest finite one for floats."""
    kind = dtype(of)
    return FloatImm(kind, -_float_max(kind)) if kind.is_float else make_const(kind, kind.min_value())


def max_value(of: str) -> PrimExpr:
    """The highest value of a type; the highest finite one for floats."""
    kind = dtype(of)
    return FloatImm(kind, _float_max(kind)) if kind.is_float else make_const(kind, kind.max_value())


def _float_max(kind: DType) -> float:
    if kind == "bfloat16":
        return 3.3895313892515355e38
    if kind.bits < 16:
        raise CompileError(f"no arithmetic limits for {kind}: cast to a wider float first")
    return float(np.finfo(str(kind)).max)


def infinity(of: str) -> PrimExpr:
    """Positive infinity."""
    return FloatImm(dtype(of), math.inf)


def seq(*stmts: Stmt | Iterable[Stmt]) -> Stmt:
    """Statements in order: nested sequences flattened, no-ops dropped, a single one returned as it is."""
    flat: list[Stmt] = []
    for stmt in stmts:
        for s in [stmt] if isinstance(stmt, Stmt) else stmt:
            if isinstance(s, SeqStmt):
                flat.extend(s.stmts)
            elif not is_no_op(s):
                flat.append(s)
    if len(flat) == 1:
        return flat[0]
    return SeqStmt(tuple(flat)) if flat else no_op()


def no_op() -> Stmt:
    """The statement that does nothing."""
    return Evaluate(IntImm(INT32, 0))


def is_no_op(stmt: Stmt) -> bool:
    """Does this statement do nothing at all?"""
    return isinstance(stmt, Evaluate) and isinstance(stmt.value, IntImm)


def product(factors: Sequence[Dim]) -> Dim:
    """The product of sizes; a Python int when all are known."""
    result: Dim = 1
    for factor in factors:
        result = as_dim(mul(result, factor)) if isinstance(result, PrimExpr) or isinstance(factor, PrimExpr) \
            else result * factor  # fmt: skip
    return result


def _bitwise(op: str, compute: Callable[[int, int], int]) -> Callable[[Value, Value], PrimExpr]:
    logical = {"bitwise_and": logical_and, "bitwise_or": logical_or}.get(op)

    def apply(a: Value, b: Value) -> PrimExpr:
        a, b = match_types(a, b)
        if a.dtype.is_bool and logical is not None:
            return logical(a, b)
        if isinstance(a, IntImm) and isinstance(b, IntImm):
            return make_const(a.dtype, compute(a.value, b.value))
        return Call(a.dtype, op, (a, b))

    apply.__doc__ = f"{op} of two integers"
    return apply


left_shift = _bitwise("shift_left", operator.lshift)
right_shift = _bitwise("shift_right", operator.rshift)
bitwise_and = _bitwise("bitwise_and", operator.and_)
bitwise_or = _bitwise("bitwise_or", operator.or_)
bitwise_xor = _bitwise("bitwise_xor", operator.xor)


def bitwise_not(a: Value) -> PrimExpr:
    """All bits of an integer flipped; `not` of a bool."""
    a = convert(a)
    return logical_not(a) if a.dtype.is_bool else Call(a.dtype, "bitwise_not", (a,))


OPERATIONS.update(
    add=add, sub=sub, mul=mul, div=div, floordiv=floordiv, floormod=floormod, neg=neg, left_shift=left_shift,
    right_shift=right_shift, bitwise_and=bitwise_and, bitwise_or=bitwise_or, bitwise_xor=bitwise_xor,
    bitwise_not=bitwise_not, less=less, less_equal=less_equal, greater=greater, greater_equal=greater_equal,
    equal=equal, not_equal=not_equal, cast=cast,
)  # fmt: skip
