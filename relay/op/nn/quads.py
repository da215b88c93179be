"""Products of codes of a byte with packed weights of a byte, four steps of the reduction at a time; by PackWeights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import te
import topi
from relay.op.base import OpDef, OpPattern, register_op
from relay.op.common import Array, at_least, require
from relay.op.nn.conv import convolve
from relay.type import TensorType, Type, dims_match
from te.tir import as_dim
from topi.nn.conv import output_size

__all__ = ["Conv2DNHWCQuads", "DenseQuads", "Words"]


@register_op("nn.words", pattern=OpPattern.OPAQUE)
class Words(OpDef):
    """Bytes (..., 4 n) as int32 (..., n), the first in the low bits: the same memory.

    (C1) data is uint8 and has one dimension or more; (C2) the last is a multiple of 4.
    """

    is_view = True

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype == "uint8" and x.ndim >= 1, f"(C1) uint8 data (..., 4 n) expected; got {x}")
        last = x.shape[-1]
        require(isinstance(last, int) and last % 4 == 0, f"(C2) the last dimension of {x} is no multiple of 4")
        return TensorType((*x.shape[:-1], as_dim(last // 4)), "int32")

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.words(x)

    def reference(self, x: Array) -> Array:
        return np.ascontiguousarray(x).view("<i4").astype(np.int32)


def _check_quads(data: TensorType, weight: TensorType, table: TensorType | None) -> None:
    """(C1): data, weights and the table are int32."""
    types = [t for t in (data, weight, table) if t is not None]
    require(all(t.dtype == "int32" for t in types), f"(C1) {', '.join(map(str, types))} are not all int32")


def _holds(weight: TensorType, units: int) -> bool:
    """Do the panels hold `units` columns, none being empty?"""
    panels, *_, nr = weight.static_shape
    return (panels - 1) * nr < units <= panels * nr


def _bytes_of(weight: Array) -> Array:
    """Panels (P, steps..., NR) as signed bytes (P, steps..., 4, NR)."""
    octets = np.ascontiguousarray(weight).astype("<i4").view(np.int8)
    return np.moveaxis(octets.reshape(*weight.shape, 4), -1, -2)


@register_op("nn.dense_quads", pattern=OpPattern.OUT_FUSABLE)
class DenseQuads(OpDef):
    """data (..., K) times weights packed (ceil(N / NR), S, NR): (..., N) with N = `units`, summed in int32.

    An element of the data is four unsigned bytes, one of the weights four signed ones; two neighbours' products add up
    to 16 bits. With a table (ceil(N / NR), S) step s of a panel reads the column of data that it says, else S is K.
    (C1) all are int32; (C2) data has one dimension or more, weights have three, and K and the table's shape fit;
    (C3) the panels hold `units` columns.
    """

    units: int

    def infer(self, data: TensorType, weight: TensorType, table: TensorType | None = None) -> TensorType:
        _check_quads(data, weight, table)
        fits = data.ndim >= 1 and weight.ndim == 3
        if fits and table is not None:
            fits = table.shape == weight.shape[:2]
        elif fits:
            fits = dims_match(data.shape[-1], weight.shape[1])
        require(fits, f"(C2) data {data} and weights {weight} do not fit together")
        require(_holds(weight, self.units), f"(C3) {weight} does not hold {self.units} columns")
        return TensorType((*data.shape[:-1], self.units), "int32")

    def compute(self, data: te.Tensor, weight: te.Tensor, table: te.Tensor | None = None) -> te.Tensor:
        return topi.nn.dense_quads(data, weight, self.units, table)

    def reference(self, data: Array, weight: Array, table: Array | None = None) -> Array:
        x = np.ascontiguousarray(data).astype("<i4").view(np.uint8).reshape(*data.shape, 4).astype(np.int64)
        read = np.arange(data.shape[-1])[None].repeat(len(weight), 0) if table is None else table
        columns = [
            np.einsum("...ki,kin->...n", x[..., at, :], panel.astype(np.int64))
            for at, panel in zip(read, _bytes_of(weight), strict=True)
        ]
        return np.concatenate(columns, -1)[..., : self.units].astype(np.int32)

    def macs(self, types: Sequence[Type], result: Type) -> int:
        data = types[0]
        assert isinstance(data, TensorType) and isinstance(result, TensorType)
        depth = data.shape[-1]
        return result.size * depth * 4 if result.size is not None and isinstance(depth, int) else 0


@register_op("nn.conv2d_nhwc_quads", pattern=OpPattern.OUT_FUSABLE)
class Conv2DNHWCQuads(OpDef):
    """Convolution of data (N, H, W, C) with weights packed (ceil(O / NR), KH, KW, C, NR), O = `channels`, in int32.

    Elements hold four bytes as those of nn.dense_quads. Around the data stands the byte `border`. With a table
    (ceil(O / NR), S, 3) weights are (ceil(O / NR), S, NR), and a step is that of the tap and the channels (KH, KW, C)
    that it says. (C1) all are int32; (C2) data has four dimensions, and those of weights, table and `kernel_size` fit;
    (C3) the panels hold `channels` columns; (C4) the dilated kernel fits into the padded input.
    """

    channels: int
    kernel_size: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    border: int = 0

    def infer(self, data: TensorType, weight: TensorType, table: TensorType | None = None) -> TensorType:
        _check_quads(data, weight, table)
        require(data.ndim == 4 and self._fit(data, weight, table), f"(C2) {data} and {weight} do not fit together")
        require(_holds(weight, self.channels), f"(C3) {weight} does not hold {self.channels} outputs")
        n, *sizes, _ = data.shape
        results = [
            output_size(size, self.kernel_size[a], self.strides[a], self.dilation[a],
                        self.padding[a] + self.padding[a + 2])
            for a, size in enumerate(sizes)
        ]  # fmt: skip
        taps = " x ".join(map(str, self.kernel_size))
        reaches = f"(C4) the {taps} kernel reaches over more than the padded input"
        require(all(at_least(size, 1) for size in results), reaches)
        return TensorType((n, *results, self.channels), "int32")

    def _fit(self, data: TensorType, weight: TensorType, table: TensorType | None) -> bool:
        if table is not None:
            return weight.ndim == table.ndim == 3 and table.shape == (*weight.shape[:2], 3)
        return weight.ndim == 5 and weight.shape[1:4] == (*self.kernel_size, data.shape[-1])

    def compute(self, data: te.Tensor, weight: te.Tensor, table: te.Tensor | None = None) -> te.Tensor:
        return topi.nn.conv2d_quads(
            data, weight, self.channels, self.kernel_size, self.strides, self.padding, self.dilation, self.border, table
        )  # fmt: skip

    def reference(self, data: Array, weight: Array, table: Array | None = None) -> Array:
        x = np.ascontiguousarray(data).astype("<i4").view(np.uint8).astype(np.int32)
        top, left, bottom, right = self.padding
        x = np.pad(x, [(0, 0), (top, bottom), (left, right), (0, 0)], constant_values=self.border)
        w = _bytes_of(weight).astype(np.int64)
        if table is not None:
            spread = np.zeros((len(w), *self.kernel_size, data.shape[-1], *w.shape[2:]), np.int64)
            for panel, steps, at in zip(spread, w, table, strict=True):
                np.add.at(panel, tuple(at.T), steps)
            w = spread
        filters = w.reshape(len(w), *self.kernel_size, -1, w.shape[-1]).transpose(0, 4, 3, 1, 2)
        filters = filters.reshape(-1, *filters.shape[2:])[: self.channels]
        y = convolve(np.moveaxis(x, -1, 1), filters, self.strides, (0, 0, 0, 0), self.dilation, 1)
        return np.ascontiguousarray(np.moveaxis(y, 1, -1)).astype(np.int32)

    def macs(self, types: Sequence[Type], result: Type) -> int:
        data = types[0]
        assert isinstance(data, TensorType) and isinstance(result, TensorType)
        channels = data.shape[-1]
        if result.size is None or not isinstance(channels, int):
            return 0
        return result.size * self.kernel_size[0] * self.kernel_size[1] * channels * 4
