"""Quantised operators of com.microsoft: dequantise, compute, requantise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import MICROSOFT, require_rank, reshape_to, transposed
from relayc.frontends.onnx.ops.linear import matmul, scaled
from relayc.frontends.onnx.ops.pooling import average_pool_of, max_pool_of
from relayc.frontends.onnx.ops.quantization import along, centred, dequantized, quantized
from relayc.frontends.onnx.ops.recurrent import QuantizedWeights, lstm_of
from relayc.frontends.onnx.ops.softmax import softmax_of
from relayc.frontends.onnx.registry import convert_with, converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr


def _scalar(node: OnnxNode, index: int, what: str) -> Expr:
    """Input `index`, of one element, as a scalar."""
    if node.shape(index) not in ((), (1,)):
        raise node.error(f"{what} (input {index}) of shape {list(node.shape(index))}", expected="one number")
    return reshape_to(node[index], ())


def _require_codes(node: OnnxNode, index: int) -> None:
    if not node.dtype(index).is_integral:
        raise node.error(f"input {index} is {node.type(index)}", expected="quantized values: integers")


def _real(node: OnnxNode, index: int) -> Expr:
    """Input `index` dequantised; its scale and zero point are the next inputs."""
    _require_codes(node, index)
    x, scale = op.cast(node[index], "float32"), _scalar(node, index + 1, "a scale")
    zero = None if node.get(index + 2) is None else _scalar(node, index + 2, "a zero point")
    if zero is not None and zero.dtype != node.dtype(index):
        raise node.error(f"a zero point of {zero.dtype} for values of {node.dtype(index)}")
    known = dequantized(node, index, scale, zero, -1)
    if known is not None:
        return known
    x = x if zero is None else op.subtract(x, op.cast(zero, "float32"))
    return op.multiply(x, scale)


def _rounded(node: OnnxNode, x: Expr, index: int, dtype: str) -> Expr:
    """Quantise `x` to `dtype`; the scale is input `index`, the optional zero point the next one."""
    zero = None if node.get(index + 1) is None else _scalar(node, index + 1, "a zero point")
    if zero is not None and zero.dtype != dtype:
        raise node.error(f"a zero point of {zero.dtype} for values of {dtype}")
    scale = _scalar(node, index, "a scale")
    if isinstance(scale, Constant) and isinstance(zero, Constant) and x.dtype == scale.dtype == "float32":
        return op.qnn.quantize(x, scale, zero, out_dtype=dtype)
    return quantized(node, op.divide(x, scale), zero, dtype)


def _unary(function: Callable[[OnnxNode, Expr], Expr]) -> Callable[[OnnxNode], Expr]:
    """Converter of a quantised unary operator; inputs: X, its scale and zero point, the result's."""
    return lambda node: _rounded(node, function(node, _real(node, 0)), 3, str(node.dtype(0)))


def _binary(function: Callable[[Expr, Expr], Expr]) -> Callable[[OnnxNode], Expr]:
    """Converter of a quantised binary operator; inputs: A, its scale and zero point, B, its ones, the result's."""
    return lambda node: _rounded(node, function(_real(node, 0), _real(node, 3)), 6, str(node.dtype(0)))


def _channels_first(node: OnnxNode, x: Expr, function: Callable[[OnnxNode, Expr], Expr]) -> Expr:
    """Apply `function` in channels-first layout, transposing if `channels_last` is set."""
    if not node.attr_bool("channels_last", False):
        return function(node, x)
    rank = len(x.shape)
    result = function(node, transposed(x, (0, rank - 1, *range(1, rank - 1))))
    return transposed(result, (0, *range(2, rank), 1))


def _global_average(node: OnnxNode, x: Expr) -> Expr:
    rank = len(x.shape)
    if rank < 3:
        raise node.error(f"an input of rank {rank}", expected="rank 3 or more: a batch, channels, spatial axes")
    return _channels_first(node, x, lambda _, y: op.mean(y, axis=tuple(range(2, rank)), keepdims=True))


