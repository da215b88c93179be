"""Arithmetic of the elements of small tensors that shapes are computed with.

    element = bool | int | symbolic size | Ratio | Unknown

Each rule maps known elements to a known one, or to None where the result has no such form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relayc.relay import sizes
from relayc.relay.expr import Expr
from relayc.te.dtype import DType
from relayc.te.tir import Dim, PrimExpr

__all__ = ["FLOAT_RULES", "INTEGER_RULES", "REDUCTIONS", "Element", "Ratio", "Unknown", "cast_element", "float_element"]


@dataclass(frozen=True)
class Ratio:
    """The floating-point number `over` / `under`, for `under` > 1.

    Its rounding is not followed: the whole part of a quotient of sizes up to 2^16 is exact in float32.
    """

    over: Dim
    under: int

    @property
    def is_exact(self) -> bool:
        """Is it a binary fraction, which floating-point numbers hold without rounding?"""
        return self.under & (self.under - 1) == 0


@dataclass(frozen=True, eq=False)
class Unknown:
    """A value that only a run knows: element `index`, in row-major order, of the tensor `source`."""

    source: Expr
    index: int


Element = bool | int | PrimExpr | Ratio | Unknown

_MOST_FACTOR = 64
_MOST_DIVISOR = 4096
"""Largest factors and divisors of a `Ratio`: with sizes up to 2^16 its numerator is exact in float32."""

_MOST_POWER = 8
"""Largest power of a size that is multiplied out."""


def _negated(a: Dim) -> Dim:
    return sizes.product((-1, a))


def _difference(a: Dim, b: Dim) -> Dim:
    return sizes.add_sizes(a, _negated(b))


def _floor_quotient(a: Dim, b: Dim) -> Dim | None:
    return sizes.floor_divide(a, b) if sizes.is_at_least(b, 1 if isinstance(b, int) else 0) else None


def _trunc_quotient(a: Dim, b: Dim) -> Dim | None:
    """The quotient rounded towards zero: of what is above zero, less that of what is below."""
    above, below = (_floor_quotient(sizes.larger(part, 0), b) for part in (a, _negated(a)))
    return None if above is None or below is None else _difference(above, below)


def _remainder(quotient: Callable[[Dim, Dim], Dim | None]) -> Callable[[Dim, Dim], Dim | None]:
    def remainder(a: Dim, b: Dim) -> Dim | None:
        whole = quotient(a, b)
        return None if whole is None else _difference(a, sizes.product((b, whole)))

    return remainder


def _power(a: Dim, b: Dim) -> Dim | None:
    return sizes.product([a] * b) if isinstance(b, int) and 0 <= b <= _MOST_POWER else None


def _left_shift(a: Dim, b: Dim) -> Dim | None:
    return sizes.product((a, 1 << b)) if isinstance(b, int) and 0 <= b < 31 else None


def _right_shift(a: Dim, b: Dim) -> Dim | None:
    return sizes.floor_divide(a, 1 << b) if isinstance(b, int) and 0 <= b < 31 else None


def _decided(holds: Callable[[Dim, Dim], bool], fails: Callable[[Dim, Dim], bool]) -> Callable[[Dim, Dim], bool | None]:
    """A comparison that is decided where it holds, or fails, for all sizes."""
    return lambda a, b: True if holds(a, b) else (False if fails(a, b) else None)


def _above(a: Dim, b: Dim) -> bool:
    return sizes.is_at_least(a, sizes.add_sizes(b, 1))


def _differ(a: Dim, b: Dim) -> bool:
    return _above(a, b) or _above(b, a)


_COMPARISONS: dict[str, Callable[[Dim, Dim], bool | None]] = {
    "equal": _decided(sizes.dims_equal, _differ),
    "not_equal": _decided(_differ, sizes.dims_equal),
    "less": _decided(lambda a, b: _above(b, a), sizes.is_at_least),
    "less_equal": _decided(lambda a, b: sizes.is_at_least(b, a), _above),
    "greater": _decided(_above, lambda a, b: sizes.is_at_least(b, a)),
    "greater_equal": _decided(sizes.is_at_least, lambda a, b: _above(b, a)),
}

INTEGER_RULES: dict[str, Callable[..., Any]] = {
    "add": sizes.add_sizes,
    "subtract": _difference,
    "multiply": lambda a, b: sizes.product((a, b)),
    "divide": _trunc_quotient,
    "trunc_divide": _trunc_quotient,
    "floor_divide": _floor_quotient,
    "floor_mod": _remainder(_floor_quotient),
    "trunc_mod": _remainder(_trunc_quotient),
    "power": _power,
    "left_shift": _left_shift,
    "right_shift": _right_shift,
    "minimum": sizes.smaller,
    "maximum": sizes.larger,
    "negative": _negated,
    "abs": lambda a: a if sizes.is_at_least(a, 0) else None,
    "logical_and": lambda a, b: a and b,
    "logical_or": lambda a, b: a or b,
    "logical_not": lambda a: not a,
    **_COMPARISONS,
}
"""The rules of operators on integers, and on bools, by the operator's name."""


