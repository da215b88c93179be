"""Arithmetic on low-precision floats happens in float32."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from relayc.te.dtype import FLOAT32, DType
from relayc.te.ir.visitor import Mutator
from relayc.te.tir import ops
from relayc.te.tir.expr import Binary, Call, Cast, Compare, PrimExpr
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.intrinsics import INTRINSICS
from relayc.te.tir.passes.base import FunctionPass

__all__ = ["LOW_PRECISION", "LegalizeCompute", "legalize_compute"]

LOW_PRECISION = ("bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
                 "float8_e8m0fnu", "float4_e2m1fn")  # fmt: skip
_MOVES = frozenset({"if_then_else", "likely", "reinterpret", "address_of"})


class _Legalizer(Mutator):
    def __init__(self, types: Collection[str]) -> None:
        self.types = frozenset(types)

    def _is_low(self, kind: DType) -> bool:
        return kind.is_float and str(kind.element) in self.types

    def _widened(self, expr: PrimExpr) -> PrimExpr:
        return ops.cast(FLOAT32.with_lanes(expr.dtype.lanes), expr) if self._is_low(expr.dtype) else expr

    def visit_Binary(self, node: Binary) -> PrimExpr:
        new = node.rebuild(self.visit)
        if not self._is_low(node.dtype):
            return new
        return Cast(node.dtype, node.__class__(self._widened(new.a), self._widened(new.b)), span=node.span)

    def visit_Compare(self, node: Compare) -> PrimExpr:
        new = node.rebuild(self.visit)
        return node.__class__(self._widened(new.a), self._widened(new.b)) if self._is_low(new.a.dtype) else new

    def visit_Cast(self, node: Cast) -> PrimExpr:
        """Conversions between a low-precision type and anything but float32 go through float32."""
        new = node.rebuild(self.visit)
        source, target = new.value.dtype, new.dtype
        if self._is_low(source) and target.element is not FLOAT32:
            return ops.cast(target, self._widened(new.value)) if not self._is_low(target) else Cast(
                target, self._widened(new.value), span=node.span)  # fmt: skip
        if self._is_low(target) and source.element is not FLOAT32 and not source.is_float:
            return Cast(target, ops.cast(FLOAT32.with_lanes(source.lanes), new.value), span=node.span)
        return new

    def visit_Call(self, node: Call) -> PrimExpr:
        new = node.rebuild(self.visit)
        computes = node.op not in _MOVES and INTRINSICS[node.op].reference is not None
        low = self._is_low(node.dtype) or any(self._is_low(a.dtype) for a in new.args)
        if not computes or not low:
            return new
        args = tuple([self._widened(a) for a in new.args])
        if not self._is_low(node.dtype):
            return Call(node.dtype, node.op, args, span=node.span)
        return Cast(node.dtype, Call(FLOAT32.with_lanes(node.dtype.lanes), node.op, args), span=node.span)


def legalize_compute(func: PrimFunc, types: Collection[str] = LOW_PRECISION) -> PrimFunc:
    """The function computing in float32 wherever it computed in one of `types`: see `LegalizeCompute`."""
    return func.with_body(_Legalizer(types).visit(func.body))


@dataclass(frozen=True)
class LegalizeCompute(FunctionPass):
    """Operators, comparisons and functions on `types` convert to float32, compute, and round back after each step.

    Values keep their type in memory, and results are unchanged: float32 is precise enough that rounding its results
    once more rounds correctly. A target that has instructions for a type leaves it out of `types`. (TVM:
    `BF16ComputeLegalize`.)
    """

    types: tuple[str, ...] = LOW_PRECISION

    def function(self, func: PrimFunc) -> PrimFunc:
        return legalize_compute(func, self.types)


