"""CanonicalizeOps: one spelling for what can be said in several ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relay.expr import Call, Constant, Expr
from relay.op.base import OpDef, make_call
from relay.transform.builders import is_call_of, reshaped, transposed
from relay.transform.function_pass import RewritePass
from relay.type import TensorType

__all__ = ["CanonicalizeOps"]

_GLOBAL_POOLS = {"nn.adaptive_avg_pool": "mean", "nn.adaptive_max_pool": "max"}


@dataclass(frozen=True)
class CanonicalizeOps(RewritePass):
    """Views (squeeze, expand_dims) become `reshape`, a bias an `add`, global pooling a reduction, a product with a
    constant matrix a dense layer: all for static shapes.
    """

    opt_level: ClassVar[int] = 1

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, OpDef) or not isinstance(call.ty, TensorType) or not call.ty.is_static:
            return call
        if op.is_view and op.name != "reshape" and len(call.args) == 1:
            return reshaped(call.args[0], call.ty.shape, call.span)
        if is_call_of(call, "nn.bias_add"):
            return _add_bias(call, op.axis % call.ty.ndim)  # type: ignore[attr-defined]
        if is_call_of(call, "nn.batch_matmul"):
            return _as_dense(call)
        if is_call_of(call, *_GLOBAL_POOLS) and all(n == 1 for n in op.output_size):  # type: ignore[attr-defined]
            spatial = tuple([i for i, a in enumerate(op.layout) if a not in "NC"])  # type: ignore[attr-defined]
            return make_call(_GLOBAL_POOLS[op.name], call.args, call.span, axis=spatial, keepdims=True)
        return call


def _add_bias(call: Call, axis: int) -> Expr:
    data, bias = call.args
    behind = len(data.shape) - 1 - axis
    return make_call("add", (data, reshaped(bias, (*bias.shape, *[1] * behind))), call.span)


def _as_dense(call: Call) -> Expr:
    data, weight = call.args
    if not isinstance(weight, Constant) or len(weight.shape) != 2 or call.op.transpose_a:  # type: ignore[union-attr]
        return call
    columns_first = weight if call.op.transpose_b else transposed(weight, (1, 0))  # type: ignore[union-attr]
    return make_call("nn.dense", (data, columns_first), call.span, out_dtype=call.op.out_dtype)  # type: ignore[union-attr]
