"""Reverse-mode differentiation of functions (TVM: `relay.transform.gradient`).

The adjoint of an expression is the gradient with respect to it, the sum of what the gradient rules of its users give
(`OpDef.gradient`); they are met in the reverse order of evaluation. (Griewank and Walther, "Evaluating Derivatives",
2008, chapter 3.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from relayc.relay.analysis import outer_operands, outer_order
from relayc.relay.errors import GradientError
from relayc.relay.expr import Call, Expr, Function, Tuple, TupleGetItem, Var
from relayc.relay.op.base import OpDef, make_call
from relayc.relay.op.gradients import zeros_of
from relayc.relay.type import TensorType, TupleType

__all__ = ["adjoints", "gradient"]


def gradient(function: Function, wrt: Sequence[Var] | None = None) -> Function:
    """A function of the same parameters that gives a tuple: the result, and a tuple of gradients.

    They are those of the sum of all elements of the result, a float tensor, with respect to each parameter in `wrt`, by
    default each float one: of the parameter's type, zeros if the result does not depend on it. Where there is no
    derivative, as of relu at 0, a gradient is one of those at either side. The function may be differentiated again.

    Raises GradientError for parameters that hold no floats or are not the function's, for operators without a gradient
    rule, and for control flow.
    """
    targets = [p for p in function.params if _is_float(p)] if wrt is None else list(wrt)
    for target in targets:
        if target not in function.params or not _is_float(target):
            raise GradientError(f"{target.name} of type {target.ty} is no parameter of the function that holds floats")
    result = function.body
    return function.replace(body=Tuple((result, Tuple(tuple(adjoints(result, targets))))))


def adjoints(result: Expr, targets: Sequence[Expr], seed: Expr | None = None) -> list[Expr]:
    """The gradients of the sum of ``seed * result`` with respect to expressions that `result` is computed from.

    The targets are independent: one that is computed from another is not differentiated. `seed` is 1 by default.
    """
    if not _is_float(result):
        raise GradientError(f"a value of type {result.ty} has no gradient: it must be a float tensor")
    wanted = {id(t) for t in targets}
    order = list(outer_order(result, wanted))
    dependent = set[int]()
    for e in order:
        if id(e) in wanted or any(id(operand) in dependent for operand in outer_operands(e)):
            dependent.add(id(e))
    found: dict[int, list[Expr]] = {id(result): [_ones(result) if seed is None else seed]}
    for e in reversed(order):
        if id(e) in wanted or id(e) not in dependent or id(e) not in found:
            continue
        for operand, part in zip(outer_operands(e), _parts(e, found.pop(id(e))), strict=True):
            if part is not None and id(operand) in dependent and not _holds_no_floats(operand):
                found.setdefault(id(operand), []).append(part)
    return [_total(found[id(t)]) if id(t) in found else zeros_of(t, t.shape) for t in targets]


def _is_float(e: Expr) -> bool:
    return isinstance(e.ty, TensorType) and e.ty.dtype.is_float


def _holds_no_floats(e: Expr) -> bool:
    return isinstance(e.ty, TensorType) and not e.ty.dtype.is_float


def _ones(like: Expr) -> Expr:
    return make_call("full", (), shape=tuple(like.shape), dtype=str(like.dtype), fill_value=1)


def _total(parts: Sequence[Expr]) -> Expr:
    """The sum of the contributions to one adjoint."""
    if not isinstance(parts[0], Tuple):
        return reduce(add, parts)
    fields = zip(*[part.fields for part in parts if isinstance(part, Tuple)], strict=True)
    return Tuple(tuple([reduce(add, field) for field in fields]))


def _parts(e: Expr, contributions: Sequence[Expr]) -> Sequence[Expr | None]:
    """What `e` contributes to the adjoint of each of its operands."""
    grad = _total(contributions)
    if isinstance(e, Tuple):
        assert isinstance(grad, Tuple)
        return grad.fields
    if isinstance(e, TupleGetItem):
        return (_in_tuple(e, grad),)
    if not isinstance(e, Call) or not isinstance(e.op, OpDef):
        what = "the call of a function" if isinstance(e, Call) else f"an expression of kind {type(e).__name__}"
        raise GradientError(f"{what} has no gradient rule: inline it, or differentiate its parts", e.span)
    try:
        simple = e.op.decomposed(*e.args)
        if simple is None:
            return e.op.gradient(e, grad)
        unique = list({id(a): a for a in e.args}.values())
        by_arg = dict(zip(map(id, unique), adjoints(simple, unique, grad), strict=True))
        return [by_arg.pop(id(a), None) for a in e.args]
    except GradientError as error:
        raise error.located(e.span) from None


def _in_tuple(e: TupleGetItem, grad: Expr) -> Tuple:
    """The adjoint of a tuple of which only one field has an adjoint."""
    of = e.tuple_value.ty
    assert isinstance(of, TupleType)
    zeros = [
        make_call("full", (), shape=tuple(ty.shape), dtype=str(ty.dtype), fill_value=0)
        for ty in of.fields
        if isinstance(ty, TensorType)
    ]
    return Tuple(tuple([grad if k == e.index else zero for k, zero in enumerate(zeros)]))
