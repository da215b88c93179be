"""Structural equality of nodes: equal classes and data, with bound variables matched pairwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from relayc.te.ir.node import Node

__all__ = ["StructuralData", "StructuralEqual", "first_difference", "structural_equal"]


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
        return self._compare(a, b, "")

    def _bind_definitions(self, a: Any, b: Any) -> bool:
        """Bind a definition, or a tuple or mapping of them, and compare what the definitions say of themselves."""
        if isinstance(a, tuple):
            same_length = len(a) == len(b)
            return same_length and all(self._bind_definitions(x, y) for x, y in zip(a, b, strict=True))
        if isinstance(a, Mapping):
            pairs = zip(a.items(), b.items(), strict=False)
            return len(a) == len(b) and all(self(k, m) and self._bind_definitions(v, w) for (k, v), (m, w) in pairs)
        self.bind(a, b)
        return self._compare(a, b, "")

    def _fail(self, path: str) -> bool:
        if not self.path:
            self.path = path or "<root>"
        return False

    def _compare(self, a: Any, b: Any, path: str) -> bool:
        if hasattr(a.__class__, "structural_equal_to"):
            same = a.__class__ is b.__class__ and a.structural_equal_to(b, self)
            return same or self._fail(path)
        if isinstance(a, tuple | list):
            if not isinstance(b, tuple | list) or len(a) != len(b):
                return self._fail(path)
            return all(self._compare(x, y, f"{path}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True)))
        if isinstance(a, dict):
            if not isinstance(b, dict) or a.keys() != b.keys():
                return self._fail(path)
            return all(self._compare(a[k], b[k], f"{path}[{k!r}]") for k in a)
        if not isinstance(a, Node):
            same = a is b or (a.__class__ is b.__class__ and bool(a == b)) or (a == b and isinstance(a, str))
            return same or self._fail(path)
        if a.__class__ is not b.__class__:
            return self._fail(path)
        if not all(self._bind_definitions(getattr(a, name), getattr(b, name)) for name in a.binders):
            return self._fail(path)
        names = (*a.data_fields, *a.child_fields)
        return all(self._compare(getattr(a, n), getattr(b, n), f"{path}.{n}") for n in names)


def structural_equal(a: Any, b: Any, map_free: bool = False) -> bool:
    """Are two programs the same up to the names and identities of their bound variables?"""
    return StructuralEqual(map_free)(a, b)


def first_difference(a: Any, b: Any, map_free: bool = True) -> str | None:
    """The path of the first difference, or None when equal: for test messages."""
    comparison = StructuralEqual(map_free)
    return None if comparison(a, b) else comparison.path
