"""Registry of converters of ONNX operators by domain, name and version.

    @converter("Softmax", since=13)
    def softmax(node: OnnxNode) -> Expr:
        return op.nn.softmax(node[0], axis=node.attr_int("axis", -1))

`since` is the first opset of this version of the operator; the newest converter that is not newer than the model's
opset is selected. One converter may serve several operators (`node.op_type`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops import load_all_converters, load_converters
from relayc.relay.expr import Expr

__all__ = ["Converter", "Result", "convert_with", "converter", "find_converter", "registered_operators"]

Result = Expr | Sequence[Expr | None]
"""Result of a converter: the only output, or the outputs in order (None for an unused one)."""

Converter = Callable[[OnnxNode], Result]


@dataclass(slots=True)
class _Versions:
    """Converters of one operator, by rising `since`; None marks a version that removed the operator."""

    since: list[int] = field(default_factory=list)
    functions: list[Converter | None] = field(default_factory=list)

    def add(self, since: int, function: Converter | None, name: str) -> None:
        at = bisect_right(self.since, since)
        if at and self.since[at - 1] == since:
            raise ValueError(f"two converters for {name} since opset {since}")
        self.since.insert(at, since)
        self.functions.insert(at, function)

    def find(self, opset: int) -> Converter | None:
        at = bisect_right(self.since, opset)
        return self.functions[at - 1] if at else None


_table: dict[tuple[str, str], _Versions] = {}


def convert_with(function: Converter, *names: str, since: int = 1, until: int | None = None, domain: str = "") -> None:
    """Register `function` for the operators `names` from opset `since` up to, not including, opset `until`."""
    for name in names:
        versions = _table.setdefault((domain, name), _Versions())
        versions.add(since, function, name)
        if until is not None:
            versions.add(until, None, name)


def converter(
    *names: str, since: int = 1, until: int | None = None, domain: str = ""
) -> Callable[[Converter], Converter]:
    """Decorator form of `convert_with`."""

    def register(function: Converter) -> Converter:
        convert_with(function, *names, since=since, until=until, domain=domain)
        return function

    return register


def find_converter(domain: str, name: str, opset: int) -> Converter | None:
    """The converter of an operator at `opset` of its domain, or None."""
    load_converters(domain, name)
    versions = _table.get((domain, name))
    return versions.find(opset) if versions is not None else None


def registered_definitions() -> list[Converter]:
    """Every converter registered so far."""
    return [function for versions in _table.values() for function in versions.functions if function is not None]


def registered_operators() -> list[tuple[str, str, int]]:
    """(domain, name, since) of every converter, sorted."""
    load_all_converters()
    return sorted(
        (domain, name, since)
        for (domain, name), versions in _table.items()
        for since, function in zip(versions.since, versions.functions, strict=True)
        if function is not None
    )
