"""Reductions over axes, and ArgMax / ArgMin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import in_float32
from relayc.frontends.onnx.registry import convert_with, converter
from relayc.relay import op
from relayc.relay.expr import Expr, const

Reducer = Callable[[Expr, tuple[int, ...], bool], Expr]


def _square_sum(x: Expr, axis: tuple[int, ...], keepdims: bool) -> Expr:
    return in_float32(lambda v: op.sum(op.multiply(v, v), axis=axis, keepdims=keepdims), x)


def _norm(x: Expr, axis: tuple[int, ...], keepdims: bool) -> Expr:
    return in_float32(lambda v: op.sqrt(_square_sum(v, axis, keepdims)), x)


def _log_sum(x: Expr, axis: tuple[int, ...], keepdims: bool) -> Expr:
    return in_float32(lambda v: op.log(op.sum(v, axis=axis, keepdims=keepdims)), x)


_REDUCERS: dict[str, Reducer] = {
    "ReduceL1": lambda x, axis, keep: op.sum(op.abs(x), axis=axis, keepdims=keep),
    "ReduceL2": _norm,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": lambda x, axis, keep: op.log_sum_exp(x, axis=axis, keepdims=keep),
    "ReduceMax": lambda x, axis, keep: op.max(x, axis=axis, keepdims=keep),
    "ReduceMean": lambda x, axis, keep: op.mean(x, axis=axis, keepdims=keep),
    "ReduceMin": lambda x, axis, keep: op.min(x, axis=axis, keepdims=keep),
    "ReduceProd": lambda x, axis, keep: op.prod(x, axis=axis, keepdims=keep),
    "ReduceSum": lambda x, axis, keep: op.sum(x, axis=axis, keepdims=keep),
    "ReduceSumSquare": _square_sum,
}


def _whole_norm(x: Expr, axis: tuple[int, ...], keepdims: bool) -> Expr:
    """The norm of integers, rounded towards zero; at most the largest value of a 32-bit type."""
    norm = _norm(op.cast(x, "float64"), axis, keepdims)
    limit = float(np.iinfo(str(x.dtype)).max)
    return op.cast(op.minimum(norm, const(limit, "float64")) if x.dtype.bits <= 32 else norm, x.dtype)


def _whole_log_sum(x: Expr, axis: tuple[int, ...], keepdims: bool) -> Expr:
    """The logarithm of a sum of integers, rounded towards zero; the lowest value for a sum of 0 or less."""
    total = op.sum(op.cast(x, "float64"), axis=axis, keepdims=keepdims)
    return op.cast(op.log(op.maximum(total, const(0.0, "float64"))), x.dtype)


def _whole_log_sum_exp(x: Expr, axis: tuple[int, ...], keepdims: bool) -> Expr:
    """The logarithm of the sum of e^x, rounded towards zero.

    Of signed integers the largest counts only, as in onnxruntime: each e^(x - largest) is rounded towards zero there.
    """
    if x.dtype.is_uint:
        return op.cast(op.log_sum_exp(op.cast(x, "float64"), axis=axis, keepdims=keepdims), x.dtype)
    largest = op.equal(x, op.max(x, axis=axis, keepdims=True))
    count = op.sum(op.cast(largest, "float64"), axis=axis, keepdims=keepdims)
    top = op.cast(op.max(x, axis=axis, keepdims=keepdims), "float64")
    return op.cast(op.add(op.log(count), top), x.dtype)


_WHOLE: dict[str, Reducer] = {
    "ReduceL2": _whole_norm,
    "ReduceLogSum": _whole_log_sum,
    "ReduceLogSumExp": _whole_log_sum_exp,
}
"""Reductions of integers whose results are real numbers, rounded towards zero."""

_BOOLEAN = {"ReduceMax": op.any, "ReduceMin": op.all}


def _reduce(node: OnnxNode, axes: Sequence[int] | None) -> Expr:
    """Reduce over `axes`, or over all if there are none, unless noop_with_empty_axes is set."""
    rank = node.rank(0)
    keepdims = node.attr_bool("keepdims", True)
    noop = node.attr_bool("noop_with_empty_axes", False)
    if not axes and noop:
        return _pointwise(node)
    chosen = node.axes(axes, rank) if axes else tuple(range(rank))
    x = node[0]
    if x.dtype.is_bool and node.op_type in _BOOLEAN:
        return _BOOLEAN[node.op_type](x, axis=chosen, keepdims=keepdims)
    return _reducer(node.op_type, x)(x, chosen, keepdims)


def _reducer(op_type: str, x: Expr) -> Reducer:
    return _REDUCERS[op_type] if x.dtype.is_float else _WHOLE.get(op_type, _REDUCERS[op_type])


def _pointwise(node: OnnxNode) -> Expr:
    """The reduction over no axes: the elementwise part, before and after summing."""
    x = node[0]
    if node.op_type in ("ReduceL1", "ReduceL2"):
        return op.abs(x)
    if node.op_type == "ReduceSumSquare":
        return op.multiply(x, x)
    return _reducer(node.op_type, x)(x, (), False) if node.op_type == "ReduceLogSum" else x


def _reduce_attribute(node: OnnxNode) -> Expr:
    return _reduce(node, node.attrs.get_ints("axes"))


def _reduce_input(node: OnnxNode) -> Expr:
    return _reduce(node, node.constant_ints(1, "the axes") if node.get(1) is not None else None)


for _name in _REDUCERS:
    convert_with(_reduce_attribute, _name, since=1)
    convert_with(_reduce_input, _name, since=13 if _name == "ReduceSum" else 18)


@converter("ArgMax", "ArgMin")
def arg_extreme(node: OnnxNode) -> Expr:
    axis = node.axis(node.attr_int("axis", 0), node.rank(0))
    function = op.argmax if node.op_type == "ArgMax" else op.argmin
    keepdims, last = node.attr_bool("keepdims", True), node.attr_bool("select_last_index", False)
    return op.cast(function(node[0], axis=axis, keepdims=keepdims, select_last_index=last), "int64")
