"""Analyses of loop programs that several passes and code generators share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relayc.te.dtype import DType
from relayc.te.ir.node import Node
from relayc.te.ir.structural import structural_equal
from relayc.te.ir.visitor import post_order
from relayc.te.tir.expr import (
    Add,
    BufferLoad,
    Call,
    FloatImm,
    IntImm,
    Let,
    Logical,
    PrimExpr,
    Select,
    SizeVar,
    StringImm,
    Var,
)
from relayc.te.tir.stmt import Allocate, BufferStore, For, LetStmt

__all__ = [
    "accumulated_value", "always_evaluated", "contains", "dtypes_of", "free_variables", "is_loaded_by", "nodes_with",
]  # fmt: skip


def accumulated_value(store: BufferStore) -> PrimExpr | None:
    """The value that `store` adds to its elements in place; None for other stores, and for loads under a predicate."""
    value = store.value
    return value.b if isinstance(value, Add) and is_loaded_by(value.a, store) else None


def is_loaded_by(expr: PrimExpr, store: BufferStore) -> bool:
    """Is `expr` the elements that `store` overwrites, without a predicate?"""
    if not isinstance(expr, BufferLoad) or expr.buffer is not store.buffer or expr.predicate is not None:
        return False
    return structural_equal(expr.indices, store.indices)


def always_evaluated(expr: PrimExpr) -> set[PrimExpr]:
    """The subexpressions that are evaluated whenever `expr` is: those that no condition in it guards."""
    found: set[PrimExpr] = set()
    stack: list[Any] = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, PrimExpr) and node not in found:
            found.add(node)
            is_guard = isinstance(node, Select | Logical) or (isinstance(node, Call) and node.op == "if_then_else")
            stack += node.node_children()[:1] if is_guard else node.node_children()
    return found


def contains(program: Node, classes: frozenset[type], suits: Callable[[Any], bool] | None = None) -> bool:
    """Does the program contain a node of one of the classes (that `suits`)? Several times as fast as a visitor."""
    seen: set[int] = set()
    stack: list[Any] = [program]
    while stack:
        node = stack.pop()
        node_class = node.__class__
        if node_class in classes and (suits is None or suits(node)):
            return True
        if node_class not in _LEAVES and id(node) not in seen:
            seen.add(id(node))
            stack += node.node_children()
    return False


def nodes_with(program: Node, classes: frozenset[type], suits: Callable[[Any], bool] | None = None) -> set[int]:
    """The ids of the nodes of the classes (that `suits`), and of the nodes that contain one."""
    found: set[int] = set()
    for node in post_order(program):
        if node.__class__ in classes and (suits is None or suits(node)):
            found.add(id(node))
            continue
        for child in node.node_children():
            if id(child) in found:
                found.add(id(node))
                break
    return found


def dtypes_of(program: Node) -> set[DType]:
    """The types of all values in a statement or expression, and of the buffers that it reads, writes or allocates."""
    found: set[DType] = set()
    seen: set[int] = set()
    stack: list[Any] = [program]
    while stack:
        node = stack.pop()
        node_class = node.__class__
        if node_class in _LEAVES:
            found.add(node.dtype)
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node_class in _ACCESSES:
            found.add(node.buffer.dtype)
        if isinstance(node, PrimExpr):
            found.add(node.dtype)
        stack += node.node_children()
    return found


def free_variables(program: Node) -> list[Var]:
    """Variables that a statement or expression uses and does not define, in order of first use.

    The pointers (`data`) of buffers count as variables. Every variable of a program has one definition.
    """
    used: dict[Var, None] = {}
    defined: set[Var] = set()
    seen: set[int] = set()  # expressions share operands: written out as a tree they may be many times as large
    stack: list[Any] = [program]
    while stack:
        node = stack.pop()
        node_class = node.__class__
        if node_class in _LEAVES:
            continue
        key = id(node)
        if key in seen:
            continue
        seen.add(key)
        kind = _KINDS.get(node_class)
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


_LEAVES = frozenset((IntImm, FloatImm, StringImm))

_ACCESSES = frozenset((BufferLoad, BufferStore, Allocate))
_KINDS: dict[type, type] = {
    Var: Var, SizeVar: Var, BufferLoad: BufferLoad, BufferStore: BufferLoad, Let: Let, LetStmt: Let,
    Allocate: Allocate, For: For,
}  # fmt: skip
