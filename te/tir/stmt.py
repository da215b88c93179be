"""Statements of the loop IR.

    stmt = For(loop_var, min, extent, kind, body) | While(condition, body)
         | IfThenElse(condition, then_case, else_case) | SeqStmt(stmts) | LetStmt(var, value, body)
         | Allocate(buffer, body)                    memory that lives while body runs
         | BufferStore(buffer, value, indices, predicate) | Evaluate(value)
         | AttrStmt(key, subject, value, body)       a fact about body: thread extents, regions, scopes
         | AssertStmt(condition, message, args, body)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any, ClassVar

from relayc.te.ir.node import Node, node
from relayc.te.ir.span import Span
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import IntImm, PrimExpr, Var
from relayc.te.tir.operators import OPERATIONS

__all__ = [
    "Allocate", "AssertStmt", "AttrStmt", "BufferStore", "Evaluate", "For", "ForKind", "IfThenElse", "LetStmt",
    "SeqStmt", "Stmt", "While",
]  # fmt: skip


class ForKind(Enum):
    """How the iterations of a loop run."""

    SERIAL = "for"
    PARALLEL = "parallel"
    VECTORIZED = "vectorized"
    UNROLLED = "unrolled"


@node
class Stmt(Node):
    """Base of statements."""

    span: Span | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        return OPERATIONS["text"](self)

    __repr__ = __str__


@node
class For(Stmt):
    """`body` for each `loop_var` in [min, min + extent). `annotations` carry pragmas of the schedule."""

    binders: ClassVar[tuple[str, ...]] = ("loop_var",)

    loop_var: Var
    min: PrimExpr
    extent: PrimExpr
    kind: ForKind
    body: Stmt
    annotations: Mapping[str, Any] = field(default_factory=dict)

    @property
    def most_threads(self) -> int:
        """The most threads that a parallel loop is split among; further ones would cost more than they save.

        About as many as the pragma "most_threads" says, such that each gets equally many iterations.
        """
        most: int = self.annotations.get("pragma_most_threads", 2**31 - 1)
        if not isinstance(self.extent, IntImm):
            return most
        extent = max(self.extent.value, 1)
        return -(-extent // max(round(extent / most), 1))

    @property
    def cycles(self) -> int:
        """Estimated cycles of an iteration of a parallel loop (pragma "cycles"), for work partition; 1 if unknown."""
        return self.annotations.get("pragma_cycles", 1)


@node
class While(Stmt):
    """`body` as long as `condition` holds."""

    condition: PrimExpr
    body: Stmt


@node
class IfThenElse(Stmt):
    """`then_case` where `condition` holds, else `else_case`."""

    condition: PrimExpr
    then_case: Stmt
    else_case: Stmt | None = None


@node
class SeqStmt(Stmt):
    """Statements in order. Make it with `te.tir.ops.seq`, which flattens and drops what does nothing."""

    stmts: tuple[Stmt, ...]


@node
class LetStmt(Stmt):
    """`body` with `var` standing for `value`."""

    binders: ClassVar[tuple[str, ...]] = ("var",)

    var: Var
    value: PrimExpr
    body: Stmt


@node
class Allocate(Stmt):
    """Memory for `buffer` while `body` runs; its contents are undefined at first."""

    binders: ClassVar[tuple[str, ...]] = ("buffer",)

    buffer: Buffer
    body: Stmt


@node
class BufferStore(Stmt):
    """`buffer[indices] = value`. `predicate` masks lanes of a vector store off."""

    buffer: Buffer
    value: PrimExpr
    indices: tuple[PrimExpr, ...]
    predicate: PrimExpr | None = None


@node
class Evaluate(Stmt):
    """A call for its effect."""

    value: PrimExpr


@node
class AttrStmt(Stmt):
    """A fact about `body`: `key` says which, `subject` (an IterVar, a Buffer, a Var or None) whom it is about.

    Keys: "thread_extent" and "virtual_thread" (subject: thread IterVar; value: extent); "double_buffer_scope" and
    "pipeline_scope" (subject: Buffer; value of the latter: stages), "fill_behind", "async_scope" and "explicit_sync",
    about software pipelines; "reduce_scope" (subject: combiner of a reduction across threads); "region": parallel
    loops in the body are one parallel region; "independent": they don't depend on each other. Pragmas of the schedule
    are `For.annotations`; only of an axis bound to a thread or of extent 1 do they become "pragma_<name>".
    """

    key: str
    subject: Any
    value: PrimExpr
    body: Stmt


@node
class AssertStmt(Stmt):
    """Fails the host function with `message`, its "{}" filled with the integer `args`, unless `condition`."""

    condition: PrimExpr
    message: str
    args: tuple[PrimExpr, ...]
    body: Stmt
