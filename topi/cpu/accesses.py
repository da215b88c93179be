"""What a group of injective operations that are inlined into their result reads, and what it decides by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from te.ir import post_order
from te.tir import Call, PrimExpr, ProducerLoad, Select, Var, as_int
from te.tir.substitute import substitute
from topi.groups import is_injective

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["conditions", "only_variable", "reads"]

_NONE: Mapping[Var, PrimExpr] = {}


def reads(op: te.ComputeOp, at: Mapping[Var, PrimExpr] = _NONE) -> Iterator[tuple[te.Tensor, list[PrimExpr]]]:
    """The tensors that are not inlined and the indices they are read at, in terms of the axes of `op` (or of `at`)."""
    for load in [e for e in post_order(op.body) if isinstance(e, ProducerLoad)]:
        index, producer = [_placed(i, at) for i in load.indices], load.producer.op
        if isinstance(producer, te.ComputeOp) and is_injective(producer):
            yield from reads(producer, {axis.var: i for axis, i in zip(producer.axis, index, strict=True)})
        else:
            yield load.producer, index


def conditions(
    op: te.ComputeOp, at: Mapping[Var, PrimExpr] = _NONE
) -> Iterator[tuple[te.ComputeOp, PrimExpr]]:
    """The conditions that decide what is read, and whose they are: those of borders, say, and of joined tensors."""
    for e in post_order(op.body):
        if isinstance(e, Select):
            yield op, _placed(e.condition, at)
        elif isinstance(e, Call) and e.op == "if_then_else":
            yield op, _placed(e.args[0], at)
        elif isinstance(e, ProducerLoad) and isinstance(e.producer.op, te.ComputeOp) and is_injective(e.producer.op):
            axes, index = e.producer.op.axis, [_placed(i, at) for i in e.indices]
            yield from conditions(e.producer.op, {axis.var: i for axis, i in zip(axes, index, strict=True)})


def _placed(index: PrimExpr, at: Mapping[Var, PrimExpr]) -> PrimExpr:
    return substitute(index, at) if at else index


def only_variable(index: PrimExpr) -> Var | None:
    """The variable that `index` is, give or take a constant."""
    variables = [e for e in post_order((index,)) if isinstance(e, Var)]
    terms = [e for e in post_order((index,)) if not isinstance(e, Var) and as_int(e) is None]
    plain = all(type(e).__name__ in ("Add", "Sub") for e in terms)
    return variables[0] if len(variables) == 1 and plain else None
