"""Expand mathematical intrinsics to arithmetic, for targets without a vector library. TVM: `LowerIntrin`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from backend.vector_math import EXPANSIONS, expand
from te.ir import IRModule, Mutator, Pass, PassContext
from te.tir import Call, PrimFunc

__all__ = ["LowerIntrin", "lower_intrinsics"]


class _Expander(Mutator):
    def __init__(self, keep: Collection[str]) -> None:
        self.expanded = EXPANSIONS.keys() - set(keep)

    def visit_Call(self, call: Call) -> Any:
        call = self.visit_default(call)
        return expand(call) if call.op in self.expanded else call


def lower_intrinsics(function: PrimFunc, keep: Collection[str] = ()) -> PrimFunc:
    """`function` with calls of mathematical functions expanded, those in `keep` left alone."""
    return function.with_body(_Expander(keep).visit(function.body))


@dataclass(frozen=True)
class LowerIntrin(Pass):
    """Calls of mathematical functions become arithmetic (see `backend.vector_math`), those in `keep` stay."""

    keep: tuple[str, ...] = ()

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return module.map_functions(lambda f: lower_intrinsics(f, self.keep) if isinstance(f, PrimFunc) else f)
