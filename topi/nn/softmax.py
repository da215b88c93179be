"""Softmax and its logarithm: several stages, one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import PrimExpr
from relayc.topi.reduction import largest_number
from relayc.topi.tag import ELEMWISE
from relayc.topi.utils import accumulator_type

__all__ = ["log_softmax", "softmax"]


def _row_stages(x: Tensor, axis: int, power: Callable[[PrimExpr], PrimExpr]) -> tuple[Tensor, Tensor, Tensor]:
    """The maximum of each row along `axis`, power(x - maximum), and its sum (rows: the other dimensions).

    The maximum may ignore NaN, which makes the sum NaN anyway. Low-precision floats are converted first: processors
    without comparisons for them would otherwise convert the running maximum each time, too.
    """
    wide = accumulator_type(x.dtype)
    rows = (*x.shape[:axis], *x.shape[axis + 1 :])
    k_max = te.reduce_axis((0, x.shape[axis]), name="k")
    k_sum = te.reduce_axis((0, x.shape[axis]), name="k")
    largest = te.compute(
        rows,
        lambda *i: largest_number(te.cast(wide, x(*i[:axis], k_max, *i[axis:])), axis=k_max),
        name="softmax_max",
        tag="softmax_max",
    )
    scaled = te.compute(
        x.shape,
        lambda *i: power(te.cast(wide, x(*i)) - largest(*_row(i, axis))),
        name="softmax_exp",
        tag="softmax_exp",
    )
    total = te.compute(
        rows, lambda *i: te.sum(scaled(*i[:axis], k_sum, *i[axis:]), axis=k_sum), name="softmax_sum", tag="softmax_sum"
    )
    return largest, scaled, total


def _row(i: Sequence[Any], axis: int) -> tuple[Any, ...]:
    return (*i[:axis], *i[axis + 1 :])


def softmax(x: Tensor, axis: int) -> Tensor:
    """exp(x - max) / sum along `axis`; stages "softmax_max", "softmax_exp", "softmax_sum", "softmax_scale".

    Results rounded to 16-bit floats use reduced-precision exponentials.
    """
    power = te.exp_nonpositive if x.dtype.bits > 16 else te.fast_exp
    _, scaled, total = _row_stages(x, axis, power)
    inverse = te.compute(total.shape, lambda *i: 1 / total(*i), name="softmax_scale", tag=ELEMWISE)

    def body(*i: Any) -> PrimExpr:
        return te.cast(x.dtype, scaled(*i) * inverse(*_row(i, axis)))

    return te.compute(x.shape, body, name="softmax", tag="softmax", attrs={"axes": (axis,)})


def log_softmax(x: Tensor, axis: int) -> Tensor:
    """x - max - log(sum(exp(x - max))) along `axis`."""
    largest, _, total = _row_stages(x, axis, te.exp_nonpositive)
    wide = total.dtype
    logarithm = te.compute(total.shape, lambda *i: te.log(total(*i)), name="softmax_log", tag=ELEMWISE)

    def body(*i: Any) -> PrimExpr:
        row = _row(i, axis)
        shifted = te.cast(wide, x(*i)) - largest(*row)
        return te.cast(x.dtype, shifted - logarithm(*row))

    return te.compute(x.shape, body, name="log_softmax", tag="softmax", attrs={"axes": (axis,), "log": True})
