"""Expand mathematical intrinsics to arithmetic, for targets without a vector library. TVM: `LowerIntrin`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from relayc.backend.vector_math import EXPANSIONS, Instructions, expand
from relayc.te.dtype import DType
from relayc.te.ir import IRModule, Mutator, Pass, PassContext
from relayc.te.tir import Call, Cast, Div, Mul, PrimExpr, PrimFunc
from relayc.te.tir.analysis import contents_of

__all__ = ["LowerIntrin", "lower_intrinsics"]

_NONE = Instructions()


class _Expander(Mutator):
    def __init__(self, keep: Collection[str], has: Instructions) -> None:
        self.expanded, self.has = EXPANSIONS.keys() - set(keep), has

    def visit_Cast(self, cast: Cast) -> Any:
        if not _rounds(cast):
            return self.visit_default(cast)
        value = self._factor(cast.value, cast.dtype)
        return cast if value is cast.value else Cast(cast.dtype, value)

    def _factor(self, expr: PrimExpr, rounded: DType) -> PrimExpr:
        """Expand an expression whose relative error may be that of a value rounded to 16-bit floats."""
        if isinstance(expr, Mul | Div):
            a, b = self._factor(expr.a, rounded), self._factor(expr.b, rounded)
            return expr if a is expr.a and b is expr.b else type(expr)(a, b)
        if isinstance(expr, Call) and expr.op in self.expanded:
            return expand(self.visit_default(expr), self.has, rounded)
        return self.visit(expr)

    def visit_Call(self, call: Call) -> Any:
        call = self.visit_default(call)
        return expand(call, self.has) if call.op in self.expanded else call


def _rounds(cast: Cast) -> bool:
    """Is this a cast to a 16-bit float?"""
    return _is_half(cast.dtype) and cast.value.dtype.element == "float32"


def _is_half(of: DType) -> bool:
    return of.bits == 16 and of.is_float


def lower_intrinsics(function: PrimFunc, keep: Collection[str] = (), has: Instructions = _NONE) -> PrimFunc:
    """`function` with calls of mathematical functions expanded to arithmetic, except those in `keep`.

    `has` describes the target's instructions.
    """
    expander = _Expander(keep, has)
    contents = contents_of(function.body)
    rounds = Cast in contents.classes and any(_is_half(of) for of in contents.dtypes)
    expands = rounds or not expander.expanded.isdisjoint(contents.calls)
    return function.with_body(expander.visit(function.body)) if expands else function


@dataclass(frozen=True)
class LowerIntrin(Pass):
    """Expands calls of mathematical functions to arithmetic (see `backend.vector_math`), except those in `keep`."""

    keep: tuple[str, ...] = ()
    has: Instructions = _NONE

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        def lowered(function: object) -> object:
            is_loops = isinstance(function, PrimFunc)
            return lower_intrinsics(function, self.keep, self.has) if is_loops else function

        return module.map_functions(lowered)
