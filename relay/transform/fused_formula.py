"""How large the formula of a fused group is.

A group of injective operators becomes one expression, which passes and code generators walk recursively, so that its
depth has to be limited. The expression shares what its operators share, except for operands that are read at several
indices, as `c` in gather(c, c), or under several conditions: a chain of k of those would be a formula of 2^k elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

__all__ = ["MAX_DEPTH", "is_small_formula"]

MAX_DEPTH = 64
"""Most elementwise operators of which each reads the result of the one before. A walk takes about seven Python frames
for each, and Python has 1,000."""

_MOVES = 4
"""The depth of an operator that computes indices, in elementwise operators."""

_MAX_REPEATED = 32
"""Most elements, for each one of the result, that an operator computes besides its first one, all operators together.
Each may be an index into another."""


def is_small_formula(
    members: Iterable[int], users: Sequence[Sequence[int]], is_elementwise: Callable[[int, int], bool]
) -> bool:
    """Is the formula of a group shallow, and does it compute few elements for each one of the result?

    `members` are positions in evaluation order. `users` has those that read each of them, one entry per operand;
    `is_elementwise` says whether a reader reads just one element of an operand for an element of its own.
    """
    depth: dict[int, int] = {}
    places: dict[int, set[int]] = {}  # where in the formula elements of a member are computed, as numbers
    repeated = fresh = 0
    for node in sorted(members, reverse=True):
        deepest, here = 1, set[int]()
        for user in [user for user in users[node] if user in depth]:
            if is_elementwise(node, user):
                deepest = max(deepest, depth[user] + 1)
                here |= places[user]
            else:
                deepest = max(deepest, depth[user] + _MOVES)
                here.update(range(fresh, fresh + len(places[user])))
                fresh += len(places[user])
        depth[node], places[node] = deepest, here or {-1}
        repeated += len(places[node]) - 1
        if deepest > MAX_DEPTH or repeated > _MAX_REPEATED:
            return False
    return True