def _softmax(node: OnnxNode, x: Expr) -> Expr:
    return softmax_of(node, x, "Softmax", node.attr_int("axis", -1), flat=node.attr_int("opset") < 13)


def _reduced_mean(node: OnnxNode, x: Expr) -> Expr:
    axes = node.axes(node.attr_ints("axes"), len(x.shape))
    return op.mean(x, axis=axes, keepdims=node.attr_bool("keepdims", True))


convert_with(_binary(op.add), "QLinearAdd", domain=MICROSOFT)
convert_with(_binary(op.multiply), "QLinearMul", domain=MICROSOFT)
convert_with(_unary(lambda node, x: op.sigmoid(x)), "QLinearSigmoid", domain=MICROSOFT)
convert_with(
    _unary(lambda node, x: op.nn.leaky_relu(x, node.attr_float("alpha", 0.01))), "QLinearLeakyRelu", domain=MICROSOFT
)
convert_with(_unary(_global_average), "QLinearGlobalAveragePool", domain=MICROSOFT)
convert_with(
    _unary(lambda node, x: _channels_first(node, x, average_pool_of)), "QLinearAveragePool", domain=MICROSOFT
)
convert_with(_unary(_softmax), "QLinearSoftmax", domain=MICROSOFT)
convert_with(_unary(_reduced_mean), "QLinearReduceMean", domain=MICROSOFT)


@converter("QLinearConcat", domain=MICROSOFT)
def q_linear_concat(node: OnnxNode) -> Expr:
    """Quantised Concat.

    Inputs: the result's scale and zero point, then each tensor with its scale and zero point."""
    if len(node) < 5 or len(node) % 3 != 2:
        raise node.error(f"{len(node)} inputs", expected="two, and three for each tensor")
    parts = [_real(node, index) for index in range(2, len(node), 3)]
    axis = node.axis(node.attr_int("axis"), len(parts[0].shape))
    return _rounded(node, op.concatenate(parts, axis=axis), 0, str(node.dtype(1)))


@converter("QLinearWhere", domain=MICROSOFT)
def q_linear_where(node: OnnxNode) -> Expr:
    """Quantised Where.

    Inputs: the condition, X, its scale and zero point, Y, its scale and zero point, the result's."""
    return _rounded(node, op.where(node[0], _real(node, 1), _real(node, 4)), 7, str(node.dtype(1)))


