"""Statements without effect are removed: empty loops and branches, unused values and memory."""

from __future__ import annotations

from typing import Any

from te.ir.node import Node
from te.ir.visitor import Mutator, post_order
from te.tir import ops
from te.tir.buffer import Buffer
from te.tir.expr import BufferLoad, Call, PrimExpr, Var
from te.tir.function import PrimFunc
from te.tir.intrinsics import INTRINSICS
from te.tir.passes.base import FunctionPass
from te.tir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
)  # fmt: skip

__all__ = ["RemoveNoOp", "is_pure", "remove_no_op"]


def is_pure(expr: PrimExpr) -> bool:
    """May the expression be dropped, merged or moved past stores it does not read? Impure calls are in the way."""
    return not any(isinstance(n, Call) and not INTRINSICS[n.op].pure for n in post_order(expr))


class _Remover(Mutator):
    """Children first; `read` and `used` are what the statements visited so far (all inside) need."""

    def __init__(self) -> None:
        self.used: set[Var] = set()
        self._noted: set[Node] = set()

    def _note(self, *exprs: PrimExpr | None) -> None:
        stack: list[Any] = [e for e in exprs if e is not None]
        while stack:
            node = stack.pop()
            if node in self._noted:
                continue
            self._noted.add(node)
            if isinstance(node, Var):
                self.used.add(node)
                continue
            if isinstance(node, BufferLoad):
                self.used.add(node.buffer.data)
                self._note_layout(node.buffer)
            stack += node.node_children()

    def _note_layout(self, buffer: Buffer) -> None:
        self._note(*[d for d in (*buffer.shape, *(buffer.strides or ()), buffer.elem_offset)
                     if isinstance(d, PrimExpr)])  # fmt: skip

    def visit_For(self, node: For) -> Stmt:
        body = self.visit(node.body)
        if ops.is_no_op(body):
            return body
        self._note(node.min, node.extent)
        return node if body is node.body else For(
            node.loop_var, node.min, node.extent, node.kind, body, node.annotations, span=node.span)  # fmt: skip

    def visit_IfThenElse(self, node: IfThenElse) -> Stmt:
        then_case = self.visit(node.then_case)
        else_case = None if node.else_case is None else self.visit(node.else_case)
        if else_case is not None and ops.is_no_op(else_case):
            else_case = None
        if else_case is None and ops.is_no_op(then_case) and is_pure(node.condition):
            return then_case
        self._note(node.condition)
        if then_case is node.then_case and else_case is node.else_case:
            return node
        return IfThenElse(node.condition, then_case, else_case, span=node.span)

    def visit_SeqStmt(self, node: SeqStmt) -> Stmt:
        stmts = [self.visit(s) for s in node.stmts]
        unchanged = all(a is b and not ops.is_no_op(a) for a, b in zip(stmts, node.stmts, strict=True))
        return node if unchanged else ops.seq(stmts)

    def visit_LetStmt(self, node: LetStmt) -> Stmt:
        body = self.visit(node.body)
        if node.var not in self.used and is_pure(node.value):
            return body
        self._note(node.value)
        return node if body is node.body else LetStmt(node.var, node.value, body, span=node.span)

    def visit_Allocate(self, node: Allocate) -> Stmt:
        body = self.visit(node.body)
        if ops.is_no_op(body):
            return body
        if node.buffer.data not in self.used:
            return self.visit(_StoreRemover(node.buffer.data).visit(body))
        self._note_layout(node.buffer)
        return node if body is node.body else Allocate(node.buffer, body, span=node.span)

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        body = self.visit(node.body)
        if ops.is_no_op(body):
            return body
        self._note(node.value)
        return node if body is node.body else AttrStmt(node.key, node.subject, node.value, body, span=node.span)

    def visit_Evaluate(self, node: Evaluate) -> Stmt:
        if is_pure(node.value):
            return ops.no_op()
        self._note(node.value)
        return node

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        self._note(node.value, *node.indices, node.predicate)
        self._note_layout(node.buffer)
        return node

    def visit_default(self, node: Node) -> Any:
        for child in node.node_children():
            if isinstance(child, PrimExpr):
                self._note(child)
        return node.rebuild(lambda child: child if isinstance(child, PrimExpr) else self.visit(child))


class _StoreRemover(Mutator):
    """Removes the stores to memory that nothing reads."""

    def __init__(self, data: Var) -> None:
        self.data = data

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        pure = all(is_pure(e) for e in (node.value, *node.indices))
        return ops.no_op() if node.buffer.data is self.data and pure else node


def remove_no_op(func: PrimFunc) -> PrimFunc:
    """The function without empty loops and branches, unused lets, and memory that is never read."""
    return func.with_body(_Remover().visit(func.body))


class RemoveNoOp(FunctionPass):
    """Statements without effect are removed. (TVM: `RemoveNoOp`.)"""

    def function(self, func: PrimFunc) -> PrimFunc:
        return remove_no_op(func)
