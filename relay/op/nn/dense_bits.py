"""Products with weights quantised to 4 or 8 bits, blocks of which share a scale and a zero point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import MixedPrecision, Multiplications, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require, require_float
from relayc.relay.op.indexing import TAKE_MODES, positions_inside
from relayc.relay.op.nn.pad import pad_last
from relayc.relay.stored import StoredConstant
from relayc.relay.type import TensorType, TupleType, Type, dims_match
from relayc.topi.nn.dense_bits import LARGEST_CODE, SMALLEST_MAGNITUDE, BlockWeights

__all__ = ["DenseBits", "DenseBlocks", "QuantizeBlocks", "TakeBits", "dense_bits", "routed_bits", "take_bits"]

_T = TypeVar("_T")
PANEL = 16
"""Columns of a panel: whole vectors of 32-bit elements on every processor."""
_ROWS_AT_ONCE = 64
"""Rows of codes whose order is changed at a time: with what is computed of them they stay in the L2 cache."""


class _BlockProduct(OpDef):
    """A product with packed weights: what `nn.dense_bits` and `nn.dense_blocks` have in common."""

    units: int
    bits: int
    experts: int = 0

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
        panels_of_one, left = divmod(panels, max(self.experts, 1))
        holds = not left and (panels_of_one - 1) * nr < self.units <= panels_of_one * nr
        holds = holds and scales.static_shape == (panels, blocks, nr)
        whole = height * 32 // self.bits % blocks == 0 and height * 32 // self.bits // blocks % 8 == 0
        return holds and whole and dims_match(depth, height * 32 // self.bits)  # type: ignore[arg-type]

    def _weights(
        self, codes: te.Tensor, scales: te.Tensor, zeros: te.Tensor | None, table: te.Tensor | None = None,
        chosen: te.Tensor | None = None,
    ) -> BlockWeights:  # fmt: skip
        return BlockWeights(codes, scales, zeros, self.units, self.bits, table, chosen)

    def _check_groups(self, data: TensorType, chosen: TensorType | None) -> None:
        """(C6) of `DenseBits`."""
        if chosen is None:
            return
        fits = data.ndim == 3 and chosen.ndim == 1 and dims_match(data.shape[0], chosen.shape[0])
        require(fits and chosen.dtype.is_integral, f"(C6) experts {chosen} of data {data}; expected one for each group")

    def _and_chosen(self, inputs: Sequence[_T]) -> tuple[list[_T], _T | None]:
        """The last inputs, and the experts of the groups if there are several."""
        require(not self.experts or bool(inputs), "(C6) no experts of the groups; expected them last")
        return (list(inputs[:-1]), inputs[-1]) if self.experts else (list(inputs), None)

    def _products(self, x: Array, weights: Array, chosen: Array | None) -> Array:
        """x (..., K) times weights (N, K) in float64; x (T, rows, K) times weights (experts * N, K) of those chosen."""
        if chosen is None:
            return x.astype(np.float64) @ weights.T.astype(np.float64)
        of_experts = weights.reshape(self.experts, -1, weights.shape[-1]).swapaxes(1, 2).astype(np.float64)
        return x.astype(np.float64) @ of_experts[chosen]

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
        return self._without_padding(real.reshape(len(real), -1))

    def _without_padding(self, columns: Array) -> Array:
        """Columns (N, n) of those that panels hold; of one expert after the other if there are several."""
        columns = columns.reshape(max(self.experts, 1), -1, columns.shape[1])
        return columns[:, : self.units].reshape(-1, columns.shape[2])

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        codes = types[1]
        assert isinstance(codes, TensorType) and isinstance(result, TensorType)
        return ((*result.shape, codes.static_shape[1] * 32 // self.bits),)

    def multiplied(self, types: Sequence[Type]) -> str:
        """Words of four bytes, or floats."""
        data = super().multiplied(types)
        return "int8" if data == "int32" else data


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

    With a number of `experts` the columns of each follow those of the one before, in panels of their own. Data are
    groups of rows (T, rows, K), and the last input is the expert (T,) of each group: (T, rows, N) (ONNX: QMoE). (C6)
    data have three dimensions, experts are integers, one for each group.
    """

    mixed_precision = MixedPrecision.NEVER
    num_narrowed_inputs = 1

    units: int
    bits: int
    int8_activations: bool = False
    has_table: bool = False
    experts: int = 0

    def infer(self, data: TensorType, codes: TensorType, scales: TensorType, *rest: TensorType) -> TensorType:
        require_float(1, data)
        require(data.ndim >= 1, f"(C3) {data} has no columns")
        zeros, table, chosen = self.split(rest)
        self._check_weights(data.shape[-1], codes, scales, zeros, table)
        self._check_groups(data, chosen)
        return TensorType((*data.shape[:-1], self.units), data.dtype)

    def split(self, rest: Sequence[_T]) -> tuple[_T | None, _T | None, _T | None]:
        """The zero points, the table and the experts of groups, those that there are, of the last inputs."""
        last, chosen = self._and_chosen(rest)
        require(len(last) <= 1, f"(C3) {len(last)} inputs behind the scales; expected zero points or a table")
        require(not self.has_table or len(last) == 1, "(C3) no table; expected one after the scales")
        one = last[0] if last else None
        return (None, one, chosen) if self.has_table else (one, None, chosen)

    def compute(self, data: te.Tensor, codes: te.Tensor, scales: te.Tensor, *rest: te.Tensor) -> te.Tensor:
        return topi.nn.dense_bits(data, self._weights(codes, scales, *self.split(rest)))

    def reference(self, data: Array, codes: Array, scales: Array, *rest: Array) -> Array:
        *_, chosen = self.split(rest)
        return self._products(data, self.floats(codes, scales, *rest), chosen).astype(data.dtype)

    def floats(self, codes: Array, scales: Array, *rest: Array) -> Array:
        """The weights as float32 (N, K), of the inputs after the data."""
        zeros, table, _ = self.split(rest)
        return self.real_weights(codes, scales, zeros, table)


