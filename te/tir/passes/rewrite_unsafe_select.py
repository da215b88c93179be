"""A Select that would read outside a buffer becomes the lazy if_then_else."""

from __future__ import annotations

from dataclasses import dataclass

from te.arith import Analyzer
from te.dtype import INT32, INT64
from te.ir.visitor import Mutator, post_order
from te.tir.expr import BufferLoad, Call, Div, FloorDiv, FloorMod, IntImm, IterVar, Mod, PrimExpr, Range, Select
from te.tir.function import PrimFunc
from te.tir.intrinsics import INTRINSICS
from te.tir.passes.base import FunctionPass
from te.tir.stmt import AttrStmt, For, Stmt

__all__ = ["RewriteUnsafeSelect", "rewrite_unsafe_select"]


class _Rewriter(Mutator):
    def __init__(self) -> None:
        self.analyzer = Analyzer()

    def visit_For(self, node: For) -> Stmt:
        self.analyzer.bind(node.loop_var, Range(node.min, node.extent))
        return node.rebuild(self.visit)

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        if node.key in ("thread_extent", "virtual_thread") and isinstance(node.subject, IterVar):
            self.analyzer.bind(node.subject.var, Range(0, node.value))
        return node.rebuild(self.visit)

    def visit_Select(self, node: Select) -> PrimExpr:
        new = node.rebuild(self.visit)
        if new.dtype.lanes > 1 or (self._is_safe(new.true_value) and self._is_safe(new.false_value)):
            return new
        return Call(new.dtype, "if_then_else", (new.condition, new.true_value, new.false_value), span=new.span)

    def _is_safe(self, expr: PrimExpr) -> bool:
        """May the expression be evaluated where its condition does not hold?"""
        return all(self._is_safe_node(n) for n in post_order(expr) if isinstance(n, PrimExpr))

    def _is_safe_node(self, node: PrimExpr) -> bool:
        if isinstance(node, BufferLoad):
            return all(self._inside(i, dim) for i, dim in zip(node.indices, node.buffer.shape, strict=True))
        if isinstance(node, Div | Mod | FloorDiv | FloorMod) and not node.dtype.is_float:
            return isinstance(node.b, IntImm) and node.b.value != 0
        return not isinstance(node, Call) or INTRINSICS[node.op].pure

    def _inside(self, index: PrimExpr, extent: PrimExpr | int) -> bool:
        if index.dtype is not INT32 and index.dtype is not INT64:
            return False
        prove = self.analyzer.can_prove_less_equal, self.analyzer.can_prove_less
        return prove[0](0, index) and prove[1](index, extent)


def rewrite_unsafe_select(func: PrimFunc) -> PrimFunc:
    """The function with every Select kept only where both sides can be evaluated without fault.

    A side is safe when its reads are proved to lie inside their buffers and it neither divides integers by a variable
    nor calls an impure function. (TVM: `RewriteUnsafeSelect`.)
    """
    return func.with_body(_Rewriter().visit(func.body))


@dataclass(frozen=True)
class RewriteUnsafeSelect(FunctionPass):
    """A Select that could fault on the side not chosen becomes the lazy if_then_else."""

    def function(self, func: PrimFunc) -> PrimFunc:
        return rewrite_unsafe_select(func)
