"""Elementwise operators of one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from relayc import te, topi
from relayc.relay.errors import GradientError, TypeInferenceError
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, make_call, register_op
from relayc.relay.op.common import Array, numpy_dtype, require, widened
from relayc.relay.op.gradients import choose, greater
from relayc.relay.type import TensorType
from relayc.te.dtype import dtype as parse_dtype
from relayc.te.tir.values import convert_array

__all__ = [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Clip", "Copy", "Cos",
    "Cosh", "Erf", "Exp", "Floor", "IsFinite", "IsInf", "IsNaN", "Log", "Log1p", "Log2", "Log10", "LogicalNot",
    "Negative", "Reinterpret", "Round", "Rsqrt", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh", "Trunc",
    "Unary", "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "cast", "ceil", "clip", "copy",
    "cos", "cosh", "erf", "exp", "floor", "isfinite", "isinf", "isnan", "log", "log1p", "log2", "log10",
    "logical_not", "negative", "reinterpret", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc",
]  # fmt: skip


class Unary(OpDef):
    """Base of elementwise operators: `define` is the compute, `evaluate` its meaning in numpy.

    Low-precision floats are evaluated in float32. (C1) the element type is one of `domain`.
    """

    domain: ClassVar[tuple[str, ...]] = ("float",)
    """Kinds of element types taken: "float", "int", "uint", "bool"."""
    define: ClassVar[Callable[[te.Tensor], te.Tensor]]
    evaluate: ClassVar[Callable[[Any], Any]]

    def infer(self, x: TensorType) -> TensorType:
        kind = "float" if x.dtype.is_float else x.dtype.code
        if kind not in self.domain:
            raise TypeInferenceError(f"(C1) the element type must be a {' or '.join(self.domain)}; got {x.dtype}")
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        return type(self).define(x)

    def reference(self, x: Array) -> Array:
        return np.asarray(widened(type(self).evaluate, x))

    def derivative(self, x: Expr, y: Expr) -> Expr | None:
        """The derivative at x, where the result is y; None if it is 0 wherever there is one."""
        raise GradientError(f"operator {self.name} has no gradient rule (derivative)")

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        slope = self.derivative(call.args[0], call)
        return (None if slope is None else grad * slope,)


def unary_helper(operator: type[Unary]) -> Callable[[Expr], Call]:
    """A function that makes calls of an operator without attributes."""

    def call(data: Expr) -> Call:
        return operator()(data)

    call.__name__ = call.__qualname__ = operator.name
    call.__doc__ = operator.__doc__
    return call


_NUMERIC = ("float", "int", "uint")


@register_op("abs", pattern=OpPattern.ELEMWISE)
class Abs(Unary):
    """|x| (ONNX: Abs); the lowest signed integer stays itself."""

    domain = _NUMERIC
    define = staticmethod(topi.abs)
    evaluate = staticmethod(np.abs)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return make_call("sign", (x,))


@register_op("acos", pattern=OpPattern.ELEMWISE)
class Acos(Unary):
    """Arc cosine (ONNX: Acos)."""

    define = staticmethod(topi.acos)
    evaluate = staticmethod(np.arccos)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return -make_call("rsqrt", (1.0 - x * x,))


@register_op("acosh", pattern=OpPattern.ELEMWISE)
class Acosh(Unary):
    """Inverse hyperbolic cosine (ONNX: Acosh)."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.acosh)
    evaluate = staticmethod(np.arccosh)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return make_call("rsqrt", (x * x - 1.0,))


@register_op("asin", pattern=OpPattern.ELEMWISE)
class Asin(Unary):
    """Arc sine (ONNX: Asin)."""

    define = staticmethod(topi.asin)
    evaluate = staticmethod(np.arcsin)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return make_call("rsqrt", (1.0 - x * x,))


@register_op("asinh", pattern=OpPattern.ELEMWISE)
class Asinh(Unary):
    """Inverse hyperbolic sine (ONNX: Asinh)."""

    define = staticmethod(topi.asinh)
    evaluate = staticmethod(np.arcsinh)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return make_call("rsqrt", (x * x + 1.0,))


@register_op("atan", pattern=OpPattern.ELEMWISE)
class Atan(Unary):
    """Arc tangent (ONNX: Atan)."""

    define = staticmethod(topi.atan)
    evaluate = staticmethod(np.arctan)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return 1.0 / (x * x + 1.0)


