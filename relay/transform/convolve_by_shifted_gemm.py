"""ConvolveByShiftedGemm: a convolution most of whose taps read padding becomes a sum over taps, each of the inputs it
reads.

In a dilated convolution of a small image most taps fall into the padding. With a rate of 12 on 16 x 16 pixels, as in
networks for segmentation (Chen et al., "Rethinking Atrous Convolution for Semantic Image Segmentation", 2017), a tap at
an edge of 3 x 3 reads a quarter of the image, one at a corner a sixteenth: three quarters of all multiplications are by
zeros of the padding. The sum multiplies the region that each tap reads by that tap alone, as a matrix product; each
weight is still read once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from relayc.backend.target import Target
from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.expr_functor import rewrite_calls
from relayc.relay.op.base import make_call
from relayc.relay.op.broadcast import add
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.op.nn.pad import pad
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.transform.winograd import winograd_plan, winograd_shape, winograd_tiles
from relayc.te.ir import PassContext
from relayc.topi.cpu.convolution.winograd_plan import convolution_cycles, copy_cycles

__all__ = ["ConvolveByShiftedGemm"]

_Forward = Conv1D | Conv2D | Conv3D
_MOST_INSIDE = 0.7
"""Maximum fraction of the multiplications that read the image; above it the alternative is not evaluated."""
_GAIN = 0.8
"""A convolution is split if that takes less than this fraction of its cycles."""


@dataclass(frozen=True)
class ConvolveByShiftedGemm(FunctionPass):
    """conv(x, w) = sum of pad(conv(region of x, some taps of w)), for float32, static sizes and stride 1."""

    target: Target
    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite_calls(function, _Splitter(self.target, winograd_tiles(context)).rewrite)


@dataclass(frozen=True, slots=True)
class _Reach:
    """A tap along an axis: the range of results for which it reads the image, and the range of the image."""

    tap: int
    results: range
    read: range


@dataclass(frozen=True, slots=True)
class _Term:
    """A convolution with some of the taps, and the padding of its results to the shape of the whole result."""

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
        weight = call.args[1]
        if not isinstance(weight, Constant) or call.dtype != "float32" or not call.tensor_type.is_static:
            return call
        apart = [_reaches(call, op, k) for k in range(op.rank)]
        inside = math.prod([_fraction_inside(call, op, k, reaches) for k, reaches in enumerate(apart)])
        if not 0 < inside <= _MOST_INSIDE or not weight.data.size or not np.isfinite(weight.data).all():
            return call
        found, least = call, _GAIN * self._cycles(call)
        for split in product((False, True), repeat=op.rank):
            if not any(split):
                continue
            terms = list(_terms(call, op, split, apart))
            cycles = sum([self._cycles(term.convolution) for term in terms]) + self._copying_cycles(call, terms)
            if cycles < least:
                found, least = _sum(terms), cycles
        return found

    def _cycles(self, call: Call) -> float:
        """Cycles of a convolution, direct or by Winograd's algorithm."""
        op, weight = call.op, call.args[1].tensor_type.static_shape
        assert isinstance(op, _Forward)
        *pixels, outputs = call.tensor_type.static_shape
        direct = convolution_cycles(self.target, math.prod(pixels), outputs, math.prod(weight) // outputs)
        shape = None if isinstance(op, Conv1D) else winograd_shape(call, op)
        plan = None if shape is None else winograd_plan(self.target, shape, self.winograd_tiles)
        return direct if plan is None else plan.cycles

    def _copying_cycles(self, call: Call, terms: Sequence[_Term]) -> float:
        """Cycles of copying regions of the image, and of padding and adding up the results."""
        nbytes = 0
        for term in terms:
            data, (_, *ends) = term.convolution.args[0].tensor_type, call.args[0].shape
            nbytes += 2 * data.nbytes if list(data.shape[1:]) != ends else 0
            nbytes += 0 if term.is_whole else 2 * call.tensor_type.nbytes + term.convolution.tensor_type.nbytes
        return copy_cycles(self.target, nbytes)


def _reaches(call: Call, op: _Forward, k: int) -> list[_Reach]:
    """The ranges that each tap along spatial axis `k` reads; taps that read only padding are left out."""
    size, results, taps = _sizes(call, op, k)
    found: list[_Reach] = []
    for tap in range(taps):
        ahead = tap * op.dilation[k] - op.padding[k]
        begin, end = max(0, -ahead), min(results, size - ahead)
        if begin < end:
            found.append(_Reach(tap, range(begin, end), range(begin + ahead, end + ahead)))
    return found


def _fraction_inside(call: Call, op: _Forward, k: int, reaches: Sequence[_Reach]) -> float:
    """The fraction of the multiplications along spatial axis `k` that are by elements of the image."""
    _, results, taps = _sizes(call, op, k)
    return sum([len(reach.results) for reach in reaches]) / (results * taps)


def _sizes(call: Call, op: _Forward, k: int) -> tuple[int, int, int]:
    """The sizes of the image, results and kernel along spatial axis `k`."""
    axis = _spatial(op)[k]
    place = op.data_layout.index(axis)
    data, weight = [arg.tensor_type.static_shape for arg in call.args]
    return data[place], call.tensor_type.static_shape[place], weight[op.kernel_layout.index(axis)]


def _spatial(op: _Forward) -> list[str]:
    return [axis for axis in op.data_layout if axis not in "NC"]


def _terms(
    call: Call, op: _Forward, split: Sequence[bool], apart: Sequence[Sequence[_Reach]]
) -> Iterator[_Term]:
    """The convolutions of single taps along the axes that are `split`, of all taps along the others."""
    axes = [k for k in range(op.rank) if split[k]]
    places = [op.data_layout.index(_spatial(op)[k]) for k in axes]
    along = [op.kernel_layout.index(_spatial(op)[k]) for k in axes]
    data, weight = call.args
    assert isinstance(weight, Constant)
    padding = tuple([0 if k % op.rank in axes else border for k, border in enumerate(op.padding)])
    dilation = tuple([1 if k in axes else d for k, d in enumerate(op.dilation)])
    one_tap, sizes = op.replace(padding=padding, dilation=dilation), call.tensor_type.static_shape
    for reaches in product(*[apart[k] for k in axes]):
        taps, borders = [slice(None)] * weight.data.ndim, [(0, 0)] * len(sizes)
        for reach, place, axis in zip(reaches, places, along, strict=True):
            taps[axis] = slice(reach.tap, reach.tap + 1)
            borders[place] = (reach.results.start, sizes[place] - reach.results.stop)
        some = Constant(weight.data[tuple(taps)], span=weight.span)
        part = _part(data, places, [reach.read for reach in reaches])
        yield _Term(Call(one_tap, (part, some), span=call.span), tuple(borders))


def _part(data: Expr, axes: Sequence[int], ranges: Sequence[range]) -> Expr:
    """A slice of the data by these ranges of some axes."""
    shape = data.tensor_type.static_shape
    cut = [(axis, r) for axis, r in zip(axes, ranges, strict=True) if len(r) < shape[axis]]
    if not cut:
        return data
    begin, end = tuple([r.start for _, r in cut]), tuple([r.stop for _, r in cut])
    places, steps = tuple([axis for axis, _ in cut]), (1,) * len(cut)
    return make_call("strided_slice", (data,), data.span, begin=begin, end=end, strides=steps, axes=places)


def _sum(terms: Sequence[_Term]) -> Expr:
    """The sum of the terms, those that contribute to all results first."""
    total: Expr | None = None
    for term in sorted(terms, key=lambda term: not term.is_whole):
        call = term.convolution
        weight = call.args[1]
        assert isinstance(weight, Constant)
        taps = Constant(np.ascontiguousarray(weight.data), span=weight.span)
        value: Expr = Call(call.op, (call.args[0], taps), span=call.span)
        if not term.is_whole:
            value = pad(value, term.borders)
        total = value if total is None else add(total, value)
    assert total is not None
    return total
