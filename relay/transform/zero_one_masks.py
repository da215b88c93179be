"""Masks of zeros and ones in floats, by which models of TensorFlow and early ones of torch mask scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import OpDef, make_call
from relayc.relay.transform.builders import MOST_STEPS, array_of, is_call_of

__all__ = ["as_condition", "value_where_zero"]

_VIEWS = ("reshape", "broadcast_to", "strided_slice", "transpose")
"""Operators whose elements are elements of their operand, of any type."""


def as_condition(mask: Expr, steps: int = MOST_STEPS) -> tuple[Expr, float] | None:
    """A bool tensor that is true where `mask` is not 0, and the value of `mask` there; None if it is not constant.

    `mask` is a constant of zeros and one other value, or a cast bool tensor, under views.
    """
    if isinstance(mask, Constant):
        array = array_of(mask)
        kept = array != 0
        number = _only(array[kept])
        return None if number is None else (Constant(kept, span=mask.span), number)
    if not isinstance(mask, Call) or not isinstance(mask.op, OpDef):
        return None
    if is_call_of(mask, "cast"):
        return (mask.args[0], 1.0) if mask.args[0].dtype.is_bool else None
    if is_call_of(mask, *_VIEWS) and steps:
        seen = as_condition(mask.args[0], steps - 1)
        return None if seen is None else (make_call(mask.op, (seen[0],), mask.span), seen[1])
    return None


def value_where_zero(e: Expr, mask: Expr, other: float) -> float | None:
    """The constant value of `e` wherever `mask` is 0, if `e` is 0 wherever it is `other`; else None.

    For example 1e4 * (mask - 1) is -1e4 there, and 0 where the mask is 1.
    """
    if isinstance(e, Constant) and isinstance(mask, Constant):
        try:
            values, kept = np.broadcast_arrays(array_of(e), array_of(mask) != 0)
        except ValueError:
            return None
        return None if values[kept].any() else _only(values[~kept])
    hidden, seen = (_with_mask(e, mask, number, MOST_STEPS) for number in (0.0, other))
    return None if hidden is None or seen is None or seen.any() else float(hidden)


def _only(numbers: np.ndarray[Any, Any]) -> float | None:
    """The common value of `numbers`, if there is one."""
    return float(numbers[0]) if numbers.size and (numbers == numbers[0]).all() else None


def _with_mask(e: Expr, mask: Expr, number: float, steps: int) -> np.ndarray[Any, Any] | None:
    """`e`, sums and products of scalars and `mask` under views, with `number` in place of the mask."""
    if e is mask:
        return np.asarray(number).astype(str(e.dtype))
    if isinstance(e, Constant):
        return e.data.reshape(()) if e.data.size == 1 else None
    if not isinstance(e, Call) or not isinstance(e.op, OpDef) or not steps:
        return None
    if is_call_of(e, *_VIEWS):
        return _with_mask(e.args[0], mask, number, steps - 1)
    if not is_call_of(e, "add", "subtract", "multiply", "divide", "negative"):
        return None
    operands = [_with_mask(a, mask, number, steps - 1) for a in e.args]
    return None if any(a is None for a in operands) else np.asarray(e.op.reference(*operands))
