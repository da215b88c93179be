"""Resize and Upsample: separable resampling, with taps computed at compile time for static sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import float_const, transposed
from relayc.frontends.onnx.ops.resample import (
    Filter,
    KnownTaps,
    Region,
    Repeated,
    Resampling,
    Strided,
    Taps,
    filter_of,
    known_taps,
    output_extent,
    real,
    repeated_positions,
    scaled,
    strided_positions,
    taps_of,
)
from relayc.frontends.onnx.registry import converter
from relayc.frontends.onnx.tensors import check_computed
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, const
from relayc.relay.op.common import at_least
from relayc.relay.sizes import add_sizes, dims_equal, floor_divide, is_at_least, product, smaller
from relayc.te.tir import Dim

MAX_TAPS = 8
"""Most taps that are unrolled; wider filters (antialiased reductions) are a matrix product or a loop."""

_COMPUTED_IN = ("float32", "float64")
"""Types in which weighted sums are computed; those of others, of all axes, in float32."""

_AnyTaps = KnownTaps | Taps | Filter

_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)


@converter("Upsample", since=1, until=10)
def upsample(node: OnnxNode) -> Expr:
    """Scales are attributes (before opset 9) or an input."""
    if node.opset < 7:
        scales = (1.0, 1.0, node.attr_float("height_scale"), node.attr_float("width_scale"))
    elif node.opset < 9:
        scales = node.attrs.get_floats("scales")
    else:
        return _by_input(node)
    if scales is None:
        raise node.error("no scales")
    return _legacy_resize(node, scales)


@converter("Resize", since=10)
def resize_10(node: OnnxNode) -> Expr:
    return _by_input(node)


def _by_input(node: OnnxNode) -> Expr:
    """Upsample or Resize with scales in input 1."""
    known = node.known_value(1)
    return _legacy_resize(node, None if known is None else known.reshape(-1).tolist())


def _legacy_resize(node: OnnxNode, known: Sequence[float] | None) -> Expr:
    """Resize by `known` scales, or by input 1, computed at run time."""
    mode = node.attr_choice("mode", ("nearest", "linear", "bilinear"), "nearest")
    how = Resampling("nearest" if mode == "nearest" else "linear", "asymmetric", "floor")
    target = _scaled_target(node, 1, known, None)
    x, _ = _resampled(node, how, target, {})
    return x


@converter("Resize", since=11)
def resize(node: OnnxNode) -> Expr:
    """All coordinate and interpolation modes."""
    how = _method(node)
    extrapolation = node.attr_float("extrapolation_value", 0.0)
    target = _target(node)
    roi = _roi(node, target.axes) if how.coordinates == "tf_crop_and_resize" else {}
    x, outside = _resampled(node, how, target, roi)
    return x if outside is None else op.where(outside, float_const(extrapolation, x), x)


@dataclass(frozen=True, slots=True)
class _Target:
    """Resized axes, their new extents, and the scales of the coordinates."""

    axes: Sequence[int]
    extents: Sequence[Dim]
    scales: Sequence[float | Expr]


def _resampled(
    node: OnnxNode, how: Resampling, target: _Target, roi: Mapping[int, Region]
) -> tuple[Expr, Expr | None]:
    """The input resampled axis by axis, and with a region of interest a mask of results outside the input."""
    shape = node.type(0).shape
    _check_extents(node, target)
    x, outside = node[0], None
    for axis, out, scale in zip(target.axes, target.extents, target.scales, strict=True):
        extent, region = shape[axis], roi.get(axis, (0.0, 1.0))
        if dims_equal(out, extent) and scale == 1.0 and not roi:
            continue
        taps: _AnyTaps
        start, end = region
        if (
            not isinstance(scale, Expr) and not isinstance(start, Expr) and not isinstance(end, Expr)
            and isinstance(extent, int) and isinstance(out, int)
        ):  # fmt: skip
            taps = known_taps(how, extent, out, scale, (start, end))
            off = Constant(taps.outside) if roi and bool(taps.outside.any()) else None
        else:
            if not is_at_least(extent, 1):
                some = smaller(out, 1)  # an empty result can be had of any extent
                node.check_equal(smaller(extent, some), some, "resizing an empty tensor")
            width = _width(node, how, scale)
            if isinstance(width, int) and width <= MAX_TAPS:
                taps = _taps(how, extent, out, scale, region)
            else:
                taps = filter_of(how, extent, out, scale, width, region)
            off = taps.outside if roi else None
        if how.mode != "nearest" and x.dtype.element not in _COMPUTED_IN:
            x = op.cast(x, "float32")
        x = _along(node, x, axis, taps, how)
        if off is not None:
            mask = op.reshape(off, [out if i == axis else 1 for i in range(len(shape))])
            outside = mask if outside is None else op.logical_or(outside, mask)
    return x if x.dtype == node[0].dtype else op.cast(x, node[0].dtype), outside


def _taps(
    how: Resampling, extent: Dim, out: Dim, scale: float | Expr, region: Region
) -> Taps:
    taps = taps_of(how, extent, out, scale, region)
    if isinstance(scale, Expr):
        return taps
    known: Sequence[Repeated | Strided] | None = None
    if scale > 1 and dims_equal(out, product((extent, int(scale)))):
        known = repeated_positions(how, scale)
    elif scale < 1 and dims_equal(out, floor_divide(extent, round(1 / scale))):
        known = strided_positions(how, scale)
    return taps if known is None or len(known) != len(taps.indices) else replace(taps, indices=known)


def _width(node: OnnxNode, how: Resampling, scale: float | Expr) -> Dim:
    """The filter's extent in input elements, which grows with the reduction when antialiasing."""
    if not isinstance(scale, Expr) or not how.is_stretched:
        return how.width(1.0 if isinstance(scale, Expr) else scale)
    half = op.ceil(how.reach / op.minimum(scale, const(1.0, "float64")))
    whole = op.cast(half, "int64") * 2
    return node.bind(op.reshape(whole, (1,)), "the width of the filter")[0]


