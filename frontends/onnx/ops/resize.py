"""Resize and Upsample: separable resampling with taps computed when compiling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import float_const, transposed
from frontends.onnx.ops.resample import Resampling, Taps, output_extent, resample
from frontends.onnx.registry import converter
from frontends.onnx.tensors import check_computed
from relay import op
from relay.expr import Constant, Expr

MAX_TAPS = 8
"""Wider filters (strong reductions with antialiasing) are applied as a matrix."""

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
    """Scales are attributes per axis of the image (opset 1), one attribute (7), an input (9)."""
    if node.opset < 7:
        scales = (1.0, 1.0, node.attr_float("height_scale"), node.attr_float("width_scale"))
    elif node.opset < 9:
        scales = node.attrs.get_floats("scales")
    else:
        scales = tuple(node.constant(1, "the scales").reshape(-1).tolist())
    if scales is None:
        raise node.error("no scales")
    return _legacy_resize(node, scales)


@converter("Resize", since=10)
def resize_10(node: OnnxNode) -> Expr:
    return _legacy_resize(node, node.constant(1, "the scales").reshape(-1).tolist())


def _legacy_resize(node: OnnxNode, scales: Sequence[float]) -> Expr:
    mode = node.attr_choice("mode", ("nearest", "linear", "bilinear"), "nearest")
    how = Resampling("nearest" if mode == "nearest" else "linear", "asymmetric", "floor")
    axes = _checked_axes(node, len(scales), None)
    _check_scales(node, scales)
    extents = [output_extent(node.shape(0)[axis], scale) for axis, scale in zip(axes, scales, strict=True)]
    _check_extents(node, extents, scales)
    x = node[0]
    for axis, out, scale in zip(axes, extents, scales, strict=True):
        x = _along(node, x, axis, resample(how, node.shape(0)[axis], out, scale), out, how, scale)
    return x


@converter("Resize", since=11)
def resize(node: OnnxNode) -> Expr:
    """`scales` or `sizes` per axis; see the operator's page for the coordinate modes."""
    how = _method(node)
    extrapolation = node.attr_float("extrapolation_value", 0.0)
    axes, extents, scales = _target(node)
    roi = _roi(node, axes) if how.coordinates == "tf_crop_and_resize" else {}
    shape = node.shape(0)
    _check_extents(node, extents, scales)
    x, outside = node[0], None
    for axis, out, scale in zip(axes, extents, scales, strict=True):
        taps = resample(how, shape[axis], out, scale, roi.get(axis, (0.0, 1.0)))
        x = _along(node, x, axis, taps, out, how, scale)
        if roi and bool(taps.outside.any()):
            mask = taps.outside.reshape([-1 if i == axis else 1 for i in range(len(shape))])
            outside = mask if outside is None else outside | mask
    if outside is not None:
        x = op.where(Constant(outside), float_const(extrapolation, x), x)
    return x


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


def _target(node: OnnxNode) -> tuple[tuple[int, ...], list[int], list[float]]:
    """Axes, their new extents, and the scales that map coordinates."""
    shape = node.shape(0)
    policy = node.attr_choice("keep_aspect_ratio_policy", ("stretch", "not_larger", "not_smaller"), "stretch")
    given = node.attrs.get_ints("axes")
    scales_value = node.constant_or_none(2, "the scales")
    if scales_value is not None and scales_value.size:
        scales = [float(s) for s in scales_value.reshape(-1)]
        axes = _checked_axes(node, len(scales), given)
        _check_scales(node, scales)
        return axes, [output_extent(shape[axis], scale) for axis, scale in zip(axes, scales, strict=True)], scales
    sizes = node.constant_ints(3, "the sizes")
    axes = _checked_axes(node, len(sizes), given)
    if min(sizes, default=1) < 1:
        raise node.error(f"the sizes are {list(sizes)}", expected="1 or more")
    if 0 in shape:
        raise node.unsupported("resizing an empty tensor")
    scales = [size / shape[axis] for axis, size in zip(axes, sizes, strict=True)]
    if policy != "stretch":
        common = min(scales) if policy == "not_larger" else max(scales)
        scales = [common] * len(axes)
        sizes = tuple(math.floor(common * shape[axis] + 0.5) for axis in axes)
    return axes, list(sizes), scales


