"""Conversions between floats and quantised values: real = (quantised - zero point) * scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import PrimExpr, call_intrin
from relayc.topi.reduction import highest, lowest
from relayc.topi.tag import BROADCAST, COMM_REDUCE, ELEMWISE, INJECTIVE

__all__ = ["choose_qparams", "dequantize", "dequantize_blocks", "lookup", "quantize"]

_extrema = te.comm_reducer(
    lambda a, b: (te.minimum(a[0], b[0]), te.select(a[1] < b[1], b[1], a[1])),
    lambda low, high: (highest(low), lowest(high)),
    name="extrema",
)
"""(minimum, maximum): the minimum is NaN if any value is, the maximum ignores NaN, which takes one instruction instead
of four."""


def choose_qparams(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scale (float32) and zero point (uint8), of shape (), that quantise the range of `x`, extended to 0, to bytes.

    The scale is 1 if all elements are zero, and NaN if any is NaN. Both extrema are found in one pass.
    """
    ks = [te.reduce_axis((0, d), name=f"k{n}") for n, d in enumerate(x.shape)]
    attrs = {"reduces_last_axis": True, "reduces_trailing_axes": True}
    found = te.compute((), lambda: _extrema((x(*ks), x(*ks)), axis=ks), name="extrema", tag=COMM_REDUCE, attrs=attrs)
    low, high = found
    zero, most = te.const(0.0, x.dtype), te.const(255.0, x.dtype)

    def step() -> PrimExpr:
        width = te.maximum(high(), zero) - te.minimum(low(), zero)
        return te.select(width == zero, te.const(1.0, x.dtype), width / most)

    scale = te.compute((), step, name="scale", tag=ELEMWISE)

    def point() -> PrimExpr:
        units = te.round(zero - te.minimum(low(), zero) / scale())
        return te.cast("uint8", te.minimum(te.maximum(units, zero), most))

    return scale, te.compute((), point, name="zero_point", tag=ELEMWISE)


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


def dequantize_blocks(data: Tensor, scale: Tensor, zero_point: Tensor, axis: int, block: int) -> Tensor:
    """(data - zero point) * scale, of the scale's type; one scale and zero point for each `block` along `axis`."""

    def body(*i: Any) -> PrimExpr:
        at = [v // block if a == axis % len(i) else v for a, v in enumerate(i)]
        centred = te.cast("float32", data(*i)) - te.cast("float32", zero_point(*at))
        return te.cast(scale.dtype, centred * te.cast("float32", scale(*at)))

    return te.compute(data.shape, body, name="dequantize_blocks", tag=INJECTIVE)


def lookup(codes: Tensor, table: Tensor) -> Tensor:
    """The entries of `table` (256,) at 8-bit `codes`, reinterpreted as unsigned bytes."""

    def body(*i: Any) -> PrimExpr:
        byte = codes(*i) if codes.dtype == "uint8" else call_intrin("uint8", "reinterpret", codes(*i))
        return table(te.cast("int32", byte))

    return te.compute(codes.shape, body, name="lookup", tag=ELEMWISE)


def _parameter_index(scale: Tensor, position: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    return (position[axis],) if scale.ndim else ()
