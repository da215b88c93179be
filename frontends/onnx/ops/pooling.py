"""Pooling over windows and over whole images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import bordered, float_const, in_float32, reshape_to, transposed, zeros
from relayc.frontends.onnx.ops.window import Window, read_window
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Expr, TupleGetItem
from relayc.relay.sizes import add_sizes, is_at_least, product
from relayc.relay.type import shapes_match

__all__ = ["average_pool_of", "max_pool_of"]

Pool = Callable[..., Expr]

_MAX: dict[int, Pool] = {1: op.nn.max_pool1d, 2: op.nn.max_pool2d, 3: op.nn.max_pool3d}
_AVERAGE: dict[int, Pool] = {1: op.nn.avg_pool1d, 2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d}
_LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}

_MOST_TAPS = 1024
"""Most elements of a window that is reduced at once; larger ones are reduced axis by axis, which takes the sum of their
sides for each result in place of the product."""


@converter("MaxPool", since=1)
def max_pool(node: OnnxNode) -> Expr | list[Expr]:
    """The second output is flat input positions in `storage_order`."""
    column_major = node.attr_bool("storage_order", False)
    if node.wants(1):
        window = _window(node, node[0])
        if window.border:
            return _max_pool_of_bordered(node, window, column_major)
        return op.nn.max_pool_with_argmax(node[0], **_attributes(node, window), column_major=column_major)
    return max_pool_of(node, node[0])


def _max_pool_of_bordered(node: OnnxNode, window: Window, column_major: bool) -> list[Expr]:
    """Max pooling with dynamic padding: computed on the padded input, positions converted to the unpadded one."""
    x = node[0]
    bordered_x = window.bordered(x, _least(x))
    pooled = op.nn.max_pool_with_argmax(bordered_x, **_attributes(node, window))
    place: Expr = TupleGetItem(pooled, 1)
    coordinates: list[Expr] = []
    for extent, (before, _) in zip(bordered_x.shape[:1:-1], window.border[::-1], strict=True):
        size = op.size_tensor((extent,), ())
        coordinates.append(op.subtract(op.floor_mod(place, size), op.size_tensor((before,), ())))
        place = op.floor_divide(place, size)
    axes = list(zip(coordinates[::-1], x.shape[2:], strict=True))
    for coordinate, extent in axes[::-1] if column_major else axes:
        place = op.add(op.multiply(place, op.size_tensor((extent,), ())), coordinate)
    return [TupleGetItem(pooled, 0), place]


def max_pool_of(node: OnnxNode, x: Expr) -> Expr:
    """The maximum of each window of `x` under the node's attributes."""
    window = _window(node, x)
    return _pooled(_by_rank(node, _MAX, window), window.bordered(x, _least(x)), _attributes(node, window))


def _least(x: Expr) -> float:
    """The lowest value of the element type."""
    return float(x.dtype.min_value()) if x.dtype.is_integral else -math.inf


@converter("MaxUnpool", since=9)
def max_unpool(node: OnnxNode) -> Expr:
    """Scatters values to MaxPool's positions, zeros elsewhere."""
    shape = node.type(0).shape
    kernel = node.attr_ints("kernel_shape")
    rank = len(shape) - 2
    strides, pads = node.attr_ints("strides", (1,) * rank), node.attr_ints("pads", (0,) * (2 * rank))
    fits = len(kernel) == rank and len(strides) == rank and len(pads) == 2 * rank
    if not fits or not shapes_match(shape, node.type(1).shape):
        raise node.error(f"a kernel of {list(kernel)}, strides {list(strides)}, pads {list(pads)}")
    pooled = [add_sizes(product((add_sizes(n, -1), strides[a])), kernel[a] - pads[a] - pads[a + rank])
              for a, n in enumerate(shape[2:])]  # fmt: skip
    unpooled = (*shape[:2], *pooled)
    empty, count = zeros((product(unpooled),), str(node.dtype(0))), product(shape)
    flat = op.scatter_elements(empty, reshape_to(node[1], (count,)), reshape_to(node[0], (count,)), axis=0)
    result = reshape_to(flat, unpooled)
    if node.get(2) is None:
        return result
    wanted = node.sizes(2, "the output shape", len(shape))
    if len(wanted) != len(shape) or any(is_at_least(n, add_sizes(w, 1)) for w, n in zip(wanted, unpooled, strict=True)):
        raise node.error(f"an output shape of {list(wanted)}", expected=f"at least {list(unpooled)}")
    for axis, (w, n) in enumerate(zip(wanted, unpooled, strict=True)):
        result = bordered(result, axis, 0, add_sizes(w, product((-1, n))))
    return result


