"""DeadCodeElimination: drops unused values, tuple fields and functions."""

from __future__ import annotations

from typing import ClassVar, cast

from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Call, Expr, Function, GlobalVar, Let, Tuple, TupleGetItem, Var
from relayc.relay.op.base import OpDef
from relayc.te.ir import IRModule, Pass, PassContext, post_order, rewrite_dag

__all__ = ["DeadCodeElimination"]


class DeadCodeElimination(Pass):
    """Drops unused `Let` values without side effects, unused tuple fields, and functions not reachable from "main".

    In a DAG an unused expression does not exist to begin with.
    """

    opt_level: ClassVar[int] = 1

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return _reachable(module.map_functions(_clean))


def _clean(function: Function) -> Function:
    used = {id(child) for e in evaluation_order(function) for child in e.node_children() if isinstance(child, Var)}
    impure: set[int] = set()
    for e in post_order(function):
        own = isinstance(e, Call) and (not isinstance(e.op, OpDef) or e.op.has_side_effect)
        if own or any(id(child) in impure for child in e.node_children()):
            impure.add(id(e))
    dead = {id(e.var) for e in post_order(function) if isinstance(e, Let) and id(e.value) not in impure}

    def visit(e: Expr) -> Expr:
        if isinstance(e, Let) and id(e.var) in dead and id(e.var) not in used:
            return e.body
        if isinstance(e, TupleGetItem) and isinstance(e.tuple_value, Tuple):
            return e.tuple_value.fields[e.index]
        return e

    return cast(Function, rewrite_dag(function, visit))


def _reachable(module: IRModule) -> IRModule:
    if "main" not in module:
        return module
    reached, pending = {"main"}, ["main"]
    while pending:
        for e in evaluation_order(module[pending.pop()]):
            if isinstance(e, GlobalVar) and e.name not in reached:
                reached.add(e.name)
                pending.append(e.name)
    if len(reached) == len(module):
        return module
    return module.with_functions({name: f for name, f in module.functions.items() if name in reached})
