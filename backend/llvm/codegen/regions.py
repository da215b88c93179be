"""Parallel regions: their bodies become functions that the pool's threads call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

from backend.llvm.assembly import FunctionText
from backend.llvm.codegen.index import Index, is_nonnegative
from backend.llvm.codegen.shares import shares
from backend.llvm.types import register_type
from te.dtype import INT64
from te.tir import AttrStmt, Call, Evaluate, For, ForKind, IntImm, SeqStmt, Stmt, Var
from te.tir.analysis import free_variables

if TYPE_CHECKING:
    from backend.llvm.codegen.stmt import StmtEmitter

__all__ = ["Step", "called_step", "independent_loops", "is_region", "most_tasks", "outline", "regions_of"]

Step = tuple[For, ...]
"""A parallel loop; or several that don't need each other, of constant extents, between which nobody waits."""

_Captured = list[tuple[str, str]]
"""Values that a body uses, of the function around it: types and names."""


def is_region(stmt: Stmt) -> TypeGuard[For]:
    """Is this a parallel loop of more than one iteration, as far as is known?"""
    if not isinstance(stmt, For) or stmt.kind is not ForKind.PARALLEL:
        return False
    return not isinstance(stmt.extent, IntImm) or stmt.extent.value > 1


def regions_of(loop: For) -> list[For]:
    """The parallel loops that are all of a loop's body; none where there is more, or they aren't always the same."""
    body = loop.body.stmts if isinstance(loop.body, SeqStmt) else (loop.body,)
    found = [s for s in body if is_region(s) and isinstance(s.min, IntImm) and isinstance(s.extent, IntImm)]
    return found if len(found) == len(body) else []


def independent_loops(stmt: Stmt) -> Step:
    """The parallel loops that a statement says don't need each other; () for one that says nothing of the kind."""
    if not isinstance(stmt, AttrStmt) or stmt.key != "independent" or not isinstance(stmt.body, SeqStmt):
        return ()
    loops = [s for s in stmt.body.stmts if isinstance(s, For) and s.kind is ForKind.PARALLEL and _is_known(s)]
    return tuple(loops) if len(loops) == len(stmt.body.stmts) else ()


def _is_known(loop: For) -> bool:
    return isinstance(loop.min, IntImm) and isinstance(loop.extent, IntImm)


def called_step(loop: For) -> Call | None:
    """The call of a kernel's step that is all that a loop does: a range of its iterations is one call."""
    call = loop.body.value if isinstance(loop.body, Evaluate) else None
    is_all = isinstance(call, Call) and call.op == "call_step" and call.args[-1] is loop.loop_var
    return call if is_all else None  # type: ignore[return-value]


def most_tasks(outer: StmtEmitter, step: Step) -> str:
    """Into how many tasks a step is cut at most, as a value."""
    loop = step[0]
    if len(step) > 1:
        return str(sum([min(_constant(loop), loop.most_threads) for loop in step]))
    return outer.intrinsic("smin", INT64, outer.operand(outer.index(loop.extent)), str(loop.most_threads))


def _constant(loop: For) -> int:
    assert isinstance(loop.extent, IntImm)
    return loop.extent.value


def outline(outer: StmtEmitter, steps: Sequence[Step], around: For | None = None) -> tuple[str, str]:
    """Make functions of parallel loops in a row; returns the task's name and the closure's address.

    Step s is number s % n of them, in iteration s / n of the loop `around` them if there is one. The task, in the
    pool's calling convention, takes the values that the step uses out of the closure and computes its share of the
    iterations; the body takes them as parameters, so that what LLVM knows of the buffers (`noalias`) is not lost on the
    way through memory.
    """
    bodies = [[_outline_body(outer, loop, around) for loop in step] for step in steps]
    name, count = bodies[0][0][0], len(steps)
    parameters = "ptr %ctx, ptr %closure, i32 %task, i32 %tasks, i64 %step, i32 %threads"
    signature = f"internal void @{name}({parameters}) #0"
    text = FunctionText(outer.text.module, name, signature)
    captured: _Captured = []
    turn: _Captured = []
    if around is not None:
        captured.append(("i64", outer.operand(outer.index(around.min))))
        first = _load_captured(text, captured, 0)[0][1]
        turn.append(("i64", text.value(f"add i64 {text.value(f'udiv i64 %step, {count}')}, {first}")))
    labels = [text.label("region") for _ in steps]
    choices = " ".join(f"i64 {i}, label %{label}" for i, label in enumerate(labels[1:], 1))
    text.effect(f"switch i64 {text.value(f'urem i64 %step, {count}')}, label %{labels[0]} [ {choices} ]")
    for label, step, outlined in zip(labels, steps, bodies, strict=True):
        text.place(label)
        with text.region():
            ranges = [] if len(step) == 1 else _shares_of(outer, text, step)
            for i, (loop, (_, body, used)) in enumerate(zip(step, outlined, strict=True)):
                own = [*used, *[("i64", outer.operand(outer.index(bound))) for bound in (loop.extent, loop.min)]]
                *values, extent, low = _load_captured(text, own, len(captured))
                first, last = ranges[i] if ranges else _share(text, extent[1])
                bounds = [("i64", text.value(f"add i64 {bound}, {low[1]}")) for bound in (first, last)]
                args = ["ptr %ctx", *[f"{kind} {value}" for kind, value in [*values, *turn, *bounds]]]
                text.effect(f"call void @{body}({', '.join(args)})")
                captured += own
        text.effect("ret void")
    text.finish()
    return name, _store_closure(outer, captured)