@converter("Col2Im", since=18)
def col2im(node: OnnxNode) -> Expr:
    """Sums overlapping windows [N, C * taps, windows]."""
    image, block = node.sizes(1, "the image's shape"), node.constant_ints(2, "the block's shape")
    rank = len(image)
    strides, dilations = node.attr_ints("strides", (1,) * rank), node.attr_ints("dilations", (1,) * rank)
    pads = node.attr_ints("pads", (0,) * (2 * rank))
    added = op.nn.col2im(node[0], image, block, strides=strides, dilation=dilations, padding=pads)
    counts = [size // n for size, n in zip(image, block, strict=True) if isinstance(size, int) and size % n == 0]
    beside = tuple(block) == tuple(strides) and all(d == 1 for d in dilations) and not any(pads)
    if not beside or len(counts) < rank:
        return added
    batch, channels = added.shape[:2]
    laid = reshape_to(node[0], (batch, channels, *block, *counts))
    order = [0, 1, *[axis for a in range(rank) for axis in (2 + rank + a, 2 + a)]]
    return reshape_to(transposed(laid, order), added.shape)


@converter("AveragePool", since=1)
def average_pool(node: OnnxNode) -> Expr:
    return average_pool_of(node, node[0])


def average_pool_of(node: OnnxNode, x: Expr) -> Expr:
    """The mean of each window of `x`; padding counts only with count_include_pad."""
    window = _window(node, x)
    function = _by_rank(node, _AVERAGE, window)
    include = node.attr_bool("count_include_pad", False)
    result = _pooled(function, window.bordered(x, 0.0), {**_attributes(node, window), "count_include_pad": include})
    if include or not window.border:
        return result
    inside = window.bordered(op.ones((1, 1, *x.shape[2:]), str(x.dtype)), 0.0)
    return op.divide(result, _pooled(function, inside, _attributes(node, window)))


@converter("LpPool", since=1)
def lp_pool(node: OnnxNode) -> Expr:
    """The p-norm of each window."""
    window = _window(node, node[0])
    return op.nn.lp_pool(window.bordered(node[0], 0.0), p=_norm_order(node), **_attributes(node, window))


def _norm_order(node: OnnxNode) -> int:
    """The attribute p, a float at opset 1."""
    p = node.attr_int("p", 2) if node.opset >= 2 else round(node.attr_float("p", 2.0))
    if p < 1:
        raise node.error(f"p is {p}", expected="1 or more")
    return p


def _window(node: OnnxNode, x: Expr) -> Window:
    shape = x.shape
    if len(shape) < 3:
        raise node.error(f"an input of rank {len(shape)}", expected="rank 3 or more: N, C, spatial axes")
    return read_window(node, node.attr_ints("kernel_shape"), shape[2:])


def _by_rank(node: OnnxNode, table: dict[int, Pool], window: Window) -> Pool:
    found = table.get(window.rank)
    if found is None:
        raise node.unsupported(f"{window.rank} spatial axes", expected="1, 2 or 3")
    return found


def _attributes(node: OnnxNode, window: Window) -> dict[str, Any]:
    return {
        "pool_size": window.kernel,
        "strides": window.strides,
        "dilation": window.dilations,
        "padding": window.padding,
        "layout": _LAYOUTS[window.rank],
        "ceil_mode": node.attr_bool("ceil_mode", False),
    }


def _pooled(function: Pool, x: Expr, attributes: dict[str, Any]) -> Expr:
    """A maximum or mean of each window. Large windows are reduced axis by axis: all rows of one have as many elements
    inside of the image, so that the mean of their means is that of the window."""
    kernel = attributes["pool_size"]
    if math.prod(kernel) <= _MOST_TAPS:
        return function(x, **attributes)
    others = {"pool_size": 1, "strides": 1, "dilation": 1, "padding": 0}
    for axis in range(len(kernel)):
        along = {name: _along(attributes[name], axis, len(kernel), other) for name, other in others.items()}
        x = function(x, **{**attributes, **along})
    return x


def _along(values: Sequence[int], axis: int, rank: int, other: int) -> tuple[int, ...]:
    """An attribute of windows for one axis, with the value `other` for the other ones."""
    return tuple([value if a % rank == axis else other for a, value in enumerate(values)])


@converter("GlobalAveragePool")
def global_average_pool(node: OnnxNode) -> Expr:
    return op.mean(node[0], axis=_spatial(node), keepdims=True)


@converter("GlobalMaxPool")
def global_max_pool(node: OnnxNode) -> Expr:
    return op.max(node[0], axis=_spatial(node), keepdims=True)


@converter("GlobalLpPool", since=1)
def global_lp_pool(node: OnnxNode) -> Expr:
    p, axes = _norm_order(node), _spatial(node)

    def norm(x: Expr) -> Expr:
        total = op.sum(op.power(op.abs(x), float_const(float(p), x)), axis=axes, keepdims=True)
        return op.power(total, float_const(1.0 / p, x))

    return in_float32(norm, node[0])


def _spatial(node: OnnxNode) -> tuple[int, ...]:
    if node.rank(0) < 3:
        raise node.error(f"an input of rank {node.rank(0)}", expected="rank 3 or more: N, C, spatial axes")
    return tuple(range(2, node.rank(0)))