@register_op("atanh", pattern=OpPattern.ELEMWISE)
class Atanh(Unary):
    """Inverse hyperbolic tangent (ONNX: Atanh)."""

    define = staticmethod(topi.atanh)
    evaluate = staticmethod(np.arctanh)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return 1.0 / (1.0 - x * x)


@register_op("ceil", pattern=OpPattern.ELEMWISE)
class Ceil(Unary):
    """The smallest integer value not below x (ONNX: Ceil)."""

    define = staticmethod(topi.ceil)
    evaluate = staticmethod(np.ceil)

    def derivative(self, x: Expr, y: Expr) -> None:
        return None


@register_op("cos", pattern=OpPattern.ELEMWISE)
class Cos(Unary):
    """Cosine of radians (ONNX: Cos)."""

    define = staticmethod(topi.cos)
    evaluate = staticmethod(np.cos)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return -make_call("sin", (x,))


@register_op("cosh", pattern=OpPattern.ELEMWISE)
class Cosh(Unary):
    """Hyperbolic cosine (ONNX: Cosh)."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.cosh)
    evaluate = staticmethod(np.cosh)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return make_call("sinh", (x,))


@register_op("erf", pattern=OpPattern.ELEMWISE)
class Erf(Unary):
    """The error function (ONNX: Erf)."""

    define = staticmethod(topi.erf)

    @staticmethod
    def evaluate(x: Array) -> Array:
        return np.asarray(np.frompyfunc(math.erf, 1, 1)(x.astype(np.float64)), x.dtype)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return make_call("exp", (-(x * x),)) * (2 / math.sqrt(math.pi))


@register_op("exp", pattern=OpPattern.ELEMWISE)
class Exp(Unary):
    """e to the power x (ONNX: Exp)."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.exp)
    evaluate = staticmethod(np.exp)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return y


@register_op("floor", pattern=OpPattern.ELEMWISE)
class Floor(Unary):
    """The largest integer value not above x (ONNX: Floor)."""

    define = staticmethod(topi.floor)
    evaluate = staticmethod(np.floor)

    def derivative(self, x: Expr, y: Expr) -> None:
        return None


@register_op("log", pattern=OpPattern.ELEMWISE)
class Log(Unary):
    """Natural logarithm (ONNX: Log)."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.log)
    evaluate = staticmethod(np.log)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return 1.0 / x


@register_op("log1p", pattern=OpPattern.ELEMWISE)
class Log1p(Unary):
    """log(1 + x), exact near 0."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.log1p)
    evaluate = staticmethod(np.log1p)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return 1.0 / (x + 1.0)


@register_op("log2", pattern=OpPattern.ELEMWISE)
class Log2(Unary):
    """Logarithm to base 2."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.log2)
    evaluate = staticmethod(np.log2)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return (1 / math.log(2)) / x


@register_op("log10", pattern=OpPattern.ELEMWISE)
class Log10(Unary):
    """Logarithm to base 10."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.log10)
    evaluate = staticmethod(np.log10)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return (1 / math.log(10)) / x


@register_op("negative", pattern=OpPattern.ELEMWISE)
class Negative(Unary):
    """-x; integers wrap (ONNX: Neg)."""

    domain = _NUMERIC
    define = staticmethod(topi.negative)
    evaluate = staticmethod(np.negative)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return (-grad,)


@register_op("round", pattern=OpPattern.ELEMWISE)
class Round(Unary):
    """The nearest integer value, ties to even (ONNX: Round)."""

    define = staticmethod(topi.round)
    evaluate = staticmethod(np.rint)

    def derivative(self, x: Expr, y: Expr) -> None:
        return None


@register_op("rsqrt", pattern=OpPattern.ELEMWISE)
class Rsqrt(Unary):
    """1 / sqrt(x)"""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.rsqrt)

    @staticmethod
    def evaluate(x: Array) -> Array:
        return np.reciprocal(np.sqrt(x))

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return y * y * y * -0.5


@register_op("sigmoid", pattern=OpPattern.ELEMWISE)
class Sigmoid(Unary):
    """1 / (1 + exp(-x)) (ONNX: Sigmoid)."""

    define = staticmethod(topi.sigmoid)

    @staticmethod
    def evaluate(x: Array) -> Array:
        return np.reciprocal(1 + np.exp(-x))

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return y * (1.0 - y)


