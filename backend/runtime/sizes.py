"""Symbolic sizes: integer expressions over named size variables, evaluated when a model runs.

    size = int | name | [op, size, size]          op = "+" "-" "*" "//" "%" "min" "max"

They describe dynamic shapes and memory. Evaluation is exact integer arithmetic; division by 0, which only occurs for
empty tensors, gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from relayc.backend.runtime.fields import damaged

__all__ = [
    "MAX_ELEMENTS", "MAX_EXTENT", "Size", "SizeValues", "evaluate", "extent", "is_static", "read_shape",
    "readable_shape", "size_text", "substitute", "variables",
]  # fmt: skip

MAX_ELEMENTS = (1 << 31) - 1
"""Most elements of a tensor, and the largest `extent` of its shape: kernels index with int32."""

MAX_EXTENT = 1 << 44
"""Largest `extent` of the shape of any array: with 8 bytes each, the address space of a process."""

Size = int | str | tuple[str, "Size", "Size"]

_MAX_DEPTH = 200
_MAX_SIZE = 1 << 62
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
}


def read_size(value: object, where: str, known: Sequence[str], depth: int = 0) -> Size:
    """Parse a size from JSON. Raises `ArtifactError` for an invalid one, or a variable that is not in `known`."""
    if type(value) is int and 0 <= value <= _MAX_SIZE:
        return value
    if type(value) is int and depth:
        return value
    if isinstance(value, str) and value in known:
        return value
    if isinstance(value, list | tuple):
        parts: list[Any] = list(value)
        if len(parts) == 3 and isinstance(parts[0], str) and parts[0] in _OPERATORS and depth < _MAX_DEPTH:
            return parts[0], read_size(parts[1], where, known, depth + 1), read_size(parts[2], where, known, depth + 1)
    raise damaged(where, value, f"a size: an integer, one of the names {list(known)}, or [operator, size, size]")


def read_shape(value: Sequence[object], where: str, known: Sequence[str]) -> tuple[Size, ...]:
    """Parse a shape from JSON values; see `read_size`."""
    return tuple([read_size(d, f"{where}[{i}]", known) for i, d in enumerate(value)])


def extent(shape: Iterable[int]) -> int:
    """The product of the sizes that are not 0, which strides and index arithmetic reach in empty arrays, too."""
    return math.prod([size for size in shape if size])


def evaluate(size: Size, sizes: Mapping[str, int]) -> int:
    """Evaluate a size."""
    if isinstance(size, int):
        return size
    if isinstance(size, str):
        return sizes[size]
    return _OPERATORS[size[0]](evaluate(size[1], sizes), evaluate(size[2], sizes))


def substitute(size: Size, by_name: Mapping[str, Size]) -> Size:
    """The size with sizes in place of its variables."""
    if isinstance(size, tuple):
        return size[0], substitute(size[1], by_name), substitute(size[2], by_name)
    return by_name[size] if isinstance(size, str) else size


class SizeValues:
    """Sizes that are evaluated together, equal ones once: `values` by the number that `number` gives each."""

    def __init__(self) -> None:
        self._numbers: dict[Size, int] = {}
        self.values: list[int] = []

    def number(self, size: Size) -> int:
        """The number of a size; its value is there from the next `evaluate` on."""
        return self._numbers.setdefault(size, len(self._numbers))

    def evaluate(self, sizes: Mapping[str, int]) -> None:
        """Evaluate all sizes for these values of their variables."""
        self.values[:] = [evaluate(size, sizes) for size in self._numbers]


def variables(size: Size) -> Iterator[str]:
    """The names in a size."""
    if isinstance(size, str):
        yield size
    elif isinstance(size, tuple):
        yield from variables(size[1])
        yield from variables(size[2])


_SYMBOLIC = frozenset((str, tuple))


def is_static(shape: Sequence[Size]) -> bool:
    """Are all dimensions static?"""
    return _SYMBOLIC.isdisjoint(map(type, shape))


def size_text(size: Size) -> str:
    """A size as text, for users."""
    if not isinstance(size, tuple):
        return str(size)
    op, a, b = size
    if op in ("min", "max"):
        return f"{op}({size_text(a)}, {size_text(b)})"
    return f"({size_text(a)} {op} {size_text(b)})"


def readable_shape(shape: Sequence[Size]) -> list[int | str]:
    """A shape for users and for JSON: known sizes, and others as text."""
    return [d if isinstance(d, int) else size_text(d) for d in shape]
