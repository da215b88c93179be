"""Coordinates and weights of one-dimensional resampling, for each axis of Resize.

An axis is resampled by taps: output i is the sum over t of weights[t, i] * x[indices[t, i]]. Indices and weights are
computed in float64, by the same formulas on arrays where sizes are static (`known_taps`) and on expressions, which are
evaluated once per run, where they are symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relayc.frontends.onnx.ops.common import counted
from relayc.relay import op
from relayc.relay.expr import Expr, const
from relayc.relay.transform.repeat_elements import times_and_first
from relayc.te.tir import Dim

__all__ = [
    "Filter",
    "KnownTaps",
    "Region",
    "Repeated",
    "Resampling",
    "Strided",
    "Taps",
    "filter_of",
    "known_taps",
    "output_extent",
    "real",
    "repeated_positions",
    "scaled",
    "strided_positions",
    "taps_of",
]

Region = tuple[float | Expr, float | Expr]
"""Start and end of what is resampled of an axis, as fractions of it: numbers, or scalars of float32 or float64."""

_ROUNDING = 2.0**-23
"""Relative difference of extent * scale from a whole number that rounding to float32, of both, makes at most."""

_NEAR_HALF = 1e-6
"""Largest distance of a coordinate from the middle of two elements that counts as none, in elements, as in onnxruntime
1.32: in float32, (9 + 0.5) / (19 / 14) - 0.5 is 6.5000005."""


@dataclass(frozen=True, slots=True)
class Resampling:
    """The attributes of Resize that apply per axis, with ONNX's names."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic_coeff: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False

    @property
    def reach(self) -> float:
        """Elements on each side of a coordinate that count, without antialiasing."""
        return {"nearest": 0.5, "linear": 1.0, "cubic": 2.0}[self.mode]

    @property
    def is_stretched(self) -> bool:
        """Whether the filter grows with a reduction: antialiasing."""
        return self.antialias and self.mode != "nearest"

    def width(self, scale: float) -> int:
        """Number of taps for a static scale."""
        return 2 * math.ceil(self.reach / self.shrink(scale)) if self.mode != "nearest" else 1

    def shrink(self, scale: float) -> float:
        """The scale of distances in the filter."""
        return min(scale, 1.0) if self.is_stretched else 1.0


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
class KnownTaps:
    """`indices` int64[taps, out], `weights` float64[taps, out]; `outside` bool[out] marks results outside the input."""

    indices: np.ndarray
    weights: np.ndarray
    outside: np.ndarray


@dataclass(frozen=True, slots=True)
class Taps:
    """Per tap `indices` int64[out] and `weights` float64[out] (none: 1); `outside` bool[out] as in `KnownTaps`."""

    indices: Sequence[Expr | Repeated | Strided]
    weights: Sequence[Expr]
    outside: Expr


@dataclass(frozen=True, slots=True)
class Filter:
    """Taps of any number, also a symbolic one: `indices` int64[out, taps], `weights` float64[out, taps]."""

    indices: Expr
    weights: Expr
    outside: Expr


@dataclass(frozen=True, slots=True)
class _Operators:
    """What formulas are made of: operators by name, and constants, counters and sizes."""

    library: Any
    const: Any
    cast: Any
    counted: Any
    size: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def real(self, d: Dim) -> Any:
        """A size as a float64 scalar."""
        return self.cast(self.size(d), "float64")


_EXPRESSIONS = _Operators(op, const, op.cast, counted, lambda d: op.size_tensor((d,), ()))
_ARRAYS = _Operators(np, np.asarray, np.asarray, np.arange, np.int64)
"""In place of expressions of static sizes, which take 1 ms an axis to make and to evaluate."""


def real(d: Dim) -> Expr:
    """A size as a float64 scalar."""
    return _EXPRESSIONS.real(d)


def output_extent(extent: int, scale: float) -> int:
    """The output extent for `scale`: floor(extent * scale) in float32, as onnxruntime and PyTorch compute it.

    So a scale that was computed as target / extent in float32 gives the target in nearly all cases.
    """
    return math.floor(np.float32(extent) * np.float32(scale))


def scaled(extent: Dim, scale: Expr) -> Expr:
    """`output_extent` of a float32 scale as an int64 scalar."""
    return op.cast(op.floor(op.cast(real(extent), "float32") * scale), "int64")


