"""Pad with static, symbolic and computed amounts."""

from __future__ import annotations

from collections.abc import Sequence

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import counted
from relayc.frontends.onnx.ops.shape import take_ranges
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Expr, const
from relayc.relay.sizes import add_sizes, is_at_least, larger, product
from relayc.te.tir import Dim

__all__ = ["padded"]

Widths = dict[int, tuple[int, int]]


@converter("Pad", since=1)
def pad_1(node: OnnxNode) -> Expr:
    """Pad before opset 2, whose attribute is called `paddings`."""
    name = "paddings" if node.opset < 2 else "pads"
    axes = tuple(range(node.rank(0)))
    return _pad(node, node.attr_ints(name), node.attr_float("value", 0.0), axes, _mode(node))


@converter("Pad", since=11)
def pad(node: OnnxNode) -> Expr:
    rank = node.rank(0)
    axes = node.axes(node.constant_ints(3, "the axes"), rank) if node.get(3) is not None else tuple(range(rank))
    return padded(node, axes, _mode(node))


def padded(node: OnnxNode, axes: Sequence[int], mode: str) -> Expr:
    """Pad input 0 by the amounts of input 1 along `axes`; mode "constant" pads with the value of input 2."""
    node.count(1, 2 * len(axes), "the pads")
    pads = node.sizes_or_none(1)
    value, known = node.get(2), node.known_value(2)
    known_fill = value is None or known is not None
    if pads is not None and known_fill and all(isinstance(n, int) for n in pads):
        fill = 0.0 if known is None or known.size == 0 else known.reshape(-1)[0].item()
        return _pad(node, pads, fill, axes, mode)  # type: ignore[arg-type]
    fill = const(0, node.dtype(0)) if value is None else value
    return _pad_computed(node, fill, axes, mode) if pads is None else _pad_dynamic(node, pads, fill, axes, mode)


def _mode(node: OnnxNode) -> str:
    return node.attr_choice("mode", ("constant", "reflect", "edge", "wrap"), "constant")


# static amounts -------------------------------------------------------------------------------------------------------


