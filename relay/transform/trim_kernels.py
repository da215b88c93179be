"""TrimKernels: drops taps of a convolution that only read padding.

Dilated kernels reach beyond small images: with a rate of 24 on 20 x 20 pixels, as in the last layers of networks for
segmentation (Chen et al., "Rethinking Atrous Convolution for Semantic Image Segmentation", 2017), only the middle tap
of 3 x 3 reads the image at all. A convolution of 1 x 1 remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.transform.function_pass import RewritePass
from relayc.te.tir import Dim

__all__ = ["TrimKernels"]

_Forward = Conv1D | Conv2D | Conv3D


class TrimKernels(RewritePass):
    """conv(x, w) = conv(x, some taps of w) with less padding, for finite constant weights and images of static sizes.
    """

    opt_level: ClassVar[int] = 1

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, _Forward) or not isinstance(call.args[1], Constant):
            return call
        data, weight = call.args
        assert isinstance(weight, Constant)
        spatial = [axis for axis in op.data_layout if axis not in "NC"]
        along = [op.kernel_layout.index(axis) for axis in spatial]
        taps = [weight.ty.static_shape[axis] for axis in along]
        kept: list[range] = []
        for k, axis in enumerate(map(op.data_layout.index, spatial)):
            kept.append(_taps_inside(op, k, taps[k], data.shape[axis], call.shape[axis]))
        if all(len(inside) == count for inside, count in zip(kept, taps, strict=True)):
            return call
        before = [op.padding[k] - op.dilation[k] * inside[0] for k, inside in enumerate(kept)]
        after = [
            op.padding[op.rank + k] - op.dilation[k] * (taps[k] - 1 - inside[-1]) for k, inside in enumerate(kept)
        ]
        if min(*before, *after) < 0 or not np.isfinite(weight.data).all():
            return call
        return Call(_trimmed(op, (*before, *after), kept), (data, _cut(weight, along, kept)), span=call.span)


def _taps_inside(op: _Forward, k: int, taps: int, size: Dim, results: Dim) -> range:
    """The taps along spatial axis `k` that read the image for any result; all if none does, or if sizes are symbolic.
    """
    if not isinstance(size, int) or not isinstance(results, int):
        return range(taps)
    inside: list[int] = []
    for tap in range(taps):
        first = tap * op.dilation[k] - op.padding[k]  # the offset that it reads for the first result
        entering = max(0, -(first // op.strides[k]))
        if entering < results and first + entering * op.strides[k] < size:
            inside.append(tap)
    return range(inside[0], inside[-1] + 1) if inside else range(taps)


def _trimmed(op: _Forward, padding: tuple[int, ...], kept: Sequence[range]) -> _Forward:
    """The operator for the remaining taps; a single one is not dilated."""
    dilation = tuple([d if len(inside) > 1 else 1 for d, inside in zip(op.dilation, kept, strict=True)])
    return op.replace(padding=padding, dilation=dilation)


def _cut(weight: Constant, axes: Sequence[int], kept: Sequence[range]) -> Constant:
    index = [slice(None)] * weight.data.ndim
    for axis, inside in zip(axes, kept, strict=True):
        index[axis] = slice(inside[0], inside[-1] + 1)
    return Constant(np.ascontiguousarray(weight.data[tuple(index)]), span=weight.span)
