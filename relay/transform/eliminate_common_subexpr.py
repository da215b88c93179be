"""EliminateCommonSubexpr: equal expressions are computed once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, cast

from relayc.relay.analysis import scopes
from relayc.relay.equal_constants import EqualConstants
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from relayc.relay.op.base import OpDef
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext, post_order, rebuilt

__all__ = ["EliminateCommonSubexpr"]


class EliminateCommonSubexpr(FunctionPass):
    """Calls of one pure operator on the same arguments in the same scope become one; so do equal constants.

    Calls in different branches of an `If` stay apart: merging them would evaluate one that is not needed.
    """

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        placed, _ = scopes(function)
        changed: dict[int, Expr] = {}
        known: dict[Hashable, Expr] = {}
        constants = EqualConstants()
        for e in cast("list[Expr]", list(post_order(function))):
            new = rebuilt(e, changed)
            key = _key(new)
            if isinstance(new, Constant):
                new = constants.first(new)
            elif key is not None:
                new = known.setdefault((id(placed[id(e)]), key), new)
            if new is not e:
                changed[id(e)] = new
        return cast(Function, changed.get(id(function), function))


def _key(e: Expr) -> Hashable | None:
    """A key equal for expressions with equal values; None for expressions that are never merged."""
    if isinstance(e, Call):
        if not isinstance(e.op, OpDef) or e.op.has_side_effect:
            return None
        return (e.op, *[id(a) for a in e.args])
    if isinstance(e, TupleGetItem):
        return (TupleGetItem, id(e.tuple_value), e.index)
    if isinstance(e, Tuple):
        return (Tuple, *[id(f) for f in e.fields])
    return None
