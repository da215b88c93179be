"""What products ask of quantised data: the values of 8 bits behind casts, their zero points, and ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, const
from relayc.relay.op import broadcast
from relayc.relay.op.base import make_call
from relayc.relay.op.broadcast import Subtract
from relayc.relay.op.elementwise import Cast
from relayc.relay.op.layout import LayoutTransform
from relayc.relay.op.qnn import flipped, unflipped
from relayc.relay.op.transform import Reshape, StridedSlice, Transpose
from relayc.relay.transform.builders import MOST_STEPS, reshaped

__all__ = ["fit_16_bits", "narrowest", "quantized_and_constant", "quantized_and_zero", "unsigned"]

Array = np.ndarray[Any, Any]


def quantized_and_zero(data: Expr, steps: int = MOST_STEPS) -> tuple[Expr, Expr | int] | None:
    """(x, n) if `data` is x - n with 8-bit x and n a scalar, or one value for each row; None otherwise."""
    centred, zero = data, const(0, "int32")
    if isinstance(data, Call) and isinstance(data.op, Reshape | Transpose | LayoutTransform):
        found = quantized_and_zero(data.args[0], steps - 1) if steps else None
        if found is None or not (isinstance(found[1], int) or all(d == 1 for d in found[1].shape)):
            return None
        zero = found[1] if isinstance(found[1], int) else reshaped(found[1], ())
        return make_call(data.op, (found[0],), data.span), zero
    if isinstance(data, Call) and isinstance(data.op, Subtract):
        centred, zero = data.args
    shape = zero.shape
    if not isinstance(centred, Call) or not isinstance(centred.op, Cast) or centred.ty is not data.ty:
        return None
    quantized = centred.args[0]
    if str(quantized.dtype) not in ("uint8", "int8") or (shape and shape[-1] != 1) or len(shape) > len(data.shape):
        return None
    return quantized, int(zero.data.item()) if isinstance(zero, Constant) and zero.data.size == 1 else zero


def unsigned(quantized: Expr, zero: Expr | int) -> tuple[Expr, Expr | int]:
    """Quantised values and their zero point as unsigned ones."""
    if quantized.dtype == "uint8":
        return quantized, zero
    unsigned = unflipped(quantized)
    quantized = flipped(quantized) if unsigned is None else unsigned
    return quantized, zero + 128 if isinstance(zero, int) else broadcast.add(zero, const(128, "int32"))


def quantized_and_constant(data: Expr) -> tuple[Expr, int]:
    """(x, n) if `data` is x - n with 8-bit x and a scalar n; (data, 0) otherwise."""
    centred, zero_point = data, 0
    if isinstance(data, Call) and isinstance(data.op, Subtract):
        centred, subtracted = data.args
        if not isinstance(subtracted, Constant) or subtracted.data.size != 1 or centred.ty is not data.ty:
            return data, 0
        zero_point = int(subtracted.data.item())
    if isinstance(centred, Call) and isinstance(centred.op, Cast) and str(centred.args[0].dtype) in ("uint8", "int8"):
        return centred.args[0], zero_point
    return data, 0


def narrowest(weight: Array) -> Array:
    """Integers in the smallest type that holds them; kernels convert a panel at a time."""
    if weight.dtype != np.int32 or weight.size == 0:
        return weight
    low, high = int(weight.min()), int(weight.max())
    for dtype in (np.int8, np.int16):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return weight.astype(dtype)
    return weight


def fit_16_bits(data: Expr, weight: Array) -> bool:
    """Are these int32 that are known to fit into 16 bits, so that processors multiply two at a time?"""
    if data.dtype != "int32" or weight.size == 0:
        return False
    found = _interval(data), (int(weight.min()), int(weight.max()))
    return all(f is not None and f[0] >= -(1 << 15) and f[1] < 1 << 15 for f in found)


def _interval(e: Expr, steps: int = MOST_STEPS) -> tuple[int, int] | None:
    """The range of integers, as far as casts and differences determine it."""
    dtype = e.dtype
    if isinstance(e, Constant) and e.data.size and dtype.is_integral:
        return int(e.data.min()), int(e.data.max())
    if not isinstance(e, Call) or not dtype.is_integral or not steps:
        return None
    match e.op:
        case Cast() if e.args[0].dtype.is_integral and e.args[0].dtype.bits <= 16:
            limits = np.iinfo(str(e.args[0].dtype))
            return limits.min, limits.max
        case Subtract():
            a, b = (_interval(arg, steps - 1) for arg in e.args)
            return None if a is None or b is None else (a[0] - b[1], a[1] - b[0])
        case Reshape() | Transpose() | LayoutTransform() | StridedSlice():
            return _interval(e.args[0], steps - 1)
        case _:
            return None
