"""Softmax without the largest number of each row: powers of e of the elements themselves, where that does.

The largest number is subtracted so that no power of e overflows and not all of them vanish. Numbers that models have
are far from that; the sum of a row's powers tells, and what it does not vouch for is computed again (`Schedule.guess`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import te
from te import Tensor
from te.tir import PrimExpr, Reduce
from te.tir.substitute import substitute

__all__ = ["element_of_rows", "guessed_largest", "guessed_powers", "is_trusted"]

_MOST_EXPONENT = 64.0
"""Powers are of this at most: of more, `exp_nonpositive` gives anything."""
_LEAST_SUM, _MOST_SUM = 1e-6, 1e27
"""Of powers that are trusted. No power was limited then; those that vanish are less than 1e-32 of their row's sum."""


def element_of_rows(largest: te.ComputeOp, axis: int) -> Callable[..., PrimExpr]:
    """The elements of which `largest`, the stage "softmax_max" of a softmax along `axis`, finds the largest."""
    (maximum,) = largest.body
    assert isinstance(maximum, Reduce)
    (source,), (k,) = maximum.source, largest.reduce_axis

    def element(*i: Any) -> PrimExpr:
        row = zip(largest.axis, (*i[:axis], *i[axis + 1 :]), strict=True)
        return substitute(source, {**{own.var: v for own, v in row}, k.var: i[axis]})

    return element


def guessed_powers(element: Callable[..., PrimExpr], exact: Tensor) -> Tensor:
    """Powers of e of elements, for the stage "softmax_exp" of a softmax, `exact`."""
    return te.compute(
        exact.shape, lambda *i: te.exp_nonpositive(te.min(element(*i), _MOST_EXPONENT)), name="softmax_power"
    )


def guessed_largest(largest: Tensor) -> Tensor:
    """What is subtracted of each element in the place of `largest`: nothing."""
    return te.compute(largest.shape, lambda *i: te.const(0.0, largest.dtype), name="softmax_zero")


def is_trusted(total: PrimExpr) -> PrimExpr:
    """Does the sum of a row's powers show that they are right? Not that of a NaN."""
    return te.all(total >= te.const(_LEAST_SUM, total.dtype), total <= te.const(_MOST_SUM, total.dtype))

