"""Convolutions of channels-last data with weights packed in the panels that register tiles read; `PackWeights` creates
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import (
    MixedPrecision,
    Multiplications,
    OpDef,
    OpPattern,
    attributes_of_operator,
    register_op,
)
from relayc.relay.op.common import (
    Array,
    at_least,
    fill_panels,
    ints,
    numpy_dtype,
    padding_pairs,
    require,
    require_pairs,
    require_weights_of,
)
from relayc.relay.op.nn.conv import convolve
from relayc.relay.type import TensorType, Type, dims_match
from relayc.te.dtype import FLOAT32
from relayc.te.tir import Dim, as_dim
from relayc.topi.nn.conv import output_sizes

__all__ = ["Conv1DNWCPacked", "Conv2DNHWCPacked", "Conv3DNDHWCPacked", "conv2d_nhwc_packed"]

Ints = tuple[int, ...]
IntOrInts = int | Sequence[int]


@attributes_of_operator
class _Packed(OpDef):
    """Convolution of data (N, spatial..., C) with weights (ceil(O / NR), spatial..., I, NR), padded with 0.

    ``layout_transform(w, "OIHW", f"OHWI{NR}o")`` packs weights for two dimensions. `channels` is the true O, `padding`
    is (begin..., end...) of the spatial axes. (C1) strides and dilation have one value for each spatial axis, padding
    two; (C2) weights have the data's element type, or one of fewer bits whose values it represents; (C3) data has two
    dimensions more than there are spatial axes, weights three; (C4) C = I * groups; (C5) the blocks hold `channels`
    outputs, and with groups each holds those of one group, or a divisor of their number, unless they are
    `across_groups`; (C6) the dilated kernel fits into the padded input; an empty image may have no results.
    """

    mixed_precision = MixedPrecision.ALWAYS
    open_attributes = ("channels",)

    strides: Ints
    padding: Ints
    dilation: Ints
    groups: int = 1
    channels: Dim
    out_dtype: str | None = None
    pairs: bool = False
    """weights, and data less `zero_point`, are integers within 16 bits, and there is one group: data may be
    8-bit quantised values then, and the result is int32"""
    zero_point: int = 0
    across_groups: bool = False
    """blocks consist of adjacent outputs of any groups; a block is a vector then"""

    rank: ClassVar[int]

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        rank = self.rank
        counts = (len(self.strides), len(self.dilation), len(self.padding))
        needed = f"{rank}, {rank} and {2 * rank} numbers"
        require(counts == (rank, rank, 2 * rank), f"(C1) strides, dilation and padding need {needed}")
        check = require_pairs if self.pairs else require_weights_of
        check(2, data, weight)
        fits = data.ndim == 2 + rank and weight.ndim == 3 + rank
        require(fits, f"(C3) data needs {2 + rank} dimensions, weight {3 + rank}; got {data} and {weight}")
        n, *sizes, c = data.shape
        blocks, *kernel, group_size, nr = weight.shape
        matches = dims_match(c, as_dim(group_size * self.groups))
        require(matches, f"(C4) {c} channels, {group_size} in each of {self.groups} groups")
        holds = f"(C5) {blocks} blocks of {nr} do not hold {self.channels} outputs in {self.groups} groups"
        require(self._fills(blocks, nr), holds)
        results = output_sizes(sizes, kernel, self.strides, self.dilation, self.padding)
        taps = " x ".join(map(str, kernel))
        reaches = f"(C6) the {taps} kernel reaches over more than the padded input"
        fits = all(at_least(result, 0 if size == 0 else 1) for result, size in zip(results, sizes, strict=True))
        require(fits, reaches)
        return TensorType((n, *results, self.channels), self._result_dtype(str(data.dtype)))

    def ignores_factors(self, types: Sequence[Type]) -> bool:
        return self.rank > 1

    def open_form(self, types: Sequence[TensorType]) -> tuple[OpDef, Sequence[Sequence[int]]]:
        """The channels of pointwise convolutions of float32, and their panels if these are whole."""
        data, weight = types
        blocks, *kernel, _, nr = weight.shape
        plain = self.groups == 1 and not any(self.padding) and data.dtype == weight.dtype == FLOAT32
        if not plain or any(size != 1 for size in kernel):
            return self, ((), ())
        whole = dims_match(self.channels, as_dim(blocks * nr))
        return self, ((data.ndim - 1,), (0, weight.ndim - 2) if whole else (weight.ndim - 2,))

    def _fills(self, blocks: Dim, nr: Dim) -> bool:
        if self.groups == 1:
            return fill_panels(self.channels, blocks, nr)
        assert isinstance(blocks, int) and isinstance(nr, int) and isinstance(self.channels, int)
        apart = self.groups if not self.across_groups else 1
        outputs = self.channels // apart
        whole = apart == 1 or outputs <= nr or outputs % nr == 0
        return self.channels > 0 and blocks == apart * -(-outputs // nr) and self.channels % self.groups == 0 and whole

    def _result_dtype(self, data: str) -> str:
        return "int32" if self.pairs else self.out_dtype or data

    def compute(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        if self.across_groups:
            assert isinstance(self.channels, int)
            return topi.nn.conv_across_groups(
                data, weight, self.channels, self.strides, self.padding, self.dilation, self.groups,
                self._result_dtype(data.dtype),
            )  # fmt: skip
        pairs = topi.nn.Pairs(self.zero_point) if self.pairs else None
        return topi.nn.conv_packed(
            data, weight, self.channels, self.strides, self.padding, self.dilation, self.groups,
            self._result_dtype(data.dtype), pairs,
        )  # fmt: skip

    def reference(self, data: Array, weight: Array) -> Array:
        data = data.astype(np.int32) - np.int32(self.zero_point) if self.pairs else data
        _, *kernel, group_size, nr = weight.shape
        apart = self.groups > 1 and not self.across_groups
        outputs = np.moveaxis(weight, (-1, -2), (1, 2))[:, : self.channels // self.groups if apart else nr]
        w = outputs.reshape(-1, group_size, *kernel)[: self.channels]
        y = convolve(np.moveaxis(data, -1, 1), w, self.strides, self.padding, self.dilation, self.groups)
        return np.ascontiguousarray(np.moveaxis(y, 1, -1)).astype(numpy_dtype(self._result_dtype(str(data.dtype))))

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        _, weight = types
        assert isinstance(weight, TensorType) and isinstance(result, TensorType)
        return ((*result.shape, *weight.shape[1:-1]),)


@register_op("nn.conv1d_nwc_packed", pattern=OpPattern.OUT_FUSABLE)
class Conv1DNWCPacked(_Packed):
    __doc__ = _Packed.__doc__
    strides: Ints = (1,)
    padding: Ints = (0, 0)
    dilation: Ints = (1,)
    rank = 1


@register_op("nn.conv2d_nhwc_packed", pattern=OpPattern.OUT_FUSABLE)
class Conv2DNHWCPacked(_Packed):
    __doc__ = _Packed.__doc__
    strides: Ints = (1, 1)
    padding: Ints = (0, 0, 0, 0)
    dilation: Ints = (1, 1)
    rank = 2


@register_op("nn.conv3d_ndhwc_packed", pattern=OpPattern.OUT_FUSABLE)
class Conv3DNDHWCPacked(_Packed):
    __doc__ = _Packed.__doc__
    strides: Ints = (1, 1, 1)
    padding: Ints = (0, 0, 0, 0, 0, 0)
    dilation: Ints = (1, 1, 1)
    rank = 3


def conv2d_nhwc_packed(
    data: Expr,
    weight: Expr,
    channels: int,
    strides: IntOrInts = 1,
    padding: IntOrInts = 0,
    dilation: IntOrInts = 1,
    groups: int = 1,
    out_dtype: str | None = None,
) -> Call:
    """2-D convolution of NHWC `data` with weights packed OHWI<NR>o."""
    return Conv2DNHWCPacked(
        strides=ints(strides, 2),
        padding=padding_pairs(padding, 2),
        dilation=ints(dilation, 2),
        groups=groups,
        channels=channels,
        out_dtype=out_dtype,
    )(data, weight)
