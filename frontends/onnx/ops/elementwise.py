"""Elementwise and broadcasting operators: arithmetic, comparison, logic, selection, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import broadcast_pair, float_const, legacy_broadcast
from relayc.frontends.onnx.registry import convert_with, converter
from relayc.relay import op
from relayc.relay.expr import Expr
from relayc.relay.type import shapes_match

Unary = Callable[[Expr], Expr]
Binary = Callable[[Expr, Expr], Expr]

_UNARY: dict[str, Unary] = {
    "Abs": op.abs,
    "Acos": op.acos,
    "Acosh": op.acosh,
    "Asin": op.asin,
    "Asinh": op.asinh,
    "Atan": op.atan,
    "Atanh": op.atanh,
    "BitwiseNot": op.bitwise_not,
    "Ceil": op.ceil,
    "Cos": op.cos,
    "Cosh": op.cosh,
    "Erf": op.erf,
    "Exp": op.exp,
    "Floor": op.floor,
    "IsNaN": op.isnan,
    "Log": op.log,
    "Neg": op.negative,
    "Not": op.logical_not,
    "Mish": op.nn.mish,
    "Relu": op.nn.relu,
    "Round": op.round,
    "Sigmoid": op.sigmoid,
    "Sign": op.sign,
    "Sin": op.sin,
    "Sinh": op.sinh,
    "Softplus": op.nn.softplus,
    "Softsign": op.nn.softsign,
    "Sqrt": op.sqrt,
    "Tan": op.tan,
    "Tanh": op.tanh,
}

_BINARY: dict[str, Binary] = {
    "Add": op.add,
    "And": op.logical_and,
    "Equal": op.equal,
    "Greater": op.greater,
    "Less": op.less,
    "Mul": op.multiply,
    "Or": op.logical_or,
    "Sub": op.subtract,
    "Xor": op.logical_xor,
}

_BINARY_SINCE_7: dict[str, Binary] = {
    "BitwiseAnd": op.bitwise_and,
    "BitwiseOr": op.bitwise_or,
    "BitwiseXor": op.bitwise_xor,
    "GreaterOrEqual": op.greater_equal,
    "LessOrEqual": op.less_equal,
}


def _unary(function: Unary) -> Callable[[OnnxNode], Expr]:
    return lambda node: function(node[0])


def _binary(function: Binary) -> Callable[[OnnxNode], Expr]:
    return lambda node: function(node[0], node[1])


def _legacy_binary(function: Binary) -> Callable[[OnnxNode], Expr]:
    return lambda node: function(*legacy_broadcast(node))


for _name, _function in _UNARY.items():
    convert_with(_unary(_function), _name)
for _name, _function in _BINARY.items():
    convert_with(_legacy_binary(_function), _name, since=1)
    convert_with(_binary(_function), _name, since=7)
for _name, _function in _BINARY_SINCE_7.items():
    convert_with(_binary(_function), _name)


def _divide(a: Expr, b: Expr) -> Expr:
    """Division; of integers it truncates toward zero."""
    return op.divide(a, b) if a.dtype.is_float else op.trunc_divide(a, b)


convert_with(_legacy_binary(_divide), "Div", since=1)
convert_with(_binary(_divide), "Div", since=7)


@converter("Pow", since=1)
def pow_1(node: OnnxNode) -> Expr:
    return op.power(*legacy_broadcast(node))


@converter("Pow", since=7)
def pow_7(node: OnnxNode) -> Expr:
    """The result has the element type of the base."""
    base, exponent = node[0], node[1]
    if base.dtype == exponent.dtype:
        return op.power(base, exponent)
    wide = "float64" if base.dtype.bits > 32 or exponent.dtype.bits > 32 else "float32"
    if base.dtype.is_float:
        return op.power(base, op.cast(exponent, base.dtype))
    if exponent.dtype.is_integral:
        return op.power(base, op.cast(exponent, base.dtype))
    return op.cast(op.power(op.cast(base, wide), op.cast(exponent, wide)), base.dtype)


@converter("Mod", since=10)
def mod(node: OnnxNode) -> Expr:
    """`fmod` = 1 keeps the dividend's sign (C's fmod), 0 the divisor's (Python's %)."""
    divided, divisor = node[0], node[1]
    return (op.trunc_mod if node.attr_bool("fmod", False) else op.floor_mod)(divided, divisor)


@converter("BitShift", since=11)
def bit_shift(node: OnnxNode) -> Expr:
    direction = node.attr_choice("direction", ("LEFT", "RIGHT"), "")
    return (op.left_shift if direction == "LEFT" else op.right_shift)(node[0], node[1])


@converter("Reciprocal")
def reciprocal(node: OnnxNode) -> Expr:
    return op.divide(float_const(1.0, node[0]), node[0])


@converter("IsInf", since=10)
def is_inf(node: OnnxNode) -> Expr:
    x = node[0]
    positive, negative = node.attr_bool("detect_positive", True), node.attr_bool("detect_negative", True)
    if positive and negative:
        return op.isinf(x)
    if positive:
        return op.equal(x, float_const(math.inf, x))
    if negative:
        return op.equal(x, float_const(-math.inf, x))
    return op.not_equal(x, x) if not x.dtype.is_float else op.logical_and(op.isinf(x), op.isnan(x))


@converter("Identity")
def identity(node: OnnxNode) -> list[Expr]:
    return [node[0]]


@converter("Where", since=9)
def where(node: OnnxNode) -> Expr:
    return op.where(node[0], node[1], node[2])


def _fold_left(function: Binary) -> Callable[[OnnxNode], Expr]:
    return lambda node: reduce(function, node.all_inputs())


convert_with(_fold_left(op.add), "Sum")
convert_with(_fold_left(op.maximum), "Max")
convert_with(_fold_left(op.minimum), "Min")


@converter("Mean")
def mean(node: OnnxNode) -> Expr:
    inputs = node.all_inputs()
    total = reduce(op.add, inputs)
    return total if len(inputs) == 1 else op.divide(total, float_const(float(len(inputs)), total))


@converter("Clip", since=1)
def clip_1(node: OnnxNode) -> Expr:
    """Bounds are attributes; without them the range of float32."""
    limits = np.finfo(np.float32)
    low, high = node.attr_float("min", float(limits.min)), node.attr_float("max", float(limits.max))
    return op.clip(node[0], low, high)


@converter("Clip", since=11)
def clip(node: OnnxNode) -> Expr:
    """min(max(x, low), high); bounds are optional scalars."""
    x, low, high = node[0], node.known_value(1), node.known_value(2)
    floats = x.dtype.is_float and x.dtype.bits >= 32
    if floats and low is not None and high is not None and low.size == 1 and high.size == 1:
        return op.clip(x, float(low.reshape(-1)[0]), float(high.reshape(-1)[0]))
    for index, bound in ((1, op.maximum), (2, op.minimum)):
        limit = node.get(index)
        if limit is not None:
            x = bound(x, op.reshape(limit, ()) if node.rank(index) else limit)
    return x


# activations ----------------------------------------------------------------------------------------------------------


@converter("LeakyRelu")
def leaky_relu(node: OnnxNode) -> Expr:
    return op.nn.leaky_relu(node[0], node.attr_float("alpha", 0.01))


@converter("PRelu", since=1)
def prelu(node: OnnxNode) -> Expr:
    """x where x >= 0, else slope * x. Before opset 7 a slope of rank 1 is per channel."""
    x, slope = node[0], node[1]
    if node.opset < 7 and node.rank(1) == 1 and node.rank(0) > 2 and node.shape(1)[0] != 1:
        slope = op.reshape(slope, (*node.shape(1), *[1] * (node.rank(0) - 2)))
    x, slope = broadcast_pair(x, slope)
    zero = _zero(x)
    return op.where(op.less(x, zero), op.multiply(slope, x), x)


@converter("Elu")
def elu(node: OnnxNode) -> Expr:
    return op.nn.elu(node[0], node.attr_float("alpha", 1.0))


@converter("Selu")
def selu(node: OnnxNode) -> Expr:
    legacy = node.opset < 6
    alpha = node.attr_float("alpha", 1.6732 if legacy else 1.67326319217681884765625)
    return op.nn.selu(node[0], alpha, node.attr_float("gamma", 1.0507 if legacy else 1.05070102214813232421875))


@converter("Celu", since=12)
def celu(node: OnnxNode) -> Expr:
    return op.nn.celu(node[0], node.attr_float("alpha", 1.0))


@converter("ThresholdedRelu")
def thresholded_relu(node: OnnxNode) -> Expr:
    return op.nn.thresholded_relu(node[0], node.attr_float("alpha", 1.0))


@converter("HardSigmoid")
def hard_sigmoid(node: OnnxNode) -> Expr:
    return op.nn.hard_sigmoid(node[0], node.attr_float("alpha", 0.2), node.attr_float("beta", 0.5))


@converter("HardSwish", since=14)
def hard_swish(node: OnnxNode) -> Expr:
    """Hard swish; float64 uses 1/6 rounded to float32, as ONNX's function body does."""
    x = node[0]
    if x.dtype == "float64":
        return op.multiply(x, op.nn.hard_sigmoid(x, float(np.float32(1 / 6)), 0.5))
    return op.nn.hard_swish(x)


