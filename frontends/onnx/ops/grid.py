"""Image sampling: GridSample, AffineGrid, CenterCropPad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import bordered, counted, float_const, reshape_to, transposed
from relayc.frontends.onnx.registry import converter
from relayc.frontends.onnx.tensors import check_computed
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, const
from relayc.relay.op.common import at_least
from relayc.relay.sizes import add_sizes, floor_divide, is_at_least, larger, product
from relayc.relay.type import dims_match, shapes_match
from relayc.te.tir import Dim

__all__ = ["Axis", "Points", "sample_points", "sampled"]

CUBIC = -0.75
"""Parameter a of the cubic convolution kernel."""
_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
"""Taps per axis by interpolation mode."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One sampled spatial axis: its extent and padding mode."""

    extent: Dim
    padding: str
    aligned: bool

    def _number(self, like: Expr, plus: float = 0.0) -> Expr:
        """extent + plus, as a scalar of the type of `like`."""
        if isinstance(self.extent, int):
            return float_const(self.extent + plus, like)
        return op.add(op.cast(op.size_tensor((self.extent,), ()), like.dtype), float_const(plus, like))

    def position(self, grid: Expr) -> Expr:
        """Convert normalised coordinates -1 .. 1 to pixels."""
        one, half = float_const(1.0, grid), float_const(0.5, grid)
        if self.aligned:
            return op.multiply(op.add(grid, one), op.multiply(self._number(grid, -1.0), half))
        return op.subtract(op.multiply(op.add(grid, one), op.multiply(self._number(grid), half)), half)

    def inside(self, x: Expr) -> Expr:
        """Map positions into the image as the padding mode says; zero padding leaves them."""
        if self.padding == "border":
            return self._clipped(x)
        return self._reflected(x) if self.padding == "reflection" else x

    def _clipped(self, x: Expr) -> Expr:
        return op.maximum(op.minimum(x, self._number(x, -1.0)), float_const(0.0, x))

    def _reflected(self, x: Expr) -> Expr:
        low = 0.0 if self.aligned else -0.5
        zero, start = float_const(0.0, x), float_const(low, x)
        span = self._number(x, -1.0 if self.aligned else 0.0)
        walked = op.floor_mod(op.subtract(x, start), op.multiply(float_const(2.0, x), span))
        reflected = op.subtract(op.add(start, span), op.abs(op.subtract(walked, span)))
        if isinstance(self.extent, int) and not (self.aligned and self.extent == 1):
            return reflected
        return op.where(op.equal(span, zero), zero, reflected)

    def pixel(self, x: Expr) -> tuple[Expr, Expr | None]:
        """Whole positions as valid indices, and a mask of those that were inside (None: all)."""
        x = self.inside(x)
        index = op.cast(self._clipped(x), "int32")
        if self.padding != "zeros":
            return index, None
        in_front = op.less_equal(x, self._number(x, -1.0))
        return index, op.logical_and(op.greater_equal(x, float_const(0.0, x)), in_front)


@converter("GridSample", since=16)
def grid_sample(node: OnnxNode) -> Expr:
    """X [N, C, spatial..] sampled at grid [N, out.., axes], innermost axis first."""
    mode = node.attr_choice("mode", ("linear", "nearest", "cubic", "bilinear", "bicubic"), "linear").removeprefix("bi")
    padding = node.attr_choice("padding_mode", ("zeros", "border", "reflection"), "zeros")
    shape, grid = node.type(0).shape, node.type(1).shape
    rank = len(shape) - 2
    fits = rank >= 1 and len(grid) == len(shape) and dims_match(grid[-1], rank) and dims_match(grid[0], shape[0])
    if not fits or 0 in shape:
        raise node.error(f"data {node.type(0)}, a grid {node.type(1)}")
    if rank > 3:
        raise node.unsupported(f"{rank} spatial axes", expected="1 to 3")
    axes = [Axis(extent, padding, node.attr_bool("align_corners", False)) for extent in shape[2:]]
    count = product(grid[1:-1])
    positions = op.cast(reshape_to(node[1], (grid[0], count, rank)), str(node.dtype(0)))
    pixels = [axis.position(_coordinate(positions, rank - 1 - i)) for i, axis in enumerate(axes)]
    flat = reshape_to(node[0], (*shape[:2], product(shape[2:])))
    return reshape_to(sampled(flat, axes, pixels, mode), (*shape[:2], *grid[1:-1]))


def sampled(flat: Expr, axes: Sequence[Axis], pixels: Sequence[Expr], mode: str) -> Expr:
    """Images [N, C, all pixels] at positions [N, count], in pixels along each axis: [N, C, count].

    `mode`: "nearest", "linear" or "cubic". For several taps and many channels the image is transposed to channels last,
    so that vector loads are contiguous.
    """
    points = sample_points(axes, pixels, mode)
    channels = flat.shape[1]
    if mode == "nearest" or (isinstance(channels, int) and channels < _MANY_CHANNELS):
        return op.vision.weighted_pixels(flat, points.marked(), points.weights, channels_last=False)
    rows = transposed(flat, (0, 2, 1))
    return transposed(op.vision.weighted_pixels(rows, points.marked(), points.weights), (0, 2, 1))


_MANY_CHANNELS = 8
"""Channels from which on channels-last sampling pays off: the lanes of a vector."""


