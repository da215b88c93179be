"""Rewriting graphs bottom-up, iteratively."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import cast

from relayc.relay.analysis import count_uses
from relayc.relay.expr import Call, Expr, Function
from relayc.te.ir import post_order, rebuilt

__all__ = ["Sharing", "rewrite_calls", "rewrite_calls_knowing_uses"]


class Sharing:
    """Tells which expressions of a graph being rewritten, whose expressions are `order`, are used elsewhere too."""

    def __init__(self, order: Iterable[Expr] = ()) -> None:
        self._order = order
        self._shared: dict[int, Expr] = {}

    @cached_property
    def _uses(self) -> dict[int, int]:
        return count_uses(self._order)

    def __call__(self, e: Expr) -> bool:
        """Is `e` used more than once? Absorbing a shared expression would compute it twice."""
        return id(e) in self._shared or self._uses.get(id(e), 0) > 1

    def replace(self, old: Expr, new: Expr) -> None:
        """Note that `new` is used in place of `old`."""
        if self._uses[id(old)] > 1:
            self._shared[id(new)] = new  # keeps `new` alive, so that its id stays its own


def rewrite_calls(
    function: Function, rewrite: Callable[[Call], Expr], replaced: Callable[[Expr, Expr], None] | None = None
) -> Function:
    """`function` with every call, operands first, replaced by `rewrite(call)`, which must keep the type.

    `replaced` is told of every expression that changed, and what is in its place.
    """
    changed: dict[int, Expr] = {}
    for e in cast("Iterable[Expr]", post_order(function)):
        new: Expr = rebuilt(e, changed)
        if isinstance(new, Call):
            call, new = new, rewrite(new)
            assert new.ty is call.ty, f"a rewrite changed the type of {call.op} from {call.ty} to {new.ty}"
        if new is not e:
            changed[id(e)] = new
            if replaced is not None:
                replaced(e, new)
    return cast(Function, changed.get(id(function), function))


def rewrite_calls_knowing_uses(function: Function, rewrite: Callable[[Call, Sharing], Expr]) -> Function:
    """Like `rewrite_calls`; the second argument tells which (rewritten) operands are used elsewhere as well."""
    order = cast("list[Expr]", list(post_order(function)))
    sharing = Sharing(order)
    return rewrite_calls(function, lambda call: rewrite(call, sharing), sharing.replace)
