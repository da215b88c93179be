"""Elementwise functions of one tensor (TVM: `topi.math`).

Low-precision floats (float16, bfloat16) are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import PrimExpr, call_intrin, ops
from relayc.topi.tag import ELEMWISE
from relayc.topi.utils import full_precision

__all__ = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "cast", "ceil", "clip", "copy", "cos",
    "cosh", "elementwise", "erf", "exp", "floor", "isfinite", "isinf", "isnan", "log", "log1p", "log2", "log10",
    "logical_not", "negative", "reinterpret", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc",
]  # fmt: skip


def elementwise(f: Callable[[PrimExpr], PrimExpr], x: Tensor, name: str) -> Tensor:
    """The tensor of ``f(x[i])``."""
    return te.compute(x.shape, lambda *i: f(x(*i)), name=name, tag=ELEMWISE)


def _unary(name: str, f: Callable[[Any], PrimExpr], doc: str) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        return elementwise(lambda v: full_precision(f, v), x, name)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = doc
    return apply


abs = _unary("abs", te.abs, "The absolute value.")
acos = _unary("acos", te.acos, "Arc cosine.")
acosh = _unary("acosh", te.acosh, "Inverse hyperbolic cosine.")
asin = _unary("asin", te.asin, "Arc sine.")
asinh = _unary("asinh", te.asinh, "Inverse hyperbolic sine.")
atan = _unary("atan", te.atan, "Arc tangent.")
atanh = _unary("atanh", te.atanh, "Inverse hyperbolic tangent.")
ceil = _unary("ceil", te.ceil, "The smallest integer value not below x.")
cos = _unary("cos", te.cos, "Cosine of radians.")
cosh = _unary("cosh", te.cosh, "Hyperbolic cosine.")
erf = _unary("erf", te.erf, "The error function.")
exp = _unary("exp", te.exp, "e to the power x.")
floor = _unary("floor", te.floor, "The largest integer value not above x.")
log = _unary("log", te.log, "Natural logarithm.")
log1p = _unary("log1p", te.log1p, "log(1 + x), exact near 0.")
log2 = _unary("log2", te.log2, "Logarithm to base 2.")
log10 = _unary("log10", te.log10, "Logarithm to base 10.")
negative = _unary("negative", ops.neg, "-x; integers wrap.")
round = _unary("round", te.round, "The nearest integer value, ties to even.")
rsqrt = _unary("rsqrt", te.rsqrt, "1 / sqrt(x).")
sigmoid = _unary("sigmoid", te.sigmoid, "1 / (1 + exp(-x)).")
sin = _unary("sin", te.sin, "Sine of radians.")
sinh = _unary("sinh", te.sinh, "Hyperbolic sine.")
sqrt = _unary("sqrt", te.sqrt, "Square root.")
tan = _unary("tan", te.tan, "Tangent of radians.")
tanh = _unary("tanh", te.tanh, "Hyperbolic tangent.")
trunc = _unary("trunc", te.trunc, "x without its fraction.")


def isnan(x: Tensor) -> Tensor:
    """Is x not a number? (bool)"""
    return elementwise(te.isnan, x, "isnan")


def isinf(x: Tensor) -> Tensor:
    """Is x an infinity? (bool)"""
    return elementwise(te.isinf, x, "isinf")


def isfinite(x: Tensor) -> Tensor:
    """Is x neither infinite nor NaN? (bool)"""
    return elementwise(te.isfinite, x, "isfinite")


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1 as x is below, at or above 0, that of -0.0 is 0.0; NaN stays NaN."""

    def f(v: PrimExpr) -> PrimExpr:
        one, zero = te.const(1, v.dtype), te.const(0, v.dtype)
        neither = te.select(v == zero, zero, v) if v.dtype.is_float else v
        below = te.select(v < zero, te.const(-1, v.dtype), neither) if not v.dtype.is_uint else v
        return te.select(v > zero, one, below)

    return elementwise(f, x, "sign")


def logical_not(x: Tensor) -> Tensor:
    """not x, of bool."""
    return elementwise(ops.logical_not, x, "logical_not")


def bitwise_not(x: Tensor) -> Tensor:
    """All bits of an integer flipped."""
    return elementwise(ops.bitwise_not, x, "bitwise_not")


def copy(x: Tensor) -> Tensor:
    """A copy in another buffer."""
    return elementwise(lambda v: v, x, "copy")


def cast(x: Tensor, dtype: str) -> Tensor:
    """x converted: float to int truncates, int to a narrower int wraps, anything to bool is ``!= 0``."""
    return elementwise(lambda v: te.cast(dtype, v), x, "cast")


def reinterpret(x: Tensor, dtype: str) -> Tensor:
    """The bits of x reinterpreted as another type of its width."""
    return elementwise(lambda v: call_intrin(dtype, "reinterpret", v), x, "reinterpret")


def clip(x: Tensor, a_min: float | None, a_max: float | None) -> Tensor:
    """x limited to [a_min, a_max]; None leaves a side open. NaN stays NaN."""

    def f(v: PrimExpr) -> PrimExpr:
        if a_min is not None:
            v = te.maximum(v, te.const(a_min, v.dtype))
        return v if a_max is None else te.minimum(v, te.const(a_max, v.dtype))

    return elementwise(f, x, "clip")
