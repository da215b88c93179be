"""Reductions over axes (TVM: `topi.reduction`).

`axis`: an int, a tuple of them, or None for all; negative ones count from the back. Sums and extrema of low-precision
floats are kept in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.dtype import DType
from relayc.te.tir import Dim, IterVar, PrimExpr
from relayc.topi.elementwise import elementwise
from relayc.topi.tag import COMM_REDUCE, COMM_REDUCE_IDX, ELEMWISE, LOG_SUM_EXP, VARIANCE
from relayc.topi.utils import accumulator_type, normalize_axes, num_elements, ravel_index

__all__ = [
    "all", "any", "arg_reducer", "argmax", "argmin", "distance_below", "highest", "largest_number", "log_sum_exp",
    "lowest", "max", "mean", "min", "prod", "reduced_shape", "smallest_number", "sum", "variance",
]  # fmt: skip

Axis = int | Sequence[int] | None


def reduced_shape(shape: Sequence[Dim], axes: Sequence[int], keepdims: bool) -> tuple[Dim, ...]:
    """`shape` without `axes`, or with 1 in their place."""
    if keepdims:
        return tuple([1 if a in axes else d for a, d in enumerate(shape)])
    return tuple([d for a, d in enumerate(shape) if a not in axes])


def _axes_of(x: Tensor, axes: Sequence[int]) -> list[IterVar]:
    return [te.reduce_axis((0, x.shape[a]), name=f"k{a}") for a in axes]


def _source_index(i: Sequence[Any], ks: Sequence[IterVar], axes: Sequence[int], ndim: int, keepdims: bool) -> list[Any]:
    """The index into the input: `ks` on `axes`, the output's index elsewhere."""
    kept = iter([v for a, v in enumerate(i) if a not in axes] if keepdims else i)
    reduced = iter(ks)
    return [next(reduced) if a in axes else next(kept) for a in range(ndim)]


def _reduce(
    reducer: Callable[..., Any],
    x: Tensor,
    axis: Axis,
    keepdims: bool,
    name: str,
    before: Callable[[PrimExpr], PrimExpr] = lambda v: v,
) -> Tensor:
    axes = normalize_axes(axis, x.ndim)
    ks = _axes_of(x, axes)

    def body(*i: Any) -> PrimExpr:
        value = before(x(*_source_index(i, ks, axes, x.ndim, keepdims)))
        return reducer(value, axis=ks) if ks else value

    trailing = axes == tuple(range(x.ndim - len(axes), x.ndim))
    attrs = {"reduces_last_axis": x.ndim - 1 in axes, "reduces_trailing_axes": trailing}
    tag = COMM_REDUCE if ks else ELEMWISE
    return te.compute(reduced_shape(x.shape, axes, keepdims), body, name=name, tag=tag, attrs=attrs)


def _widened(reducer: Callable[..., Any], x: Tensor, axis: Axis, keepdims: bool, name: str) -> Tensor:
    wide = accumulator_type(x.dtype)
    if wide == x.dtype:
        return _reduce(reducer, x, axis, keepdims, name)
    total = _reduce(reducer, x, axis, keepdims, name, lambda v: te.cast(wide, v))
    return te.compute(total.shape, lambda *i: te.cast(x.dtype, total(*i)), name=f"{name}_rounded", tag=ELEMWISE)


