"""Pairwise testing: of a product of three or more parametrisations, a part that has each pair of their values.

A fault seldom needs three parameters to have particular values at once (D. R. Kuhn, D. R. Wallace and A. M. Gallo,
"Software Fault Interactions and Implications for Software Testing", 2004).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations

import pytest

__all__ = ["covering", "factors_of", "pairwise"]


def covering(rows: Sequence[Sequence[Hashable]]) -> list[int]:
    """The positions of rows that together have every pair of values that two columns have in any row; greedy."""
    pairs = [set(combinations(enumerate(row), 2)) for row in rows]
    missing = set[tuple[tuple[int, Hashable], tuple[int, Hashable]]]().union(*pairs)
    chosen: list[int] = []
    while missing:
        best = max(range(len(rows)), key=lambda i: len(pairs[i] & missing))
        missing -= pairs[best]
        chosen.append(best)
    return sorted(chosen)


def factors_of(item: pytest.Item) -> tuple[tuple[int, ...], ...]:
    """The value that a test has of each parametrisation, by identity: names that are parametrised together are one."""
    values: dict[str, object] = item.callspec.params if isinstance(item, pytest.Function) and hasattr(
        item, "callspec") else {}  # fmt: skip
    groups: list[Sequence[str]] = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        groups.append([name.strip() for name in names.split(",")] if isinstance(names, str) else names)
    marked = {name for group in groups for name in group}
    groups += [[name] for name in values if name not in marked]
    return tuple([tuple([id(values[name]) for name in group]) for group in groups])


def pairwise(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that are kept, in their order, and those left out: combinations beyond pairs."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.split("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for same in functions.values():
        rows = [factors_of(item) for item in same]
        if len(rows[0]) > 2 and len({len(row) for row in rows}) == 1:
            kept = set(covering(rows))
            left_out |= {item for i, item in enumerate(same) if i not in kept}
    return [item for item in items if item not in left_out], [item for item in items if item in left_out]
