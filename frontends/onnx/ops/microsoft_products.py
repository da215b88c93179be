"""Matrix products and convolutions of the domain com.microsoft: fused, and with weights of few bits."""

from __future__ import annotations

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import MICROSOFT, reshape_to, transposed
from frontends.onnx.ops.convolution import biased_convolution
from frontends.onnx.ops.linear import general_product, matmul, scaled
from frontends.onnx.ops.microsoft_elementwise import activated
from frontends.onnx.ops.quantization import along, centred, dynamically_quantized
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Constant, Expr
from relay.type import dims_match


@converter("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_mat_mul(node: OnnxNode) -> Expr:
    """alpha * A' * B'. A transposed batch has the rows in front: [M, batch.., K] is read as [batch.., M, K]."""
    operands: list[Expr] = []
    for index, letter in enumerate("AB"):
        x, rank = node[index], node.rank(index)
        batch, matrix = node.attr_bool(f"transBatch{letter}", False), node.attr_bool(f"trans{letter}", False)
        if batch and rank > 2:
            x = transposed(x, (*range(1, rank - 1), 0, rank - 1))
        if matrix and rank > 1:
            x = transposed(x, (*range(rank - 2), rank - 1, rank - 2))
        operands.append(x)
    a, b = operands
    alpha = node.attr_float("alpha", 1.0)
    if isinstance(b, Constant):
        return matmul(node, a, scaled(b, alpha))
    return scaled(matmul(node, a, b), alpha)


@converter("FusedGemm", domain=MICROSOFT)
def fused_gemm(node: OnnxNode) -> Expr:
    """Gemm and an activation."""
    given = [node.attrs.get_float(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return activated(node, general_product(node), [value for value in given if value is not None])


@converter("FusedConv", domain=MICROSOFT)
def fused_conv(node: OnnxNode) -> Expr:
    """Conv, plus Z where it is given, and an activation."""
    result = biased_convolution(node)
    if node.get(3) is not None:
        result = op.add(result, node[3])
    return activated(node, result, node.attrs.get_floats("activation_params") or ())


# quantized ----------------------------------------------------------------------------------------------------------


@converter("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_mat_mul(node: OnnxNode) -> Expr:
    """A, quantized by its own range, by B, in integers. Inputs: A, B, B's scale and zero point, bias."""
    values, scale, zero = dynamically_quantized(node[0])
    product = matmul(node, centred(node, values, zero, -1), centred(node, node[1], node.get(3), -1))
    return _to_float(node, product, scale, node[2], node.get(4))


@converter("MatMulIntegerToFloat", domain=MICROSOFT)
def mat_mul_integer_to_float(node: OnnxNode) -> Expr:
    """Inputs: A, B, their scales, their zero points, bias. What is a vector belongs to the columns."""
    product = matmul(node, centred(node, node[0], node.get(4), -1), centred(node, node[1], node.get(5), -1))
    return _to_float(node, product, node[2], node[3], node.get(6))


def _to_float(node: OnnxNode, product: Expr, a_scale: Expr, b_scale: Expr, bias: Expr | None) -> Expr:
    """An int32 product times the scales of its operands, plus a bias."""
    rank = len(product.shape)
    scale = op.multiply(along(node, a_scale, -1, rank), along(node, b_scale, -1, rank))
    result = op.multiply(op.cast(product, scale.dtype), scale)
    return result if bias is None else op.add(result, bias)


@converter("Inverse", domain=MICROSOFT)
def inverse(node: OnnxNode) -> Expr:
    return op.inverse(node[0])


@converter("MatMulInteger16", domain=MICROSOFT)
def mat_mul_integer_16(node: OnnxNode) -> Expr:
    return matmul(node, op.cast(node[0], "int32"), op.cast(node[1], "int32"))


@converter("MatMulNBits", domain=MICROSOFT)
def mat_mul_n_bits(node: OnnxNode) -> Expr:
    """A [.., K] by a matrix [K, N] whose columns lie in blocks of few bits, each with a scale and a zero point."""
    node.attrs.ignore("accuracy_level")  # how far the arithmetic may be cut short
    if node.attr_int("weight_prepacked", 0):
        raise node.unsupported("weights laid out for one GPU (weight_prepacked)", expected="weights as ONNX lays them")
    weights = _dequantized_blocks(node)
    result = op.nn.dense(node[0], weights)
    return result if node.get(5) is None else op.add(result, node[5])


def _dequantized_blocks(node: OnnxNode) -> Expr:
    """The weights of MatMulNBits as floats [N, K]."""
    rows, depth, bits, size = (node.attr_int("N"), node.attr_int("K"), node.attr_int("bits", 4),
                               node.attr_int("block_size"))  # fmt: skip
    if bits not in (2, 4, 8):
        raise node.unsupported(f"weights of {bits} bits", expected="2, 4 or 8")
    if rows < 1 or depth < 1 or size < 16 or size & (size - 1):
        raise node.error(f"N {rows}, K {depth}, blocks of {size}", expected="sizes of 1 or more, a power of 2 from 16")
    if not node.rank(0) or not dims_match(node.type(0).shape[-1], depth):
        raise node.error(f"A is {node.type(0)}", expected=f"K = {depth} columns")
    blocks = -(-depth // size)
    packed = _sized(node, 1, (rows, blocks, size * bits // 8), "B")
    values = reshape_to(_unpacked(packed, bits), (rows, blocks, size))
    scales = reshape_to(_sized(node, 2, (rows, blocks), "the scales"), (rows, blocks, 1))
    real = op.multiply(op.subtract(op.cast(values, scales.dtype), _zero_points(node, rows, blocks, bits)), scales)
    flat = reshape_to(real, (rows, blocks * size))
    flat = flat if blocks * size == depth else op.strided_slice(flat, (0,), (depth,), axes=(1,))
    if node.get(4) is None:
        return flat
    groups = node.constant(4, "g_idx")
    if groups.shape != (depth,) or not np.array_equal(groups, np.arange(depth) // size):
        raise node.unsupported("groups in another order than that of the blocks (g_idx)", expected="no g_idx")
    return flat


def _zero_points(node: OnnxNode, rows: int, blocks: int, bits: int) -> Expr:
    """[N, blocks, 1] in the type of the scales; the middle of the range by default."""
    dtype = str(node.dtype(2))
    if node.get(3) is None:
        return Constant(np.array(1 << (bits - 1), dtype))
    if node.dtype(3) != "uint8":
        return op.cast(reshape_to(_sized(node, 3, (rows, blocks), "the zero points"), (rows, blocks, 1)), dtype)
    stride = -(-blocks * bits // 8)
    codes = _unpacked(_sized(node, 3, (rows, stride), "the zero points"), bits)
    codes = reshape_to(codes, (rows, stride * 8 // bits))
    codes = op.strided_slice(codes, (0,), (blocks,), axes=(1,)) if stride * 8 // bits != blocks else codes
    return op.cast(reshape_to(codes, (rows, blocks, 1)), dtype)


def _sized(node: OnnxNode, index: int, shape: tuple[int, ...], what: str) -> Expr:
    """Input `index`, which may come flat, in `shape`."""
    found = node.shape(index)
    if int(np.prod(found)) != int(np.prod(shape)):
        raise node.error(f"{what} (input {index}) of shape {list(found)}", expected=f"{list(shape)}")
    return reshape_to(node[index], shape)


def _unpacked(x: Expr, bits: int) -> Expr:
    """The fields of `bits` bits in the bytes `x`, from the low bits on, along a new last axis."""
    if bits == 8:
        return op.expand_dims(x, len(x.shape))
    mask = Constant(np.array((1 << bits) - 1, np.uint8))
    fields = [op.bitwise_and(op.right_shift(x, Constant(np.array(shift, np.uint8))), mask)
              for shift in range(0, 8, bits)]  # fmt: skip
    return op.stack(fields, axis=-1)
