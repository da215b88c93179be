"""Analyses of loop programs that several passes and code generators share."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from relayc.te.dtype import DType
from relayc.te.ir.node import Node
from relayc.te.ir.structural import structural_equal
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
    "Contents", "accumulated_value", "always_evaluated", "contains", "contents_of", "free_variables", "is_loaded_by",
    "nodes_of", "nodes_with",
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


def nodes_of(program: Node, classes: frozenset[type]) -> list[Any]:
    """The nodes of the classes, once each, in no particular order. Several times as fast as `te.ir.visitor.collect`."""
    found: list[Any] = []
    seen: set[int] = set()
    stack: list[Any] = [program]
    while stack:
        node = stack.pop()
        node_class = node.__class__
        if node_class in _LEAVES or id(node) in seen:
            continue
        seen.add(id(node))
        if node_class in classes:
            found.append(node)
        stack += node.node_children()
    return found


def nodes_with(program: Node, classes: frozenset[type], suits: Callable[[Any], bool] | None = None) -> set[int]:
    """The ids of the nodes of the classes (that `suits`), and of the nodes that contain one."""
    found: set[int] = set()
    seen: set[int] = set()
    stack: list[Any] = [program]  # a node in a tuple: its children are done
    while stack:
        node = stack.pop()
        node_class = node.__class__
        if node_class is tuple:
            (node,) = node
            if not found.isdisjoint(map(id, node.node_children())):
                found.add(id(node))
        elif node_class not in _LEAVES and id(node) not in seen:
            seen.add(id(node))
            if node_class in classes and (suits is None or suits(node)):
                found.add(id(node))
            else:
                stack.append((node,))
            stack += node.node_children()
    return found


class Contents(NamedTuple):
    """What a program consists of."""

    classes: frozenset[type]
    """classes of its nodes, without constants"""
    dtypes: frozenset[DType]
    """types of all its values, and of the buffers that it reads, writes or allocates"""
    calls: frozenset[str]
    """names of the intrinsics that it calls"""


@lru_cache(maxsize=1)
def contents_of(program: Node) -> Contents:
    """The contents of a statement or expression. Several passes ask in a row for those of one program: the latest are
    remembered."""
    classes: set[type] = set()
    dtypes: set[DType] = set()
    calls: set[str] = set()
    seen: set[int] = set()
    stack: list[Any] = [program]
    while stack:
        node = stack.pop()
        node_class = node.__class__
        if node_class in _LEAVES:
            dtypes.add(node.dtype)
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        classes.add(node_class)
        if node_class in _ACCESSES:
            dtypes.add(node.buffer.dtype)
        if node_class is Call:
            calls.add(node.op)
        if isinstance(node, PrimExpr):
            dtypes.add(node.dtype)
        stack += node.node_children()
    return Contents(frozenset(classes), frozenset(dtypes), frozenset(calls))


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
