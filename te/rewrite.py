"""Rewriting of tensor expressions: reads of tensors, inputs of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relayc.te.ir.node import Node
from relayc.te.operation import ComputeOp, ExternOp, Operation, ScanOp
from relayc.te.tensor import Tensor
from relayc.te.tir.expr import PrimExpr, ProducerLoad, Var
from relayc.te.tir.substitute import Substitution

__all__ = ["map_reads", "replace_inputs"]


class _ReadMapping(Substitution):
    def __init__(
        self, f: Callable[[ProducerLoad], PrimExpr], values: Mapping[Var, Any], expr_of: Callable[[Any], PrimExpr]
    ) -> None:
        super().__init__(values, {}, fresh=False)
        self.f, self.expr_of = f, expr_of

    def visit_Var(self, node: Var) -> PrimExpr:
        value = self.variables.get(node)
        return super().visit_Var(node) if value is None or node in self._defined else self.expr_of(value)

    def visit_ProducerLoad(self, load: ProducerLoad) -> PrimExpr:
        return self.f(load.rebuild(self.visit))

    def _replaces(self, node: Node) -> bool:
        return isinstance(node, ProducerLoad) or super()._replaces(node)


def _itself(value: Any) -> Any:
    return value


def map_reads(
    expr: Any, f: Callable[[ProducerLoad], PrimExpr], values: Mapping[Var, Any] | None = None,
    expr_of: Callable[[Any], PrimExpr] = _itself,
) -> Any:  # fmt: skip
    """`expr` with every tensor read replaced by `f(read)`, and variables by ``expr_of(values[variable])`` on the way
    (indices first). Only values of variables that occur become expressions."""
    return _ReadMapping(f, values or {}, expr_of).apply(expr)


def replace_inputs(op: Operation, tensors: Mapping[Tensor, Tensor]) -> Operation:
    """The operation reading other tensors in place of some; itself when it reads none of them."""
    if not any(t in tensors for t in op.input_tensors):
        return op
    if isinstance(op, ComputeOp):

        def read(load: ProducerLoad) -> PrimExpr:
            tensor = tensors.get(load.producer)
            return load if tensor is None else ProducerLoad(tensor, load.indices)

        mapping = _ReadMapping(read, {}, _itself)
        return ComputeOp(op.name, op.tag, op.attrs, op.axis, [mapping.apply(e) for e in op.body])
    assert isinstance(op, ScanOp | ExternOp)
    return op.with_inputs(tensors)
