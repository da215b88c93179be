"""Pooling over windows of any number of spatial dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Dim, IterVar, PrimExpr, as_dim, as_int, convert
from relayc.topi.nn.pad import pad_spatial
from relayc.topi.tag import COMM_REDUCE, ELEMWISE
from relayc.topi.utils import accumulator_type, num_elements, ravel_index, unravel_index

__all__ = ["Windows", "adaptive_pool", "avg_pool", "lp_pool", "max_pool", "max_pool_with_argmax"]


_MAX_FACTORS = 8
"""Greatest exponent of a power that is written as a product."""


@dataclass(frozen=True)
class Windows:
    """The windows of a pooling, along the dimensions `axes` of its input, with one entry for each.

    `padding` is (begin..., end...). With `ceil_mode` a last window that exceeds the input counts, if it starts inside.
    """

    axes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    ceil_mode: bool = False

    @property
    def begin(self) -> tuple[int, ...]:
        return self.padding[: len(self.axes)]

    @property
    def end(self) -> tuple[int, ...]:
        return self.padding[len(self.axes) :]

    def reach(self, k: int) -> int:
        """The extent of a dilated window along its dimension `k`."""
        return (self.kernel[k] - 1) * self.dilation[k] + 1

    def count(self, k: int, size: Dim) -> Dim:
        """The number of windows along their dimension `k`, where the input has `size` elements."""
        begin, end, stride, reach = self.begin[k], self.end[k], self.strides[k], self.reach(k)
        room = size + (begin + end - reach)
        if not self.ceil_mode:
            return as_dim(room // stride + 1)
        known = as_int(as_dim(room))
        if known is None:
            windows = (room + (stride - 1)) // stride + 1
            if stride + end <= reach:  # then the last one always starts inside
                return as_dim(windows)
            return as_dim(te.minimum(windows, (size + (begin + stride - 1)) // stride))
        windows = -(-known // stride) + 1
        return windows - 1 if (windows - 1) * stride >= known + reach - end else windows

    def pooled(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The shape of the result for an input of `shape`."""
        sizes = list(shape)
        for k, a in enumerate(self.axes):
            sizes[a] = self.count(k, shape[a])
        return tuple(sizes)


