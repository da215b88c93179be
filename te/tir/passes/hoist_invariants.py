"""Loop-invariant code motion for index arithmetic that takes more than an instruction or two.

A fused index is split by dividing it by sizes, and the last register tile begins at a minimum. Division by a constant
compiles to multiplications, a minimum to a comparison and a move that depends on flags, which LLVM's code generator
leaves in the loop; division by a variable is one of the slowest instructions, and no compiler hoists it, because that
might divide by 0 where the program does not. Sums, products and shifts are left to the code generator. A position that
is selected in all lanes of a vector, as by a search for an extremum, is a broadcast.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from relayc.te.arith import Analyzer
from relayc.te.dtype import INT32, INT64
from relayc.te.ir.node import Node
from relayc.te.ir.visitor import Mutator, post_order
from relayc.te.tir import ops
from relayc.te.tir.analysis import contains, contents_of, nodes_with
from relayc.te.tir.expr import (
    EQ,
    Broadcast,
    BufferLoad,
    Call,
    Div,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Max,
    Min,
    Mod,
    PrimExpr,
    Range,
    Select,
    Var,
)
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import For, IfThenElse, LetStmt, Stmt

__all__ = ["HoistInvariants", "hoist_invariants"]

_HOISTED = frozenset((FloorDiv, FloorMod, Min, Max, Select))
_TRUNCATING = {FloorDiv: Div, FloorMod: Mod}


@dataclass(slots=True)
class _Scope:
    """The body of a loop or of a `LetStmt`, and the values to compute at its beginning, by their keys."""

    values: dict[Hashable, tuple[Var, PrimExpr]] = field(default_factory=dict)

    def around(self, body: Stmt) -> Stmt:
        for var, value in reversed(self.values.values()):
            body = LetStmt(var, value, body)
        return body


class _Hoister(Mutator):
    def __init__(self, func: PrimFunc) -> None:
        self.analyzer = Analyzer()
        self.scopes = [_Scope()]
        self.depth: dict[Var, int] = {}
        """depth of the scope that defines a variable; sizes and parameters have none"""
        self.data: set[Var] = set()
        """variables that hold loaded data or are bound inside an expression; divisions by them stay guarded"""
        self.changed = nodes_with(func.body, _HOISTED, _is_hoisted)
        self.done: dict[PrimExpr, PrimExpr] = {}
        """what became of expressions in the innermost scope, under the facts that hold here"""

    def visit(self, node: Any) -> Any:
        if id(node) not in self.changed:
            return node
        if not isinstance(node, PrimExpr):
            return super().visit(node)
        if node not in self.done:
            self.done[node] = super().visit(node)
        return self.done[node]

    @contextmanager
    def _apart(self) -> Generator[None]:
        """A context in which expressions are visited anew."""
        outside, self.done = self.done, {}
        yield
        self.done = outside

    def visit_For(self, node: For) -> Stmt:
        low, extent = self.visit(node.min), self.visit(node.extent)
        self.analyzer.bind(node.loop_var, Range(node.min, node.extent))
        return node.replace(min=low, extent=extent, body=self._inside(node.loop_var, node.body))

    def visit_Let(self, node: Let) -> PrimExpr:
        self.data.add(node.var)
        return node.rebuild(self.visit)

    def visit_LetStmt(self, node: LetStmt) -> Stmt:
        if any(self._is_data(part) for part in post_order(node.value)):
            self.data.add(node.var)
        return node.replace(value=self.visit(node.value), body=self._inside(node.var, node.body))

    def _inside(self, var: Var, body: Stmt) -> Stmt:
        self.depth[var] = len(self.scopes)
        self.scopes.append(_Scope())
        with self._apart():
            visited = self.visit(body)
        return self.scopes.pop().around(visited)

    def visit_IfThenElse(self, node: IfThenElse) -> Stmt:
        then_case = node.then_case
        if id(then_case) in self.changed:
            with self.analyzer.constraint(node.condition), self._apart():
                then_case = self.visit(then_case)
        else_case = None if node.else_case is None else self.visit(node.else_case)
        return node.replace(condition=self.visit(node.condition), then_case=then_case, else_case=else_case)

    def visit_FloorDiv(self, node: FloorDiv) -> PrimExpr:
        return self._division(node, "quotient")

    def visit_FloorMod(self, node: FloorMod) -> PrimExpr:
        return self._division(node, "remainder")

    def visit_Min(self, node: Min) -> PrimExpr:
        return self._invariant(node, node.rebuild(self.visit), "minimum")

    def visit_Max(self, node: Max) -> PrimExpr:
        return self._invariant(node, node.rebuild(self.visit), "maximum")

    def visit_Select(self, node: Select) -> PrimExpr:
        made: Select = node.rebuild(self.visit)
        if not _is_hoisted(node):
            return made
        return made.replace(true_value=self._chosen(made.true_value), false_value=self._chosen(made.false_value))

    def _chosen(self, made: PrimExpr) -> PrimExpr:
        """A side of a selection, broadcast outside of the innermost loop if it does not depend on that."""
        depth = self._depth_of(made) if _is_position(made) else None
        if depth is None or depth == len(self.scopes) - 1:
            return made
        return self._computed(made, (made,), depth, "position")

    def _division(self, node: FloorDiv | FloorMod, name: str) -> PrimExpr:
        made: FloorDiv | FloorMod = node.rebuild(self.visit)
        if not _is_hoisted(node):
            return made
        if isinstance(node.b, IntImm):
            return self._invariant(node, made, name)
        never_negative = all(self.analyzer.can_prove_less_equal(0, x) for x in (node.a, node.b))
        kind = _TRUNCATING[type(node)] if never_negative else type(node)
        depth = self._depth_of(made)
        if depth is None:
            return kind(made.a, made.b)
        return self._computed(kind(made.a, self._without_zero(node.b, made.b)), (made.a, made.b), depth, name)

    def _invariant(self, node: PrimExpr, made: Any, name: str) -> PrimExpr:
        """What became of `node`, computed outside of the innermost loop if it does not depend on that."""
        depth = self._depth_of(made) if _is_hoisted(node) else None
        if depth is None or depth == len(self.scopes) - 1:
            return made
        return self._computed(made, (made.a, made.b), depth, name)

    def _computed(self, value: PrimExpr, operands: tuple[PrimExpr, ...], depth: int, name: str) -> Var:
        """The variable that the scope at `depth` computes: `value`, of equal `operands` once."""
        values, key = self.scopes[depth].values, (type(value), value.dtype, *map(_key, operands))
        if key not in values:
            var = Var(name, value.dtype)
            values[key] = var, value
            self.depth[var] = depth
        return values[key][0]

    def _without_zero(self, divisor: PrimExpr, made: PrimExpr) -> PrimExpr:
        """`made`, the value of `divisor`, with 0 replaced by 1."""
        one = ops.make_const(made.dtype, 1)
        if self.analyzer.can_prove_less(0, divisor):
            return made
        if self.analyzer.can_prove_less_equal(0, divisor):
            return Max(made, one)
        return Select(EQ(made, ops.make_const(made.dtype, 0)), one, made)

    def _depth_of(self, division: PrimExpr) -> int | None:
        """The outermost scope that has all variables of a division; None outside of loops or if it depends on data."""
        if len(self.scopes) == 1:
            return None
        nodes = list(post_order(division))
        if any(map(self._is_data, nodes)):
            return None
        return max([1, *[self.depth.get(n, 0) for n in nodes if isinstance(n, Var)]])

    def _is_data(self, node: object) -> bool:
        return isinstance(node, BufferLoad | Call) or node in self.data


def _is_hoisted(node: Any) -> bool:
    """Whether this may move: a minimum, a maximum or a division of indices, but by powers of two, which are shifts.

    Of a selection, a position may.
    """
    if isinstance(node, Select):
        return _is_position(node.true_value) or _is_position(node.false_value)
    if node.dtype not in (INT32, INT64):
        return False
    return isinstance(node, Min | Max) or not isinstance(node.b, IntImm) or node.b.value & (node.b.value - 1) != 0


def _is_position(expr: PrimExpr) -> bool:
    """Whether all lanes have the same integer, one that varies."""
    if not isinstance(expr, Broadcast) or isinstance(expr.value, IntImm):
        return False
    return expr.value.dtype in (INT32, INT64)


def _key(expr: Node) -> Hashable:
    """A key that is equal for structurally equal expressions."""
    if isinstance(expr, IntImm):
        return expr.value
    if isinstance(expr, Var):
        return id(expr)
    return (type(expr), *[_key(child) for child in expr.node_children()])


def hoist_invariants(func: PrimFunc) -> PrimFunc:
    """The function with divisions, minima and maxima of indices at the beginning of the loops that they depend on.

    So are positions that vectors are selected from. Those that depend on the innermost loop around them stay, but for
    divisions by sizes. Sizes that might be 0 are replaced by 1 as divisors: no iteration uses the value then. Divisions
    by sizes without negative operands become truncating ones, which are single instructions.
    """
    if _HOISTED.isdisjoint(contents_of(func.body).classes) or not contains(func.body, _HOISTED, _is_hoisted):
        return func
    return func.with_body(_Hoister(func).visit(func.body))


class HoistInvariants(FunctionPass):
    """Divisions, minima, maxima and selected positions move out of the loops that they do not depend on."""

    def function(self, func: PrimFunc) -> PrimFunc:
        return hoist_invariants(func)