@converter("Swish", since=24)
def swish(node: OnnxNode) -> Expr:
    return _swish(node[0], node.attr_float("alpha", 1.0))


def _swish(x: Expr, alpha: float) -> Expr:
    return op.nn.silu(x) if alpha == 1.0 else op.multiply(x, op.sigmoid(op.multiply(float_const(alpha, x), x)))


@converter("SwiGLU", since=28)
def swiglu(node: OnnxNode) -> Expr:
    """swish(a) * b."""
    if node.dtype(0) != node.dtype(1) or not shapes_match(node.type(0).shape, node.type(1).shape):
        raise node.error("two inputs of different types", expected="one shape and element type")
    return op.multiply(_swish(node[0], node.attr_float("alpha", 1.0)), node[1])


@converter("Shrink", since=9)
def shrink(node: OnnxNode) -> Expr:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    x, bias, lambd = node[0], node.attr_float("bias", 0.0), node.attr_float("lambd", 0.5)
    above = op.where(op.greater(x, float_const(lambd, x)), op.subtract(x, float_const(bias, x)), _zero(x))
    return op.where(op.less(x, float_const(-lambd, x)), op.add(x, float_const(bias, x)), above)


@converter("Gelu", since=20)
def gelu(node: OnnxNode) -> Expr:
    return op.nn.gelu(node[0], node.attr_choice("approximate", ("none", "tanh"), "none") == "tanh")


def _zero(x: Expr) -> Any:
    return float_const(0.0, x)
