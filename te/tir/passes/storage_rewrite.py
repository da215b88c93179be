"""Storage reuse: allocations with disjoint lifetimes share memory."""

from __future__ import annotations

from dataclasses import dataclass

from relayc.te.ir.visitor import Mutator, post_order
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, PrimExpr, Var
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore, For, IfThenElse, LetStmt, SeqStmt, Stmt, While
from relayc.te.tir.substitute import substitute

__all__ = ["StorageRewrite", "storage_rewrite"]


@dataclass
class _Life:
    """The positions of the first and the last statement of a scope that touch a buffer."""

    buffer: Buffer
    first: int
    last: int


@dataclass
class _Block:
    """An allocation and the position after which it is free."""

    buffer: Buffer
    nbytes: int
    free_after: int


class _Rewriter(Mutator):
    """Treats each scope (the function's body, the body of a loop or branch) by itself, inner ones first."""

    def __init__(self, options: StorageRewrite) -> None:
        self.options = options

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: For) -> Stmt:
        body = self.scope(node.body)
        return node if body is node.body else For(
            node.loop_var, node.min, node.extent, node.kind, body, node.annotations, span=node.span)  # fmt: skip

    def visit_While(self, node: While) -> Stmt:
        body = self.scope(node.body)
        return node if body is node.body else While(node.condition, body, span=node.span)

    def visit_IfThenElse(self, node: IfThenElse) -> Stmt:
        then_case = self.scope(node.then_case)
        else_case = None if node.else_case is None else self.scope(node.else_case)
        if then_case is node.then_case and else_case is node.else_case:
            return node
        return IfThenElse(node.condition, then_case, else_case, span=node.span)

    def scope(self, body: Stmt) -> Stmt:
        """The body with its own allocations shared."""
        body = self.visit(body)
        allocated: list[Buffer] = []
        leaves: list[Stmt | PrimExpr] = []
        _linearize(body, allocated, leaves)
        shareable = [b for b in allocated if self._may_share(b)]
        if len(shareable) < 2:
            return body
        blocks, homes = _assign(_lives(shareable, leaves))
        if len(blocks) == len(shareable):
            return body
        body = _DropAllocations(set(shareable)).visit(body)
        body = substitute(body, {b.data: homes[b].data for b in shareable}, homes)
        for block in reversed(blocks):
            body = Allocate(block, body)
        return body

    def _may_share(self, buffer: Buffer) -> bool:
        nbytes = _bytes(buffer)
        return nbytes is not None and nbytes >= self.options.min_bytes and buffer.scope == "global"


def _bytes(buffer: Buffer) -> int | None:
    count = ops.product(buffer.shape)
    return count * buffer.dtype.nbytes if isinstance(count, int) else None


def _linearize(stmt: Stmt, allocated: list[Buffer], leaves: list[Stmt | PrimExpr]) -> None:
    """The allocations of a scope and, in order, the statements that run in it.

    A kernel counts as one statement: its threads may be at any of its statements at the same time.
    """
    if isinstance(stmt, AttrStmt) and stmt.key == "thread_extent":
        leaves.append(stmt)
    elif isinstance(stmt, Allocate):
        allocated.append(stmt.buffer)
        _linearize(stmt.body, allocated, leaves)
    elif isinstance(stmt, SeqStmt):
        for s in stmt.stmts:
            _linearize(s, allocated, leaves)
    elif isinstance(stmt, LetStmt | AttrStmt):
        leaves.append(stmt.value)
        _linearize(stmt.body, allocated, leaves)
    else:
        leaves.append(stmt)


def _lives(buffers: list[Buffer], leaves: list[Stmt | PrimExpr]) -> list[_Life]:
    """Lifetimes in the order of first use; unused buffers have none."""
    of_data = {b.data: b for b in buffers}
    lives: dict[Buffer, _Life] = {}
    for position, leaf in enumerate(leaves):
        for node in post_order(leaf):
            data = node.buffer.data if isinstance(node, BufferLoad | BufferStore) else node
            buffer = of_data.get(data) if isinstance(data, Var) else None
            if buffer is not None:
                life = lives.setdefault(buffer, _Life(buffer, position, position))
                life.last = position
    return list(lives.values()) + [_Life(b, 0, len(leaves)) for b in buffers if b not in lives]


def _assign(lives: list[_Life]) -> tuple[list[Buffer], dict[Buffer, Buffer]]:
    """Greedy: each buffer takes the free block that fits best, or grows least. Gives (blocks, buffer -> view)."""
    blocks: list[_Block] = []
    where: dict[Buffer, _Block] = {}
    for life in lives:
        needed = _bytes(life.buffer)
        assert needed is not None
        free = [(abs(b.nbytes - needed), i) for i, b in enumerate(blocks) if b.free_after < life.first]
        if free:
            block = blocks[min(free)[1]]
            block.nbytes = max(block.nbytes, needed)
        else:
            block = _Block(life.buffer, needed, 0)
            blocks.append(block)
        block.free_after = life.last
        where[life.buffer] = block
    grown = {id(b): b.buffer.with_(shape=(-(-b.nbytes // b.buffer.dtype.nbytes),)) for b in blocks}
    homes = {buffer: buffer.with_(data=grown[id(block)].data) for buffer, block in where.items()}
    return list(grown.values()), homes


class _DropAllocations(Mutator):
    def __init__(self, buffers: set[Buffer]) -> None:
        self.buffers = buffers

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_Allocate(self, node: Allocate) -> Stmt:
        new = node.rebuild(self.visit)
        return new.body if node.buffer in self.buffers else new


def storage_rewrite(func: PrimFunc, min_bytes: int = 1024) -> PrimFunc:
    """The function with memory shared: see `StorageRewrite`."""
    return StorageRewrite(min_bytes).function(func)


@dataclass(frozen=True)
class StorageRewrite(FunctionPass):
    """Allocations of one scope with disjoint lifetimes share memory. (TVM: `StorageRewrite`.)

    Only flat "global" buffers of constant size from `min_bytes` on take part: small local tiles stay apart, so that
    the code generator can keep them in registers. Buffers of different types may share, through the same pointer.
    """

    min_bytes: int = 1024

    def function(self, func: PrimFunc) -> PrimFunc:
        return func.with_body(_Rewriter(self).scope(func.body))
