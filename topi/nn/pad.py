"""Borders around tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Dim, PrimExpr, as_dim
from relayc.topi.tag import PAD

__all__ = ["mirror_pad", "pad", "pad_spatial"]


def pad(x: Tensor, before: Sequence[int], after: Sequence[int], value: float, name: str = "pad") -> Tensor:
    """x with borders of `value`; a negative width cuts elements off."""
    shape = [as_dim(d + (b + a)) for d, b, a in zip(x.shape, before, after, strict=True)]

    def body(*i: Any) -> PrimExpr:
        source = [v - b if b else v for v, b in zip(i, before, strict=True)]
        inside: list[PrimExpr] = []
        for s, v, d, b, a in zip(source, i, x.shape, before, after, strict=True):
            if b > 0:
                inside.append(v >= b)
            if a > 0:
                inside.append(s < d)
        return te.if_then_else(te.all(*inside), x(*source), te.const(value, x.dtype)) if inside else x(*source)

    return te.compute(tuple(shape), body, name=name, tag=PAD)


def pad_spatial(x: Tensor, axes: Sequence[int], before: Sequence[int], after: Sequence[int], value: float) -> Tensor:
    """`pad` along `axes` only; x itself when there is nothing to add."""
    if not any((*before, *after)):
        return x
    front, back = [0] * x.ndim, [0] * x.ndim
    for axis, b, a in zip(axes, before, after, strict=True):
        front[axis], back[axis] = b, a
    return pad(x, front, back, value)


def mirror_pad(x: Tensor, before: Sequence[int], after: Sequence[int], mode: str) -> Tensor:
    """x with borders taken from x: "edge", "reflect" (the border element not repeated), "symmetric" or "wrap"."""
    shape = [as_dim(d + (b + a)) for d, b, a in zip(x.shape, before, after, strict=True)]

    def body(*i: Any) -> PrimExpr:
        return x(*[
            _source(v - b if b else v, d, max(b, 0), max(a, 0), mode) for v, d, b, a in zip(
                i, x.shape, before, after, strict=True)
        ])  # fmt: skip

    return te.compute(tuple(shape), body, name="mirror_pad", tag=PAD)


def _source(position: PrimExpr, size: Dim, before: int, after: int, mode: str) -> PrimExpr:
    """The index within [0, size) that `position` of the continued tensor reads.

    Borders are selected separately, so that loop partitioning can cut them off.
    """
    twice = 1 if mode == "symmetric" else 0
    if mode == "edge":
        low, high = 0, size - 1
    elif mode == "wrap":
        low, high = position + size, position - size
    else:
        low, high = -twice - position, 2 * size - 2 + twice - position
    if mode != "edge":
        wide = size < max(before, after) + (mode == "reflect")
        low, high = [te.select(wide, _continued(position, size, mode), end) for end in (low, high)]
    inside = te.select(position < size, position, high) if after else position
    return te.select(position >= 0, inside, low) if before else inside


def _continued(position: PrimExpr, size: Dim, mode: str) -> PrimExpr:
    """The index within [0, size) that `position` reads, for borders of any width."""
    if mode == "wrap":
        return position % size
    if mode == "symmetric":
        folded = position % (2 * size)
        return te.minimum(folded, 2 * size - 1 - folded)
    period = te.maximum(2 * size - 2, 1)
    folded = position % period
    return te.minimum(folded, period - folded)
