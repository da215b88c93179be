"""Products with weights quantised to 4 or 8 bits, blocks of which share a scale and a zero point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require, require_float
from relayc.relay.op.indexing import TAKE_MODES, positions_inside
from relayc.relay.op.nn.pad import pad_last
from relayc.relay.type import TensorType, TupleType, Type, dims_match
from relayc.topi.nn.dense_bits import LARGEST_CODE, SMALLEST_MAGNITUDE, BlockWeights

__all__ = ["DenseBits", "DenseBlocks", "QuantizeBlocks", "TakeBits", "dense_bits", "take_bits"]

_T = TypeVar("_T")
PANEL = 16
"""Columns of a panel: whole vectors of 32-bit elements on every processor."""
_ROWS_AT_ONCE = 64
"""Rows of codes whose order is changed at a time: with what is computed of them they stay in the L2 cache."""


class _BlockProduct(OpDef):
    """A product with packed weights: what `nn.dense_bits` and `nn.dense_blocks` have in common."""

    units: int
    bits: int

    def _check_weights(
        self, depth: object, codes: TensorType, scales: TensorType, zeros: TensorType | None,
        table: TensorType | None = None,
    ) -> None:
        """(C1) to (C3) of `DenseBits`; `depth` is K of the data."""
        kinds = codes.dtype == "int32" and scales.dtype in ("float32", "float16")
        kinds = kinds and (zeros is None or zeros.dtype in ("uint8", "float16", "float32"))
        require(kinds, f"(C1) codes {codes} must be int32, scales {scales} float32 or float16, zero points {zeros} "
                       "floats or uint8")  # fmt: skip
        require(self.bits in (4, 8), f"(C2) {self.bits} bits; expected 4 or 8")
        of_codes = TensorType((1 << self.bits,), "float32")
        require(table is None or table == of_codes, f"(C1) table {table}; expected {of_codes}, a value of each code")
        require(
            self._fit(depth, codes, scales, zeros),
            f"(C3) data of {depth} columns, {codes}, {scales}, {zeros} do not fit {self.units} columns of "
            f"{self.bits} bits",
        )

    def _fit(self, depth: object, codes: TensorType, scales: TensorType, zeros: TensorType | None) -> bool:
        if codes.ndim != 3 or scales.ndim != 3 or (zeros is not None and zeros.shape != scales.shape):
            return False
        panels, height, nr = codes.static_shape
        blocks = scales.static_shape[1]
        holds = (panels - 1) * nr < self.units <= panels * nr and scales.static_shape == (panels, blocks, nr)
        whole = height * 32 // self.bits % blocks == 0 and height * 32 // self.bits // blocks % 8 == 0
        return holds and whole and dims_match(depth, height * 32 // self.bits)  # type: ignore[arg-type]

    def _weights(
        self, codes: te.Tensor, scales: te.Tensor, zeros: te.Tensor | None, table: te.Tensor | None = None
    ) -> BlockWeights:
        return BlockWeights(codes, scales, zeros, self.units, self.bits, table)

    def real_weights(
        self, codes: Array, scales: Array, zeros: Array | None = None, table: Array | None = None
    ) -> Array:
        """The weights as float32 (N, K)."""
        words = np.ascontiguousarray(codes).astype("<i4").view(np.uint8).reshape(*codes.shape, 4)
        four = words[..., None, :]  # (P, words, NR, 1, bytes)
        if self.bits == 4:
            four = np.concatenate([four & 15, four >> 4], axis=-2)
        values = four.transpose(0, 2, 1, 3, 4).reshape(len(codes) * codes.shape[2], scales.shape[1], -1)
        middle = np.float32(1 << (self.bits - 1))
        zero = middle if zeros is None else _by_column(zeros)[..., None].astype(np.float32)
        centred = values.astype(np.float32) - zero if table is None else table[values]
        real = centred * _by_column(scales)[..., None].astype(np.float32)
        return real.reshape(len(real), -1)[: self.units]

    def macs(self, types: Sequence[Type], result: Type) -> int:
        codes = types[1]
        assert isinstance(codes, TensorType) and isinstance(result, TensorType)
        return 0 if result.size is None else result.size * codes.static_shape[1] * 32 // self.bits


@register_op("nn.dense_bits", pattern=OpPattern.OUT_FUSABLE)
class DenseBits(_BlockProduct):
    """data (..., K) times weights (code - zero point) * scale: (..., N), N = `units` (ONNX: MatMulNBits of
    com.microsoft).

    Columns lie in panels of NR, a block of K / blocks weights has one scale and one zero point. Codes
    (ceil(N / NR), K * bits / 32, NR) are int32 words as in `topi.nn.dense_bits`; scales (ceil(N / NR), blocks, NR);
    zero points likewise, 2^(bits - 1) if there are none. With `has_table` the last input is, in place of zero points, a
    table (2^bits,) of the values that codes stand for (MatMulBnb4). With `int8_activations` the model allows the data
    to be quantised to int8 too, block by block. (C1) data and scales are floats, zero points floats or uint8, codes
    int32, tables float32;
    (C2) `bits` is 4 or 8; (C3) data has one dimension or more, the others three that match; blocks are multiples of 8.
    """

    mixed_precision = MixedPrecision.NEVER
    num_narrowed_inputs = 1

    units: int
    bits: int
    int8_activations: bool = False
    has_table: bool = False

    def infer(
        self, data: TensorType, codes: TensorType, scales: TensorType, last: TensorType | None = None
    ) -> TensorType:
        require_float(1, data)
        require(data.ndim >= 1, f"(C3) {data} has no columns")
        self._check_weights(data.shape[-1], codes, scales, *self._zeros_and_table(last))
        return TensorType((*data.shape[:-1], self.units), data.dtype)

    def _zeros_and_table(self, last: _T | None) -> tuple[_T | None, _T | None]:
        """What the last input is, if there is one."""
        require(not self.has_table or last is not None, "(C3) no table; expected one after the scales")
        return (None, last) if self.has_table else (last, None)

    def compute(
        self, data: te.Tensor, codes: te.Tensor, scales: te.Tensor, last: te.Tensor | None = None
    ) -> te.Tensor:
        return topi.nn.dense_bits(data, self._weights(codes, scales, *self._zeros_and_table(last)))

    def reference(self, data: Array, codes: Array, scales: Array, last: Array | None = None) -> Array:
        return (data.astype(np.float64) @ self.floats(codes, scales, last).T.astype(np.float64)).astype(data.dtype)

    def floats(self, codes: Array, scales: Array, last: Array | None = None) -> Array:
        """The weights as float32 (N, K), of the inputs after the data."""
        return self.real_weights(codes, scales, *self._zeros_and_table(last))


@register_op("nn.dense_blocks", pattern=OpPattern.OUT_FUSABLE)
class DenseBlocks(_BlockProduct):
    """The sum over blocks b of scale[b] * (x[b] . codes[b] - zero[b] * sum(x[b])): (..., N) of float32, N = `units`.

    Codes, scales and zero points (if `has_zeros`, the last input) are those of nn.dense_bits, which `LowerDenseBits`
    lowers to this operator. `sums` (..., blocks) are the sums of the data of each block, times the zero point if there
    are no zero points. Data are float32 (..., K), or four signed bytes in an int32 (..., K / 4), in units of the scales
    (..., blocks) that then follow the sums. `in_16_bits` is for processors that add
    products of bytes in 16 bits. With `has_table`, for float32 data, a table of the values of codes stands in place of
    the sums, and nothing is subtracted. (C1) to (C3) as there; (C4) data are float32, or int32 with scales for
    each block; (C5) sums are float32, one for each row and block.
    """

    mixed_precision = MixedPrecision.NEVER

    units: int
    bits: int
    has_zeros: bool = False
    in_16_bits: bool = False
    has_table: bool = False

    def infer(
        self, data: TensorType, codes: TensorType, scales: TensorType, sums: TensorType, *rest: TensorType
    ) -> TensorType:
        data_scales, zeros = self._split(rest)
        table = sums if self.has_table else None
        kinds = data.dtype == ("float32" if data_scales is None else "int32") and data.ndim >= 1
        require(kinds, f"(C4) data {data} with scales {data_scales}")
        self._check_weights(data.shape[-1] * (1 if data_scales is None else 4), codes, scales, zeros, table)
        if self.has_table:
            require(not rest, f"(C4) {len(rest)} inputs behind the table; expected none")
            return TensorType((*data.shape[:-1], self.units), "float32")
        expected = TensorType((*data.shape[:-1], scales.shape[1]), "float32")
        for found in (sums, *([] if data_scales is None else [data_scales])):
            fits = found.dtype == "float32" and found.ndim == expected.ndim
            fits = fits and all(map(dims_match, found.shape, expected.shape))
            require(fits, f"(C5) {found} for blocks of {data}; expected {expected}")
        return TensorType((*data.shape[:-1], self.units), "float32")

    def _split(self, rest: Sequence[_T]) -> tuple[_T | None, _T | None]:
        """The data's scales and the zero points, if there are any, of the last inputs."""
        zeros = rest[-1] if self.has_zeros else None
        others = rest[:-1] if self.has_zeros else rest
        require(len(others) <= 1, f"(C4) {len(others)} inputs behind the sums; expected scales of the data")
        return (others[0] if others else None), zeros

    def compute(
        self, data: te.Tensor, codes: te.Tensor, scales: te.Tensor, sums: te.Tensor, *rest: te.Tensor
    ) -> te.Tensor:
        if self.has_table:
            return topi.nn.dense_blocks(data, None, self._weights(codes, scales, None, sums))
        data_scales, zeros = self._split(rest)
        return topi.nn.dense_blocks(data, sums, self._weights(codes, scales, zeros), data_scales, self.in_16_bits)

    def reference(self, data: Array, codes: Array, scales: Array, sums: Array, *rest: Array) -> Array:
        data_scales, zeros = self._split(rest)
        blocks, plain = scales.shape[1], np.zeros(scales.shape, np.float32)
        x = data.astype(np.float64)
        if self.has_table:
            return (x @ self.real_weights(codes, scales, table=sums).T.astype(np.float64)).astype(np.float32)
        if data_scales is not None:
            x = np.ascontiguousarray(data).astype("<i4").view(np.int8).astype(np.float64)
            x = (x.reshape(*data.shape[:-1], blocks, -1) * data_scales[..., None]).reshape(*data.shape[:-1], -1)
        products = x @ self.real_weights(codes, scales, plain).T.astype(np.float64)
        units = _by_column(scales).astype(np.float64) * (1 if zeros is None else _by_column(zeros))
        return (products - sums.astype(np.float64) @ units[: self.units].T).astype(np.float32)


