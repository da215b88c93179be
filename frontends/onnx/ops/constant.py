"""Operators that make tensors from attributes and shapes."""

from __future__ import annotations

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import like
from frontends.onnx.registry import converter
from frontends.onnx.tensors import check_computed, check_shape, numpy_dtype
from relay.expr import Constant, Expr


@converter("Constant")
def constant(node: OnnxNode) -> Expr:
    """Exactly one of the value attributes is given."""
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
    if "value_string" in attrs or "value_strings" in attrs:
        raise node.unsupported("string tensors")
    raise node.error("no value", expected="one of value, sparse_value, value_float(s), value_int(s)")


@converter("ConstantOfShape", since=9)
def constant_of_shape(node: OnnxNode) -> Expr:
    """The value in every element; the array is one number with strides 0, whatever the shape."""
    shape = node.constant_ints(0, "the shape")
    check_shape(shape, node.where)
    value = node.attr_tensor("value")
    if value is not None and value.size != 1:
        raise node.error(f"the value has {value.size} elements", expected="one element")
    scalar = np.zeros((), np.float32) if value is None else value.reshape(())
    return like(scalar, shape)


@converter("Shape", since=1)
def shape_of(node: OnnxNode) -> Expr:
    rank = node.rank(0)
    start = node.attr_int("start", 0)
    end = node.attr_int("end", rank)
    dims = node.type(0).shape[_clamped(start, rank) : _clamped(end, rank)]
    if not all(isinstance(d, int) for d in dims):
        raise node.value_needed(f"the shape {node.type(0)} is not all known when compiling", node[0])
    return Constant(np.array(dims, np.int64))


def _clamped(index: int, rank: int) -> int:
    return min(max(index + rank if index < 0 else index, 0), rank)


@converter("Size")
def size(node: OnnxNode) -> Expr:
    return Constant(np.array(np.prod(node.shape(0), dtype=np.int64), np.int64))


@converter("EyeLike", since=9)
def eye_like(node: OnnxNode) -> Expr:
    shape = node.shape(0)
    if len(shape) != 2:
        raise node.error(f"an input of rank {len(shape)}", expected="a matrix")
    check_computed(shape, node.where)
    dtype = node.attrs.get_int("dtype")
    numpy_type = np.dtype(str(node.dtype(0))) if dtype is None else numpy_dtype(dtype, node.where)
    return Constant(np.eye(*shape, k=node.attr_int("k", 0)).astype(numpy_type))


@converter("Range", since=11)
def range_(node: OnnxNode) -> Expr:
    """start, start + delta, ... up to, not including, the limit."""
    start, limit, delta = (node.constant(i, what) for i, what in enumerate(("the start", "the limit", "the delta")))
    if delta.size != 1 or delta.reshape(-1)[0] == 0:
        raise node.error("a delta of 0", expected="a step other than 0")
    first, step = start.reshape(-1)[0], delta.reshape(-1)[0]
    with np.errstate(all="ignore"):
        span = (np.float64(limit.reshape(-1)[0]) - np.float64(first)) / np.float64(step)
    count = max(int(np.ceil(span)), 0) if np.isfinite(span) else 0
    check_computed((count,), node.where)
    return Constant((first + np.arange(count, dtype=start.dtype) * step).astype(start.dtype))
