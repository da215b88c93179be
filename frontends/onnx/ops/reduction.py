"""Reductions over axes, and ArgMax / ArgMin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.registry import convert_with, converter
from relayc.relay import op
from relayc.relay.expr import Expr

Reducer = Callable[[Expr, tuple[int, ...], bool], Expr]


def _square_sum(x: Expr, axis: tuple[int, ...], keepdims: bool) -> Expr:
    return op.sum(op.multiply(x, x), axis=axis, keepdims=keepdims)


_REDUCERS: dict[str, Reducer] = {
    "ReduceL1": lambda x, axis, keep: op.sum(op.abs(x), axis=axis, keepdims=keep),
    "ReduceL2": lambda x, axis, keep: op.sqrt(_square_sum(x, axis, keep)),
    "ReduceLogSum": lambda x, axis, keep: op.log(op.sum(x, axis=axis, keepdims=keep)),
    "ReduceLogSumExp": lambda x, axis, keep: op.log_sum_exp(x, axis=axis, keepdims=keep),
    "ReduceMax": lambda x, axis, keep: op.max(x, axis=axis, keepdims=keep),
    "ReduceMean": lambda x, axis, keep: op.mean(x, axis=axis, keepdims=keep),
    "ReduceMin": lambda x, axis, keep: op.min(x, axis=axis, keepdims=keep),
    "ReduceProd": lambda x, axis, keep: op.prod(x, axis=axis, keepdims=keep),
    "ReduceSum": lambda x, axis, keep: op.sum(x, axis=axis, keepdims=keep),
    "ReduceSumSquare": _square_sum,
}

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
    return _REDUCERS[node.op_type](x, chosen, keepdims)


def _pointwise(node: OnnxNode) -> Expr:
    """The reduction over no axes: the elementwise part, before and after summing."""
    x = node[0]
    if node.op_type in ("ReduceL1", "ReduceL2"):
        return op.abs(x)
    if node.op_type == "ReduceSumSquare":
        return op.multiply(x, x)
    return op.log(x) if node.op_type == "ReduceLogSum" else x


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
