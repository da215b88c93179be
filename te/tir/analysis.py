"""Questions about loop programs that several passes and code generators ask."""

from __future__ import annotations

from te.ir.node import Node
from te.ir.visitor import Visitor
from te.tir.expr import BufferLoad, Let, PrimExpr, Var
from te.tir.stmt import Allocate, BufferStore, For, LetStmt

__all__ = ["free_variables"]


class _FreeVariables(Visitor[None]):
    def __init__(self) -> None:
        self.used: dict[Var, None] = {}
        self.defined: set[Var] = set()
        self.seen: set[int] = set()

    def visit(self, node: Node) -> None:
        if id(node) not in self.seen:  # expressions share operands: as a tree they may be many times as large
            self.seen.add(id(node))
            super().visit(node)

    def visit_Var(self, var: Var) -> None:
        self.used.setdefault(var)

    def visit_BufferLoad(self, load: BufferLoad) -> None:
        self.used.setdefault(load.buffer.data)
        self.visit_default(load)

    def visit_BufferStore(self, store: BufferStore) -> None:
        self.used.setdefault(store.buffer.data)
        self.visit_default(store)

    def visit_Allocate(self, stmt: Allocate) -> None:
        self.defined.add(stmt.buffer.data)
        for size in stmt.buffer.shape:
            if isinstance(size, PrimExpr):
                self.visit(size)
        self.visit(stmt.body)

    def visit_For(self, loop: For) -> None:
        self.defined.add(loop.loop_var)
        self.visit_default(loop)

    def visit_LetStmt(self, stmt: LetStmt | Let) -> None:
        self.defined.add(stmt.var)
        self.visit_default(stmt)

    visit_Let = visit_LetStmt


def free_variables(program: Node) -> list[Var]:
    """Variables that a statement or expression uses and does not define, in order of first use.

    The pointers (`data`) of buffers count as variables. Every variable of a program has one definition.
    """
    finder = _FreeVariables()
    finder.visit(program)
    return [var for var in finder.used if var not in finder.defined]
