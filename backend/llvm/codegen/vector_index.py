"""Vector indices: as ramps, as constant offsets by lane, and what constant vectors compare to."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from operator import floordiv, mod
from typing import Any

from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.codegen.index import add_index, index_of, known_or, multiply_index, splatted_int
from relayc.te.tir import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    Broadcast,
    Compare,
    FloorDiv,
    FloorMod,
    IntImm,
    Mul,
    PrimExpr,
    Ramp,
    Select,
    Sub,
)

__all__ = ["COMPARE_INTS", "as_lanes", "as_ramp", "known_outcomes"]

COMPARE_INTS: dict[type, Callable[[int, int], bool]] = {
    EQ: int.__eq__, NE: int.__ne__, LT: int.__lt__, LE: int.__le__, GT: int.__gt__, GE: int.__ge__,
}  # fmt: skip
"""Comparison -> its result for integers."""


def as_ramp(e: Emitter, index: PrimExpr) -> tuple[Index, Index] | None:
    """A vector index as (base, stride); None when its lanes are not evenly spaced."""
    if isinstance(index, Ramp):
        return index_of(e, index.base), index_of(e, index.stride)
    if isinstance(index, Broadcast):
        return index_of(e, index.value), Index(None, 0, 0)
    cls = index.__class__
    if cls is not Add and cls is not Sub and cls is not Mul:
        return None
    return known_or(e, e.text.ramps, index, _scale_ramp if cls is Mul else _combine_ramps)


def as_lanes(e: Emitter, index: PrimExpr) -> tuple[Index, list[int]] | None:
    """A vector index as a base and a constant offset per lane; None if the offsets are not constant."""
    ramp = as_ramp(e, index)
    if ramp is not None:
        base, stride = ramp
        return (base, [stride.constant * i for i in range(index.dtype.lanes)]) if stride.value is None else None
    if isinstance(index, Select):
        return _choose_lanes_known(e, index)
    if isinstance(index, Add | Sub | Mul | FloorDiv | FloorMod):
        a, b = as_lanes(e, index.a), as_lanes(e, index.b)
        return None if a is None or b is None else _combine_lanes(e, index, a, b)
    return None


def _choose_lanes_known(e: Emitter, index: Select) -> tuple[Index, list[int]] | None:
    """A select between two constant-offset indices of the same base by a constant condition."""
    outcomes = known_outcomes(e, index.condition) if isinstance(index.condition, Compare) else None
    a, b = as_lanes(e, index.true_value), as_lanes(e, index.false_value)
    if outcomes is None or a is None or b is None or a[0].value != b[0].value:
        return None
    sides = zip(outcomes, a[1], b[1], strict=True)
    lanes = [a[0].constant + x if first else b[0].constant + y for first, x, y in sides]
    return Index(a[0].value, 0, gcd(a[0].factor, b[0].factor)), lanes


def _combine_lanes(
    e: Emitter, index: Any, a: tuple[Index, list[int]], b: tuple[Index, list[int]]
) -> tuple[Index, list[int]] | None:
    (first, offsets), (second, others) = a, b
    if isinstance(index, Add | Sub):
        sign = 1 if isinstance(index, Add) else -1
        return add_index(e, first, second, sign), [x + sign * y for x, y in zip(offsets, others, strict=True)]
    if second.value is not None or any(others):
        return None
    if isinstance(index, Mul):
        return multiply_index(e, first, second), [x * second.constant for x in offsets]
    divisor = second.constant
    if divisor <= 0 or (first.value is not None and first.factor % divisor):
        return None
    if isinstance(index, FloorMod):
        return Index(None, 0, 0), [mod(first.constant + x, divisor) for x in offsets]
    of_lanes = [floordiv(first.constant + x, divisor) for x in offsets]
    if first.value is None:
        return Index(None, 0, 0), of_lanes
    quotient = e.text.pure(f"sdiv exact i64 {first.value}, {divisor}")
    return Index(quotient, 0, first.factor // divisor), of_lanes


def _combine_ramps(e: Emitter, index: Any) -> tuple[Index, Index] | None:
    a, b = as_ramp(e, index.a), as_ramp(e, index.b)
    if a is None or b is None:
        return None
    sign = 1 if isinstance(index, Add) else -1
    base, stride = add_index(e, a[0], b[0], sign), add_index(e, a[1], b[1], sign)
    return base, stride


def _scale_ramp(e: Emitter, index: Any) -> tuple[Index, Index] | None:
    for vector, factor in ((index.a, index.b), (index.b, index.a)):
        if isinstance(factor, Broadcast) and isinstance(factor.value, IntImm):
            ramp, scale = as_ramp(e, vector), index_of(e, factor.value)
            return None if ramp is None else (multiply_index(e, ramp[0], scale), multiply_index(e, ramp[1], scale))
    return None


def known_outcomes(e: Emitter, expr: Compare) -> list[bool] | None:
    """The results of a comparison of constant signed vectors by lane; None for others."""
    a, b = _known_lanes(e, expr.a), _known_lanes(e, expr.b)
    return None if a is None or b is None else list(map(COMPARE_INTS[expr.__class__], a, b))


def _known_lanes(e: Emitter, expr: PrimExpr) -> list[int] | None:
    if isinstance(expr, Ramp):
        base, stride = splatted_int(e, expr.base), splatted_int(e, expr.stride)
        return None if base is None or stride is None else [base + i * stride for i in range(expr.lanes)]
    if isinstance(expr, FloorDiv | FloorMod):
        a, b = _known_lanes(e, expr.a), _known_lanes(e, expr.b)
        if a is None or b is None or 0 in b:
            return None
        return list(map(floordiv if isinstance(expr, FloorDiv) else mod, a, b))
    value = splatted_int(e, expr) if isinstance(expr, Broadcast) else None
    return None if value is None else [value] * expr.dtype.lanes
