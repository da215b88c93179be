"""Common-subexpression elimination: what a large formula uses several times is computed once, into a variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relayc.te.ir.node import Node
from relayc.te.ir.visitor import Mutator, post_order
from relayc.te.tir.analysis import always_evaluated
from relayc.te.tir.expr import Let, PrimExpr, Var
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import BufferStore, Stmt

__all__ = ["EliminateCommonSubexpr", "eliminate_common_subexpr"]

_LARGE = 2000
"""The least nodes of a formula, as a tree, that the pass changes. In smaller ones code generators find equal operations
themselves, and rules that match arithmetic patterns (a product that is added, a rounding of a function) see them
whole."""
_WORTH_A_NAME = 16
"""The least nodes of an expression, as a tree, that gets a variable."""


class _Binder(Mutator):
    def visit_default(self, node: Any) -> Any:
        return node if isinstance(node, PrimExpr) else node.rebuild(self.visit)

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        sizes = _written_out(node.value)
        if sizes[id(node.value)] < _LARGE:
            return node
        value = _bound(node.value, sizes)
        return node if value is node.value else node.replace(value=value)


def _written_out(root: PrimExpr) -> dict[int, int]:
    """For the id of each expression in `root`, how many nodes it has as a tree."""
    sizes: dict[int, int] = {}
    for node in post_order(root):
        sizes[id(node)] = 1 + sum([sizes[id(child)] for child in node.node_children()])
    return sizes


def _bound(root: PrimExpr, sizes: Mapping[int, int]) -> PrimExpr:
    """`root` with each expression that several others use bound around the innermost one that contains all of them."""
    nodes: list[Any] = list(post_order(root))[::-1]  # each after all its users
    parents: dict[int, list[Node]] = {}
    for node in nodes:
        for child in node.node_children():
            parents.setdefault(id(child), []).append(node)
    holders = _holders(nodes, parents)
    shared: dict[PrimExpr, list[PrimExpr]] = {}  # by the expression that contains them all, inner ones first
    for node in reversed(nodes):
        is_shared = isinstance(node, PrimExpr) and len(parents.get(id(node), ())) > 1
        if is_shared and sizes[id(node)] >= _WORTH_A_NAME:
            shared.setdefault(holders[id(node)], []).append(node)
    names: dict[int, list[PrimExpr]] = {}
    for holder, held in shared.items():
        evaluated = always_evaluated(holder)
        names[id(holder)] = [expr for expr in held if expr in evaluated]
    return _Rebuilder(names).visit(root) if any(names.values()) else root


def _holders(nodes: Sequence[Any], parents: Mapping[int, Sequence[Node]]) -> dict[int, Any]:
    """The immediate dominator of each expression, by id: the innermost other one on every path from the root."""
    holders: dict[int, Any] = {}
    depth = {id(nodes[0]): 0}
    for node in nodes[1:]:
        first, *others = parents[id(node)]
        for other in others:
            while first is not other:
                if depth[id(first)] >= depth[id(other)]:
                    first = holders[id(first)]
                else:
                    other = holders[id(other)]
        holders[id(node)], depth[id(node)] = first, depth[id(first)] + 1
    return holders


class _Rebuilder(Mutator):
    """Replaces expressions by variables, each bound around the expression that `names` lists it under."""

    def __init__(self, names: Mapping[int, Sequence[PrimExpr]]) -> None:
        self.names = names
        self.done: dict[int, Any] = {}

    def visit(self, node: Any) -> Any:
        if id(node) not in self.done:
            bound = [(Var("shared", e.dtype), e) for e in self.names.get(id(node), ())]
            lets: list[tuple[Var, PrimExpr]] = []
            for var, expr in bound:
                lets.append((var, self.visit(expr)))
                self.done[id(expr)] = var
            new = super().visit(node)
            for var, value in reversed(lets):
                new = Let(var, value, new)
            self.done[id(node)] = new
        return self.done[id(node)]


def eliminate_common_subexpr(func: PrimFunc) -> PrimFunc:
    """The function with common subexpressions of large formulas bound to variables: see `EliminateCommonSubexpr`."""
    return func.with_body(_Binder().visit(func.body))


class EliminateCommonSubexpr(FunctionPass):
    """Subexpressions that a formula, large as a tree, uses several times are computed once. (TVM: `CommonSubexprElim`.)

    Inlined operators may use their arguments several times: a chain of them shares its expressions, but grows
    exponentially as a tree. An expression is bound only where it is evaluated unconditionally, so that no new reads
    occur.
    """

    def function(self, func: PrimFunc) -> PrimFunc:
        return eliminate_common_subexpr(func)
