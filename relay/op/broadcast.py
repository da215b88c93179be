"""Elementwise operators of several tensors, with numpy's broadcasting. Operands have one element type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any, ClassVar

import numpy as np

from relayc import te, topi
from relayc.relay.errors import GradientError, TypeInferenceError
from relayc.relay.expr import OPERATIONS, Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, make_call, register_op
from relayc.relay.op.common import Array, as_expr, require, require_same_dtype, widened
from relayc.relay.op.elementwise import negative
from relayc.relay.op.gradients import choose, sum_to
from relayc.relay.type import TensorType, Type, broadcast_shapes, broadcasts_to
from relayc.te.tir import Dim

__all__ = [
    "Add", "Binary", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BroadcastTo", "Divide", "Equal", "FloorDivide",
    "FloorMod", "Greater", "GreaterEqual", "LeftShift", "Less", "LessEqual", "LogicalAnd", "LogicalOr", "LogicalXor",
    "Maximum", "Minimum", "Multiply", "NotEqual", "Power", "RightShift", "Subtract", "TruncDivide", "TruncMod",
    "Where", "add", "bitwise_and", "bitwise_or", "bitwise_xor", "broadcast_to", "divide", "equal", "floor_divide",
    "floor_mod", "greater", "greater_equal", "left_shift", "less", "less_equal", "logical_and", "logical_or",
    "logical_xor", "maximum", "minimum", "multiply", "not_equal", "power", "right_shift", "subtract", "trunc_divide",
    "trunc_mod", "where",
]  # fmt: skip


class Binary(OpDef):
    """Base of broadcasting operators: `define` is the compute, `evaluate` its meaning in numpy.

    (C1) the element type is one of `domain`; (C2) both inputs have it; (C3) the shapes broadcast.
    """

    num_unbroadcast_axes = 0
    domain: ClassVar[tuple[str, ...]] = ("float", "int", "uint")
    """Kinds of element types taken: "float", "int", "uint", "bool", "string"."""
    define: ClassVar[Callable[[te.Tensor, te.Tensor], te.Tensor]]
    evaluate: ClassVar[Callable[[Any, Any], Any]]
    result_dtype: ClassVar[str | None] = None
    """The element type of the result; None: that of the inputs."""

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        kind = "float" if a.dtype.is_float else a.dtype.code
        if kind not in self.domain:
            raise TypeInferenceError(f"(C1) the element type must be a {' or '.join(self.domain)}; got {a.dtype}")
        require_same_dtype(2, a, b)
        return TensorType(_broadcast(3, a, b), self.result_dtype or a.dtype)

    def compute(self, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return type(self).define(a, b)

    def reference(self, a: Array, b: Array) -> Array:
        return np.asarray(widened(type(self).evaluate, a, b))

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return _moves_with(self, perm, types)

    def partials(self, a: Expr, b: Expr, y: Call, grad: Expr) -> tuple[Expr | None, Expr | None]:
        """`grad` times the derivatives by a and b where the result is y; None if it is 0 wherever there is one."""
        raise GradientError(f"operator {self.name} has no gradient rule (partials)")

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        a, b = call.args
        parts = zip(self.partials(a, b, call, grad), call.args, strict=True)
        return [None if part is None else sum_to(part, x.shape) for part, x in parts]


def _broadcast(number: int, *types: TensorType) -> tuple[Dim, ...]:
    try:
        return broadcast_shapes(*[t.shape for t in types])
    except TypeInferenceError as error:
        raise TypeInferenceError(f"(C{number}) {error.constraint}") from None


def _moves_with(op: OpDef, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
    """`op` itself when every input is transposed with the output, or is a scalar."""
    ranks = [t.ndim for t in types if isinstance(t, TensorType)]
    return op if all(rank in (0, len(perm)) for rank in ranks) else None


class Comparison(Binary):
    """A bool for each pair of elements."""

    domain = ("float", "int", "uint", "bool")
    result_dtype = "bool"

    def reference(self, a: Array, b: Array) -> Array:
        return np.asarray(type(self).evaluate(a, b), np.bool_)


class BoolBinary(Binary):
    """A connective of bools."""

    domain = ("bool",)


class IntBinary(Binary):
    """An operation on the bits of integers."""

    domain = ("int", "uint")


@register_op("add", pattern=OpPattern.BROADCAST)
class Add(Binary):
    """a + b (ONNX: Add)."""

    define = staticmethod(topi.add)
    evaluate = staticmethod(np.add)

    def partials(self, a: Expr, b: Expr, y: Call, grad: Expr) -> tuple[Expr, Expr]:
        return grad, grad


@register_op("subtract", pattern=OpPattern.BROADCAST)
class Subtract(Binary):
    """a - b (ONNX: Sub)."""

    define = staticmethod(topi.subtract)
    evaluate = staticmethod(np.subtract)

    def partials(self, a: Expr, b: Expr, y: Call, grad: Expr) -> tuple[Expr, Expr]:
        return grad, -grad


@register_op("multiply", pattern=OpPattern.BROADCAST)
class Multiply(Binary):
    """a * b (ONNX: Mul)."""

    define = staticmethod(topi.multiply)
    evaluate = staticmethod(np.multiply)

    def is_specialized_on(self, operand: int, value: Array) -> bool:
        return super().is_specialized_on(operand, value) or (value.dtype.kind in "iu" and _is_power_of_two(value))

    def partials(self, a: Expr, b: Expr, y: Call, grad: Expr) -> tuple[Expr, Expr]:
        return grad * b, grad * a


def _is_power_of_two(value: Array) -> bool:
    return bool(np.abs(np.frexp(value.astype(np.float64))[0]) == 0.5)


class Quotient(Binary):
    """Base of divisions: those by a known integer or power of two are computed without a division."""

    def is_specialized_on(self, operand: int, value: Array) -> bool:
        known = operand == 1 and (value.dtype.kind in "iu" or _is_power_of_two(value))
        return known or super().is_specialized_on(operand, value)


def _integer_quotient(a: Array, b: Array, rounded_down: bool) -> Array:
    """a / b of integers, rounded down or towards zero; 0 where b is 0."""
    quotient = np.floor_divide(a, b)
    if not rounded_down:
        remainder = a - quotient * b
        quotient = np.where((remainder != 0) & ((a < 0) != (b < 0)), quotient + 1, quotient)
    return np.where(b == 0, 0, quotient).astype(a.dtype)


@register_op("divide", pattern=OpPattern.BROADCAST)
class Divide(Quotient):
    """a / b (ONNX: Div); integers truncate towards zero, and give 0 for b = 0."""

    define = staticmethod(topi.divide)

    @staticmethod
    def evaluate(a: Array, b: Array) -> Array:
        return np.divide(a, b) if a.dtype.kind not in "iu" else _integer_quotient(a, b, rounded_down=False)

    def partials(self, a: Expr, b: Expr, y: Call, grad: Expr) -> tuple[Expr, Expr]:
        return grad / b, -(grad * y / b)


@register_op("trunc_divide", pattern=OpPattern.BROADCAST)
class TruncDivide(Quotient):
    """a / b rounded towards zero; integers give 0 for b = 0."""

    define = staticmethod(topi.trunc_divide)

    @staticmethod
    def evaluate(a: Array, b: Array) -> Array:
        return np.trunc(np.divide(a, b)) if a.dtype.kind not in "iu" else _integer_quotient(a, b, rounded_down=False)

    def partials(self, a: Expr, b: Expr, y: Call, grad: Expr) -> tuple[None, None]:
        return None, None


@register_op("floor_divide", pattern=OpPattern.BROADCAST)
class FloorDivide(Quotient):
    """a / b rounded down; integers give 0 for b = 0."""

    define = staticmethod(topi.floor_divide)

    @staticmethod
    def evaluate(a: Array, b: Array) -> Array:
        return np.floor(np.divide(a, b)) if a.dtype.kind not in "iu" else _integer_quotient(a, b, rounded_down=True)

    def partials(self, a: Expr, b: Expr, y: Call, grad: Expr) -> tuple[None, None]:
        return None, None


@register_op("trunc_mod", pattern=OpPattern.BROADCAST)
class TruncMod(Quotient):
    """C remainder, with the sign of a (ONNX: Mod with fmod = 1); integers give 0 for b = 0."""

    define = staticmethod(topi.trunc_mod)
    evaluate = staticmethod(np.fmod)

    def partials(self, a: Expr, b: Expr, y: Call, grad: Expr) -> tuple[Expr, Expr]:
        return grad, -(grad * make_call("trunc", (a / b,)))


@register_op("floor_mod", pattern=OpPattern.BROADCAST)
class FloorMod(Quotient):
    """Python remainder, with the sign of b (ONNX: Mod); integers give 0 for b = 0."""

    define = staticmethod(topi.floor_mod)
    evaluate = staticmethod(np.mod)

    def partials(self, a: Expr, b: Expr, y: Call, grad: Expr) -> tuple[Expr, Expr]:
        return grad, -(grad * make_call("floor", (a / b,)))


@register_op("power", pattern=OpPattern.BROADCAST)
class Power(Binary):
    """a to the power b (ONNX: Pow). Integer powers wrap; a negative integer exponent is unspecified."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.power)

    @staticmethod
    def evaluate(a: Array, b: Array) -> Array:
        return np.power(a, b if a.dtype.kind == "f" else np.maximum(b, 0))

    def is_specialized_on(self, operand: int, value: Array) -> bool:
        return True

    def partials(self, a: Expr, b: Expr, y: Call, grad: Expr) -> tuple[Expr, Expr]:
        by_a = grad * b * power(a, b - 1.0)
        positive = greater(a, as_expr(0, a))
        logarithm = make_call("log", (choose(positive, a, 1, a),))
        return by_a, choose(positive, grad * y * logarithm, 0, a)


