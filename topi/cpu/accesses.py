"""The reads and conditions of a group of injective operations that are inlined into their result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.tir import Call, PrimExpr, ProducerLoad, Select, Var, as_int
from relayc.te.tir.numbering import ValueNumbers
from relayc.te.tir.substitute import substitute
from relayc.topi.groups import is_injective

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["conditions", "only_variable", "reads"]

_NONE: Mapping[Var, PrimExpr] = {}


def reads(op: te.ComputeOp, at: Mapping[Var, PrimExpr] = _NONE) -> Iterator[tuple[te.Tensor, list[PrimExpr]]]:
    """The tensors that are not inlined and the indices they are read at, in terms of the axes of `op` (or of `at`)."""
    for _, e, places in _formulas(op, at, set(), ValueNumbers()):
        if isinstance(e, ProducerLoad):
            yield e.producer, [_placed(i, places) for i in e.indices]


def conditions(op: te.ComputeOp) -> Iterator[tuple[te.ComputeOp, PrimExpr]]:
    """The conditions that decide what is read, such as those of padding and concatenation, with their operations."""
    for inlined, e, places in _formulas(op, _NONE, set(), ValueNumbers()):
        if isinstance(e, Select):
            yield inlined, _placed(e.condition, places)
        elif isinstance(e, Call) and e.op == "if_then_else":
            yield inlined, _placed(e.args[0], places)


def _formulas(
    op: te.ComputeOp, at: Mapping[Var, PrimExpr], seen: set[tuple[te.Tensor, tuple[int, ...]]], numbers: ValueNumbers
) -> Iterator[tuple[te.ComputeOp, PrimExpr, Mapping[Var, PrimExpr]]]:
    """The expressions of `op` and of what is inlined into it, with their operations and the values of the axes there.

    Once for each element that is read of an operation, however often it is used: see `te.staging`.
    """
    for e in [e for e in post_order(op.body) if isinstance(e, PrimExpr)]:
        if not isinstance(e, ProducerLoad) or not is_injective(e.producer.op):
            yield op, e, at
            continue
        inlined, index = e.producer.op, [_placed(i, at) for i in e.indices]
        element = e.producer, tuple([numbers(i) for i in index])
        if element not in seen:
            seen.add(element)
            places = {axis.var: i for axis, i in zip(inlined.axis, index, strict=True)}
            yield from _formulas(inlined, places, seen, numbers)


def _placed(index: PrimExpr, at: Mapping[Var, PrimExpr]) -> PrimExpr:
    return substitute(index, at) if at else index


def only_variable(index: PrimExpr) -> Var | None:
    """The only variable of `index`, which may have a constant added; None for other expressions."""
    variables = [e for e in post_order((index,)) if isinstance(e, Var)]
    terms = [e for e in post_order((index,)) if not isinstance(e, Var) and as_int(e) is None]
    plain = all(type(e).__name__ in ("Add", "Sub") for e in terms)
    return variables[0] if len(variables) == 1 and plain else None