@register_op("nn.take_bits", pattern=OpPattern.INJECTIVE)
class TakeBits(_BlockProduct):
    """Columns of packed weights, as rows: indices.shape + (K,) of `dtype` (ONNX: GatherBlockQuantized).

    The first inputs are codes, scales and, if there are any, zero points as in nn.dense_bits, the last one indices;
    `mode` as for `take`. (C1) to (C3) as there; (C4) indices are integers; (C5) the mode is known.
    """

    looks_up = True
    num_data_inputs = 1

    units: int
    bits: int
    dtype: str = "float32"
    mode: str = "clip"

    def infer(self, codes: TensorType, scales: TensorType, *rest: TensorType) -> TensorType:
        *zeros, indices = rest
        depth = codes.shape[1] * 32 // self.bits if codes.ndim == 3 else 0
        self._check_weights(depth, codes, scales, zeros[0] if zeros else None)
        require(indices.dtype.is_integral, f"(C4) indices must be integers; got {indices}")
        require(self.mode in TAKE_MODES, f"(C5) mode {self.mode!r} is not one of {', '.join(TAKE_MODES)}")
        return TensorType((*indices.shape, depth), self.dtype)

    def compute(self, codes: te.Tensor, scales: te.Tensor, *rest: te.Tensor) -> te.Tensor:
        *zeros, indices = rest
        weights = self._weights(codes, scales, zeros[0] if zeros else None)
        return topi.nn.take_bits(weights, indices, self.dtype, self.mode)

    def reference(self, codes: Array, scales: Array, *rest: Array) -> Array:
        *zeros, indices = rest
        table = self.real_weights(codes, scales, *zeros)
        return table[positions_inside(indices, self.units, self.mode)].astype(self.dtype)

    def macs(self, types: Sequence[Type], result: Type) -> int:
        return 0


