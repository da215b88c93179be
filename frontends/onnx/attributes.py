"""Typed access to node attributes. Attributes that no converter reads are reported as unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnx import AttributeProto, GraphProto

from relayc.frontends.onnx.errors import OnnxImportError

__all__ = ["IGNORED", "Attributes", "Bindings", "bind"]

Bindings = Mapping[str, AttributeProto]
"""Attribute by name: the values of a function body's attribute references."""

IGNORED = frozenset({"consumed_inputs"})
"""Attributes of early opsets that do not affect results."""

_KIND_NAMES: dict[int, str] = {
    AttributeProto.FLOAT: "a float",
    AttributeProto.INT: "an int",
    AttributeProto.STRING: "a string",
    AttributeProto.TENSOR: "a tensor",
    AttributeProto.GRAPH: "a graph",
    AttributeProto.FLOATS: "a list of floats",
    AttributeProto.INTS: "a list of ints",
    AttributeProto.STRINGS: "a list of strings",
}

_PRESENCE = (
    ("f", AttributeProto.FLOAT),
    ("i", AttributeProto.INT),
    ("s", AttributeProto.STRING),
    ("t", AttributeProto.TENSOR),
    ("g", AttributeProto.GRAPH),
)
_LISTS = (("floats", AttributeProto.FLOATS), ("ints", AttributeProto.INTS), ("strings", AttributeProto.STRINGS))


def bind(attributes: Iterable[AttributeProto], bindings: Bindings) -> dict[str, AttributeProto]:
    """Attributes by name, with references to a function's attributes (`ref_attr_name`) resolved.

    A reference to an attribute that the call omits is omitted too. Raises `OnnxImportError` for duplicates.
    """
    table: dict[str, AttributeProto] = {}
    for attribute in attributes:
        if attribute.name in table:
            raise OnnxImportError(f"the attribute {attribute.name!r} is given twice")
        if attribute.ref_attr_name:
            bound = bindings.get(attribute.ref_attr_name)
            if bound is None:
                continue
            table[attribute.name] = bound
        else:
            table[attribute.name] = attribute
    return table


class Attributes:
    """Typed access to attributes. `get_*` returns None for an absent one and raises for one of another type."""

    __slots__ = ("_read", "_table")

    def __init__(self, table: Mapping[str, AttributeProto]) -> None:
        self._table = table
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def unread(self) -> list[str]:
        """Names of attributes that no converter read."""
        return [name for name in self._table if name not in self._read and name not in IGNORED]

    def ignore(self, *names: str) -> None:
        """Mark `names` as read: they do not affect the result here."""
        self._read.update(names)

    def get_int(self, name: str) -> int | None:
        found = self._get(name, AttributeProto.INT)
        return None if found is None else found.i

    def get_float(self, name: str) -> float | None:
        found = self._get(name, AttributeProto.FLOAT)
        return None if found is None else found.f

    def get_str(self, name: str) -> str | None:
        found = self._get(name, AttributeProto.STRING)
        return None if found is None else _text(found.s, name)

    def get_ints(self, name: str) -> tuple[int, ...] | None:
        found = self._get(name, AttributeProto.INTS)
        return None if found is None else tuple(found.ints)

    def get_floats(self, name: str) -> tuple[float, ...] | None:
        found = self._get(name, AttributeProto.FLOATS)
        return None if found is None else tuple(found.floats)

    def get_strings(self, name: str) -> tuple[str, ...] | None:
        found = self._get(name, AttributeProto.STRINGS)
        return None if found is None else tuple(_text(s, name) for s in found.strings)

    def get_tensor(self, name: str) -> Any:
        """The TensorProto of attribute `name`."""
        found = self._get(name, AttributeProto.TENSOR)
        return None if found is None else found.t

    def get_sparse_tensor(self, name: str) -> Any:
        """The SparseTensorProto of attribute `name`."""
        found = self._get(name, AttributeProto.SPARSE_TENSOR)
        return None if found is None else found.sparse_tensor

    def get_graph(self, name: str) -> GraphProto | None:
        found = self._get(name, AttributeProto.GRAPH)
        return None if found is None else found.g

    def _get(self, name: str, kind: int) -> AttributeProto | None:
        found = self._table.get(name)
        if found is None:
            return None
        self._read.add(name)
        actual = found.type if found.type else _implied_type(found)
        if actual != kind and not _empty_list(found, kind):
            raise OnnxImportError(
                f"the attribute {name!r} is {_KIND_NAMES.get(actual, 'of another kind')}; "
                f"expected {_KIND_NAMES.get(kind, 'another kind')}"
            )
        return found


def _implied_type(attribute: AttributeProto) -> int:
    """The type of an attribute without one (IR version 1), implied by the field that is set."""
    for field, kind in _PRESENCE:
        if attribute.HasField(field):
            return kind
    for field, kind in _LISTS:
        if len(getattr(attribute, field)):
            return kind
    return AttributeProto.UNDEFINED


def _empty_list(attribute: AttributeProto, kind: int) -> bool:
    """Is this an attribute without type and value, which stands for an empty list?"""
    return attribute.type == 0 and _implied_type(attribute) == 0 and any(kind == k for _, k in _LISTS)


def _text(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OnnxImportError(f"the attribute {name!r} is not text: {raw[:40]!r}") from error
