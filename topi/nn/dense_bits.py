"""Products with 4- or 8-bit weights, which are dequantised on the fly, a few rows at a time."""

from __future__ import annotations

from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import PrimExpr, as_dim, as_int
from relayc.topi.nn.dense import first_columns, flattened_product, rounded
from relayc.topi.utils import accumulator_type

__all__ = ["dense_bits"]


def dense_bits(data: Tensor, codes: Tensor, scales: Tensor, offsets: Tensor, units: int, bits: int) -> Tensor:
    """data (..., K) times weights code * scale - offset: (..., N) with N = `units`.

    Columns are packed in panels of NR: codes (ceil(N / NR), K * bits / 8, NR) bytes, the first code of a byte in its
    low bits; scales and offsets (ceil(N / NR), K / block, NR) float32. The dequantised weights are a separate tensor,
    (ceil(N / NR), K, NR), for the schedule to place. The product of a single row has the tag "dense_bits_row".
    """
    panels, height, nr = codes.shape
    per_byte, wide = 8 // bits, accumulator_type(data.dtype)
    block = height * per_byte // scales.shape[1]
    if all(as_int(d) == 1 for d in data.shape[:-1]):
        return rounded(_product_of_a_row(data, codes, scales, offsets, units, bits), data.dtype)

    def weight(p: Any, k: Any, lane: Any) -> PrimExpr:
        code = te.cast(wide, _code(codes, p, k, lane, bits))
        return code * te.cast(wide, scales(p, k // block, lane)) - te.cast(wide, offsets(p, k // block, lane))

    shape, attrs = (panels, height * per_byte, nr), {"block": block}
    weights = te.compute(shape, weight, name="weights", tag="widened_weights", attrs=attrs)
    return rounded(flattened_product(data, weights, units, wide), data.dtype)


def _code(codes: Tensor, panel: Any, k: Any, lane: Any, bits: int) -> PrimExpr:
    """Weight k of a column of a panel, as int32."""
    per_byte = 8 // bits
    code = te.cast("int32", codes(panel, k // per_byte, lane))
    return (code >> (k % per_byte * bits)) & ((1 << bits) - 1) if per_byte > 1 else code


def _product_of_a_row(
    data: Tensor, codes: Tensor, scales: Tensor, offsets: Tensor, units: int, bits: int
) -> Tensor:
    """The product of one row: codes are multiplied without dequantising, and the sums of each block are scaled.

    It reads the sums of the data over each block, and the sums of data times codes (columns, blocks).
    """
    panels, height, nr = codes.shape
    blocks, wide = scales.shape[1], accumulator_type(data.dtype)
    block, lead = height * 8 // bits // blocks, [0] * (data.ndim - 1)
    one, k, b = [te.reduce_axis((0, size), name=name) for size, name in ((block, "k"), (block, "k"), (blocks, "b"))]
    total = te.compute(
        (blocks,), lambda i: te.sum(te.cast(wide, data(*lead, i * block + one)), axis=one), name="block_totals"
    )

    def by_block(n: Any, i: Any) -> PrimExpr:
        code = te.cast(wide, _code(codes, n // nr, i * block + k, n % nr, bits))
        return te.sum(te.cast(wide, data(*lead, i * block + k)) * code, axis=k)

    columns = as_dim(panels * nr)
    sums = te.compute((columns, blocks), by_block, name="block_sums")

    def body(*i: Any) -> PrimExpr:
        panel, lane = i[-1] // nr, i[-1] % nr
        scaled = sums(i[-1], b) * te.cast(wide, scales(panel, b, lane))
        return te.sum(scaled - total(b) * te.cast(wide, offsets(panel, b, lane)), axis=b)

    shape = (*data.shape[:-1], columns)
    return first_columns(te.compute(shape, body, name="dense", tag="dense_bits_row", attrs={"block": nr}), units)