def _method(node: OnnxNode) -> Resampling:
    nearest_modes = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    return Resampling(
        mode=node.attr_choice("mode", ("nearest", "linear", "cubic"), "nearest"),
        coordinates=node.attr_choice("coordinate_transformation_mode", _COORDINATES, "half_pixel"),
        nearest=node.attr_choice("nearest_mode", nearest_modes, "round_prefer_floor"),
        cubic_coeff=node.attr_float("cubic_coeff_a", -0.75),
        exclude_outside=node.attr_bool("exclude_outside", False),
        antialias=node.attr_bool("antialias", False),
    )


def _target(node: OnnxNode) -> _Target:
    shape = node.type(0).shape
    policy = node.attr_choice("keep_aspect_ratio_policy", ("stretch", "not_larger", "not_smaller"), "stretch")
    passed = node.attrs.get_ints("axes")
    scales_value = node.known_value(2)
    if (node.get(2) is not None and node.get(3) is None) or (scales_value is not None and scales_value.size):
        return _scaled_target(node, 2, None if scales_value is None else scales_value.reshape(-1).tolist(), passed)
    sizes = node.sizes(3, "the sizes", len(shape) if passed is None else len(passed))
    axes = _checked_axes(node, len(sizes), passed)
    if not all(at_least(size, 1) for size in sizes):
        raise node.error(f"the sizes are {list(sizes)}", expected="1 or more")
    if 0 in shape:
        raise node.unsupported("resizing an empty tensor")
    scales = [_ratio(size, shape[axis]) for axis, size in zip(axes, sizes, strict=True)]
    if policy == "stretch":
        return _Target(axes, sizes, scales)
    numbers = [s for s in scales if not isinstance(s, Expr)]
    if len(numbers) == len(scales) and all(isinstance(shape[axis], int) for axis in axes):
        common = min(numbers) if policy == "not_larger" else max(numbers)
        rounded = [math.floor(common * shape[axis] + 0.5) for axis in axes]  # type: ignore[operator]
        return _Target(axes, rounded, [common] * len(axes))
    parts = [s if isinstance(s, Expr) else const(s, "float64") for s in scales]
    shared = reduce(op.minimum if policy == "not_larger" else op.maximum, parts)
    exact = op.multiply(op.cast(op.size_tensor([shape[axis] for axis in axes]), "float64"), shared)
    whole = op.cast(op.floor(op.add(exact, const(0.5, "float64"))), "int64")
    return _Target(axes, node.bind(whole, "the sizes"), [shared] * len(axes))