@register_op("nn.quantize_blocks", pattern=OpPattern.OPAQUE)
class QuantizeBlocks(OpDef):
    """x (..., K) in int8 by the largest magnitude of each of `blocks`: a tuple of values, scales and sums.

    Values (..., blocks, K / blocks) are round(x / scale), scales (..., blocks) the largest magnitudes / 127, sums
    (..., blocks) those of the values, times scale and `unit`; all float32 but the values. (C1) x is float32 and has one
    dimension or more; (C2) the last is a multiple of `blocks`.
    """

    mixed_precision = MixedPrecision.NEVER

    blocks: int
    unit: float = 1.0

    def infer(self, x: TensorType) -> TupleType:
        require(x.dtype == "float32" and x.ndim >= 1, f"(C1) float32 data (..., K) expected; got {x}")
        depth = x.shape[-1]
        fits = isinstance(depth, int) and self.blocks > 0 and depth % self.blocks == 0
        require(fits, f"(C2) the last dimension of {x} is no multiple of {self.blocks}")
        of_blocks = (*x.shape[:-1], self.blocks)
        values = TensorType((*of_blocks, depth // self.blocks), "int8")  # type: ignore[operator]
        return TupleType([values, TensorType(of_blocks, "float32"), TensorType(of_blocks, "float32")])

    def compute(self, x: te.Tensor) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
        return topi.nn.quantize_blocks(x, self.blocks, self.unit)

    def reference(self, x: Array) -> tuple[Array, Array, Array]:
        blocks = x.reshape(*x.shape[:-1], self.blocks, -1)
        largest = np.abs(blocks).max(-1)
        scales, used = largest / np.float32(LARGEST_CODE), largest > np.float32(SMALLEST_MAGNITUDE)
        inverse = np.where(used, np.float32(LARGEST_CODE) / np.where(used, largest, 1), 0).astype(np.float32)
        values = np.rint(blocks * inverse[..., None]).astype(np.int8)
        sums = values.sum(-1, dtype=np.int32).astype(np.float32) * (scales * np.float32(self.unit))
        return values, scales, sums


def _by_column(x: Array) -> Array:
    """Panels (P, blocks, NR) as columns (P * NR, blocks)."""
    return x.transpose(0, 2, 1).reshape(-1, x.shape[1])


def _in_panels(x: Array) -> Array:
    """Columns (N, n) in panels (ceil(N / NR), n, NR), padded with zeros."""
    whole, rest = divmod(len(x), PANEL)
    panels = np.zeros((-(-len(x) // PANEL), x.shape[1], PANEL), x.dtype)
    panels[:whole] = x[: whole * PANEL].reshape(whole, PANEL, x.shape[1]).transpose(0, 2, 1)
    panels[whole:, :, :rest] = x[whole * PANEL :].T
    return panels


def _words(packed: Array, bits: int) -> Array:
    """Bytes (N, K * bits / 8), the first code of each in its low bits, as the words (N, K * bits / 32) of a panel."""
    words = np.ascontiguousarray(packed).view("<u4")
    if bits == 4:
        words = words.copy()
        for first in range(0, len(words), _ROWS_AT_ONCE):
            _interleave(words[first : first + _ROWS_AT_ONCE])
    return words.view("<i4")


def _interleave(words: Array) -> None:
    """Put the codes 0 to 7 of each word into the order 0, 4, 1, 5, 2, 6, 3, 7, in place."""
    for bits, mask in ((8, 0x0000FF00), (4, 0x00F000F0)):  # the middle bytes, then the middle codes of each half, swap
        differ = words >> np.uint32(bits)
        differ ^= words
        differ &= np.uint32(mask)
        words ^= differ
        differ <<= np.uint32(bits)
        words ^= differ


def _narrowest(x: Array) -> Array:
    """Floats in float16 if it holds all of them exactly, in float32 otherwise."""
    wide = x.astype(np.float32)
    with np.errstate(over="ignore"):
        half = wide.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), wide) else wide


def dense_bits(
    data: Expr, quantized: Array, scales: Array, zeros: Array | None, bits: int, *, int8_activations: bool = False,
    table: Array | None = None,
) -> Call:  # fmt: skip
    """`data` (..., K) times (q - zero point) * scale, packed in panels; with a `table`, times table[q] * scale.

    Quantised weights q (N, K * bits / 8) are bytes, the first of those in a byte in its low bits; scales and zeros are
    (N, blocks), zeros None for 2^(bits - 1). The last block may be longer than the data, which is then padded.
    """
    require(len(data.shape) > 0, "data is a scalar; expected (..., K)")
    _check_table(quantized, scales, zeros, bits)
    missing = quantized.shape[1] * 8 // bits - int(data.shape[-1])  # type: ignore[arg-type]
    op = DenseBits(units=len(quantized), bits=bits, int8_activations=int8_activations, has_table=table is not None)
    values = [] if table is None else [Constant(table)]
    return op(pad_last(data, missing), *_packed(quantized, scales, zeros, bits), *values)


def take_bits(
    quantized: Array, scales: Array, zeros: Array | None, bits: int, indices: Expr, dtype: str, mode: str = "clip"
) -> Call:
    """Rows of a table packed as the weights of `dense_bits`, which may be the same: indices.shape + (K,)."""
    _check_table(quantized, scales, zeros, bits)
    op = TakeBits(units=len(quantized), bits=bits, dtype=dtype, mode=mode)
    return op(*_packed(quantized, scales, zeros, bits), indices)


def _check_table(quantized: Array, scales: Array, zeros: Array | None, bits: int) -> None:
    """Raise TypeInferenceError unless these are bytes (N, K * bits / 8) in whole words, and (N, blocks)."""
    require(bits in (4, 8), f"bits is {bits}; expected 4 or 8")
    words = quantized.dtype == np.uint8 and quantized.ndim == 2 and quantized.shape[1] % 4 == 0
    require(words, f"quantised weights {quantized.shape} of {quantized.dtype}; expected rows of words of 4 uint8")
    for each in (scales,) if zeros is None else (scales, zeros):
        fits = each.ndim == 2 and len(each) == len(quantized)
        require(fits, f"scales or zero points {each.shape}; expected (N, blocks) for weights {quantized.shape}")


def _packed(quantized: Array, scales: Array, zeros: Array | None, bits: int) -> list[Constant]:
    """Codes, scales and, unless all are the middle of the range, zero points in panels."""
    panels = [_in_panels(_words(quantized, bits)), _in_panels(_narrowest(scales))]
    if zeros is not None and not np.all(zeros == 1 << (bits - 1)):
        whole = np.array_equal(zeros, np.clip(np.rint(zeros), 0, 255))
        panels.append(_in_panels(zeros.astype(np.uint8) if whole else _narrowest(zeros)))
    return [Constant(panel) for panel in panels]
