"""Value numbering: structurally equal expressions have the same number."""

from __future__ import annotations

from relayc.te.tir.expr import Call, PrimExpr, Var
from relayc.te.tir.intrinsics import INTRINSICS

__all__ = ["ValueNumbers"]

_VALUES = (str, int, tuple)


class ValueNumbers:
    """`numbers(expr)` is equal for expressions of the same operations on the same variables and elements of memory.

    A variable and a call with effects equal only themselves. A shared expression is visited once.
    """

    def __init__(self) -> None:
        self._numbers: dict[PrimExpr, int] = {}
        self._known: dict[object, int] = {}

    def __call__(self, expr: PrimExpr) -> int:
        found = self._numbers.get(expr)
        if found is None:
            found = self._numbers[expr] = self._known.setdefault(self._key(expr), len(self._known))
        return found

    def _key(self, expr: PrimExpr) -> object:
        if isinstance(expr, Var) or (isinstance(expr, Call) and not INTRINSICS[expr.op].pure):
            return expr
        data = [getattr(expr, name) for name in expr.data_fields]
        written = [d if isinstance(d, _VALUES) else repr(d) if isinstance(d, float) else id(d) for d in data]
        children = [self(child) for child in expr.node_children() if isinstance(child, PrimExpr)]
        return expr.__class__, expr.dtype, *written, *children
