"""Expressions shared by several families of converters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, const
from relayc.relay.op.common import with_dim
from relayc.relay.sizes import dims_match, is_one
from relayc.relay.stored import StoredConstant
from relayc.relay.type import shapes_equal, shapes_match
from relayc.te.tir import Dim

__all__ = [
    "MICROSOFT",
    "bordered",
    "broadcast_pair",
    "counted",
    "float_const",
    "in_float32",
    "legacy_broadcast",
    "like",
    "question_of_one",
    "require_rank",
    "reshape_to",
    "take_as_one",
    "transposed",
    "zeros",
]


MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's contrib operators."""


def float_const(value: float, like: Expr) -> Constant:
    """A scalar constant of the element type of `like`."""
    return const(value, like.dtype)


def in_float32(function: Callable[[Expr], Expr], x: Expr) -> Expr:
    """``function(x)``; of float16 and bfloat16, computed in float32 and rounded once, so no step overflows."""
    if not x.dtype.is_float or x.dtype.bits >= 32:
        return function(x)
    return op.cast(function(op.cast(x, "float32")), x.dtype)


def like(scalar: np.ndarray, shape: Sequence[int]) -> Constant:
    """A constant of `shape` filled with `scalar`; takes no memory."""
    return Constant(np.broadcast_to(scalar, tuple(shape)))


def zeros(shape: Sequence[Dim], dtype: str) -> Expr:
    """Zeros of a shape: a constant without memory if the shape is static, else computed."""
    known = [d for d in shape if isinstance(d, int)]
    return like(np.zeros((), dtype), known) if len(known) == len(shape) else op.zeros(shape, dtype)


def counted(n: Dim, dtype: str = "int64") -> Expr:
    """The vector 0, 1, ... n - 1."""
    return Constant(np.arange(n).astype(dtype)) if isinstance(n, int) else op.arange(0, n, 1, dtype)


def bordered(x: Expr, axis: int, before: Dim, after: Dim, fill: float = 0.0) -> Expr:
    """`x` padded with `fill` along an axis; amounts may be symbolic."""
    if isinstance(before, int) and isinstance(after, int):
        widths = [(before, after) if a == axis else (0, 0) for a in range(len(x.shape))]
        return op.nn.pad(x, widths, fill) if before or after else x
    parts = [op.full(fill, with_dim(x.shape, axis, n), str(x.dtype)) for n in (before, after)]
    return op.concatenate([parts[0], x, parts[1]], axis=axis)


def transposed(x: Expr, axes: Sequence[int]) -> Expr:
    """`x` transposed; the identity is `x` itself, and a constant becomes a view of its data."""
    if tuple(axes) == tuple(range(len(axes))):
        return x
    if isinstance(x, StoredConstant):
        return x.transposed(axes)
    if isinstance(x, Constant):
        return Constant(np.transpose(x.data, axes), span=x.span)
    return op.transpose(x, tuple(axes))


def reshape_to(x: Expr, shape: Sequence[Dim]) -> Expr:
    """`x` reshaped; `x` itself if the shape is unchanged."""
    return x if shapes_equal(x.shape, shape) else op.reshape(x, tuple(shape))


def require_rank(node: OnnxNode, index: int, least: int, most: int | None = None) -> None:
    """Raise the node's error unless input `index` has from `least` to `most` dimensions (None: `least` or more)."""
    rank = node.rank(index)
    if rank < least or (most is not None and rank > most):
        upper = " or more" if most is None else f" to {most}" if most > least else ""
        raise node.error(f"input {index} has rank {rank}", expected=f"rank {least}{upper}")


def broadcast_pair(x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """`y` with leading axes added so that it has the rank of `x`."""
    missing = len(x.shape) - len(y.shape)
    return x, (op.expand_dims(y, 0, missing) if missing > 0 else y)


def question_of_one(d: Dim) -> str:
    """The question whether a size is 1, which has one answer in a version of the model (`OnnxNode.answer`)."""
    return f"{d} == 1"


def take_as_one(node: OnnxNode, d: Dim, answer: bool, why: str = "") -> None:
    """From now on, and checked at run time, a symbolic size is 1, or else it is not; an error says `why`."""
    node.ask(question_of_one(d), answer)
    if answer:
        dims_match(d, 1)
        node.check_equal(d, 1, f"compiled for sizes {d} of 1{why},")
    else:
        node.check_equal(is_one(d), 0, f"compiled for sizes {d} other than 1{why},")


def legacy_broadcast(node: OnnxNode) -> tuple[Expr, Expr]:
    """Operands of a binary operator before opset 7: `broadcast` = 1 lays input 1 along input 0 from `axis` on."""
    x, y = node[0], node[1]
    axis = node.attrs.get_int("axis")
    if not node.attr_bool("broadcast", False):
        if not shapes_match(x.shape, y.shape):
            raise node.error("two shapes without broadcast=1", expected="equal shapes, or broadcast=1")
        return x, y
    if axis is None:
        return x, y
    start = node.axis(axis, node.rank(0))
    trailing = node.rank(0) - start - node.rank(1)
    if trailing < 0:
        raise node.error(f"input 1 does not fit from axis {axis} on")
    return x, (reshape_to(y, (*y.shape, *[1] * trailing)) if trailing else y)
