"""Statements: control flow."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from relayc.backend.llvm.codegen.emitter import Emitter
from relayc.backend.llvm.codegen.index import bind, index_of, index_operand, is_index
from relayc.backend.llvm.codegen.loops import emit_serial
from relayc.backend.llvm.codegen.memory import byte_offset
from relayc.backend.llvm.codegen.regions import emit_region, independent_loops, is_region, regions_of
from relayc.backend.llvm.codegen.workspace import leave_after
from relayc.te.errors import CompileError
from relayc.te.tir import (
    AssertStmt,
    AttrStmt,
    Call,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IntImm,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
)

__all__ = [
    "emit_assert", "emit_attribute", "emit_evaluate", "emit_for", "emit_if", "emit_let_stmt", "emit_sequence",
    "emit_while",
]  # fmt: skip


def emit_sequence(e: Emitter, stmt: SeqStmt) -> None:
    """Statements in order; adjacent ones whose parallel loops may run in one parallel region do."""
    for joined, run in groupby(stmt.stmts, partial(_may_join_region, e)):
        if joined:
            emit_region(e, [independent_loops(each) or (each,) for each in run])  # type: ignore[misc]
        else:
            for each in run:
                e.emit(each)


def emit_evaluate(e: Emitter, stmt: Evaluate) -> None:
    """An expression for its effect; the function returns early where a kernel that is called ran out of memory."""
    if isinstance(stmt.value, IntImm):
        return
    e.value(stmt.value)
    if isinstance(stmt.value, Call) and stmt.value.op in ("call_kernel", "call_step"):
        leave_after(e, stmt.value)


def emit_let_stmt(e: Emitter, stmt: LetStmt) -> None:
    """A variable bound to a value for a statement."""
    bind(e, stmt.var, stmt.value)
    e.emit(stmt.body)


def emit_attribute(e: Emitter, stmt: AttrStmt) -> None:
    """A statement with an attribute. Raises CompileError for threads of a GPU."""
    if stmt.key in ("thread_extent", "virtual_thread"):
        raise CompileError(
            f"axis {stmt.subject} is bound to a thread of a GPU, unsupported by the llvm target; "
            "use parallel(axis), or build for cuda"
        )
    if e.parallel and (loops := independent_loops(stmt)):
        emit_region(e, [loops])
        return
    e.emit(stmt.body)


def emit_if(e: Emitter, stmt: IfThenElse) -> None:
    """A branch; none where the condition is constant."""
    condition = e.value(stmt.condition)
    if condition in ("true", "false"):
        chosen = stmt.then_case if condition == "true" else stmt.else_case
        if chosen is not None:
            e.emit(chosen)
        return
    text = e.text
    then, done = text.label("then"), text.label("endif")
    otherwise = done if stmt.else_case is None else text.label("else")
    text.branch(condition, then, otherwise)
    _block(e, then, stmt.then_case, done)
    if stmt.else_case is not None:
        _block(e, otherwise, stmt.else_case, done)
    text.place(done)


def _block(e: Emitter, label: str, body: Stmt, following: str) -> None:
    e.text.place(label)
    with e.text.region():
        e.emit(body)
    e.text.goto(following)


def emit_while(e: Emitter, stmt: While) -> None:
    """A loop that tests its condition before each iteration."""
    text = e.text
    test, body, done = text.label("test"), text.label("while"), text.label("endwhile")
    text.goto(test)
    text.place(test)
    with text.region():
        text.branch(e.value(stmt.condition), body, done)
        text.place(body)
        e.emit(stmt.body)
    text.goto(test)
    text.place(done)


def emit_assert(e: Emitter, stmt: AssertStmt) -> None:
    """Return the number of a message unless the condition holds. Raises CompileError where functions can't fail."""
    if e.messages is None:
        raise CompileError(f"a kernel can't fail, so it can't assert: {stmt.message}")
    e.messages.append(stmt.message)
    code, text = len(e.messages), e.text
    condition = e.value(stmt.condition)
    fail, passed = text.label("fail"), text.label("passed")
    text.branch(condition, passed, fail)
    text.place(fail)
    with text.region():
        for i, arg in enumerate(stmt.args):
            address = byte_offset(e, "%error", 8 * i)
            text.effect(f"store i64 {index_operand(e, index_of(e, arg))}, ptr {address}, align 8")
    text.effect(f"ret i32 {code}")
    text.place(passed)
    e.emit(stmt.body)


def _may_join_region(e: Emitter, stmt: Stmt) -> bool:
    """May this step join a region, because its bounds are known before the preceding steps have run?"""
    if not e.parallel or not is_region(stmt):
        return e.parallel and bool(independent_loops(stmt))
    return is_index(e, stmt.extent) and is_index(e, stmt.min)


def emit_for(e: Emitter, loop: For) -> None:
    """Emit a loop: as a parallel region, or serially."""
    extent = index_of(e, loop.extent)
    if e.parallel and is_region(loop):
        emit_region(e, [(loop,)])
        return
    if loop.kind is ForKind.VECTORIZED:
        raise CompileError(f"loop {loop.loop_var.name} is still vectorized; run the vectorize pass first")
    if e.parallel and loop.kind is ForKind.SERIAL and (regions := regions_of(loop)):
        emit_region(e, [(each,) for each in regions], loop)
        return
    emit_serial(e, loop, extent)
