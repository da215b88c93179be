"""Sampling images at computed positions: GridSample, AffineGrid, and crops and paddings to a size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import float_const, reshape_to, transposed
from frontends.onnx.registry import converter
from frontends.onnx.tensors import check_computed
from relay import op
from relay.expr import Constant, Expr

__all__ = ["Axis", "sampled"]

CUBIC = -0.75
"""Parameter of the cubic kernel."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis being sampled: its extent, and what positions outside of it mean."""

    extent: int
    padding: str
    aligned: bool

    def position(self, grid: Expr) -> Expr:
        """Positions in pixels from coordinates of -1 .. 1."""
        one = float_const(1.0, grid)
        if self.aligned:
            return op.multiply(op.add(grid, one), float_const((self.extent - 1) / 2, grid))
        return op.subtract(op.multiply(op.add(grid, one), float_const(self.extent / 2, grid)), float_const(0.5, grid))

    def inside(self, x: Expr) -> Expr:
        """Positions brought into the image by the padding mode; zeros padding leaves them."""
        if self.padding == "border":
            return op.clip(x, 0.0, float(self.extent - 1))
        return self._reflected(x) if self.padding == "reflection" else x

    def _reflected(self, x: Expr) -> Expr:
        low, high = (0.0, self.extent - 1.0) if self.aligned else (-0.5, self.extent - 0.5)
        span = high - low
        if span == 0.0:
            return op.multiply(x, float_const(0.0, x))
        start, period = float_const(low, x), float_const(2 * span, x)
        walked = op.floor_mod(op.subtract(x, start), period)
        return op.add(start, op.minimum(walked, op.subtract(period, walked)))

    def pixel(self, x: Expr) -> tuple[Expr, Expr | None]:
        """Whole positions as an index that is inside, and where they were inside (None: everywhere)."""
        x = self.inside(x)
        last = float(self.extent - 1)
        index = op.cast(op.clip(x, 0.0, last), "int32")
        if self.padding != "zeros":
            return index, None
        return index, op.logical_and(op.greater_equal(x, float_const(0.0, x)), op.less_equal(x, float_const(last, x)))


@converter("GridSample", since=16)
def grid_sample(node: OnnxNode) -> Expr:
    """X [N, C, spatial..] at the positions of the grid [N, out.., axes], whose last axis names the innermost first."""
    mode = node.attr_choice("mode", ("linear", "nearest", "cubic", "bilinear", "bicubic"), "linear").removeprefix("bi")
    padding = node.attr_choice("padding_mode", ("zeros", "border", "reflection"), "zeros")
    shape, grid = node.shape(0), node.shape(1)
    rank = len(shape) - 2
    if rank < 1 or len(grid) != len(shape) or grid[-1] != rank or grid[0] != shape[0] or 0 in shape:
        raise node.error(f"data of shape {list(shape)}, a grid of shape {list(grid)}")
    if rank > 3:
        raise node.unsupported(f"{rank} spatial axes", expected="1 to 3")
    axes = [Axis(extent, padding, node.attr_bool("align_corners", False)) for extent in shape[2:]]
    count = math.prod(grid[1:-1])
    positions = op.cast(reshape_to(node[1], (grid[0], count, rank)), str(node.dtype(0)))
    pixels = [axis.position(_coordinate(positions, rank - 1 - i)) for i, axis in enumerate(axes)]
    flat = reshape_to(node[0], (*shape[:2], math.prod(shape[2:])))
    return reshape_to(sampled(flat, axes, pixels, mode), (*shape[:2], *grid[1:-1]))


def sampled(flat: Expr, axes: Sequence[Axis], pixels: Sequence[Expr], mode: str) -> Expr:
    """Images [N, C, all pixels] at positions [N, count], in pixels along each axis: [N, C, count].

    `mode`: "nearest", "linear" or "cubic".
    """
    rank, count = len(axes), pixels[0].tensor_type.static_shape[1]
    index: Expr | None = None
    weight: Expr | None = None
    valid: Expr | None = None
    for at, (axis, x) in enumerate(zip(axes, pixels, strict=True)):
        taps, weights = _taps(axis, x, mode)
        pixel, inside = axis.pixel(taps)
        size = taps.tensor_type.static_shape[1]
        shape = (taps.tensor_type.static_shape[0], *[size if k == at else 1 for k in range(rank)], count)
        pixel = reshape_to(pixel, shape)
        extent = Constant(np.array(axis.extent, np.int32))
        index = pixel if index is None else op.add(op.multiply(index, extent), pixel)
        weight = _combined(op.multiply, weight, None if weights is None else reshape_to(weights, shape))
        valid = _combined(op.logical_and, valid, None if inside is None else reshape_to(inside, shape))
    assert index is not None, "an image has a spatial axis"
    batch, channels, _ = flat.tensor_type.static_shape
    value = op.take(flat, reshape_to(index, (batch, -1)), axis=2, batch_dims=1, mode="fast")
    value = reshape_to(value, (batch, channels, *index.tensor_type.static_shape[1:]))
    if weight is not None:
        value = op.multiply(value, op.expand_dims(weight, 1))
    if valid is not None:
        value = op.where(op.expand_dims(valid, 1), value, float_const(0.0, value))
    return op.sum(value, axis=tuple(range(2, 2 + rank)))


