"""Rewriting graphs bottom-up, iteratively."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from relayc.relay.analysis import count_uses
from relayc.relay.expr import Call, Expr, Function
from relayc.te.ir import post_order, rebuilt, rewrite_dag

__all__ = ["Sharing", "rewrite_calls", "rewrite_calls_knowing_uses"]


class Sharing:
    """Tells which expressions of a graph being rewritten are used elsewhere too."""

    def __init__(self) -> None:
        self._shared: dict[int, Expr] = {}

    def __call__(self, e: Expr) -> bool:
        """Is `e` used more than once? Absorbing a shared expression would compute it twice."""
        return id(e) in self._shared

    def add(self, e: Expr) -> None:
        self._shared[id(e)] = e  # keeps `e` alive, so that its id stays its own


def rewrite_calls(function: Function, rewrite: Callable[[Call], Expr]) -> Function:
    """`function` with every call, operands first, replaced by `rewrite(call)`, which must keep the type."""

    def visit(e: Expr) -> Expr:
        return _checked(e, rewrite(e)) if isinstance(e, Call) else e

    return cast(Function, rewrite_dag(function, visit))  # type: ignore[arg-type]


def rewrite_calls_knowing_uses(function: Function, rewrite: Callable[[Call, Sharing], Expr]) -> Function:
    """Like `rewrite_calls`; the second argument tells which (rewritten) operands are used elsewhere as well."""
    order = cast("list[Expr]", list(post_order(function)))
    uses = count_uses(order)
    sharing = Sharing()
    changed: dict[int, Expr] = {}
    for e in order:
        new: Expr = rebuilt(e, changed)
        if isinstance(new, Call):
            new = _checked(new, rewrite(new, sharing))
        if uses[id(e)] > 1:
            sharing.add(new)
        if new is not e:
            changed[id(e)] = new
    return cast(Function, changed.get(id(function), function))


def _checked(before: Call, after: Expr) -> Expr:
    assert after.ty is before.ty, f"a rewrite changed the type of {before.op} from {before.ty} to {after.ty}"
    return after
