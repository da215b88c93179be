"""Matrix products of com.microsoft: fused, and with low-bit weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import MICROSOFT, like, reshape_to, transposed
from relayc.frontends.onnx.ops.elementwise_microsoft import activated
from relayc.frontends.onnx.ops.linear import general_product, matmul, scaled
from relayc.frontends.onnx.ops.quantization import along, centred, dynamically_quantized
from relayc.frontends.onnx.registry import convert_with, converter
from relayc.relay import op
from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.transform import Reshape
from relayc.relay.stored import StoredConstant, fetched
from relayc.relay.type import dims_match

__all__ = ["constant_of", "in_4_bits", "unpacked", "unpacked_zeros"]


def fused_mat_mul(node: OnnxNode) -> Expr:
    """alpha * A' * B'. transBatch: [M, batch.., K] is read as [batch.., M, K]."""
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


convert_with(fused_mat_mul, "FusedMatMul", "TransposeMatMul", domain=MICROSOFT)


@converter("FusedGemm", domain=MICROSOFT)
def fused_gemm(node: OnnxNode) -> Expr:
    """Gemm and an activation."""
    params = [node.attrs.get_float(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return activated(node, general_product(node), params)


@converter("FusedMatMulActivation", domain=MICROSOFT)
def fused_mat_mul_activation(node: OnnxNode) -> Expr:
    """FusedMatMul and an activation."""
    node.attrs.ignore("activation_axis")
    params = [node.attrs.get_float(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return activated(node, fused_mat_mul(node), params)


# quantized ------------------------------------------------------------------------------------------------------------


@converter("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_mat_mul(node: OnnxNode) -> Expr:
    """Integer product of dynamically quantised A and B.

    Inputs: A, B, B's scale and zero point, bias."""
    values, scale, zero = dynamically_quantized(node[0])
    product = matmul(node, centred(node, values, zero, -1), centred(node, node[1], node.get(3), -1))
    return _to_float(node, product, scale, node[2], node.get(4))


@converter("MatMulIntegerToFloat", domain=MICROSOFT)
def mat_mul_integer_to_float(node: OnnxNode) -> Expr:
    """Integer product, dequantised.

    Inputs: A, B, their scales, their zero points, bias; vectors are per column."""
    product = matmul(node, centred(node, node[0], node.get(4), -1), centred(node, node[1], node.get(5), -1))
    return _to_float(node, product, node[2], node[3], node.get(6))


def _to_float(node: OnnxNode, product: Expr, a_scale: Expr, b_scale: Expr, bias: Expr | None) -> Expr:
    """Dequantise an int32 product by the scales of its operands, and add a bias."""
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
    """A [.., K] by block-quantised low-bit weights [K, N]."""
    if node.attr_int("weight_prepacked", 0):
        raise node.unsupported("weights laid out for one GPU (weight_prepacked)", expected="weights as ONNX lays them")
    weights = _Blocks(node)
    packed = weights.packed()
    result = op.nn.dense(node[0], weights.floats()) if packed is None else packed
    return result if node.get(5) is None else op.add(result, node[5])


_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
"""Magnitudes of bitsandbytes' FP4 values 0 to 7; values 8 to 15 are their negatives."""

