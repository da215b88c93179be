"""Substitution of variables and buffers, and fresh copies of statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from relayc.te.ir.node import Node
from relayc.te.ir.visitor import Mutator, post_order
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, Dim, FloatImm, IntImm, Let, PrimExpr, StringImm, Var
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore, For, LetStmt, Stmt

__all__ = ["fresh_copy", "substitute"]

_N = TypeVar("_N", bound=Node)
_CONSTANTS = frozenset((IntImm, FloatImm, StringImm))


class Substitution(Mutator):
    """Replaces variables by expressions and buffers by buffers; a shared expression is visited once.

    With `fresh`, every variable and buffer that the statement defines is replaced by a new one of the same name, so
    that the copy can stand beside the original. A `Let` that changes gets a new variable always: copies of it with
    other values may stand in one expression, and share what is equal in them.
    """

    def __init__(self, variables: Mapping[Var, Any], buffers: Mapping[Buffer, Buffer], fresh: bool) -> None:
        self.variables = dict(variables)
        self.buffers = dict(buffers)
        self.fresh = fresh
        self._done: dict[PrimExpr, Any] = {}
        self._defined: dict[Var, Var] = {}
        self._root: Node | None = None

    def apply(self, root: _N) -> _N:
        """`root` with everything replaced."""
        self._root = root
        return self.visit(root)

    def visit(self, node: Any) -> Any:
        node_class = node.__class__
        if node_class in _CONSTANTS:
            return node
        method = self._dispatch[node_class]
        if not isinstance(node, PrimExpr):
            return method(self, node)
        found = self._done.get(node)
        if found is None:
            found = node.rebuild(self.visit) if method is Mutator.visit_default else method(self, node)
            self._done[node] = found
        return found

    def _define(self, var: Var) -> Var:
        """The variable in place of `var`: the same one where several definitions of it share expressions."""
        if var not in self._defined:
            self._done.pop(var, None)
            self._defined[var] = var.__class__(var.name, var.dtype)
        self.variables[var] = self._defined[var]
        return self._defined[var]

    def visit_Var(self, node: Var) -> PrimExpr:
        return self.variables.get(node, node)

    def visit_BufferLoad(self, node: BufferLoad) -> BufferLoad:
        new = node.rebuild(self.visit)
        buffer = self.buffers.get(node.buffer)
        return new if buffer is None else BufferLoad(buffer, new.indices, new.predicate)

    def visit_BufferStore(self, node: BufferStore) -> BufferStore:
        new = node.rebuild(self.visit)
        buffer = self.buffers.get(node.buffer)
        return new if buffer is None else BufferStore(buffer, new.value, new.indices, new.predicate)

    def visit_For(self, node: For) -> For:
        if not self.fresh:
            return node.rebuild(self.visit)
        start, extent = self.visit(node.min), self.visit(node.extent)
        var = self._define(node.loop_var)
        return For(var, start, extent, node.kind, self.visit(node.body), node.annotations)

    def visit_Let(self, node: Let) -> Let:
        if self.fresh:
            value = self.visit(node.value)
            return Let(self._define(node.var), value, self.visit(node.body))
        if self._root is not None:
            for var in self._changing_lets(self._root):
                self._define(var)
            self._root = None
        new = node.rebuild(self.visit)
        return new if new is node else Let(self._defined.get(node.var, node.var), new.value, new.body)

    def _changing_lets(self, root: Node) -> list[Var]:
        """The variables of each `Let` in `root` that changes: of those that read what is replaced, or the variable of
        another one that changes."""
        readers: dict[int, list[Node]] = {}
        found = list[Node]()
        for node in post_order(root):
            for child in node.node_children():
                readers.setdefault(id(child), []).append(node)
            if self._replaces(node):
                found.append(node)
        changing, seen = dict[Var, None](), set[int]()
        while found:
            node = found.pop()
            if id(node) not in seen:
                seen.add(id(node))
                found += readers.get(id(node), ())
                if isinstance(node, Let):
                    changing[node.var] = None
                    found.append(node.var)
        return list(changing)

    def _replaces(self, node: Node) -> bool:
        """Is this node, not only what is below it, replaced?"""
        return node in self.variables if isinstance(node, Var) else getattr(node, "buffer", None) in self.buffers

    def visit_LetStmt(self, node: LetStmt) -> LetStmt:
        if not self.fresh:
            return node.rebuild(self.visit)
        value = self.visit(node.value)
        return LetStmt(self._define(node.var), value, self.visit(node.body))

    def visit_Allocate(self, node: Allocate) -> Allocate:
        if not self.fresh:
            return node.rebuild(self.visit)
        old = node.buffer
        shape = self._dims(old.shape)
        strides = None if old.strides is None else self._dims(old.strides)
        new = self.buffers[old] = old.with_(shape=shape, strides=strides, data=self._define(old.data))
        return Allocate(new, self.visit(node.body))

    def _dims(self, dims: Sequence[Dim]) -> list[Dim]:
        return [self.visit(d) if isinstance(d, PrimExpr) else d for d in dims]

    def visit_AttrStmt(self, node: AttrStmt) -> AttrStmt:
        new = node.rebuild(self.visit)
        subject = self.buffers.get(node.subject) if isinstance(node.subject, Buffer) else None
        return new if subject is None else new.replace(subject=subject)


def substitute(
    node: _N, variables: Mapping[Var, Any], buffers: Mapping[Buffer, Buffer] | None = None
) -> _N:
    """`node` with variables and buffers replaced, all at once; definitions stay."""
    return Substitution(variables, buffers or {}, fresh=False).apply(node)


def fresh_copy(stmt: Stmt, variables: Mapping[Var, Any] | None = None) -> Stmt:
    """A copy of `stmt` that defines variables and buffers of its own, with `variables` replaced on the way."""
    return Substitution(variables or {}, {}, fresh=True).visit(stmt)
