"""Indexing operators: gathers, scatters, one-hot, sorting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import counted, transposed, zeros
from relayc.frontends.onnx.registry import converter
from relayc.frontends.onnx.tensors import check_computed
from relayc.relay import op
from relayc.relay.expr import Expr, const
from relayc.relay.op.common import with_dim
from relayc.relay.sizes import add_sizes, dims_match, is_at_least, smaller
from relayc.relay.type import shapes_match
from relayc.te.tir import Dim


def _check_range(node: OnnxNode, extent: Dim) -> None:
    """Check that constant indices are in -extent .. extent - 1."""
    indices = node.known_value(1)
    if not isinstance(extent, int):
        return
    if indices is not None and indices.size and (indices.min() < -extent or indices.max() >= extent):
        raise node.error(
            f"indices from {indices.min()} to {indices.max()}", expected=f"indices from {-extent} to {extent - 1}"
        )


@converter("Gather", since=1)
def gather(node: OnnxNode) -> Expr:
    axis = node.axis(node.attr_int("axis", 0), node.rank(0))
    extent = node.type(0).shape[axis]
    _check_range(node, extent)
    known = node.known_value(1)
    trusted = known is not None and isinstance(extent, int) and (known.size == 0 or known.min() >= 0)
    return op.take(node[0], node[1], axis=axis, mode="fast" if trusted else "numpy")


@converter("GatherElements", since=11)
def gather_elements(node: OnnxNode) -> Expr:
    axis = node.axis(node.attr_int("axis", 0), node.rank(0))
    extent = node.type(0).shape[axis]
    _check_range(node, extent)
    return op.gather(node[0], axis, node[1])


@converter("GatherND", since=11)
def gather_nd(node: OnnxNode) -> Expr:
    """The last axis of the indices is a coordinate tuple into the axes after the batch axes."""
    batch = node.attr_int("batch_dims", 0)
    data, indices = node.type(0).shape, node.type(1).shape
    depth = indices[-1] if indices else 0
    if not isinstance(depth, int):
        raise node.value_needed(f"indices {node.type(1)} of an unknown length", node[1])
    fits = 0 <= batch < len(indices) and 1 <= depth <= len(data) - batch
    if not fits or not shapes_match(data[:batch], indices[:batch]):
        raise node.error(f"indices {node.type(1)} into {node.type(0)} with {batch} batch axes")
    extents = data[batch : batch + depth]
    known = node.known_value(1)
    if known is not None and known.size and all(isinstance(d, int) for d in extents):
        limits = np.array(extents, str(node.dtype(1)))
        if bool(np.any((known < -limits) | (known >= limits))):
            raise node.error("an index lies outside of the data", expected=f"indices below {limits.tolist()}")
    return op.gather_nd(node[0], _tuples_first(node[1]), batch_dims=batch)


def _tuples_first(indices: Expr) -> Expr:
    """Move coordinate tuples from the last axis to the first."""
    rank = len(indices.shape)
    return transposed(indices, (rank - 1, *range(rank - 1)))


@converter("ScatterElements", since=11)
def scatter_elements(node: OnnxNode) -> Expr:
    return _scatter_elements(node)


@converter("Scatter", since=9, until=11)
def scatter(node: OnnxNode) -> Expr:
    return _scatter_elements(node)


_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _scatter_elements(node: OnnxNode) -> Expr:
    axis = node.axis(node.attr_int("axis", 0), node.rank(0))
    extent = node.type(0).shape[axis]
    _check_range(node, extent)
    reduction = _REDUCTIONS[node.attr_choice("reduction", tuple(_REDUCTIONS), "none")]
    return op.scatter_elements(node[0], node[1], node[2], axis, reduction)


@converter("ScatterND", since=11)
def scatter_nd(node: OnnxNode) -> Expr:
    reduction = _REDUCTIONS[node.attr_choice("reduction", tuple(_REDUCTIONS), "none")]
    data, indices = node.type(0).shape, node.type(1).shape
    depth = len(indices) - 1 + len(data) - node.rank(2)  # the updates have the axes of the data behind those
    if not 1 <= depth <= len(data) or not indices or not dims_match(indices[-1], depth):
        raise node.error(f"indices {node.type(1)} into {node.type(0)}", expected=f"updates {node.type(2)} that fit")
    return op.scatter_nd(node[0], _tuples_first(node[1]), node[2], reduction)


@converter("OneHot", since=9)
def one_hot(node: OnnxNode) -> Expr:
    """Out-of-range indices give the off value."""
    known = node.known_value(1)
    depth: Dim = node.sizes(1, "the depth", 1)[0] if known is None else int(known.reshape(-1)[0])
    rank = node.rank(0) + 1
    axis = node.axis(node.attr_int("axis", -1), rank)
    values = node[2]
    indices = node[0] if node.dtype(0).is_int else op.cast(node[0], "int64")
    if isinstance(depth, int):
        check_computed((depth,), node.where)
    line = op.reshape(counted(depth, str(indices.dtype)), [depth if a == axis else 1 for a in range(rank)])
    zero, size = const(0, indices.dtype), op.size_tensor((depth,), (), str(indices.dtype))
    wrapped = op.expand_dims(op.where(op.less(indices, zero), op.add(indices, size), indices), axis)
    off, on = (op.take(values, const(i, "int64"), axis=0, mode="clip") for i in (0, 1))
    return op.where(op.equal(wrapped, line), on, off)


@converter("TopK", since=1)
def top_k_1(node: OnnxNode) -> list[Expr]:
    return _top_k(node, node.attr_int("k"))


@converter("TopK", since=10)
def top_k(node: OnnxNode) -> list[Expr]:
    return _top_k(node, node.sizes(1, "k", 1)[0])


def _top_k(node: OnnxNode, k: Dim) -> list[Expr]:
    node.attrs.ignore("sorted")
    axis = node.axis(node.attr_int("axis", -1), node.rank(0))
    extent = node.type(0).shape[axis]
    if isinstance(k, int) and isinstance(extent, int):
        if not 0 <= k <= extent:
            raise node.error(f"k is {k}", expected=f"0 to {extent}")
    else:
        node.check_equal(k, smaller(k, extent), "k, which is at most the size of the axis")
    ascending = not node.attr_bool("largest", True)
    return list(op.topk(node[0], k, axis, is_ascend=ascending, dtype="int64"))


@converter("CumSum", since=11)
def cum_sum(node: OnnxNode) -> Expr:
    return _cumulate(node, op.cumsum)


@converter("CumProd", since=26)
def cum_prod(node: OnnxNode) -> Expr:
    return _cumulate(node, op.cumprod)


def _cumulate(node: OnnxNode, function: Callable[..., Expr]) -> Expr:
    axis = node.axis(node.constant_ints(1, "the axis")[0], node.rank(0))
    x = node[0]
    backwards, exclusive = node.attr_bool("reverse", False), node.attr_bool("exclusive", False)
    return function(x, axis=axis, dtype=x.dtype, exclusive=exclusive, reverse=backwards)


@converter("ReverseSequence", since=10)
def reverse_sequence(node: OnnxNode) -> Expr:
    time, batch = node.attr_int("time_axis", 0), node.attr_int("batch_axis", 1)
    return op.reverse_sequence(node[0], node[1], seq_axis=time, batch_axis=batch)


@converter("TensorScatter", since=24)
def tensor_scatter(node: OnnxNode) -> Expr:
    """A cache [batch, ...] with `update` written along an axis from a position per batch entry on."""
    shape, new = node.type(0).shape, node.type(1).shape
    axis = node.axis(node.attr_int("axis", -2), len(shape))
    circular = node.attr_choice("mode", ("linear", "circular"), "linear") == "circular"
    extent, length = shape[axis], new[axis]
    if axis == 0 or is_at_least(length, add_sizes(extent, 1)) or not shapes_match(new, with_dim(shape, axis, length)):
        raise node.error(f"an update {node.type(1)} to a cache {node.type(0)} along axis {axis}")
    start = zeros(shape[:1], "int64") if node.get(2) is None else op.cast(node[2], "int64")
    # Element s of the cache is element s - start of the update, if there is one.
    at = op.subtract(counted(extent), op.reshape(start, (shape[0], 1)))
    if circular:
        at = op.floor_mod(at, op.size_tensor((extent,), ()))
    inside = op.logical_and(op.greater_equal(at, const(0, "int64")), op.less(at, op.size_tensor((length,), ())))
    written = op.take(node[1], at, axis=axis, batch_dims=1, mode="clip")
    mask = op.reshape(inside, (shape[0], *[1] * (axis - 1), extent, *[1] * (len(shape) - axis - 1)))
    return op.where(mask, written, node[0])
