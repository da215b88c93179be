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
from topi.nn.winograd import WINOGRAD_TILES, winograd_matrices

__all__ = ["Conv2DNHWCWinograd", "conv2d_nhwc_winograd"]

IntOrInts = int | Sequence[int]


@register_op("nn.conv2d_nhwc_winograd", pattern=OpPattern.OUT_FUSABLE)
class Conv2DNHWCWinograd(OpDef):
    """3 x 3 convolution with stride 1 of NHWC data by F(tile x tile, 3 x 3), with transformed weights.

    The weights are (O / NR, A, A, I, NR), A = tile + 2: ``g @ w @ g.T`` of each 3 x 3 filter by
    `topi.nn.winograd_matrices(tile)`, in panels of NR outputs. `padding` is (top, left, bottom, right). (C1) tile is
    one that has matrices, padding has 4 numbers; (C2) both inputs have one element type; (C3) ranks are 4 and 5,
    lines and columns are known; (C4) the weights are A x A and have I = C; (C5) the kernel fits into the padded
    input. TVM: `nn.contrib_conv2d_winograd_without_weight_transform`.
    """

    tile: int
    padding: tuple[int, ...] = (0, 0, 0, 0)

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        valid = self.tile in WINOGRAD_TILES and len(self.padding) == 4
        known = ", ".join(map(str, WINOGRAD_TILES))
        require(valid, f"(C1) tile is {self.tile}, one of {known} is needed; padding {self.padding} needs 4 numbers")
        require_same_dtype(2, data, weight)
        require(data.ndim == 4 and weight.ndim == 5, f"(C3) data needs 4 dimensions, weight 5; got {data} and {weight}")
        n, h, w, c = data.shape
        blocks, *places, inputs, nr = weight.static_shape
        static = isinstance(h, int) and isinstance(w, int)
        require(static, f"(C3) lines and columns must be known when compiling; got {data}")
        size = self.tile + 2
        matches = places == [size, size] and dims_match(c, inputs)
        require(matches, f"(C4) {c} channels need weights of {size} x {size} places and {c} channels, got {weight}")
        top, left, bottom, right = self.padding
        oh, ow = output_size(h, 3, 1, 1, top + bottom), output_size(w, 3, 1, 1, left + right)
        fits = at_least(oh, 1) and at_least(ow, 1)
        require(fits, "(C5) the 3 x 3 kernel reaches over more than the padded input")
        return TensorType((n, oh, ow, blocks * nr), data.dtype)

    def compute(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return topi.nn.conv2d_nhwc_winograd(data, weight, self.tile, self.padding)

    def reference(self, data: Array, weight: Array) -> Array:
        matrices, size = winograd_matrices(self.tile), self.tile + 2
        top, left, bottom, right = self.padding
        n, h, w, _ = data.shape
        oh, ow = h + top + bottom - 2, w + left + right - 2
        lines, columns = -(-oh // self.tile), -(-ow // self.tile)
        below, beside = lines * self.tile - oh, columns * self.tile - ow
        wide = np.pad(data.astype(np.float64), [(0, 0), (top, bottom + below), (left, right + beside), (0, 0)])
        tiles = np.lib.stride_tricks.sliding_window_view(wide, (size, size), (1, 2))[:, :: self.tile, :: self.tile]
        spectrum = np.einsum("ki,lj,nyxckl->nyxcij", matrices.b, matrices.b, tiles, optimize=True)
        product = np.einsum("nyxcij,oijcr->nyxorij", spectrum, weight.astype(np.float64), optimize=True)
        result = np.einsum("ki,lj,nyxorkl->nyixjor", matrices.a, matrices.a, product, optimize=True)
        image = result.reshape(n, lines * self.tile, columns * self.tile, -1)[:, :oh, :ow]
        return np.ascontiguousarray(image).astype(data.dtype)

    def macs(self, types: Sequence[Type], result: Type) -> int:
        """Those of the direct convolution, so that speeds can be compared."""
        data, _ = types
        assert isinstance(data, TensorType) and isinstance(result, TensorType)
        inputs = data.shape[3]
        return 0 if result.size is None or not isinstance(inputs, int) else result.size * 9 * inputs


def conv2d_nhwc_winograd(data: Expr, weight: Expr, tile: int, padding: IntOrInts = 0) -> Call:
    """3 x 3 convolution of NHWC `data` with transformed weights by F(tile x tile, 3 x 3)."""
    return Conv2DNHWCWinograd(tile=tile, padding=padding_pairs(padding, 2))(data, weight)
