"""ConvolveTransposed: a transposed convolution as a convolution whose outputs are interleaved, or as products added up.

Output position o sums the taps t with o + begin = i * stride + t over input positions i. With q * stride + r for o +
begin the taps that count are t = r + stride * u, read from i = q - u: for each phase r an ordinary convolution over u.
All phases together are one convolution of ceil(K / stride) taps with as many times the outputs, which has the schedules
of convolutions: packed weights, register tiles, Winograd. The phases of the result are then interleaved, and the border
cropped. With stride 1 there is one phase: a convolution by the reversed kernel, dilated as before.

Where the stride does not divide the kernel, some phases have fewer taps than others: three taps with stride 2 are
phases of two and one, and in two dimensions nearly half of the products would be with zeros. The same holds for dilated
kernels. The alternative multiplies each pixel by all taps in one matrix product, without any zeros, windows or padding,
and adds up overlapping results (`nn.overlap_add`). That is usually faster, and also works for computed weights.

The data may have dynamic shapes: the number of positions of the phases exceeds that of the inputs by an amount that
depends on the kernel alone, and so does all padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op import broadcast
from relayc.relay.op.base import OpDef, make_call
from relayc.relay.op.nn.conv import Conv1D, Conv1DTranspose, Conv2D, Conv2DTranspose, Conv3D, Conv3DTranspose
from relayc.relay.op.nn.unfold import overlap_add
from relayc.relay.sizes import add_sizes, dims_equal, product
from relayc.relay.transform.builders import reshaped, transposed
from relayc.relay.transform.function_pass import RewritePass
from relayc.te.tir import Dim

__all__ = ["ConvolveTransposed"]

Array = np.ndarray[Any, Any]
_Transposed = Conv1DTranspose | Conv2DTranspose | Conv3DTranspose
_FORWARD: dict[int, type[Conv1D | Conv2D | Conv3D]] = {1: Conv1D, 2: Conv2D, 3: Conv3D}
_WINOGRAD, _MOST_ZEROS = (3, 5), 2.0
"""Taps of phases that may be convolved by Winograd's algorithm, and for these the maximum ratio of the products of all
phases to those with taps of the kernel: the algorithm does two to four times as many in the same time."""


class ConvolveTransposed(RewritePass):
    """Rewrites transposed convolutions of data (N, spatial..., C) with weights of static sizes; others are kept."""

    opt_level: ClassVar[int] = 1

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, _Transposed) or op.data_layout[-1] != "C" or min(op.padding) < 0:
            return call
        if not call.args[1].tensor_type.is_static:
            return call
        spatial = [a for a in op.data_layout if a not in "NC"]
        weight = transposed(call.args[1], [op.kernel_layout.index(a) for a in ("I", "O", *spatial)], call.span)
        taps, (begin, end) = weight.tensor_type.static_shape[2:], (op.padding[: op.rank], op.padding[op.rank :])
        each = (call.args[0].shape[1:-1], taps, op.strides, op.dilation, begin, end, op.output_padding)
        axes = [_Axis(*numbers) for numbers in zip(*each, strict=True)]
        for as_convolution in (_by_reversed_kernel, _by_phases):
            made = as_convolution(call, op, weight, axes)
            if made is not None:
                return made
        return _added(call, op, weight)


@dataclass(frozen=True)
class _Axis:
    """A spatial axis: `size` inputs, `taps` of the kernel, `begin` and `end` outputs cropped, `extra` ones appended."""

    size: Dim
    taps: int
    stride: int
    dilation: int
    begin: int
    end: int
    extra: int

    @property
    def window(self) -> int:
        """The number of taps of one phase."""
        return math.ceil(self.taps / self.stride)

    @property
    def first(self) -> int:
        return self.begin // self.stride

    @property
    def more(self) -> int:
        """The number of positions of the phases minus the number of inputs."""
        return (self.taps - 1 + self.extra - self.end) // self.stride - self.first

    @property
    def count(self) -> Dim:
        """The number of positions of the phases."""
        return add_sizes(self.size, self.more)

    @property
    def padding(self) -> tuple[int, int]:
        """The padding of the input, before and after."""
        before = self.window - 1 - self.first
        return before, self.more + self.window - 1 - before

    @property
    def cut(self) -> tuple[int, int]:
        """Interleaved outputs cropped before the first and after the last output of the result."""
        front = self.begin % self.stride
        return front, (self.more + 1) * self.stride - front - (self.taps + self.extra - self.begin - self.end)


def _by_reversed_kernel(call: Call, op: _Transposed, weight: Expr, axes: Sequence[_Axis]) -> Call | None:
    """The convolution by the reversed kernel, for stride 1; None if the cropping exceeds its reach."""
    reach = [(axis.taps - 1) * axis.dilation for axis in axes]
    paddings = [(r - axis.begin, r - axis.end + axis.extra) for r, axis in zip(reach, axes, strict=True)]
    if any(axis.stride > 1 for axis in axes) or any(width < 0 for pair in paddings for width in pair):
        return None
    groups, inputs, outputs, taps = _by_groups(op, weight)
    reversed_kernel = _reversed(weight, tuple(range(2, 2 + op.rank)))
    by_group = reshaped(reversed_kernel, (groups, inputs, outputs, *taps))
    order = (0, 2, 1, *range(3, 3 + op.rank))
    filters = reshaped(transposed(by_group, order, call.span), (groups * outputs, inputs, *taps))
    return _forward(call, op, filters, paddings, op.dilation)


def _by_groups(op: _Transposed, weight: Expr) -> tuple[int, int, int, tuple[int, ...]]:
    """The groups of weights (I, O, taps...), the inputs and outputs of each, and the taps."""
    inputs, outputs, *taps = weight.tensor_type.static_shape
    return op.groups, inputs // op.groups, outputs, tuple(taps)


def _reversed(x: Expr, axes: tuple[int, ...]) -> Expr:
    if isinstance(x, Constant):
        return Constant(np.flip(x.data, axes), span=x.span)
    return make_call("reverse", (x,), x.span, axis=axes)


def _by_phases(call: Call, op: _Transposed, weight: Expr, axes: Sequence[_Axis]) -> Expr | None:
    """All phases as one convolution, whose result is interleaved; None if adding up products is faster.

    The convolution is chosen if nothing overlaps or is cropped, as a product can store its results in that order; if
    phases of a single axis, which are in order already, have no zeros; and if the phases have windows for Winograd's
    algorithm.
    """
    plain = all(axis.dilation == 1 for axis in axes)
    if not isinstance(weight, Constant) or not plain or any(width < 0 for axis in axes for width in axis.padding):
        return None
    in_order = len(axes) == 1 and axes[0].taps % axes[0].stride == 0
    apart = op.groups == 1 and all(axis.taps == axis.stride and axis.cut == (0, 0) for axis in axes)
    if not in_order and not apart and not (call.dtype == "float32" and _suits_winograd(axes)):
        return None
    phases = _phases(weight.data, op.groups, axes)
    merged = phases.reshape(-1, *phases.shape[len(axes) + 2 :])
    filters = Constant(np.ascontiguousarray(merged), span=weight.span)
    convolution = _forward(call, op, filters, [axis.padding for axis in axes], (1,) * len(axes))
    return _interleaved(convolution, call, op.groups, axes)


def _suits_winograd(axes: Sequence[_Axis]) -> bool:
    windows = {axis.window for axis in axes[-2:]}
    zeros = math.prod(axis.window * axis.stride / axis.taps for axis in axes)
    return len(axes) > 1 and len(windows) == 1 and windows <= {*_WINOGRAD} and zeros <= _MOST_ZEROS


def _phases(weight: Array, groups: int, axes: Sequence[_Axis]) -> Array:
    """(I, O, taps...) of all groups to (groups, phases..., O, I of a group, window...), taps of a phase reversed."""
    rank = len(axes)
    missing = [(0, axis.window * axis.stride - axis.taps) for axis in axes]
    whole = np.pad(weight, [(0, 0), (0, 0), *missing])
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    split = whole.reshape(groups, inputs, outputs, *[d for axis in axes for d in (axis.window, axis.stride)])
    windows, phases = [3 + 2 * k for k in range(rank)], [4 + 2 * k for k in range(rank)]
    return np.flip(split, tuple(windows)).transpose(0, *phases, 2, 1, *windows)


def _added(call: Call, op: _Transposed, weight: Expr) -> Call:
    """Each pixel multiplied by all taps, and overlapping results added up."""
    data, rank = call.args[0], op.rank
    groups, inputs, outputs, taps = _by_groups(op, weight)
    by_group = reshaped(weight, (groups, inputs, outputs, *taps))
    if inputs == outputs == 1:  # depthwise: products of elements, which are computed where they are added up
        factors = reshaped(transposed(by_group, (1, *range(3, 3 + rank), 0, 2), call.span), (*taps, groups))
        pixels = reshaped(data, (*data.shape[:-1], *(1,) * (1 + rank), groups))
        windows = broadcast.multiply(pixels, factors)
    else:
        order = (0, *range(3, 3 + rank), 2, 1)
        columns = groups * math.prod(taps) * outputs
        filters = reshaped(transposed(by_group, order, call.span), (columns, inputs, *(1,) * rank))
        products = _forward(call, op, filters, [(0, 0)] * rank, (1,) * rank)
        windows = reshaped(products, (*data.shape[:-1], groups, *taps, outputs), call.span)
    return overlap_add(windows, call.shape[1:-1], op.strides, op.dilation, op.padding[:rank])


def _forward(
    call: Call, op: _Transposed, weight: Expr, paddings: Sequence[tuple[int, int]], dilation: Sequence[int]
) -> Call:
    """The convolution of the input with `weight` (O, I of a group, spatial...)."""
    spatial = "".join([a for a in op.data_layout if a not in "NC"])
    made: OpDef = _FORWARD[op.rank](
        strides=(1,) * op.rank, padding=(*[begin for begin, _ in paddings], *[end for _, end in paddings]),
        dilation=tuple(dilation), groups=op.groups, data_layout=op.data_layout, kernel_layout=f"OI{spatial}",
        out_dtype=op.out_dtype,
    )  # fmt: skip
    return Call(made, (call.args[0], weight), span=call.span)


def _interleaved(phases: Call, call: Call, groups: int, axes: Sequence[_Axis]) -> Expr:
    """(N, counts..., groups * strides... * O) to the result's (N, counts * strides..., groups * O), borders cropped."""
    if all(axis.stride == 1 for axis in axes):
        return phases
    rank, images, channels = len(axes), call.shape[0], call.tensor_type.shape[-1]
    assert isinstance(channels, int)
    counts, strides = [axis.count for axis in axes], [axis.stride for axis in axes]
    apart = reshaped(phases, (images, *counts, groups, *strides, channels // groups), call.span)
    order = [0, *[a for k in range(rank) for a in (1 + k, 2 + rank + k)], 1 + rank, 2 + 2 * rank]
    grown = [product((count, stride)) for count, stride in zip(counts, strides, strict=True)]
    merged = reshaped(transposed(apart, order, call.span), (images, *grown, channels), call.span)
    return _without_border(merged, call, [axis.cut for axis in axes])


def _without_border(x: Expr, call: Call, cut: Sequence[tuple[int, int]]) -> Expr:
    """x cropped by (before, after) along each spatial axis: the result of `call`."""
    if not any(n for pair in cut for n in pair):
        return x
    results, rank = call.tensor_type.shape[1:-1], len(cut)
    sliced = make_call(
        "strided_slice", (x,), call.span,
        begin=tuple([front for front, _ in cut]),
        end=tuple([add_sizes(front, result) for (front, _), result in zip(cut, results, strict=True)]),
        strides=(1,) * rank, axes=tuple(range(1, 1 + rank)),
    )  # fmt: skip
    if all(map(dims_equal, sliced.shape[1:-1], results)):
        return sliced
    widths = ((0, 0), *[(-front, -back) for front, back in cut], (0, 0))  # a slice might have a negative size
    return make_call("nn.pad", (x,), call.span, pad_width=widths)
