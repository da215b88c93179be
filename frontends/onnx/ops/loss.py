"""Losses: negative log likelihood and softmax cross entropy."""

from __future__ import annotations

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import in_float32
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, const
from relayc.relay.type import shapes_match
from relayc.te.tir import Dim


@converter("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood(node: OnnxNode) -> Expr:
    return _loss(node, node[0])


@converter("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(node: OnnxNode) -> list[Expr | None]:
    """The loss and the log-probabilities."""
    logarithms = op.nn.log_softmax(node[0], axis=1)
    return [_loss(node, logarithms), logarithms]


def _loss(node: OnnxNode, logarithms: Expr) -> Expr:
    """-weight[target] * logarithms[n, target, ...], reduced; targets equal to `ignore_index` are masked."""
    target, classes = node[1], node.type(0).shape[1]
    reduction = node.attr_choice("reduction", ("mean", "sum", "none"), "mean")
    ignored = node.attrs.get_int("ignore_index")
    picked = op.gather(logarithms, 1, op.expand_dims(_inside(target, ignored), 1))
    loss = op.negative(op.squeeze(picked, axis=(1,)))
    weight = _weights(node, target, ignored, classes, loss)
    if weight is not None:
        loss = op.multiply(loss, weight)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return op.sum(loss)
    if weight is None:
        return op.mean(loss)
    return in_float32(lambda v: op.divide(op.sum(v), op.sum(op.cast(weight, v.dtype))), loss)


def _inside(target: Expr, ignored: int | None) -> Expr:
    """`target` with ignored entries, which may be out of range, replaced by class 0."""
    if ignored is None:
        return target
    return op.where(op.equal(target, const(ignored, target.dtype)), const(0, target.dtype), target)


def _weights(node: OnnxNode, target: Expr, ignored: int | None, classes: Dim, like: Expr) -> Expr | None:
    """The weight of each element; None when all are 1."""
    passed = node.get(2)
    if passed is not None and not shapes_match(passed.shape, (classes,)):
        raise node.error(f"weights {passed.ty}", expected=f"the shape ({classes},)")
    if passed is None and ignored is None:
        return None
    one = const(1.0, like.dtype)
    weight = one if passed is None else op.take(passed, _inside(target, ignored), axis=0, mode="clip")
    if ignored is None:
        return weight
    counts = op.not_equal(target, const(ignored, target.dtype))
    return op.where(counts, weight, Constant(one.data * 0))
