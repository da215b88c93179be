"""Parts of gradient rules (`OpDef.gradient`).

Operators are called by name here and in the rules, because modules of operators do not import each other in circles.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayc.relay.errors import GradientError
from relayc.relay.expr import Expr
from relayc.relay.op.base import make_call
from relayc.relay.op.common import as_expr
from relayc.relay.sizes import dims_equal
from relayc.relay.type import shape_text, shapes_equal
from relayc.te.tir import Dim

__all__ = ["along_axis", "choose", "greater", "leading", "reshaped", "restored", "sum_to", "swapped", "zeros_of"]


def reshaped(x: Expr, shape: Sequence[Dim]) -> Expr:
    """`x` with another shape of as many elements."""
    return x if shapes_equal(x.shape, shape) else make_call("reshape", (x,), newshape=tuple(shape))


def sum_to(x: Expr, shape: Sequence[Dim]) -> Expr:
    """The adjoint of broadcasting a tensor of `shape` to that of `x`: the sum over the dimensions it was repeated in.

    Raises GradientError where only the run decides whether a size is 1.
    """
    new = len(x.shape) - len(shape)
    axes = list(range(new))
    for axis, size in enumerate(shape):
        if dims_equal(size, x.shape[new + axis]):
            continue
        if size != 1:
            raise GradientError(f"a tensor of shape {shape_text(shape)} may be repeated or not: fix the sizes")
        axes.append(new + axis)
    summed = make_call("sum", (x,), axis=tuple(axes), keepdims=True) if axes else x
    return reshaped(summed, shape)


def restored(x: Expr, shape: Sequence[Dim], axes: Sequence[int]) -> Expr:
    """`x`, a tensor of `shape` reduced over `axes`, with these dimensions again, of size 1."""
    return reshaped(x, [1 if a in axes else d for a, d in enumerate(shape)])


def along_axis(vector: Expr, axis: int, ndim: int) -> Expr:
    """`vector` shaped to broadcast along dimension `axis` of `ndim`."""
    return reshaped(vector, [vector.shape[0] if a == axis else 1 for a in range(ndim)])


def leading(x: Expr, shape: Sequence[Dim]) -> Expr:
    """The first elements of each dimension of `x`, of `shape`."""
    if shapes_equal(x.shape, shape):
        return x
    axes = tuple(range(len(shape)))
    ones, zeros = (1,) * len(axes), (0,) * len(axes)
    return make_call("strided_slice", (x,), begin=zeros, end=tuple(shape), strides=ones, axes=axes)


def greater(a: Expr, b: Expr | float) -> Expr:
    """a > b"""
    return make_call("greater", (a, as_expr(b, a)))


def choose(condition: Expr, x: Expr | float, y: Expr | float, like: Expr) -> Expr:
    """x where `condition`, else y; numbers have the element type of `like`."""
    return make_call("where", (condition, as_expr(x, like), as_expr(y, like)))


def swapped(x: Expr) -> Expr:
    """`x` with its last two dimensions swapped."""
    *batch, rows, columns = range(len(x.shape))
    return make_call("transpose", (x,), axes=(*batch, columns, rows))


def zeros_of(like: Expr, shape: Sequence[Dim]) -> Expr:
    """Zeros of `shape`, of the element type of `like`."""
    return make_call("full", (), shape=tuple(shape), dtype=str(like.dtype), fill_value=0)
