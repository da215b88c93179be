"""Rewriting of tensor expressions: reads of tensors, inputs of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relayc.te.operation import ComputeOp, ExternOp, Operation, ScanOp
from relayc.te.tensor import Tensor
from relayc.te.tir.expr import PrimExpr, ProducerLoad, Var
from relayc.te.tir.substitute import Substitution

__all__ = ["map_reads", "replace_inputs"]


class _ReadMapping(Substitution):
    def __init__(self, f: Callable[[ProducerLoad], PrimExpr], values: Mapping[Var, PrimExpr]) -> None:
        super().__init__(values, {}, fresh=False)
        self.f = f

    def visit_ProducerLoad(self, load: ProducerLoad) -> PrimExpr:
        return self.f(load.rebuild(self.visit))


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
