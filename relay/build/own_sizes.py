"""Fused functions with size variables of their own: those that differ only in whose sizes they are about become equal.

A detector that treats each class of objects apart has the same kernels for each, at sizes that are different variables
of the model. As one kernel of its own variables it is compiled once, and is given the model's sizes at each call.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay.analysis import evaluation_order
from relay.bind_sizes import bind_sizes
from relay.expr import Call, Function
from relay.op.base import OpDef
from relay.sizes import size_variables
from relay.type import TensorType, TupleType, Type
from te.tir import Dim, SizeVar, Var

__all__ = ["OwnSizes", "sizes_of"]


class OwnSizes:
    """Gives functions variables "#0", "#1", ... for the size variables of a model, in the order they are mentioned."""

    def __init__(self) -> None:
        self._variables: list[SizeVar] = []

    def rename(self, function: Function) -> tuple[Function, Mapping[str, Var]]:
        """The function of its own variables, and the model's variable for each of those by name."""
        mentioned = sizes_of(function)
        while len(self._variables) < len(mentioned):
            self._variables.append(SizeVar(f"#{len(self._variables)}", next(iter(mentioned.values())).dtype))
        own = self._variables[: len(mentioned)]
        if not mentioned or any(v.dtype != o.dtype for v, o in zip(mentioned.values(), own, strict=True)):
            return function, {v.name: v for v in mentioned.values()}
        renamed = bind_sizes(function, dict(zip(mentioned, own, strict=True)))
        return renamed, {o.name: v for o, v in zip(own, mentioned.values(), strict=True)}


def sizes_of(function: Function) -> dict[str, Var]:
    """The size variables of a primitive function by name: of its parameters, then of what it computes and how."""
    dims = [d for p in function.params for d in _dims(p.ty)]
    for e in evaluation_order(function.body):
        dims += _dims(e.ty)
        if isinstance(e, Call) and isinstance(e.op, OpDef):
            dims += e.op.attributes().values()
    return size_variables(dims)


def _dims(ty: Type) -> list[Dim]:
    if isinstance(ty, TupleType):
        return [d for f in ty.fields for d in _dims(f)]
    return list(ty.shape) if isinstance(ty, TensorType) else []
