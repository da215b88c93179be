"""Mathematical functions of expressions. (TVM: the functions of `tvm.te` and `tvm.tir.op`.)

Integer arguments of a function of real numbers are taken as float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relayc.te.dtype import FLOAT32, INT32
from relayc.te.errors import CompileError
from relayc.te.tir import ops
from relayc.te.tir.expr import PrimExpr
from relayc.te.tir.ops import call_intrin, cast, convert

__all__ = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "byte_pairs",
    "ceil",
    "clz",
    "cos",
    "cosh",
    "dot2",
    "dot2_bfloat16",
    "dot4",
    "dot8",
    "erf",
    "exp",
    "exp2",
    "exp_nonpositive",
    "expand_dot2_bfloat16",
    "expm1",
    "fast_exp",
    "fast_gelu",
    "fast_rsqrt",
    "floor",
    "fma",
    "fmod",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log1p_fraction",
    "log2",
    "log10",
    "nearbyint",
    "popcount",
    "pow",
    "power",
    "round",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]  # fmt: skip


def _real(x: Any) -> PrimExpr:
    x = convert(x)
    return x if x.dtype.is_float else cast("float32", x)


def _unary(op: str, doc: str) -> Callable[[Any], PrimExpr]:
    def function(x: Any) -> PrimExpr:
        x = _real(x)
        return call_intrin(x.dtype, op, x)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = doc
    return function


exp = _unary("exp", "e to the power x")
exp_nonpositive = _unary("exp_nonpositive", "exp(x) of x <= 64 or NaN, cheaper than exp")
fast_exp = _unary("fast_exp", "exp(x), to 15 bits; above x = 64 any value above e^64")
exp2 = _unary("exp2", "2 to the power x")
expm1 = _unary("expm1", "exp(x) - 1, exact near 0")
log = _unary("log", "Natural logarithm.")
log2 = _unary("log2", "Logarithm to base 2.")
log10 = _unary("log10", "Logarithm to base 10.")
log1p = _unary("log1p", "log(1 + x), exact near 0")
log1p_fraction = _unary("log1p_fraction", "log(1 + x) of x within [0, 1] or NaN, cheaper than log1p")
sqrt = _unary("sqrt", "Square root.")
rsqrt = _unary("rsqrt", "1 / sqrt(x)")
fast_gelu = _unary("fast_gelu", "x Phi(x), Phi the normal distribution, to 13 bits, enough for 16-bit floats")
fast_rsqrt = _unary("fast_rsqrt", "1 / sqrt(x) of positive normal x, with an error of up to 3 ulp: a refined estimate")
sin = _unary("sin", "Sine of radians.")
cos = _unary("cos", "Cosine of radians.")
tan = _unary("tan", "Tangent of radians.")
asin = _unary("asin", "Arc sine.")
acos = _unary("acos", "Arc cosine.")
atan = _unary("atan", "Arc tangent.")
sinh = _unary("sinh", "Hyperbolic sine.")
cosh = _unary("cosh", "Hyperbolic cosine.")
tanh = _unary("tanh", "Hyperbolic tangent.")
asinh = _unary("asinh", "Inverse hyperbolic sine.")
acosh = _unary("acosh", "Inverse hyperbolic cosine.")
atanh = _unary("atanh", "Inverse hyperbolic tangent.")
erf = _unary("erf", "The error function.")
sigmoid = _unary("sigmoid", "1 / (1 + exp(-x))")


def _rounding(op: str, doc: str) -> Callable[[Any], PrimExpr]:
    def function(x: Any) -> PrimExpr:
        x = convert(x)
        return call_intrin(x.dtype, op, x) if x.dtype.is_float else x

    function.__name__ = function.__qualname__ = op
    function.__doc__ = doc
    return function


floor = _rounding("floor", "The largest integer value not above x; integers stay as they are.")
ceil = _rounding("ceil", "The smallest integer value not below x; integers stay as they are.")
trunc = _rounding("trunc", "x without its fraction; integers stay as they are.")
round = _rounding("round", "The nearest integer value, ties to even; integers stay as they are.")
nearbyint = round


def abs(x: Any) -> PrimExpr:
    """The absolute value; the lowest signed integer is its own absolute value."""
    x = convert(x)
    if x.dtype.is_float:
        return call_intrin(x.dtype, "fabs", x)
    return ops.maximum(x, ops.neg(x)) if x.dtype.is_int else x


def pow(x: Any, y: Any) -> PrimExpr:
    """x to the power y, both brought to one float type."""
    x, y = ops.match_types(x, y)
    if not x.dtype.is_float:
        x, y = cast("float32", x), cast("float32", y)
    return call_intrin(x.dtype, "pow", x, y)


power = pow


def atan2(y: Any, x: Any) -> PrimExpr:
    """The angle of the point (x, y)."""
    y, x = ops.match_types(_real(y), _real(x))
    return call_intrin(y.dtype, "atan2", y, x)


def fmod(x: Any, y: Any) -> PrimExpr:
    """C remainder, with the sign of x; on integers the remainder of truncated division."""
    x, y = ops.match_types(x, y)
    return call_intrin(x.dtype, "fmod", x, y) if x.dtype.is_float else ops.truncmod(x, y)


def fma(a: Any, b: Any, c: Any) -> PrimExpr:
    """a * b + c in one instruction where the target has it."""
    a, b = ops.match_types(a, b)
    return call_intrin(a.dtype, "fma", a, b, cast(a.dtype, c))


def _predicate(op: str, of_integers: bool, doc: str) -> Callable[[Any], PrimExpr]:
    def function(x: Any) -> PrimExpr:
        x = convert(x)
        to = ops.equal(x, x).dtype
        return call_intrin(to, op, x) if x.dtype.is_float else ops.make_const(to, of_integers)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = doc
    return function


isnan = _predicate("isnan", False, "Is x not a number?")
isinf = _predicate("isinf", False, "Is x an infinity?")
isfinite = _predicate("isfinite", True, "Is x neither infinite nor NaN?")


def byte_pairs(x: Any) -> PrimExpr:
    """The two signed bytes of an int16 `x`, sign-extended to two 16-bit values of an int32: an operand of `dot2`."""
    x = convert(x)
    if x.dtype.element != "int16":
        raise CompileError(f"byte_pairs takes int16 operands, got {x.dtype}")
    return call_intrin(INT32.with_lanes(x.dtype.lanes), "byte_pairs", x)


def dot2(x: Any, y: Any) -> PrimExpr:
    """A 2-way dot product: the int32 sum of the products of the signed 16-bit halves of int32 `x` and `y`.

    On x86 it is pmaddwd or vpdpwssd.
    """
    x, y = ops.match_types(convert(x), convert(y))
    if x.dtype.element != "int32":
        raise CompileError(f"dot2 takes int32 operands, got {x.dtype}")
    return call_intrin(x.dtype, "dot2", x, y)


def dot2_bfloat16(x: Any, y: Any) -> PrimExpr:
    """A 2-way dot product: the float32 sum of the products of the bfloat16 halves of int32 `x` and `y`.

    On x86 it is vdpbf16ps, which rounds once for each product and treats denormals as 0.
    """
    x, y = ops.match_types(convert(x), convert(y))
    if x.dtype.element != "int32":
        raise CompileError(f"dot2_bfloat16 takes int32 operands, got {x.dtype}")
    return call_intrin(FLOAT32.with_lanes(x.dtype.lanes), "dot2_bfloat16", x, y)


def expand_dot2_bfloat16(x: PrimExpr, y: PrimExpr, onto: PrimExpr | None = None) -> PrimExpr:
    """`dot2_bfloat16` by products of float32, added to `onto`: for processors without the instruction."""
    kind, total = FLOAT32.with_lanes(x.dtype.lanes), onto
    for half in (lambda v: ops.left_shift(v, 16), lambda v: ops.bitwise_and(v, -(1 << 16))):
        product = call_intrin(kind, "reinterpret", half(x)) * call_intrin(kind, "reinterpret", half(y))
        total = product if total is None else total + product
    assert total is not None
    return total


def dot4(x: Any, y: Any) -> PrimExpr:
    """A 4-way dot product: the int32 sum of the products of the unsigned bytes of `x` and the signed bytes of `y`.

    The two products of each half must add up to a 16-bit value: pmaddubsw, the instruction of x86 without VNNI,
    saturates there; vpdpbusd does not.
    """
    x, y = ops.match_types(convert(x), convert(y))
    if x.dtype.element != "int32":
        raise CompileError(f"dot4 takes int32 operands, got {x.dtype}")
    return call_intrin(x.dtype, "dot4", x, y)


def dot8(x: Any, y: Any, z: Any, w: Any) -> PrimExpr:
    """An 8-way dot product, ``dot4(x, y) + dot4(z, w)``.

    The four products of the lower halves, and those of the upper halves, must add up to 16-bit values: processors
    without VNNI then extend the 16-bit sums once for eight products.
    """
    x, y = ops.match_types(convert(x), convert(y))
    z, w = ops.match_types(convert(z), convert(w))
    x, z = ops.match_types(x, z)
    y, w = ops.match_types(y, w)
    if x.dtype.element != "int32" or y.dtype != x.dtype:
        raise CompileError(f"dot8 takes int32 operands, got {x.dtype} and {y.dtype}")
    return call_intrin(x.dtype, "dot8", x, y, z, w)


def popcount(x: Any) -> PrimExpr:
    """The number of one bits of an integer."""
    x = convert(x)
    return call_intrin(x.dtype, "popcount", x)


def clz(x: Any) -> PrimExpr:
    """The number of leading zero bits of an integer."""
    x = convert(x)
    return call_intrin(x.dtype, "clz", x)
