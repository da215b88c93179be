"""Winograd's minimal filtering for convolutions: fewer multiplications at the cost of additions.

F(m, r) computes m outputs of a filter of r taps from m + r - 1 inputs with as many multiplications instead of m * r;
nested, F(m x m, r x r) needs (m + r - 1)^2 for each pair of channels. A tile of the input is transformed by B, the
weights by G (at compile time), products of the two are summed over the input channels, which for each of the
(m + r - 1)^2 places is a matrix product over all tiles, and A brings the sums back to m x m outputs.

The matrices interpolate polynomials at points: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
2015. The points determine the rounding errors; those used here keep all factors near one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Dim, PrimExpr, as_dim
from relayc.topi.nn.conv import output_size
from relayc.topi.nn.pad import pad_spatial
from relayc.topi.tag import INJECTIVE
from relayc.topi.utils import ceil_div, num_elements, ravel_index, unravel_index

__all__ = ["WINOGRAD_FILTERS", "Depth", "Matrix", "WinogradMatrices", "choose_value", "conv_winograd", "shared_place",
           "sum_of", "winograd_matrices"]  # fmt: skip

Matrix = np.ndarray[Any, np.dtype[np.float64]]

_POINTS: dict[int, tuple[float, ...]] = {
    4: (0.0, 1.0, -1.0),
    6: (0.0, math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2.0), -math.sqrt(2.0)),
}
"""The finite points for tiles of m + r - 1 inputs; the last is at infinity. Pairs p, -p stand next to each other."""

WINOGRAD_FILTERS: dict[int, tuple[int, ...]] = {3: (2, 4), 5: (2,)}
"""For each filter size r the supported sides m of output tiles of F(m x m, r x r)."""


@dataclass(frozen=True, slots=True)
class WinogradMatrices:
    """``a.T @ ((g @ w) * (b.T @ d))`` are the outputs of taps w on inputs d, both in one dimension."""

    a: Matrix
    """(m + r - 1, m)"""
    b: Matrix
    """(m + r - 1, m + r - 1)"""
    g: Matrix
    """(m + r - 1, r)"""


@lru_cache
def winograd_matrices(m: int, r: int, within: int | None = None) -> WinogradMatrices:
    """The transforms of F(m, r), by the construction of Toom and Cook.

    With `within`, a larger m, at the first of its points: the rows of `g` are then those of ``F(within, r)`` at
    `shared_place`, so that transformed weights of the larger tiles hold those of the smaller ones.
    """
    size = m + r - 1
    of_weights = _POINTS[(within or m) + r - 1]
    points, more = of_weights[: size - 1], of_weights[size - 1 :]
    a, b, g = np.zeros((size, m)), np.zeros((size, size)), np.zeros((size, r))
    for j, point in enumerate(points):
        others = [p for p in points if p != point]
        scale = math.prod(point - p for p in more)
        a[j] = point ** np.arange(m)
        g[j] = point ** np.arange(r) / (math.prod(point - p for p in others) * scale)
        b[: size - 1, j] = np.poly(others)[::-1] * scale
    a[-1, -1] = g[-1, -1] = 1.0
    b[:, -1] = np.poly(points)[::-1]
    return WinogradMatrices(a, np.where(abs(b) < 1e-12, 0.0, b), g)


def shared_place(place: Any, size: int, within: int) -> Any:
    """The place in transformed weights of `within` places that is the given one of `size`: the last is at infinity."""
    return place if size == within else place + te.floordiv(place, size - 1) * (within - size)


def sum_of(factors: Matrix | Sequence[float], values: Sequence[PrimExpr]) -> PrimExpr | None:
    """factors . values, without the terms that are zero; None when all are."""
    total: PrimExpr | None = None
    ordered = sorted(zip(factors, values, strict=True), key=lambda pair: abs(pair[0]) != 1)
    for factor, value in ordered:
        if abs(factor) < 1e-12:
            continue
        term = value if abs(factor) == 1 else value * te.const(abs(factor), value.dtype)
        if total is None:
            total = term if factor > 0 else te.const(0, value.dtype) - term
        else:
            total = total + term if factor > 0 else total - term
    return total


def _input_rows(b: Matrix, values: Sequence[PrimExpr]) -> list[PrimExpr]:
    """``b.T @ values``. Columns of points p and -p are the sum and difference of shared terms."""
    columns: list[PrimExpr] = []
    for j in range(b.shape[1]):
        paired = [k for k in (j - 1, j + 1) if 0 <= k < b.shape[1] and _mirrored(b[:, j], b[:, k])]
        if not paired:
            whole = sum_of(b[:, j], values)
            assert whole is not None
            columns.append(whole)
            continue
        even, odd = (b[:, j] + b[:, paired[0]]) / 2, (b[:, j] - b[:, paired[0]]) / 2
        scale = next(f for f in odd[::-1] if f)
        shared, other = sum_of(even, values), sum_of(odd / scale, values)
        assert shared is not None and other is not None
        scaled = other if abs(scale) == 1 else other * te.const(abs(scale), other.dtype)
        columns.append(shared + scaled if scale > 0 else shared - scaled)
    return columns


def _mirrored(x: Matrix, y: Matrix) -> bool:
    """Are the two columns one polynomial at z and at -z, up to the sign?"""
    signs = (-1.0) ** np.arange(len(x))
    last = len(x) - 2
    return bool(x[last] and np.allclose(x, signs * signs[last] * y) and not np.allclose(x, y))


def _output_rows(a: Matrix, values: Sequence[PrimExpr]) -> list[PrimExpr]:
    """``a.T @ values``. Values of points p and -p are added and subtracted once for all rows."""
    size, m = a.shape
    pairs = list(range(1, size - 2, 2))
    sums, differences = [values[j] + values[j + 1] for j in pairs], [values[j] - values[j + 1] for j in pairs]
    rows: list[PrimExpr] = []
    for i in range(m):
        parts = sums if i % 2 == 0 else differences
        single = [(a[0, i], values[0]), (a[-1, i], values[-1])]
        terms = [*single[:1], *zip(a[pairs, i], parts, strict=True), *single[1:]]
        row = sum_of([f for f, _ in terms], [v for _, v in terms])
        assert row is not None
        rows.append(row)
    return rows


def choose_value(index: Any, values: Sequence[PrimExpr]) -> PrimExpr:
    """values[index], by selects, which disappear when a schedule unrolls the axis."""
    chosen = values[-1]
    for i in reversed(range(len(values) - 1)):
        chosen = te.select(index == i, values[i], chosen)
    return chosen


def _past_the_end(size: Dim, tile: int) -> int:
    """The outputs of the last tile beyond `size`; an upper bound for dynamic sizes."""
    return -size % tile if isinstance(size, int) else tile - 1


@dataclass(frozen=True, slots=True)
class Depth:
    """The depth of a 3-D convolution, of which only rows and columns are transformed.

    A plane of results is a sum over the planes of its `taps`: one more reduction index of the products.
    """

    taps: int
    stride: int = 1
    dilation: int = 1

    def planes(self, results: int) -> int:
        """The number of planes, padding included, that `results` planes of results read."""
        return (results - 1) * self.stride + (self.taps - 1) * self.dilation + 1


def conv_winograd(
    data: Tensor, weight: Tensor, tile: int, kernel: int, padding: Sequence[int], groups: int = 1, dilation: int = 1,
    likely_sides: Sequence[int] = (), depth: Depth | None = None, channels: Dim | None = None,
    weight_tile: int | None = None, whole: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution of NHWC `data`, of stride 1, by F(tile x tile, kernel x kernel); of NDHWC data with a `depth`.

    With a `dilation` every `dilation`-th row and column forms a separate image, with its own tiles, on which the filter
    is not dilated.

    `weight` is (O / NR, A, A, I, NR) with A = tile + kernel - 1 and the I channels of a group: ``g @ w @ g.T`` of each
    filter, in panels of NR outputs of one group; with a depth (O / NR, A, A, taps, I, NR). The result has `channels`
    channels, at most O, to which panels are padded. With `weight_tile` the weights are those of these larger tiles, of
    which some places are read (`winograd_matrices`). The number of tiles is rounded up to a multiple of `whole`, for
    register tiles without tests for the last tile, which the ones past the end are again.

    The stages are tagged "winograd_patch" (the input, tile by tile, (A, A, tiles, I)), "winograd_columns" and
    "winograd_input" (the two halves of the input transform, as large), "conv2d_nhwc_winograd", with a depth
    "conv3d_ndhwc_winograd" (the products, (A, A, tiles, O)), "winograd_rows" and "winograd_output" (the halves of the
    output transform, (tile, tile, tiles, O)). Tiles are numbered row by row, those of all images of a dilation,
    plane by plane, image by image; the input has more of them than the result where planes at the ends are padded.
    `likely_sides`, the rows and columns to schedule for where these are dynamic, are an attribute.
    """
    matrices = winograd_matrices(tile, kernel, weight_tile)
    size, places = tile + kernel - 1, (weight_tile or tile) + kernel - 1
    blocks, _, _, *_, group_size, nr = weight.shape
    outputs, panels = as_dim(blocks * nr), as_dim(blocks // groups)
    n, *planes, h, w, inputs = data.shape
    *front, top, left = padding[: len(padding) // 2]
    *back, bottom, right = padding[len(padding) // 2 :]
    oh = output_size(h, kernel, 1, dilation, top + bottom)
    ow = output_size(w, kernel, 1, dilation, left + right)
    lines, columns = ceil_div(oh, dilation * tile), ceil_div(ow, dilation * tile)
    after = [bottom + _past_the_end(oh, dilation * tile), right + _past_the_end(ow, dilation * tile)]
    padded = pad_spatial(data, range(1, data.ndim - 1), [*front, top, left], [*back, *after], 0)
    plane = (lines, dilation, dilation, columns)
    read: tuple[Dim, ...] = (n,)
    stored, more = read, 0
    if depth is not None:
        results = output_size(planes[0], depth.taps, depth.stride, depth.dilation, front[0] + back[0])
        assert isinstance(results, int), "the depth has to be known"
        read, stored, more = (n, depth.planes(results)), (n, results), depth.planes(results) - results
    tiles_read, tiles = num_elements((*read, *plane)), num_elements((*stored, *plane))
    last = tiles - 1
    if whole > 1:
        assert depth is None, "tiles of the input and the result are the same ones"
        tiles_read = tiles = ceil_div(tiles, whole) * whole
    attrs = {"tile": tile, "kernel": kernel, "padding": tuple(padding), "groups": groups, "dilation": dilation,
             "likely_sides": likely_sides, "depth": depth, "is_padded": padded is not data}  # fmt: skip

    def stage(shape: Sequence[Any], body: Callable[..., PrimExpr], name: str, tag: str) -> Tensor:
        return te.compute(tuple(shape), body, name=name, tag=tag, attrs=attrs)

    def tap(y: Any, x: Any, t: Any, c: Any) -> PrimExpr:
        t = t if whole == 1 else te.min(t, last)
        *at, line, first_line, first_column, column = unravel_index(t, (*read, *plane))
        y, x = line * tile + y, column * tile + x
        return padded(*at, y * dilation + first_line, x * dilation + first_column, c)

    patch = stage((size, size, tiles_read, inputs), tap, "patch", "winograd_patch")

    def transformed_columns(i: Any, x: Any, t: Any, c: Any) -> PrimExpr:
        return choose_value(i, _input_rows(matrices.b, [patch(k, x, t, c) for k in range(size)]))

    halfway = stage((size, size, tiles_read, inputs), transformed_columns, "columns", "winograd_columns")

    def transformed_input(i: Any, j: Any, t: Any, c: Any) -> PrimExpr:
        return choose_value(j, _input_rows(matrices.b, [halfway(i, k, t, c) for k in range(size)]))

    spectrum = stage((size, size, tiles_read, inputs), transformed_input, "spectrum", "winograd_input")
    rc = te.reduce_axis((0, group_size), name="rc")
    taps = [] if depth is None else [te.reduce_axis((0, depth.taps), name="rd")]

    def read_tile(t: Any) -> Any:
        """The input tile of tile `t` of the result, at the current tap of the depth."""
        if depth is None:
            return t
        image, result, _ = unravel_index(t, (*stored, num_elements(plane)))
        return t + (image * more + result * (depth.stride - 1) + taps[0] * depth.dilation) * num_elements(plane)

    def summed_channels(i: Any, j: Any, t: Any, c: Any) -> PrimExpr:
        channel = rc if groups == 1 else c // nr // panels * group_size + rc
        place = [shared_place(k, size, places) for k in (i, j)]
        factor = weight(c // nr, *place, *taps, rc, c % nr)
        return te.sum(spectrum(i, j, read_tile(t), channel) * factor, axis=[*taps, rc])

    tag = "conv2d_nhwc_winograd" if depth is None else "conv3d_ndhwc_winograd"
    product = stage((size, size, tiles, outputs), summed_channels, "product", tag)

    def transformed_rows(y: Any, j: Any, t: Any, c: Any) -> PrimExpr:
        return choose_value(y, _output_rows(matrices.a, [product(k, j, t, c) for k in range(size)]))

    rows = stage((tile, size, tiles, outputs), transformed_rows, "rows", "winograd_rows")

    def transformed_output(y: Any, x: Any, t: Any, c: Any) -> PrimExpr:
        return choose_value(x, _output_rows(matrices.a, [rows(y, k, t, c) for k in range(size)]))

    result = stage((tile, tile, tiles, outputs), transformed_output, "result", "winograd_output")

    def image(*position: Any) -> PrimExpr:
        *at, y, x, c = position
        first_line, first_column, y, x = y % dilation, x % dilation, y // dilation, x // dilation
        t = ravel_index((*at, y // tile, first_line, first_column, x // tile), (*stored, *plane))
        return result(y % tile, x % tile, t, c)

    return stage((*stored, oh, ow, outputs if channels is None else channels), image, "image", INJECTIVE)
