"""A model of symbolic sizes as the model for certain sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relay.expr import Call, Expr, Function, Tuple, Var
from relay.op.base import OpDef
from relay.sizes import assuming, evaluate, replace_sizes, size_variables
from relay.type import TensorType, TupleType, Type
from te.ir import rewrite_dag
from te.tir import Dim
from te.tir import Var as SizeVariable

__all__ = ["bind_sizes", "bound_outputs", "results_of", "sizes_of_inputs"]


def bind_sizes(function: Function, sizes: Mapping[str, Dim]) -> Function:
    """`function` with the size variables that `sizes` names replaced, in types and attributes.

    Variables that stay keep their place in the attributes "bound_sizes" and "size_checks" (see `relay.build.dynamic`).
    """
    params = tuple([Var(p.name, _replaced(p.ty, sizes), span=p.span) for p in function.params])
    renamed = {id(old): new for old, new in zip(function.params, params, strict=True)}

    def visit(e: Expr) -> Expr:
        if isinstance(e, Var):
            return renamed.get(id(e), e)
        if isinstance(e, Call) and isinstance(e.op, OpDef):
            changed = {name: replace_sizes(v, sizes) for name, v in e.op.attributes().items() if size_variables([v])}
            return Call(e.op.replace(**changed), e.args, span=e.span) if changed else e
        return e

    attrs = dict(function.attrs)
    if "size_checks" in attrs:
        attrs["size_checks"] = tuple((evaluate(a, sizes), evaluate(b, sizes), s) for a, b, s in attrs["size_checks"])
    with assuming():  # what was assumed of the model holds for this one
        body = rewrite_dag(function.body, visit)
    return Function(params, body, attrs, span=function.span)  # type: ignore[arg-type]


def _replaced(ty: Type, sizes: Mapping[str, Dim]) -> Type:
    if isinstance(ty, TensorType):
        return ty.with_shape([evaluate(d, sizes) for d in ty.shape])
    assert isinstance(ty, TupleType)
    return TupleType([_replaced(f, sizes) for f in ty.fields])


def bound_outputs(function: Function) -> list[tuple[str, Expr, int]]:
    """The size variables that the function computes itself: (name, integer tensor, element), in order."""
    records: Sequence[Any] = function.attrs.get("bound_sizes", ())
    if not records:
        return []
    assert isinstance(function.body, Tuple)
    return [(name, function.body.fields[output], element) for name, output, element, _ in records]


def results_of(function: Function) -> Expr:
    """The body without the tensors that only give sizes."""
    records: Sequence[Any] = function.attrs.get("bound_sizes", ())
    if not records:
        return function.body
    assert isinstance(function.body, Tuple)
    fields = function.body.fields[: min(output for _, output, _, _ in records)]
    return fields[0] if len(fields) == 1 else Tuple(fields)


def sizes_of_inputs(function: Function, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The values of the size variables that stand alone as dimensions of inputs."""
    found: dict[str, int] = {}
    for param, shape in zip(function.params, shapes, strict=True):
        for d, n in zip(param.tensor_type.shape, shape, strict=True):
            if isinstance(d, SizeVariable):
                found.setdefault(d.name, n)
    return found
