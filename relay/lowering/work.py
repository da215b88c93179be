"""The work of kernels, operations and bytes, as numbers or, where sizes are dynamic, as formulas of them.

Arithmetic is exact, as a `Size` is; expressions of `te.tir` are 32 bits wide, which operations of a large model exceed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce

from relayc.backend.runtime.sizes import Size
from relayc.backend.size_json import size_to_json
from relayc.te.tir import Dim

__all__ = ["known_part", "product_of", "smaller", "total"]


def product_of(extents: Iterable[Dim]) -> Size:
    """The product of the extents: a number, or ("*", symbolic extents, number)."""
    factors = list(extents)
    number = math.prod([d for d in factors if isinstance(d, int)])
    symbolic = [size_to_json(d) for d in factors if not isinstance(d, int)]
    return ("*", reduce(lambda a, b: ("*", a, b), symbolic), number) if symbolic and number else number


def total(sizes: Sequence[Size]) -> Size:
    """The sum of the sizes: products of the same extents as one term, in a tree that is as flat as can be."""
    numbers: dict[Size, int] = {}
    others: list[Size] = []
    for size in sizes:
        if isinstance(size, tuple) and size[0] == "*" and isinstance(size[2], int):
            numbers[size[1]] = numbers.get(size[1], 0) + size[2]
        else:
            others.append(size)
    known = sum([size for size in others if isinstance(size, int)])
    terms: list[Size] = [("*", extents, number) for extents, number in numbers.items()]
    terms += [size for size in others if not isinstance(size, int)]
    terms += [known] if known or not terms else []
    while len(terms) > 1:
        odd = terms[-1:] if len(terms) % 2 else []
        terms = [*[("+", a, b) for a, b in zip(terms[::2], terms[1::2], strict=False)], *odd]
    return terms[0]


def smaller(a: Size, b: Size) -> Size:
    """The smaller of two sizes."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else ("min", a, b)


def known_part(size: Size) -> int:
    """The sum of the terms without variables."""
    if isinstance(size, tuple) and size[0] == "+":
        return known_part(size[1]) + known_part(size[2])
    return size if isinstance(size, int) else 0
