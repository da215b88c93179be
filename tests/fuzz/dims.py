"""Symbolic sizes of random graphs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["RUNS", "SYMBOLS", "Symbolic", "broadcast_shapes", "is_symbolic", "rival", "shape_at"]

Sizes = Mapping[str, int]

SYMBOLS = {"batch": 7, "length": 11, "wide": 17}
"""Sizes of named dimensions while a graph is generated; other dimensions rarely have them."""

_JOINED = 13
"""The size that "batch" and "wide" broadcast to, while a graph is generated."""

_FAMILY = frozenset((SYMBOLS["batch"], SYMBOLS["wide"], _JOINED))

RUNS = (("batch", "wide"), (), ("batch",), ("wide",))
"""For each run of a graph, those of the two names that broadcast whose size is not 1; it is one size."""


class Symbolic(int):
    """A symbolic size: its value while the graph is generated, and `at`, its value for other sizes of the named
    dimensions. Arithmetic on it gives symbolic sizes."""

    at: Callable[[Sizes], int]
    symbol: str | None

    def __new__(cls, value: int, at: Callable[[Sizes], int], symbol: str | None = None) -> Symbolic:
        made = super().__new__(cls, value)
        made.at, made.symbol = at, symbol
        return made

    @staticmethod
    def named(symbol: str) -> Symbolic:
        """The dimension of this name."""
        return Symbolic(SYMBOLS[symbol], lambda sizes: sizes[symbol], symbol)


def _at(size: int, sizes: Sizes) -> int:
    return size.at(sizes) if isinstance(size, Symbolic) else size


def _lifted(apply: Callable[[int, int], int], swapped: bool = False) -> Any:
    def method(self: Symbolic, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        return Symbolic(apply(int(a), int(b)), lambda sizes: apply(_at(a, sizes), _at(b, sizes)))

    return method


for _name in ("add", "sub", "mul", "floordiv"):
    setattr(Symbolic, f"__{_name}__", _lifted(getattr(operator, _name)))
    setattr(Symbolic, f"__r{_name}__", _lifted(getattr(operator, _name), swapped=True))
Symbolic.__neg__ = lambda self: 0 - self  # type: ignore[method-assign]


def is_symbolic(shape: Sequence[int]) -> bool:
    """Does the shape have a symbolic dimension?"""
    return any(isinstance(d, Symbolic) for d in shape)


def shape_at(shape: Sequence[int], sizes: Sizes) -> tuple[int, ...]:
    """The shape for these sizes of the named dimensions."""
    return tuple(_at(d, sizes) for d in shape)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape, as numpy has it. Raises LookupError where there is none, or none for all sizes."""
    rank = max(len(s) for s in shapes)
    return tuple(
        [_common([s[len(s) - rank + i] for s in shapes if len(s) - rank + i >= 0]) for i in range(rank)]
    )


def rival(d: int) -> int:
    """A size of another name that broadcasts with a symbolic one; the size itself if there is none."""
    if not isinstance(d, Symbolic) or int(d) not in _FAMILY:
        return d
    return Symbolic.named("batch" if int(d) == SYMBOLS["wide"] else "wide")


def _joined() -> Symbolic:
    return Symbolic(_JOINED, lambda sizes: max(sizes["batch"], sizes["wide"]))


def _common(dims: Sequence[int]) -> int:
    wide = [d for d in dims if isinstance(d, Symbolic) or d != 1]
    if len({int(d) for d in wide}) > 1 and all(isinstance(d, Symbolic) and int(d) in _FAMILY for d in wide):
        return _joined()
    if len({int(d) for d in wide}) > 1 or len({isinstance(d, Symbolic) for d in wide}) > 1:
        raise LookupError("shapes that do not broadcast")
    return wide[0] if wide else 1