@register_op("sign", pattern=OpPattern.ELEMWISE)
class Sign(Unary):
    """-1, 0.0 (of -0.0 too) or 1; NaN stays NaN (ONNX: Sign)."""

    domain = _NUMERIC
    define = staticmethod(topi.sign)
    evaluate = staticmethod(np.sign)

    def derivative(self, x: Expr, y: Expr) -> None:
        return None


@register_op("sin", pattern=OpPattern.ELEMWISE)
class Sin(Unary):
    """Sine of radians (ONNX: Sin)."""

    define = staticmethod(topi.sin)
    evaluate = staticmethod(np.sin)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return make_call("cos", (x,))


@register_op("sinh", pattern=OpPattern.ELEMWISE)
class Sinh(Unary):
    """Hyperbolic sine (ONNX: Sinh)."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.sinh)
    evaluate = staticmethod(np.sinh)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return make_call("cosh", (x,))


@register_op("sqrt", pattern=OpPattern.ELEMWISE)
class Sqrt(Unary):
    """Square root; NaN below 0 (ONNX: Sqrt)."""

    define = staticmethod(topi.sqrt)
    evaluate = staticmethod(np.sqrt)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return 0.5 / y


@register_op("tan", pattern=OpPattern.ELEMWISE)
class Tan(Unary):
    """Tangent of radians (ONNX: Tan)."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.tan)
    evaluate = staticmethod(np.tan)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return y * y + 1.0


@register_op("tanh", pattern=OpPattern.ELEMWISE)
class Tanh(Unary):
    """Hyperbolic tangent (ONNX: Tanh)."""

    define = staticmethod(topi.tanh)
    evaluate = staticmethod(np.tanh)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return 1.0 - y * y


@register_op("trunc", pattern=OpPattern.ELEMWISE)
class Trunc(Unary):
    """x without its fraction."""

    define = staticmethod(topi.trunc)
    evaluate = staticmethod(np.trunc)

    def derivative(self, x: Expr, y: Expr) -> None:
        return None


@register_op("bitwise_not", pattern=OpPattern.ELEMWISE)
class BitwiseNot(Unary):
    """All bits flipped (ONNX: BitwiseNot)."""

    domain = ("int", "uint")
    define = staticmethod(topi.bitwise_not)
    evaluate = staticmethod(np.bitwise_not)


@register_op("logical_not", pattern=OpPattern.ELEMWISE)
class LogicalNot(Unary):
    """not x (ONNX: Not)."""

    domain = ("bool",)
    define = staticmethod(topi.logical_not)
    evaluate = staticmethod(np.logical_not)


@register_op("copy", pattern=OpPattern.ELEMWISE)
class Copy(Unary):
    """An identity (ONNX: Identity)."""

    domain = ("float", "int", "uint", "bool")
    define = staticmethod(topi.copy)

    def reference(self, x: Array) -> Array:
        return x.copy()

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return (grad,)


class _Predicate(Unary):
    """Base of tests of floats: a bool for each element."""

    def infer(self, x: TensorType) -> TensorType:
        return super().infer(x).with_dtype("bool")

    def reference(self, x: Array) -> Array:
        return np.asarray(type(self).evaluate(x.astype(np.float64)))


@register_op("isnan", pattern=OpPattern.ELEMWISE)
class IsNaN(_Predicate):
    """Is x not a number? (ONNX: IsNaN)"""

    define = staticmethod(topi.isnan)
    evaluate = staticmethod(np.isnan)


@register_op("isinf", pattern=OpPattern.ELEMWISE)
class IsInf(_Predicate):
    """Is x an infinity? (ONNX: IsInf)"""

    define = staticmethod(topi.isinf)
    evaluate = staticmethod(np.isinf)


@register_op("isfinite", pattern=OpPattern.ELEMWISE)
class IsFinite(_Predicate):
    """Is x neither infinite nor NaN?"""

    define = staticmethod(topi.isfinite)
    evaluate = staticmethod(np.isfinite)


