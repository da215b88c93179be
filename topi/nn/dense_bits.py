"""Products with weights quantised to 4 or 8 bits, blocks of which share a scale and a zero point.

Weights stay packed in memory: columns lie in panels of NR, whose int32 words hold the codes of one column. A word of
8-bit codes holds four, the first in the low byte. A word of 4-bit codes holds eight: the first four in the low halves
of its bytes, the others in the high halves, so that a mask makes each four an operand of `te.dot4`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.dtype import INT32
from relayc.te.tir import Dim, Let, PrimExpr, Var, as_dim, as_int
from relayc.te.tir.ops import bitwise_and, right_shift
from relayc.topi.indexing import inside
from relayc.topi.nn.dense import as_rows, batch_matmul, first_columns, rounded, with_rows
from relayc.topi.tag import INJECTIVE
from relayc.topi.utils import accumulator_type

__all__ = ["BlockWeights", "dense_bits", "dense_blocks", "quantize_blocks", "take_bits"]

LOW_HALVES = 0x0F0F0F0F
"""The low halves of the four bytes of a word."""
LARGEST_CODE = 127.0
SMALLEST_MAGNITUDE = 4e-37
"""Largest magnitude of a block up to which all its values are taken for zeros: `LARGEST_CODE` over it may overflow."""


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """Weights (code - zero point) * scale, or table[code] * scale, packed in panels of NR columns.

    `codes` (ceil(N / NR), K * bits / 32, NR) are int32 words; `scales` (ceil(N / NR), blocks, NR) floats, `zeros` of
    that shape floats or uint8. Without `zeros` the zero point is the middle of the range, 2^(bits - 1). A `table`
    (2^bits,) of float32 has the values of codes, in place of their differences from a zero point.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    units: int
    """the columns N"""
    bits: int
    table: Tensor | None = None
    chosen: Tensor | None = None
    """the expert (T,) of each group of rows, whose panels follow those of the experts before it"""

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return _size(self.scales.shape[2])

    @property
    def depth(self) -> int:
        """Weights of a column, K."""
        return _size(self.codes.shape[1]) * 32 // self.bits

    @property
    def blocks(self) -> int:
        """Blocks of a column."""
        return _size(self.scales.shape[1])

    @property
    def panels(self) -> int:
        """Panels of the columns, of one expert if there are several."""
        return -(-self.units // self.width)

    def panel(self, group: Sequence[Any], column: Any) -> PrimExpr:
        """The panel of a column, for the group of rows () or (t,)."""
        panel = column // self.width
        return panel if self.chosen is None else te.cast("int32", self.chosen(*group)) * self.panels + panel

    def code(self, panel: Any, k: Any, lane: Any) -> PrimExpr:
        """Weight k of a column, as stored: an int32 from 0."""
        word = self.codes(panel, k * self.bits // 32, lane)
        shift = k % 4 * 8 + (k // 4 % 2 * 4 if self.bits == 4 else 0)
        return bitwise_and(right_shift(word, shift), (1 << self.bits) - 1)

    def four_codes(self, panel: Any, step: Any, lane: Any) -> PrimExpr:
        """Weights 4 * step to 4 * step + 3 of a column, the bytes of an int32."""
        if self.bits == 8:
            return self.codes(panel, step, lane)
        return bitwise_and(right_shift(self.codes(panel, step // 2, lane), step % 2 * 4), LOW_HALVES)

    def scale(self, panel: Any, block: Any, lane: Any) -> PrimExpr:
        """The scale of a block, as float32."""
        return te.cast("float32", self.scales(panel, block, lane))

    def real(self, panel: Any, k: Any, lane: Any, wide: str) -> PrimExpr:
        """Weight k of a column, as a float of the type `wide`."""
        code, block = self.code(panel, k, lane), k // (self.depth // self.blocks)
        if self.table is not None:
            centred = te.cast(wide, self.table(code))
        elif self.zeros is None:
            centred = te.cast(wide, code - (1 << (self.bits - 1)))
        else:
            centred = te.cast(wide, code) - te.cast(wide, self.zeros(panel, block, lane))
        return centred * te.cast(wide, self.scales(panel, block, lane))


def _size(dim: Dim) -> int:
    known = as_int(dim)
    assert known is not None
    return known


def dense_bits(data: Tensor, weights: BlockWeights) -> Tensor:
    """data (..., K) times weights: (..., N), each weight converted where it is used. For any target.

    Data of several experts are groups of rows (T, rows, K).
    """
    wide = accumulator_type(data.dtype)
    if weights.chosen is not None:

        def of_expert(t: Any, n: Any, at: Any) -> PrimExpr:
            return te.cast(data.dtype, weights.real(weights.panel((t,), n), at, n % weights.width, wide))

        shape = (data.shape[0], as_dim(weights.units), as_dim(weights.depth))
        return batch_matmul(data, te.compute(shape, of_expert, name="weights", tag=INJECTIVE), transpose_b=True)
    k = te.reduce_axis((0, weights.depth), name="k")

    def weight(n: Any, at: Any) -> PrimExpr:
        return weights.real(n // weights.width, at, n % weights.width, wide)

    real = te.compute((as_dim(weights.units), as_dim(weights.depth)), weight, name="weights", tag=INJECTIVE)

    def body(*i: Any) -> PrimExpr:
        return te.sum(te.cast(wide, data(*i[:-1], k)) * real(i[-1], k), axis=k)

    shape, attrs = (*data.shape[:-1], as_dim(weights.units)), {"weights": weights}
    return rounded(te.compute(shape, body, name="dense", tag="dense_bits", attrs=attrs), data.dtype)


def take_bits(weights: BlockWeights, indices: Tensor, dtype: str, mode: str) -> Tensor:
    """Columns of the weights, as rows: indices.shape + (K,) of `dtype`; `mode` as for `topi.take`."""

    def body(*i: Any) -> PrimExpr:
        named = Var("column", INT32)
        value = weights.real(named // weights.width, i[-1], named % weights.width, "float32")
        return Let(named, inside(indices(*i[:-1]), weights.units, mode), te.cast(dtype, value))

    return te.compute((*indices.shape, as_dim(weights.depth)), body, name="take_bits", tag=INJECTIVE)


def quantize_blocks(data: Tensor, blocks: int, unit: float) -> tuple[Tensor, Tensor, Tensor]:
    """data (..., K) in int8, by the largest magnitude of each block.

    Gives the values (..., blocks, K / blocks), scales (..., blocks), and the sums of the quantised values of each block
    times scale and `unit`, (..., blocks) of float32. A scale and what multiplies the data are quotients of the largest
    magnitude and 127, each rounded once: values and scales are those of onnxruntime on x86-64, bit for bit.
    """
    lead, block = data.shape[:-1], _size(data.shape[-1]) // blocks
    k, j = te.reduce_axis((0, block), name="k"), te.reduce_axis((0, block), name="j")

    def magnitude(*i: Any) -> PrimExpr:
        return te.max(te.abs(data(*i[:-1], i[-1] * block + k)), axis=k)

    largest = te.compute((*lead, as_dim(blocks)), magnitude, name="largest", tag="block_reduction")
    scales = te.compute(
        largest.shape, lambda *i: largest(*i) / te.const(LARGEST_CODE, "float32"), name="scales", tag=INJECTIVE
    )

    def value(*i: Any) -> PrimExpr:
        *at, n = i
        most, code, zero = largest(*at), te.const(LARGEST_CODE, "float32"), te.const(0.0, "float32")
        inverse = te.if_then_else(most > te.const(SMALLEST_MAGNITUDE, "float32"), code / most, zero)
        return te.cast("int8", te.round(data(*at[:-1], at[-1] * block + n) * inverse))

    values = te.compute((*largest.shape, as_dim(block)), value, name="values", tag="quantize_blocks")
    totals = te.compute(
        largest.shape, lambda *i: te.sum(te.cast("int32", values(*i, j)), axis=j), name="totals", tag="block_reduction"
    )
    sums = te.compute(
        largest.shape, lambda *i: te.cast("float32", totals(*i)) * (scales(*i) * te.const(unit, "float32")),
        name="sums", tag=INJECTIVE,
    )  # fmt: skip
    return values, scales, sums


def dense_blocks(
    data: Tensor, sums: Tensor | None, weights: BlockWeights, data_scales: Tensor | None = None,
    in_16_bits: bool = False,
) -> Tensor:
    """data (..., K) times weights, block by block: (..., N) of float32.

    The result is the sum, over blocks b, of scale[b] * (x[b] . codes[b] - zero[b] * sum(x[b])). `sums` (..., blocks)
    are the sums of the data of each block, times the zero point where that is the same for all weights; None for
    weights with a table, whose values stand for codes[b] and have no zero point. The data are
    float32; or, with `data_scales` (..., blocks), int32 words of four signed bytes (..., K / 4) in units of these
    scales. `in_16_bits` is for processors that add products of bytes in 16 bits (no VNNI): eight products are one step,
    and the halves of 8-bit codes are multiplied separately, so that no sum overflows. Data of several experts are
    groups of rows (T, rows, ...).
    """
    lead, nr = data.shape[:-1], weights.width
    if weights.chosen is None:
        data, sums, data_scales = as_rows(data), sums and as_rows(sums), data_scales and as_rows(data_scales)
    b = te.reduce_axis((0, weights.blocks), name="b")
    products = _block_sums(data, weights, data_scales is not None, in_16_bits)

    def body(*i: Any) -> PrimExpr:
        *row, n = i
        panel, lane = weights.panel(row[:-1], n), n % nr
        value = products(*row, b, n)
        if data_scales is not None:
            value = te.cast("float32", value) * data_scales(*row, b)
        if sums is not None:
            offset = sums(*row, b)
            if weights.zeros is not None:
                offset = offset * te.cast("float32", weights.zeros(panel, b, lane))
            value = value - offset
        return te.sum(value * weights.scale(panel, b, lane), axis=b)

    shape = (*data.shape[:-1], as_dim(weights.panels * nr))
    attrs = {"block": nr, "groups": 1, "panel": weights.panel, "panels": weights.panels}
    tag = "dense_blocks" if weights.chosen is None else "routed_blocks"
    result = first_columns(te.compute(shape, body, name="dense", tag=tag, attrs=attrs), weights.units)
    return result if weights.chosen is not None else with_rows(result, lead)


def _block_sums(data: Tensor, weights: BlockWeights, are_bytes: bool, in_16_bits: bool) -> Tensor:
    """The products of data (..., K) and codes, summed over each block: (..., blocks, columns).

    What it reads of the codes is a tensor of its own where they are converted, for a schedule to place.
    """
    nr, per_block = weights.width, weights.depth // weights.blocks // (4 if are_bytes else 1)
    at_once = 2 if in_16_bits else 1
    k = te.reduce_axis((0, per_block // at_once), name="k")
    codes = _converted(weights, are_bytes)

    def body(*i: Any) -> PrimExpr:
        *row, b, n = i
        steps = [b * per_block + k * at_once + i for i in range(at_once)]
        x = [data(*row, step) for step in steps]
        code = [codes(*row[:-1], n // nr, step, n % nr) for step in steps]
        if not are_bytes:
            return te.sum(x[0] * code[0], axis=k)
        if not in_16_bits:
            return te.sum(te.dot4(code[0], x[0]), axis=k)
        if weights.bits == 4:
            return te.sum(te.dot8(code[0], x[0], code[1], x[1]), axis=k)
        low, high = [[bitwise_and(right_shift(c, shift), LOW_HALVES) for c in code] for shift in (0, 4)]
        return te.sum(te.dot8(low[0], x[0], low[1], x[1]) + te.dot8(high[0], x[0], high[1], x[1]) * 16, axis=k)

    shape = (*data.shape[:-1], as_dim(weights.blocks), as_dim(weights.panels * nr))
    return te.compute(shape, body, name="block_sums", tag="block_sums")


def _converted(weights: BlockWeights, to_bytes: bool) -> Tensor:
    """The codes as operands: words of four bytes (panels, K / 4, NR), or float32 (panels, K, NR).

    Those of experts (T, panels, ...) for each group of rows.
    """
    if to_bytes and weights.bits == 8 and weights.chosen is None:
        return weights.codes

    def operand(panel: Any, step: Any, lane: Any) -> PrimExpr:
        if to_bytes:
            return weights.four_codes(panel, step, lane)
        code = weights.code(panel, step, lane)
        return te.cast("float32", code) if weights.table is None else weights.table(code)

    def body(*i: Any) -> PrimExpr:
        *group, panel, step, lane = i
        return operand(weights.panel(group, panel * weights.width), step, lane)

    groups = () if weights.chosen is None else weights.chosen.shape
    steps = weights.depth // 4 if to_bytes else weights.depth
    shape = (*groups, as_dim(weights.panels), as_dim(steps), as_dim(weights.width))
    return te.compute(shape, body, name="codes", tag="widened_weights")
