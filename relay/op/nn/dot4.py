"""Products with packed weights by dot products of words: of four 8-bit values (VNNI), or of two bfloat16.

`PackWeights` creates them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import ml_dtypes  # pyright: ignore[reportMissingImports]
import numpy as np

from relayc import te, topi
from relayc.relay.op.base import Multiplications, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, at_least, require
from relayc.relay.op.nn.conv import convolve
from relayc.relay.sizes import product
from relayc.relay.type import TensorType, Type, dims_match
from relayc.te.tir import Dim, as_dim
from relayc.topi.nn.conv import output_sizes

__all__ = [
    "Conv2DNHWCDot2Bfloat16", "Conv2DNHWCDot4", "DenseDot2Bfloat16", "DenseDot4", "DenseDot4Groups",
    "WindowDot4Groups", "Words",
]  # fmt: skip


@register_op("nn.words", pattern=OpPattern.OPAQUE)
class Words(OpDef):
    """Bytes (..., 4 n), or bfloat16 (..., 2 n), as int32 (..., n), the first in the low bits; a view.

    (C1) data is uint8, int8 or bfloat16 and has one dimension or more; (C2) the last is a multiple of 4, or of 2.
    """

    is_view = True

    def infer(self, x: TensorType) -> TensorType:
        known = x.dtype in ("uint8", "int8", "bfloat16") and x.ndim >= 1
        require(known, f"(C1) uint8 or int8 data (..., 4 n), or bfloat16 (..., 2 n), expected; got {x}")
        last, count = x.shape[-1], 4 // x.dtype.nbytes
        whole = isinstance(last, int) and last % count == 0
        require(whole, f"(C2) the last dimension of {x} is no multiple of {count}")
        return TensorType((*x.shape[:-1], as_dim(last // count)), "int32")

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.words(x)

    def reference(self, x: Array) -> Array:
        return np.ascontiguousarray(x).view("<i4").astype(np.int32)


def _check_words(*types: TensorType) -> None:
    """(C1): data, weights and the table are int32."""
    require(all(t.dtype == "int32" for t in types), f"(C1) {', '.join(map(str, types))} are not all int32")


def _holds(weight: TensorType, units: int) -> bool:
    """Do the panels hold `units` columns, with none of them empty?"""
    panels, *_, nr = weight.static_shape
    return (panels - 1) * nr < units <= panels * nr


def _unsigned(data: Array) -> Array:
    """Data (...) as unsigned bytes (..., 4)."""
    return np.ascontiguousarray(data).astype("<i4").view(np.uint8).reshape(*data.shape, 4)


def _signed(weight: Array) -> Array:
    """Panels (P, steps..., NR) as signed bytes (P, steps..., 4, NR)."""
    values = np.ascontiguousarray(weight).astype("<i4").view(np.int8)
    return np.moveaxis(values.reshape(*weight.shape, 4), -1, -2)


def _bfloats(data: Array) -> Array:
    """Words (...) of two bfloat16 as float64 (..., 2)."""
    halves = np.ascontiguousarray(data).astype("<i4").view(ml_dtypes.bfloat16)
    return halves.reshape(*data.shape, 2).astype(np.float64)


def _bfloats_of_panels(weight: Array) -> Array:
    """Panels (P, steps..., NR) of two bfloat16 as float64 (P, steps..., 2, NR)."""
    return np.moveaxis(_bfloats(weight), -1, -2)


class _WordProduct(OpDef):
    """Sums of products of words: of four bytes, by the instruction "dot4", or of two bfloat16."""

    form: ClassVar[str] = "dot4"

    def multiplied(self, types: Sequence[Type]) -> str:
        return "int8" if self.form == "dot4" else "bfloat16"

    def _sums(self, result: Type, words: Dim) -> Multiplications:
        """A sum over so many words for each element of the result."""
        assert isinstance(result, TensorType)
        return ((*result.shape, words, 4 if self.form == "dot4" else 2),)


@register_op("nn.dense_dot4", pattern=OpPattern.OUT_FUSABLE)
class DenseDot4(_WordProduct):
    """data (..., K) times weights packed (ceil(N / NR), K, NR): (..., N) with N = `units`, summed in int32.

    An element of the data is four unsigned bytes, one of the weights four signed ones; the sum of two adjacent products
    fits into 16 bits, unless the processor accumulates in 32 bits. The result is (*rows, N) if `rows` are set. (C1)
    all are int32; (C2) data has one dimension or more, weights have three, and K fits; (C3) the panels hold `units`
    columns; (C4) the data has as many rows.
    """

    result: ClassVar[str] = "int32"

    units: int
    rows: tuple[Dim, ...] | None = None

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        _check_words(data, weight)
        fits = data.ndim >= 1 and weight.ndim == 3 and dims_match(data.shape[-1], weight.shape[1])
        require(fits, f"(C2) data {data} and weights {weight} do not fit together")
        require(_holds(weight, self.units), f"(C3) {weight} does not hold {self.units} columns")
        lead = data.shape[:-1] if self.rows is None else self.rows
        require(dims_match(product(lead), product(data.shape[:-1])), f"(C4) {data} does not have the rows {lead}")
        return TensorType((*lead, self.units), self.result)

    def compute(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return topi.nn.dense_dot4(data, weight, self.units, self.rows, self.form)

    def reference(self, data: Array, weight: Array) -> Array:
        columns = np.einsum("...ki,pkin->...pn", *self._values(data, weight))
        lead = data.shape[:-1] if self.rows is None else self.rows
        return columns.reshape(*lead, -1)[..., : self.units].astype(self.result)

    def _values(self, data: Array, weight: Array) -> tuple[Array, Array]:
        """Data (..., K, 4) and panels (P, K, 4, NR)."""
        return _unsigned(data).astype(np.int64), _signed(weight).astype(np.int64)

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        data = types[0]
        assert isinstance(data, TensorType)
        return self._sums(result, data.shape[-1])


@register_op("nn.dense_dot2_bfloat16", pattern=OpPattern.OUT_FUSABLE)
class DenseDot2Bfloat16(DenseDot4):
    """data (..., K) times weights packed (ceil(N / NR), K, NR): (..., N) with N = `units`, summed in float32.

    An element of the data, or of the weights, is two bfloat16. The result is (*rows, N) if `rows` are set. (C1) all are
    int32; (C2) data has one dimension or more, weights have three, and K fits; (C3) the panels hold `units` columns;
    (C4) the data has as many rows.
    """

    form: ClassVar[str] = "dot2_bfloat16"
    result: ClassVar[str] = "float32"

    def _values(self, data: Array, weight: Array) -> tuple[Array, Array]:
        return _bfloats(data), _bfloats_of_panels(weight)



@register_op("nn.dense_dot4_groups", pattern=OpPattern.OUT_FUSABLE)
class DenseDot4Groups(_WordProduct):
    """data (..., K) times weights packed (ceil(N / NR), S, G, NR): (..., N) with N = `units`, summed in int32.

    Elements hold four bytes as in nn.dense_dot4. Step s of panel p reads the columns of data given by ``table[p, s,
    :]``, one or two; the sums of the products of both, separately for the lower and the upper halves, fit into 16 bits.
    (C1) all are int32; (C2) data has one dimension or more, weights have four, of which G is 1 or 2, the table their
    first three; (C3) the panels hold `units` columns.
    """

    units: int

    def infer(self, data: TensorType, weight: TensorType, table: TensorType) -> TensorType:
        _check_words(data, weight, table)
        fits = data.ndim >= 1 and _are_groups(weight, table)
        require(fits, f"(C2) data {data}, weights {weight} and table {table} do not fit together")
        require(_holds(weight, self.units), f"(C3) {weight} does not hold {self.units} columns")
        return TensorType((*data.shape[:-1], self.units), "int32")

    def compute(self, data: te.Tensor, weight: te.Tensor, table: te.Tensor) -> te.Tensor:
        return topi.nn.dense_dot4_groups(data, weight, table, self.units)

    def reference(self, data: Array, weight: Array, table: Array) -> Array:
        x = _unsigned(data)
        return _by_panels(weight, table, self.units, lambda columns: x[..., columns, :])

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        data = types[0]
        assert isinstance(data, TensorType)
        return self._sums(result, data.shape[-1])


def _are_groups(weight: TensorType, table: TensorType) -> bool:
    """Are these panels (P, S, G, NR) and a table (P, S, G), with G = 1 or 2?"""
    return weight.ndim == 4 and weight.shape[2] in (1, 2) and table.shape == weight.shape[:3]


def _by_panels(weight: Array, table: Array, units: int, read: Callable[[Array], Array]) -> Array:
    """Sums of steps by a table: `read` gives bytes (..., S, G, 4) of the data by the table (S, G) of a panel."""
    columns = [
        np.einsum("...khi,khin->...n", read(at).astype(np.int64), panel.astype(np.int64))
        for at, panel in zip(table, _signed(weight), strict=True)
    ]
    return np.concatenate(columns, -1)[..., :units].astype(np.int32)


@register_op("nn.conv2d_nhwc_dot4", pattern=OpPattern.OUT_FUSABLE)
class Conv2DNHWCDot4(_WordProduct):
    """Convolution of data (N, H, W, C) with weights packed (ceil(O / NR), KH, KW, C, NR), O = `channels`, in int32.

    Elements hold four bytes as in nn.dense_dot4. The data is padded with the byte `border`. With a `kernel_size`
    weights are (ceil(O / NR), KH * KW * C, NR), and each window is first copied to a row of a matrix (im2col). (C1) all
    are int32; (C2) data has four dimensions, weights five, or three, with one C; (C3) the panels hold `channels`
    columns; (C4) the dilated kernel fits into the padded input.
    """

    result: ClassVar[str] = "int32"

    channels: int
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    border: int = 0
    kernel_size: tuple[int, ...] | None = None

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        _check_words(data, weight)
        kernel, steps = self._window(weight)
        fits = data.ndim == 4 and weight.ndim == (5 if self.kernel_size is None else 3)
        fits = fits and dims_match(product((*kernel, data.shape[-1])), steps)
        require(fits, f"(C2) data {data} and weights {weight} do not fit together")
        require(_holds(weight, self.channels), f"(C3) {weight} does not hold {self.channels} outputs")
        n, *sizes, _ = data.shape
        results = output_sizes(sizes, kernel, self.strides, self.dilation, self.padding)
        taps = " x ".join(map(str, kernel))
        reaches = f"(C4) the {taps} kernel reaches over more than the padded input"
        require(all(at_least(size, 1) for size in results), reaches)
        return TensorType((n, *results, self.channels), self.result)

    def _window(self, weight: TensorType) -> tuple[tuple[int, ...], int]:
        """KH and KW, and how many 4-byte elements a window has."""
        sizes = weight.static_shape[1:-1]
        return sizes[:2] if self.kernel_size is None else self.kernel_size, math.prod(sizes)

    def compute(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return topi.nn.conv2d_dot4(
            data, weight, self.channels, self.strides, self.padding, self.dilation, self.border, self.kernel_size,
            self.form,
        )  # fmt: skip

    def reference(self, data: Array, weight: Array) -> Array:
        x, w = self._values(data, weight)
        x = x.reshape(*data.shape[:-1], -1)
        top, left, bottom, right = self.padding
        x = np.pad(x, [(0, 0), (top, bottom), (left, right), (0, 0)], constant_values=self.border)
        kernel = weight.shape[1:3] if self.kernel_size is None else self.kernel_size
        w = w.reshape(len(weight), *kernel, -1, weight.shape[-1]).transpose(0, 4, 3, 1, 2)
        filters = w.reshape(-1, *w.shape[2:])[: self.channels]
        y = convolve(np.moveaxis(x, -1, 1), filters, self.strides, (0, 0, 0, 0), self.dilation, 1)
        return np.ascontiguousarray(np.moveaxis(y, 1, -1)).astype(self.result)

    def _values(self, data: Array, weight: Array) -> tuple[Array, Array]:
        """Data (N, H, W, C, 4) and panels (P, KH, KW, C, 4, NR)."""
        return _unsigned(data), _signed(weight)

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        weight = types[1]
        assert isinstance(weight, TensorType)
        return self._sums(result, self._window(weight)[1])


@register_op("nn.conv2d_nhwc_dot2_bfloat16", pattern=OpPattern.OUT_FUSABLE)
class Conv2DNHWCDot2Bfloat16(Conv2DNHWCDot4):
    """Convolution of data (N, H, W, C) with weights packed (ceil(O / NR), KH, KW, C, NR), O = `channels`, in float32.

    Elements hold two bfloat16; for the rest see nn.conv2d_nhwc_dot4. (C1) all are int32; (C2) data has four dimensions,
    weights five, or three, with one C; (C3) the panels hold `channels` columns; (C4) the dilated kernel fits into the
    padded input.
    """

    form: ClassVar[str] = "dot2_bfloat16"
    result: ClassVar[str] = "float32"

    def _values(self, data: Array, weight: Array) -> tuple[Array, Array]:
        return _bfloats(data), _bfloats_of_panels(weight)


@register_op("nn.window_dot4_groups", pattern=OpPattern.OUT_FUSABLE)
class WindowDot4Groups(_WordProduct):
    """Windows of data (N, L), rows of images, times panels (ceil(O / NR), S, G, NR): (N, *grid, O) in int32.

    Elements hold four bytes, and steps one or two of them, as in nn.dense_dot4_groups. The window of (n, y, x) begins
    at ``y * pitch[0] + x * pitch[1]`` of row n, and step s of panel p reads the data at offset ``table[p, s, :]`` from
    there; table is (ceil(O / NR), S, G). (C1) all are int32; (C2) data has two dimensions, weights four, of which G is
    1 or 2, and the table their first three; (C3) the panels hold `channels` columns. `depth` counts the 4-byte elements
    of a window.
    """

    channels: int
    grid: tuple[int, int]
    pitch: tuple[int, int]
    depth: int

    def infer(self, data: TensorType, weight: TensorType, table: TensorType) -> TensorType:
        _check_words(data, weight, table)
        fits = data.ndim == 2 and _are_groups(weight, table)
        require(fits, f"(C2) data {data}, weights {weight} and table {table} do not fit together")
        require(_holds(weight, self.channels), f"(C3) {weight} does not hold {self.channels} outputs")
        return TensorType((data.shape[0], *self.grid, self.channels), "int32")

    def compute(self, data: te.Tensor, weight: te.Tensor, table: te.Tensor) -> te.Tensor:
        return topi.nn.window_dot4_groups(data, weight, table, self.channels, self.grid, self.pitch)

    def reference(self, data: Array, weight: Array, table: Array) -> Array:
        rows, columns = np.indices(self.grid)
        begins = (rows * self.pitch[0] + columns * self.pitch[1])[..., None, None]
        x = _unsigned(data)
        return _by_panels(weight, table, self.channels, lambda further: x[:, begins + further])

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        return self._sums(result, self.depth)
