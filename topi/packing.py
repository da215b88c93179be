"""Sub-byte values, packed several to a byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.dtype import dtype as parse_dtype
from relayc.te.tir import Dim, PrimExpr, call_intrin
from relayc.topi.tag import INJECTIVE
from relayc.topi.utils import ravel_index

__all__ = ["unpack_bits"]


def unpack_bits(x: Tensor, shape: Sequence[Dim], dtype: str) -> Tensor:
    """A tensor of `shape` and the sub-byte type `dtype`, unpacked from bytes x, low bits first."""
    bits = parse_dtype(dtype).bits
    per_byte = 8 // bits

    def body(*i: Any) -> PrimExpr:
        position = ravel_index(i, shape) if i else te.const(0)
        shift = te.cast("uint8", position % per_byte * bits)
        code = te.cast(f"uint{bits}", x(position // per_byte) >> shift)
        return code if code.dtype == dtype else call_intrin(dtype, "reinterpret", code)

    return te.compute(tuple(shape), body, name="unpack_bits", tag=INJECTIVE)