def sum(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum; integers wrap."""
    return _widened(te.sum, x, axis, keepdims, "sum")


def prod(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The product; integers wrap."""
    return _widened(te.prod, x, axis, keepdims, "prod")


def max(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest value; NaN if any is NaN."""
    return _widened(te.max, x, axis, keepdims, "max")


def min(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest value; NaN if any is NaN."""
    return _widened(te.min, x, axis, keepdims, "min")


_all = te.comm_reducer(te.all, lambda _: te.const(True), name="all")
_any = te.comm_reducer(te.any, lambda _: te.const(False), name="any")


def all(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Does every bool value hold?"""
    return _reduce(_all, x, axis, keepdims, "all")


def any(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Does some bool value hold?"""
    return _reduce(_any, x, axis, keepdims, "any")


def mean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum divided by the number of values; integers truncate towards zero."""
    axes = normalize_axes(axis, x.ndim)
    wide = accumulator_type(x.dtype)
    count = num_elements([x.shape[a] for a in axes])
    total = _reduce(te.sum, x, axes, keepdims, "mean_sum", lambda v: te.cast(wide, v))
    return te.compute(
        total.shape, lambda *i: te.cast(x.dtype, total(*i) / te.cast(wide, count)), name="mean", tag=ELEMWISE
    )


def variance(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean of the squared difference from the mean, in two passes, without cancellation.

    The anchor, "variance_squares", has the attributes "axes" and "keepdims" of a sum.
    """
    axes = normalize_axes(axis, x.ndim)
    wide = accumulator_type(x.dtype)
    count = te.cast(wide, num_elements([x.shape[a] for a in axes]))
    total = _reduce(te.sum, x, axes, keepdims, "variance_sum", lambda v: te.cast(wide, v))
    ks = _axes_of(x, axes)

    def squared(*i: Any) -> PrimExpr:
        distance = te.cast(wide, x(*_source_index(i, ks, axes, x.ndim, keepdims))) - total(*i) / count
        return te.sum(distance * distance, axis=ks) if ks else distance * distance

    attrs = {**total.op.attrs, "axes": axes, "keepdims": keepdims}
    tag = VARIANCE if ks else ELEMWISE
    squares = te.compute(total.shape, squared, name="variance_squares", tag=tag, attrs=attrs)
    return te.compute(total.shape, lambda *i: te.cast(x.dtype, squares(*i) / count), name="variance", tag=ELEMWISE)


def lowest(of: DType) -> PrimExpr:
    """The lowest value of a type: minus infinity for floats."""
    return -te.infinity(of) if of.is_float else te.min_value(of)


def highest(of: DType) -> PrimExpr:
    """The highest value of a type: infinity for floats."""
    return te.infinity(of) if of.is_float else te.max_value(of)


largest_number = te.comm_reducer(lambda a, b: te.select(a < b, b, a), lowest, name="largest_number")
"""A maximum that may ignore NaN: one instruction where `max` takes four."""
smallest_number = te.comm_reducer(lambda a, b: te.select(b < a, b, a), highest, name="smallest_number")
"""A minimum that may ignore NaN."""


def log_sum_exp(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(e^x)) of floats, shifted by the maximum against overflow; NaN if any is NaN.

    The anchor, "log_sum_exp_total", has the attributes "axes" and "keepdims" of a sum.
    """
    axes = normalize_axes(axis, x.ndim)
    wide = accumulator_type(x.dtype)
    largest = _reduce(largest_number, x, axis, keepdims, "log_sum_exp_max", lambda v: te.cast(wide, v))
    ks = _axes_of(x, axes)

    def exponentials(*i: Any) -> PrimExpr:
        value = te.cast(wide, x(*_source_index(i, ks, axes, x.ndim, keepdims)))
        power = te.exp_nonpositive(distance_below(value, largest(*i)))
        return te.sum(power, axis=ks) if ks else power

    attrs = {**largest.op.attrs, "axes": axes, "keepdims": keepdims}
    tag = LOG_SUM_EXP if ks else ELEMWISE
    total = te.compute(largest.shape, exponentials, name="log_sum_exp_total", tag=tag, attrs=attrs)
    return te.compute(
        total.shape, lambda *i: te.cast(x.dtype, largest(*i) + te.log(total(*i))), name="log_sum_exp", tag=ELEMWISE
    )


def distance_below(value: PrimExpr, largest: PrimExpr) -> PrimExpr:
    """value - largest, except that two infinities give 0, and two minus infinities give minus infinity."""
    distance = value - te.maximum(te.min_value(largest.dtype), te.minimum(te.max_value(largest.dtype), largest))
    return te.select(te.const(0, distance.dtype) < distance, te.const(0, distance.dtype), distance)


def arg_reducer(
    as_good: Callable[[PrimExpr, PrimExpr], PrimExpr], worst: Callable[[DType], PrimExpr], last: bool, name: str
) -> Callable[..., Any]:
    """A reducer that keeps the (index, value) pair of the best value; NaN beats every number, ties go by index.

    ``as_good(a, b)`` holds when b is not better than a, and never for NaN. The identity has the `worst` value at an
    index that loses every tie.
    """

    def beats(a: PrimExpr, b: PrimExpr) -> PrimExpr:
        return te.all(~as_good(b, a), ~te.isnan(b))

    def combine(a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> tuple[PrimExpr, PrimExpr]:
        (ai, av), (bi, bv) = a, b
        earlier = ai > bi if last else ai < bi
        take_a = te.all(~beats(bv, av), te.any(beats(av, bv), earlier))
        return te.select(take_a, ai, bi), te.select(take_a, av, bv)

    def identity(index_type: DType, value_type: DType) -> tuple[PrimExpr, PrimExpr]:
        return te.const(-1, index_type) if last else te.max_value(index_type), worst(value_type)

    return te.comm_reducer(combine, identity, name=name)


def _at_least(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return a >= b


def _at_most(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return a <= b


def _arg_reduce(
    x: Tensor,
    axis: Axis,
    keepdims: bool,
    select_last_index: bool,
    dtype: str,
    largest: bool,
) -> Tensor:
    axes = normalize_axes(axis, x.ndim)
    ks = _axes_of(x, axes)
    name = "argmax" if largest else "argmin"
    as_good, worst = (_at_least, lowest) if largest else (_at_most, highest)
    reducer = arg_reducer(as_good, worst, select_last_index, name)
    extents = [x.shape[a] for a in axes]

    def body(*i: Any) -> Any:
        position = te.cast(dtype, ravel_index(ks, extents))
        return reducer((position, x(*_source_index(i, ks, axes, x.ndim, keepdims))), axis=ks)

    shape = reduced_shape(x.shape, axes, keepdims)
    trailing = axes == tuple(range(x.ndim - len(axes), x.ndim))
    attrs = {"reduces_last_axis": x.ndim - 1 in axes, "reduces_trailing_axes": trailing, "axes": axes,
             "keepdims": keepdims, "largest": largest, "last": select_last_index}  # fmt: skip
    indices, _ = te.compute(shape, body, name=name, tag=COMM_REDUCE_IDX, attrs=attrs)
    return elementwise(lambda v: v, indices, f"{name}_index")


def argmax(
    x: Tensor, axis: Axis = None, keepdims: bool = False, select_last_index: bool = False, dtype: str = "int64"
) -> Tensor:
    """The row-major position, within `axis`, of the largest value (the first NaN if there is one).

    Among equal values the first position wins, the last with `select_last_index`.
    """
    return _arg_reduce(x, axis, keepdims, select_last_index, dtype, largest=True)


def argmin(
    x: Tensor, axis: Axis = None, keepdims: bool = False, select_last_index: bool = False, dtype: str = "int64"
) -> Tensor:
    """The row-major position, within `axis`, of the smallest value (the first NaN if there is one).

    Among equal values the first position wins, the last with `select_last_index`.
    """
    return _arg_reduce(x, axis, keepdims, select_last_index, dtype, largest=False)
