"""Visitors and mutators over nodes, dispatched through a table that is resolved once per (visitor, node class).

A method `visit_Add` serves class `Add`; without one, `visit_Binary` serves it, and so on along the bases, down to
`visit_default`. Trees of the loop IR are walked recursively; graphs (relay) use `post_order` and `rewrite_dag`, which
are iterative, because a chain of 10,000 calls must not overflow the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Generic, TypeVar

from relayc.te.ir.node import Node

__all__ = ["Mutator", "Visitor", "collect", "post_order", "rebuilt", "rewrite_dag"]

R = TypeVar("R")


class _Dispatch(dict[type, Callable[..., Any]]):
    """node class -> unbound visit function of one visitor class; filled on first use."""

    def __init__(self, visitor: type) -> None:
        super().__init__()
        self.visitor = visitor

    def __missing__(self, node_class: type) -> Callable[..., Any]:
        for base in node_class.__mro__:
            method = getattr(self.visitor, "visit_" + base.__name__, None)
            if method is not None:
                break
        else:
            method = self.visitor.visit_default  # type: ignore[attr-defined]
        self[node_class] = method
        return method


class Visitor(Generic[R]):
    """Calls `visit_<Class>(node)`; the default visits the children and returns None."""

    _dispatch: _Dispatch

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._dispatch = _Dispatch(cls)

    def visit(self, node: Any) -> R:
        return self._dispatch[node.__class__](self, node)

    def visit_default(self, node: Node) -> Any:
        for child in node.node_children():
            self.visit(child)


class Mutator(Visitor[Any]):
    """Rebuilds what changed. A `visit_<Class>` that returns its argument leaves the tree as it is."""

    def visit(self, node: Any) -> Any:
        method = self._dispatch[node.__class__]
        return node.rebuild(self.visit) if method is Mutator.visit_default else method(self, node)

    def visit_default(self, node: Node) -> Any:
        return node.rebuild(self.visit)


def post_order(roots: Node | Iterable[Node]) -> Iterator[Node]:
    """Every node reachable from `roots`, once each, children first. Iterative."""
    if isinstance(roots, Node) and (below := roots.order_below()) is not None:
        return chain(below, (roots,))
    return _walked(roots)


def _walked(roots: Node | Iterable[Node]) -> Iterator[Node]:
    seen: set[int] = set()
    # a node in a tuple: its children are done
    stack: list[Any] = [roots] if isinstance(roots, Node) else [*roots][::-1]
    while stack:
        current = stack.pop()
        if current.__class__ is tuple:
            yield current[0]
            continue
        key = id(current)
        if key in seen:
            continue
        seen.add(key)
        children = current.node_children()
        if children:
            stack.append((current,))
            stack += children[::-1]
        else:
            yield current


def rewrite_dag(root: Any, rewrite: Callable[[Any], Any]) -> Any:
    """Rebuild a DAG bottom-up, each node once: `rewrite` sees a node whose children are done already. Iterative."""
    changed: dict[int, Node] = {}
    for current in list(post_order(root)):
        new = rewrite(rebuilt(current, changed))
        if new is not current:
            changed[id(current)] = new
    return changed.get(id(root), root)


def rebuilt(node: Any, changed: Mapping[int, Node]) -> Any:
    """`node` with the children whose ids are in `changed` replaced; itself when there are none."""
    if changed:
        for child in node.node_children():
            if id(child) in changed:
                return node.rebuild(lambda child: changed.get(id(child), child))
    return node


def collect(root: Node, wanted: type[R] | tuple[type, ...]) -> list[R]:
    """All nodes of a class reachable from `root`, once each, children first."""
    return [n for n in post_order(root) if isinstance(n, wanted)]  # type: ignore[misc]
