"""Conversions of element types."""

from __future__ import annotations

import math

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.registry import converter
from relayc.frontends.onnx.tensors import dtype_name
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.op.strings import Format, Parse
from relayc.te.dtype import dtype

__all__ = ["cast_to"]


@converter("Cast", since=1)
def cast_1(node: OnnxNode) -> Expr:
    """Cast before opset 6, whose target type is a string."""
    wanted = node.attr_str("to").lower()
    return _cast_with_attributes(node, {"float": "float32", "double": "float64"}.get(wanted, wanted))


@converter("Cast", since=6)
def cast(node: OnnxNode) -> Expr:
    return _cast_with_attributes(node, dtype_name(node.attr_int("to"), node.where))


@converter("CastLike", since=15)
def cast_like(node: OnnxNode) -> Expr:
    return _cast_with_attributes(node, node.dtype(1))


def _cast_with_attributes(node: OnnxNode, to: str) -> Expr:
    if "string" in (node.dtype(0), to):
        return node[0] if node.dtype(0) == to else _formatted(node[0]) if to == "string" else _parsed(node[0], to)
    saturate = node.attr_bool("saturate", True)
    return cast_to(node[0], to, saturate, node.attr_choice("round_mode", ("up", "down", "nearest"), "up"))


def _parsed(x: Expr, to: str) -> Expr:
    """Parse strings as numbers, plain or scientific; floats may be "inf" and "nan"."""
    return op.cast(Parse(dtype="float64" if dtype(to).is_float else "int64")(x), to)


def _formatted(x: Expr) -> Expr:
    """Format values as onnxruntime does: 8 significant digits for float32 and below, 17 for float64."""
    if x.dtype.is_float and x.dtype not in ("float32", "float64"):
        x = op.cast(x, "float32")
    elif x.dtype.bits < 8 and not x.dtype.is_bool:
        x = op.cast(x, "int32")
    return Format(digits=17 if x.dtype == "float64" else 8)(x)


_FLOAT8_LIMITS = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0, "float8_e5m2fnuz": 57344.0}


def cast_to(x: Expr, to: str, saturate: bool = True, round_mode: str = "up") -> Expr:
    """Cast `x`; casts to float8 saturate at the largest finite value, or without `saturate` give infinity or NaN.

    `round_mode` concerns float8_e8m0fnu only: "up", "down", or "nearest", ties up.
    """
    if x.dtype == to:
        return x
    if to == "float8_e8m0fnu":
        return _power_of_two(op.cast(x, "float32"), saturate, round_mode)
    limit = _FLOAT8_LIMITS.get(to)
    if limit is not None and saturate:
        wide = x if x.dtype.is_float and x.dtype.bits >= 16 else op.cast(x, "float32")
        return op.cast(op.clip(wide, -limit, limit), to)
    return op.cast(x, to)


def _power_of_two(x: Expr, saturate: bool, round_mode: str) -> Expr:
    """Convert float32 `x` to float8_e8m0fnu, in which e encodes 2^(e - 127), and 255 NaN.

    The result is the exponent of `x`, rounded by the mantissa. Values out of range, or not positive, become the nearest
    end of the range when saturating, else NaN.
    """
    bits = op.reinterpret(x, "int32")
    carry = {"up": 0x7FFFFF, "down": 0, "nearest": 0x400000}[round_mode]
    code = op.right_shift(op.add(bits, _word(carry)), _word(23))
    code = op.where(op.less_equal(bits, _word(0x400000)), _word(0), code)  # denormals up to 2^-127
    past = op.greater(code, _word(254))
    if saturate:
        bad = op.isnan(x)
        code = op.where(op.logical_or(past, op.equal(x, Constant(np.array(math.inf, np.float32)))), _word(254), code)
    else:
        bad = op.logical_or(op.less(bits, _word(0x400000)), past)
        bad = op.logical_or(bad, op.logical_or(op.isnan(x), op.isinf(x)))
    return op.reinterpret(op.cast(op.where(bad, _word(255), code), "uint8"), "float8_e8m0fnu")


def _word(value: int) -> Constant:
    return Constant(np.array(value, np.int32))


@converter("BitCast", since=26)
def bit_cast(node: OnnxNode) -> Expr:
    """Reinterprets the bits as another element type of equal width."""
    to = dtype_name(node.attr_int("to"), node.where)
    if node.dtype(0) == to:
        return node[0]
    if "bool" in (to, node.dtype(0)):  # a bool is stored as a byte of 0 or 1
        return op.cast(node[0], to)
    return op.reinterpret(node[0], to)
