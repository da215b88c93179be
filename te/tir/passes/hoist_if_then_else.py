"""Loop unswitching: branches that do not depend on a loop move out of it."""

from __future__ import annotations

from relayc.te.ir.visitor import Mutator, post_order
from relayc.te.tir.expr import And, BufferLoad, PrimExpr, Var
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.passes.remove_no_op import is_pure
from relayc.te.tir.stmt import For, IfThenElse, Stmt
from relayc.te.tir.substitute import fresh_copy

__all__ = ["HoistIfThenElse", "hoist_if_then_else"]


class _Hoister(Mutator):
    """Hoists branches, inner loops first, so that each moves as far out as possible."""

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: For) -> Stmt:
        return _hoisted(node.rebuild(self.visit))


def _hoisted(loop: For) -> Stmt:
    """The loop inside the branches that fill it."""
    branch = loop.body
    if not isinstance(branch, IfThenElse):
        return loop
    fixed, moving = _split(branch.condition, loop.loop_var)
    if not fixed or (moving and branch.else_case is not None):
        return loop
    inner = branch.then_case if not moving else IfThenElse(_all(moving), branch.then_case, span=branch.span)
    else_loop: Stmt | None = None
    if branch.else_case is not None:
        else_loop = fresh_copy(loop.replace(body=branch.else_case))
    return IfThenElse(_all(fixed), _hoisted(loop.replace(body=inner)), else_loop, span=branch.span)


def _split(condition: PrimExpr, var: Var) -> tuple[list[PrimExpr], list[PrimExpr]]:
    """The conjuncts that are the same in every iteration, and the others."""
    if isinstance(condition, And):
        (fixed, moving), (more_fixed, more_moving) = _split(condition.a, var), _split(condition.b, var)
        # a conjunct may guard those after it: none moves past one that stays
        return (fixed, moving + more_fixed + more_moving) if moving else (fixed + more_fixed, more_moving)
    varies = any(n is var or isinstance(n, BufferLoad) for n in post_order(condition)) or not is_pure(condition)
    return ([], [condition]) if varies else ([condition], [])


def _all(conditions: list[PrimExpr]) -> PrimExpr:
    result = conditions[0]
    for condition in conditions[1:]:
        result = And(result, condition)
    return result


def hoist_if_then_else(func: PrimFunc) -> PrimFunc:
    """The function with branches moved out of the loops that they fill and do not depend on.

    Conditions that read memory stay. (TVM: `HoistIfThenElse`.)
    """
    return func.with_body(_Hoister().visit(func.body))


class HoistIfThenElse(FunctionPass):
    """`for i: if c: body` becomes `if c: for i: body` where c does not depend on i."""

    def function(self, func: PrimFunc) -> PrimFunc:
        return hoist_if_then_else(func)


