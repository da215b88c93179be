"""A Select that would read outside a buffer becomes the lazy if_then_else."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from relayc.te.arith import Analyzer
from relayc.te.dtype import INT32, INT64
from relayc.te.ir.visitor import Mutator
from relayc.te.tir.analysis import always_evaluated, contains, nodes_with
from relayc.te.tir.expr import BufferLoad, Call, Div, FloorDiv, FloorMod, IntImm, IterVar, Mod, PrimExpr, Range, Select
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.intrinsics import INTRINSICS
from relayc.te.tir.numbering import ValueNumbers
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import AttrStmt, For, IfThenElse, Stmt

__all__ = ["RewriteUnsafeSelect", "can_not_fault", "rewrite_unsafe_select"]


class _Rewriter(Mutator):
    """Visits what contains a Select; `safe` are expressions that are known not to fault here."""

    def __init__(self, with_selects: Container[int]) -> None:
        self.with_selects = with_selects
        self.analyzer = Analyzer()
        self.numbers = ValueNumbers()
        self.safe: set[PrimExpr] = set()

    def visit(self, node: Any) -> Any:
        return super().visit(node) if id(node) in self.with_selects else node

    def visit_For(self, node: For) -> Stmt:
        self.analyzer.bind(node.loop_var, Range(node.min, node.extent))
        return node.rebuild(self.visit)

    def visit_IfThenElse(self, node: IfThenElse) -> Stmt:
        condition, then_case = self.visit(node.condition), node.then_case
        if id(then_case) in self.with_selects:
            outside, self.safe = self.safe, set(self.safe)
            with self.analyzer.constraint(node.condition):
                then_case = self.visit(then_case)
            self.safe = outside
        else_case = None if node.else_case is None else self.visit(node.else_case)
        if condition is node.condition and then_case is node.then_case and else_case is node.else_case:
            return node
        return node.replace(condition=condition, then_case=then_case, else_case=else_case)

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        if node.key in ("thread_extent", "virtual_thread") and isinstance(node.subject, IterVar):
            self.analyzer.bind(node.subject.var, Range(0, node.value))
        return node.rebuild(self.visit)

    def visit_Select(self, node: Select) -> PrimExpr:
        new = node.rebuild(self.visit)
        if new.dtype.lanes > 1 or self._can_not_fault(new):
            return new
        return Call(new.dtype, "if_then_else", (new.condition, new.true_value, new.false_value), span=new.span)

    def _can_not_fault(self, select: Select) -> bool:
        """May both sides be evaluated? Subexpressions that the condition shares are evaluated in any case."""
        sides = (select.true_value, select.false_value)
        if all(can_not_fault(side, self.analyzer, self.safe.__contains__) for side in sides):
            self.safe.update(sides)
            return True
        evaluated = {self.numbers(e) for e in always_evaluated(select.condition)}
        return all(can_not_fault(side, self.analyzer, lambda e: self.numbers(e) in evaluated) for side in sides)


def can_not_fault(expr: PrimExpr, analyzer: Analyzer, safe: Callable[[PrimExpr], bool] | None = None) -> bool:
    """May the expression be evaluated speculatively, whatever conditions guard it?

    Its reads are proved to lie inside their buffers by what the analyzer knows of the variables, and it neither divides
    integers by a variable nor calls an impure function; except where it is known to be `safe`.
    """
    seen: set[PrimExpr] = set()
    stack: list[Any] = [expr]
    while stack:
        node = stack.pop()
        if not isinstance(node, PrimExpr) or node in seen or (safe is not None and safe(node)):
            continue
        seen.add(node)
        if not _node_can_not_fault(node, analyzer):
            return False
        stack += node.node_children()
    return True


def _node_can_not_fault(node: PrimExpr, analyzer: Analyzer) -> bool:
    if isinstance(node, BufferLoad):
        return all(_inside(i, dim, analyzer) for i, dim in zip(node.indices, node.buffer.shape, strict=True))
    if isinstance(node, _DIVISIONS) and not node.dtype.is_float:
        return isinstance(node.b, IntImm) and node.b.value != 0
    return not isinstance(node, Call) or INTRINSICS[node.op].pure


_SELECTS = frozenset((Select,))
_DIVISIONS = (Div, Mod, FloorDiv, FloorMod)


def _inside(index: PrimExpr, extent: PrimExpr | int, analyzer: Analyzer) -> bool:
    if index.dtype is not INT32 and index.dtype is not INT64:
        return False
    return analyzer.can_prove_less_equal(0, index) and analyzer.can_prove_less(index, extent)


def rewrite_unsafe_select(func: PrimFunc) -> PrimFunc:
    """The function with every Select kept only where both sides can be evaluated without fault.

    A side is safe when its reads are proved to lie inside their buffers and it neither divides integers by a variable
    nor calls an impure function; what the condition evaluates is evaluated in any
    case. (TVM: `RewriteUnsafeSelect`.)
    """
    if not contains(func.body, _SELECTS):
        return func
    return func.with_body(_Rewriter(nodes_with(func.body, _SELECTS)).visit(func.body))


class RewriteUnsafeSelect(FunctionPass):
    """A Select that could fault on the side not chosen becomes the lazy if_then_else."""

    def function(self, func: PrimFunc) -> PrimFunc:
        return rewrite_unsafe_select(func)
