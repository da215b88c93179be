"""Overlap-add of windows, channels last: the step of a transposed convolution after its products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import EQ, Dim, PrimExpr, as_dim, convert
from relayc.topi.utils import accumulator_type

__all__ = ["Phases", "overlap_add"]


@dataclass(frozen=True, slots=True)
class Phases:
    """The taps of windows that contribute to an element of their sum, along one axis.

    Windows are `stride` apart and have `taps` taps, `dilation` apart; the first one begins `begin` elements before the
    sum. Taps of an element's phase, its position in a stride, are `step` apart; where stride and dilation have a common
    divisor, some phases have none.
    """

    taps: int
    stride: int
    dilation: int
    begin: int

    @property
    def divisor(self) -> int:
        return gcd(self.stride, self.dilation)

    @property
    def step(self) -> int:
        return self.stride // self.divisor

    @property
    def most(self) -> int:
        """The most taps that contribute to one element."""
        return -(-self.taps // self.step)

    def first(self, element: Any) -> Any:
        """The first tap of an element's phase; `taps` or more if the phase has none."""
        phase = (element + self.begin) % self.stride
        factor = pow(self.dilation // self.divisor, -1, self.step) if self.step > 1 else 0
        return phase // self.divisor * factor % self.step

    def window(self, element: Any, tap: Any) -> Any:
        """The window whose `tap` lies at an element."""
        return (element + self.begin - tap * self.dilation) // self.stride

    def meets(self, element: Any, tap: Any, windows: Dim) -> PrimExpr:
        """Does `tap`, of the element's phase, lie in the kernel, and its window among `windows` windows?"""
        window = self.window(element, tap)
        inside = [convert(tap < self.taps), convert(window >= 0), convert(window < windows)]
        if self.divisor > 1:
            inside.append(EQ((element + self.begin) % self.divisor, te.const(0)))
        return te.all(*inside)


def overlap_add(
    x: Tensor, sizes: Sequence[Dim], strides: Sequence[int], dilation: Sequence[int], begin: Sequence[int]
) -> Tensor:
    """Images (N, sizes..., G * C) that are the sums of their windows x (N, windows..., G, taps..., C).

    Windows are `strides` apart, their taps `dilation`; the first ones begin `begin` elements in front of the image, and
    elements outside of it are left out. Attribute "phases" has the `Phases` of each axis, "axes" their dimensions.
    """
    rank = len(sizes)
    windows, kernel, channels = x.shape[1 : 1 + rank], x.shape[2 + rank : -1], x.shape[-1]
    phases = [Phases(int(kernel[k]), strides[k], dilation[k], begin[k]) for k in range(rank)]  # type: ignore[arg-type]
    terms = [te.reduce_axis((0, phase.most), name=f"u{k}") for k, phase in enumerate(phases)]
    wide = accumulator_type(x.dtype)

    def total(n: Any, *i: Any) -> PrimExpr:
        *at, c = i
        taps = [p.first(at[k]) + terms[k] * p.step for k, p in enumerate(phases)]
        inside = te.all(*[p.meets(at[k], taps[k], windows[k]) for k, p in enumerate(phases)])
        places = [p.window(at[k], taps[k]) for k, p in enumerate(phases)]
        value = x(n, *places, c // channels, *taps, c % channels)
        return te.sum(te.cast(wide, value), axis=terms, where=inside)

    shape = (x.shape[0], *sizes, as_dim(x.shape[1 + rank] * channels))
    attrs = {"axes": tuple(range(1, 1 + rank)), "phases": tuple(phases)}
    result = te.compute(shape, total, name="overlap_add", tag="overlap_add", attrs=attrs)
    if result.dtype == x.dtype:
        return result
    return te.compute(shape, lambda *i: te.cast(x.dtype, result(*i)), name="rounded", tag="elemwise")
