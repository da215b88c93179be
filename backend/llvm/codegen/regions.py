"""Parallel regions: their bodies become functions that the pool's threads call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeGuard

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.index import Index, is_nonnegative
from relayc.backend.llvm.codegen.work_partition import shares
from relayc.backend.llvm.types import register_type
from relayc.te.dtype import INT64
from relayc.te.tir import AttrStmt, Call, Evaluate, For, ForKind, IntImm, SeqStmt, Stmt, Var
from relayc.te.tir.analysis import free_variables

if TYPE_CHECKING:
    from relayc.backend.llvm.codegen.stmt import StmtEmitter

__all__ = ["Step", "called_step", "independent_loops", "is_region", "most_tasks", "outline", "regions_of"]

Step = tuple[For, ...]
"""A parallel loop; or several that don't need each other, of constant extents, between which nobody waits."""

_Captured = list[tuple[str, str]]
"""Values that a body uses, of the function around it: types and names."""
_Run = Callable[[FunctionText, _Captured, str, str], None]
"""Emits the call, in a task, that runs iterations [first, last) with what was captured."""


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
    name, count = f"{outer.text.name}.task{outer.text.module.fresh_number()}", len(steps)
    bodies = [[_outlined(outer, loop, around) for loop in step] for step in steps]
    parameters = "ptr %ctx, ptr %closure, i32 %task, i32 %tasks, i64 %step, i32 %threads"
    signature = f"internal void @{name}({parameters}) #0"
    text = FunctionText(outer.text.module, name, signature)
    bounds = [[_bounds(outer, loop) for loop in step] for step in steps]
    begin: _Captured = [] if around is None else [("i64", outer.operand(outer.index(around.min)))]
    wanted = [begin, *[used for outlined in bodies for _, used in outlined], *[b for step in bounds for b in step]]
    captured = list(dict.fromkeys([value for values in wanted for value in values if value[1].startswith("%")]))
    names = dict(zip(captured, _loaded(text, "%closure", [kind for kind, _ in captured]), strict=True))
    turn: _Captured = []
    if around is not None:
        first = names.get(begin[0], begin[0])[1]
        turn.append(("i64", text.value(f"add i64 {text.value(f'udiv i64 %step, {count}')}, {first}")))
    labels = [text.label("region") for _ in steps]
    choices = " ".join(f"i64 {i}, label %{label}" for i, label in enumerate(labels[1:], 1))
    text.effect(f"switch i64 {text.value(f'urem i64 %step, {count}')}, label %{labels[0]} [ {choices} ]")
    for label, step, outlined, limits in zip(labels, steps, bodies, bounds, strict=True):
        text.place(label)
        with text.region():
            ranges = [] if len(step) == 1 else _shares_of(text, outer, step)
            for i, ((run, used), own) in enumerate(zip(outlined, limits, strict=True)):
                extent, low = [names.get(bound, bound)[1] for bound in own]
                first, last = ranges[i] if ranges else _share(text, extent)
                if low != "0":
                    first, last = [text.value(f"add i64 {bound}, {low}") for bound in (first, last)]
                run(text, [*[names.get(value, value) for value in used], *turn], first, last)
        text.effect("ret void")
    text.finish()
    return name, _store_closure(outer, captured)


def _bounds(outer: StmtEmitter, loop: For) -> _Captured:
    """The extent of a loop and its first position, as values of the function around it."""
    return [("i64", outer.operand(outer.index(bound))) for bound in (loop.extent, loop.min)]


def _outlined(outer: StmtEmitter, loop: For, around: For | None) -> tuple[_Run, _Captured]:
    """What runs iterations [first, last) of a loop in a task, with the values that it captures."""
    call = called_step(loop)
    if call is None or around is not None:
        return _outline_body(outer, loop, around)
    used = [var for var in free_variables(call) if var is not loop.loop_var]
    captured = [(register_type(var.dtype), outer.visit(var)) for var in used]

    def run(text: FunctionText, values: _Captured, first: str, last: str) -> None:
        inner = outer.child(text)
        inner.env.update(zip(used, [name for _, name in values], strict=True))
        inner.call_range(call, Index(first, 0), Index(last, 0))

    return run, captured


def _outline_body(outer: StmtEmitter, loop: For, around: For | None) -> tuple[_Run, _Captured]:
    """As `_outlined`, by a function of the iterations.

    Where there is a loop `around`, which isn't in the function, its variable comes behind what is captured.
    """
    module = outer.text.module
    body_name = f"{outer.text.name}.body{module.fresh_number()}"
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
    inner.end_nontemporal()
    inner.text.effect("ret void")
    inner.text.finish()

    def run(text: FunctionText, values: _Captured, first: str, last: str) -> None:
        args = ["ptr %ctx", *[f"{kind} {value}" for kind, value in [*values, ("i64", first), ("i64", last)]]]
        text.effect(f"call void @{body_name}({', '.join(args)})")

    return run, captured


def _store_closure(outer: StmtEmitter, captured: _Captured) -> str:
    closure = outer.text.alloca(f"[{len(captured)} x i64]", 8)
    for i, (kind, value) in enumerate(captured):
        outer.text.effect(f"store {kind} {value}, ptr {outer.byte_offset(closure, 8 * i)}, align 8")
    return closure


def _loaded(text: FunctionText, words: str, kinds: Sequence[str]) -> _Captured:
    """Values of these types, each of which has a word of memory."""
    loaded: _Captured = []
    for i, kind in enumerate(kinds):
        address = text.value(f"getelementptr i8, ptr {words}, i64 {8 * i}")
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


def _shares_of(text: FunctionText, outer: StmtEmitter, step: Step) -> list[tuple[str, str]]:
    """The iterations of each of several loops that a task runs, as a function for so many loops computes them."""
    name, count = f"{outer.text.name}.shares{len(step)}", len(step)
    if not text.module.has(name):
        _add_shares(outer, name, count)
    numbers = [str(n) for loop in step for n in (_constant(loop), loop.cycles)]
    given = [text.value(f"zext i32 %{own} to i64") for own in ("task", "tasks", "threads")]
    table = text.alloca(f"[{2 * count} x i64]", 8)
    text.effect(f"call void @{name}(ptr {table}, {', '.join([f'i64 {n}' for n in (*given, *numbers)])})")
    bounds = [value for _, value in _loaded(text, table, ["i64"] * (2 * count))]
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def _add_shares(outer: StmtEmitter, name: str, count: int) -> None:
    """Add the function of `shares` of so many loops: it stores two bounds of each."""
    variables = [Var(f"n{i}", INT64) for i in range(3 + 2 * count)]
    parameters = ", ".join([f"i64 %{var.name}" for var in variables])
    text = FunctionText(outer.text.module, name, f"internal void @{name}(ptr %bounds, {parameters}) #1")
    emitter = outer.child(text)
    for var in variables:
        emitter.wide[var] = Index(f"%{var.name}", 0)
        emitter.nonnegative.add(var)
    task, tasks, threads, *loops = variables
    ranges = shares(list(zip(loops[::2], loops[1::2], strict=True)), task, tasks, threads)
    for i, bound in enumerate([bound for both in ranges for bound in both]):
        value = emitter.operand(emitter.index(bound))
        text.effect(f"store i64 {value}, ptr {emitter.byte_offset('%bounds', 8 * i)}, align 8")
    text.effect("ret void")
    text.finish()
