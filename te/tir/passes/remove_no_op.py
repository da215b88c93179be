"""Statements without effect are removed: empty loops and branches, unused values and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relayc.te.ir.node import Node
from relayc.te.ir.visitor import Mutator, post_order
from relayc.te.tir import ops
from relayc.te.tir.analysis import accumulated_value
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, Call, IntImm, PrimExpr, Ramp, SizeVar, Var
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.intrinsics import INTRINSICS
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import (
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
    """May the expression be dropped, merged or moved past stores it does not read? Impure calls prevent that."""
    return not any(isinstance(n, Call) and not INTRINSICS[n.op].pure for n in post_order(expr))


_ALL, _MOST_ELEMENTS = -1, 4096
"""All elements of a buffer, as a bit set, and the largest index that is tracked: beyond any register allocation."""


def _elements(buffer: Buffer, indices: Sequence[PrimExpr]) -> int:
    """The elements of flat memory at constant indices, as a bit set; all of them where indices are not constant."""
    index = indices[0]
    if len(indices) == 1 and buffer.strides is None and isinstance(index, Ramp | IntImm):
        base = ops.as_int(index.base) if isinstance(index, Ramp) else index.value
        stride = ops.as_int(index.stride) if isinstance(index, Ramp) else 1
        if base is not None and 0 <= base < _MOST_ELEMENTS and stride == 1:
            return ((1 << index.dtype.lanes) - 1) << base
    return _ALL


class _Remover(Mutator):
    """Removes dead code, children first; `read` is what the statements visited so far (all inside) use."""

    def __init__(self) -> None:
        self.read: dict[Var, int] = {}
        """Used variables; for pointers the elements that are read, as bit sets, except by in-place additions."""
        self.written: dict[Var, int] = {}
        """Elements that are written at constant indices, as bit sets."""
        self.buffers: dict[Var, Buffer] = {}
        """The buffer through which each pointer is accessed."""
        self._noted: set[Node] = set()

    def _note(self, *exprs: PrimExpr | None) -> None:
        stack: list[Any] = [e for e in exprs if e is not None]
        while stack:
            node = stack.pop()
            if node in self._noted:
                continue
            self._noted.add(node)
            node_class = node.__class__
            if node_class is Var or node_class is SizeVar:
                self.read[node] = _ALL
                continue
            if node_class is Call and node.op == "address_of":
                (place,) = node.args
                assert isinstance(place, BufferLoad)
                self.read[place.buffer.data] = _ALL
            elif node_class is BufferLoad:
                self._note_read(node)
            stack += node.node_children()

    def _note_read(self, load: BufferLoad) -> None:
        data = load.buffer.data
        self.read[data] = self.read.get(data, 0) | _elements(load.buffer, load.indices)
        self._note_buffer(load.buffer)

    def _note_buffer(self, buffer: Buffer) -> None:
        if self.buffers.setdefault(buffer.data, buffer) is not buffer:
            self.read[buffer.data] = _ALL  # aliasing of their elements is not analysed
        self._note_layout(buffer)

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
        if node.var not in self.read and is_pure(node.value):
            return body
        self._note(node.value)
        return node if body is node.body else LetStmt(node.var, node.value, body, span=node.span)

    def visit_Allocate(self, node: Allocate) -> Stmt:
        body = self.visit(node.body)
        if ops.is_no_op(body):
            return body
        data = node.buffer.data
        if data not in self.read:
            return self.visit(_StoreRemover(data, 0).visit(body))
        if self.written.get(data, 0) & ~self.read[data]:
            body = self.visit(_StoreRemover(data, self.read[data]).visit(body))
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
        elements = _elements(node.buffer, node.indices)
        if elements != _ALL:
            self.written[node.buffer.data] = self.written.get(node.buffer.data, 0) | elements
        if (added := accumulated_value(node)) is not None:
            self.read.setdefault(node.buffer.data, 0)
            self._note(added, *node.indices, node.predicate)
        else:
            self._note(node.value, *node.indices, node.predicate)
        self._note_buffer(node.buffer)
        return node

    def visit_default(self, node: Node) -> Any:
        for child in node.node_children():
            if isinstance(child, PrimExpr):
                self._note(child)
        return node.rebuild(lambda child: child if isinstance(child, PrimExpr) else self.visit(child))


class _StoreRemover(Mutator):
    """Removes the stores to elements that nothing reads."""

    def __init__(self, data: Var, read: int) -> None:
        self.data, self.read = data, read

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        if node.buffer.data is not self.data or _elements(node.buffer, node.indices) & self.read:
            return node
        return ops.no_op() if all(is_pure(e) for e in (node.value, *node.indices)) else node


def remove_no_op(func: PrimFunc) -> PrimFunc:
    """The function without empty loops and branches, unused lets, and stores to memory that is never read."""
    return func.with_body(_Remover().visit(func.body))


class RemoveNoOp(FunctionPass):
    """Statements without effect are removed. (TVM: `RemoveNoOp`.)"""

    def function(self, func: PrimFunc) -> PrimFunc:
        return remove_no_op(func)
