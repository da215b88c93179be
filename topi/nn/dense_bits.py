"""Products with weights of 4 or 8 bits, which are read as they are and made floats a few lines at a time."""

from __future__ import annotations

from typing import Any

import te
from te import Tensor
from te.tir import PrimExpr
from topi.nn.dense import flattened_product, rounded
from topi.tag import INJECTIVE
from topi.utils import accumulator_type

__all__ = ["dense_bits"]


def dense_bits(data: Tensor, codes: Tensor, scales: Tensor, offsets: Tensor, units: int, bits: int) -> Tensor:
    """data (..., K) times weights code * scale - offset: (..., N) with N = `units`.

    Columns lie in panels of NR: codes (ceil(N / NR), K * bits / 8, NR) bytes, the first of those in a byte in its low
    bits; scales and offsets (ceil(N / NR), K / block, NR) float32. The product is tagged "dense_bits", its weights are
    a tensor of their own, (ceil(N / NR), K, NR), for the schedule to place.
    """
    panels, height, nr = codes.shape
    per_byte, wide = 8 // bits, accumulator_type(data.dtype)
    block = height * per_byte // scales.shape[1]

    def weight(p: Any, k: Any, lane: Any) -> PrimExpr:
        code = te.cast("int32", codes(p, k // per_byte, lane))
        if per_byte > 1:
            code = (code >> (k % per_byte * bits)) & ((1 << bits) - 1)
        return te.cast(wide, code) * te.cast(wide, scales(p, k // block, lane)) - te.cast(
            wide, offsets(p, k // block, lane))  # fmt: skip

    attrs = {"block": block}
    weights = te.compute((panels, height * per_byte, nr), weight, name="weights", tag=INJECTIVE, attrs=attrs)
    return rounded(flattened_product(data, weights, units, wide, tag="dense_bits"), data.dtype)
