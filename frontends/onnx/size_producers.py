"""Producers of data-dependent dimensions: control flow, sequences and strings, whose result sizes a run binds.

A program may use only the size of such a result. To keep its computation alive, the result becomes a further output
that binds nothing else (see `relay.lowering.dynamic.BoundSize`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from relayc.backend.runtime.layouts import RESULT_SIZE
from relayc.relay.expr import Call, Expr, Tuple, Var
from relayc.relay.op.base import OpDef
from relayc.relay.op.control import ControlFlow
from relayc.relay.op.host import ActionOperator, HostOperator
from relayc.relay.sizes import size_variables
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.ir import post_order
from relayc.te.tir import SizeVar

__all__ = ["SizeProducers"]


class SizeProducers:
    """The tensors with data-dependent sizes met so far, by the name of the size."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Expr, int]] = {}

    def note(self, results: Iterable[Expr | None]) -> None:
        """Record the results of a node."""
        for x in results:
            if x is not None and isinstance(x.ty, TensorType) and not x.ty.is_static:
                for axis, d in enumerate(x.shape):
                    if isinstance(d, SizeVar) and d.name.startswith(RESULT_SIZE):
                        self._found.setdefault(d.name, (x, axis))

    def lost(self, outputs: Sequence[Expr], own: Iterable[str]) -> list[tuple[str, Expr, int]]:
        """The sizes among `own` that `outputs` use but do not bind: (name, producing tensor, axis)."""
        if not self._found:
            return []
        known, kept = set(own), list[tuple[str, Expr, int]]()
        while True:
            used, passed = _sizes_of_results([*outputs, *[x for _, x, _ in kept]])
            passed.update(name for name, *_ in kept)
            lost = sorted(name for name in (used - passed) & known if name in self._found)
            if not lost:
                return kept
            kept += [(name, *self._found[name]) for name in lost]


def _sizes_of_results(roots: Sequence[Expr]) -> tuple[set[str], set[str]]:
    """The names of data-dependent sizes that expressions use, and those that they bind."""
    used, passed = set[str](), set[str]()
    for e in cast("list[Expr]", list(post_order(Tuple(tuple(roots))))):
        used |= _names(e.ty)
        if isinstance(e, Var):
            passed |= _names(e.ty)  # a parameter, whose shape is there
        if not isinstance(e, Call) or not isinstance(e.op, OpDef):
            continue
        used.update(size_variables(e.op.attributes().values()))
        if isinstance(e.op, ControlFlow | HostOperator | ActionOperator):
            passed |= _names(e.ty)
        if isinstance(e.op, ControlFlow):
            for body in e.op.bodies():
                inner, own = _sizes_of_results([*body.params, body.body])
                used |= inner - own
    return {name for name in used if name.startswith(RESULT_SIZE)}, passed


def _names(ty: Type) -> set[str]:
    if isinstance(ty, TupleType):
        return set[str]().union(*map(_names, ty.fields))
    return set(size_variables(ty.shape)) if isinstance(ty, TensorType) else set()