_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of the normal distribution (Dettmers et al., "QLoRA", 2023)."""


@converter("MatMulBnb4", domain=MICROSOFT)
def mat_mul_bnb4(node: OnnxNode) -> Expr:
    """A [.., K] by bitsandbytes 4-bit weights [N, K] (FP4 or NF4), which stay packed if rows are whole blocks."""
    node.attrs.ignore("training_mode")
    rows, depth, size = node.attr_int("N"), node.attr_int("K"), node.attr_int("block_size")
    kind, count = node.attr_int("quant_type"), rows * depth
    if kind not in (0, 1) or min(rows, depth, size) < 1 or node.dtype(1) != "uint8":
        raise node.unsupported(f"weights of quant_type {kind}, {node.type(1)}", expected="0 (FP4) or 1 (NF4)")
    values = _NF4 if kind else (*_FP4, *[-v for v in _FP4])
    packed, largest = _sized(node, 1, ((count + 1) // 2,), "B"), _sized(node, 2, (-(-count // size),), "the magnitudes")
    is_transposed = node.attr_bool("transB", True)
    codes, scales = constant_of(node.get(1)), constant_of(node.get(2))
    if codes is not None and scales is not None and is_transposed and depth % size == 0 and size % 8 == 0:
        first_low = (codes >> np.uint8(4) | codes << np.uint8(4)).reshape(rows, depth // 2)
        table = np.array(values, np.float32)
        data = reshape_to(node[0], (*node.type(0).shape[:-1], depth))
        return op.nn.dense_bits(data, first_low, scales.reshape(rows, depth // size), None, 4, table=table)
    packed = unpacked(packed, 4)
    packed = op.strided_slice(
        reshape_to(op.reverse(packed, axis=1), ((count + 1) // 2 * 2,)), (0,), (count,), axes=(0,)
    )
    largest = op.strided_slice(op.repeat(largest, size, 0), (0,), (count,), axes=(0,))
    table = Constant(np.array(values, str(node.dtype(0))))
    real = op.take(table, op.cast(packed, "int32"), axis=0, mode="fast")
    weights = reshape_to(op.multiply(real, op.cast(largest, real.dtype)), (rows, depth))
    return op.nn.dense(node[0], weights if is_transposed else transposed(weights, (1, 0)))


class _Blocks:
    """The weights of MatMulNBits: N columns of K quantised values in blocks, each with a scale and a zero point."""

    def __init__(self, node: OnnxNode) -> None:
        self.node = node
        self.columns, self.depth = node.attr_int("N"), node.attr_int("K")
        self.bits, self.size = node.attr_int("bits", 4), node.attr_int("block_size")
        self._check()
        self.blocks = -(-self.depth // self.size)
        self.bytes = _sized(node, 1, (self.columns, self.blocks, self.size * self.bits // 8), "B")
        self.scales = _sized(node, 2, (self.columns, self.blocks), "the scales")
        self.zeros = self._zero_points()

    def _check(self) -> None:
        node, size = self.node, self.size
        if self.bits not in (2, 4, 8):
            raise node.unsupported(f"weights of {self.bits} bits", expected="2, 4 or 8")
        if self.columns < 1 or self.depth < 1 or size < 16 or size & (size - 1):
            raise node.error(f"N {self.columns}, K {self.depth}, blocks of {size}",
                             expected="sizes of 1 or more, a power of 2 from 16")  # fmt: skip
        if not node.rank(0) or not dims_match(node.type(0).shape[-1], self.depth):
            raise node.error(f"A is {node.type(0)}", expected=f"K = {self.depth} columns")
        if node.get(4) is None:
            return
        groups = node.constant(4, "g_idx")
        if groups.shape != (self.depth,) or not np.array_equal(groups, np.arange(self.depth) // size):
            raise node.unsupported("groups in another order than that of the blocks (g_idx)", expected="no g_idx")

    def _zero_points(self) -> Expr:
        """[N, blocks] in the type of the scales; the middle of the range by default."""
        node, shape, bits = self.node, (self.columns, self.blocks), self.bits
        dtype = str(node.dtype(2))
        if node.get(3) is None:
            return like(np.array(1 << (bits - 1), dtype), shape)
        if node.dtype(3) != "uint8":
            return op.cast(_sized(node, 3, shape, "the zero points"), dtype)
        stride = -(-self.blocks * bits // 8)
        quantized = unpacked(_sized(node, 3, (self.columns, stride), "the zero points"), bits)
        quantized = reshape_to(quantized, (self.columns, stride * 8 // bits))
        return op.cast(op.strided_slice(quantized, (0,), (self.blocks,), axes=(1,)), dtype)

    def floats(self) -> Expr:
        """The dequantised weights [N, K]."""
        wide = (self.columns, self.blocks, 1)
        quantized = reshape_to(unpacked(self.bytes, self.bits), (self.columns, self.blocks, self.size))
        quantized = op.cast(quantized, self.scales.dtype)
        real = op.multiply(op.subtract(quantized, reshape_to(self.zeros, wide)), reshape_to(self.scales, wide))
        flat = reshape_to(real, (self.columns, self.blocks * self.size))
        return flat if self.blocks * self.size == self.depth else op.strided_slice(flat, (0,), (self.depth,), axes=(1,))

    def packed(self) -> Expr | None:
        """The product with weights that stay packed, those of 2 bits in 4; None for those that are no constants.

        accuracy_level 4 lets the data be quantised to int8, too.
        """
        node, shape = self.node, (self.columns, self.blocks)
        to_int8 = node.attr_int("accuracy_level", 0) == 4
        scales, zeros = [constant_of(node.get(index)) for index in (2, 3)]
        codes = rows_of(node.get(1), self.columns, whole=self.bits != 2)
        if codes is None or scales is None or (zeros is None and node.get(3) is not None):
            return None
        if zeros is not None:
            zeros = unpacked_zeros(zeros, shape, self.bits) if zeros.dtype == np.uint8 else zeros.reshape(shape)
        scales, bits = scales.reshape(shape), self.bits
        if bits == 2:
            assert isinstance(codes, np.ndarray)
            zeros = np.full(shape, 2, np.uint8) if zeros is None else zeros
            codes, bits = in_4_bits(codes), 4
        data = reshape_to(node[0], (*node.type(0).shape[:-1], self.depth))
        return op.nn.dense_bits(data, codes, scales, zeros, bits, int8_activations=to_int8)


def constant_of(x: Expr | None) -> np.ndarray[Any, Any] | None:
    """The value of a constant, also under another shape; None for other expressions."""
    if isinstance(x, Call) and isinstance(x.op, Reshape) and isinstance(x.args[0], Constant):
        return fetched(x.args[0]).reshape(x.tensor_type.static_shape)
    return fetched(x) if isinstance(x, Constant) else None


def rows_of(
    x: Expr | None, rows: int, *, whole: bool = True
) -> np.ndarray[Any, Any] | StoredConstant | None:
    """A constant, also under another shape, as so many rows: those that are stored in a file and are wanted `whole`
    stay there; None for other expressions."""
    source = x.args[0] if isinstance(x, Call) and isinstance(x.op, Reshape) else x
    if whole and isinstance(source, StoredConstant) and source.is_in_order and source.rows == rows:
        return source
    value = constant_of(x)
    return None if value is None else value.reshape(rows, -1)


def in_4_bits(packed: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Codes of 2 bits, four in a byte, as codes of 4 bits, two in a byte."""
    pairs = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(*packed.shape[:-1], -1)
    return pairs & np.uint8(3) | (pairs & np.uint8(12)) << np.uint8(2)


