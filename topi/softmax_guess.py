"""Softmax without the largest number of each row: powers of e of the elements themselves, where that does.

The largest number is subtracted so that no power of e overflows and not all of them vanish. Numbers that models have
are far from that; the sum of a row's powers tells, and what it does not vouch for is computed again (`Schedule.guess`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import te
from te import Tensor
from te.tir import PrimExpr, Reduce, convert
from te.tir.substitute import substitute
from topi.registry import operations_behind

__all__ = ["can_be_guessed", "element_of", "guess_sums", "power_of", "powers_of", "stages_of", "sums_of"]

_MOST_EXPONENT = 64.0
"""Powers are of this at most: of more, `exp_nonpositive` gives anything."""
_LEAST_SUM, _MOST_SUM = 1e-6, 1e27
"""Of powers that are trusted. No power was limited then; those that vanish are less than 1e-32 of their row's sum."""


def can_be_guessed(anchor: te.Operation) -> bool:
    """Is this a softmax? Its logarithm is near 0 where an element is near that of the sum: digits would be lost."""
    return anchor.tag == "softmax" and "log" not in anchor.attrs


def stages_of(anchor: te.Operation) -> tuple[Tensor, Tensor, Tensor]:
    """The largest number of each row of `anchor`, a softmax or its logarithm, the powers of distances, their sum."""
    found = {op.tag: op.output(0) for op in operations_behind([anchor.output(0)])}
    return found["softmax_max"], found["softmax_exp"], found["softmax_sum"]


def element_of(largest: te.Operation, axis: int) -> Callable[..., PrimExpr]:
    """The elements that a softmax along `axis` is of, whose stage for the largest number of a row is `largest`."""
    assert isinstance(largest, te.ComputeOp)
    (maximum,), (k,) = largest.body, largest.reduce_axis
    assert isinstance(maximum, Reduce)

    def element(*i: Any) -> PrimExpr:
        values = [convert(v) for v in (*i[:axis], *i[axis + 1 :], i[axis])]
        return substitute(maximum.source[0], {own.var: v for own, v in zip((*largest.axis, k), values, strict=True)})

    return element


def power_of(element: PrimExpr) -> PrimExpr:
    """e to an element; of one so large that it can't be trusted, less."""
    return te.exp_nonpositive(te.min(element, _MOST_EXPONENT))


def powers_of(element: Callable[..., PrimExpr], exact: Tensor) -> Tensor:
    """Powers of elements in the place of those of distances."""
    return te.compute(exact.shape, lambda *i: power_of(element(*i)), name="softmax_power")


def sums_of(power: Callable[..., PrimExpr], exact: Tensor, total: Tensor) -> Tensor:
    """Sums of powers along the last dimension."""
    k = te.reduce_axis((0, exact.shape[-1]), name="k")
    return te.compute(total.shape, lambda *i: te.sum(power(*i, k), axis=k), name=total.op.name)


def guess_sums(s: te.Schedule, anchor: te.Operation, powers: Tensor | None, sums: Tensor) -> None:
    """Let `sums` stand for those of `anchor`, `powers` for its powers.

    Without `powers` what reads sums finds them once more, by the distances from 0 in the place of the largest.
    """
    largest, exact, total = stages_of(anchor)
    zero = te.compute(largest.shape, lambda *i: te.const(0.0, largest.dtype), name="softmax_zero")
    guesses = {largest: zero, total: sums} if powers is None else {exact: powers, total: sums}
    s.guess([*guesses], [*guesses.values()], _is_trusted)


def _is_trusted(total: PrimExpr) -> PrimExpr:
    """Does the sum of a row's powers show that they are right? That of a NaN does not."""
    return te.all(total >= te.const(_LEAST_SUM, total.dtype), total <= te.const(_MOST_SUM, total.dtype))