def known_taps(
    how: Resampling, extent: int, out: int, scale: float, roi: tuple[float, float] = (0.0, 1.0)
) -> KnownTaps:
    """The taps that resample an axis of `extent` elements to `out`, but for those whose weights all are 0."""
    with np.errstate(invalid="ignore", divide="ignore"):  # of a single output, which is chosen apart
        indices, weights, outside = _table(_ARRAYS, how, extent, out, scale, how.width(scale), roi)
    kept = np.any(weights != 0.0, axis=0)
    return KnownTaps(indices.T[kept], weights.T[kept], outside)


def taps_of(
    how: Resampling, extent: Dim, out: Dim, scale: float | Expr, roi: Region = (0.0, 1.0)
) -> Taps:
    """The taps that resample an axis of `extent` elements to `out`. With antialiasing `scale` must be static."""
    at = _Coordinates.of(_EXPRESSIONS, how, extent, out, scale, roi)
    if how.mode == "nearest":
        return Taps([at.nearest(how)], [], at.outside)
    factor = 1.0 if isinstance(scale, Expr) else scale
    half = how.width(factor) // 2
    taps = [at.tap(how, const(float(offset), "float64"), how.shrink(factor)) for offset in range(1 - half, 1 + half)]
    weights = [weight for _, weight in taps]
    if how.antialias or how.exclude_outside:
        total = weights[0]
        for weight in weights[1:]:
            total = total + weight
        weights = [weight / total for weight in weights]
    return Taps([index for index, _ in taps], weights, at.outside)


def filter_of(
    how: Resampling, extent: Dim, out: Dim, scale: float | Expr, width: Dim, roi: Region = (0.0, 1.0)
) -> Filter:
    """The taps of `taps_of` as a table, of `width` columns; both the scale and the width may be symbolic."""
    return Filter(*_table(_EXPRESSIONS, how, extent, out, scale, width, roi))


def _table(
    on: _Operators, how: Resampling, extent: Dim, out: Dim, scale: float | Expr, width: Dim, roi: Region
) -> tuple[Any, Any, Any]:
    """The indices, the weights, and which results are outside the input."""
    at = _Coordinates.of(on, how, extent, out, scale, roi)
    column = replace(at, x=on.expand_dims(at.x, 1))
    if how.mode == "nearest":
        indices = column.nearest(how)
        return indices, on.ones(indices.shape, "float64"), at.outside
    offsets = on.cast(on.counted(width), "float64") + (1.0 - on.real(width) * 0.5)
    if isinstance(scale, Expr):
        shrink = on.minimum(scale, on.const(1.0, "float64")) if how.is_stretched else 1.0
    else:
        shrink = how.shrink(scale)
    indices, weights = column.tap(how, offsets, shrink)
    if how.antialias or how.exclude_outside:
        weights = weights / on.sum(weights, axis=(1,), keepdims=True)
    return indices, weights, at.outside


_PERIODIC = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn")
"""Coordinate modes whose fractional positions are periodic in `scale` elements, for a whole scale."""
_SAMPLE = 8
"""Extent of the sample axis on which index patterns are detected."""


def repeated_positions(how: Resampling, scale: float) -> list[Repeated] | None:
    """The indices of all taps for `scale`, if they repeat every position equally often; else None."""
    if how.coordinates not in _PERIODIC or how.antialias or scale < 2 or not float(scale).is_integer():
        return None
    sample = known_taps(replace(how, exclude_outside=False), _SAMPLE, _SAMPLE * int(scale), scale)
    found = [times_and_first(indices, _SAMPLE) for indices in sample.indices]
    return None if None in found else [Repeated(*pair) for pair in found if pair is not None]


def strided_positions(how: Resampling, scale: float) -> list[Strided] | None:
    """The indices of all taps for `scale`, if they are evenly strided; else None."""
    step = round(1 / scale) if how.coordinates in _PERIODIC and scale < 1 else 0
    if step < 2 or step * scale != 1.0:
        return None
    sample = known_taps(replace(how, exclude_outside=False), _SAMPLE * step, _SAMPLE, scale)
    found = [Strided(step, int(indices[0])) for indices in sample.indices]
    even = step * np.arange(_SAMPLE)
    same = [np.array_equal(tap.first + even, indices) for tap, indices in zip(found, sample.indices, strict=True)]
    return found if all(same) and all(tap.first < step for tap in found) else None


