"""Masks that let a query attend to the keys up to its own position, with positions counted from the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.creation import Arange, Sizes
from relayc.relay.sizes import add_sizes, dims_equal, is_at_least, product
from relayc.relay.transform.builders import MOST_STEPS, array_of, is_call_of
from relayc.te.tir import Dim, PrimExpr

__all__ = ["is_causal_mask"]

_VIEWS = ("reshape", "expand_dims", "squeeze", "broadcast_to", "cast")


def is_causal_mask(mask: Expr, queries: Dim, keys: Dim, hidden: float, threshold: float) -> bool:
    """Does a mask (..., queries, keys) let query i attend to the keys up to number i + keys - queries, and to no other?

    A bool mask selects scores, others being `hidden`; any other mask is added. Keys are hidden by what is not above
    `threshold`. The mask is a constant, or a comparison of positions, whose numbers may be symbolic.
    """
    if isinstance(mask, Constant):
        if not isinstance(queries, int) or not isinstance(keys, int):
            return False
        return _is_triangle(mask, queries, keys, hidden, threshold)
    condition: Expr | None = mask
    if not mask.dtype.is_bool:
        condition, hidden = _selection(mask)
    if condition is None or hidden > threshold or len(mask.shape) < 2 or not is_at_least(keys, queries):
        return False
    size = mask.shape
    if not dims_equal(size[-2], queries) or not dims_equal(size[-1], keys) or any(d != 1 for d in size[:-2]):
        return False
    distance = _least_distance(condition)
    if distance is None or distance.steps != {2: 1, 1: -1}:
        return False
    return dims_equal(distance.start, add_sizes(keys, product((-1, queries))))


def _is_triangle(mask: Constant, queries: int, keys: int, hidden: float, threshold: float) -> bool:
    if queries > keys or mask.data.shape[-2:] != (queries, keys) or mask.data.size != queries * keys:
        return False
    array = array_of(mask).reshape(queries, keys)
    seen = array if array.dtype == np.bool_ else array == 0
    if array.dtype == np.bool_:
        if hidden > threshold:
            return False
    elif bool((array[~seen] > threshold).any()):
        return False
    return bool(np.array_equal(seen, np.tri(queries, keys, keys - queries, dtype=bool)))


def _selection(mask: Expr) -> tuple[Expr | None, float]:
    """The condition on which an added mask is 0, and what it is elsewhere."""
    while is_call_of(mask, *_VIEWS):
        mask = cast(Call, mask).args[0]
    if not is_call_of(mask, "where"):
        return None, 0.0
    condition, visible, hidden = cast(Call, mask).args
    zero, value = _scalar(visible), _scalar(hidden)
    return (condition, value) if zero == 0.0 and value is not None else (None, 0.0)


def _scalar(e: Expr) -> float | None:
    return float(e.data.item()) if isinstance(e, Constant) and e.data.size == 1 else None


@dataclass(frozen=True, slots=True)
class _Positions:
    """Integers that grow by `steps` along axes, which are counted from the last one, 1; the first is `start`."""

    start: Dim
    steps: Mapping[int, int]

    def minus(self, other: _Positions) -> _Positions:
        """The differences of broadcast positions."""
        return self.plus(other, -1)

    def plus(self, other: _Positions, sign: int = 1) -> _Positions:
        """The sums of broadcast positions, or the differences."""
        axes = {*self.steps, *other.steps}
        steps = {axis: self.steps.get(axis, 0) + sign * other.steps.get(axis, 0) for axis in axes}
        start = add_sizes(self.start, product((sign, other.start)))
        return _Positions(start, {axis: step for axis, step in steps.items() if step})


def _least_distance(condition: Expr) -> _Positions | None:
    """A comparison of positions as a distance that is at least 0 where it holds; None if it is none."""
    while is_call_of(condition, *_VIEWS):
        condition = cast(Call, condition).args[0]
    for name, sign, least in (("greater_equal", 1, 0), ("greater", 1, 1), ("less_equal", -1, 0), ("less", -1, 1)):
        if is_call_of(condition, name):
            first, second = [_positions(e) for e in cast(Call, condition).args[::sign]]
            if first is None or second is None:
                return None
            return first.minus(second).minus(_Positions(least, {}))
    return None


def _positions(e: Expr, steps: int = MOST_STEPS) -> _Positions | None:
    """The positions that an expression of integers gives."""
    if "int" not in str(e.dtype):
        return None
    if isinstance(e, Constant):
        return _Positions(int(e.data.item()), {}) if e.data.size == 1 else None
    if not isinstance(e, Call) or not steps:
        return None
    op, args = e.op, e.args
    if isinstance(op, Sizes):
        return _Positions(op.values[0], {}) if len(op.values) == 1 else None
    if isinstance(op, Arange):
        start = op.start
        return _Positions(start, {1: 1}) if op.step == 1 and isinstance(start, int | PrimExpr) else None
    if is_call_of(e, *_VIEWS):
        inner = _positions(args[0], steps - 1)
        return None if inner is None else _viewed(inner, args[0], e)
    if is_call_of(e, "add", "subtract"):
        first, second = [_positions(x, steps - 1) for x in args]
        if first is None or second is None:
            return None
        return first.plus(second) if is_call_of(e, "add") else first.minus(second)
    return None


def _viewed(inner: _Positions, before: Expr, after: Expr) -> _Positions | None:
    """`inner`, of the shape of `before`, in that of `after`: its only long axis may be another one there."""
    if not inner.steps or is_call_of(after, "cast", "broadcast_to"):
        return inner
    long = [[len(e.shape) - i for i, d in enumerate(e.shape) if d != 1] for e in (before, after)]
    if len(long[0]) != 1 or len(long[1]) != 1 or set(inner.steps) != set(long[0]):
        return None
    return _Positions(inner.start, {long[1][0]: inner.steps[long[0][0]]})
