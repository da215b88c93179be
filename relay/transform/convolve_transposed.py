"""ConvolveTransposed: a transposed convolution as one convolution whose outputs are interleaved.

Output position o sums the taps t with o + begin = i * stride + t over input positions i. With q * stride + r for
o + begin the taps that count are t = r + stride * u, read from i = q - u: for each phase r an ordinary convolution over
u. All phases together are one convolution of ceil(K / stride) taps with as many times the outputs, which has the
schedules of convolutions: packed weights, register tiles, Winograd. Phases lie next to each other in the result, so
that what is left is to put them in order and to cut off the border.

Where the stride does not divide the kernel, some phases have fewer taps than others: three taps by two are phases of
two and one, and in two dimensions nearly half of the products would be with zeros. Then each phase is a convolution
by itself, and the results are joined.

Sizes of the data may be known at run time: how many positions of the phases there are more than inputs, and so every
border, depends on the kernel alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relay.expr import Call, Constant, Expr
from relay.op.base import OpDef, make_call
from relay.op.nn.conv import Conv1D, Conv1DTranspose, Conv2D, Conv2DTranspose, Conv3D, Conv3DTranspose
from relay.sizes import add_sizes, dims_equal, product
from relay.transform.builders import reshaped, transposed
from relay.transform.function_pass import RewritePass
from te.tir import Dim

__all__ = ["ConvolveTransposed"]

Array = np.ndarray[Any, Any]
_Transposed = Conv1DTranspose | Conv2DTranspose | Conv3DTranspose
_FORWARD: dict[int, type[Conv1D | Conv2D | Conv3D]] = {1: Conv1D, 2: Conv2D, 3: Conv3D}


class ConvolveTransposed(RewritePass):
    """Transposed convolutions of data (N, spatial..., C) with constant weights; others are kept."""

    opt_level: ClassVar[int] = 1

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, _Transposed) or not isinstance(call.args[1], Constant) or op.data_layout[-1] != "C":
            return call
        weight = _dilated(op, call.args[1].data)
        borders = zip(op.padding[: op.rank], op.padding[op.rank :], op.output_padding, strict=True)
        axes = [
            _Axis(size, weight.shape[2 + k], op.strides[k], *border)
            for k, (size, border) in enumerate(zip(call.args[0].shape[1:-1], borders, strict=True))
        ]
        if any(width < 0 for axis in axes for width in axis.padding):
            return call
        apart = op.groups == 1 and math.prod(axis.window * axis.stride / axis.taps for axis in axes) > _MOST_ZEROS
        if apart and all(begin >= 0 for axis in axes for begin, _ in axis.phase_paddings):
            phases = _convolutions(call, op, weight, axes)
        else:
            phases = _convolution(call, op, weight, axes)
        return _interleaved(phases, call, op.groups, axes)


_MOST_ZEROS = 1.25
"""Products of all phases together to those with taps of the kernel, at most; beyond, phases are computed apart."""


@dataclass(frozen=True)
class _Axis:
    """A spatial axis: `size` inputs, `taps` of the kernel, `begin` and `end` outputs cut off, `extra` more behind."""

    size: Dim
    taps: int
    stride: int
    begin: int
    end: int
    extra: int

    @property
    def window(self) -> int:
        """Taps of one phase."""
        return math.ceil(self.taps / self.stride)

    @property
    def first(self) -> int:
        return self.begin // self.stride

    @property
    def more(self) -> int:
        """Positions at which the phases are computed, more than there are inputs."""
        return (self.taps - 1 + self.extra - self.end) // self.stride - self.first

    @property
    def count(self) -> Dim:
        """Positions at which the phases are computed."""
        return add_sizes(self.size, self.more)

    @property
    def padding(self) -> tuple[int, int]:
        """Of the input, in front and behind."""
        before = self.window - 1 - self.first
        return before, self.more + self.window - 1 - before

    @property
    def phase_paddings(self) -> list[tuple[int, int]]:
        """Of the input for each phase by itself; negative where a phase has no taps or reads no border."""
        before, after = self.padding
        missing = [self.window - math.ceil((self.taps - phase) / self.stride) for phase in range(self.stride)]
        return [(before - less if less < self.window else -1, after) for less in missing]

    @property
    def cut(self) -> tuple[int, int]:
        """Interleaved outputs in front of the first that counts, and behind the last."""
        front = self.begin % self.stride
        return front, (self.more + 1) * self.stride - front - (self.taps + self.extra - self.begin - self.end)


def _dilated(op: _Transposed, weight: Array) -> Array:
    """(I, O, spatial...) with the zeros between the taps of a dilated kernel written out."""
    spatial = [a for a in op.data_layout if a not in "NC"]
    weight = weight.transpose([op.kernel_layout.index(a) for a in ("I", "O", *spatial)])
    shape = [(taps - 1) * step + 1 for taps, step in zip(weight.shape[2:], op.dilation, strict=True)]
    spread = np.zeros((*weight.shape[:2], *shape), weight.dtype)
    spread[(..., *[slice(None, None, step) for step in op.dilation])] = weight
    return spread


def _phases(weight: Array, groups: int, axes: Sequence[_Axis]) -> Array:
    """(I, O, taps...) of all groups to (groups, phases..., O, I of a group, window...), taps of a phase reversed."""
    rank = len(axes)
    missing = [(0, axis.window * axis.stride - axis.taps) for axis in axes]
    whole = np.pad(weight, [(0, 0), (0, 0), *missing])
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    split = whole.reshape(groups, inputs, outputs, *[d for axis in axes for d in (axis.window, axis.stride)])
    windows, phases = [3 + 2 * k for k in range(rank)], [4 + 2 * k for k in range(rank)]
    return np.flip(split, tuple(windows)).transpose(0, *phases, 2, 1, *windows)


def _convolution(call: Call, op: _Transposed, weight: Array, axes: Sequence[_Axis]) -> Call:
    """All phases at once: (N, counts..., groups * phases... * O)."""
    phases = _phases(weight, op.groups, axes)
    together = phases.reshape(-1, *phases.shape[len(axes) + 2 :])
    return _forward(call, op, together, [axis.padding for axis in axes])


def _convolutions(call: Call, op: _Transposed, weight: Array, axes: Sequence[_Axis]) -> Call:
    """Phase by phase, only the taps that each has, with the results of `_convolution`."""
    phases, made = _phases(weight, 1, axes)[0], []
    for phase in itertools.product(*[range(axis.stride) for axis in axes]):
        paddings = [axis.phase_paddings[r] for axis, r in zip(axes, phase, strict=True)]
        missing = [axis.padding[0] - begin for axis, (begin, _) in zip(axes, paddings, strict=True)]
        taps = phases[(*phase, slice(None), slice(None), *[slice(less, None) for less in missing])]
        made.append(_forward(call, op, taps, paddings))
    return make_call("concatenate", tuple(made), call.span, axis=len(axes) + 1)


def _forward(call: Call, op: _Transposed, weight: Array, paddings: Sequence[tuple[int, int]]) -> Call:
    """The convolution of the input with `weight` (O, I of a group, spatial...)."""
    spatial = "".join([a for a in op.data_layout if a not in "NC"])
    ones = (1,) * len(paddings)
    made: OpDef = _FORWARD[len(paddings)](
        strides=ones, padding=(*[begin for begin, _ in paddings], *[end for _, end in paddings]), dilation=ones,
        groups=op.groups, data_layout=op.data_layout, kernel_layout=f"OI{spatial}", out_dtype=op.out_dtype,
    )  # fmt: skip
    constant = Constant(np.ascontiguousarray(weight), span=call.args[1].span)
    return Call(made, (call.args[0], constant), span=call.span)


def _interleaved(phases: Call, call: Call, groups: int, axes: Sequence[_Axis]) -> Expr:
    """(N, counts..., groups * strides... * O) to the result's (N, counts * strides..., groups * O), borders cut off."""
    if all(axis.stride == 1 for axis in axes):
        return phases
    rank, images, channels = len(axes), call.shape[0], call.tensor_type.shape[-1]
    assert isinstance(channels, int)
    counts, strides = [axis.count for axis in axes], [axis.stride for axis in axes]
    apart = reshaped(phases, (images, *counts, groups, *strides, channels // groups), call.span)
    order = [0, *[a for k in range(rank) for a in (1 + k, 2 + rank + k)], 1 + rank, 2 + 2 * rank]
    grown = [product((count, stride)) for count, stride in zip(counts, strides, strict=True)]
    together = reshaped(transposed(apart, order, call.span), (images, *grown, channels), call.span)
    return _without_border(together, call, [axis.cut for axis in axes])


def _without_border(x: Expr, call: Call, cut: Sequence[tuple[int, int]]) -> Expr:
    """x less (in front, behind) of each spatial axis: what `call` gives."""
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
    widths = ((0, 0), *[(-front, -back) for front, back in cut], (0, 0))  # a slice might be of less than nothing
    return make_call("nn.pad", (x,), call.span, pad_width=widths)
