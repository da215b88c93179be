"""Overlap-add: the inverse of extracting windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, at_least, require, require_float
from relayc.relay.sizes import dims_match, product, quotient
from relayc.relay.type import TensorType, shape_text
from relayc.te.tir import Dim
from relayc.topi.nn.conv import output_sizes

__all__ = ["Col2Im", "OverlapAdd", "col2im", "overlap_add"]

Ints = tuple[int, ...]


@register_op("nn.col2im", pattern=OpPattern.OUT_FUSABLE)
class Col2Im(OpDef):
    """Images (N, C, image...) that are the sums of their windows x (N, C * taps, windows) (ONNX: Col2Im).

    `padding` is (begin..., end...). (C1) x has three dimensions and floats as elements; (C2) the attributes have one
    positive number for each axis of the image, padding two that are not negative; (C3) dimension 1 is a multiple of the
    taps of a window; (C4) dimension 2 is the number of windows.
    """

    mixed_precision = MixedPrecision.NEVER

    image_shape: tuple[Dim, ...]
    block_shape: Ints
    strides: Ints
    dilation: Ints
    padding: Ints

    def infer(self, x: TensorType) -> TensorType:
        require_float(1, x)
        require(x.ndim == 3, f"(C1) x must have three dimensions; got {x}")
        rank = len(self.image_shape)
        lists = (self.image_shape, self.block_shape, self.strides, self.dilation)
        fits = all(len(v) == rank and all(at_least(n, 1) for n in v) for v in lists) and len(self.padding) == 2 * rank
        require(
            fits and min(self.padding, default=0) >= 0, f"(C2) {lists} and {self.padding} do not describe windows"
        )
        taps, counts = prod(self.block_shape), self._counts()
        channels = quotient(x.shape[1:2], (taps,))
        require(channels is not None, f"(C3) {x.shape[1]} must be a multiple of {taps}")
        assert channels is not None
        fits = all(at_least(n, 1) for n in counts)
        require(fits, f"(C4) no window of {self.block_shape} fits into {shape_text(self.image_shape)}")
        count = product(counts)
        require(dims_match(x.shape[2], count), f"(C4) {x} must hold {count} windows")
        return x.with_shape((x.shape[0], channels, *self.image_shape))

    def _counts(self) -> list[Dim]:
        return output_sizes(self.image_shape, self.block_shape, self.strides, self.dilation, self.padding)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.col2im(x, self.image_shape, self.block_shape, self.strides, self.dilation, self.padding)

    def reference(self, x: Array) -> Array:
        rank = len(self.image_shape)
        image, counts = ([int(n) for n in sizes] for sizes in (self.image_shape, self._counts()))  # type: ignore[arg-type]
        batch, channels = x.shape[0], x.shape[1] // prod(self.block_shape)
        columns = x.reshape(batch, channels, *self.block_shape, *counts).astype(np.float64)
        bordered = np.zeros((batch, channels, *[n + self.padding[a] + self.padding[a + rank]
                                                for a, n in enumerate(image)]))  # fmt: skip
        for tap in np.ndindex(*self.block_shape):
            at = [slice(t * d, t * d + (n - 1) * s + 1, s)
                  for t, d, s, n in zip(tap, self.dilation, self.strides, counts, strict=True)]  # fmt: skip
            bordered[(slice(None), slice(None), *at)] += columns[(slice(None), slice(None), *tap)]
        inner = [slice(self.padding[a], self.padding[a] + n) for a, n in enumerate(image)]
        return bordered[(slice(None), slice(None), *inner)].astype(x.dtype)


def col2im(
    data: Expr, image_shape: Sequence[Dim], block_shape: Ints, strides: Ints, dilation: Ints, padding: Ints
) -> Call:
    """The images whose windows are the columns of `data`, overlaps added up."""
    op = Col2Im(
        image_shape=tuple(image_shape), block_shape=block_shape, strides=strides, dilation=dilation, padding=padding
    )
    return op(data)


@register_op("nn.overlap_add", pattern=OpPattern.OUT_FUSABLE)
class OverlapAdd(OpDef):
    """Images (N, sizes..., G * C) that are the sums of their windows x (N, windows..., G, taps..., C): channels last.

    Windows lie `strides` apart, their taps `dilation`. The first ones begin `begin` elements in front of the image;
    what lies beside it is left out, and what no window reaches is 0. (C1) the attributes have one number for each of at
    least one axis of the image, sizes, strides and dilation positive ones, `begin` of 0 or more; (C2) x has twice as
    many dimensions and three more, with a known number of taps.
    """

    mixed_precision = MixedPrecision.FOLLOW
    reads_inputs_once = True

    sizes: tuple[Dim, ...]
    strides: Ints
    dilation: Ints
    begin: Ints

    def infer(self, x: TensorType) -> TensorType:
        rank = len(self.sizes)
        counts = {len(self.strides), len(self.dilation), len(self.begin)}
        positive = all(at_least(n, 1) for n in (*self.sizes, *self.strides, *self.dilation))
        attributes = f"sizes {self.sizes}, strides {self.strides}, dilation {self.dilation} and begin {self.begin}"
        valid = rank > 0 and counts == {rank} and positive and min(self.begin) >= 0
        require(valid, f"(C1) {attributes} do not describe windows")
        taps = x.shape[2 + rank : -1]
        fits = x.ndim == 2 * rank + 3 and all(isinstance(n, int) for n in taps)
        require(fits, f"(C2) x must have {2 * rank + 3} dimensions, taps of known numbers; got {x}")
        return x.with_shape((x.shape[0], *self.sizes, product((x.shape[1 + rank], x.shape[-1]))))

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.overlap_add(x, self.sizes, self.strides, self.dilation, self.begin)

    def reference(self, x: Array) -> Array:
        rank, batch = len(self.sizes), x.shape[0]
        counts, taps = x.shape[1 : 1 + rank], x.shape[2 + rank : -1]
        sizes = [int(n) for n in self.sizes]  # type: ignore[arg-type]
        reach = [(n - 1) * s + (k - 1) * d + 1
                 for n, s, k, d in zip(counts, self.strides, taps, self.dilation, strict=True)]  # fmt: skip
        full = [max(r, b + n) for r, b, n in zip(reach, self.begin, sizes, strict=True)]
        total = np.zeros((batch, *full, x.shape[1 + rank], x.shape[-1]), np.float64)
        for tap in np.ndindex(*taps):
            at = [slice(t * d, t * d + (n - 1) * s + 1, s)
                  for t, d, s, n in zip(tap, self.dilation, self.strides, counts, strict=True)]  # fmt: skip
            total[(slice(None), *at)] += x[(*[slice(None)] * (2 + rank), *tap)]
        inner = [slice(b, b + n) for b, n in zip(self.begin, sizes, strict=True)]
        return total[(slice(None), *inner)].reshape(batch, *sizes, -1).astype(x.dtype)


def overlap_add(data: Expr, sizes: Sequence[Dim], strides: Ints, dilation: Ints, begin: Ints) -> Call:
    """The images whose channels-last windows are `data`, overlaps added up."""
    return OverlapAdd(sizes=tuple(sizes), strides=strides, dilation=dilation, begin=begin)(data)
