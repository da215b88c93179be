"""Softmax and its relatives."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import reshape_to
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Constant, Expr

Normalizer = Callable[[Expr, int], Expr]


def _hardmax(x: Expr, axis: int) -> Expr:
    """1 at the first maximum along `axis`, 0 elsewhere."""
    depth = x.tensor_type.static_shape[axis]
    best = op.argmax(x, axis=axis, keepdims=True)
    shape = [1] * len(x.shape)
    shape[axis] = depth
    line = Constant(np.arange(depth).astype(str(best.dtype)).reshape(shape))
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
    shape = node.shape(0)
    rows = reshape_to(node[0], (math.prod(shape[:axis]), math.prod(shape[axis:])))
    return reshape_to(function(rows, 1), shape)
