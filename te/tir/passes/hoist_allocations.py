"""Scratch memory of dynamic size is allocated once for all iterations of a loop rather than in each."""

from __future__ import annotations

from relayc.te.ir.visitor import Mutator
from relayc.te.tir import ops
from relayc.te.tir.analysis import contains, free_variables
from relayc.te.tir.expr import PrimExpr
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import Allocate, For, ForKind, SeqStmt, Stmt

__all__ = ["HoistAllocations", "hoist_allocations"]


class _Hoister(Mutator):
    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: For) -> Stmt:
        loop = node.rebuild(self.visit)
        if loop.kind is ForKind.PARALLEL:  # memory of each thread
            return loop
        taken: list[Allocate] = []
        body = _without_allocations(loop, loop.body, taken)
        made: Stmt = loop if body is loop.body else loop.replace(body=body)
        for allocation in reversed(taken):
            made = Allocate(allocation.buffer, made, span=allocation.span)
        return made


def _without_allocations(loop: For, stmt: Stmt, taken: list[Allocate]) -> Stmt:
    """A statement of the loop's body without the allocations at its beginning whose sizes don't depend on the loop."""
    if isinstance(stmt, SeqStmt):
        return ops.seq([_without_allocations(loop, s, taken) for s in stmt.stmts])
    if not isinstance(stmt, Allocate):
        return stmt
    size = ops.convert(ops.product(stmt.buffer.shape))
    body = _without_allocations(loop, stmt.body, taken)
    if ops.as_int(size) is not None or loop.loop_var in free_variables(size):
        return stmt if body is stmt.body else stmt.replace(body=body)
    taken.append(stmt)
    return body


def hoist_allocations(func: PrimFunc) -> PrimFunc:
    """The function with allocations moved out of the serial loops whose variables their sizes don't depend on.

    Allocations of constant size stay: they are on the stack, or in registers.
    """
    return func.with_body(_Hoister().visit(func.body)) if contains(func.body, frozenset((Allocate,))) else func


class HoistAllocations(FunctionPass):
    """`for i: allocate(n): body` becomes `allocate(n): for i: body`."""

    def function(self, func: PrimFunc) -> PrimFunc:
        return hoist_allocations(func)