def _checked_axes(node: OnnxNode, count: int, given: Sequence[int] | None) -> tuple[int, ...]:
    rank = node.rank(0)
    axes = tuple(range(rank)) if given is None else node.axes(given, rank)
    if len(axes) != count:
        raise node.error(f"{count} scales or sizes for {len(axes)} axes", expected="one for each axis")
    return axes


def _check_scales(node: OnnxNode, scales: Sequence[float]) -> None:
    if not all(math.isfinite(s) and 0.0 < s < 2**31 for s in scales):
        raise node.error(f"the scales are {list(scales)}", expected="finite numbers above 0")


def _check_extents(node: OnnxNode, extents: Sequence[int], scales: Sequence[float]) -> None:
    """The extents must be of a tensor that is not empty, and the tables of weights of a size that can be computed."""
    if 0 in node.shape(0):
        raise node.unsupported("resizing an empty tensor")
    if min(extents, default=1) < 1:
        raise node.error(f"the result has extents {list(extents)}", expected="1 or more")
    for extent, scale in zip(extents, scales, strict=True):
        widest = 4 + math.ceil(4 / min(scale, 1.0))  # a cubic filter stretched by 1 / scale
        check_computed((widest, extent), node.where)


def _roi(node: OnnxNode, axes: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Start and end of the region per axis, as fractions of the input."""
    value = node.constant(1, "the region of interest").reshape(-1)
    if value.size != 2 * len(axes):
        raise node.error(f"a region of {value.size} numbers", expected=f"{2 * len(axes)} numbers")
    return {axis: (float(value[i]), float(value[i + len(axes)])) for i, axis in enumerate(axes)}


def _along(node: OnnxNode, x: Expr, axis: int, taps: Taps, out: int, how: Resampling, scale: float) -> Expr:
    """`x` resampled along one axis; nothing happens where input and output coincide."""
    extent = x.tensor_type.static_shape[axis]
    if out == extent and scale == 1.0 and how.coordinates != "tf_crop_and_resize":
        return x
    if how.mode == "nearest":
        return op.take(x, Constant(taps.indices[0]), axis=axis, mode="fast")
    if not x.dtype.is_float:
        return op.cast(_along(node, op.cast(x, "float32"), axis, taps, out, how, scale), x.dtype)
    if len(taps.indices) > MAX_TAPS:
        return _by_matrix(node, x, axis, taps, extent)
    return _by_taps(x, axis, taps)


def _by_taps(x: Expr, axis: int, taps: Taps) -> Expr:
    shape = [-1 if i == axis else 1 for i in range(len(x.shape))]
    total: Expr | None = None
    for indices, weights in zip(taps.indices, taps.weights, strict=True):
        factor = Constant(weights.reshape(shape).astype(str(x.dtype)))
        term = op.multiply(op.take(x, Constant(indices), axis=axis, mode="fast"), factor)
        total = term if total is None else op.add(total, term)
    assert total is not None, "every output of a resampling has a tap"
    return total


def _by_matrix(node: OnnxNode, x: Expr, axis: int, taps: Taps, extent: int) -> Expr:
    """The same as a product with the matrix of weights [out, extent]."""
    out = taps.weights.shape[1]
    check_computed((out, extent), node.where)
    matrix = np.zeros((out, extent))
    for indices, weights in zip(taps.indices, taps.weights, strict=True):
        np.add.at(matrix, (np.arange(out), indices), weights)
    rank = len(x.shape)
    order = (*[i for i in range(rank) if i != axis], axis)
    moved = transposed(x, order)
    lead = moved.tensor_type.static_shape[:-1]
    product = op.nn.dense(op.reshape(moved, (math.prod(lead), extent)), Constant(matrix.astype(str(x.dtype))))
    return transposed(op.reshape(product, (*lead, out)), tuple(int(i) for i in np.argsort(order)))
