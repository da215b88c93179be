"""Quantisation: QuantizeLinear, DequantizeLinear, and quantised products."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.cast import cast_to
from relayc.frontends.onnx.ops.common import reshape_to
from relayc.frontends.onnx.ops.convolution import convolve
from relayc.frontends.onnx.ops.linear import matmul
from relayc.frontends.onnx.registry import convert_with, converter
from relayc.frontends.onnx.tensors import dtype_name
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.sizes import add_sizes, dims_match, is_at_least, product
from relayc.te.dtype import dtype as parse_dtype

__all__ = ["along", "centred", "dequantized", "dynamically_quantized", "q_linear_conv", "quantized"]


@converter("QuantizeLinear", since=10)
def quantize_linear(node: OnnxNode) -> Expr:
    """round(x / scale) + zero point, saturated to the target type."""
    wanted = node.attrs.get_int("output_dtype")
    zero = node.get(2)
    target = "uint8" if not wanted else dtype_name(wanted, node.where)
    target = target if zero is None else str(zero.dtype)
    precision = node.attr_int("precision", 0)
    compute = dtype_name(precision, node.where) if precision else str(node.dtype(1))
    layout = _Layout(node, node.attr_int("axis", 1) if node.opset >= 13 else 0)
    saturate = node.attr_bool("saturate", True)
    known = layout.parameters(target)
    if known is not None and compute == node[0].dtype == "float32":
        scale, zero, axis = known
        return op.qnn.quantize(node[0], scale, zero, axis, target)
    x, scale = op.cast(node[0], compute), op.cast(layout.spread(node[1]), compute)
    return quantized(node, op.divide(x, scale), None if zero is None else layout.spread(zero), target, saturate)


def quantized(node: OnnxNode, x: Expr, zero: Expr | None, target: str, saturate: bool = True) -> Expr:
    """Round `x`, already divided by the scale, to `target`."""
    parsed = parse_dtype(target)
    if parsed.is_float:
        return cast_to(x, target, saturate)
    x = op.round(_at_least_float32(x))
    if zero is not None:
        x = op.add(x, op.cast(zero, x.dtype))
    return op.cast(op.clip(x, float(parsed.min_value()), float(parsed.max_value())), target)


def _at_least_float32(x: Expr) -> Expr:
    return x if x.dtype.is_float and x.dtype.bits >= 32 else op.cast(x, "float32")


@converter("DequantizeLinear", since=10)
def dequantize_linear(node: OnnxNode) -> Expr:
    """(x - zero point) * scale."""
    wanted = node.attr_int("output_dtype", 0)
    target = dtype_name(wanted, node.where) if wanted else str(node.dtype(1))
    layout = _Layout(node, node.attr_int("axis", 1) if node.opset >= 13 else 0)
    known = layout.parameters(str(node.dtype(0)))
    if known is not None and target == "float32":
        return op.qnn.dequantize(node[0], *known)
    blocks = layout.blocks(target)
    if blocks is not None:
        return op.qnn.dequantize_blocks(node[0], *blocks)
    x, zero = op.cast(node[0], "float32"), node.get(2)
    if zero is not None and not zero.dtype.is_float:
        x = op.subtract(x, op.cast(layout.spread(zero), "float32"))
    result = op.multiply(x, op.cast(layout.spread(node[1]), "float32"))
    return result if target == "float32" else op.cast(result, target)


def _constants(scale: Expr, zero: Expr | None, dtype: str) -> tuple[Constant, Constant] | None:
    """Scale and zero point of equal shape, if they are constants for an 8-bit type; else None."""
    constant = isinstance(scale, Constant) and (zero is None or isinstance(zero, Constant))
    fits = dtype in ("uint8", "int8") and (zero is None or zero.dtype == dtype)
    if not constant or not fits or scale.dtype != "float32":
        return None
    scales = _values(scale)
    zeros = np.zeros(scales.shape, dtype) if zero is None else _values(zero)
    if scales.size == zeros.size == 1:
        scales, zeros = scales.reshape(()), zeros.reshape(())
    return (Constant(scales), Constant(zeros)) if scales.shape == zeros.shape else None


def _values(e: Expr) -> np.ndarray[Any, Any]:
    assert isinstance(e, Constant)
    return e.data


class _Layout:
    """Granularity of scales and zero points: per tensor, per axis, or per block of an axis."""

    def __init__(self, node: OnnxNode, axis: int) -> None:
        self.node = node
        self.shape = node.type(0).shape
        self.axis = axis
        self.block = node.attr_int("block_size", 0)

    def parameters(self, dtype: str) -> tuple[Expr, Expr, int] | None:
        """(scale, zero point, axis) for `op.qnn`, if they are constants per tensor or per axis; else None."""
        known = None if self.block else _constants(self.node[1], self.node.get(2), dtype)
        if known is None:
            return None
        self.spread(self.node[1])  # raises where they don't fit
        return (*known, self.node.axis(self.axis, len(self.shape)) if known[0].shape else -1)

    def blocks(self, dtype: str) -> tuple[Expr, Expr, int, int] | None:
        """(scale, zero point, axis, block) for `op.qnn.dequantize_blocks`, of constants of type `dtype`; else None.

        4-bit matrices with a scale for each row or column are taken for ones with a single block in each.
        """
        data, scale, zero = self.node[0], self.node[1], self.node.get(2)
        if not isinstance(data, Constant) or not isinstance(scale, Constant) or scale.dtype != dtype:
            return None
        suits = str(data.dtype) in ("int4", "uint4", "int8", "uint8") and dtype in ("float32", "float16")
        whole = self.block > 0 or (data.dtype.bits == 4 and len(self.shape) == 2 and len(scale.shape) == 1)
        if not suits or not whole or not (zero is None or isinstance(zero, Constant)):
            return None
        self.spread(scale)  # raises where it doesn't fit
        axis, block, scales = self.node.axis(self.axis, len(self.shape)), self.block, scale.data
        if not block:
            axis, scales = 1 - axis, np.expand_dims(scales, 1 - axis)
            block = data.data.shape[axis]
        zeros = np.zeros(scales.shape, data.data.dtype) if zero is None else zero.data.reshape(scales.shape)
        return Constant(scales), Constant(zeros), axis, block

    def spread(self, x: Expr) -> Expr:
        """`x` reshaped, and repeated over blocks, to broadcast with the data."""
        size, rank = x.shape, len(self.shape)
        nowhere = len(size) == 1 and not -rank <= self.axis < rank
        if not size or (size == (1,) and not self.block) or (nowhere and dims_match(size[0], 1)):
            return reshape_to(x, ())
        axis = self.node.axis(self.axis, rank)
        if len(size) == 1 and not self.block:
            if not dims_match(size[0], self.shape[axis]):
                raise self.node.error(f"{size[0]} scales for {self.shape[axis]} indices of axis {axis}")
            return reshape_to(x, tuple(size[0] if i == axis else 1 for i in range(rank)))
        covered = product((size[axis], self.block)) if len(size) == rank else 0
        if self.block < 1 or len(size) != rank or is_at_least(add_sizes(self.shape[axis], -1), covered):
            raise self.node.error(f"scales of shape {list(size)} in blocks of {self.block}")
        return op.qnn.spread_blocks(x, axis, self.block, self.shape[axis])


@converter("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: OnnxNode) -> list[Expr]:
    """uint8 quantisation by the range of x, extended to 0."""
    return list(dynamically_quantized(node[0]))


def dynamically_quantized(x: Expr) -> tuple[Expr, Expr, Expr]:
    """uint8 values, scale and zero point for the range of `x`, extended to 0; the scale of all zeros is 1."""
    scale, zero = op.qnn.choose_qparams(x)
    return op.qnn.quantized(op.divide(x, scale), zero, "uint8"), scale, zero


def _centred(node: OnnxNode, index: int, zero_index: int, axis: int) -> Expr:
    return centred(node, node[index], node.get(zero_index), axis)


def centred(node: OnnxNode, x: Expr, zero: Expr | None, axis: int) -> Expr:
    """`x` as int32 minus its zero point, per tensor or per `axis`."""
    x = op.cast(x, "int32")
    if zero is None or (isinstance(zero, Constant) and not zero.data.any()):
        return x
    return op.subtract(x, op.cast(along(node, zero, axis, len(x.shape)), "int32"))


def along(node: OnnxNode, x: Expr, axis: int, rank: int) -> Expr:
    """Reshape a vector to broadcast along `axis` of a tensor of rank `rank`; other shapes are unchanged."""
    if len(x.shape) > 1:
        return x
    (size,) = x.shape or (1,)
    if isinstance(size, int) and size == 1:
        return reshape_to(x, ())
    return reshape_to(x, tuple(size if i == axis % rank else 1 for i in range(rank)))


@converter("MatMulInteger", since=10)
def mat_mul_integer(node: OnnxNode) -> Expr:
    a = _centred(node, 0, 2, -2 if node.rank(0) > 1 else -1)
    return matmul(node, a, _centred(node, 1, 3, -1))


@converter("ConvInteger", since=10)
def conv_integer(node: OnnxNode) -> Expr:
    return convolve(node, _centred(node, 0, 2, 1), _centred(node, 1, 3, 0))


@converter("QLinearMatMul", since=10)
def q_linear_mat_mul(node: OnnxNode) -> Expr:
    """Quantised matrix product.

    Inputs: A, its scale and zero point, B, its scale and zero point, the result's scale and zero point."""
    operands = _dequantized_operands(node, -1)
    if operands is not None:
        return _codes(node, matmul(node, *operands))
    a = _centred(node, 0, 2, -2 if node.rank(0) > 1 else -1)
    product = matmul(node, a, _centred(node, 3, 5, -1))
    rank = len(product.shape)
    scales = [along(node, node[1], -2, rank), along(node, node[4], -1, rank), along(node, node[6], -2, rank)]
    return _requantized(node, product, scales, along(node, node[7], -2, rank))


