"""Windows laid side by side, and back: the sum of overlapping windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import te
from te import Tensor
from te.tir import Dim, PrimExpr, as_dim
from topi.nn.conv import output_sizes
from topi.utils import accumulator_type, ravel_index

__all__ = ["col2im"]


def col2im(
    x: Tensor,
    image: Sequence[Dim],
    block: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    """Images (N, C, image...) that are the sums of their windows x (N, C * taps, windows), in row-major order."""
    rank, taps = len(image), prod(block)
    counts = output_sizes(image, block, strides, dilation, padding)
    ks = [te.reduce_axis((0, size), name=f"k{a}") for a, size in enumerate(block)]
    channels = as_dim(x.shape[1] // taps)
    wide = accumulator_type(x.dtype)

    def body(n: Any, c: Any, *i: Any) -> PrimExpr:
        windows, inside = list[PrimExpr](), list[PrimExpr]()
        for a in range(rank):
            start = i[a] + padding[a] - ks[a] * dilation[a]  # of the window whose tap k lies at i, in pixels
            window = start // strides[a]
            windows.append(window)
            inside.extend([start >= 0, window < counts[a]])
            if strides[a] > 1:
                inside.append(start % strides[a] == 0)
        column = x(n, c * taps + ravel_index(ks, block), ravel_index(windows, counts))
        return te.sum(te.if_then_else(te.all(*inside), te.cast(wide, column), te.const(0, wide)), axis=ks)

    total = te.compute((x.shape[0], channels, *image), body, name="col2im", tag="default")
    return total if wide == x.dtype else te.compute(total.shape, lambda *i: te.cast(x.dtype, total(*i)), name="rounded")