def _outline_body(outer: StmtEmitter, loop: For, around: For | None) -> tuple[str, str, _Captured]:
    """A name for the task of a parallel loop, the function of its iterations [first, last), and what that captures.

    Where there is a loop `around`, which isn't in the function, its variable comes behind what is captured.
    """
    module = outer.text.module
    number = module.fresh_number()
    body_name, task_name = f"{outer.text.name}.body{number}", f"{outer.text.name}.task{number}"
    parameters = ["ptr %ctx"]
    inner = outer.child(FunctionText(module, body_name, ""))
    captured: _Captured = []
    for var in free_variables(loop.body):
        if var is loop.loop_var or (around is not None and var is around.loop_var):
            continue
        wide = outer.wide.get(var)
        if wide is not None and wide.value is None:
            inner.wide[var] = wide
            continue
        kind = "i64" if wide is not None else register_type(var.dtype)
        captured.append((kind, outer.visit(var) if wide is None else outer.operand(wide)))
        name = f"%c{len(captured)}"
        if wide is not None:
            inner.wide[var] = Index(name, 0)
        else:
            inner.env[var] = name
        parameters.append(f"{kind} {'noalias ' if var in outer.unaliased else ''}{name}")
    if around is not None:
        parameters.append("i64 %turn")
        inner.wide[around.loop_var] = Index("%turn", 0)
        if is_nonnegative(around.min, outer.nonnegative):
            inner.nonnegative.add(around.loop_var)
    inner.text.set_signature(f"internal void @{body_name}({', '.join(parameters)}, i64 %first, i64 %last) #1")
    inner.unaliased = outer.unaliased
    inner.loop(loop, Index("%first", 0), Index("%last", 0))
    inner.end_streaming()
    inner.text.effect("ret void")
    inner.text.finish()
    return task_name, body_name, captured


def _store_closure(outer: StmtEmitter, captured: _Captured) -> str:
    closure = outer.text.alloca(f"[{len(captured)} x i64]", 8)
    for i, (kind, value) in enumerate(captured):
        outer.text.effect(f"store {kind} {value}, ptr {outer.byte_offset(closure, 8 * i)}, align 8")
    return closure


def _load_captured(text: FunctionText, captured: _Captured, start: int) -> _Captured:
    """Values of the closure, the first of which is its value `start`."""
    loaded: _Captured = []
    for i, (kind, _) in enumerate(captured, start):
        address = text.value(f"getelementptr i8, ptr %closure, i64 {8 * i}")
        loaded.append((kind, text.value(f"load {kind}, ptr {address}, align 8")))
    return loaded


def _share(text: FunctionText, extent: str) -> tuple[str, str]:
    """Task `t` of `n` runs the iterations [t * extent / n, (t + 1) * extent / n)."""
    task, tasks = text.value("zext i32 %task to i64"), text.value("zext i32 %tasks to i64")
    first, last = [
        text.value(f"udiv i64 {text.value(f'mul i64 {number}, {extent}')}, {tasks}")
        for number in (task, text.value(f"add i64 {task}, 1"))
    ]
    return first, last


def _shares_of(outer: StmtEmitter, text: FunctionText, step: Step) -> list[tuple[str, str]]:
    """The iterations of each of several loops that a task runs."""
    emitter = outer.child(text)
    names = {name: Var(name, INT64) for name in ("task", "tasks", "threads")}
    for name, var in names.items():
        emitter.wide[var] = Index(text.value(f"zext i32 %{name} to i64"), 0)
        emitter.nonnegative.add(var)
    ranges = shares([(_constant(loop), loop.cycles) for loop in step], **names)
    return [(emitter.operand(emitter.index(a)), emitter.operand(emitter.index(b))) for a, b in ranges]
