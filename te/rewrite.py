"""Substitution in tensor expressions: of variables, and of reads of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from te.ir.visitor import Mutator
from te.operation import ComputeOp, ExternOp, Operation, ScanOp
from te.tensor import Tensor
from te.tir.expr import PrimExpr, ProducerLoad, Var

__all__ = ["map_reads", "replace_inputs", "substitute"]


class _Substitution(Mutator):
    """Each distinct node once: a shared subexpression stays shared."""

    def __init__(self, values: Mapping[Var, PrimExpr]) -> None:
        self.values = values
        self.done: dict[int, Any] = {}
        self.alive: list[Any] = []

    def visit(self, node: Any) -> Any:
        result = self.done.get(id(node))
        if result is None:
            result = self.done[id(node)] = super().visit(node)
            self.alive.append(node)  # an id is only good while its object lives
        return result

    def visit_Var(self, var: Var) -> PrimExpr:
        return self.values.get(var, var)


class _ReadMapping(_Substitution):
    def __init__(self, f: Callable[[ProducerLoad], PrimExpr], values: Mapping[Var, PrimExpr]) -> None:
        super().__init__(values)
        self.f = f

    def visit_ProducerLoad(self, load: ProducerLoad) -> PrimExpr:
        return self.f(load.rebuild(self.visit))


def substitute(expr: Any, values: Mapping[Var, PrimExpr]) -> Any:
    """`expr` (or statement) with variables replaced by expressions, all at once."""
    return _Substitution(values).visit(expr) if values else expr


def map_reads(
    expr: Any, f: Callable[[ProducerLoad], PrimExpr], values: Mapping[Var, PrimExpr] | None = None
) -> Any:
    """`expr` with every tensor read replaced by `f(read)`, and variables by `values` on the way (indices first)."""
    return _ReadMapping(f, values or {}).visit(expr)


def replace_inputs(op: Operation, tensors: Mapping[Tensor, Tensor]) -> Operation:
    """The operation reading other tensors in place of some; itself when it reads none of them."""
    if not any(t in tensors for t in op.input_tensors):
        return op
    if isinstance(op, ComputeOp):

        def read(load: ProducerLoad) -> PrimExpr:
            tensor = tensors.get(load.producer)
            return load if tensor is None else ProducerLoad(tensor, load.indices)

        mapping = _ReadMapping(read, {})
        return ComputeOp(op.name, op.tag, op.attrs, op.axis, [mapping.visit(e) for e in op.body])
    assert isinstance(op, ScanOp | ExternOp)
    return op.with_inputs(tensors)
