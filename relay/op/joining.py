"""Operators that join tensors, and cut them into several."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.errors import TypeInferenceError
from relayc.relay.expr import Call, Expr, Tuple, TupleGetItem
from relayc.relay.op.base import OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, check_axis, require, require_same_dtype, with_dim
from relayc.relay.op.gradients import reshaped
from relayc.relay.op.transform import StridedSlice
from relayc.relay.type import TensorType, TupleType, Type, dims_match
from relayc.te.tir import Dim, PrimExpr, as_dim

__all__ = ["Concatenate", "Split", "Stack", "concatenate", "split", "stack"]

Perm = tuple[int, ...]


@register_op("concatenate", pattern=OpPattern.INJECTIVE)
class Concatenate(OpDef):
    """The inputs one after another along `axis` (ONNX: Concat).

    (C1) at least one input; (C2) one element type; (C3) axis in [-ndim, ndim); (C4) the other dimensions are equal.
    """

    axis: int = 0
    joins_inputs = True

    def infer(self, *xs: TensorType) -> TensorType:
        require(len(xs) > 0, "(C1) at least one input is needed")
        require_same_dtype(2, *xs)
        first = xs[0]
        axis = check_axis(3, self.axis, first.ndim)
        total: Dim = 0
        for x in xs:
            same = x is first or (x.ndim == first.ndim and all(
                a == axis or dims_match(d, e) for a, (d, e) in enumerate(zip(x.shape, first.shape, strict=True))
            ))  # fmt: skip
            if not same:  # the message takes longer than the test
                raise TypeInferenceError(f"(C4) {first} and {x} must have equal dimensions but for axis {axis}")
            total = as_dim(x.shape[axis] + total)
        return first.with_shape(with_dim(first.shape, axis, total))

    def compute(self, *xs: te.Tensor) -> te.Tensor:
        return topi.concatenate(xs, self.axis)

    def reference(self, *xs: Array) -> Array:
        return np.concatenate(xs, self.axis)

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(3, self.axis, len(perm))))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        axis = check_axis(3, self.axis, len(grad.shape))
        parts: list[Expr] = []
        begin: Dim = 0
        for x in call.args:
            end = as_dim(begin + x.shape[axis])
            parts.append(StridedSlice(begin=(begin,), end=(end,), strides=(1,), axes=(axis,))(grad))
            begin = end
        return parts


@register_op("stack", pattern=OpPattern.INJECTIVE)
class Stack(OpDef):
    """The inputs along a new dimension `axis`. (C1) they have one type; (C2) axis is in [-ndim - 1, ndim]."""

    axis: int = 0

    def infer(self, *xs: TensorType) -> TensorType:
        require(len(set(xs)) == 1, "(C1) all inputs must have one type; got none, or several")
        x = xs[0]
        axis = check_axis(2, self.axis, x.ndim + 1)
        return x.with_shape((*x.shape[:axis], len(xs), *x.shape[axis:]))

    def compute(self, *xs: te.Tensor) -> te.Tensor:
        return topi.stack(xs, check_axis(2, self.axis, xs[0].ndim + 1))

    def reference(self, *xs: Array) -> Array:
        return np.stack(xs, self.axis)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        axis = check_axis(2, self.axis, len(grad.shape))
        rows = Split(indices_or_sections=len(call.args), axis=axis)(grad)
        return [reshaped(TupleGetItem(rows, k), x.shape) for k, x in enumerate(call.args)]


@register_op("split", pattern=OpPattern.INJECTIVE)
class Split(OpDef):
    """x cut along `axis` (ONNX: Split). Gives a tuple.

    `indices_or_sections`: a number of equal parts, or the positions of the cuts. (C1) axis in [-ndim, ndim);
    (C2) the size divides into so many parts; (C3) cuts ascend within [0, size].
    """

    indices_or_sections: int | tuple[int, ...]
    axis: int = 0

    def _sizes(self, size: Dim) -> tuple[Dim, ...]:
        if isinstance(self.indices_or_sections, int):
            count = self.indices_or_sections
            divides = count > 0 and (isinstance(size, PrimExpr) or size % count == 0)
            require(divides, f"(C2) a size of {size} can't be cut into {count} equal parts")
            return (as_dim(size // count),) * count
        cuts: list[Dim] = [0, *self.indices_or_sections, size]
        known = [c for c in cuts if isinstance(c, int)]
        require(known == sorted(known), f"(C3) cuts {self.indices_or_sections} must ascend within [0, {size}]")
        return tuple([as_dim(b - a) for a, b in itertools.pairwise(cuts)])

    def infer(self, x: TensorType) -> TupleType:
        axis = check_axis(1, self.axis, x.ndim)
        return TupleType([x.with_shape(with_dim(x.shape, axis, s)) for s in self._sizes(x.shape[axis])])

    def compute(self, x: te.Tensor) -> tuple[te.Tensor, ...]:
        axis = check_axis(1, self.axis, x.ndim)
        return topi.split(x, self._sizes(x.shape[axis]), axis)

    def reference(self, x: Array) -> tuple[Array, ...]:
        cuts = self.indices_or_sections
        return tuple([np.ascontiguousarray(part) for part in np.split(x, cuts if isinstance(cuts, int) else list(cuts),
                                                                      self.axis)])  # fmt: skip

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(1, self.axis, len(perm))))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        assert isinstance(grad, Tuple)
        return (Concatenate(axis=self.axis)(*grad.fields),)


def concatenate(data: Sequence[Expr], axis: int = 0) -> Call:
    """The tensors one after another along `axis`."""
    return Concatenate(axis=axis)(*data)


def stack(data: Sequence[Expr], axis: int = 0) -> Call:
    """The tensors along a new dimension `axis`."""
    return Stack(axis=axis)(*data)


def split(data: Expr, indices_or_sections: int | Sequence[int], axis: int = 0) -> tuple[TupleGetItem, ...]:
    """`data` cut along `axis` into so many equal parts, or at so many positions."""
    cuts = indices_or_sections if isinstance(indices_or_sections, int) else tuple(indices_or_sections)
    call = Split(indices_or_sections=cuts, axis=axis)(data)
    assert isinstance(call.ty, TupleType)
    return tuple([TupleGetItem(call, i) for i in range(len(call.ty.fields))])