@register_op("maximum", pattern=OpPattern.BROADCAST)
class Maximum(Binary):
    """The larger value, NaN if either is NaN (ONNX: Max)."""

    define = staticmethod(topi.maximum)
    evaluate = staticmethod(np.maximum)

    def partials(self, a: Expr, b: Expr, y: Call, grad: Expr) -> tuple[Expr, Expr]:
        chosen = greater_equal(a, b)
        return choose(chosen, grad, 0, grad), choose(chosen, 0, grad, grad)


@register_op("minimum", pattern=OpPattern.BROADCAST)
class Minimum(Binary):
    """The smaller value, NaN if either is NaN (ONNX: Min)."""

    define = staticmethod(topi.minimum)
    evaluate = staticmethod(np.minimum)

    def partials(self, a: Expr, b: Expr, y: Call, grad: Expr) -> tuple[Expr, Expr]:
        chosen = less_equal(a, b)
        return choose(chosen, grad, 0, grad), choose(chosen, 0, grad, grad)


@register_op("left_shift", pattern=OpPattern.BROADCAST)
class LeftShift(IntBinary):
    """a << b (ONNX: BitShift); 0 for a b outside [0, width)."""

    define = staticmethod(topi.left_shift)
    evaluate = staticmethod(np.left_shift)

    def is_specialized_on(self, operand: int, value: Array) -> bool:
        return operand == 1 or super().is_specialized_on(operand, value)


