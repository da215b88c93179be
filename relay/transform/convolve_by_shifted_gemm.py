"""ConvolveByShiftedGemm: a convolution most of whose taps read padding becomes a sum over taps, each of the inputs it
reads.

In a dilated convolution of a small image most taps fall into the padding. With a rate of 12 on 16 x 16 pixels, as in
networks for segmentation (Chen et al., "Rethinking Atrous Convolution for Semantic Image Segmentation", 2017), a tap at
an edge of 3 x 3 reads a quarter of the image, one at a corner a sixteenth: three quarters of all multiplications are by
zeros of the padding. The sum multiplies the region that each tap reads by that tap alone, as a matrix product; each
weight is still read once. Regions of images of dynamic size are as large as these leave them, and may be empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar, cast

import numpy as np

from relayc.backend.target import Target
from relayc.relay.expr import Call, Constant, Expr, Function, Var
from relayc.relay.expr_functor import rewrite_calls
from relayc.relay.op.base import make_call
from relayc.relay.op.broadcast import add
from relayc.relay.op.common import with_dim
from relayc.relay.op.gradients import leading
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.op.nn.pad import pad
from relayc.relay.sizes import LIKELY_SIDE, add_sizes, larger, likely
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.transform.winograd import winograd_plan, winograd_shape, winograd_tiles
from relayc.te.ir import PassContext
from relayc.te.tir import Dim, as_int
from relayc.topi.cpu.convolution.winograd_plan import convolution_cycles, copy_cycles

__all__ = ["ConvolveByShiftedGemm"]

_Forward = Conv1D | Conv2D | Conv3D
_MOST_INSIDE = 0.7
"""Maximum fraction of the multiplications that read the image; above it the alternative is not evaluated."""
_GAIN = 0.9
"""A convolution is split if that takes less than this fraction of its cycles."""
_LIKELY_LENGTH = 4096
"""Elements assumed for a sequence of dynamic length, as of speech."""


@dataclass(frozen=True)
class ConvolveByShiftedGemm(FunctionPass):
    """conv(x, w) = sum of pad(conv(region of x, some taps of w)), for float32 and stride 1.

    Whether it pays is told from the likely sizes of dynamic images.
    """

    target: Target
    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite_calls(function, _Splitter(self.target, winograd_tiles(context)).rewrite)


@dataclass(frozen=True, slots=True)
class _Reach:
    """A tap along an axis: how many results at both ends it reads padding for, and how many elements of the image at
    both ends no result reads through it. Of small images it may read nothing."""

    tap: int
    borders: tuple[int, int]
    unread: tuple[int, int]

    def count(self, results: Dim) -> Dim:
        """Results, of `results`, for which it reads the image."""
        return larger(add_sizes(results, -sum(self.borders)), 0)


@dataclass(frozen=True, slots=True)
class _Term:
    """A convolution with one tap along an axis, of the region that it reads, and the padding of its results."""

    convolution: Call
    borders: tuple[tuple[int, int], ...]

    @property
    def is_whole(self) -> bool:
        """Does it contribute to all results?"""
        return not any(map(any, self.borders))


@dataclass(frozen=True, slots=True)
class _Splitter:
    target: Target
    winograd_tiles: frozenset[int]

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, _Forward) or op.data_layout[-1] != "C" or op.groups > 1 or max(op.strides) > 1:
            return call
        data, weight = call.args
        if not isinstance(weight, Constant) or call.dtype != "float32" or not isinstance(data.shape[-1], int):
            return call
        likely_call = _of_likely_size(call)
        if likely_call is None:
            return call
        inside = math.prod([_fraction_inside(likely_call, k) for k in range(op.rank)])
        if not 0 < inside <= _MOST_INSIDE or not weight.data.size or not np.isfinite(weight.data).all():
            return call
        best, least = (), _GAIN * self._cycles(likely_call, call)
        for count in range(op.rank):
            for axes in combinations(range(op.rank), count + 1):
                cycles = self._cycles_of_sum(likely_call, axes, copied=not call.tensor_type.is_static)
                if cycles < least:
                    best, least = axes, cycles
        return _sum(call, best) if best else call

    def _cycles_of_sum(self, call: Call, axes: Sequence[int], *, copied: bool) -> float:
        """Cycles of the sum over the taps along spatial `axes`, of regions of the image that are `copied` or views."""
        if not axes:
            return self._cycles(call, call)
        return sum([
            self._cycles_of_sum(term.convolution, axes[1:], copied=copied)
            + self._copying_cycles(call, term, copied=copied) for term in _terms(call, axes[0])
        ])  # fmt: skip

    def _cycles(self, call: Call, original: Call) -> float:
        """Cycles of a convolution, the likely one of the `original`, directly or by Winograd's algorithm."""
        weight = call.args[1].tensor_type.static_shape
        *pixels, outputs = call.tensor_type.static_shape
        direct = convolution_cycles(self.target, math.prod(pixels), outputs, math.prod(weight) // outputs)
        op = _forward(original)
        shape = None if isinstance(op, Conv1D) else winograd_shape(original, op)
        plan = None if shape is None else winograd_plan(self.target, shape, self.winograd_tiles)
        return direct if plan is None else plan.cycles

    def _copying_cycles(self, call: Call, term: _Term, *, copied: bool) -> float:
        """Cycles of padding the results of a term and adding them to those of `call`, and of a region of the image that
        is `copied`."""
        part, data = term.convolution.args[0].tensor_type, call.args[0].tensor_type
        nbytes = 2 * part.nbytes if copied and part.shape != data.shape else 0
        nbytes += 0 if term.is_whole else 2 * call.tensor_type.nbytes + term.convolution.tensor_type.nbytes
        return copy_cycles(self.target, nbytes)


def _of_likely_size(call: Call) -> Call | None:
    """The convolution with dynamic sizes as they are likely to be: one image of so many rows and columns, or one long
    sequence. None where that has no results."""
    op, (data, weight) = _forward(call), call.args
    long = sum([as_int(d) != 1 for axis, d in zip(op.data_layout, data.shape, strict=True) if axis not in "NC"]) == 1
    side = _LIKELY_LENGTH if long else LIKELY_SIDE
    sizes = [likely(d, 1 if axis == "N" else side) for axis, d in zip(op.data_layout, data.shape, strict=True)]
    for k in range(op.rank):
        place, along = _places(call, k)
        reach = (weight.tensor_type.static_shape[along] - 1) * op.dilation[k] + 1
        if sizes[place] + op.padding[k] + op.padding[op.rank + k] < reach:
            return None
    return Call(op, (Var("data", data.tensor_type.with_shape(sizes)), weight))


def _forward(call: Call) -> _Forward:
    assert isinstance(call.op, _Forward)
    return call.op


def _reaches(call: Call, k: int) -> list[_Reach]:
    """The regions that each tap along spatial axis `k` reads; taps that are known to read only padding are left out."""
    op, (results, taps) = _forward(call), _sizes(call, k)
    found: list[_Reach] = []
    for tap in range(taps):
        before = tap * op.dilation[k] - op.padding[k]  # elements of the image before the first that is read
        after = (taps - 1 - tap) * op.dilation[k] - op.padding[op.rank + k]
        reach = _Reach(tap, (max(0, -before), max(0, -after)), (max(0, before), max(0, after)))
        if reach.count(results) != 0:
            found.append(reach)
    return found


def _fraction_inside(call: Call, k: int) -> float:
    """The fraction of the multiplications along spatial axis `k`, of static size, that are by elements of the image."""
    results, taps = _sizes(call, k)
    return sum([cast("int", reach.count(results)) for reach in _reaches(call, k)]) / (cast("int", results) * taps)


def _sizes(call: Call, k: int) -> tuple[Dim, int]:
    """The sizes of the results and of the kernel along spatial axis `k`."""
    place, along = _places(call, k)
    return call.shape[place], call.args[1].tensor_type.static_shape[along]


def _places(call: Call, k: int) -> tuple[int, int]:
    """Where spatial axis `k` is in the data and in the weights."""
    op = _forward(call)
    axis = [axis for axis in op.data_layout if axis not in "NC"][k]
    return op.data_layout.index(axis), op.kernel_layout.index(axis)


def _terms(call: Call, k: int) -> Iterator[_Term]:
    """The convolutions of single taps along spatial axis `k`, of all taps along the others."""
    op, (place, along) = _forward(call), _places(call, k)
    data, weight = call.args
    assert isinstance(weight, Constant)
    padding = tuple([0 if n % op.rank == k else border for n, border in enumerate(op.padding)])
    one_tap = op.replace(padding=padding, dilation=with_dim(op.dilation, k, 1))
    for reach in _reaches(call, k):
        taps, borders = [slice(None)] * weight.data.ndim, [(0, 0)] * weight.data.ndim
        taps[along], borders[place] = slice(reach.tap, reach.tap + 1), reach.borders
        some = Constant(weight.data[tuple(taps)], span=weight.span)
        yield _Term(Call(one_tap, (_part(data, place, reach.unread), some), span=call.span), tuple(borders))


def _part(data: Expr, axis: int, unread: tuple[int, int]) -> Expr:
    """The data without so many elements at both ends of an axis."""
    before, after = unread
    if not before and not after:
        return data
    end = add_sizes(data.shape[axis], -after)
    return make_call("strided_slice", (data,), data.span, begin=(before,), end=(end,), strides=(1,), axes=(axis,))


def _sum(call: Call, axes: Sequence[int]) -> Expr:
    """The convolution as a sum over its taps along spatial `axes`, those first that contribute to all results."""
    if not axes:
        data, weight = call.args
        assert isinstance(weight, Constant)
        return Call(call.op, (data, Constant(np.ascontiguousarray(weight.data), span=weight.span)), span=call.span)
    total: Expr | None = None
    for term in sorted(_terms(call, axes[0]), key=lambda term: not term.is_whole):
        value = _sum(term.convolution, axes[1:])
        if not term.is_whole:
            value = leading(pad(value, term.borders), call.shape)
        total = value if total is None else add(total, value)
    assert total is not None
    return total