def _ratio(size: Dim, extent: Dim) -> float | Expr:
    if dims_equal(size, extent):
        return 1.0
    both = isinstance(size, int) and isinstance(extent, int)
    return size / extent if both else op.divide(real(size), real(extent))  # type: ignore[operator]


def _scaled_target(
    node: OnnxNode, index: int, known: Sequence[float] | None, passed: Sequence[int] | None
) -> _Target:
    """The target for `known` scales, or those computed by input `index`."""
    shape = node.type(0).shape
    if known is None:
        count = len(shape) if passed is None else len(passed)
        node.count(index, count, "the scales")
        axes = _checked_axes(node, count, passed)
        factors = op.cast(node[index], "float32")
        scales = [op.take(factors, const(k, "int64"), axis=0, mode="clip") for k in range(count)]
        whole = op.stack([scaled(shape[axis], scale) for axis, scale in zip(axes, scales, strict=True)], axis=0)
        return _Target(axes, node.bind(whole, "the sizes"), [op.cast(scale, "float64") for scale in scales])
    axes = _checked_axes(node, len(known), passed)
    _check_scales(node, known)
    return _Target(axes, [_scaled(node, shape[axis], s) for axis, s in zip(axes, known, strict=True)], known)


_EXACT = 1 << 10
"""Largest numerator and denominator of a scale for which extents are symbolic expressions, not computed ones."""


def _scaled(node: OnnxNode, extent: Dim, scale: float) -> Dim:
    """The `output_extent`, possibly symbolic."""
    if isinstance(extent, int):
        return output_extent(extent, scale)
    exact = Fraction(scale)
    if max(exact.numerator, exact.denominator) <= _EXACT:
        return floor_divide(product((extent, exact.numerator)), exact.denominator)
    return node.bind(op.reshape(scaled(extent, const(scale, "float32")), (1,)), "the size")[0]


def _checked_axes(node: OnnxNode, count: int, passed: Sequence[int] | None) -> tuple[int, ...]:
    rank = node.rank(0)
    axes = tuple(range(rank)) if passed is None else node.axes(passed, rank)
    if len(axes) != count:
        raise node.error(f"{count} scales or sizes for {len(axes)} axes", expected="one for each axis")
    return axes


def _check_scales(node: OnnxNode, scales: Sequence[float]) -> None:
    if not all(math.isfinite(s) and 0.0 < s < 2**31 for s in scales):
        raise node.error(f"the scales are {list(scales)}", expected="finite numbers above 0")


def _check_extents(node: OnnxNode, target: _Target) -> None:
    """Check that the result is not empty and that the weight tables are not too large."""
    if 0 in node.type(0).shape:
        raise node.unsupported("resizing an empty tensor")
    if not all(at_least(extent, 1) for extent in target.extents):
        raise node.error(f"the result has extents {list(target.extents)}", expected="1 or more")
    for extent, scale in zip(target.extents, target.scales, strict=True):
        if not isinstance(scale, Expr):
            widest = 4 + math.ceil(4 / min(scale, 1.0))  # a cubic filter stretched by 1 / scale
            check_computed((widest, extent if isinstance(extent, int) else 1), node.where)


