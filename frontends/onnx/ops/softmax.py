"""Softmax, LogSoftmax and Hardmax."""

from __future__ import annotations

from collections.abc import Callable

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import reshape_to
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Expr
from relayc.relay.sizes import product
from relayc.te.tir import Dim

__all__ = ["softmax_of"]

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
    return softmax_of(node, node[0], node.op_type, node.attr_int("axis", -1), flat=False)


@converter("Softmax", "LogSoftmax", "Hardmax", since=1)
def softmax_1(node: OnnxNode) -> Expr:
    """Softmax before opset 13, over all axes from `axis` on."""
    return softmax_of(node, node[0], node.op_type, node.attr_int("axis", 1), flat=True)


def softmax_of(node: OnnxNode, x: Expr, name: str, axis: int, flat: bool) -> Expr:
    """The function `name` of `x` along `axis` or, `flat`, over all axes from `axis` on."""
    function, shape = _FUNCTIONS[name], x.shape
    rank = len(shape)
    axis = axis if flat and axis == rank else node.axis(axis, rank)
    if not flat or axis == rank - 1:
        return function(x, axis)
    rows = reshape_to(x, (product(shape[:axis]), product(shape[axis:])))
    return reshape_to(function(rows, 1), shape)
