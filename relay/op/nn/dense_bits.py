"""Products with weights quantised to 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require, require_float
from relayc.relay.type import TensorType, Type, dims_match

__all__ = ["DenseBits", "dense_bits"]

PANEL = 16
"""Columns of a panel: whole vectors of float32, and few enough that tiles of many rows share the dequantised weights.
"""


@register_op("nn.dense_bits", pattern=OpPattern.OUT_FUSABLE)
class DenseBits(OpDef):
    """data (..., K) times weights q * scale - offset: (..., N), N = `units` (ONNX: MatMulNBits of com.microsoft).

    Columns lie in panels of NR: quantised weights q (ceil(N / NR), K * bits / 8, NR), the first of those in a byte in
    its low bits; scales and offsets (ceil(N / NR), blocks, NR). (C1) data are floats, q uint8, scales and offsets
    float32; (C2) `bits` is 4 or 8; (C3) data has one dimension or more, the others three that match.
    """

    mixed_precision = MixedPrecision.NEVER

    units: int
    bits: int

    def infer(self, data: TensorType, quantized: TensorType, scales: TensorType, offsets: TensorType) -> TensorType:
        require_float(1, data)
        kinds = quantized.dtype == "uint8" and scales.dtype == offsets.dtype == "float32"
        require(kinds, f"(C1) weights {quantized} must be uint8, scales {scales} and offsets {offsets} float32")
        require(self.bits in (4, 8), f"(C2) {self.bits} bits; expected 4 or 8")
        fits = data.ndim >= 1 and self._fit(data, quantized, scales, offsets)
        require(
            fits, f"(C3) {data}, {quantized}, {scales}, {offsets} do not fit {self.units} columns of {self.bits} bits"
        )
        return TensorType((*data.shape[:-1], self.units), data.dtype)

    def _fit(self, data: TensorType, quantized: TensorType, scales: TensorType, offsets: TensorType) -> bool:
        if not (quantized.ndim == scales.ndim == offsets.ndim == 3) or scales.shape != offsets.shape:
            return False
        panels, height, nr = quantized.static_shape
        blocks = scales.static_shape[1]
        holds = (panels - 1) * nr < self.units <= panels * nr and scales.static_shape == (panels, blocks, nr)
        return holds and height % blocks == 0 and dims_match(data.shape[-1], height * 8 // self.bits)

    def compute(self, data: te.Tensor, quantized: te.Tensor, scales: te.Tensor, offsets: te.Tensor) -> te.Tensor:
        return topi.nn.dense_bits(data, quantized, scales, offsets, self.units, self.bits)

    def weights(self, quantized: Array, scales: Array, offsets: Array) -> Array:
        """The weights as float32 (N, K)."""
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        fields = (quantized[:, :, None, :] >> shifts[:, None]) & np.uint8((1 << self.bits) - 1)
        panels, depth, nr = quantized.shape[0], quantized.shape[1] * len(shifts), quantized.shape[2]
        values = fields.reshape(panels, scales.shape[1], -1, nr) * scales[:, :, None] - offsets[:, :, None]
        return values.reshape(panels, depth, nr).transpose(0, 2, 1).reshape(-1, depth)[: self.units]

    def reference(self, data: Array, quantized: Array, scales: Array, offsets: Array) -> Array:
        columns = self.weights(quantized, scales, offsets).T.astype(np.float64)
        return (data.astype(np.float64) @ columns).astype(data.dtype)

    def macs(self, types: Sequence[Type], result: Type) -> int:
        data = types[0]
        assert isinstance(data, TensorType) and isinstance(result, TensorType)
        depth = data.shape[-1]
        return result.size * depth if result.size is not None and isinstance(depth, int) else 0


def _in_panels(x: Array) -> Array:
    """Rows (N, n), one for each column, in panels (ceil(N / NR), n, NR) padded with zeros."""
    padded = np.pad(x, [(0, -len(x) % PANEL), (0, 0)])
    return np.ascontiguousarray(padded.reshape(-1, PANEL, x.shape[1]).transpose(0, 2, 1))


def dense_bits(data: Expr, quantized: Array, scales: Array, zeros: Array, bits: int) -> Call:
    """`data` (..., K) times (q - zero point) * scale, in panels.

    Quantised weights q (N, K * bits / 8) are bytes, the first of those in a byte in its low bits; scales and zeros are
    (N, blocks).
    """
    wide = scales.astype(np.float32)
    panels = [Constant(_in_panels(x)) for x in (quantized, wide, wide * zeros.astype(np.float32))]
    return DenseBits(units=len(quantized), bits=bits)(data, *panels)