def unpacked_zeros(packed: np.ndarray[Any, Any], shape: tuple[int, int], bits: int) -> np.ndarray[Any, Any]:
    """Zero points (columns, blocks), whose rows fill whole bytes."""
    rows = packed.reshape(shape[0], -1, 1)
    fields = (rows >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
    return fields.reshape(shape[0], -1)[:, : shape[1]]


def _sized(node: OnnxNode, index: int, shape: tuple[int, ...], what: str) -> Expr:
    """Input `index`, possibly flat, reshaped to `shape`."""
    found = node.shape(index)
    if int(np.prod(found)) != int(np.prod(shape)):
        raise node.error(f"{what} (input {index}) of shape {list(found)}", expected=f"{list(shape)}")
    return reshape_to(node[index], shape)


def unpacked(x: Expr, bits: int) -> Expr:
    """Unpack fields of `bits` bits from the bytes `x`, lowest bits first, along a new last axis."""
    if bits == 8:
        return op.expand_dims(x, len(x.shape))
    mask = Constant(np.array((1 << bits) - 1, np.uint8))
    fields = [op.bitwise_and(op.right_shift(x, Constant(np.array(shift, np.uint8))), mask)
              for shift in range(0, 8, bits)]  # fmt: skip
    return op.stack(fields, axis=-1)
