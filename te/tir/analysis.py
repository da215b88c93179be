"""Questions about loop programs that several passes and code generators ask."""

from __future__ import annotations

from typing import Any

from te.ir.node import Node
from te.tir.expr import BufferLoad, Let, PrimExpr, SizeVar, Var
from te.tir.stmt import Allocate, BufferStore, For, LetStmt

__all__ = ["free_variables"]


def free_variables(program: Node) -> list[Var]:
    """Variables that a statement or expression uses and does not define, in order of first use.

    The pointers (`data`) of buffers count as variables. Every variable of a program has one definition.
    """
    used: dict[Var, None] = {}
    defined: set[Var] = set()
    seen: set[int] = set()  # expressions share operands: as a tree they may be many times as large
    stack: list[Any] = [program]
    while stack:
        node = stack.pop()
        key = id(node)
        if key in seen:
            continue
        seen.add(key)
        kind = _KINDS.get(node.__class__)
        if kind is Var:
            used.setdefault(node)
            continue
        if kind is BufferLoad:
            used.setdefault(node.buffer.data)
        elif kind is Allocate:
            defined.add(node.buffer.data)
            stack.append(node.body)
            stack += [size for size in node.buffer.shape if isinstance(size, PrimExpr)][::-1]
            continue
        elif kind is For:
            defined.add(node.loop_var)
        elif kind is Let:
            defined.add(node.var)
        stack += node.node_children()[::-1]
    return [var for var in used if var not in defined]


_KINDS: dict[type, type] = {
    Var: Var, SizeVar: Var, BufferLoad: BufferLoad, BufferStore: BufferLoad, Let: Let, LetStmt: Let,
    Allocate: Allocate, For: For,
}  # fmt: skip
