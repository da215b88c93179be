"""Random number operators, by a counter-based generator in compiled code (`relay.op.random`).

As in onnxruntime, each node has a generator of its own. One with the attribute "seed" draws the same sequence in each
executor, two with equal seeds draw equal numbers, and one without draws others in each executor. Each run draws new
numbers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from relayc.backend.runtime.context import RANDOM_STREAMS
from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import float_const
from relayc.frontends.onnx.registry import converter
from relayc.frontends.onnx.tensors import check_shape, dtype_name
from relayc.relay import op
from relayc.relay.expr import Call, Expr
from relayc.te.tir import Dim

_FLOATS = ("float16", "float32", "float64", "bfloat16")


def _key(node: OnnxNode) -> Call:
    seed = node.attrs.get_int("seed") if node.op_type == "Dropout" else node.attrs.get_float("seed")
    origin = node.where.encode() if seed is None else struct.pack("<d", seed)
    number = node.count_random() % RANDOM_STREAMS
    return op.random.key(zlib.crc32(origin), number if seed is not None else RANDOM_STREAMS + number)


def _dtype(node: OnnxNode, default: str) -> str:
    """The attribute "dtype", a float type."""
    number = node.attrs.get_int("dtype")
    dtype = default if number is None else dtype_name(number, node.where)
    if dtype not in _FLOATS:
        raise node.error(f"random numbers of type {dtype}", expected="a float type")
    return dtype


def _shape(node: OnnxNode) -> Sequence[Dim]:
    """The attribute "shape", or the shape of the input of a ...Like operator."""
    if node.op_type.endswith("Like"):
        return node.type(0).shape
    shape = node.attr_ints("shape")
    check_shape(shape, node.where)
    return shape


def _default_type(node: OnnxNode) -> str:
    return str(node.dtype(0)) if node.op_type.endswith("Like") else "float32"


@converter("RandomUniform", "RandomUniformLike", since=1)
def random_uniform(node: OnnxNode) -> Expr:
    low, high = node.attr_float("low", 0.0), node.attr_float("high", 1.0)
    return op.random.uniform(_key(node), _shape(node), _dtype(node, _default_type(node)), low, high)


@converter("RandomNormal", "RandomNormalLike", since=1)
def random_normal(node: OnnxNode) -> Expr:
    mean, scale = node.attr_float("mean", 0.0), node.attr_float("scale", 1.0)
    return op.random.normal(_key(node), _shape(node), _dtype(node, _default_type(node)), mean, scale)


@converter("Bernoulli", since=15)
def bernoulli(node: OnnxNode) -> Expr:
    """1 with the input's probability. (ONNX's function body compares the other way round.)"""
    p = node[0]
    number = node.attrs.get_int("dtype")
    drawn = op.random.uniform(_key(node), p.shape, str(p.dtype))
    return op.cast(op.less(drawn, p), str(p.dtype) if number is None else dtype_name(number, node.where))


@converter("Multinomial", since=7)
def multinomial(node: OnnxNode) -> Expr:
    """Samples classes per row by unnormalised log-probabilities.

    Inverse transform sampling: a uniform number times the row's sum selects the class by the cumulative sum.
    """
    batch, classes = node.type(0).shape
    count = node.attr_int("sample_size", 1)
    number = node.attrs.get_int("dtype")
    dtype = "int32" if number is None else dtype_name(number, node.where)
    if count < 1 or dtype not in ("int32", "int64"):
        raise node.error(f"{count} samples of type {dtype}", expected="1 or more, of int32 or int64")
    logits = op.cast(node[0], "float32")
    weights = op.exp(op.subtract(logits, op.max(logits, axis=1, keepdims=True)))
    sums = op.cumsum(weights, axis=1)
    total = op.max(sums, axis=1, keepdims=True)
    drawn = op.multiply(op.random.uniform(_key(node), (batch, count)), total)
    passed = op.less_equal(op.expand_dims(sums, 1), op.expand_dims(drawn, 2))
    chosen = op.sum(op.cast(passed, "int32"), axis=2)
    last = op.size_tensor((classes,), (), "int32")
    return op.cast(op.minimum(chosen, op.subtract(last, op.ones((), "int32"))), dtype)


@converter("Dropout", since=1)
def dropout_1(node: OnnxNode) -> list[Expr | None]:
    """Dropout before opset 12: always inference, the identity; the mask is all true."""
    node.attrs.ignore("ratio", "is_test")
    return _kept(node, "bool" if node.opset >= 10 else str(node.dtype(0)))


@converter("Dropout", since=12)
def dropout(node: OnnxNode) -> list[Expr | None]:
    """Identity in inference; in training, zeroes elements with probability `ratio` and rescales."""
    x, training = node[0], node.get(2)
    known = None if training is None else node.value_or_none(training)
    if training is None or (known is not None and not known.any()):
        node.attrs.ignore("seed")
        return _kept(node, "bool")
    ratio = float_const(0.5, x) if node.get(1) is None else op.reshape(op.cast(node[1], str(x.dtype)), ())
    drawn = op.random.uniform(_key(node), x.shape, str(x.dtype))
    mask = op.greater_equal(drawn, ratio)
    if known is None:
        mask = op.logical_or(mask, op.logical_not(op.reshape(training, ())))
        ratio = op.where(op.reshape(training, ()), ratio, float_const(0.0, x))
    scale = op.divide(float_const(1.0, x), op.subtract(float_const(1.0, x), ratio))
    zero = float_const(0.0, x)
    return [op.where(mask, op.multiply(x, scale), zero), mask]


def _kept(node: OnnxNode, mask: str) -> list[Expr | None]:
    x = node[0]
    return [x, op.ones(x.shape, mask)] if node.wants(1) else [x]
