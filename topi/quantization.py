"""Conversions between floats and integer codes: real = (code - zero point) * scale."""

from __future__ import annotations

from typing import Any

import numpy as np

import te
from te import Tensor
from te.tir import PrimExpr, call_intrin
from topi.tag import BROADCAST, ELEMWISE

__all__ = ["dequantize", "lookup", "quantize"]


def quantize(data: Tensor, scale: Tensor, zero_point: Tensor, axis: int, dtype: str) -> Tensor:
    """round(data / scale) + zero point, saturated to `dtype`; one scale, or one for each index of `axis`."""
    limits = np.iinfo(dtype)

    def body(*i: Any) -> PrimExpr:
        at = _parameter_index(scale, i, axis)
        units = te.round(data(*i) / scale(*at)) + te.cast("float32", zero_point(*at))
        lowest, highest = te.const(float(limits.min), "float32"), te.const(float(limits.max), "float32")
        return te.cast(dtype, te.minimum(te.maximum(units, lowest), highest))

    return te.compute(data.shape, body, name="quantize", tag=BROADCAST)


def dequantize(data: Tensor, scale: Tensor, zero_point: Tensor, axis: int) -> Tensor:
    """(data - zero point) * scale as float32; one scale and zero point, or one for each index of `axis`."""

    def body(*i: Any) -> PrimExpr:
        at = _parameter_index(scale, i, axis)
        return (te.cast("float32", data(*i)) - te.cast("float32", zero_point(*at))) * scale(*at)

    return te.compute(data.shape, body, name="dequantize", tag=BROADCAST)


def lookup(codes: Tensor, table: Tensor) -> Tensor:
    """The entry of `table` (256,) that each of 8-bit `codes`, taken for an unsigned byte, says."""

    def body(*i: Any) -> PrimExpr:
        byte = codes(*i) if codes.dtype == "uint8" else call_intrin("uint8", "reinterpret", codes(*i))
        return table(te.cast("int32", byte))

    return te.compute(codes.shape, body, name="lookup", tag=ELEMWISE)


def _parameter_index(scale: Tensor, position: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    return (position[axis],) if scale.ndim else ()