def _roi(node: OnnxNode, axes: Sequence[int]) -> Mapping[int, Region]:
    """Start and end of the region of interest per axis, as fractions of the input: numbers, or scalars of a run."""
    number, known = 2 * len(axes), node.known_value(1)
    if known is None:
        node.count(1, number, "the region of interest")
        bounds: list[float | Expr] = [op.take(node[1], const(i, "int64"), 0) for i in range(number)]
    else:
        bounds = [float(bound) for bound in known.reshape(-1)]
    if len(bounds) != number:
        raise node.error(f"a region of {len(bounds)} numbers", expected=f"{number} numbers")
    return {axis: (bounds[i], bounds[i + len(axes)]) for i, axis in enumerate(axes)}


def _along(node: OnnxNode, x: Expr, axis: int, taps: _AnyTaps, how: Resampling) -> Expr:
    """`x` resampled along one axis."""
    if isinstance(taps, Filter):
        rank = len(x.shape)
        shape = (*[1] * axis, *taps.weights.shape, *[1] * (rank - axis - 1))
        covered = op.take(x, taps.indices, axis=axis, mode="fast")
        return op.sum(op.multiply(covered, op.cast(op.reshape(taps.weights, shape), x.dtype)), axis=(axis + 1,))
    if how.mode == "nearest":
        return _taken(x, taps.indices[0], axis)
    extent = x.shape[axis]
    if isinstance(taps, KnownTaps) and isinstance(extent, int) and len(taps.indices) > MAX_TAPS:
        return _by_matrix(node, x, axis, taps, extent)
    return _by_taps(x, axis, taps)


def _as_expr(values: np.ndarray | Expr) -> Expr:
    return values if isinstance(values, Expr) else Constant(values)


def _taken(x: Expr, indices: np.ndarray | Expr | Repeated | Strided, axis: int) -> Expr:
    """Gather elements of `x` along an axis; regular patterns become repeats and strided slices."""
    if isinstance(indices, Strided):
        last = product((floor_divide(x.shape[axis], indices.step), indices.step))
        return op.strided_slice(x, (indices.first,), (last,), (indices.step,), axes=(axis,))
    if not isinstance(indices, Repeated):
        return op.take(x, _as_expr(indices), axis=axis, mode="fast")
    times, first, out = indices.times, indices.first, product((x.shape[axis], indices.times))
    before, after = max(-(first // times), 0), max(-(-first // times), 0)
    if before or after:
        widths = [(before, after) if a == axis else (0, 0) for a in range(len(x.shape))]
        x = op.nn.pad(x, widths, 0, "edge")
    whole, start = op.repeat(x, times, axis), first + before * times
    return op.strided_slice(whole, (start,), (add_sizes(out, start),), (1,), axes=(axis,)) if before or after else whole


def _by_taps(x: Expr, axis: int, taps: KnownTaps | Taps) -> Expr:
    total: Expr | None = None
    for indices, weights in zip(taps.indices, taps.weights, strict=True):
        column = _as_expr(weights)
        column = op.reshape(column, [column.shape[0] if i == axis else 1 for i in range(len(x.shape))])
        term = op.multiply(_taken(x, indices, axis), op.cast(column, x.dtype))
        total = term if total is None else op.add(total, term)
    assert total is not None, "every output of a resampling has a tap"
    return total


def _by_matrix(node: OnnxNode, x: Expr, axis: int, taps: KnownTaps, extent: int) -> Expr:
    """Resample as a product with the weight matrix [out, extent]."""
    out = taps.weights.shape[1]
    check_computed((out, extent), node.where)
    matrix = np.zeros((out, extent))
    for indices, weights in zip(taps.indices, taps.weights, strict=True):
        np.add.at(matrix, (np.arange(out), indices), weights)
    rank = len(x.shape)
    order = (*[i for i in range(rank) if i != axis], axis)
    moved = transposed(x, order)
    lead = moved.shape[:-1]
    rows = op.nn.dense(op.reshape(moved, (product(lead), extent)), Constant(matrix.astype(str(x.dtype))))
    return transposed(op.reshape(rows, (*lead, out)), tuple(int(i) for i in np.argsort(order)))
