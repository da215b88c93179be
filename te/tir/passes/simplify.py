"""Simplification of expressions by the facts that hold in their context; unreachable code is removed."""

from __future__ import annotations

from collections.abc import Callable

from relayc.te.arith import Analyzer
from relayc.te.dtype import INT32, INT64
from relayc.te.ir.visitor import Visitor
from relayc.te.tir import ops
from relayc.te.tir.expr import Broadcast, BufferLoad, IntImm, IterVar, Not, PrimExpr, Range
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
)  # fmt: skip

__all__ = ["Simplify", "simplify", "simplify_stmt"]


class _Simplifier(Visitor[Stmt]):
    """Walks statements and simplifies their expressions with an analyzer that knows the surrounding loops."""

    def __init__(self, analyzer: Analyzer) -> None:
        self.analyzer = analyzer
        self.expr: Callable[[PrimExpr], PrimExpr] = analyzer.simplify

    def visit_For(self, node: For) -> Stmt:
        start, extent = self.expr(node.min), self._known(node.extent)
        if isinstance(extent, IntImm) and extent.value <= 1:
            if extent.value <= 0:
                return ops.no_op()
            self.analyzer.bind(node.loop_var, start)
            return self.visit(node.body)
        self.analyzer.bind(node.loop_var, Range(start, extent))
        body = self.visit(node.body)
        if ops.is_no_op(body):
            return body
        if start is node.min and extent is node.extent and body is node.body:
            return node
        return For(node.loop_var, start, extent, node.kind, body, node.annotations, span=node.span)

    def _known(self, extent: PrimExpr) -> PrimExpr:
        """An extent, as a constant where its bounds allow a single value."""
        extent = self.expr(extent)
        low, high = self.analyzer.const_bounds(extent)
        return ops.make_const(extent.dtype, low) if low == high else extent

    def visit_While(self, node: While) -> Stmt:
        condition = self.expr(node.condition)
        if isinstance(condition, IntImm) and not condition.value:
            return ops.no_op()
        body = self.visit(node.body)
        return node if condition is node.condition and body is node.body else While(condition, body, span=node.span)

    def visit_IfThenElse(self, node: IfThenElse) -> Stmt:
        condition = self.expr(node.condition)
        if isinstance(condition, IntImm):
            if condition.value:
                return self.visit(node.then_case)
            return ops.no_op() if node.else_case is None else self.visit(node.else_case)
        with self.analyzer.constraint(condition):
            then_case = self.visit(node.then_case)
        else_case = node.else_case
        if else_case is not None:
            with self.analyzer.constraint(Not(condition)):
                else_case = self.visit(else_case)
            else_case = None if ops.is_no_op(else_case) else else_case
        if else_case is None and ops.is_no_op(then_case):
            return then_case
        if condition is node.condition and then_case is node.then_case and else_case is node.else_case:
            return node
        return IfThenElse(condition, then_case, else_case, span=node.span)

    def visit_SeqStmt(self, node: SeqStmt) -> Stmt:
        stmts = [self.visit(s) for s in node.stmts]
        unchanged = all(a is b for a, b in zip(stmts, node.stmts, strict=True))
        return node if unchanged else ops.seq(stmts)

    def visit_LetStmt(self, node: LetStmt) -> Stmt:
        value = self.expr(node.value)
        if value.dtype is INT32 or value.dtype is INT64:
            form = self.analyzer.linear(value)
            if not form.data:
                self.analyzer.bind(node.var, value)
                return self.visit(node.body)
        body = self.visit(node.body)
        return node if value is node.value and body is node.body else LetStmt(node.var, value, body, span=node.span)

    def visit_Allocate(self, node: Allocate) -> Stmt:
        body = self.visit(node.body)
        if ops.is_no_op(body):
            return body
        return node if body is node.body else Allocate(node.buffer, body, span=node.span)

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        value = self.expr(node.value)
        indices = tuple([self.expr(i) for i in node.indices])
        predicate = None if node.predicate is None else self.expr(node.predicate)
        mask = _number(predicate)
        if mask == 0 or _is_self_store(node, value, indices):
            return ops.no_op()
        predicate = predicate if mask is None else None
        same = value is node.value and predicate is node.predicate
        if same and all(a is b for a, b in zip(indices, node.indices, strict=True)):
            return node
        return BufferStore(node.buffer, value, indices, predicate, span=node.span)

    def visit_Evaluate(self, node: Evaluate) -> Stmt:
        value = self.expr(node.value)
        return node if value is node.value else Evaluate(value, span=node.span)

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        value = self.expr(node.value)
        if node.key in ("thread_extent", "virtual_thread") and isinstance(node.subject, IterVar):
            self.analyzer.bind(node.subject.var, Range(0, value))
        body = self.visit(node.body)
        if ops.is_no_op(body):
            return body
        if value is node.value and body is node.body:
            return node
        return AttrStmt(node.key, node.subject, value, body, span=node.span)

    def visit_AssertStmt(self, node: AssertStmt) -> Stmt:
        condition = self.expr(node.condition)
        if isinstance(condition, IntImm) and condition.value:
            return self.visit(node.body)
        args = tuple([self.expr(a) for a in node.args])
        with self.analyzer.constraint(condition):
            body = self.visit(node.body)
        return AssertStmt(condition, node.message, args, body, span=node.span)


def _number(value: PrimExpr | None) -> int | None:
    """The constant value of a scalar or of every element of a vector, or None."""
    value = value.value if isinstance(value, Broadcast) else value
    return value.value if isinstance(value, IntImm) else None


def _is_self_store(node: BufferStore, value: PrimExpr, indices: tuple[PrimExpr, ...]) -> bool:
    """A[i] = A[i]"""
    if not isinstance(value, BufferLoad) or value.buffer is not node.buffer or value.predicate is not None:
        return False
    return all(a is b for a, b in zip(value.indices, indices, strict=True))


def simplify_stmt(stmt: Stmt, analyzer: Analyzer | None = None) -> Stmt:
    """A statement simplified under the facts of an analyzer."""
    return _Simplifier(Analyzer() if analyzer is None else analyzer).visit(stmt)


def simplify(func: PrimFunc) -> PrimFunc:
    """The function with simplified expressions and without loops of one trip or none, and decided branches."""
    return func.with_body(simplify_stmt(func.body))


class Simplify(FunctionPass):
    """Expressions become canonical; decided branches, trivial loops and empty statements go. (TVM: `Simplify`.)"""

    def function(self, func: PrimFunc) -> PrimFunc:
        return simplify(func)


