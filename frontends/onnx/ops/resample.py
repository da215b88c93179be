"""Coordinates and weights of one-dimensional resampling, in numpy, for each axis of Resize.

An axis is resampled by taps: output i is the sum over t of weights[t, i] * x[indices[t, i]].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["NEAR_HALF", "ROUNDING", "Resampling", "Taps", "output_extent", "resample"]

ROUNDING = 2.0**-23
"""Relative difference of extent * scale from a whole number that rounding to float32, of both, makes at most."""

NEAR_HALF = 1e-6
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


@dataclass(frozen=True, slots=True)
class Taps:
    """`indices` int64[taps, out], `weights` float64[taps, out]; `outside` bool[out] marks results outside the input."""

    indices: np.ndarray
    weights: np.ndarray
    outside: np.ndarray


def output_extent(extent: int, scale: float) -> int:
    """The output extent for `scale`: floor(extent * scale) in float32, as onnxruntime and PyTorch compute it.

    So a scale that was computed as target / extent in float32 gives the target in nearly all cases.
    """
    return math.floor(np.float32(extent) * np.float32(scale))


def resample(how: Resampling, extent: int, out: int, scale: float, roi: tuple[float, float] = (0.0, 1.0)) -> Taps:
    """The taps that resample an axis of `extent` elements to `out`."""
    x = _source(how, extent, out, scale, roi)
    outside = (x < 0) | (x > extent - 1)
    if how.mode == "nearest":
        index = np.clip(_rounded(x, how.nearest), 0, extent - 1)
        return Taps(index[None].astype(np.int64), np.ones((1, out)), outside)
    shrink = min(scale, 1.0) if how.antialias else 1.0
    reach = 1 if how.mode == "linear" else 2
    first = math.floor(-reach / shrink) + 1
    offsets = np.arange(first, 2 - first)[:, None]
    base = np.floor(x)
    distance = (offsets - (x - base)) * shrink
    weights = _triangle(distance) if how.mode == "linear" else _cubic(distance, how.cubic_coeff)
    positions = base.astype(np.int64) + offsets
    if how.exclude_outside:
        weights = np.where((positions < 0) | (positions >= extent), 0.0, weights)
    if how.antialias or how.exclude_outside:
        weights = weights / weights.sum(axis=0)
    kept = np.any(weights != 0.0, axis=1)
    return Taps(np.clip(positions, 0, extent - 1)[kept], weights[kept], outside)


def _source(how: Resampling, extent: int, out: int, scale: float, roi: tuple[float, float]) -> np.ndarray:
    """Input coordinate of each output element: float64[out].

    Those of nearest elements are computed in float32, as onnxruntime and PyTorch do: 4 / float32(4 / 3) is 3 there, and
    rounded down in float64 it would be 2.
    """
    real = np.float32 if how.mode == "nearest" else np.float64
    return np.asarray(_coordinates(how.coordinates, real(extent), out, real(scale), roi), np.float64)


def _coordinates(
    coordinates: str, extent: np.floating, out: int, scale: np.floating, roi: tuple[float, float]
) -> np.ndarray:
    """Input coordinate of each output element, in the type of `scale`."""
    real = type(scale)
    i, half = np.arange(out, dtype=real), real(0.5)
    exact = scale * extent
    is_whole = abs(exact - np.rint(exact)) <= ROUNDING * out  # even if `out`, rounded down, is one less
    width = real(out) if is_whole else exact
    if coordinates == "asymmetric":
        return i / scale
    if coordinates == "align_corners":
        return i * (extent - 1) / (width - 1) if out > 1 else np.zeros(out)
    if coordinates == "pytorch_half_pixel":
        return (i + half) / scale - half if out > 1 else np.zeros(out)
    if coordinates == "tf_half_pixel_for_nn":
        return (i + half) / scale
    if coordinates == "tf_crop_and_resize":
        start, end = real(roi[0]) * (extent - 1), real(roi[1]) * (extent - 1)
        return start + i * (end - start) / (width - 1) if out > 1 else np.full(out, half * (start + end))
    if coordinates == "half_pixel_symmetric":
        offset = extent / 2 * (1 - out / exact)
        return (offset + (i.astype(np.float64) + 0.5) / np.float64(scale) - 0.5).astype(real)
    return (i + half) / scale - half


def _rounded(x: np.ndarray, mode: str) -> np.ndarray:
    if mode == "floor":
        return np.floor(x)
    if mode == "ceil":
        return np.ceil(x)
    return np.ceil(x - 0.5 - NEAR_HALF) if mode == "round_prefer_floor" else np.floor(x + 0.5 + NEAR_HALF)


def _triangle(distance: np.ndarray) -> np.ndarray:
    return np.clip(1.0 - np.abs(distance), 0.0, 1.0)


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel (Keys 1981) with parameter `a`."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
