"""Elementwise functions of several tensors, with numpy's broadcasting (TVM: `topi.broadcast`).

Operands have one dtype. Integer division by zero gives 0, as does the remainder: a kernel never traps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.errors import CompileError
from relayc.te.tir import Dim, Let, PrimExpr, Var, as_int, is_const, ops
from relayc.topi.tag import BROADCAST, ELEMWISE
from relayc.topi.utils import broadcast_index, full_precision, is_at_most_one, same_dim

__all__ = [
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "broadcast_shape", "broadcast_to", "divide", "equal",
    "floor_divide", "floor_mod", "greater", "greater_equal", "left_shift", "less", "less_equal", "logical_and",
    "logical_or", "logical_xor", "maximum", "minimum", "multiply", "not_equal", "power", "right_shift", "subtract",
    "trunc_divide", "trunc_mod", "where",
]  # fmt: skip


def broadcast_shape(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape that all `shapes` broadcast to, by numpy's rule. Raises CompileError when they do not fit."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, start=rank - len(shape)):
            if as_int(result[axis]) == 1:
                result[axis] = dim
            elif is_at_most_one(dim):
                continue
            elif is_at_most_one(result[axis]):
                result[axis] = dim
            elif not _may_be_equal(result[axis], dim):
                raise CompileError(f"shapes {shapes} do not broadcast: {result[axis]} against {dim} on axis {axis}")
    return tuple(result)


def _may_be_equal(a: Dim, b: Dim) -> bool:
    return same_dim(a, b) or as_int(a) is None or as_int(b) is None


def _apply(f: Callable[..., PrimExpr], inputs: Sequence[Tensor], name: str) -> Tensor:
    shape = broadcast_shape(*[x.shape for x in inputs])
    same = all(
        len(x.shape) == len(shape) and all(same_dim(a, b) for a, b in zip(x.shape, shape, strict=True)) for x in inputs
    )

    def body(*i: Any) -> PrimExpr:
        return f(*[x(*(i if same else broadcast_index(i, x.shape))) for x in inputs])

    return te.compute(shape, body, name=name, tag=ELEMWISE if same else BROADCAST)


def _binary(name: str, f: Callable[[Any, Any], PrimExpr], doc: str) -> Callable[[Tensor, Tensor], Tensor]:
    def apply(a: Tensor, b: Tensor) -> Tensor:
        return _apply(f, (a, b), name)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = doc
    return apply


def _guarded(
    divide: Callable[[Any, Any], PrimExpr], by_minus_one: Callable[[PrimExpr], PrimExpr]
) -> Callable[[PrimExpr, PrimExpr], PrimExpr]:
    """Integer `divide` made total: 0 for a divisor of 0, `by_minus_one(a)` for -1 (whose quotient may overflow)."""

    def apply(a: PrimExpr, b: PrimExpr) -> PrimExpr:
        if a.dtype.is_float or (is_const(b) and not ops.is_zero(b)):
            return divide(a, b)
        # Bound by let, so that no select guards the load: vectorised it would become masked loads, one for each select.
        x, y = Var("dividend", a.dtype), Var("divisor", b.dtype)
        return Let(x, a, Let(y, b, guarded(x, y)))

    def guarded(a: PrimExpr, b: PrimExpr) -> PrimExpr:
        zero, one = te.const(0, b.dtype), te.const(1, b.dtype)
        if b.dtype.is_uint:
            return te.select(b == zero, zero, divide(a, te.select(b == zero, one, b)))
        minus_one = te.const(-1, b.dtype)
        safe = te.select(te.any(b == zero, b == minus_one), one, b)
        return te.select(b == zero, zero, te.select(b == minus_one, by_minus_one(a), divide(a, safe)))

    return apply


def _shift_in_range(amount: PrimExpr) -> PrimExpr:
    below = amount < amount.dtype.bits
    return te.all(amount >= 0, below) if amount.dtype.is_int else below


def _left_shift(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """a << b; 0 for an amount outside [0, width)."""
    inside, zero = _shift_in_range(b), te.const(0, a.dtype)
    return te.select(inside, ops.left_shift(a, te.select(inside, b, zero)), zero)


def _right_shift(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """a >> b; for an amount outside [0, width) 0, or -1 for a negative a."""
    inside, zero = _shift_in_range(b), te.const(0, a.dtype)
    if a.dtype.is_int:
        return ops.right_shift(a, te.select(inside, b, te.const(a.dtype.bits - 1, b.dtype)))
    return te.select(inside, ops.right_shift(a, te.select(inside, b, zero)), zero)


def _and(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """a and b, evaluating both: `And` evaluates b only where a holds, vectorised under masks."""
    return te.select(a, b, te.const(False))


def _or(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return te.select(a, te.const(True), b)


def _zero_like(a: PrimExpr) -> PrimExpr:
    return te.const(0, a.dtype)


def _integer_power(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """a ** b by repeated squaring; exact modulo 2**bits for exponents below 64, parity and zeros kept above."""
    zero, one = te.const(0, b.dtype), te.const(1, b.dtype)
    most = te.const(63, b.dtype)
    exponent = te.select(b > most, te.const(62, b.dtype) + ops.bitwise_and(b, one), b)
    result: PrimExpr = te.const(1, a.dtype)
    square = a
    named: list[tuple[Var, PrimExpr]] = []  # each used twice by the next: a tree would double
    for bit in range(6):
        used = ops.bitwise_and(exponent, te.const(1 << bit, b.dtype)) != zero
        for name, value in (("result", te.select(used, result * square, result)), ("square", square * square)):
            named.append((Var(f"{name}{bit}", a.dtype), value))
        result, square = named[-2][0], named[-1][0]
    for var, value in reversed(named[:-1]):
        result = Let(var, value, result)
    return result


def _power(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return full_precision(te.power, a, b) if a.dtype.is_float else _integer_power(a, b)


def _fmod(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return full_precision(te.fmod, a, b)


def _trunc_divide(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return full_precision(lambda x, y: te.trunc(ops.div(x, y)), a, b)


def _floor_divide(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return full_precision(ops.floordiv, a, b)


def _floor_mod(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    if not a.dtype.is_float:
        return ops.floormod(a, b)
    return full_precision(_float_floor_mod, a, b)


def _float_floor_mod(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The exact C remainder, moved to the sign of the divisor."""
    rest, zero = Var("rest", a.dtype), te.const(0, a.dtype)
    moved = te.select(te.all(rest != zero, (rest < zero) != (b < zero)), rest + b, rest)
    return Let(rest, te.fmod(a, b), moved)


