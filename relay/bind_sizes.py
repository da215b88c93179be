"""Specialisation of a function with symbolic dimensions to concrete sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from relayc.relay.container_type import ContainerType
from relayc.relay.expr import Call, Expr, Function, Tuple, Var
from relayc.relay.op.base import OpDef
from relayc.relay.sizes import assuming, evaluate
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.ir import post_order
from relayc.te.tir import Dim, PrimExpr, Var as SizeVariable

__all__ = ["bind_operator", "bind_sizes", "bound_outputs", "results_of", "sizes_of_inputs", "with_dims"]

Replace = Callable[[PrimExpr], Dim]
"""Maps a symbolic dimension to its replacement."""


def bind_sizes(function: Function, sizes: Mapping[str, Dim]) -> Function:
    """`function` with the size variables that `sizes` names replaced by their values, in types and attributes.

    Variables that remain keep their entries in the attributes "bound_sizes" and "size_checks" (see
    `relay.lowering.dynamic`).
    """
    return with_dims(function, _by_name(sizes))


def _by_name(sizes: Mapping[str, Dim]) -> Replace:
    return lambda d: evaluate(d, sizes)


def with_dims(function: Function, replace: Replace) -> Function:
    """`function` with every symbolic dimension of its parameters and operators replaced; types are inferred again."""
    params = tuple([Var(p.name, _replaced_type(p.ty, replace), span=p.span) for p in function.params])
    done: dict[int, Expr] = {id(old): new for old, new in zip(function.params, params, strict=True)}
    attrs = dict(function.attrs)
    if "size_checks" in attrs:
        attrs["size_checks"] = tuple((_dim(a, replace), _dim(b, replace), s) for a, b, s in attrs["size_checks"])
    with assuming():  # what was assumed of the model's sizes holds for this one as well
        for e in cast("list[Expr]", list(post_order(function.body))):
            if id(e) not in done:
                done[id(e)] = _bound(e, replace, done)
    return Function(params, done[id(function.body)], attrs, span=function.span)


def _dim(d: Dim, replace: Replace) -> Dim:
    return d if isinstance(d, int) else replace(d)


def _bound(e: Expr, replace: Replace, done: Mapping[int, Expr]) -> Expr:
    """The expression rebuilt from its operands in `done`."""
    if isinstance(e, Call) and isinstance(e.op, OpDef):
        op = _with_attributes(e.op, replace)
        if op is not e.op:
            return Call(op, tuple([done[id(a)] for a in e.args]), span=e.span)
    return e.rebuild(lambda child: done.get(id(child), child))


def bind_operator(op: OpDef, sizes: Mapping[str, Dim]) -> OpDef:
    """The operator with the size variables in its attributes, types and functions replaced; itself without any."""
    return _with_attributes(op, _by_name(sizes))


def _with_attributes(op: OpDef, replace: Replace) -> OpDef:
    changed = {name: _replaced(value, replace) for name, value in op.attributes().items()}
    changed = {name: value for name, value in changed.items() if value is not getattr(op, name)}
    return op.replace(**changed) if changed else op


def _replaced(value: Any, replace: Replace) -> Any:
    """A type or an attribute with its size variables replaced; the very same object if there are none."""
    if isinstance(value, tuple):
        parts = tuple([_replaced(v, replace) for v in value])
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    if isinstance(value, PrimExpr):
        return replace(value)
    if isinstance(value, Function):
        return with_dims(value, replace)
    return _replaced_type(value, replace) if isinstance(value, Type) else value


def _replaced_type(ty: Type, replace: Replace) -> Type:
    if isinstance(ty, TensorType):
        return ty.with_shape([_dim(d, replace) for d in ty.shape])
    if isinstance(ty, ContainerType):
        return ty.mapped(lambda d: _dim(d, replace))
    assert isinstance(ty, TupleType)
    return TupleType([_replaced_type(f, replace) for f in ty.fields])


def bound_outputs(function: Function) -> list[tuple[str, Expr, int]]:
    """The size variables that the function computes itself: (name, integer tensor, element), in order."""
    records: Sequence[Any] = function.attrs.get("bound_sizes", ())
    if not records:
        return []
    assert isinstance(function.body, Tuple)
    return [(name, function.body.fields[output], element) for name, output, element, _ in records]


def results_of(function: Function) -> Expr:
    """The body without the tensors that are there only to give sizes."""
    records: Sequence[Any] = function.attrs.get("bound_sizes", ())
    if not records:
        return function.body
    assert isinstance(function.body, Tuple)
    fields = function.body.fields[: min(output for _, output, _, _ in records)]
    return fields[0] if len(fields) == 1 else Tuple(fields)


def sizes_of_inputs(function: Function, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The values of the size variables that stand alone as dimensions of inputs; `shapes` are those of the tensors."""
    found: dict[str, int] = {}
    tensors = [ty for p in function.params if isinstance(ty := p.ty, TensorType)]
    for ty, shape in zip(tensors, shapes, strict=True):
        for d, n in zip(ty.shape, shape, strict=True):
            if isinstance(d, SizeVariable):
                found.setdefault(d.name, n)
    return found
