"""CanonicalizeOps: one spelling for what can be said in several ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relay.expr import Call, Expr
from relay.op import get_op
from relay.op.base import OpDef, make_call
from relay.transform.function_pass import RewritePass
from relay.type import TensorType

__all__ = ["CanonicalizeOps"]


@dataclass(frozen=True)
class CanonicalizeOps(RewritePass):
    """Views (squeeze, expand_dims, flatten) become `reshape`; `nn.bias_add` becomes `add` of a reshaped bias.

    Only with static shapes, where `reshape` can name its result.
    """

    opt_level: ClassVar[int] = 1

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, OpDef) or not isinstance(call.ty, TensorType) or not call.ty.is_static:
            return call
        if op.is_view and op.name != "reshape":
            return make_call("reshape", call.args, call.span, newshape=call.ty.shape)
        if op.name == "nn.bias_add":
            return _add_bias(call, call.ty)
        return call


def _add_bias(call: Call, ty: TensorType) -> Expr:
    data, bias = call.args
    assert isinstance(call.op, get_op("nn.bias_add"))
    axis = call.op.axis % ty.ndim  # type: ignore[attr-defined]
    behind = ty.ndim - 1 - axis
    if behind:
        bias = make_call("reshape", (bias,), call.span, newshape=(*bias.shape, *[1] * behind))
    return make_call("add", (data, bias), call.span)
