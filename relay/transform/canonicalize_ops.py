"""CanonicalizeOps: one spelling for what can be said in several ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relay.expr import Call, Expr
from relay.op.base import OpDef
from relay.transform.builders import reshaped
from relay.transform.function_pass import RewritePass
from relay.type import TensorType

__all__ = ["CanonicalizeOps"]


@dataclass(frozen=True)
class CanonicalizeOps(RewritePass):
    """Views (squeeze, expand_dims, flatten) of static shape become `reshape`."""

    opt_level: ClassVar[int] = 1

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, OpDef) or not op.is_view or op.name == "reshape":
            return call
        if len(call.args) != 1 or not isinstance(call.ty, TensorType) or not call.ty.is_static:
            return call
        return reshaped(call.args[0], call.ty.shape, call.span)
