"""Squeeze, Unsqueeze and Slice by axes and steps that a run computes: the sizes of the result are bound at run time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, const

__all__ = ["bounds_of_all_axes", "squeezed", "stepped", "unsqueezed"]

_END = np.iinfo(np.int64).max
"""An end of a slice that reaches the end of any axis."""


def _matches(node: OnnxNode, index: int, rank: int) -> Expr:
    """A matrix of bools: is the axis in input `index` (a row) the axis of that number (one of `rank` columns)?"""
    axes = op.reshape(op.cast(node[index], "int64"), (-1,))
    axes = op.where(op.less(axes, const(0, "int64")), op.add(axes, const(rank, "int64")), axes)
    return op.equal(op.expand_dims(axes, 1), Constant(np.arange(rank)))


def _count(node: OnnxNode, index: int) -> int:
    return int(np.prod(node.static(node[index], "the shape of the axes"), dtype=np.int64))


def _chosen(matches: Expr) -> Expr:
    """1 for axes that are named, 0 for others."""
    return op.sum(op.cast(matches, "int64"), axis=0)


def squeezed(node: OnnxNode) -> Expr:
    """Input 0 without the axes of input 1."""
    rank = node.rank(0)
    left = rank - _count(node, 1)
    if left < 0:
        raise node.error(f"{rank - left} axes of a tensor of rank {rank}", expected="at most as many as the rank")
    one = const(1, "int64")
    kept = op.subtract(one, _chosen(_matches(node, 1, rank)))
    place = op.where(op.equal(kept, one), op.subtract(op.cumsum(kept, 0), one), const(-1, "int64"))
    sources = op.equal(Constant(np.arange(left)[:, None]), place)
    shape = op.sum(op.where(sources, op.size_tensor(node.type(0).shape), const(0, "int64")), axis=1)
    return op.reshape(node[0], node.bind(shape, "the shape without the axes"))


def unsqueezed(node: OnnxNode) -> Expr:
    """Input 0 with the axes of input 1, which are positions in the result."""
    source = node.type(0).shape
    rank = len(source) + _count(node, 1)
    if not source:
        return op.reshape(node[0], (1,) * rank)
    one = const(1, "int64")
    added = _chosen(_matches(node, 1, rank))
    place = op.subtract(op.cumsum(op.subtract(one, added), 0), one)
    shape = op.where(op.equal(added, one), one, op.take(op.size_tensor(source), place, 0, mode="clip"))
    return op.reshape(node[0], node.bind(shape, "the shape with the axes"))


def bounds_of_all_axes(node: OnnxNode) -> list[Expr]:
    """The starts, ends and steps, if it has some, of a Slice whose axes are input 3, as those of all axes in order."""
    matches = _matches(node, 3, node.rank(0))
    named = op.greater(_chosen(matches), const(0, "int64"))
    passed = [
        op.sum(op.where(matches, op.expand_dims(op.cast(node[index], "int64"), 1), const(0, "int64")), axis=0)
        for index in (1, 2, 4)
        if node.get(index) is not None
    ]
    unnamed = (0, _END, 1)
    return [op.where(named, x, const(other, "int64")) for x, other in zip(passed, unnamed, strict=False)]


def stepped(node: OnnxNode, axes: Sequence[int] | None) -> Expr:
    """Input 0 along `axes` (the leading ones by default) from inputs 1 up to inputs 2, in steps of inputs 3."""
    x, (count,) = node[0], node.static(node[3], "the shape of the steps")
    axes = node.axes(range(count) if axes is None else axes, node.rank(0))
    if count != len(axes):
        raise node.error(f"{count} steps along {len(axes)} axes")
    zero, one = const(0, "int64"), const(1, "int64")
    for k, axis in enumerate(axes):
        start, end, step = [op.cast(op.take(node[i], const(k, "int64"), 0), "int64") for i in (1, 2, 3)]
        (valid,) = node.bind(op.cast(op.not_equal(step, zero), "int64"), "whether it steps")
        node.check_equal(valid, 1, f"the step along axis {axis} is 0,")
        step = op.where(op.equal(step, zero), one, step)
        size, last = op.size_tensor((x.shape[axis],), ()), op.less(step, zero)
        # Positions are kept within [0, size], from the last element on backwards within [-1, size - 1].
        lowest, highest = op.negative(op.cast(last, "int64")), op.subtract(size, op.cast(last, "int64"))
        start, end = [op.where(op.less(p, zero), op.add(p, size), p) for p in (start, end)]
        start = op.minimum(op.maximum(start, zero), highest)
        end = op.minimum(op.maximum(end, lowest), highest)
        length = op.negative(op.floor_divide(op.subtract(start, end), step))
        (found,) = node.bind(op.maximum(length, zero), "a length")
        positions = op.add(start, op.multiply(step, op.arange(0, found, 1, "int64")))
        x = op.take(x, positions, axis)
    return x
