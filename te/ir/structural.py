"""Structural equality of nodes: equal classes and data, with bound variables matched pairwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol

from relayc.te.ir.node import Node

__all__ = ["StructuralData", "StructuralEqual", "first_difference", "structural_equal"]

_Step = str | int | tuple[Any]
"""Leads to a part of a node: the name of a field, a position in a sequence, or, in a tuple, the key of a mapping."""
_Path = tuple["_Path", _Step] | None
"""The steps from the root; written out only where programs differ."""


class StructuralData(Protocol):
    """Data of a node (a buffer, a type) that compares itself through the comparison in progress."""

    def structural_equal_to(self, other: Any, equal: StructuralEqual) -> bool: ...


class StructuralEqual:
    """One comparison. Variables are equal when they are the same object or were bound at the same place.

    With `map_free`, free variables of the left side are matched with those of the right on first sight, so that two
    separately built programs can be compared. `path` names the first difference after a failed comparison.
    """

    def __init__(self, map_free: bool = False) -> None:
        self.map_free = map_free
        self.path = ""
        self._forward: dict[int, Any] = {}
        self._backward: dict[int, Any] = {}

    def bind(self, a: Any, b: Any) -> None:
        """Declare that definition `a` of the left side stands for `b` of the right."""
        self._forward[id(a)] = b
        self._backward[id(b)] = a

    def same_definition(self, a: Any, b: Any) -> bool:
        """Are these uses of the same variable, buffer or other definition?"""
        known = id(a) in self._forward or id(b) in self._backward
        if known:
            return self._forward.get(id(a)) is b and self._backward.get(id(b)) is a
        if a is b:
            return True
        if self.map_free:
            self.bind(a, b)
            return True
        return False

    def __call__(self, a: Any, b: Any) -> bool:
        return self._compare(a, b, None)

    def _bind_definitions(self, a: Any, b: Any) -> bool:
        """Bind a definition, or a tuple or mapping of them, and compare what the definitions say of themselves."""
        if isinstance(a, tuple):
            same_length = len(a) == len(b)
            return same_length and all(self._bind_definitions(x, y) for x, y in zip(a, b, strict=True))
        if isinstance(a, Mapping):
            pairs = zip(a.items(), b.items(), strict=False)
            return len(a) == len(b) and all(self(k, m) and self._bind_definitions(v, w) for (k, v), (m, w) in pairs)
        self.bind(a, b)
        return self._compare(a, b, None)

    def _fail(self, path: _Path) -> bool:
        if not self.path:
            self.path = _written(path) or "<root>"
        return False

    def _compare(self, a: Any, b: Any, path: _Path) -> bool:
        kind = _kind_of(a.__class__)
        if a is b and not self._forward and kind.is_node:
            return True
        if kind.compares_itself:
            same = a.__class__ is b.__class__ and a.structural_equal_to(b, self)
            return same or self._fail(path)
        if kind.is_node:
            return self._compare_nodes(a, b, kind, path)
        if isinstance(a, tuple | list):
            if not isinstance(b, tuple | list) or len(a) != len(b):
                return self._fail(path)
            return self._compare_pairs(zip(range(len(a)), a, b, strict=True), path)
        if isinstance(a, dict):
            if not isinstance(b, dict) or a.keys() != b.keys():
                return self._fail(path)
            return self._compare_pairs([((k,), a[k], b[k]) for k in a], path)
        comparable = a.__class__ is b.__class__ or (isinstance(a, str) and isinstance(b, str))
        return a is b or (comparable and bool(a == b)) or self._fail(path)

    def _compare_pairs(self, pairs: Iterable[tuple[_Step, Any, Any]], path: _Path) -> bool:
        for step, x, y in pairs:  # noqa: SIM110 - a generator takes twice as long
            if not self._compare(x, y, (path, step)):
                return False
        return True

    def _compare_nodes(self, a: Any, b: Any, kind: _Kind, path: _Path) -> bool:
        if a.__class__ is not b.__class__:
            return self._fail(path)
        for name in kind.binders:
            if not self._bind_definitions(getattr(a, name), getattr(b, name)):
                return self._fail(path)
        for name in kind.fields:
            x, y = getattr(a, name), getattr(b, name)
            if (x is not y or self._forward) and not self._compare(x, y, (path, name)):
                return False
        return True


class _Kind(NamedTuple):
    """How values of a class are compared: by a method of their own, as nodes by their fields, or as Python does."""

    compares_itself: bool
    is_node: bool
    binders: tuple[str, ...]
    fields: tuple[str, ...]


@cache
def _kind_of(of: type) -> _Kind:
    if not issubclass(of, Node):
        return _Kind(hasattr(of, "structural_equal_to"), False, (), ())
    return _Kind(hasattr(of, "structural_equal_to"), True, of.binders, (*of.data_fields, *of.child_fields))


def _written(path: _Path) -> str:
    """A path as text, such as ``.body.args[1]``."""
    if path is None:
        return ""
    outer, step = path
    match step:
        case str():
            return f"{_written(outer)}.{step}"
        case int():
            return f"{_written(outer)}[{step}]"
        case (key,):
            return f"{_written(outer)}[{key!r}]"


def structural_equal(a: Any, b: Any, map_free: bool = False) -> bool:
    """Are two programs the same up to the names and identities of their bound variables?"""
    return StructuralEqual(map_free)(a, b)


def first_difference(a: Any, b: Any, map_free: bool = True) -> str | None:
    """The path of the first difference, or None when equal: for test messages."""
    comparison = StructuralEqual(map_free)
    return None if comparison(a, b) else comparison.path
