"""Pooling over windows of any number of spatial dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import te
from te import Tensor
from te.tir import Dim, IterVar, PrimExpr, as_dim, as_int, convert
from topi.nn.pad import pad_spatial
from topi.tag import COMM_REDUCE, ELEMWISE
from topi.utils import accumulator_type, num_elements, ravel_index, unravel_index

__all__ = ["adaptive_pool", "avg_pool", "lp_pool", "max_pool", "max_pool_with_argmax", "pooled_size"]


def pooled_size(size: Dim, kernel: int, stride: int, dilation: int, begin: int, end: int, ceil_mode: bool) -> Dim:
    """Windows along a dimension. With `ceil_mode` a last window that sticks out counts, if it starts inside."""
    room = size + (begin + end - (kernel - 1) * dilation - 1)
    if not ceil_mode:
        return as_dim(room // stride + 1)
    known = as_int(as_dim(room))
    if known is None:
        windows = (room + (stride - 1)) // stride + 1
        if stride + end <= (kernel - 1) * dilation + 1:  # then the last one always starts inside
            return as_dim(windows)
        return as_dim(te.minimum(windows, (size + (begin + stride - 1)) // stride))
    windows = -(-known // stride) + 1
    return windows - 1 if (windows - 1) * stride >= known + (kernel - 1) * dilation + 1 - end else windows


class _Windows:
    """The windows of a pooling: output shape, reduce axes, and where a tap of a window lies."""

    def __init__(
        self,
        x: Tensor,
        axes: Sequence[int],
        kernel: Sequence[int],
        strides: Sequence[int],
        dilation: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
    ) -> None:
        rank = len(axes)
        self.x, self.axes, self.kernel, self.strides, self.dilation = x, axes, kernel, strides, dilation
        self.begin, self.end = padding[:rank], padding[rank:]
        self.ceil_mode = ceil_mode
        shape = list(x.shape)
        for k, a in enumerate(axes):
            shape[a] = pooled_size(
                x.shape[a], kernel[k], strides[k], dilation[k], self.begin[k], self.end[k], ceil_mode
            )
        self.shape = tuple(shape)
        self.taps = [te.reduce_axis((0, size), name=f"k{k}") for k, size in enumerate(kernel)]

    def bordered(self, value: float) -> Tensor:
        """The input with borders of `value`, wide enough for windows that stick out."""
        after: list[int] = []
        for k, a in enumerate(self.axes):
            windows, size = as_int(self.shape[a]), as_int(self.x.shape[a])
            needed = self.end[k] + (self.strides[k] - 1 if self.ceil_mode else 0)
            if windows is not None and size is not None:
                last = (windows - 1) * self.strides[k] + (self.kernel[k] - 1) * self.dilation[k] + 1
                needed = max(0, last - size - self.begin[k])
            after.append(needed)
        return pad_spatial(self.x, self.axes, self.begin, after, value)

    def source(self, i: Sequence[Any]) -> list[Any]:
        """The index into the bordered input of the current tap of window `i`."""
        at = list(i)
        for a, tap, s, d in zip(self.axes, self.taps, self.strides, self.dilation, strict=True):
            at[a] = i[a] * s + tap * d
        return at

    def count(self, i: Sequence[Any], include_pad: bool) -> PrimExpr:
        """How many taps of window `i` lie inside the input (or inside it with its padding)."""
        total = convert(1)
        for k, a in enumerate(self.axes):
            begin, end = (self.begin[k], self.end[k]) if include_pad else (0, 0)
            size, stride, step = self.x.shape[a], self.strides[k], self.dilation[k]
            start = i[a] * stride - self.begin[k]
            if self._always_inside(k, a, begin, end):
                total = total * self.kernel[k]
                continue
            first = te.maximum((-begin - start + (step - 1)) // step, 0)
            last = te.minimum((size + end - 1 - start) // step, self.kernel[k] - 1)
            total = total * (last - first + 1)
        return total

    def _always_inside(self, k: int, axis: int, begin: int, end: int) -> bool:
        windows, size = as_int(self.shape[axis]), as_int(self.x.shape[axis])
        if windows is None or size is None:
            return False
        last = (windows - 1) * self.strides[k] - self.begin[k] + (self.kernel[k] - 1) * self.dilation[k]
        return self.begin[k] <= begin and last < size + end


def max_pool(
    x: Tensor,
    axes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
) -> Tensor:
    """The largest value of each window along `axes`; padding (begin..., end...) never wins."""
    windows = _Windows(x, axes, kernel, strides, dilation, padding, ceil_mode)
    lowest = float("-inf") if x.dtype.is_float else x.dtype.min_value()
    bordered = windows.bordered(lowest)
    attrs = {"axes": tuple(axes), "strides": tuple(strides), "dilation": tuple(dilation)}
    return te.compute(
        windows.shape,
        lambda *i: te.max(bordered(*windows.source(i)), axis=windows.taps),
        name="max_pool",
        tag="pool",
        attrs=attrs,
    )


def max_pool_with_argmax(
    x: Tensor,
    axes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    column_major: bool,
) -> tuple[Tensor, Tensor]:
    """The largest value of each window, and where it lies in the whole of x (int64), the first among equal ones.

    x is (N, C, spatial...) in row-major order; `column_major` counts the spatial axes with the first running fastest.
    The first NaN is larger than all. Two passes over a window: one for the value, one for the first tap that has it.
    """
    windows = _Windows(x, axes, kernel, strides, dilation, padding, ceil_mode)
    values = max_pool(x, axes, kernel, strides, dilation, padding, ceil_mode)
    bordered = windows.bordered(float("-inf") if x.dtype.is_float else x.dtype.min_value())
    count = math.prod(kernel)

    def tap(*i: Any) -> PrimExpr:
        source = windows.source(i)
        value, largest = bordered(*source), values(*i)
        found = value == largest if not x.dtype.is_float else te.any(value == largest, te.isnan(value))
        for k, a in enumerate(axes):
            at = source[a] - windows.begin[k]
            found = te.all(found, at >= 0, at < x.shape[a])
        number = ravel_index(windows.taps, kernel)
        return te.min(te.select(found, number, te.const(count - 1, "int32")), axis=windows.taps)

    taps = te.compute(windows.shape, tap, name="first_largest", tag="pool_positions")
    order = list(reversed(range(len(axes)))) if column_major else list(range(len(axes)))

    def position(*i: Any) -> PrimExpr:
        at = unravel_index(taps(*i), kernel)
        places = [i[a] * strides[k] + at[k] * dilation[k] - windows.begin[k] for k, a in enumerate(axes)]
        plane = te.cast("int64", ravel_index(i[:2], x.shape[:2]))
        inside = ravel_index([places[k] for k in order], [x.shape[axes[k]] for k in order])
        return plane * num_elements([x.shape[a] for a in axes]) + te.cast("int64", inside)

    return values, te.compute(windows.shape, position, name="positions", tag=ELEMWISE)


def avg_pool(
    x: Tensor,
    axes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
) -> Tensor:
    """The mean of each window along `axes`; padding counts as zeros with `count_include_pad`, not at all without."""
    windows = _Windows(x, axes, kernel, strides, dilation, padding, ceil_mode)
    bordered = windows.bordered(0)
    wide = accumulator_type(x.dtype)
    attrs = {"axes": tuple(axes), "strides": tuple(strides), "dilation": tuple(dilation)}
    total = te.compute(
        windows.shape,
        lambda *i: te.sum(te.cast(wide, bordered(*windows.source(i))), axis=windows.taps),
        name="pool_sum",
        tag="pool",
        attrs=attrs,
    )

    def mean(*i: Any) -> PrimExpr:
        count = te.cast(wide, windows.count(i, count_include_pad))
        known = as_int(windows.count(i, count_include_pad))
        exact = total.dtype.is_float and known is not None
        return te.cast(x.dtype, total(*i) * te.const(1 / known, wide) if exact and known else total(*i) / count)

    return te.compute(windows.shape, mean, name="avg_pool", tag=ELEMWISE)


def lp_pool(
    x: Tensor,
    axes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    p: int,
) -> Tensor:
    """(sum of |x|^p over each window)^(1/p)"""
    windows = _Windows(x, axes, kernel, strides, dilation, padding, ceil_mode)
    bordered = windows.bordered(0)
    wide = accumulator_type(x.dtype)

    def power(*i: Any) -> PrimExpr:
        value = te.abs(te.cast(wide, bordered(*windows.source(i))))
        return te.sum(_integer_power(value, p), axis=windows.taps)

    total = te.compute(windows.shape, power, name="pool_sum", tag="pool", attrs={"axes": tuple(axes)})

    def root(*i: Any) -> PrimExpr:
        value = total(*i)
        result = value if p == 1 else te.sqrt(value) if p == 2 else te.power(value, te.const(1 / p, wide))
        return te.cast(x.dtype, result)

    return te.compute(windows.shape, root, name="lp_pool", tag=ELEMWISE)


def _integer_power(value: PrimExpr, p: int) -> PrimExpr:
    result = value
    for _ in range(p - 1):
        result = result * value
    return result


def adaptive_pool(x: Tensor, axes: Sequence[int], output_size: Sequence[int], mode: str) -> Tensor:
    """Pooling to `output_size`: window o of n outputs covers [floor(o * size / n), ceil((o + 1) * size / n)).

    `mode`: "max" or "avg".
    """
    shape = list(x.shape)
    taps: list[IterVar] = []
    for k, (a, n) in enumerate(zip(axes, output_size, strict=True)):
        shape[a] = n
        size = as_int(x.shape[a])
        widest: Dim = x.shape[a] if size is None else max(_end(o, size, n) - o * size // n for o in range(n))
        taps.append(te.reduce_axis((0, widest), name=f"k{k}"))
    wide = accumulator_type(x.dtype) if mode == "avg" else x.dtype
    identity = te.const(0, wide) if mode == "avg" else _lowest(x)

    def window(i: Sequence[Any]) -> tuple[list[Any], list[PrimExpr], PrimExpr]:
        at, inside, count = list(i), list[PrimExpr](), convert(1)
        for a, n, tap in zip(axes, output_size, taps, strict=True):
            start, end = i[a] * x.shape[a] // n, _end(i[a], x.shape[a], n)
            at[a] = start + tap
            count = count * (end - start)
            size = as_int(x.shape[a])
            if size is None or size % n:
                inside.append(at[a] < end)
        return at, inside, count

    def reduce(*i: Any) -> PrimExpr:
        at, inside, _ = window(i)
        value = te.cast(wide, x(*at))
        value = te.if_then_else(te.all(*inside), value, identity) if inside else value
        return te.sum(value, axis=taps) if mode == "avg" else te.max(value, axis=taps)

    whole = all(n == 1 for n in output_size)
    tag = COMM_REDUCE if whole else "pool"
    total = te.compute(tuple(shape), reduce, name=f"adaptive_{mode}_pool", tag=tag, attrs={"axes": tuple(axes)})
    if mode == "max":
        return total
    return te.compute(
        tuple(shape), lambda *i: te.cast(x.dtype, total(*i) / te.cast(wide, window(i)[2])), name="mean", tag=ELEMWISE
    )


def _end(o: Any, size: Any, n: int) -> Any:
    return ((o + 1) * size + n - 1) // n


def _lowest(x: Tensor) -> PrimExpr:
    return te.const(float("-inf"), x.dtype) if x.dtype.is_float else te.min_value(x.dtype)
