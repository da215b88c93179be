"""Vectorised (batched) Scan: a body without state changes is computed for all slices, along a leading dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relayc.relay import op
from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple
from relayc.relay.op.base import OpDef, OpPattern
from relayc.relay.op.reduce import Reduction
from relayc.relay.sizes import dims_equal
from relayc.relay.type import TensorType
from relayc.te.tir import Dim

__all__ = ["batched_scan"]

_NO_AXIS = {"dtype", "a_min", "a_max"}
"""Attributes of elementwise operators that name no dimension."""


def batched_scan(function: Function, states: int, values: Sequence[Expr], length: Dim) -> list[Expr] | None:
    """Vectorise `function`, a scan's body of states, slices and captured values: states, then stacked outputs.

    `values` are its arguments, slices along a leading dimension of `length`. None if a state changes, or for an
    operator that is neither elementwise nor a reduction. Pairwise distances have this form.
    """
    body = function.body
    assert isinstance(body, Tuple)
    kept = all(a is b for a, b in zip(body.fields[:states], function.params[:states], strict=True))
    slices = [x for x, p in zip(values, function.params, strict=True) if len(x.shape) > len(p.tensor_type.shape)]
    if not kept or not slices:
        return None
    made: dict[int, Expr] = {}
    for param, value in zip(function.params, values, strict=True):
        made[id(param)] = value if any(value is x for x in slices) else op.expand_dims(value, 0)
    for e in evaluation_order(body):
        if id(e) in made or isinstance(e, Tuple):
            continue
        result = op.expand_dims(e, 0) if isinstance(e, Constant) else _of_call(e, made)
        if result is None:
            return None
        made[id(e)] = result
    return [*values[:states], *[_repeated(made[id(e)], length) for e in body.fields[states:]]]


def _of_call(e: Expr, made: Mapping[int, Expr]) -> Expr | None:
    """A call vectorised over arguments with a leading dimension; None for an unsupported operator."""
    if not isinstance(e, Call) or not isinstance(e.op, OpDef) or not isinstance(e.ty, TensorType):
        return None
    args = tuple([made[id(a)] for a in e.args])
    ranks = [len(a.shape) for a in e.args]
    if isinstance(e.op, Reduction):
        axes = tuple([a + 1 for a in e.op.axes(ranks[0])])
        return Call(e.op.replace(axis=axes), args, span=e.span)
    if type(e.op).pattern not in (OpPattern.ELEMWISE, OpPattern.BROADCAST) or not set(e.op.attributes()) <= _NO_AXIS:
        return None
    most = max(ranks)
    pairs = zip(args, ranks, strict=True)
    wide = tuple([op.expand_dims(a, 1, most - rank) if rank < most else a for a, rank in pairs])
    return Call(e.op, wide, span=e.span)


def _repeated(x: Expr, length: Dim) -> Expr:
    """Broadcast a loop-invariant value along the leading dimension."""
    return x if dims_equal(x.shape[0], length) else op.broadcast_to(x, (length, *x.shape[1:]))
