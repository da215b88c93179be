"""Operators with data-dependent result sizes: NonZero, Compress, Unique, NonMaxSuppression.

Kernels compute results up to a bound and their count, which is bound to a size variable at run time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import reshape_to, transposed
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, const
from relayc.relay.sizes import product, smaller
from relayc.te.dtype import dtype
from relayc.te.tir import Dim

__all__ = ["distinct"]


def _positions(node: OnnxNode, flags: Expr) -> Expr:
    """Positions of the true elements of a vector: int64[count]."""
    positions, count = op.nonzero(flags)
    (size,) = node.bind(count, "the number of results")
    node.check_equal(size, smaller(size, flags.shape[0]), "the number of results")
    return op.strided_slice(positions, (0,), (size,), (1,), axes=(0,))


@converter("NonZero", since=9)
def non_zero(node: OnnxNode) -> Expr:
    """Coordinates of nonzero elements: int64[rank, count]."""
    known = node.known_value(0)
    if known is not None:
        return Constant(np.stack(np.nonzero(np.atleast_1d(known))).astype(np.int64).reshape(known.ndim, -1))
    x = node[0]
    shape = x.shape
    if not shape:
        raise node.value_needed("a scalar computed at run time", x)
    rest = _positions(node, reshape_to(x, (product(shape),)))
    rows: list[Expr] = []
    for dim in reversed(shape):
        extent = op.size_tensor((dim,), (1,))
        rows.append(op.floor_mod(rest, extent))
        rest = op.floor_divide(rest, extent)
    return op.stack(rows[::-1], axis=0)


@converter("Compress", since=9)
def compress(node: OnnxNode) -> Expr:
    """Slices along `axis` (else elements) whose condition is true; conditions of more dimensions are flattened."""
    axis = node.attrs.get_int("axis")
    x = node[0] if axis is not None else reshape_to(node[0], (product(node.type(0).shape),))
    along = 0 if axis is None else node.axis(axis, node.rank(0))
    known, extent = node.known_value(1), x.shape[along]
    if known is None:
        count = product(node.type(1).shape)
        node.check_equal(count, smaller(count, extent), "the conditions, no more than elements")
        return op.take(x, _positions(node, reshape_to(node[1], (count,))), axis=along, mode="clip")
    if isinstance(extent, int) and known.size > extent:
        raise node.error(f"{known.size} conditions for {extent} elements", expected="no more than elements")
    return op.take(x, Constant(np.flatnonzero(known).astype(np.int64)), axis=along, mode="clip")


@converter("Unique", since=11)
def unique(node: OnnxNode) -> Sequence[Expr]:
    """Distinct elements, or slices along `axis`; first and inverse indices, and counts.

    Sorted by value, or with sorted=0 by first occurrence. NaNs are one element, behind all others (onnxruntime takes a
    NaN for equal to what it is compared with).
    """
    return distinct(node, node.attrs.get_int("axis"), node.attr_bool("sorted", True))


def distinct(node: OnnxNode, axis: int | None, in_order: bool) -> Sequence[Expr]:
    """The outputs of `Unique` for input 0."""
    if axis is None:
        rows = reshape_to(node[0], (product(node.type(0).shape), 1))
        lead: tuple[Dim, ...] = ()
        to_front: tuple[int, ...] = (0,)
    else:
        along = node.axis(axis, node.rank(0))
        to_front = (along, *[a for a in range(node.rank(0)) if a != along])
        moved = transposed(node[0], to_front)
        lead = moved.shape[1:]
        rows = reshape_to(moved, (moved.shape[0], product(lead)))
    order, starts = _sorted_rows(rows, single=axis is None)
    positions = _positions(node, starts)
    first = op.take(order, positions, axis=0, mode="clip")
    group = op.subtract(op.cumsum(op.cast(starts, "int64"), axis=0), const(1, "int64"))
    ends = op.concatenate(
        [op.strided_slice(positions, (1,), (1 << 30,), (1,), axes=(0,)), op.size_tensor((rows.shape[0],), (1,))], axis=0
    )
    counts = op.subtract(op.strided_slice(ends, (0,), (positions.shape[0],), (1,), axes=(0,)), positions)
    if not in_order:
        by_place = op.argsort(first, axis=0, dtype="int64")
        first, counts = (op.take(v, by_place, axis=0, mode="clip") for v in (first, counts))
        group = op.take(op.argsort(by_place, axis=0, dtype="int64"), group, axis=0, mode="clip")
    inverse = op.scatter_elements(group, order, group, axis=0)
    values = op.take(rows, first, axis=0, mode="clip")
    values = reshape_to(values, (first.shape[0], *lead))
    back = tuple(int(i) for i in np.argsort(to_front))
    return [transposed(values, back) if axis is not None else values, first, inverse, counts]


def _sorted_rows(rows: Expr, single: bool) -> tuple[Expr, Expr]:
    """The permutation that sorts the rows of a matrix, and flags of sorted rows that differ from the previous one.

    NaNs are equal to one another, and larger than all else.
    """
    if single:
        column = op.reshape(rows, (rows.shape[0],))
        column = op.strings.rank(column) if column.dtype == "string" else column
        order = op.argsort(column, axis=0, dtype="int64")
        ordered = op.take(column, order, axis=0, mode="clip")
        before = op.take(ordered, _shifted(rows.shape[0]), axis=0, mode="clip")
        differs = op.logical_not(_equal(ordered, before))
    else:
        rows = op.strings.rank(rows) if rows.dtype == "string" else rows
        one, other = op.expand_dims(rows, 1), op.expand_dims(rows, 0)
        equal = op.cast(_equal(one, other), "int32")
        alike_before = op.cumprod(equal, axis=2, exclusive=True)
        smaller_here = op.multiply(alike_before, op.cast(_less(other, one), "int32"))
        rank = op.sum(op.max(smaller_here, axis=2), axis=1)
        order = op.argsort(rank, axis=0, dtype="int64")
        ordered = op.take(rank, order, axis=0, mode="clip")
        differs = op.not_equal(ordered, op.take(ordered, _shifted(rows.shape[0]), axis=0, mode="clip"))
    is_first = op.equal(op.arange(0, rows.shape[0], 1, "int64"), const(0, "int64"))
    return order, op.logical_or(is_first, differs)


def _equal(a: Expr, b: Expr) -> Expr:
    """a == b, NaNs being equal to one another."""
    same = op.equal(a, b)
    return op.logical_or(same, op.logical_and(op.isnan(a), op.isnan(b))) if dtype(a.dtype).is_float else same


def _less(a: Expr, b: Expr) -> Expr:
    """a < b, a NaN being larger than all numbers."""
    if not dtype(a.dtype).is_float:
        return op.less(a, b)
    return op.logical_or(op.less(a, b), op.logical_and(op.isnan(b), op.logical_not(op.isnan(a))))


def _shifted(count: Dim) -> Expr:
    """Predecessor positions 0, 0, 1, 2, ..."""
    return op.maximum(op.subtract(op.arange(0, count, 1, "int64"), const(1, "int64")), const(0, "int64"))


@converter("NonMaxSuppression", since=10)
def non_max_suppression(node: OnnxNode) -> Expr:
    """Selected (image, class, box) triples: int64[count, 3]."""
    boxes, scores = node[0], node[1]
    limit = _one(node, 2, const(0, "int64"), "int64")
    iou, least = _one(node, 3, const(0.0), "float32"), _one(node, 4, const(float("-inf")), "float32")
    center = node.attr_int("center_point_box", 0) == 1
    known = node.known_value(2) if node.get(2) is not None else np.zeros(1, np.int64)
    most = None if known is None else max(int(known.reshape(-1)[0]), 0)
    rows, count = op.non_max_suppression(boxes, scores, limit, iou, least, center, most)
    (size,) = node.bind(count, "the number of boxes kept")
    node.check_equal(size, smaller(size, rows.shape[0]), "the number of boxes kept")
    return op.strided_slice(rows, (0,), (size,), (1,), axes=(0,))


def _one(node: OnnxNode, index: int, default: Constant, dtype: str) -> Expr:
    """An optional scalar input as a vector of one element."""
    x = node.get(index)
    return op.reshape(op.cast(default if x is None else x, dtype), (1,))
