"""Convolutions by Winograd's minimal filtering, with weights transformed at compile time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import te
import topi
from relay.expr import Call, Expr
from relay.op.base import OpDef, OpPattern, register_op
from relay.op.common import Array, at_least, padding_pairs, require, require_same_dtype
from relay.type import TensorType, Type, dims_match
from topi.nn.conv import output_size
from topi.nn.winograd import WINOGRAD_FILTERS, winograd_matrices

__all__ = ["Conv2DNHWCWinograd", "conv2d_nhwc_winograd"]

IntOrInts = int | Sequence[int]


@register_op("nn.conv2d_nhwc_winograd", pattern=OpPattern.OUT_FUSABLE)
class Conv2DNHWCWinograd(OpDef):
    """Convolution with stride 1 of NHWC data by F(tile x tile, kernel_size x kernel_size), with transformed weights.

    The weights are (O / NR, A, A, I, NR), A = tile + kernel_size - 1 and I the channels of a group: ``g @ w @ g.T`` of
    each filter by `topi.nn.winograd.winograd_matrices`, in panels of NR. `padding` is (top, left, bottom, right).
    (C1) tile and kernel_size are a pair that is offered, padding has 4 numbers, dilation is at least 1; (C2) both
    inputs have one element type; (C3) ranks are 4 and 5; (C4) the weights are A x A and have I * groups = C, panels
    don't cross groups; (C5) the kernel fits into the padded input. `likely_sides` are the lines and columns of the
    result for which it is scheduled where they are known at run time. TVM:
    `nn.contrib_conv2d_winograd_without_weight_transform`.
    """

    tile: int
    kernel_size: int = 3
    padding: tuple[int, ...] = (0, 0, 0, 0)
    groups: int = 1
    dilation: int = 1
    likely_sides: tuple[int, ...] = ()
    tiles_pixels = True

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        valid = self.tile in WINOGRAD_FILTERS.get(self.kernel_size, ()) and len(self.padding) == 4
        known = ", ".join(f"F({m}, {r})" for r, tiles in WINOGRAD_FILTERS.items() for m in tiles)
        given = f"F({self.tile}, {self.kernel_size}) with padding {self.padding}"
        require(valid, f"(C1) {given}: expected one of {known}, and 4 numbers")
        require(self.dilation >= 1, f"(C1) dilation is {self.dilation}, and must be at least 1")
        require_same_dtype(2, data, weight)
        require(data.ndim == 4 and weight.ndim == 5, f"(C3) data needs 4 dimensions, weight 5; got {data} and {weight}")
        n, h, w, c = data.shape
        blocks, *places, inputs, nr = weight.static_shape
        size = self.tile + self.kernel_size - 1
        matches = places == [size, size] and dims_match(c, inputs * self.groups) and blocks % self.groups == 0
        wanted = f"{c} channels in {self.groups} groups need weights of {size} x {size} places"
        require(matches, f"(C4) {wanted} and as many channels and panels; got {weight}")
        top, left, bottom, right = self.padding
        oh = output_size(h, self.kernel_size, 1, self.dilation, top + bottom)
        ow = output_size(w, self.kernel_size, 1, self.dilation, left + right)
        fits = at_least(oh, 1) and at_least(ow, 1)
        require(fits, f"(C5) the kernel of {self.kernel_size} taps reaches over more than the padded input")
        return TensorType((n, oh, ow, blocks * nr), data.dtype)

    def compute(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return topi.nn.conv2d_nhwc_winograd(
            data, weight, self.tile, self.kernel_size, self.padding, self.groups, self.dilation, self.likely_sides
        )

    def reference(self, data: Array, weight: Array) -> Array:
        top, left, bottom, right = self.padding
        padded = np.pad(data.astype(np.float64), [(0, 0), (top, bottom), (left, right), (0, 0)])
        reach, d = (self.kernel_size - 1) * self.dilation, self.dilation
        n, h, w, _ = padded.shape
        image = np.empty((n, h - reach, w - reach, weight.shape[0] * weight.shape[-1]), data.dtype)
        for y, x in np.ndindex(min(d, h - reach), min(d, w - reach)):
            image[:, y::d, x::d] = self._undilated(padded[:, y::d, x::d], weight)
        return image

    def _undilated(self, data: Array, weight: Array) -> Array:
        """What the filter makes of lines and columns that lie `dilation` apart, border included."""
        matrices, size = winograd_matrices(self.tile, self.kernel_size), self.tile + self.kernel_size - 1
        n, h, w, _ = data.shape
        oh, ow = h - self.kernel_size + 1, w - self.kernel_size + 1
        lines, columns = -(-oh // self.tile), -(-ow // self.tile)
        below, beside = lines * self.tile - oh, columns * self.tile - ow
        wide = np.pad(data, [(0, 0), (0, below), (0, beside), (0, 0)])
        tiles = np.lib.stride_tricks.sliding_window_view(wide, (size, size), (1, 2))[:, :: self.tile, :: self.tile]
        spectrum = np.einsum("ki,lj,nyxckl->nyxcij", matrices.b, matrices.b, tiles, optimize=True)
        spectrum = spectrum.reshape(n, lines, columns, self.groups, -1, size, size)
        panels = weight.astype(np.float64).reshape(self.groups, -1, *weight.shape[1:])
        product = np.einsum("nyxgcij,goijcr->nyxgorij", spectrum, panels, optimize=True)
        result = np.einsum("ki,lj,nyxgorkl->nyixjgor", matrices.a, matrices.a, product, optimize=True)
        return result.reshape(n, lines * self.tile, columns * self.tile, -1)[:, :oh, :ow]

    def macs(self, types: Sequence[Type], result: Type) -> int:
        """Those of the direct convolution, so that speeds can be compared."""
        _, weight = types
        assert isinstance(weight, TensorType) and isinstance(result, TensorType)
        return 0 if result.size is None else result.size * self.kernel_size**2 * weight.static_shape[3]


def conv2d_nhwc_winograd(
    data: Expr, weight: Expr, tile: int, kernel_size: int = 3, padding: IntOrInts = 0, groups: int = 1,
    dilation: int = 1,
) -> Call:  # fmt: skip
    """Convolution of NHWC `data` with transformed weights by F(tile x tile, kernel_size x kernel_size)."""
    pads = padding_pairs(padding, 2)
    made = Conv2DNHWCWinograd(tile=tile, kernel_size=kernel_size, padding=pads, groups=groups, dilation=dilation)
    return made(data, weight)