class _Taps:
    """The windows over a tensor: output shape, reduce axes, and indices of taps."""

    def __init__(self, x: Tensor, windows: Windows) -> None:
        self.x, self.windows = x, windows
        self.shape = windows.pooled(x.shape)
        self.axes = [te.reduce_axis((0, size), name=f"k{k}") for k, size in enumerate(windows.kernel)]
        self.attrs = {"axes": windows.axes, "strides": windows.strides, "dilation": windows.dilation}

    def bordered(self, value: float) -> Tensor:
        """The input padded by `value`, wide enough for windows that exceed it."""
        spec, after = self.windows, list[int]()
        for k, a in enumerate(spec.axes):
            count, size = as_int(self.shape[a]), as_int(self.x.shape[a])
            needed = spec.end[k] + (spec.strides[k] - 1 if spec.ceil_mode else 0)
            if count is not None and size is not None:
                needed = max(0, (count - 1) * spec.strides[k] + spec.reach(k) - size - spec.begin[k])
            after.append(needed)
        return pad_spatial(self.x, spec.axes, spec.begin, after, value)

    def source(self, i: Sequence[Any]) -> list[Any]:
        """The index into the padded input of the current tap of window `i`."""
        at, spec = list(i), self.windows
        for a, tap, s, d in zip(spec.axes, self.axes, spec.strides, spec.dilation, strict=True):
            at[a] = i[a] * s + tap * d
        return at

    def inside(self, i: Sequence[Any], include_pad: bool) -> PrimExpr:
        """The number of taps of window `i` inside the input (or the input with its padding)."""
        total, spec = convert(1), self.windows
        for k, a in enumerate(spec.axes):
            begin, end = (spec.begin[k], spec.end[k]) if include_pad else (0, 0)
            size, stride, step = self.x.shape[a], spec.strides[k], spec.dilation[k]
            start = i[a] * stride - spec.begin[k]
            if self._always_inside(k, begin, end):
                total = total * spec.kernel[k]
                continue
            first = te.maximum((-begin - start + (step - 1)) // step, 0)
            last = te.minimum((size + end - 1 - start) // step, spec.kernel[k] - 1)
            total = total * (last - first + 1)
        return total

    def _always_inside(self, k: int, begin: int, end: int) -> bool:
        spec, axis = self.windows, self.windows.axes[k]
        count, size = as_int(self.shape[axis]), as_int(self.x.shape[axis])
        if count is None or size is None:
            return False
        last = (count - 1) * spec.strides[k] - spec.begin[k] + spec.reach(k) - 1
        return spec.begin[k] <= begin and last < size + end


def max_pool(x: Tensor, windows: Windows) -> Tensor:
    """The largest value of each window; padding never wins."""
    taps = _Taps(x, windows)
    bordered = taps.bordered(_lowest_number(x))
    return te.compute(
        taps.shape,
        lambda *i: te.max(bordered(*taps.source(i)), axis=taps.axes),
        name="max_pool",
        tag="pool",
        attrs=taps.attrs,
    )


def max_pool_with_argmax(x: Tensor, windows: Windows, column_major: bool) -> tuple[Tensor, Tensor]:
    """The largest value of each window, and its flat index in x (int64), the first among equal ones.

    x is (N, C, spatial...) in row-major order; `column_major` makes the first spatial axis the fastest. The first NaN
    is larger than all. Two passes over a window: one for the value, one for the first tap that has it.
    """
    taps, values, axes, kernel = _Taps(x, windows), max_pool(x, windows), windows.axes, windows.kernel
    bordered = taps.bordered(_lowest_number(x))
    count = math.prod(kernel)

    def number(*i: Any) -> PrimExpr:
        source = taps.source(i)
        value, largest = bordered(*source), values(*i)
        found = value == largest if not x.dtype.is_float else te.any(value == largest, te.isnan(value))
        for k, a in enumerate(axes):
            at = source[a] - windows.begin[k]
            found = te.all(found, at >= 0, at < x.shape[a])
        tap = ravel_index(taps.axes, kernel)
        return te.min(te.select(found, tap, te.const(count - 1, "int32")), axis=taps.axes)

    first = te.compute(taps.shape, number, name="first_largest", tag="pool_positions")
    order = list(reversed(range(len(axes)))) if column_major else list(range(len(axes)))

    def position(*i: Any) -> PrimExpr:
        at = unravel_index(first(*i), kernel)
        places = [
            i[a] * windows.strides[k] + at[k] * windows.dilation[k] - windows.begin[k] for k, a in enumerate(axes)
        ]
        plane = te.cast("int64", ravel_index(i[:2], x.shape[:2]))
        inside = ravel_index([places[k] for k in order], [x.shape[axes[k]] for k in order])
        return plane * num_elements([x.shape[a] for a in axes]) + te.cast("int64", inside)

    return values, te.compute(taps.shape, position, name="positions", tag=ELEMWISE)


def avg_pool(x: Tensor, windows: Windows, count_include_pad: bool) -> Tensor:
    """The mean of each window; padding counts as zeros with `count_include_pad`, and is ignored without."""
    taps = _Taps(x, windows)
    bordered = taps.bordered(0)
    wide = accumulator_type(x.dtype)
    total = te.compute(
        taps.shape,
        lambda *i: te.sum(te.cast(wide, bordered(*taps.source(i))), axis=taps.axes),
        name="pool_sum",
        tag="pool",
        attrs=taps.attrs,
    )

    def mean(*i: Any) -> PrimExpr:
        inside = taps.inside(i, count_include_pad)
        known = as_int(inside)
        if total.dtype.is_float and known:
            return te.cast(x.dtype, total(*i) * te.const(1 / known, wide))
        return te.cast(x.dtype, total(*i) / te.cast(wide, inside))

    return te.compute(taps.shape, mean, name="avg_pool", tag=ELEMWISE)


def lp_pool(x: Tensor, windows: Windows, p: int) -> Tensor:
    """(sum of |x|^p over each window)^(1/p)"""
    taps = _Taps(x, windows)
    bordered = taps.bordered(0)
    wide = accumulator_type(x.dtype)

    def power(*i: Any) -> PrimExpr:
        value = te.cast(wide, bordered(*taps.source(i)))
        if p > _MAX_FACTORS:
            return te.sum(te.power(te.abs(value), te.const(float(p), wide)), axis=taps.axes)
        return te.sum(_integer_power(te.abs(value) if p % 2 else value, p), axis=taps.axes)

    total = te.compute(taps.shape, power, name="pool_sum", tag="pool", attrs=taps.attrs)

    def root(*i: Any) -> PrimExpr:
        value = total(*i)
        result = value if p == 1 else te.sqrt(value) if p == 2 else te.power(value, te.const(1 / p, wide))
        return te.cast(x.dtype, result)

    return te.compute(taps.shape, root, name="lp_pool", tag=ELEMWISE)


def _integer_power(value: PrimExpr, p: int) -> PrimExpr:
    result = value
    for _ in range(p - 1):
        result = result * value
    return result


def _lowest_number(x: Tensor) -> float:
    return float("-inf") if x.dtype.is_float else x.dtype.min_value()


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
    identity = te.const(0, wide) if mode == "avg" else te.const(_lowest_number(x), x.dtype)

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
