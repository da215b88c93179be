"""Softmax and its relatives."""

from __future__ import annotations

from collections.abc import Callable

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import reshape_to
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Expr
from relay.sizes import product
from te.tir import Dim

Normalizer = Callable[[Expr, int], Expr]


def _hardmax(x: Expr, axis: int) -> Expr:
    """1 at the first maximum along `axis`, 0 elsewhere."""
    depth = x.shape[axis]
    best = op.argmax(x, axis=axis, keepdims=True)
    shape: list[Dim] = [1] * len(x.shape)
    shape[axis] = depth
    line = op.reshape(op.arange(0, depth, 1, str(best.dtype)), shape)
    return op.cast(op.equal(best, line), x.dtype)


_FUNCTIONS: dict[str, Normalizer] = {
    "Softmax": lambda x, axis: op.nn.softmax(x, axis=axis),
    "LogSoftmax": lambda x, axis: op.nn.log_softmax(x, axis=axis),
    "Hardmax": _hardmax,
}


@converter("Softmax", "LogSoftmax", "Hardmax", since=13)
def softmax_13(node: OnnxNode) -> Expr:
    axis = node.axis(node.attr_int("axis", -1), node.rank(0))
    return _FUNCTIONS[node.op_type](node[0], axis)


@converter("Softmax", "LogSoftmax", "Hardmax", since=1)
def softmax_1(node: OnnxNode) -> Expr:
    """Before opset 13 all axes from `axis` on are normalised together."""
    function, rank = _FUNCTIONS[node.op_type], node.rank(0)
    axis = node.attr_int("axis", 1)
    axis = axis if axis == rank else node.axis(axis, rank)
    if axis == rank - 1:
        return function(node[0], axis)
    shape = node.type(0).shape
    rows = reshape_to(node[0], (product(shape[:axis]), product(shape[axis:])))
    return reshape_to(function(rows, 1), shape)
