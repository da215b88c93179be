"""Reductions, with adjacent dimensions that are all reduced, or all kept, collapsed.

Channels of small planes become rows of whole planes, not of 7 or 13 elements, and dimensions of 1 vanish. The memory
layout does not change, so nothing outside of the kernel is affected.
"""

from __future__ import annotations

import itertools
import math

from relayc.relay.analysis import body_order
from relayc.relay.expr import Call, Constant, Expr, Function, Var
from relayc.relay.lowering.collapse_dimensions import rebuilt
from relayc.relay.op.reduce import ArgReduction, Reduction
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext
from relayc.te.tir import as_int

__all__ = ["CollapseReductions"]

Shape = tuple[int, ...]


class CollapseReductions(FunctionPass):
    """An equivalent primitive function on the same memory, with as few dimensions as possible.

    For one reduction over some dimensions and elementwise operators before or after it, on tensors of the shape of its
    input or result; other functions are returned unchanged.
    """

    def transform(self, function: Function, context: PassContext) -> Function:
        exprs = body_order(function)
        found = [e for e in exprs if isinstance(e, Call) and isinstance(e.op, Reduction | ArgReduction)]
        if len(found) != 1 or "strides" in function.attrs:
            return function
        (anchor,) = found
        operand, result = anchor.args[0].ty, anchor.ty
        if not isinstance(operand, TensorType) or not isinstance(result, TensorType) or not operand.is_static:
            return function
        axes = anchor.operator.axes(operand.ndim)  # type: ignore[attr-defined]
        groups = _groups(operand.static_shape, axes)
        if not 1 < len(groups) < operand.ndim:
            return function
        shapes = {
            operand.static_shape: tuple([size for size, _ in groups]),
            result.static_shape: tuple([size for size, is_reduced in groups if not is_reduced]),
        }
        if not all(e is anchor or _is_followed(e, shapes) for e in exprs):
            return function
        reduced = tuple([n for n, (_, is_reduced) in enumerate(groups) if is_reduced])
        return rebuilt(function, exprs, lambda e, made: _merged(e, anchor, reduced, shapes, made))


def _groups(shape: Shape, axes: tuple[int, ...]) -> list[tuple[int, bool]]:
    """The sizes of runs of dimensions that are all reduced, or all kept, and the reduced ones among them; dimensions of
    1 are dropped."""
    dims = [(size, axis in axes) for axis, size in enumerate(shape) if size != 1]
    runs = itertools.groupby(dims, key=lambda dim: dim[1])
    return [(math.prod([size for size, _ in run]), is_reduced) for is_reduced, run in runs]


def _is_followed(e: Expr, shapes: dict[Shape, Shape]) -> bool:
    """Is this data of one of these shapes, or elementwise on tensors of its shape and scalars?"""
    if isinstance(e, Constant):
        return e.data.size == 1
    if not isinstance(e, Var | Call) or not isinstance(e.ty, TensorType):
        return False
    known = all(as_int(d) is not None for d in e.ty.shape) and e.ty.shape in shapes
    if not isinstance(e, Call):
        return known
    of = [a.ty for a in e.args if not isinstance(a, Constant)]
    alike = all(isinstance(ty, TensorType) and ty.shape == e.ty.shape for ty in of)
    return known and e.operator.follows_elements() and alike


def _merged(
    e: Expr, anchor: Call, reduced: tuple[int, ...], shapes: dict[Shape, Shape], made: dict[int, Expr]
) -> Expr:
    if isinstance(e, Var):
        return Var(e.name, TensorType(shapes[e.tensor_type.static_shape], e.tensor_type.dtype))
    if isinstance(e, Constant):
        return e if e.data.ndim == 0 else Constant(e.data.reshape(()))
    assert isinstance(e, Call)
    op = e.operator.replace(axis=reduced, keepdims=False) if e is anchor else e.operator
    return Call(op, tuple([made[id(a)] for a in e.args]), span=e.span)