def _combined(function: Callable[[Expr, Expr], Expr], a: Expr | None, b: Expr | None) -> Expr | None:
    return b if a is None else a if b is None else function(a, b)


def _coordinate(positions: Expr, index: int) -> Expr:
    """[N, count]: one of the coordinates."""
    return op.squeeze(op.strided_slice(positions, (index,), (index + 1,), axes=(2,)), axis=(2,))


def _taps(axis: Axis, x: Expr, mode: str) -> tuple[Expr, Expr | None]:
    """Whole positions [N, taps, count] along an axis around positions [N, count], and their weights (None: 1)."""
    if mode == "nearest":
        return op.expand_dims(op.round(x), 1), None
    x = axis.inside(x)
    base = op.floor(x)
    offsets = Constant(np.array((0, 1) if mode == "linear" else (-1, 0, 1, 2), str(x.dtype)).reshape(1, -1, 1))
    weight = _linear_weight if mode == "linear" else _cubic_weight
    distance = op.abs(op.subtract(op.expand_dims(op.subtract(x, base), 1), offsets))
    return op.add(op.expand_dims(base, 1), offsets), weight(distance)


def _linear_weight(distance: Expr) -> Expr:
    return op.subtract(float_const(1.0, distance), distance)


def _cubic_weight(distance: Expr) -> Expr:
    """Keys' kernel for a distance of 0 to 2."""

    def polynomial(*coefficients: float) -> Expr:
        value: Expr = float_const(coefficients[0], distance)
        for coefficient in coefficients[1:]:
            value = op.add(op.multiply(value, distance), float_const(coefficient, distance))
        return value

    near = polynomial(CUBIC + 2, -(CUBIC + 3), 0.0, 1.0)
    far = polynomial(CUBIC, -5 * CUBIC, 8 * CUBIC, -4 * CUBIC)
    return op.where(op.less_equal(distance, float_const(1.0, distance)), near, far)


@converter("AffineGrid", since=20)
def affine_grid(node: OnnxNode) -> Expr:
    """The grid for GridSample that maps outputs of a size through theta [N, axes, axes + 1]."""
    size = node.constant_ints(1, "the size")
    theta = node.shape(0)
    spatial, rank = size[2:], len(size) - 2
    if rank not in (2, 3) or theta != (size[0], rank, rank + 1):
        raise node.error(f"theta of shape {list(theta)} for size {list(size)}")
    check_computed((*spatial, rank + 1), node.where)
    aligned = node.attr_bool("align_corners", False)
    lines = [_ticks(extent, aligned) for extent in spatial]
    mesh = np.meshgrid(*lines, indexing="ij")[::-1]  # innermost first, as in the grid
    points = np.stack([*mesh, np.ones(spatial)], axis=-1).reshape(-1, rank + 1)
    base = Constant(np.broadcast_to(points.astype(str(node.dtype(0))), (size[0], *points.shape)))
    return reshape_to(op.nn.matmul(base, transposed(node[0], (0, 2, 1))), (size[0], *spatial, rank))


def _ticks(extent: int, aligned: bool) -> np.ndarray:
    """Centres (or corners, when aligned) of `extent` pixels over -1 .. 1."""
    if aligned:
        return np.linspace(-1.0, 1.0, extent)
    return (2 * np.arange(extent) + 1) / extent - 1


@converter("CenterCropPad", since=18)
def center_crop_pad(node: OnnxNode) -> Expr:
    """Axes cropped or padded with zeros to a size, equally on both sides."""
    sizes, rank = node.constant_ints(1, "the shape"), node.rank(0)
    given = node.attrs.get_ints("axes")
    axes = tuple(range(rank)) if given is None else node.axes(given, rank)
    if len(sizes) != len(axes) or min(sizes, default=0) < 0:
        raise node.error(f"sizes {list(sizes)} for {len(axes)} axes")
    x, widths = node[0], [(0, 0)] * rank
    for axis, size in zip(axes, sizes, strict=True):
        extent = node.shape(0)[axis]
        if size < extent:
            start = (extent - size) // 2
            x = op.strided_slice(x, (start,), (start + size,), axes=(axis,))
        else:
            before = (size - extent) // 2
            widths[axis] = (before, size - extent - before)
    return x if not any(before or after for before, after in widths) else op.nn.pad(x, widths)
