"""Builders of calls that simplify themselves, for rewriting passes. Constants are folded at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import OpDef, expect_op, make_call
from relayc.relay.op.transform import Transpose
from relayc.relay.sizes import product
from relayc.te.ir import Span
from relayc.te.tir import Dim

__all__ = [
    "MOST_STEPS", "NARROW", "array_of", "as_matrix", "before_transposition", "is_call_of", "reshaped", "static_shape",
    "swapped_axes", "transposed", "with_last",
]  # fmt: skip

NARROW = ("float16", "bfloat16")
"""Element types whose products are summed in float32."""
MOST_STEPS = 8
"""Maximum number of operators that a rule traverses from where it starts: chains are as long as models make them, and
where they fork and join, paths double with each step."""


def is_call_of(e: Expr, *names: str) -> bool:
    """Is `e` a call of one of these operators?"""
    return isinstance(e, Call) and isinstance(e.op, OpDef) and e.op.name in names


def array_of(e: Expr) -> np.ndarray[Any, Any]:
    """The data of a constant."""
    assert isinstance(e, Constant)
    return e.data


def reshaped(x: Expr, shape: Sequence[Dim], span: Span | None = None) -> Expr:
    """x under another shape; views of views and views of constants are resolved."""
    if isinstance(x, Call) and is_call_of(x, "reshape"):
        x = x.args[0]
    if tuple(x.shape) == tuple(shape):
        return x
    if isinstance(x, Constant):
        return Constant(x.data.reshape(static_shape(shape)), span=x.span)
    return make_call("reshape", (x,), span or x.span, newshape=tuple(shape))


def with_last(x: Expr, size: int) -> Expr:
    """x with its last dimension as the number that it is assumed to be equal to."""
    return x if isinstance(x.shape[-1], int) else reshaped(x, (*x.shape[:-1], size))


def static_shape(shape: Sequence[Dim]) -> tuple[int, ...]:
    """A shape that is known to have no symbolic size."""
    sizes = tuple([d for d in shape if isinstance(d, int)])
    assert len(sizes) == len(shape), f"expected a static shape, got {shape}"
    return sizes


def transposed(x: Expr, axes: Sequence[int], span: Span | None = None) -> Expr:
    """x with its dimensions in the order `axes`; a permutation that moves no element is a view."""
    axes = tuple(axes)
    if isinstance(x, Call) and is_call_of(x, "transpose"):
        first = expect_op(x, Transpose).axes
        axes, x = tuple([first[a] for a in axes]), x.args[0]
    if axes == tuple(range(len(axes))):
        return x
    if isinstance(x, Constant):
        return Constant(np.ascontiguousarray(x.data.transpose(axes)), span=x.span)
    if keeps_order(axes, x.shape):
        return reshaped(x, [x.shape[a] for a in axes], span)
    return make_call("transpose", (x,), span or x.span, axes=axes)


def keeps_order(axes: Sequence[int], shape: Sequence[Dim]) -> bool:
    """Does the permutation keep the order of all dimensions that are not 1?"""
    moved = [a for a in axes if not (isinstance(shape[a], int) and shape[a] == 1)]
    return moved == sorted(moved)


def before_transposition(e: Expr) -> Expr | None:
    """x where `e` is x with its last two dimensions exchanged."""
    if isinstance(e, Call) and isinstance(e.op, Transpose) and e.op.axes == swapped_axes(e):
        return e.args[0]
    return None


def swapped_axes(e: Expr) -> tuple[int, ...]:
    """The order of dimensions in which the last two are exchanged."""
    *lead, rows, columns = range(len(e.shape))
    return (*lead, columns, rows)


def as_matrix(data: Expr) -> tuple[Expr, tuple[Dim, ...] | None]:
    """Data (..., K) as a matrix, and its leading dimensions if that has others."""
    *lead, depth = data.shape
    return (data, None) if len(lead) == 1 else (reshaped(data, (product(lead), depth)), tuple(lead))
