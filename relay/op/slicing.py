"""Slices of one dimension, by Python's rules."""

from __future__ import annotations

from relayc.relay.errors import TypeInferenceError
from relayc.relay.sizes import add_sizes, floor_divide, larger, product, smaller
from relayc.te.tir import Dim

__all__ = ["slice_axis"]

_FAR = 1 << 30
"""A position at or beyond this one means the end of a symbolic dimension, one as far before it its start; no two
elements of it are further apart. Arithmetic of int32 with the dimension does not overflow."""


def slice_axis(number: int, size: Dim, begin: Dim, end: Dim, stride: int) -> tuple[Dim, int, Dim]:
    """First position, stride and length of ``[begin : end : stride]`` along `size` elements.

    Constraint `number`: where something is symbolic the stride is positive; symbolic positions count from the front.
    """
    if isinstance(size, int) and isinstance(begin, int) and isinstance(end, int):
        positions = range(size)[begin:end:stride]
        return positions.start, stride if len(positions) > 1 else 1, len(positions)
    if stride < 0:
        raise TypeInferenceError(f"(C{number}) [{begin}:{end}:{stride}] along {size} elements steps backwards, which "
                                 "needs sizes known at compile time")  # fmt: skip
    first, last = _position(begin, size), _position(end, size)
    distance = larger(add_sizes(last, product((-1, first))), 0)
    stride = min(stride, _FAR)
    return first, stride, floor_divide(add_sizes(distance, stride - 1), stride)


def _position(p: Dim, size: Dim) -> Dim:
    """A position as Python's slices take it: negative numbers count from the end, and it is kept within [0, size]."""
    if isinstance(p, int):
        if abs(p) >= _FAR:
            return size if p > 0 else 0
        return larger(add_sizes(size, p), 0) if p < 0 else smaller(p, size)
    return smaller(larger(p, 0), size)
