"""LimitParts: concatenations and splits of many parts become trees of smaller ones.

The code of a kernel grows with its arguments, and the time to compile it faster than that. The kernels of a tree are
mostly equal, so that few are compiled; where memory is placed freely the inner nodes are views
(`relay.lowering.buffer_aliasing`), and nothing is copied twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar, cast

from relayc.relay.expr import Call, Expr, Function, Tuple, TupleGetItem
from relayc.relay.op.common import check_axis
from relayc.relay.op.joining import Concatenate, Split
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.type import TensorType, TupleType
from relayc.te.ir import PassContext, rewrite_dag

__all__ = ["MOST_PARTS", "LimitParts"]

MOST_PARTS = 128
"""Most parts of one kernel. (128 inputs compile in 0.1 s, 2,500 in 12 s, on Zen 4.)"""


class LimitParts(FunctionPass):
    """concatenate(x1, ..., xn) = concatenate(concatenate(x1, ..., xk), ..., concatenate(..., xn)); likewise splits."""

    opt_level: ClassVar[int] = 0

    def transform(self, function: Function, context: PassContext) -> Function:
        return cast(Function, rewrite_dag(function, _limited))


def _limited(e: Expr) -> Expr:
    match e:
        case Call(op=Concatenate() as op) if len(e.args) > MOST_PARTS:
            return _concatenated(op, e)
        case Call(op=Split() as op, ty=TupleType(fields=parts)) if len(parts) > MOST_PARTS:
            return _split(op, e, cast("Sequence[TensorType]", parts))
        case TupleGetItem(tuple_value=Tuple(fields=fields)):
            return fields[e.index]
        case _:
            return e


def _concatenated(op: Concatenate, call: Call) -> Expr:
    parts = list(call.args)
    while len(parts) > 1:
        groups = [parts[i : i + MOST_PARTS] for i in range(0, len(parts), MOST_PARTS)]
        parts = [Call(op, tuple(group), span=call.span) if len(group) > 1 else group[0] for group in groups]
    return parts[0]


def _split(op: Split, call: Call, parts: Sequence[TensorType]) -> Expr:
    axis = check_axis(1, op.axis, len(parts[0].shape))
    sizes = [part.shape[axis] for part in parts]
    if not all(isinstance(size, int) for size in sizes):
        return call
    return Tuple(tuple(_pieces(op, call.args[0], cast("Sequence[int]", sizes), call)), span=call.span)


def _pieces(op: Split, x: Expr, sizes: Sequence[int], call: Call) -> list[Expr]:
    """The pieces of `x` of certain sizes."""
    if len(sizes) == 1:
        return [x]
    width = 1
    while width * MOST_PARTS < len(sizes):
        width *= MOST_PARTS
    groups = [sizes[i : i + width] for i in range(0, len(sizes), width)]
    cuts = tuple(itertools.accumulate(map(sum, groups)))[:-1]
    parts = Call(op.replace(indices_or_sections=cuts), (x,), span=call.span)
    inner = [TupleGetItem(parts, i, span=call.span) for i in range(len(groups))]
    return [piece for part, group in zip(inner, groups, strict=True) for piece in _pieces(op, part, group, call)]
