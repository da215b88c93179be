"""Matrix products: MatMul, Gemm."""

from __future__ import annotations

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import float_const, require_rank, transposed
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.type import dims_match

__all__ = ["general_product", "matmul", "scaled"]


@converter("MatMul", since=1)
def mat_mul(node: OnnxNode) -> Expr:
    return matmul(node, node[0], node[1])


def matmul(node: OnnxNode, a: Expr, b: Expr) -> Expr:
    """numpy's matmul: a [.., M, K] by b [.., K, N], leading axes broadcast, vectors promoted.

    A 2-D right operand gives one product of all rows (`nn.dense`); everything else is `nn.matmul`.
    """
    a_shape, b_shape = a.shape, b.shape
    if not a_shape or not b_shape:
        raise node.error("a scalar operand", expected="vectors or matrices")
    if len(a_shape) == 1:
        product = matmul(node, op.expand_dims(a, 0), b)
        return op.squeeze(product, axis=(-2 if len(b_shape) > 1 else 0,))
    if len(b_shape) == 1:
        return op.squeeze(matmul(node, a, op.expand_dims(b, 1)), axis=(-1,))
    if not dims_match(a_shape[-1], b_shape[-2]):
        raise node.error(f"matrices {a.ty} and {b.ty}", expected=f"the right one to have {a_shape[-1]} rows")
    if len(b_shape) == 2:
        return op.nn.dense(a, transposed(b, (1, 0)))
    return op.nn.matmul(a, b)


@converter("Gemm", since=1)
def gemm(node: OnnxNode) -> Expr:
    return general_product(node)


def general_product(node: OnnxNode) -> Expr:
    """alpha * A' * B' + beta * C."""
    alpha, beta = node.attr_float("alpha", 1.0), node.attr_float("beta", 1.0)
    node.attrs.ignore("broadcast")
    for index in (0, 1):
        require_rank(node, index, 2, 2)
    a = transposed(node[0], (1, 0)) if node.attr_bool("transA", False) else node[0]
    weights = node[1] if node.attr_bool("transB", False) else transposed(node[1], (1, 0))
    product = op.nn.dense(a, scaled(weights, alpha) if isinstance(weights, Constant) else weights)
    if not isinstance(weights, Constant):
        product = scaled(product, alpha)
    if node.get(2) is None or beta == 0.0:
        return product
    return op.add(product, scaled(node[2], beta))


def scaled(x: Expr, factor: float) -> Expr:
    """`x` times a scalar."""
    return x if factor == 1.0 else op.multiply(x, float_const(factor, x))


@converter("Det", since=11)
def det(node: OnnxNode) -> Expr:
    return op.det(node[0])