@register_op("nn.dense_blocks", pattern=OpPattern.OUT_FUSABLE)
class DenseBlocks(_BlockProduct):
    """The sum over blocks b of scale[b] * (x[b] . codes[b] - zero[b] * sum(x[b])): (..., N) of float32, N = `units`.

    Codes, scales and zero points (if `has_zeros`, behind the others) are those of nn.dense_bits, which `LowerDenseBits`
    lowers to this operator. `sums` (..., blocks) are the sums of the data of each block, times the zero point if there
    are no zero points. Data are float32 (..., K), or four signed bytes in an int32 (..., K / 4), in units of the scales
    (..., blocks) that then follow the sums. `in_16_bits` is for processors that add products of bytes in 16 bits. With
    `has_table`, for float32 data, a table of the values of codes stands in place of the sums, and nothing is
    subtracted. With `experts` those of the groups come last. (C1) to (C3) and (C6) as there; (C4) data are float32, or
    int32 with scales for each block; (C5) sums are float32, one for each row and block.
    """

    mixed_precision = MixedPrecision.NEVER

    units: int
    bits: int
    has_zeros: bool = False
    in_16_bits: bool = False
    has_table: bool = False
    experts: int = 0

    def takes_sizes_apart(self) -> bool:
        """The number and the length of groups of rows: no loop needs to know that both follow from that of tokens."""
        return self.experts > 0

    def infer(self, data: TensorType, codes: TensorType, scales: TensorType, *rest: TensorType) -> TensorType:
        sums, data_scales, zeros, table, chosen = self._split(rest)
        kinds = data.dtype == ("float32" if data_scales is None else "int32") and data.ndim >= 1
        require(kinds, f"(C4) data {data} with scales {data_scales}")
        self._check_weights(data.shape[-1] * (1 if data_scales is None else 4), codes, scales, zeros, table)
        self._check_groups(data, chosen)
        expected = TensorType((*data.shape[:-1], scales.shape[1]), "float32")
        for found in (sums, data_scales):
            fits = found is None or (found.dtype == "float32" and found.ndim == expected.ndim)
            fits = fits and (found is None or all(map(dims_match, found.shape, expected.shape)))
            require(fits, f"(C5) {found} for blocks of {data}; expected {expected}")
        return TensorType((*data.shape[:-1], self.units), "float32")

    def _split(self, rest: Sequence[_T]) -> tuple[_T | None, _T | None, _T | None, _T | None, _T | None]:
        """The sums, the data's scales, the zero points, the table and the experts, those that there are."""
        others, chosen = self._and_chosen(rest)
        if self.has_table:
            require(len(others) == 1, f"(C4) {len(others)} inputs behind the scales; expected a table")
            return None, None, None, others[0], chosen
        zeros = others.pop() if self.has_zeros else None
        require(len(others) in (1, 2), f"(C4) {len(others)} inputs behind the scales; expected sums, data's scales")
        return others[0], others[1] if len(others) > 1 else None, zeros, None, chosen

    def compute(self, data: te.Tensor, codes: te.Tensor, scales: te.Tensor, *rest: te.Tensor) -> te.Tensor:
        sums, data_scales, zeros, table, chosen = self._split(rest)
        weights = self._weights(codes, scales, zeros, table, chosen)
        return topi.nn.dense_blocks(data, sums, weights, data_scales, self.in_16_bits)

    def reference(self, data: Array, codes: Array, scales: Array, *rest: Array) -> Array:
        sums, data_scales, zeros, table, chosen = self._split(rest)
        blocks, plain = scales.shape[1], np.zeros(scales.shape, np.float32)
        if sums is None:
            return self._products(data, self.real_weights(codes, scales, table=table), chosen).astype(np.float32)
        x = data.astype(np.float64)
        if data_scales is not None:
            x = np.ascontiguousarray(data).astype("<i4").view(np.int8).astype(np.float64)
            x = (x.reshape(*data.shape[:-1], blocks, -1) * data_scales[..., None]).reshape(*data.shape[:-1], -1)
        products = self._products(x, self.real_weights(codes, scales, plain), chosen)
        units = _by_column(scales).astype(np.float64) * (1 if zeros is None else _by_column(zeros))
        return (products - self._products(sums, self._without_padding(units), chosen)).astype(np.float32)


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

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        return ()


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
    data: Expr, quantized: Array | StoredConstant, scales: Array, zeros: Array | None, bits: int, *,
    int8_activations: bool = False, table: Array | None = None,
) -> Call:  # fmt: skip
    """`data` (..., K) times (q - zero point) * scale, packed in panels; with a `table`, times table[q] * scale.

    Quantised weights q (N, K * bits / 8) are bytes, the first of those in a byte in its low bits; scales and zeros are
    (N, blocks), zeros None for 2^(bits - 1). The last block may be longer than the data, which is then padded. Weights
    that stay in a file, in any dimensions behind N, are packed when the model is stored.
    """
    require(len(data.shape) > 0, "data is a scalar; expected (..., K)")
    _check_table(quantized, scales, zeros, bits)
    units, length = _rows(quantized)
    missing = length * 8 // bits - int(data.shape[-1])  # type: ignore[arg-type]
    op = DenseBits(units=units, bits=bits, int8_activations=int8_activations, has_table=table is not None)
    values = [] if table is None else [Constant(table)]
    return op(pad_last(data, missing), *_packed(quantized, scales, zeros, bits), *values)