@register_op("right_shift", pattern=OpPattern.BROADCAST)
class RightShift(IntBinary):
    """a >> b, arithmetic on signed integers (ONNX: BitShift); 0 or -1 for a b outside [0, width)."""

    define = staticmethod(topi.right_shift)
    evaluate = staticmethod(np.right_shift)

    def is_specialized_on(self, operand: int, value: Array) -> bool:
        return operand == 1 or super().is_specialized_on(operand, value)


@register_op("bitwise_and", pattern=OpPattern.BROADCAST)
class BitwiseAnd(IntBinary):
    """a & b (ONNX: BitwiseAnd)."""

    define = staticmethod(topi.bitwise_and)
    evaluate = staticmethod(np.bitwise_and)


@register_op("bitwise_or", pattern=OpPattern.BROADCAST)
class BitwiseOr(IntBinary):
    """a | b (ONNX: BitwiseOr)."""

    define = staticmethod(topi.bitwise_or)
    evaluate = staticmethod(np.bitwise_or)


@register_op("bitwise_xor", pattern=OpPattern.BROADCAST)
class BitwiseXor(IntBinary):
    """a ^ b (ONNX: BitwiseXor)."""

    define = staticmethod(topi.bitwise_xor)
    evaluate = staticmethod(np.bitwise_xor)


@register_op("logical_and", pattern=OpPattern.BROADCAST)
class LogicalAnd(BoolBinary):
    """a and b (ONNX: And)."""

    define = staticmethod(topi.logical_and)
    evaluate = staticmethod(np.logical_and)


@register_op("logical_or", pattern=OpPattern.BROADCAST)
class LogicalOr(BoolBinary):
    """a or b (ONNX: Or)."""

    define = staticmethod(topi.logical_or)
    evaluate = staticmethod(np.logical_or)


@register_op("logical_xor", pattern=OpPattern.BROADCAST)
class LogicalXor(BoolBinary):
    """Exactly one of a and b (ONNX: Xor)."""

    define = staticmethod(topi.logical_xor)
    evaluate = staticmethod(np.logical_xor)


@register_op("equal", pattern=OpPattern.BROADCAST)
class Equal(Comparison):
    """a == b (ONNX: Equal); strings can be compared, too."""

    domain = ("float", "int", "uint", "bool", "string")
    define = staticmethod(topi.equal)
    evaluate = staticmethod(np.equal)


@register_op("not_equal", pattern=OpPattern.BROADCAST)
class NotEqual(Comparison):
    """a != b; strings can be compared, too."""

    domain = ("float", "int", "uint", "bool", "string")
    define = staticmethod(topi.not_equal)
    evaluate = staticmethod(np.not_equal)


@register_op("less", pattern=OpPattern.BROADCAST)
class Less(Comparison):
    """a < b (ONNX: Less)."""

    define = staticmethod(topi.less)
    evaluate = staticmethod(np.less)


