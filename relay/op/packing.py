"""Packing of sub-byte element types."""

from __future__ import annotations

import math

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, numpy_dtype, require
from relayc.relay.type import TensorType
from relayc.te.dtype import dtype as parse_dtype

__all__ = ["UnpackBits", "pack_bits", "unpack_bits"]


@register_op("unpack_bits", pattern=OpPattern.INJECTIVE)
class UnpackBits(OpDef):
    """The tensor of `newshape` of the sub-byte type `dtype` whose elements are packed in bytes x, from the low bits on.

    (C1) the type has 2 or 4 bits; (C2) x is a vector of as many uint8 as the elements fill.
    """

    newshape: tuple[int, ...]
    dtype: str

    def infer(self, x: TensorType) -> TensorType:
        bits = parse_dtype(self.dtype).bits
        require(bits in (2, 4), f"(C1) {self.dtype} must have 2 or 4 bits")
        needed = -(-math.prod(self.newshape) * bits // 8)
        require(x.shape == (needed,) and x.dtype == "uint8", f"(C2) {x} must be a vector of {needed} uint8")
        return TensorType(self.newshape, self.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.unpack_bits(x, self.newshape, self.dtype)

    def reference(self, x: Array) -> Array:
        bits, count = parse_dtype(self.dtype).bits, math.prod(self.newshape)
        fields = (x[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
        return fields.reshape(-1)[:count].view(numpy_dtype(self.dtype)).reshape(self.newshape)


def pack_bits(data: Array) -> Array:
    """The elements of an array of a sub-byte type in as few bytes as hold them, from the low bits on, zero-padded."""
    bits = parse_dtype(data.dtype.name).bits
    require(bits < 8, f"elements of {data.dtype}; expected a type of fewer than 8 bits")
    per_byte = 8 // bits
    fields = np.zeros(-(-data.size // per_byte) * per_byte, np.uint8)
    fields[: data.size] = np.ascontiguousarray(data).reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    shifted = fields.reshape(-1, per_byte) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(shifted, axis=1)


def unpack_bits(data: Expr, newshape: tuple[int, ...], dtype: str) -> Call:
    """The tensor whose elements are packed in the bytes `data`; see `UnpackBits`."""
    return UnpackBits(newshape=newshape, dtype=dtype)(data)
