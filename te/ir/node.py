"""The decorator that every IR node class is made with.

`@node` turns a class with annotated fields into a slots dataclass with *identity* equality and generates, per class,
the two operations that every visitor needs: `node_children` (the sub-nodes, in field order) and `rebuild` (the same
node over mapped children; the very same object when no child changed).

A field counts as a child when its annotation names node classes: ``PrimExpr``, ``PrimExpr | None``,
``tuple[Stmt, ...]``, ``tuple[PrimExpr | int, ...]`` (non-nodes in it are passed through). Fields listed in the class
attribute `binders` name variables that the node *defines* (a loop variable): they are not children. Fields that begin
with an underscore hold what is computed of the others: they are neither children nor data.
Construction costs about 150 ns, a rebuild about 150 ns; frozen dataclasses and hash-consing cost four to seven times
as much, so immutability is checked by type checkers (`frozen_default`), not when a program runs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, dataclass_transform

from relayc.te.ir.span import Span

__all__ = ["Node", "node"]

_N = TypeVar("_N")
_node_class_names: set[str] = {"Node"}
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


class Node:
    """Base of every IR node. Nodes are immutable by convention and compared by identity."""

    __slots__ = ()

    binders: ClassVar[tuple[str, ...]] = ()
    child_fields: ClassVar[tuple[str, ...]] = ()
    data_fields: ClassVar[tuple[str, ...]] = ()

    span: Span | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _node_class_names.add(cls.__name__)

    def node_children(self) -> tuple[Node, ...]:
        """The sub-nodes, in field order."""
        raise NotImplementedError(f"{type(self).__name__} is not made with @node")

    def rebuild(self: _N, visit: Callable[[Any], Any]) -> _N:
        """This node with every child replaced by `visit(child)`; `self` itself when none changed."""
        raise NotImplementedError(f"{type(self).__name__} is not made with @node")

    def order_below(self) -> Sequence[Node] | None:
        """Every node below this one, once each, children first, where nodes keep that for the many passes that walk
        it."""
        return None

    def replace(self: _N, **changes: Any) -> _N:
        """A copy with some fields changed; derived fields are computed again."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


_ONE = re.compile(r"\w+")
_OPTIONAL = re.compile(r"\w+ \| None")
_MANY = re.compile(r"tuple\[\w+, \.\.\.\]")


def _map_nodes(visit: Callable[[Any], Any], old: tuple[Any, ...]) -> tuple[Any, ...]:
    """Map a tuple of nodes; gives the very same one when none changed."""
    new = tuple([visit(item) for item in old])
    for a, b in zip(new, old, strict=True):
        if a is not b:
            return new
    return old


def _map_field(visit: Callable[[Any], Any], old: Any) -> Any:
    """Map a child field of any form: a node, a tuple with nodes in it, or neither."""
    if isinstance(old, Node):
        return visit(old)
    if not isinstance(old, tuple):
        return old
    return _map_nodes(lambda item: visit(item) if isinstance(item, Node) else item, old)


def _nodes_of(value: Any) -> Sequence[Node]:
    """The nodes in a child field of any form."""
    if isinstance(value, Node):
        return (value,)
    return [item for item in value if isinstance(item, Node)] if isinstance(value, tuple) else ()


def _mapped(name: str, annotation: str) -> str:
    """The Python source that maps the child field in `old_<name>`."""
    if _ONE.fullmatch(annotation):
        return f"visit(old_{name})"
    if _OPTIONAL.fullmatch(annotation):
        return f"None if old_{name} is None else visit(old_{name})"
    if _MANY.fullmatch(annotation):
        return f"map_nodes(visit, old_{name})"
    return f"map_field(visit, old_{name})"


def _listed(name: str, annotation: str) -> str:
    """The Python source of the nodes of a child field, as items of a tuple."""
    if _ONE.fullmatch(annotation):
        return f"self.{name}, "
    if _OPTIONAL.fullmatch(annotation):
        return f"*(() if self.{name} is None else (self.{name},)), "
    return f"*self.{name}, " if _MANY.fullmatch(annotation) else f"*nodes_of(self.{name}), "


def _generate_rebuild(cls: type, children: Sequence[str]) -> Callable[..., Any]:
    """`rebuild` of one class, written out over its fields: five times as fast as a loop over them."""
    fields = sorted([f for f in dataclasses.fields(cls) if f.init], key=lambda f: f.kw_only)  # type: ignore[arg-type]
    annotations = {f.name: str(f.type) for f in fields}
    lines = ["def rebuild(self, visit):"]
    for n in children:
        lines += [f"    old_{n} = self.{n}", f"    new_{n} = {_mapped(n, annotations[n])}"]
    same = " and ".join([f"new_{n} is old_{n}" for n in children]) or "True"
    arguments = [(f"{f.name}=" if f.kw_only else "") + (f"new_{f.name}" if f.name in children else f"self.{f.name}")
                 for f in fields]  # fmt: skip
    lines += [f"    if {same}:", "        return self", f"    return cls({', '.join(arguments)})"]
    scope: dict[str, Any] = {"cls": cls, "map_nodes": _map_nodes, "map_field": _map_field}
    exec("\n".join(lines), scope)
    scope["rebuild"].__doc__ = Node.rebuild.__doc__
    return scope["rebuild"]


def _generate_children(cls: type, children: Sequence[str]) -> Callable[..., Any]:
    """`node_children` of one class, written out over its fields."""
    annotations = {f.name: str(f.type) for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    items = "".join([_listed(n, annotations[n]) for n in children])
    scope: dict[str, Any] = {"nodes_of": _nodes_of}
    exec(f"def node_children(self):\n    return ({items})", scope)
    scope["node_children"].__doc__ = Node.node_children.__doc__
    return scope["node_children"]


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(dataclasses.field,))
def node(cls: type[_N]) -> type[_N]:
    """Make `cls` an IR node: see the module's docstring."""
    made = dataclasses.dataclass(slots=True, eq=False, repr=False)(cls)
    binders: tuple[str, ...] = getattr(made, "binders", ())
    children: list[str] = []
    data: list[str] = []
    for f in dataclasses.fields(made):  # type: ignore[arg-type]
        if f.name == "span" or f.name in binders or f.name.startswith("_"):
            continue
        is_child = any(word in _node_class_names for word in _IDENTIFIER.findall(str(f.type)))
        (children if is_child else data).append(f.name)
    made.child_fields = tuple(children)  # type: ignore[attr-defined]
    made.data_fields = tuple(data)  # type: ignore[attr-defined]
    if "node_children" not in cls.__dict__:
        made.node_children = _generate_children(made, children)  # type: ignore[attr-defined]
    if "rebuild" not in cls.__dict__:
        made.rebuild = _generate_rebuild(made, children)  # type: ignore[attr-defined]
    return made
