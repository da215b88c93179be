"""Conversions between floats and quantised integers (TVM: `relay.qnn.op`), as quantised models contain them.

real = (quantised - zero point) * scale. The first pass rewrites a program so that products are computed on quantised
values (`FakeQuantizationToInteger`); the remaining conversions become arithmetic (`CanonicalizeQuantization`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Constant, Expr, TupleGetItem, const
from relayc.relay.op import broadcast, elementwise, transform
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, check_axis, require
from relayc.relay.sizes import dims_equal, product
from relayc.relay.type import TensorType, TupleType, dims_match
from relayc.te.dtype import dtype as parse_dtype
from relayc.te.tir import Dim

__all__ = [
    "ChooseQParams", "Dequantize", "DequantizeBlocks", "Lookup", "Quantize", "choose_qparams", "dequantize",
    "dequantize_blocks", "dequantized", "flipped", "quantize", "quantized", "spread_blocks", "unflipped",
]  # fmt: skip

Parameters = Expr | float | Sequence[float] | Array
"""Scales or zero points: one, or one for each index of an axis."""

QUANTIZED_DTYPES = ("uint8", "int8", "uint16", "int16", "int32")
"""Element types of quantised values."""


def _check_parameters(data: TensorType, scale: TensorType, zero_point: TensorType, axis: int) -> None:
    require(scale.dtype == "float32", f"(C2) the scale must be float32; got {scale}")
    require(scale.shape == zero_point.shape, f"(C3) scale {scale} and zero point {zero_point} differ in shape")
    if scale.ndim:
        at = check_axis(4, axis, data.ndim)
        fits = scale.ndim == 1 and dims_match(scale.shape[0], data.shape[at])
        require(fits, f"(C4) scales {scale} are not one for each of axis {axis} of {data}")


@register_op("qnn.quantize", pattern=OpPattern.BROADCAST)
class Quantize(OpDef):
    """round(data / scale) + zero point, ties to even, saturated to the range of `out_dtype` (ONNX: QuantizeLinear).

    (C1) data is float32 and `out_dtype` a quantised type; (C2) the scale is float32; (C3) scale and zero point have one
    shape, (C4) that of a scalar, or of one value for each index of `axis`. The zero point is of `out_dtype`.
    """

    axis: int = -1
    out_dtype: str = "uint8"

    def infer(self, data: TensorType, scale: TensorType, zero_point: TensorType) -> TensorType:
        fits = data.dtype == "float32" and self.out_dtype in QUANTIZED_DTYPES and zero_point.dtype == self.out_dtype
        require(fits, f"(C1) {data} with zero points {zero_point} can't become {self.out_dtype}")
        _check_parameters(data, scale, zero_point, self.axis)
        return TensorType(data.shape, self.out_dtype)

    def compute(self, data: te.Tensor, scale: te.Tensor, zero_point: te.Tensor) -> te.Tensor:
        return topi.quantize(data, scale, zero_point, self.axis, self.out_dtype)

    def reference(self, data: Array, scale: Array, zero_point: Array) -> Array:
        limits = np.iinfo(self.out_dtype)
        with np.errstate(all="ignore"):
            units = np.rint(data / _along(scale, self.axis, data.ndim)).astype(np.float32)
            shifted = units + _along(zero_point, self.axis, data.ndim).astype(np.float32)
            return np.clip(shifted, limits.min, limits.max).astype(self.out_dtype)


@register_op("qnn.dequantize", pattern=OpPattern.BROADCAST)
class Dequantize(OpDef):
    """(data - zero point) * scale (ONNX: DequantizeLinear).

    (C1) data has a quantised type, and so has the zero point; (C2) to (C4) as for qnn.quantize.
    """

    axis: int = -1

    def infer(self, data: TensorType, scale: TensorType, zero_point: TensorType) -> TensorType:
        fits = str(data.dtype) in QUANTIZED_DTYPES and zero_point.dtype == data.dtype
        require(fits, f"(C1) {data} with zero points {zero_point} are not quantised values")
        _check_parameters(data, scale, zero_point, self.axis)
        return TensorType(data.shape, "float32")

    def compute(self, data: te.Tensor, scale: te.Tensor, zero_point: te.Tensor) -> te.Tensor:
        return topi.dequantize(data, scale, zero_point, self.axis)

    def reference(self, data: Array, scale: Array, zero_point: Array) -> Array:
        values = data.astype(np.float32)
        if zero_point.any():
            values -= _along(zero_point, self.axis, data.ndim).astype(np.float32)
        values *= _along(scale, self.axis, data.ndim)
        return values


@register_op("qnn.dequantize_blocks", pattern=OpPattern.INJECTIVE)
class DequantizeBlocks(OpDef):
    """(data - zero point) * scale, with a scale and a zero point for each `block` elements along `axis` (ONNX: blocked
    DequantizeLinear); the last block may be shorter.

    (C1) data has 4 or 8 bits, and so has the zero point; (C2) the scale is float32 or float16, which the result is too;
    (C3) scale and zero point have the shape of the data, but along `axis` an element for each block.
    """

    axis: int
    block: int

    def infer(self, data: TensorType, scale: TensorType, zero_point: TensorType) -> TensorType:
        fits = str(data.dtype) in ("int4", "uint4", "int8", "uint8") and zero_point.dtype == data.dtype
        require(fits, f"(C1) {data} with zero points {zero_point} are not quantised values")
        require(scale.dtype in ("float32", "float16"), f"(C2) the scale must be float32 or float16; got {scale}")
        at = check_axis(3, self.axis, data.ndim)
        size = data.shape[at]
        require(isinstance(size, int) and self.block > 0, f"(C3) blocks of {self.block} along axis {at} of {data}")
        shape = list(data.shape)
        shape[at] = -(-size // self.block)  # type: ignore[operator]
        for found in (scale, zero_point):
            matches = found.ndim == data.ndim and all(map(dims_match, found.shape, shape))
            require(matches, f"(C3) {found} for blocks of {self.block} along axis {at} of {data}")
        return data.with_dtype(str(scale.dtype))

    def compute(self, data: te.Tensor, scale: te.Tensor, zero_point: te.Tensor) -> te.Tensor:
        return topi.dequantize_blocks(data, scale, zero_point, self.axis, self.block)

    def reference(self, data: Array, scale: Array, zero_point: Array) -> Array:
        size = data.shape[self.axis]

        def spread(x: Array) -> Array:
            return np.repeat(x.astype(np.float32), self.block, self.axis).take(range(size), self.axis)

        values = (data.astype(np.float32) - spread(zero_point)) * spread(scale)
        return values.astype(scale.dtype)


@register_op("qnn.choose_qparams", pattern=OpPattern.OPAQUE)
class ChooseQParams(OpDef):
    """Scale and zero point (uint8) of the range of x and 0, the first half of ONNX's DynamicQuantizeLinear.

    Gives a tuple of two scalars; the scale is 1 if all values are zero. (C1) x is float32.
    """

    mixed_precision = MixedPrecision.NEVER

    def infer(self, x: TensorType) -> TupleType:
        require(x.dtype == "float32", f"(C1) x must be float32; got {x}")
        return TupleType([TensorType((), "float32"), TensorType((), "uint8")])

    def compute(self, x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
        return topi.choose_qparams(x)

    def reference(self, x: Array) -> tuple[Array, Array]:
        low, high = np.min(x, initial=np.float32(0)), np.max(x, initial=np.float32(0))
        with np.errstate(all="ignore"):
            scale = np.float32(1) if high == low else (high - low) / np.float32(255)
            zero_point = np.clip(np.rint(-low / scale), 0, 255)
            return np.asarray(scale), np.asarray(zero_point).astype(np.uint8)


@register_op("qnn.lookup", pattern=OpPattern.ELEMWISE)
class Lookup(OpDef):
    """Lookup of 8-bit quantised values in a table: any function of a byte.

    (C1) the data has 8 bits and is reinterpreted as unsigned bytes; (C2) the table has the shape (256,).
    """

    num_data_inputs = 1

    def infer(self, values: TensorType, table: TensorType) -> TensorType:
        require(str(values.dtype) in ("uint8", "int8"), f"(C1) {values} are not 8-bit quantised values")
        require(table.shape == (256,), f"(C2) {table} has no entry for each byte")
        return TensorType(values.shape, table.dtype)

    def compute(self, values: te.Tensor, table: te.Tensor) -> te.Tensor:
        return topi.lookup(values, table)

    def reference(self, values: Array, table: Array) -> Array:
        return table[values.view(np.uint8)]


def _along(x: Array, axis: int, rank: int) -> Array:
    """A scalar, or a vector laid along `axis`, in a shape that broadcasts with the data."""
    return x if x.ndim == 0 else x.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def choose_qparams(x: Expr) -> tuple[Expr, Expr]:
    """Scale and zero point for the quantisation of `x` to uint8, over the range of `x` and 0."""
    chosen = ChooseQParams()(x if len(x.shape) == 1 else transform.reshape(x, (product(x.shape),)))
    return TupleGetItem(chosen, 0), TupleGetItem(chosen, 1)


def quantize(
    data: Expr, output_scale: Parameters, output_zero_point: Parameters, axis: int = -1, out_dtype: str = "uint8"
) -> Call:
    """`data` quantised; scale and zero point are scalars, or one value for each index of `axis`."""
    scale, zero = _parameters(output_scale, output_zero_point, out_dtype)
    return Quantize(axis=axis, out_dtype=out_dtype)(data, scale, zero)


def dequantize(data: Expr, input_scale: Parameters, input_zero_point: Parameters, axis: int = -1) -> Call:
    """The floats that the quantised values `data` stand for; scale and zero point are scalars, or one for each index of
    `axis`."""
    scale, zero = _parameters(input_scale, input_zero_point, str(data.dtype))
    return Dequantize(axis=axis)(data, scale, zero)


def dequantize_blocks(data: Expr, scale: Expr, zero_point: Expr, axis: int, block: int) -> Call:
    """The floats that quantised values stand for, which have a scale and zero point for each `block` along `axis`."""
    return DequantizeBlocks(axis=axis, block=block)(data, scale, zero_point)


def spread_blocks(x: Expr, axis: int, block: int, size: Dim) -> Expr:
    """Each element of `axis` repeated over its block, `size` elements in all."""
    repeated = transform.repeat(x, block, axis)
    if dims_equal(repeated.shape[axis], size):
        return repeated
    return transform.strided_slice(repeated, (0,), (size,), axes=(axis,))


def _parameters(scale: Parameters, zero: Parameters, dtype: str) -> tuple[Expr, Expr]:
    scale = scale if isinstance(scale, Expr) else const(scale, "float32")
    zero = zero if isinstance(zero, Expr) else const(zero, dtype)
    return scale, zero


def flipped(values: Expr) -> Expr:
    """8-bit quantised values, signed ones as unsigned ones and vice versa, with their zero point shifted by 128."""
    require(values.dtype in ("int8", "uint8"), f"values of {values.dtype}; expected int8 or uint8")
    other, high = ("uint8", -128) if values.dtype == "int8" else ("int8", 128)
    moved = broadcast.bitwise_xor(values, Constant(np.asarray(high, str(values.dtype))))
    return elementwise.reinterpret(moved, other)


def unflipped(values: Expr) -> Expr | None:
    """x where `values` is `flipped(x)`; None otherwise."""
    if not isinstance(values, Call) or not isinstance(values.op, elementwise.Reinterpret):
        return None
    moved = values.args[0]
    if not isinstance(moved, Call) or not isinstance(moved.op, broadcast.BitwiseXor):
        return None
    x, high = moved.args
    known = isinstance(high, Constant) and high.data.size == 1 and int(high.data.item()) in (128, -128)
    return x if known and x.dtype in ("int8", "uint8") else None


def quantized(x: Expr, zero: Expr | None, target: str) -> Expr:
    """Floats `x`, in units of the scale, rounded to the quantised type `target`, by elementwise operators."""
    parsed = parse_dtype(target)
    x = elementwise.round(x)
    if zero is not None:
        x = broadcast.add(x, elementwise.cast(zero, str(x.dtype)))
    return elementwise.cast(elementwise.clip(x, float(parsed.min_value()), float(parsed.max_value())), target)


def dequantized(x: Expr, scale: Expr, zero: Expr | None) -> Expr:
    """Quantised values `x` as float32, by elementwise operators."""
    wide = elementwise.cast(x, "float32")
    if zero is not None and not (isinstance(zero, Constant) and not zero.data.any()):
        wide = broadcast.subtract(wide, elementwise.cast(zero, "float32"))
    return broadcast.multiply(wide, scale)