add = _binary("add", ops.add, "a + b")
subtract = _binary("subtract", ops.sub, "a - b")
multiply = _binary("multiply", ops.mul, "a * b")
divide = _binary("divide", _guarded(ops.div, ops.neg), "a / b; integers truncate towards zero.")
floor_divide = _binary("floor_divide", _guarded(_floor_divide, ops.neg), "a / b rounded down.")
trunc_divide = _binary("trunc_divide", _guarded(_trunc_divide, ops.neg), "a / b rounded towards zero.")
trunc_mod = _binary("trunc_mod", _guarded(_fmod, _zero_like), "C remainder: the sign of a.")
floor_mod = _binary("floor_mod", _guarded(_floor_mod, _zero_like), "Python remainder: the sign of b.")
power = _binary("power", _power, "a to the power b; integer exponents must not be negative.")
maximum = _binary("maximum", te.maximum, "The larger value; NaN if either is NaN.")
minimum = _binary("minimum", te.minimum, "The smaller value; NaN if either is NaN.")
left_shift = _binary("left_shift", _left_shift, "a << b of integers; 0 for an amount outside [0, width).")
right_shift = _binary("right_shift", _right_shift, "a >> b of integers, arithmetic on signed ones.")
bitwise_and = _binary("bitwise_and", ops.bitwise_and, "a & b of integers.")
bitwise_or = _binary("bitwise_or", ops.bitwise_or, "a | b of integers.")
bitwise_xor = _binary("bitwise_xor", ops.bitwise_xor, "a ^ b of integers.")
logical_and = _binary("logical_and", _and, "a and b, of bool.")
logical_or = _binary("logical_or", _or, "a or b, of bool.")
logical_xor = _binary("logical_xor", ops.not_equal, "exactly one of a and b, of bool.")
equal = _binary("equal", ops.equal, "a == b, bool.")
not_equal = _binary("not_equal", ops.not_equal, "a != b, bool.")
less = _binary("less", ops.less, "a < b, bool.")
less_equal = _binary("less_equal", ops.less_equal, "a <= b, bool.")
greater = _binary("greater", ops.greater, "a > b, bool.")
greater_equal = _binary("greater_equal", ops.greater_equal, "a >= b, bool.")


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """x where the bool `condition` holds, else y; all three broadcast."""
    return _apply(te.select, (condition, x, y), "where")


def broadcast_to(x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """x repeated along its dimensions of size 1, and along new leading ones, to `shape`."""
    return te.compute(tuple(shape), lambda *i: x(*broadcast_index(i, x.shape)), name="broadcast_to", tag=BROADCAST)
