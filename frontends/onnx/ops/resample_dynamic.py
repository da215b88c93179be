"""The taps of `frontends.onnx.ops.resample` as expressions, along symbolic dimensions.

The index and weight vectors are computed once per run in float64, by the same formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from relayc.frontends.onnx.ops.common import counted, float_const
from relayc.frontends.onnx.ops.resample import NEAR_HALF, ROUNDING, Resampling, resample
from relayc.relay import op
from relayc.relay.expr import Expr, const
from relayc.relay.transform.repeat_elements import times_and_first
from relayc.te.tir import Dim

__all__ = [
    "DynamicFilter",
    "DynamicTaps",
    "Repeated",
    "Strided",
    "filter_dynamic",
    "real",
    "repeated_positions",
    "resample_dynamic",
    "scaled",
    "strided_positions",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Repeated:
    """Indices that repeat each position: element i is (first + i) // times, clamped to the axis."""

    times: int
    first: int


@dataclass(frozen=True, slots=True)
class Strided:
    """Evenly strided indices: element i is first + i * step, always within the axis."""

    step: int
    first: int


@dataclass(frozen=True, slots=True)
class DynamicTaps:
    """Per tap `indices` int64[out] and `weights` float64[out] (none: 1); `outside` bool[out] as in `Taps`."""

    indices: Sequence[Expr | Repeated | Strided]
    weights: Sequence[Expr]
    outside: Expr


@dataclass(frozen=True, slots=True)
class DynamicFilter:
    """Dynamic taps of dynamic number: `indices` int64[out, taps], `weights` float64[out, taps]."""

    indices: Expr
    weights: Expr
    outside: Expr


def real(d: Dim) -> Expr:
    """A size as a float64 scalar."""
    return op.cast(op.size_tensor((d,), ()), "float64")


def scaled(extent: Dim, scale: Expr) -> Expr:
    """`output_extent` of a float32 scale as an int64 scalar."""
    return op.cast(op.floor(op.multiply(op.cast(real(extent), "float32"), scale)), "int64")


def resample_dynamic(
    how: Resampling, extent: Dim, out: Dim, scale: float | Expr, roi: tuple[float, float] = (0.0, 1.0)
) -> DynamicTaps:
    """The taps that resample an axis of `extent` elements to `out`. With antialiasing `scale` must be static."""
    x, last, outside = _places(how, extent, out, scale, roi)
    if how.mode == "nearest":
        return DynamicTaps([_index(_rounded(x, how.nearest), last)], [], outside)
    shrink = min(scale, 1.0) if how.antialias and not isinstance(scale, Expr) else 1.0
    reach = 1 if how.mode == "linear" else 2
    first = math.floor(-reach / shrink) + 1
    base = op.floor(x)
    part = op.subtract(x, base)
    indices: list[Expr] = []
    weights: list[Expr] = []
    for offset in range(first, 2 - first):
        distance = op.abs(op.multiply(op.subtract(_f(offset), part), _f(shrink)))
        weight = _triangle(distance) if how.mode == "linear" else _cubic(distance, how.cubic_coeff)
        position = op.add(base, _f(offset))
        if how.exclude_outside:
            off = op.logical_or(op.less(position, _f(0.0)), op.greater(position, last))
            weight = op.where(off, _f(0.0), weight)
        indices.append(_index(position, last))
        weights.append(weight)
    if how.antialias or how.exclude_outside:
        total = weights[0]
        for weight in weights[1:]:
            total = op.add(total, weight)
        weights = [op.divide(weight, total) for weight in weights]
    return DynamicTaps(indices, weights, outside)


_PERIODIC = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn")
"""Coordinate modes whose fractional positions are periodic in `scale` elements, for a whole scale."""
_SAMPLE = 8
"""Extent of the sample axis on which index patterns are detected."""


def repeated_positions(how: Resampling, scale: float) -> list[Repeated] | None:
    """The indices of all taps for `scale`, if they repeat every position equally often; else None."""
    if how.coordinates not in _PERIODIC or how.antialias or scale < 2 or not float(scale).is_integer():
        return None
    sample = resample(replace(how, exclude_outside=False), _SAMPLE, _SAMPLE * int(scale), scale)
    found = [times_and_first(indices, _SAMPLE) for indices in sample.indices]
    return None if None in found else [Repeated(*pair) for pair in found if pair is not None]


def strided_positions(how: Resampling, scale: float) -> list[Strided] | None:
    """The indices of all taps for `scale`, if they are evenly strided; else None."""
    step = round(1 / scale) if how.coordinates in _PERIODIC and scale < 1 else 0
    if step < 2 or step * scale != 1.0:
        return None
    sample = resample(replace(how, exclude_outside=False), _SAMPLE * step, _SAMPLE, scale)
    found = [Strided(step, int(indices[0])) for indices in sample.indices]
    even = step * np.arange(_SAMPLE)
    same = [np.array_equal(tap.first + even, indices) for tap, indices in zip(found, sample.indices, strict=True)]
    return found if all(same) and all(tap.first < step for tap in found) else None


