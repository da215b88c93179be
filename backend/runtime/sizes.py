"""Symbolic sizes: integer expressions over named size variables, evaluated when a model runs.

    size = int | name | [op, size, size] | [number of a formula]      op = "+" "-" "*" "//" "%" "min" "max"

They describe dynamic shapes and memory. Evaluation is exact integer arithmetic; division by 0, which only occurs for
empty tensors, gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from relayc.backend.runtime.fields import damaged

__all__ = [
    "MAX_ELEMENTS", "MAX_EXTENT", "Size", "SizeReader", "SizeValues", "SizeWriter", "evaluate", "extent", "is_static",
    "readable_shape", "readable_size", "size_text", "substitute", "variables",
]  # fmt: skip

MAX_ELEMENTS = (1 << 31) - 1
"""Most elements of a tensor, and the largest `extent` of its shape: kernels index with int32."""

MAX_EXTENT = 1 << 44
"""Largest `extent` of the shape of any array: with 8 bytes each, the address space of a process."""

Size = int | str | tuple[str, "Size", "Size"]

_MAX_DEPTH = 200
_MAX_OPERATORS = 1 << 20
"""Most operators that a formula of formulas may have when it is evaluated."""
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


class SizeReader:
    """Reads sizes from JSON. `formulas` are those that [number] stands for, written by a `SizeWriter`.

    Raises `ArtifactError` for an invalid size, or a variable that is not among `names`.
    """

    def __init__(self, names: Sequence[str], formulas: Sequence[object] = (), where: str = "") -> None:
        self.names = tuple(names)
        self._formulas: list[Size] = []
        self._extents: list[tuple[int, int]] = []
        """depth and operators of each formula as it is evaluated: formulas that name others are short"""
        for number, formula in enumerate(formulas):
            self._add(formula, f"{where}[{number}]")

    def _add(self, formula: object, where: str) -> None:
        parts: list[Any] = formula if isinstance(formula, list) else []
        operands = parts[1:]
        known = len(parts) == 3 and isinstance(parts[0], str) and parts[0] in _OPERATORS
        if not known or any(isinstance(part, list) and len(part) != 1 for part in operands):
            raise damaged(where, formula, "[operator, size, size] of integers, names and [number] of earlier formulas")
        left, right = [self.size(part, where, 1) for part in operands]
        earlier = [self._extents[part[0]] for part in operands if isinstance(part, list)]
        depth = 1 + max([depth for depth, _ in earlier], default=0)
        operators = 1 + sum([operators for _, operators in earlier])
        if depth > _MAX_DEPTH or operators > _MAX_OPERATORS:
            expected = f"a formula of at most {_MAX_OPERATORS} operators, {_MAX_DEPTH} deep"
            raise damaged(where, f"one of {operators}, {depth} deep", expected)
        self._formulas.append((parts[0], left, right))
        self._extents.append((depth, operators))

    def size(self, value: object, where: str, depth: int = 0) -> Size:
        """A size, at the place `where`."""
        if type(value) is int and (depth or 0 <= value <= _MAX_SIZE):
            return value
        if isinstance(value, str) and value in self.names:
            return value
        if isinstance(value, list | tuple):
            parts: list[Any] = list(value)
            if len(parts) == 1 and type(parts[0]) is int and 0 <= parts[0] < len(self._formulas):
                return self._formulas[parts[0]]
            if len(parts) == 3 and isinstance(parts[0], str) and parts[0] in _OPERATORS and depth < _MAX_DEPTH:
                return parts[0], self.size(parts[1], where, depth + 1), self.size(parts[2], where, depth + 1)
        raise damaged(
            where, value, f"a size: an integer, one of the names {list(self.names)}, [operator, size, size], or the "
            f"[number] of one of {len(self._formulas)} formulas"
        )  # fmt: skip

    def shape(self, values: Sequence[object], where: str) -> tuple[Size, ...]:
        """The sizes of a shape."""
        return tuple([self.size(d, f"{where}[{i}]") for i, d in enumerate(values)])


class SizeWriter:
    """Writes sizes as JSON. Each formula is a row of `formulas`, in which [number] stands for an earlier row."""

    def __init__(self) -> None:
        self.formulas: list[object] = []
        self._numbers: dict[Size, int] = {}

    def size(self, size: Size) -> object:
        """An integer, a name, or the [number] of a formula."""
        if not isinstance(size, tuple):
            return size
        number = self._numbers.get(size)
        if number is None:
            self.formulas.append([size[0], self.size(size[1]), self.size(size[2])])
            number = self._numbers[size] = len(self.formulas) - 1
        return [number]

    def shape(self, shape: Iterable[Size]) -> list[object]:
        """The sizes of a shape."""
        return [self.size(d) for d in shape]


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


def readable_size(size: Size) -> int | str:
    """A size for users and for JSON: the number, or a formula as text."""
    return size if isinstance(size, int) else size_text(size)


def readable_shape(shape: Sequence[Size]) -> list[int | str]:
    """The sizes of a shape for users and for JSON."""
    return [readable_size(d) for d in shape]