@converter("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(node: OnnxNode) -> Expr:
    """MaxPool of quantised values in channels-last layout."""
    require_rank(node, 0, 3)
    rank = node.rank(0)
    result = max_pool_of(node, transposed(node[0], (0, rank - 1, *range(1, rank - 1))))
    return transposed(result, (0, *range(2, rank), 1))


@converter("QGemm", domain=MICROSOFT)
def q_gemm(node: OnnxNode) -> Expr:
    """Quantised Gemm, alpha * A' * B' + C.

    Inputs: A, its scale and zero point, B, its ones, an int32 C in units of the product, the result's. Without the
    result's scale the output is a float.
    """
    for index in (0, 3):
        require_rank(node, index, 2, 2)
    a = centred(node, node[0], node.get(2), -1)
    b = centred(node, node[3], node.get(5), 0 if node.attr_bool("transB", False) else -1)
    a = transposed(a, (1, 0)) if node.attr_bool("transA", False) else a
    b = transposed(b, (1, 0)) if node.attr_bool("transB", False) else b
    product = matmul(node, a, b)
    product = product if node.get(6) is None else op.add(product, node[6])
    scale = op.multiply(_scalar(node, 1, "a scale"), along(node, node[4], -1, 2))
    real = op.multiply(op.cast(product, "float32"), scaled(scale, node.attr_float("alpha", 1.0)))
    return real if node.get(7) is None else _rounded(node, real, 7, str(node.dtype(0)))


@converter("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(node: OnnxNode) -> list[Expr | None]:
    """LSTM with quantised weights.

    Weights are [directions, inputs, gates]; their scales and zero points are inputs 8 to 11. States keep 16 bits, where
    onnxruntime rounds those of each step to 8, so results are more precise.
    """
    weights: list[Expr] = []
    of_gates: list[QuantizedWeights | None] = []
    for index, scale, zero in ((1, 8, 9), (2, 10, 11)):
        require_rank(node, index, 3, 3)
        _require_codes(node, index)
        centred = op.subtract(op.cast(node[index], "float32"), op.cast(_of_gates(node, zero), "float32"))
        weights.append(transposed(op.multiply(centred, _of_gates(node, scale)), (0, 2, 1)))
        of_gates.append(_quantized_gates(node, index, scale, zero))
    plain = node.with_inputs([node[0], *weights, *[node.get(index) for index in range(3, 8)]])
    of_input, of_state = of_gates
    return lstm_of(plain, None if of_input is None or of_state is None else (of_input, of_state))


def _quantized_gates(node: OnnxNode, index: int, scale: int, zero: int) -> QuantizedWeights | None:
    """Weights [directions, inputs, gates] minus zero points as int8; None if not constant or out of range."""
    values, zeros = node[index], node.value_or_none(_of_gates(node, zero))
    if not isinstance(values, Constant) or zeros is None:
        return None
    centred = values.data.astype(np.int16) - zeros.astype(np.int16)
    if centred.size == 0 or centred.min() < -128 or centred.max() > 127:
        return None
    directions, _, gates = centred.shape
    scales = op.broadcast_to(_of_gates(node, scale), (directions, 1, gates))
    rows = Constant(np.ascontiguousarray(centred.astype(np.int8).transpose(0, 2, 1)))
    return QuantizedWeights(rows, reshape_to(scales, (directions, gates)))


def _of_gates(node: OnnxNode, index: int) -> Expr:
    """Scales or zero points, per direction or per column, reshaped to broadcast with the weights."""
    shape = node.type(index).shape
    require_rank(node, index, 1, 2)
    return reshape_to(node[index], (shape[0], 1, shape[1] if len(shape) == 2 else 1))


# conversions ----------------------------------------------------------------------------------------------------------


@converter("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(node: OnnxNode) -> Expr:
    """round(x / scale) + zero point, saturated; per tensor or per `axis`."""
    zero = node.get(2)
    if zero is not None:
        _require_codes(node, 2)
    target = "uint8" if zero is None else str(zero.dtype)
    x = op.divide(node[0], op.cast(_spread(node, node[1]), node[0].dtype))
    return quantized(node, x, None if zero is None else _spread(node, zero), target)


@converter("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(node: OnnxNode) -> Expr:
    """(x - zero point) * scale, per tensor or per `axis`."""
    _require_codes(node, 0)
    x, scale, zero = op.cast(node[0], "float32"), node[1], node.get(2)
    if zero is not None:
        x = op.subtract(x, op.cast(_spread(node, zero), "float32"))
    result = op.multiply(x, op.cast(_spread(node, scale), "float32"))
    return result if scale.dtype == "float32" else op.cast(result, scale.dtype)


def _spread(node: OnnxNode, x: Expr) -> Expr:
    """Reshape a scalar or vector to broadcast along the node's axis."""
    shape, rank = node.static(x, "the shape of scale and zero point"), node.rank(0)
    axis = node.attr_int("axis", 1)
    if shape in ((), (1,)):
        return reshape_to(x, ())
    if len(shape) != 1 or shape[0] != node.type(0).shape[node.axis(axis, rank)]:
        raise node.error(f"scale or zero point of shape {list(shape)}", expected=f"one element for each of axis {axis}")
    return along(node, x, axis, rank)
