"""Unrolling of UNROLLED loops and of loops under an automatic unrolling pragma."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relayc.te.ir.visitor import Mutator
from relayc.te.tir import ops
from relayc.te.tir.expr import PrimExpr
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import AttrStmt, BufferStore, Evaluate, For, ForKind, Stmt
from relayc.te.tir.substitute import fresh_copy, substitute

__all__ = ["Unroll", "unroll"]

_STEPS = "pragma_auto_unroll_max_step"
_EXPLICIT = "pragma_unroll_explicit"


class _Unroller(Mutator):
    """Inner loops first. `steps` counts the statements that the visited code will run as straight-line code."""

    def __init__(self, options: Unroll) -> None:
        self.options = options
        self.max_steps = options.auto_max_step
        self.explicit = options.explicit
        self.steps = 0
        self.has_loop = False  # whether the visited code still contains a loop

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        self.steps += 1
        return node

    def visit_Evaluate(self, node: Evaluate) -> Stmt:
        self.steps += not ops.is_no_op(node)
        return node

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        if node.key not in (_STEPS, _EXPLICIT):
            return node.rebuild(self.visit)
        saved = self._enter({node.key: node.value})
        body = self.visit(node.body)
        self.max_steps, self.explicit = saved
        return body

    def _enter(self, pragmas: Mapping[str, Any]) -> tuple[int, bool]:
        saved = self.max_steps, self.explicit
        if _STEPS in pragmas:
            self.max_steps = int(pragmas[_STEPS])
        if _EXPLICIT in pragmas:
            self.explicit = bool(pragmas[_EXPLICIT])
        return saved

    def visit_For(self, node: For) -> Stmt:
        saved = self._enter(node.annotations)
        outer_steps, outer_loop = self.steps, self.has_loop
        self.steps, self.has_loop = 0, False
        body = self.visit(node.body)
        loop = node if body is node.body else For(
            node.loop_var, node.min, node.extent, node.kind, body, node.annotations, span=node.span)  # fmt: skip
        result = self._unrolled(loop)
        if result is None or isinstance(result, For):
            result, self.has_loop = loop if result is None else result, True
        else:
            self.steps *= max(ops.as_int(node.extent) or 0, 0)
        self.steps, self.has_loop = self.steps + outer_steps, self.has_loop or outer_loop
        self.max_steps, self.explicit = saved
        return result

    def _unrolled(self, loop: For) -> Stmt | None:
        """The loop unrolled or with a new kind (UNROLLED for the code generator, or SERIAL); None when it stays."""
        extent = ops.as_int(loop.extent)
        total = None if extent is None else extent * self.steps
        wanted = loop.kind is ForKind.UNROLLED
        automatic = loop.kind is ForKind.SERIAL and total is not None and self.max_steps >= total and not self.has_loop
        if extent is None or total is None:
            return loop.replace(kind=ForKind.SERIAL) if wanted else None
        if not (wanted or automatic):
            return None
        if self.explicit and total <= max(self.options.max_statements, self.max_steps):
            return _written_out(loop, extent)
        return loop.replace(kind=ForKind.UNROLLED) if automatic else None


def _written_out(loop: For, extent: int) -> Stmt:
    copies: list[Stmt] = []
    for i in range(extent):
        value = ops.add(loop.min, ops.make_const(loop.loop_var.dtype, i))
        values = {loop.loop_var: value}
        copies.append(substitute(loop.body, values) if i == 0 else fresh_copy(loop.body, values))
    return ops.seq(copies)


@dataclass(frozen=True)
class Unroll(FunctionPass):
    """Unrolls loops; an UNROLLED loop without constant extent becomes serial. (TVM: `UnrollLoop`.)

    UNROLLED loops of constant extent are unrolled while the result stays within `max_statements` statements; with
    `explicit=False` they stay UNROLLED loops for the code generator. Serial loops are unrolled too where the code is
    at most `auto_max_step` statements (pragma "pragma_auto_unroll_max_step"; "pragma_unroll_explicit" sets `explicit`
    for the code under it).
    """

    auto_max_step: int = 0
    explicit: bool = True
    max_statements: int = 256

    def function(self, func: PrimFunc) -> PrimFunc:
        return func.with_body(_Unroller(self).visit(func.body))


def unroll(func: PrimFunc, auto_max_step: int = 0, explicit: bool = True, max_statements: int = 256) -> PrimFunc:
    """The function with UNROLLED loops unrolled: see `Unroll`."""
    return Unroll(auto_max_step, explicit, max_statements).function(func)
