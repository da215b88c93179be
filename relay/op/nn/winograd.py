"""Convolutions by Winograd's minimal filtering, with weights transformed at compile time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import Multiplications, OpDef, OpPattern, attributes_of_operator, register_op
from relayc.relay.op.common import Array, at_least, fill_panels, padding_pairs, require, require_same_dtype
from relayc.relay.type import TensorType, Type, dims_match
from relayc.te.tir import Dim, as_dim, as_int
from relayc.topi.nn.conv import output_size
from relayc.topi.nn.winograd import WINOGRAD_FILTERS, winograd_matrices

__all__ = ["Conv2DNHWCWinograd", "Conv3DNDHWCWinograd", "conv2d_nhwc_winograd"]

IntOrInts = int | Sequence[int]


@attributes_of_operator
class _Winograd(OpDef):
    """Base of both operators: attributes, and the transform of one plane."""

    tile: int
    kernel_size: int = 3
    padding: tuple[int, ...] = ()
    groups: int = 1
    dilation: int = 1
    channels: Dim | None = None
    rank: ClassVar[int] = 2

    def ignores_factors(self, types: Sequence[Type]) -> bool:
        return True

    def _plane(self, data: TensorType, weight: TensorType) -> tuple[Dim, Dim, Dim]:
        """Rows, columns and channels of the result. Raises where (C1) to (C5) are not met."""
        rank = self.rank
        valid = self.tile in WINOGRAD_FILTERS.get(self.kernel_size, ()) and len(self.padding) == 2 * rank
        known = ", ".join(f"F({m}, {r})" for r, tiles in WINOGRAD_FILTERS.items() for m in tiles)
        attributes = f"F({self.tile}, {self.kernel_size}) with padding {self.padding}"
        require(valid, f"(C1) {attributes}: expected one of {known}, and {2 * rank} numbers")
        require(self.dilation >= 1, f"(C1) dilation is {self.dilation}, and must be at least 1")
        require_same_dtype(2, data, weight)
        ranks = data.ndim == rank + 2 and weight.ndim == rank + 3
        require(ranks, f"(C3) data needs {rank + 2} dimensions, weight {rank + 3}; got {data} and {weight}")
        *_, h, w, c = data.shape
        blocks, *places, inputs, nr = weight.shape
        assert isinstance(nr, int)
        size = self.tile + self.kernel_size - 1
        channels_match = dims_match(c, as_dim(inputs * self.groups))
        matches = places[:2] == [size, size] and channels_match and (self.groups == 1 or blocks % self.groups == 0)
        wanted = f"{c} channels in {self.groups} groups need weights of {size} x {size} places"
        require(matches, f"(C4) {wanted} and as many channels and panels; got {weight}")
        *_, top, left = self.padding[:rank]
        *_, bottom, right = self.padding[rank:]
        oh = output_size(h, self.kernel_size, 1, self.dilation, top + bottom)
        ow = output_size(w, self.kernel_size, 1, self.dilation, left + right)
        fits = at_least(oh, 1) and at_least(ow, 1)
        require(fits, f"(C5) the kernel of {self.kernel_size} taps reaches over more than the padded input")
        outputs = as_dim(blocks * nr) if self.channels is None else self.channels
        filled = self.channels is None or (self.groups == 1 and fill_panels(outputs, blocks, nr))
        require(filled, f"(C6) {blocks} panels of {nr} in {self.groups} groups don't hold {outputs} outputs")
        return oh, ow, outputs

    def _filtered(self, data: Array, weight: Array) -> Array:
        """The convolution of (N, H, W, C), padding included, in float64."""
        reach, d = (self.kernel_size - 1) * self.dilation, self.dilation
        n, h, w, _ = data.shape
        image = np.empty((n, h - reach, w - reach, weight.shape[0] * weight.shape[-1]))
        for y, x in np.ndindex(min(d, h - reach), min(d, w - reach)):
            image[:, y::d, x::d] = self._undilated(data[:, y::d, x::d], weight)
        return image[..., : self.channels]

    def _undilated(self, data: Array, weight: Array) -> Array:
        """The convolution of rows and columns that lie `dilation` apart, padding included."""
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

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        """The multiply-accumulates of the direct convolution, so that speeds can be compared."""
        _, weight = types
        assert isinstance(weight, TensorType) and isinstance(result, TensorType)
        return ((*result.shape, self.kernel_size, self.kernel_size, *weight.shape[3:-1]),)


@register_op("nn.conv2d_nhwc_winograd", pattern=OpPattern.OUT_FUSABLE)
class Conv2DNHWCWinograd(_Winograd):
    """Convolution with stride 1 of NHWC data by F(tile x tile, kernel_size x kernel_size), with transformed weights.

    The weights are (O / NR, A, A, I, NR), A = tile + kernel_size - 1 and I the channels of a group: ``g @ w @ g.T`` of
    each filter by `topi.nn.winograd.winograd_matrices`, in panels of NR. `padding` is (top, left, bottom, right). (C1)
    tile and kernel_size are a supported pair, padding has 4 numbers, dilation is at least 1; (C2) both inputs
    have one element type; (C3) ranks are 4 and 5; (C4) the weights are A x A and have I * groups = C, panels do not
    cross groups; (C5) the kernel fits into the padded input; (C6) `channels` of the result may end within the last
    panel, if there is one group. `likely_sides` are the rows and columns of the result that the schedule assumes where
    they are symbolic. TVM: `nn.contrib_conv2d_winograd_without_weight_transform`.
    """

    padding: tuple[int, ...] = (0, 0, 0, 0)
    likely_sides: tuple[int, ...] = ()
    open_attributes = ("channels",)
    largest_ratio = 2

    def open_form(self, types: Sequence[TensorType]) -> tuple[OpDef, Sequence[Sequence[int]]]:
        """Channels, and panels of outputs if these are whole."""
        if self.groups > 1:
            return self, ((), ())
        panels, *_, nr = types[1].shape
        whole = self.channels is None or dims_match(self.channels, as_dim(panels * nr))
        return self, ((3,), (0, 3) if whole else (3,))

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        plane = self._plane(data, weight)
        return TensorType((data.shape[0], *plane), data.dtype)

    def compute(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return topi.nn.conv_winograd(
            data, weight, self.tile, self.kernel_size, self.padding, self.groups, self.dilation, self.likely_sides,
            channels=self.channels,
        )  # fmt: skip

    def reference(self, data: Array, weight: Array) -> Array:
        top, left, bottom, right = self.padding
        padded = np.pad(data.astype(np.float64), [(0, 0), (top, bottom), (left, right), (0, 0)])
        return self._filtered(padded, weight).astype(data.dtype)


@register_op("nn.conv3d_ndhwc_winograd", pattern=OpPattern.OUT_FUSABLE)
class Conv3DNDHWCWinograd(_Winograd):
    """Convolution of NDHWC data, rows and columns by F(tile x tile, kernel_size x kernel_size) with stride 1.

    Along the depth, of `depth_stride` and `depth_dilation`, it is a sum over taps: the weights are (O / NR, A, A, KD,
    I, NR), otherwise as for `nn.conv2d_nhwc_winograd`. `padding` is (front, top, left, back, bottom, right). (C1) to
    (C6) as there, with 6 numbers and ranks of 5 and 6; (C7) the depth is known, and its taps fit into it. TVM:
    `nn.contrib_conv3d_winograd_without_weight_transform`, which transforms the depth, too.
    """

    padding: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    depth_stride: int = 1
    depth_dilation: int = 1
    rank = 3

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        plane, depth = self._plane(data, weight), data.shape[1]
        taps, around = weight.static_shape[3], self.padding[0] + self.padding[3]
        strides = f"stride {self.depth_stride}, dilation {self.depth_dilation}"
        require(min(self.depth_stride, self.depth_dilation) >= 1, f"(C1) {strides} of the depth, expected 1 or more")
        planes = output_size(depth, taps, self.depth_stride, self.depth_dilation, around)
        known = isinstance(planes, int) and planes >= 1
        require(known, f"(C7) {taps} taps, {strides}, don't fit a depth of {depth} padded by {around}")
        return TensorType((data.shape[0], planes, *plane), data.dtype)

    def compute(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        taps = as_int(weight.shape[3])
        assert taps is not None
        depth = topi.nn.Depth(taps, self.depth_stride, self.depth_dilation)
        return topi.nn.conv_winograd(
            data, weight, self.tile, self.kernel_size, self.padding, self.groups, self.dilation, depth=depth,
            channels=self.channels,
        )  # fmt: skip

    def reference(self, data: Array, weight: Array) -> Array:
        sides = zip(self.padding[:3], self.padding[3:], strict=True)
        padded = np.pad(data.astype(np.float64), [(0, 0), *sides, (0, 0)])
        reach = (weight.shape[3] - 1) * self.depth_dilation
        planes = range(0, padded.shape[1] - reach, self.depth_stride)
        sums = [
            sum(self._filtered(padded[:, d + k * self.depth_dilation], weight[:, :, :, k])
                for k in range(weight.shape[3]))
            for d in planes
        ]  # fmt: skip
        return np.stack(sums, 1).astype(data.dtype)


def conv2d_nhwc_winograd(
    data: Expr, weight: Expr, tile: int, kernel_size: int = 3, padding: IntOrInts = 0, groups: int = 1,
    dilation: int = 1,
) -> Call:  # fmt: skip
    """Convolution of NHWC `data` with transformed weights by F(tile x tile, kernel_size x kernel_size)."""
    pads = padding_pairs(padding, 2)
    made = Conv2DNHWCWinograd(tile=tile, kernel_size=kernel_size, padding=pads, groups=groups, dilation=dilation)
    return made(data, weight)