@register_op("less_equal", pattern=OpPattern.BROADCAST)
class LessEqual(Comparison):
    """a <= b (ONNX: LessOrEqual)."""

    define = staticmethod(topi.less_equal)
    evaluate = staticmethod(np.less_equal)


@register_op("greater", pattern=OpPattern.BROADCAST)
class Greater(Comparison):
    """a > b (ONNX: Greater)."""

    define = staticmethod(topi.greater)
    evaluate = staticmethod(np.greater)


@register_op("greater_equal", pattern=OpPattern.BROADCAST)
class GreaterEqual(Comparison):
    """a >= b (ONNX: GreaterOrEqual)."""

    define = staticmethod(topi.greater_equal)
    evaluate = staticmethod(np.greater_equal)


@register_op("where", pattern=OpPattern.BROADCAST)
class Where(OpDef):
    """x where `condition`, else y (ONNX: Where).

    (C1) condition is bool; (C2) x and y have one element type; (C3) the three shapes broadcast.
    """

    num_unbroadcast_axes = 0

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        require(condition.dtype.is_bool, f"(C1) the condition must be bool; got {condition.dtype}")
        require_same_dtype(2, x, y)
        return TensorType(_broadcast(3, condition, x, y), x.dtype)

    def compute(self, condition: te.Tensor, x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return topi.where(condition, x, y)

    def reference(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        condition, x, y = call.args
        first, second = choose(condition, grad, 0, grad), choose(condition, 0, grad, grad)
        return None, sum_to(first, x.shape), sum_to(second, y.shape)

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return _moves_with(self, perm, types)


@register_op("broadcast_to", pattern=OpPattern.BROADCAST)
class BroadcastTo(OpDef):
    """x repeated to `shape` by numpy's rule (ONNX: Expand). (C1) x broadcasts to `shape`."""

    shape: tuple[Dim, ...]

    def infer(self, x: TensorType) -> TensorType:
        target = TensorType(self.shape, x.dtype)
        require(broadcasts_to(x.shape, target.shape), f"(C1) {x} does not broadcast to {target}")
        return target

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.broadcast_to(x, self.shape)

    def reference(self, x: Array) -> Array:
        return np.broadcast_to(x, tuple([int(d) for d in self.shape])).copy()  # type: ignore[arg-type]

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return (sum_to(grad, call.args[0].shape),)

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        if _moves_with(self, perm, types) is None or len(self.shape) != len(perm):
            return None
        return self.replace(shape=tuple([self.shape[p] for p in perm]))


def _helper(operator: type[Binary]) -> Callable[[Expr, Expr], Call]:
    def call(lhs: Expr, rhs: Expr) -> Call:
        return operator()(lhs, rhs)

    call.__name__ = call.__qualname__ = operator.name
    call.__doc__ = operator.__doc__
    return call


add = _helper(Add)
subtract = _helper(Subtract)
multiply = _helper(Multiply)
divide = _helper(Divide)
trunc_divide = _helper(TruncDivide)
floor_divide = _helper(FloorDivide)
trunc_mod = _helper(TruncMod)
floor_mod = _helper(FloorMod)
power = _helper(Power)
maximum = _helper(Maximum)
minimum = _helper(Minimum)
left_shift = _helper(LeftShift)
right_shift = _helper(RightShift)
bitwise_and = _helper(BitwiseAnd)
bitwise_or = _helper(BitwiseOr)
bitwise_xor = _helper(BitwiseXor)
logical_and = _helper(LogicalAnd)
logical_or = _helper(LogicalOr)
logical_xor = _helper(LogicalXor)
equal = _helper(Equal)
not_equal = _helper(NotEqual)
less = _helper(Less)
less_equal = _helper(LessEqual)
greater = _helper(Greater)
greater_equal = _helper(GreaterEqual)


def where(condition: Expr, x: Expr, y: Expr) -> Call:
    """x where `condition`, else y; all three broadcast."""
    return Where()(condition, x, y)


def broadcast_to(data: Expr, shape: Sequence[Dim]) -> Call:
    """`data` repeated to `shape` by numpy's rule."""
    return BroadcastTo(shape=tuple(shape))(data)


def _operator(function: Callable[[Expr, Expr], Call]) -> Callable[[Any, Any], Call]:
    """`function` for Python operators: a Python number takes the element type of the other operand; NotImplemented for
    other types."""
    operands = (Expr, Number, np.ndarray, np.generic, list, tuple)

    def apply(a: Any, b: Any) -> Call:
        if not all(isinstance(value, operands) for value in (a, b)):
            return NotImplemented
        return function(as_expr(a, b), as_expr(b, a))

    return apply


OPERATIONS.update(
    add=_operator(add), subtract=_operator(subtract), multiply=_operator(multiply), divide=_operator(divide),
    negative=lambda x, _: negative(x),
)  # fmt: skip