@register_op("cast", pattern=OpPattern.ELEMWISE)
class Cast(OpDef):
    """x as type `dtype` (ONNX: Cast): float to int truncates, int to a narrower int wraps, to bool is ``!= 0``.

    A float outside the range of a narrow or unsigned type wraps too if an int32 or int64 holds it; the result of larger
    ones is unspecified. (C1) neither type is a string.
    """

    mixed_precision = MixedPrecision.NEVER

    dtype: str

    def infer(self, x: TensorType) -> TensorType:
        target = parse_dtype(self.dtype)
        require("string" not in (x.dtype.code, target.code), f"(C1) no cast between {x.dtype} and {target}")
        return x.with_dtype(target)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.cast(x, self.dtype)

    def reference(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return convert_array(x, parse_dtype(self.dtype))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return (make_call("cast", (grad,), dtype=str(call.args[0].dtype)),)


@register_op("reinterpret", pattern=OpPattern.ELEMWISE)
class Reinterpret(OpDef):
    """The bits of x reinterpreted as type `dtype` (ONNX: BitCast). (C1) both types have the same width."""

    mixed_precision = MixedPrecision.NEVER

    dtype: str

    def infer(self, x: TensorType) -> TensorType:
        target = parse_dtype(self.dtype)
        require(target.bits == x.dtype.bits, f"(C1) {x.dtype} and {target} must have the same width")
        return x.with_dtype(target)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.reinterpret(x, self.dtype)

    def reference(self, x: Array) -> Array:
        return x.view(numpy_dtype(self.dtype)).copy()


@register_op("clip", pattern=OpPattern.ELEMWISE)
class Clip(OpDef):
    """x limited to [a_min, a_max] (ONNX: Clip); None leaves a side open. NaN stays NaN.

    (C1) the element type is a number. Where a_min > a_max the result is a_max.
    """

    a_min: float | None = None
    a_max: float | None = None

    def infer(self, x: TensorType) -> TensorType:
        require(not x.dtype.is_bool, f"(C1) the element type must be a number; got {x.dtype}")
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.clip(x, self.a_min, self.a_max)

    def reference(self, x: Array) -> Array:
        low = x if self.a_min is None else np.maximum(x, np.asarray(self.a_min, x.dtype))
        return low if self.a_max is None else np.minimum(low, np.asarray(self.a_max, x.dtype))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        x = call.args[0]
        if self.a_max is not None:
            grad = choose(greater(x, self.a_max), 0, grad, x)
        if self.a_min is not None:
            grad = choose(greater(-x, -self.a_min), 0, grad, x)
        return (grad,)


abs = unary_helper(Abs)
acos = unary_helper(Acos)
acosh = unary_helper(Acosh)
asin = unary_helper(Asin)
asinh = unary_helper(Asinh)
atan = unary_helper(Atan)
atanh = unary_helper(Atanh)
bitwise_not = unary_helper(BitwiseNot)
ceil = unary_helper(Ceil)
copy = unary_helper(Copy)
cos = unary_helper(Cos)
cosh = unary_helper(Cosh)
erf = unary_helper(Erf)
exp = unary_helper(Exp)
floor = unary_helper(Floor)
isfinite = unary_helper(IsFinite)
isinf = unary_helper(IsInf)
isnan = unary_helper(IsNaN)
log = unary_helper(Log)
log1p = unary_helper(Log1p)
log2 = unary_helper(Log2)
log10 = unary_helper(Log10)
logical_not = unary_helper(LogicalNot)
negative = unary_helper(Negative)
round = unary_helper(Round)
rsqrt = unary_helper(Rsqrt)
sigmoid = unary_helper(Sigmoid)
sign = unary_helper(Sign)
sin = unary_helper(Sin)
sinh = unary_helper(Sinh)
sqrt = unary_helper(Sqrt)
tan = unary_helper(Tan)
tanh = unary_helper(Tanh)
trunc = unary_helper(Trunc)


def cast(data: Expr, dtype: str) -> Call:
    """`data` converted to type `dtype`."""
    return Cast(dtype=dtype)(data)


def reinterpret(data: Expr, dtype: str) -> Call:
    """The bits of `data` reinterpreted as type `dtype`."""
    return Reinterpret(dtype=dtype)(data)


def clip(a: Expr, a_min: float | None = None, a_max: float | None = None) -> Call:
    """`a` limited to [a_min, a_max]."""
    return Clip(a_min=a_min, a_max=a_max)(a)