def routed_bits(
    data: Expr, chosen: Expr, quantized: Array, scales: Array, zeros: Array | None, bits: int, *,
    int8_activations: bool = False,
) -> Call:  # fmt: skip
    """Groups of rows `data` (T, rows, K) times the weights of the expert `chosen` (T,) for each: (T, rows, N).

    Quantised weights (experts, N, K * bits / 8), scales and zero points (experts, N, blocks) are those of `dense_bits`.
    """
    experts, units = quantized.shape[:2]
    columns = -(-units // PANEL) * PANEL

    def padded(x: Array) -> Array:
        """Columns of one expert after the other, in whole panels."""
        return np.pad(x, [(0, 0), (0, columns - units), (0, 0)]).reshape(-1, x.shape[2])

    codes, factors, points = padded(quantized), padded(scales), None if zeros is None else padded(zeros)
    _check_table(codes, factors, points, bits)
    missing = quantized.shape[2] * 8 // bits - int(data.shape[-1])  # type: ignore[arg-type]
    op = DenseBits(units=units, bits=bits, int8_activations=int8_activations, experts=experts)
    return op(pad_last(data, missing), *_packed(codes, factors, points, bits), chosen)


def take_bits(
    quantized: Array | StoredConstant, scales: Array, zeros: Array | None, bits: int, indices: Expr, dtype: str,
    mode: str = "clip",
) -> Call:  # fmt: skip
    """Rows of a table packed as the weights of `dense_bits`, which may be the same: indices.shape + (K,)."""
    _check_table(quantized, scales, zeros, bits)
    op = TakeBits(units=_rows(quantized)[0], bits=bits, dtype=dtype, mode=mode)
    return op(*_packed(quantized, scales, zeros, bits), indices)


def _rows(quantized: Array | StoredConstant) -> tuple[int, int]:
    """The number of rows, and the bytes of one."""
    if isinstance(quantized, StoredConstant):
        return quantized.rows, quantized.nbytes // quantized.rows
    return quantized.shape[0], quantized.shape[1]


def _check_table(quantized: Array | StoredConstant, scales: Array, zeros: Array | None, bits: int) -> None:
    """Raise TypeInferenceError unless these are bytes (N, K * bits / 8) in whole words, and (N, blocks)."""
    require(bits in (4, 8), f"bits is {bits}; expected 4 or 8")
    stored = isinstance(quantized, StoredConstant)
    words = quantized.dtype == "uint8" and (stored or quantized.ndim == 2) and _rows(quantized)[1] % 4 == 0
    shape = quantized.tensor_type.shape if isinstance(quantized, StoredConstant) else quantized.shape
    require(words, f"quantised weights {shape} of {quantized.dtype}; expected rows of words of 4 uint8")
    for each in (scales,) if zeros is None else (scales, zeros):
        fits = each.ndim == 2 and len(each) == _rows(quantized)[0]
        require(fits, f"scales or zero points {each.shape}; expected (N, blocks) for weights {shape}")


def _packed(quantized: Array | StoredConstant, scales: Array, zeros: Array | None, bits: int) -> list[Constant]:
    """Codes, scales and, unless all are the middle of the range, zero points in panels."""
    codes = _codes(quantized, bits)
    panels = [_in_panels(_narrowest(scales))]
    if zeros is not None and not np.all(zeros == 1 << (bits - 1)):
        whole = np.array_equal(zeros, np.clip(np.rint(zeros), 0, 255))
        panels.append(_in_panels(zeros.astype(np.uint8) if whole else _narrowest(zeros)))
    return [codes, *[Constant(panel) for panel in panels]]


def _codes(quantized: Array | StoredConstant, bits: int) -> Constant:
    """The words of the codes in panels; of codes that stay in a file, packed while they are fetched."""
    if not isinstance(quantized, StoredConstant):
        return Constant(_in_panels(_words(quantized, bits)))
    columns, length = _rows(quantized)
    pack = _pack_4_bits if bits == 4 else _pack_8_bits
    return StoredConstant.packed(quantized, (-(-columns // PANEL), length // 4, PANEL), np.dtype(np.int32), PANEL, pack)


def _pack_4_bits(rows: Array) -> Array:
    return _in_panels(_words(rows.reshape(len(rows), -1), 4))


def _pack_8_bits(rows: Array) -> Array:
    return _in_panels(_words(rows.reshape(len(rows), -1), 8))