@dataclass(frozen=True, slots=True)
class Points:
    """Interpolation points: `pixels` around each result [N, taps, count], their `weights` (None: a single tap of weight
    1), and a mask of those inside the image (None: all)."""

    pixels: Expr
    weights: Expr | None
    valid: Expr | None

    def marked(self) -> Expr:
        """The pixel indices, -1 for those outside."""
        return self.pixels if self.valid is None else op.where(self.valid, self.pixels, const(-1, "int32"))


def sample_points(axes: Sequence[Axis], pixels: Sequence[Expr], mode: str) -> Points:
    """The pixels around positions [N, count] along each axis. `mode`: "nearest", "linear" or "cubic"."""
    rank, (batch, count) = len(axes), pixels[0].shape
    index: Expr | None = None
    weight: Expr | None = None
    valid: Expr | None = None
    taps = 1
    for at, (axis, x) in enumerate(zip(axes, pixels, strict=True)):
        places, weights = _taps(axis, x, mode)
        pixel, inside = axis.pixel(places)
        size = _TAPS[mode]
        shape = (batch, *[size if k == at else 1 for k in range(rank)], count)
        taps *= size
        pixel = reshape_to(pixel, shape)
        extent = op.size_tensor((axis.extent,), (), "int32")
        index = pixel if index is None else op.add(op.multiply(index, extent), pixel)
        weight = _combined(op.multiply, weight, None if weights is None else reshape_to(weights, shape))
        valid = _combined(op.logical_and, valid, None if inside is None else reshape_to(inside, shape))
    assert index is not None, "an image has a spatial axis"

    def flat(x: Expr | None) -> Expr | None:
        return None if x is None else reshape_to(x, (batch, taps, count))

    return Points(reshape_to(index, (batch, taps, count)), flat(weight), flat(valid))


def _combined(function: Callable[[Expr, Expr], Expr], a: Expr | None, b: Expr | None) -> Expr | None:
    return b if a is None else a if b is None else function(a, b)


def _coordinate(positions: Expr, index: int) -> Expr:
    """One of the coordinates: [N, count]."""
    return op.squeeze(op.strided_slice(positions, (index,), (index + 1,), axes=(2,)), axis=(2,))


def _taps(axis: Axis, x: Expr, mode: str) -> tuple[Expr, Expr | None]:
    """Tap positions [N, taps, count] along an axis for positions [N, count], and their weights (None: 1)."""
    if mode == "nearest":
        return op.expand_dims(op.round(x), 1), None
    if mode == "linear":
        x = axis.inside(x)  # of cubic taps, the fraction is that of the position outside; each tap is moved inside
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
    """GridSample's grid for affine maps theta [N, axes, axes + 1]."""
    size, theta = node.sizes(1, "the size"), node.type(0)
    spatial, rank = size[2:], len(size) - 2
    if rank not in (2, 3) or not shapes_match(theta.shape, (size[0], rank, rank + 1)):
        raise node.error(f"theta {theta} for size {list(size)}")
    if all(isinstance(d, int) for d in spatial):
        check_computed((*[d for d in spatial if isinstance(d, int)], rank + 1), node.where)
    aligned = node.attr_bool("align_corners", False)
    lines: list[Expr] = [op.ones((1,) * rank, str(theta.dtype))]
    for axis, extent in enumerate(spatial):
        shape = [extent if a == axis else 1 for a in range(rank)]
        lines.insert(0, op.cast(op.reshape(_ticks(extent, aligned), shape), theta.dtype))  # innermost first
    count = product(spatial)
    mesh = [op.reshape(op.broadcast_to(line, spatial), (1, count, 1)) for line in lines]
    points = op.broadcast_to(op.concatenate(mesh, axis=2), (size[0], count, rank + 1))
    return reshape_to(op.nn.matmul(points, transposed(node[0], (0, 2, 1))), (size[0], *spatial, rank))


def _ticks(extent: Dim, aligned: bool) -> Expr:
    """Pixel centres (or corners, when aligned) of `extent` pixels over -1 .. 1, in float64."""
    at, two, one = op.cast(counted(extent), "float64"), const(2.0, "float64"), const(1.0, "float64")
    number = op.cast(op.size_tensor((extent,), ()), "float64")
    if not aligned:
        return op.subtract(op.divide(op.add(op.multiply(two, at), one), number), one)
    steps = op.maximum(op.subtract(number, one), one)  # a single corner is the first
    return op.subtract(op.divide(op.multiply(two, at), steps), one)


@converter("CenterCropPad", since=18)
def center_crop_pad(node: OnnxNode) -> Expr:
    """Symmetric crop or zero padding to a size."""
    rank, passed = node.rank(0), node.attrs.get_ints("axes")
    axes = tuple(range(rank)) if passed is None else node.axes(passed, rank)
    sizes = node.sizes(1, "the shape", len(axes))
    if len(sizes) != len(axes) or not all(at_least(size, 0) for size in sizes):
        raise node.error(f"sizes {list(sizes)} for {len(axes)} axes")
    x = node[0]
    for axis, size in zip(axes, sizes, strict=True):
        excess = add_sizes(x.shape[axis], product((-1, size)))
        if not is_at_least(0, excess):
            start = floor_divide(larger(excess, 0), 2)
            x = op.strided_slice(x, (start,), (add_sizes(start, size),), axes=(axis,))
        missing = larger(product((-1, excess)), 0)
        before = floor_divide(missing, 2)
        x = bordered(x, axis, before, add_sizes(missing, product((-1, before))))
    return x