def _pad(node: OnnxNode, pads: Sequence[int], fill: float, axes: Sequence[int], mode: str) -> Expr:
    """Pad by static amounts: all leading ones, then all trailing ones; negative amounts crop."""
    if len(pads) != 2 * len(axes):
        raise node.error(f"{len(pads)} pads for {len(axes)} axes", expected=f"{2 * len(axes)} pads")
    widths = {axis: (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    if not all(isinstance(node.type(0).shape[axis], int) for axis in widths):
        return _pad_symbolic(node, widths, fill, mode)
    shape = node.type(0).shape
    crop = {
        axis: range(max(-before, 0), max(int(shape[axis]) - max(-after, 0), 0))  # type: ignore[arg-type]
        for axis, (before, after) in widths.items()
        if before < 0 or after < 0
    }
    x = take_ranges(node[0], crop)
    grown = {axis: (max(before, 0), max(after, 0)) for axis, (before, after) in widths.items()}
    grown = {axis: amounts for axis, amounts in grown.items() if amounts != (0, 0)}
    if not grown:
        return x
    empty = [axis for axis in grown if x.shape[axis] == 0]
    if empty and mode != "constant":
        raise node.error(f"axis {empty[0]} is empty and can't be continued by mode {mode!r}")
    return op.nn.pad(x, tuple(grown.get(axis, (0, 0)) for axis in range(len(shape))), fill, mode)


def _pad_symbolic(node: OnnxNode, widths: Widths, fill: float, mode: str) -> Expr:
    """Pad along symbolic dimensions by static amounts."""
    x = node[0]
    for axis, (before, after) in widths.items():
        if before < 0 or after < 0:
            end = larger(add_sizes(x.shape[axis], min(after, 0)), 0)
            x = op.strided_slice(x, (max(-before, 0),), (end,), (1,), axes=(axis,))
    grown = tuple((max(b, 0), max(a, 0)) for b, a in (widths.get(axis, (0, 0)) for axis in range(len(x.shape))))
    return op.nn.pad(x, grown, fill, mode) if any(pair != (0, 0) for pair in grown) else x


# symbolic amounts -----------------------------------------------------------------------------------------------------


def _pad_dynamic(node: OnnxNode, pads: Sequence[Dim], fill: Expr, axes: Sequence[int], mode: str) -> Expr:
    """Pad by symbolic amounts, as a gather at computed positions, with `fill` outside."""
    if len(pads) != 2 * len(axes):
        raise node.error(f"{len(pads)} pads for {len(axes)} axes", expected=f"{2 * len(axes)} pads")
    x, inside, rank = node[0], None, node.rank(0)
    for i, axis in enumerate(axes):
        x, before, after = _cropped(x, axis, pads[i], pads[i + len(axes)])
        if is_at_least(0, before) and is_at_least(0, after):
            continue
        extent = x.shape[axis]
        total = add_sizes(extent, before, after)
        at = op.subtract(counted(total), op.size_tensor((before,), ()))
        if mode == "constant":
            size, zero = op.size_tensor((extent,), ()), const(0, "int64")
            here = op.logical_and(op.greater_equal(at, zero), op.less(at, size))
            here = op.reshape(here, [total if a == axis else 1 for a in range(rank)])
            inside = here if inside is None else op.logical_and(inside, here)
        x = op.take(x, _continued(at, op.size_tensor((extent,), ()), mode), axis=axis, mode="clip")
    return x if inside is None else op.where(inside, x, op.cast(op.reshape(fill, ()), x.dtype))


def _cropped(x: Expr, axis: int, before: Dim, after: Dim) -> tuple[Expr, Dim, Dim]:
    """`x` cropped by negative amounts, and the remaining non-negative amounts."""
    front, back = (larger(product((-1, n)), 0) for n in (before, after))
    if not (is_at_least(before, 0) and is_at_least(after, 0)):
        end = larger(add_sizes(x.shape[axis], product((-1, back))), front)
        x = op.strided_slice(x, (front,), (end,), (1,), axes=(axis,))
    return x, larger(before, 0), larger(after, 0)


def _continued(at: Expr, extent: Expr, mode: str) -> Expr:
    """Map positions `at` outside of an axis into it by reflection, wrapping or clamping, as `mode` says."""
    if mode in ("constant", "edge"):
        return at
    if mode == "wrap":
        return op.floor_mod(at, extent)
    period = op.maximum(op.multiply(const(2, "int64"), op.subtract(extent, const(1, "int64"))), const(1, "int64"))
    folded = op.floor_mod(at, period)
    return op.minimum(folded, op.subtract(period, folded))


# computed amounts -----------------------------------------------------------------------------------------------------


def _pad_computed(node: OnnxNode, fill: Expr, axes: Sequence[int], mode: str) -> Expr:
    """Pad by amounts, of either sign, that are computed at run time, as a gather at computed positions."""
    x, inside, rank, count = node[0], None, node.rank(0), len(axes)
    pads, zero = op.cast(node[1], "int64"), const(0, "int64")
    before, after = (op.strided_slice(pads, (k * count,), ((k + 1) * count,), axes=(0,)) for k in (0, 1))
    extents = op.size_tensor(tuple(x.shape[axis] for axis in axes), (count,))
    each = (before, after, extents)
    totals = node.bind(op.add(op.add(extents, before), after), "the sizes with borders")
    for i, (axis, total) in enumerate(zip(axes, totals, strict=True)):
        front, back, extent = (op.take(v, const(i, "int64"), axis=0) for v in each)
        at = op.subtract(counted(total), front)
        if mode == "constant":
            here = op.logical_and(op.greater_equal(at, zero), op.less(at, extent))
            here = op.reshape(here, [total if a == axis else 1 for a in range(rank)])
            inside = here if inside is None else op.logical_and(inside, here)
        else:  # modes other than "constant" continue what negative amounts leave
            cut_front, cut_back = (op.maximum(op.negative(n), zero) for n in (front, back))
            left = op.subtract(op.subtract(extent, cut_front), cut_back)
            at = op.add(_continued(op.subtract(at, cut_front), left, mode), cut_front)
        x = op.take(x, at, axis=axis, mode="clip")
    return x if inside is None else op.where(inside, x, op.cast(op.reshape(fill, ()), x.dtype))
