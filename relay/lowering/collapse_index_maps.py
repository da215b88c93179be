"""Concatenations and paddings, with the dimensions that they leave unchanged collapsed.

The dimensions before the concatenated or padded one collapse to rows; those after it become part of its elements: with
three channels last, the padding of a pixel is one of three elements at the ends of a row. Rows are longer and
contiguous, so vectors are full (`topi.cpu.elementwise.lines`). The memory layout does not change, so nothing outside of
the kernel is affected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from relayc.relay.analysis import body_order
from relayc.relay.expr import Call, Constant, Expr, Function, Var
from relayc.relay.lowering.collapse_dimensions import rebuilt
from relayc.relay.op.joining import Concatenate
from relayc.relay.op.nn.pad import Pad
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext

__all__ = ["CollapseIndexMaps"]

_SHORT_BYTES = 32
"""Bytes behind a concatenated dimension below which they become part of its elements; otherwise seams are between whole
rows."""
_PAGE_BYTES = 4096
"""Bytes behind a padded dimension below which they become part of its elements.

Padding by longer rows would make whole vectors fall outside of the tensor: masked loads, which are very slow on
unmapped addresses.
"""


class CollapseIndexMaps(FunctionPass):
    """An equivalent primitive function on the same memory, with as few dimensions as possible.

    For one operator that concatenates or pads, and elementwise operators before or after it, on tensors of one shape
    each. Bools that are only moved are moved as bytes.
    """

    def transform(self, function: Function, context: PassContext) -> Function:
        exprs = body_order(function)
        moves = [e for e in exprs if _moved_dimensions(e) is not None]
        if len(moves) != 1 or "strides" in function.attrs or not all(map(_is_known, exprs)):
            return function
        (move,) = moves
        if not all(e is move or _is_followed(e) for e in exprs):
            return function
        groups = _groups(move)
        flags = move.tensor_type.dtype.is_bool and all(isinstance(e, Var) or e is move for e in exprs)
        if len(groups) == move.tensor_type.ndim and not flags:
            return function
        return rebuilt(function, exprs, lambda e, made: _merged(e, groups, made, "uint8" if flags else None))


def _moved_dimensions(e: Expr) -> list[int] | None:
    """The dimensions along which elements move; None for other operators."""
    if isinstance(e, Call) and isinstance(e.op, Pad):
        return [d for d, widths in enumerate(e.op.pad_width) if any(widths)]
    if isinstance(e, Call) and isinstance(e.op, Concatenate):
        return [e.op.axis % max(e.tensor_type.ndim, 1)]
    return None


def _is_known(e: Expr) -> bool:
    return isinstance(e.ty, TensorType) and e.ty.is_static and isinstance(e, Var | Call | Constant)


def _is_followed(e: Expr) -> bool:
    """Is this data, or elementwise on tensors of its shape and scalars?"""
    if isinstance(e, Constant):
        return e.data.size == 1
    if not isinstance(e, Call):
        return True
    of = [a.tensor_type.shape for a in e.args if not isinstance(a, Constant)]
    return e.operator.follows_elements() and all(shape == e.tensor_type.shape for shape in of)


def _groups(move: Expr) -> list[list[int]]:
    """The dimensions in groups that collapse to one each: a dimension along which elements move comes first in its
    group.

    A padding mode that copies elements of the tensor copies single elements, so no other dimension joins its group.
    """
    assert isinstance(move, Call)
    moved, ty = _moved_dimensions(move) or [], move.tensor_type
    least = _SHORT_BYTES
    if isinstance(move.op, Pad):
        least = _PAGE_BYTES if move.op.pad_mode == "constant" else 0

    def is_apart(first: int) -> bool:
        return first in moved and math.prod(ty.static_shape[first + 1 :]) * ty.dtype.nbytes >= least

    groups: list[list[int]] = []
    for d in range(ty.ndim):
        if not groups or d in moved or is_apart(groups[-1][0]):
            groups.append([d])
        else:
            groups[-1].append(d)
    return groups


def _shape(e: Expr, groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    sizes = e.tensor_type.static_shape
    return tuple([math.prod([sizes[d] for d in group]) for group in groups])


def _merged(e: Expr, groups: list[list[int]], made: dict[int, Expr], dtype: str | None) -> Expr:
    if isinstance(e, Var):
        return Var(e.name, TensorType(_shape(e, groups), dtype or e.tensor_type.dtype))
    if isinstance(e, Constant):
        return e if e.data.ndim == 0 else Constant(e.data.reshape(()))
    assert isinstance(e, Call)
    op, args = e.operator, tuple([made[id(a)] for a in e.args])
    if isinstance(op, Concatenate):
        axis = op.axis % e.tensor_type.ndim
        op = op.replace(axis=next(number for number, group in enumerate(groups) if axis in group))
    if isinstance(op, Pad):
        shape, widths = e.tensor_type.static_shape, op.pad_width
        inside = [math.prod([shape[d] for d in group[1:]]) for group in groups]
        merged = [(widths[g[0]][0] * n, widths[g[0]][1] * n) for g, n in zip(groups, inside, strict=True)]
        op = op.replace(pad_width=tuple(merged))
    return Call(op, args, span=e.span)