@dataclass(frozen=True, slots=True)
class _Coordinates:
    """Input coordinates `x` of the output elements, the `last` input position, and which are `outside` the input."""

    on: _Operators
    x: Any
    last: Any
    outside: Any

    @staticmethod
    def of(
        on: _Operators, how: Resampling, extent: Dim, out: Dim, scale: float | Expr, roi: Region
    ) -> _Coordinates:
        """Coordinates of one axis. Nearest elements are found in float32, as in onnxruntime and PyTorch.

        4 / float32(4 / 3) is 3 there, and rounded down in float64 it would be 2.
        """
        kind = "float32" if how.mode == "nearest" else "float64"
        factor = on.cast(scale, kind) if isinstance(scale, Expr) else on.const(scale, kind)
        x, last = on.cast(_source(on, how.coordinates, extent, out, factor, roi), "float64"), on.real(extent) - 1.0
        return _Coordinates(on, x, last, on.logical_or(on.less(x, on.const(0.0, "float64")), on.greater(x, last)))

    def nearest(self, how: Resampling) -> Any:
        """The indices of the nearest elements."""
        return self._index(_rounded(self.on, self.x, how.nearest))

    def tap(self, how: Resampling, offset: Any, shrink: Any) -> tuple[Any, Any]:
        """Indices and weights of the elements `offset` from those below the coordinates."""
        on = self.on
        base = on.floor(self.x)
        distance = on.abs((offset - (self.x - base)) * shrink)
        weight = on.clip(1.0 - distance, 0.0, 1.0) if how.mode == "linear" else _cubic(on, distance, how.cubic_coeff)
        position = base + offset
        if how.exclude_outside:
            off = on.logical_or(on.less(position, on.const(0.0, "float64")), on.greater(position, self.last))
            weight = on.where(off, on.const(0.0, "float64"), weight)
        return self._index(position), weight

    def _index(self, position: Any) -> Any:
        """Clamp whole positions to the axis."""
        on = self.on
        return on.cast(on.maximum(on.minimum(position, self.last), on.const(0.0, "float64")), "int64")


def _source(on: _Operators, coordinates: str, extent: Dim, out: Dim, scale: Any, roi: Region) -> Any:
    """Input coordinate of each output element, in the type of `scale`: [out]."""
    kind = str(scale.dtype)
    i, n, count = on.cast(on.counted(out), kind), on.cast(on.real(extent), kind), on.cast(on.real(out), kind)
    several = on.greater(on.size(out), on.const(1, "int64"))
    if coordinates == "asymmetric":
        return i / scale
    if coordinates == "align_corners":
        return on.where(several, i * (n - 1.0) / (_width(on, n, count, scale) - 1.0), on.const(0.0, kind))
    centres = (i + 0.5) / scale
    if coordinates == "tf_half_pixel_for_nn":
        return centres
    if coordinates == "tf_crop_and_resize":
        start, end = ((on.cast(r, kind) if isinstance(r, Expr) else on.const(r, kind)) * (n - 1.0) for r in roi)
        step = i * (end - start) / (_width(on, n, count, scale) - 1.0)
        return on.where(several, start + step, 0.5 * (start + end))
    if coordinates == "half_pixel_symmetric":
        offset = on.cast(n * 0.5 * (1.0 - count / (scale * n)), "float64")
        exact = (on.cast(i, "float64") + 0.5) / on.cast(scale, "float64")
        return on.cast(offset + exact - 0.5, kind)
    half_pixel = centres - 0.5
    return on.where(several, half_pixel, on.const(0.0, kind)) if coordinates == "pytorch_half_pixel" else half_pixel


def _width(on: _Operators, extent: Any, out: Any, scale: Any) -> Any:
    """extent * scale or, where that is a whole number except for rounding, the number of outputs."""
    width = scale * extent
    is_whole = on.less_equal(on.abs(width - on.floor(width + 0.5)), out * _ROUNDING)
    return on.where(is_whole, out, width)  # even if `out`, rounded down, is one less


def _rounded(on: _Operators, x: Any, mode: str) -> Any:
    if mode in ("floor", "ceil"):
        return on.floor(x) if mode == "floor" else on.ceil(x)
    half = 0.5 + _NEAR_HALF
    return on.ceil(x - half) if mode == "round_prefer_floor" else on.floor(x + half)


def _cubic(on: _Operators, d: Any, a: float) -> Any:
    """Keys' cubic convolution kernel (Keys 1981) with parameter `a`, for non-negative distances."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1.0
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    beyond = on.where(on.less(d, on.const(2.0, "float64")), far, on.const(0.0, "float64"))
    return on.where(on.less_equal(d, on.const(1.0, "float64")), near, beyond)
