"""Virtual threads become interleaved statements of one real thread."""

from __future__ import annotations

from relayc.te.ir.node import Node
from relayc.te.ir.visitor import Mutator, post_order
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, IterVar, PrimExpr, Var
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore, Evaluate, For, ForKind, IfThenElse, LetStmt, Stmt, While
from relayc.te.tir.substitute import fresh_copy

__all__ = ["InjectVirtualThread", "inject_virtual_thread"]


class _Interleaver(Mutator):
    """Rewrites the body of one virtual thread axis; inner axes are gone already."""

    def __init__(self, var: Var, extent: int, body: Stmt) -> None:
        self.var = var
        self.extent = extent
        self.inside = {n.buffer for n in post_order(body) if isinstance(n, Allocate)}
        self.own: set[Buffer] = set()  # buffers of which every virtual thread has a copy
        self.wide: dict[Buffer, Buffer] = {}
        while self._find_own(body, depends=False):
            pass

    def _find_own(self, stmt: Node, depends: bool) -> bool:
        """Add the buffers whose contents depend on the axis. Gives whether there were new ones."""
        found = False
        if isinstance(stmt, BufferStore):
            if stmt.buffer in self.inside - self.own and (depends or self.touches(stmt)):
                self.own.add(stmt.buffer)
                return True
            return False
        depends = depends or (isinstance(stmt, For) and (self.touches(stmt.min) or self.touches(stmt.extent)))
        depends = depends or (isinstance(stmt, IfThenElse | While) and self.touches(stmt.condition))
        depends = depends or (isinstance(stmt, LetStmt) and self.touches(stmt.value))
        for child in stmt.node_children():
            if isinstance(child, Stmt):
                found |= self._find_own(child, depends)
        return found

    def touches(self, node: Node) -> bool:
        """Does the code depend on the axis, directly or through memory?"""
        return any(n is self.var or (isinstance(n, BufferLoad | BufferStore) and n.buffer in self.own)
                   for n in post_order(node))  # fmt: skip

    def _wrapped(self, stmt: Stmt) -> Stmt:
        """A statement repeated for every virtual thread, or as it is when it does not depend on the thread."""
        if not self.touches(stmt):
            return stmt
        var = Var(self.var.name, self.var.dtype)
        body = fresh_copy(_Widener(self).visit(stmt), {self.var: var})
        zero, extent = ops.make_const(var.dtype, 0), ops.make_const(var.dtype, self.extent)
        return For(var, zero, extent, ForKind.UNROLLED, body)

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        return self._wrapped(node)

    def visit_Evaluate(self, node: Evaluate) -> Stmt:
        return self._wrapped(node)

    def visit_For(self, node: For) -> Stmt:
        if self.touches(node.min) or self.touches(node.extent):
            return self._wrapped(node)
        return node.rebuild(self.visit)

    def visit_IfThenElse(self, node: IfThenElse) -> Stmt:
        return self._wrapped(node) if self.touches(node.condition) else node.rebuild(self.visit)

    def visit_While(self, node: While) -> Stmt:
        return self._wrapped(node) if self.touches(node.condition) else node.rebuild(self.visit)

    def visit_LetStmt(self, node: LetStmt) -> Stmt:
        return self._wrapped(node) if self.touches(node.value) else node.rebuild(self.visit)

    def widened(self, buffer: Buffer) -> Buffer:
        """The buffer with room for every virtual thread."""
        known = self.wide.get(buffer)
        if known is None:
            size = ops.as_dim(ops.mul(buffer.shape[0], self.extent))
            known = self.wide[buffer] = buffer.with_(shape=(size,))
        return known

    def visit_Allocate(self, node: Allocate) -> Stmt:
        body = self.visit(node.body)
        if node.buffer in self.own:
            return Allocate(self.widened(node.buffer), body, span=node.span)
        return node if body is node.body else Allocate(node.buffer, body, span=node.span)


class _Widener(Mutator):
    """Redirects accesses to a virtual thread's own copy of its buffers."""

    def __init__(self, owner: _Interleaver) -> None:
        self.owner = owner

    def _index(self, buffer: Buffer, index: PrimExpr) -> PrimExpr:
        return ops.add(index, ops.mul(ops.cast(index.dtype.element, self.owner.var), buffer.shape[0]))

    def visit_BufferLoad(self, node: BufferLoad) -> BufferLoad:
        new = node.rebuild(self.visit)
        if node.buffer not in self.owner.own:
            return new
        wide = self.owner.widened(node.buffer)
        return BufferLoad(wide, (self._index(node.buffer, new.indices[0]),), new.predicate, span=node.span)

    def visit_BufferStore(self, node: BufferStore) -> BufferStore:
        new = node.rebuild(self.visit)
        if node.buffer not in self.owner.own:
            return new
        wide = self.owner.widened(node.buffer)
        return BufferStore(wide, new.value, (self._index(node.buffer, new.indices[0]),), new.predicate, span=node.span)


class _Injector(Mutator):
    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        new = node.rebuild(self.visit)
        if node.key != "virtual_thread" or not isinstance(node.subject, IterVar):
            return new
        extent = ops.as_int(node.value)
        assert extent is not None, "a virtual thread axis has a constant extent"
        return _Interleaver(node.subject.var, extent, new.body).visit(new.body)


def inject_virtual_thread(func: PrimFunc) -> PrimFunc:
    """The function with virtual threads run by one thread, interleaved statement by statement.

    Memory allocated inside that depends on the axis gets a copy per virtual thread; what does not depend on it
    (barriers, tiles loaded together) happens once. Buffers must be flat. (TVM: `InjectVirtualThread`.)
    """
    return func.with_body(_Injector().visit(func.body))


class InjectVirtualThread(FunctionPass):
    """Virtual thread axes become unrolled loops around each statement that depends on them."""

    def function(self, func: PrimFunc) -> PrimFunc:
        return inject_virtual_thread(func)