def _parts(a: Dim | Ratio) -> tuple[Dim, int]:
    return (a.over, a.under) if isinstance(a, Ratio) else (a, 1)


def _ratio(over: Dim, under: int) -> Dim | Ratio | None:
    """over / under in lowest terms, where numbers are reduced; None for large factors."""
    if isinstance(over, int):
        shared = math.gcd(over, under)
        over, under = over // shared, under // shared
    elif sizes.dims_equal(sizes.product((sizes.floor_divide(over, under), under)), over):
        over, under = sizes.floor_divide(over, under), 1
    if under > _MOST_DIVISOR:
        return None
    return over if under == 1 else Ratio(over, under)


def float_element(value: float) -> int | Ratio | None:
    """A floating-point constant as an element."""
    if not math.isfinite(value):
        return None
    over, under = value.as_integer_ratio()
    if under == 1:
        return over
    return Ratio(over, under) if under <= _MOST_DIVISOR and abs(over) <= _MOST_FACTOR * under else None


def _exact(*values: Dim | Ratio) -> bool:
    return all(not isinstance(v, Ratio) or v.is_exact for v in values)


def _float_sum(a: Dim | Ratio, b: Dim | Ratio) -> Dim | Ratio | None:
    (n, p), (m, q) = _parts(a), _parts(b)
    if not _exact(a, b):
        return None
    return _ratio(sizes.add_sizes(sizes.product((n, q)), sizes.product((m, p))), p * q)


def _float_product(a: Dim | Ratio, b: Dim | Ratio) -> Dim | Ratio | None:
    (n, p), (m, q) = _parts(a), _parts(b)
    small = all(isinstance(v, PrimExpr) or abs(v) <= _MOST_FACTOR * _MOST_DIVISOR for v in (n, m))
    return _ratio(sizes.product((n, m)), p * q) if small and _exact(a, b) else None


def _float_quotient(a: Dim | Ratio, b: Dim | Ratio) -> Dim | Ratio | None:
    (n, p), (m, q) = _parts(a), _parts(b)
    if not isinstance(m, int) or not 0 < m <= _MOST_DIVISOR or q > _MOST_FACTOR:
        return None
    return _ratio(sizes.product((n, q)), p * m)


def _float_negated(a: Dim | Ratio) -> Dim | Ratio | None:
    return _float_product(a, -1)


def _floor(a: Dim | Ratio) -> Dim:
    return sizes.floor_divide(*_parts(a))


def _ceil(a: Dim | Ratio) -> Dim:
    over, under = _parts(a)
    return sizes.floor_divide(sizes.add_sizes(over, under - 1), under)


def _round(a: Dim | Ratio) -> Dim | None:
    """Round to the nearest integer; halves, which round to even, do not occur with an odd divisor."""
    over, under = _parts(a)
    if under % 2 == 0:
        return None
    return sizes.floor_divide(sizes.add_sizes(sizes.product((2, over)), under), 2 * under)


def _square_root(a: Dim | Ratio) -> Dim | None:
    return None if isinstance(a, Ratio) else sizes.square_root(a)


def _float_power(a: Dim | Ratio, b: Dim | Ratio) -> Dim | None:
    if isinstance(a, Ratio):
        return None
    if isinstance(b, Ratio):
        return _square_root(a) if b == Ratio(1, 2) else None
    return _power(a, b)


def _of_whole(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for integers, for floating-point numbers that are integers."""
    return lambda *values: None if any(isinstance(v, Ratio) for v in values) else rule(*values)


FLOAT_RULES: dict[str, Callable[..., Any]] = {
    "add": _float_sum,
    "subtract": lambda a, b: None if (negated := _float_negated(b)) is None else _float_sum(a, negated),
    "multiply": _float_product,
    "divide": _float_quotient,
    "negative": _float_negated,
    "floor": _floor,
    "ceil": _ceil,
    "round": _round,
    "sqrt": _square_root,
    "power": _float_power,
    **{name: _of_whole(INTEGER_RULES[name]) for name in ("minimum", "maximum", "abs", *_COMPARISONS)},
}
"""The rules of operators on floating-point numbers, by the operator's name."""

REDUCTIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "prod": lambda a, b: sizes.product((a, b)),
    "sum": sizes.add_sizes,
    "max": sizes.larger,
    "min": sizes.smaller,
    "cumsum": sizes.add_sizes,
}
"""What reductions, and running sums, combine elements with, by the operator's name."""


def cast_element(value: Element, to: DType) -> Element | None:
    """A known element in another element type; None for one that is not followed."""
    if isinstance(value, Unknown):
        return None
    if to.is_bool:
        return None if isinstance(value, PrimExpr | Ratio) else value != 0
    if isinstance(value, Ratio):
        return value if to.is_float else _trunc_quotient(value.over, value.under)
    return int(value) if isinstance(value, bool) else value
