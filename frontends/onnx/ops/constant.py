"""Operators that make tensors from attributes and shapes."""

from __future__ import annotations

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import counted, like
from relayc.frontends.onnx.registry import converter
from relayc.frontends.onnx.tensors import check_computed, check_shape, dtype_name
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, const
from relayc.relay.sizes import product


@converter("Constant")
def constant(node: OnnxNode) -> Expr:
    """Exactly one value attribute must be set."""
    tensor = node.attr_tensor("value")
    if tensor is None:
        tensor = node.attr_sparse_tensor("sparse_value")
    if tensor is not None:
        return Constant(tensor)
    attrs = node.attrs
    for values, dtype in (
        (attrs.get_float("value_float"), np.float32),
        (attrs.get_floats("value_floats"), np.float32),
        (attrs.get_int("value_int"), np.int64),
        (attrs.get_ints("value_ints"), np.int64),
    ):
        if values is not None:
            return Constant(np.array(values, dtype))
    if "value_string" in attrs:
        return Constant(np.array(node.attr_str("value_string"), object))
    if "value_strings" in attrs:
        return Constant(np.array(attrs.get_strings("value_strings"), object))
    raise node.error("no value", expected="one of value, sparse_value, value_float(s), value_int(s), value_string(s)")


@converter("ConstantOfShape", since=9)
def constant_of_shape(node: OnnxNode) -> Expr:
    """A broadcast scalar, stored with strides 0."""
    shape = node.sizes(0, "the shape")
    check_shape(tuple(d for d in shape if isinstance(d, int)), node.where)
    value = node.attr_tensor("value")
    if value is not None and value.size != 1:
        raise node.error(f"the value has {value.size} elements", expected="one element")
    scalar = np.zeros((), np.float32) if value is None else value.reshape(())
    known = tuple(d for d in shape if isinstance(d, int))
    if len(known) == len(shape):
        return like(scalar, known)
    return op.broadcast_to(Constant(scalar), shape)


@converter("Shape", since=1)
def shape_of(node: OnnxNode) -> Expr:
    rank = node.rank(0)
    start = node.attr_int("start", 0)
    end = node.attr_int("end", rank)
    dims = node.type(0).shape[_clamped(start, rank) : _clamped(end, rank)]
    return op.size_tensor(dims)


def _clamped(index: int, rank: int) -> int:
    return min(max(index + rank if index < 0 else index, 0), rank)


@converter("Size")
def size(node: OnnxNode) -> Expr:
    return op.size_tensor((product(node.type(0).shape),), ())


@converter("EyeLike", since=9)
def eye_like(node: OnnxNode) -> Expr:
    shape = node.type(0).shape
    if len(shape) != 2:
        raise node.error(f"an input of rank {len(shape)}", expected="a matrix")
    wanted = node.attrs.get_int("dtype")
    dtype = str(node.dtype(0)) if wanted is None else dtype_name(wanted, node.where)
    rows, columns = (counted(d) for d in shape)
    diagonal = op.add(op.reshape(rows, (shape[0], 1)), const(node.attr_int("k", 0), "int64"))
    return op.cast(op.equal(diagonal, columns), dtype)


@converter("Range", since=11)
def range_(node: OnnxNode) -> Expr:
    """start, start + delta, ... up to, not including, the limit."""
    return spanned(node)


def spanned(node: OnnxNode) -> Expr:
    """Convert Range; inputs: start, limit, delta."""
    if any(node.known_value(i) is None for i in range(3)):
        return _range_dynamic(node)
    start, limit, delta = (node.constant(i, what) for i, what in enumerate(("the start", "the limit", "the delta")))
    if delta.size != 1 or delta.reshape(-1)[0] == 0:
        raise node.error("a delta of 0", expected="a step other than 0")
    first, step = start.reshape(-1)[0], delta.reshape(-1)[0]
    with np.errstate(all="ignore"):
        span = (np.float64(limit.reshape(-1)[0]) - np.float64(first)) / np.float64(step)
    count = max(int(np.ceil(span)), 0) if np.isfinite(span) else 0
    check_computed((count,), node.where)
    return Constant((first + np.arange(count, dtype=start.dtype) * step).astype(start.dtype))


def _range_dynamic(node: OnnxNode) -> Expr:
    """Range with symbolic or computed limits; the program may compute the count."""
    known = [node.sizes_or_none(i) if node.dtype(i).is_int else None for i in range(3)]
    (start,), (limit,), (step,) = (dims if dims is not None and len(dims) == 1 else (None,) for dims in known)
    if start is not None and limit is not None and isinstance(step, int) and step > 0:
        return op.arange(start, limit, step, str(node.dtype(0)))
    first, last, delta = (op.reshape(node[i], ()) for i in range(3))
    span = op.subtract(last, first)
    stands_still = op.equal(delta, const(0, node.dtype(0)))
    if node.dtype(0).is_int:
        zero = const(0, node.dtype(0))
        up = op.greater(delta, zero)
        unit = op.where(up, const(1, node.dtype(0)), const(-1, node.dtype(0)))
        count = op.floor_divide(op.subtract(op.add(span, delta), unit), delta)
    else:
        count = op.ceil(op.divide(span, delta))
        stands_still = op.logical_or(stands_still, op.logical_or(op.isnan(count), op.isinf(count)))
    whole = op.maximum(op.cast(count, "int64"), const(0, "int64"))
    whole = op.where(stands_still, const(-1, "int64"), whole)  # an invalid size
    (size,) = node.bind(whole, "the number of elements")
    return op.add(first, op.multiply(op.arange(0, size, 1, str(node.dtype(0))), delta))