def q_linear_conv(node: OnnxNode) -> Expr:
    """Quantised convolution.

    Inputs: X, its scale and zero point, W, its scale and zero point, the result's, and an int32 bias."""
    operands, bias = _dequantized_operands(node, 0), node.get(8)
    if operands is not None and (bias is None or isinstance(bias, Constant)):
        real = convolve(node, *operands)
        if bias is not None:
            unit = _values(node[1]).reshape(()) * _values(node[4]).reshape(-1)
            real = op.add(real, along(node, Constant((_values(bias) * unit).astype(np.float32)), 1, len(real.shape)))
        return _codes(node, real)
    data, weight = _centred(node, 0, 2, 1), _centred(node, 3, 5, 0)
    product = convolve(node, data, weight)
    rank = len(product.shape)
    if bias is not None:
        product = op.add(product, along(node, bias, 1, rank))
    scales = [along(node, node[1], 1, rank), along(node, node[4], 1, rank), along(node, node[6], 1, rank)]
    return _requantized(node, product, scales, along(node, node[7], 1, rank))


def _dequantized_operands(node: OnnxNode, axis: int) -> tuple[Expr, Expr] | None:
    """The dequantised operands of a quantised product, for passes to compute in integers; None if not applicable.

    Requires constant scales and zero points, per tensor but for the weights, which have to be constant and may be
    quantised per `axis`.
    """
    data, weight = [dequantized(node, index, node.get(index + 1), node.get(index + 2), axis) for index in (0, 3)]
    result = [node.get(index) for index in (6, 7)]
    one = all(isinstance(e, Constant) and e.data.size == 1 for e in (node[1], *result))
    constant = isinstance(node[3], Constant) and len(node[3].shape) >= 2
    if data is None or weight is None or not one or not constant:
        return None
    return (data, weight) if str(node.dtype(7)) in ("uint8", "int8") and node.dtype(6) == "float32" else None


def _codes(node: OnnxNode, real: Expr) -> Expr:
    scale, zero = [Constant(_values(node[index]).reshape(())) for index in (6, 7)]
    return op.qnn.quantize(real, scale, zero, out_dtype=str(zero.dtype))


def dequantized(node: OnnxNode, index: int, scale: Expr | None, zero: Expr | None, axis: int) -> Expr | None:
    """Input `index` dequantised by `qnn.dequantize`; None unless its scale and zero point are 8-bit constants."""
    x = node[index]
    known = None if scale is None else _constants(scale, zero, str(x.dtype))
    if known is None or (known[0].shape and known[0].shape != (x.shape[axis],)):
        return None
    return op.qnn.dequantize(x, *known, axis if known[0].shape else -1)


convert_with(q_linear_conv, "QLinearConv", since=10)


def _requantized(node: OnnxNode, product: Expr, scales: list[Expr], zero: Expr) -> Expr:
    """Requantise the int32 `product` by the inputs' scales over the result's, to the zero point's type."""
    a, b, result = (op.cast(scale, "float32") for scale in scales)
    real = op.multiply(op.cast(product, "float32"), op.divide(op.multiply(a, b), result))
    return quantized(node, real, zero, str(zero.dtype))
