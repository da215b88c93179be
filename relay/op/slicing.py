"""Slices of one dimension, by Python's rules."""

from __future__ import annotations

from relay.errors import TypeInferenceError
from te.tir import Dim, PrimExpr, as_dim

__all__ = ["slice_axis"]

_END = 1 << 30
"""A position at or beyond this one means the end of a symbolic dimension."""


def slice_axis(number: int, size: Dim, begin: int, end: int, stride: int) -> tuple[int, Dim]:
    """First position and length of ``[begin : end : stride]`` along `size` elements.

    Constraint `number`: along a symbolic size the slice runs from `begin` >= 0 to the end, with a positive stride.
    """
    if not isinstance(size, PrimExpr):
        positions = range(size)[begin:end:stride]
        return positions.start, len(positions)
    if begin < 0 or end < _END or stride < 0:
        raise TypeInferenceError(
            f"(C{number}) along the symbolic dimension {size} a slice begins at 0 or later, ends at the end and steps "
            f"forward; got [{begin}:{end}:{stride}]"
        )
    return begin, as_dim((size - begin + (stride - 1)) // stride)