def filter_dynamic(
    how: Resampling,
    extent: Dim,
    out: Dim,
    scale: float | Expr,
    width: Dim,
    roi: tuple[float, float] = (0.0, 1.0),
) -> DynamicFilter:
    """The taps with antialiasing for a dynamic scale; `width`, an even number, is the filter's extent in elements."""
    x, last, outside = _places(how, extent, out, scale, roi)
    x = op.expand_dims(x, 1)
    base = op.floor(x)
    first = op.subtract(_f(1.0), op.multiply(real(width), _f(0.5)))
    position = op.add(base, op.add(op.cast(counted(width), "float64"), first))
    shrink = op.minimum(scale, _f(1.0)) if isinstance(scale, Expr) else _f(min(scale, 1.0))
    distance = op.abs(op.multiply(op.subtract(position, x), shrink))
    weights = _triangle(distance) if how.mode == "linear" else _cubic(distance, how.cubic_coeff)
    if how.exclude_outside:
        off = op.logical_or(op.less(position, _f(0.0)), op.greater(position, last))
        weights = op.where(off, _f(0.0), weights)
    weights = op.divide(weights, op.sum(weights, axis=(1,), keepdims=True))
    return DynamicFilter(_index(position, last), weights, outside)


def _places(
    how: Resampling, extent: Dim, out: Dim, scale: float | Expr, roi: tuple[float, float]
) -> tuple[Expr, Expr, Expr]:
    """Input coordinates of the output elements, the last input position, and a mask of those outside the input."""
    kind = "float32" if how.mode == "nearest" else "float64"
    factor = op.cast(scale, kind) if isinstance(scale, Expr) else const(scale, kind)
    last = op.subtract(real(extent), _f(1.0))
    x = op.cast(_source(how.coordinates, extent, out, factor, roi), "float64")
    return x, last, op.logical_or(op.less(x, _f(0.0)), op.greater(x, last))


def _f(value: float) -> Expr:
    return const(float(value), "float64")


def _index(position: Expr, last: Expr) -> Expr:
    """Clamp whole positions to the axis."""
    return op.cast(op.maximum(op.minimum(position, last), _f(0.0)), "int64")


def _source(coordinates: str, extent: Dim, out: Dim, scale: Expr, roi: tuple[float, float]) -> Expr:
    """Input coordinate of each output element, in the type of `scale`: [out]."""
    kind = str(scale.dtype)
    i, n, count = op.cast(counted(out), kind), op.cast(real(extent), kind), op.cast(real(out), kind)
    one, half = const(1.0, kind), const(0.5, kind)
    last = op.subtract(n, one)
    several = op.greater(op.size_tensor((out,), ()), const(1, "int64"))
    if coordinates == "asymmetric":
        return op.divide(i, scale)
    if coordinates == "align_corners":
        width = _width(n, count, scale)
        return op.where(several, op.divide(op.multiply(i, last), op.subtract(width, one)), const(0.0, kind))
    centres = op.divide(op.add(i, half), scale)
    if coordinates == "tf_half_pixel_for_nn":
        return centres
    if coordinates == "tf_crop_and_resize":
        start, end = (op.multiply(const(r, kind), last) for r in roi)
        step = op.divide(op.multiply(i, op.subtract(end, start)), op.subtract(_width(n, count, scale), one))
        return op.where(several, op.add(start, step), op.multiply(half, op.add(start, end)))
    if coordinates == "half_pixel_symmetric":
        adjustment = op.subtract(one, op.divide(count, op.multiply(scale, n)))
        offset = op.cast(op.multiply(op.multiply(n, half), adjustment), "float64")
        exact = op.divide(op.add(op.cast(i, "float64"), _f(0.5)), op.cast(scale, "float64"))
        return op.cast(op.subtract(op.add(offset, exact), _f(0.5)), kind)
    half_pixel = op.subtract(centres, half)
    return op.where(several, half_pixel, const(0.0, kind)) if coordinates == "pytorch_half_pixel" else half_pixel


def _width(extent: Expr, out: Expr, scale: Expr) -> Expr:
    """extent * scale or, where that is a whole number except for rounding, the number of outputs."""
    width = op.multiply(scale, extent)
    whole = op.floor(op.add(width, const(0.5, str(scale.dtype))))
    bound = op.multiply(out, const(ROUNDING, str(scale.dtype)))
    return op.where(op.less_equal(op.abs(op.subtract(width, whole)), bound), out, width)


def _rounded(x: Expr, mode: str) -> Expr:
    if mode in ("floor", "ceil"):
        return op.floor(x) if mode == "floor" else op.ceil(x)
    half = _f(0.5 + NEAR_HALF)
    return op.ceil(op.subtract(x, half)) if mode == "round_prefer_floor" else op.floor(op.add(x, half))


def _triangle(distance: Expr) -> Expr:
    return op.clip(op.subtract(_f(1.0), distance), 0.0, 1.0)


def _cubic(d: Expr, a: float) -> Expr:
    """Keys' cubic convolution kernel for non-negative distances."""

    def polynomial(*coefficients: float) -> Expr:
        value: Expr = float_const(coefficients[0], d)
        for coefficient in coefficients[1:]:
            value = op.add(op.multiply(value, d), float_const(coefficient, d))
        return value

    near, far = polynomial(a + 2, -(a + 3), 0.0, 1.0), polynomial(a, -5 * a, 8 * a, -4 * a)
    beyond = op.where(op.less(d, _f(2.0)), far, _f(0.0))
    return op.where(op.less_equal(d, _f(1.0)), near, beyond)
