"""Parallel regions: outlines their bodies to functions that the pool's threads call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from typing import TypeGuard

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.codegen.functions import CTX_PARALLEL, call_range, may_exhaust
from relayc.backend.llvm.codegen.index import index_of, index_operand, is_nonnegative, multiply_index
from relayc.backend.llvm.codegen.loops import called_step, emit_loop
from relayc.backend.llvm.codegen.memory import byte_offset
from relayc.backend.llvm.codegen.stores import end_nontemporal
from relayc.backend.llvm.codegen.vectors import call_overloaded
from relayc.backend.llvm.codegen.work_partition import partition
from relayc.backend.llvm.codegen.workspace import leave_if_exhausted
from relayc.backend.llvm.types import register_bits, register_type
from relayc.te.dtype import INT64
from relayc.te.tir import AttrStmt, For, ForKind, IntImm, SeqStmt, Stmt, Var
from relayc.te.tir.analysis import free_variables

__all__ = ["Step", "emit_region", "independent_loops", "is_region", "regions_of"]

Step = tuple[For, ...]
"""One parallel loop, or several independent ones of constant extents without a barrier in between."""

_Captured = list[tuple[str, str]]
"""Captured values of the enclosing function: types and names."""
_Run = Callable[[FunctionText, _Captured, str, str], None]
"""Emits the call that runs iterations [first, last), inside a task, with the captured values."""


def is_region(stmt: Stmt) -> TypeGuard[For]:
    """Is this a parallel loop that may have more than one iteration?"""
    if not isinstance(stmt, For) or stmt.kind is not ForKind.PARALLEL:
        return False
    return not isinstance(stmt.extent, IntImm) or stmt.extent.value > 1


def regions_of(loop: For) -> list[For]:
    """The parallel loops of constant extents that make up a loop's body; none if there is anything else."""
    body = loop.body.stmts if isinstance(loop.body, SeqStmt) else (loop.body,)
    found = [s for s in body if is_region(s) and isinstance(s.min, IntImm) and isinstance(s.extent, IntImm)]
    return found if len(found) == len(body) else []


def independent_loops(stmt: Stmt) -> Step:
    """The parallel loops that a statement declares independent; () for any other statement."""
    if not isinstance(stmt, AttrStmt) or stmt.key != "independent" or not isinstance(stmt.body, SeqStmt):
        return ()
    loops = [s for s in stmt.body.stmts if isinstance(s, For) and s.kind is ForKind.PARALLEL and _is_known(s)]
    return tuple(loops) if len(loops) == len(stmt.body.stmts) else ()


def _is_known(loop: For) -> bool:
    return isinstance(loop.min, IntImm) and isinstance(loop.extent, IntImm)


def emit_region(e: Emitter, steps: Sequence[Step], around: For | None = None) -> None:
    """Emit consecutive parallel loops, or those that make up the body of a loop `around` them, as one region with a
    barrier after each step."""
    text = e.text
    count = Index(None, len(steps), 0)
    if around is not None:
        count = multiply_index(e, index_of(e, around.extent), count)
    before, e.may_leave = e.may_leave, False
    task, closure = _outline(e, steps, around)
    tasks = [_most_tasks(e, step) for step in steps]
    most = text.value(f"trunc i64 {reduce(lambda a, b: call_overloaded(e.text, 'smax', INT64, a, b), tasks)} to i32")
    run = text.value(f"load ptr, ptr {byte_offset(e, '%ctx', CTX_PARALLEL)}, align 8")
    text.effect(f"call void {run}(ptr %ctx, ptr @{task}, ptr {closure}, i32 {most}, i64 {index_operand(e, count)})")
    if e.may_leave:
        leave_if_exhausted(e)
    e.may_leave |= before


def _most_tasks(outer: Emitter, step: Step) -> str:
    """The maximum number of tasks of a step, as a value."""
    loop = step[0]
    if len(step) > 1:
        return str(sum([min(_constant(loop), loop.most_threads) for loop in step]))
    extent = index_operand(outer, index_of(outer, loop.extent))
    return call_overloaded(outer.text, "smin", INT64, extent, str(loop.most_threads))


def _constant(loop: For) -> int:
    assert isinstance(loop.extent, IntImm)
    return loop.extent.value


def _outline(outer: Emitter, steps: Sequence[Step], around: For | None = None) -> tuple[str, str]:
    """Outline consecutive parallel loops; returns the task's name and the closure's address.

    Step s is loop s % n of the n loops, in iteration s / n of the loop `around` them if there is one. The task, in the
    pool's calling convention, loads the values that the step uses from the closure and computes its range of
    iterations; the body takes them as parameters, which preserves LLVM's knowledge of the buffers (`noalias`).
    """
    name, count = f"{outer.text.name}.task{outer.text.module.fresh_number()}", len(steps)
    bodies = [[_outlined(outer, loop, around) for loop in step] for step in steps]
    parameters = "ptr %ctx, ptr %closure, i32 %task, i32 %tasks, i64 %step, i32 %threads"
    signature = f"internal void @{name}({parameters}) #0"
    text = FunctionText(outer.text.module, name, signature)
    if outer.may_leave:
        leave_if_exhausted(outer.child(text))  # in another task or an earlier step
    bounds = [[_bounds(outer, loop) for loop in step] for step in steps]
    begin: _Captured = [] if around is None else [("i64", index_operand(outer, index_of(outer, around.min)))]
    wanted = [begin, *[used for outlined in bodies for _, used in outlined], *[b for step in bounds for b in step]]
    captured = list(dict.fromkeys([value for values in wanted for value in values if value[1].startswith("%")]))
    names = dict(zip(captured, _loaded(text, "%closure", [kind for kind, _ in captured]), strict=True))
    iteration: _Captured = []
    if around is not None:
        first = names.get(begin[0], begin[0])[1]
        iteration.append(("i64", text.value(f"add i64 {text.value(f'udiv i64 %step, {count}')}, {first}")))
    labels = [text.label("region") for _ in steps]
    choices = " ".join(f"i64 {i}, label %{label}" for i, label in enumerate(labels[1:], 1))
    text.effect(f"switch i64 {text.value(f'urem i64 %step, {count}')}, label %{labels[0]} [ {choices} ]")
    for label, step, outlined, limits in zip(labels, steps, bodies, bounds, strict=True):
        text.place(label)
        with text.region():
            ranges = [] if len(step) == 1 else _task_ranges(text, outer, step)
            for i, ((run, used), own) in enumerate(zip(outlined, limits, strict=True)):
                extent, low = [names.get(bound, bound)[1] for bound in own]
                first, last = ranges[i] if ranges else _task_range(text, extent)
                if low != "0":
                    first, last = [text.value(f"add i64 {bound}, {low}") for bound in (first, last)]
                run(text, [*[names.get(value, value) for value in used], *iteration], first, last)
        text.effect("ret void")
    text.finish()
    return name, _store_closure(outer, captured)


def _bounds(outer: Emitter, loop: For) -> _Captured:
    """The extent and the lower bound of a loop, as values of the enclosing function."""
    return [("i64", index_operand(outer, index_of(outer, bound))) for bound in (loop.extent, loop.min)]


def _outlined(outer: Emitter, loop: For, around: For | None) -> tuple[_Run, _Captured]:
    """The emitter of a loop's iterations [first, last) in a task, and the values that it captures."""
    call = called_step(loop)
    if call is None or around is not None:
        return _outline_body(outer, loop, around)
    outer.may_leave |= may_exhaust(outer, call)
    used = [var for var in free_variables(call) if var is not loop.loop_var]
    captured = [(register_type(var.dtype), outer.value(var)) for var in used]

    def run(text: FunctionText, values: _Captured, first: str, last: str) -> None:
        inner = outer.child(text)
        inner.values.update(zip(used, [name for _, name in values], strict=True))
        call_range(inner, call, Index(first, 0), Index(last, 0))

    return run, captured


def _outline_body(outer: Emitter, loop: For, around: For | None) -> tuple[_Run, _Captured]:
    """Outline a loop's body to a function of a range of iterations.

    A loop `around` it stays outside the function, and its variable is passed after the captured values.
    """
    module = outer.text.module
    body_name = f"{outer.text.name}.body{module.fresh_number()}"
    parameters = ["ptr %ctx"]
    inner = outer.child(FunctionText(module, body_name, ""))
    captured: _Captured = []
    for var in free_variables(loop.body):
        if var is loop.loop_var or (around is not None and var is around.loop_var):
            continue
        wide = outer.indices.get(var)
        if wide is not None and wide.value is None:
            inner.indices[var] = wide
            continue
        kind = "i64" if wide is not None else register_type(var.dtype)
        captured.append((kind, outer.value(var) if wide is None else index_operand(outer, wide)))
        name = f"%c{len(captured)}"
        if wide is not None:
            inner.indices[var] = Index(name, 0)
        else:
            inner.values[var] = name
        parameters.append(f"{kind} {'noalias ' if var in outer.unaliased else ''}{name}")
    if around is not None:
        parameters.append("i64 %iteration")
        inner.indices[around.loop_var] = Index("%iteration", 0)
        if is_nonnegative(around.min, outer.nonnegative):
            inner.nonnegative.add(around.loop_var)
    inner.text.set_signature(f"internal void @{body_name}({', '.join(parameters)}, i64 %first, i64 %last) #1")
    inner.unaliased, inner.constant = outer.unaliased, outer.constant
    emit_loop(inner, loop, Index("%first", 0), Index("%last", 0))
    outer.may_leave |= inner.may_leave
    end_nontemporal(inner)
    inner.text.effect("ret void")
    inner.text.finish()

    def run(text: FunctionText, values: _Captured, first: str, last: str) -> None:
        args = ["ptr %ctx", *[f"{kind} {value}" for kind, value in [*values, ("i64", first), ("i64", last)]]]
        text.effect(f"call void @{body_name}({', '.join(args)})")

    return run, captured


def _store_closure(outer: Emitter, captured: _Captured) -> str:
    *offsets, size = _offsets([kind for kind, _ in captured])
    closure = outer.text.alloca(f"[{size // 8} x i64]", 8)
    for offset, (kind, value) in zip(offsets, captured, strict=True):
        outer.text.effect(f"store {kind} {value}, ptr {byte_offset(outer, closure, offset)}, align 8")
    return closure


def _offsets(kinds: Sequence[str]) -> list[int]:
    """Where values of these types lie in memory, in bytes, each from a word on; last, how much memory they take."""
    sizes = [-(-register_bits(kind) // 64) * 8 for kind in kinds]
    return list(accumulate(sizes, initial=0))


def _loaded(text: FunctionText, words: str, kinds: Sequence[str]) -> _Captured:
    """Load values of these types, stored as in a closure."""
    loaded: _Captured = []
    for offset, kind in zip(_offsets(kinds), kinds, strict=False):
        address = text.value(f"getelementptr i8, ptr {words}, i64 {offset}")
        loaded.append((kind, text.value(f"load {kind}, ptr {address}, align 8")))
    return loaded


def _task_range(text: FunctionText, extent: str) -> tuple[str, str]:
    """Task `t` of `n` runs the iterations [t * extent / n, (t + 1) * extent / n)."""
    task, tasks = text.value("zext i32 %task to i64"), text.value("zext i32 %tasks to i64")
    first, last = [
        text.value(f"udiv i64 {text.value(f'mul i64 {number}, {extent}')}, {tasks}")
        for number in (task, text.value(f"add i64 {task}, 1"))
    ]
    return first, last


def _task_ranges(text: FunctionText, outer: Emitter, step: Step) -> list[tuple[str, str]]:
    """A task's ranges of the iterations of several loops, computed by a function shared by steps of as many loops."""
    name, count = f"{outer.text.name}.shares{len(step)}", len(step)
    if not text.module.has(name):
        _add_partition(outer, name, count)
    numbers = [str(n) for loop in step for n in (_constant(loop), loop.cycles)]
    passed = [text.value(f"zext i32 %{own} to i64") for own in ("task", "tasks", "threads")]
    table = text.alloca(f"[{2 * count} x i64]", 8)
    text.effect(f"call void @{name}(ptr {table}, {', '.join([f'i64 {n}' for n in (*passed, *numbers)])})")
    bounds = [value for _, value in _loaded(text, table, ["i64"] * (2 * count))]
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def _add_partition(outer: Emitter, name: str, count: int) -> None:
    """Add the function that evaluates `partition` for `count` loops: it stores two bounds for each."""
    variables = [Var(f"n{i}", INT64) for i in range(3 + 2 * count)]
    parameters = ", ".join([f"i64 %{var.name}" for var in variables])
    text = FunctionText(outer.text.module, name, f"internal void @{name}(ptr %bounds, {parameters}) #1")
    emitter = outer.child(text)
    for var in variables:
        emitter.indices[var] = Index(f"%{var.name}", 0)
        emitter.nonnegative.add(var)
    task, tasks, threads, *loops = variables
    ranges = partition(list(zip(loops[::2], loops[1::2], strict=True)), task, tasks, threads)
    for i, bound in enumerate([bound for both in ranges for bound in both]):
        value = index_operand(emitter, index_of(emitter, bound))
        text.effect(f"store i64 {value}, ptr {byte_offset(emitter, '%bounds', 8 * i)}, align 8")
    text.effect("ret void")
    text.finish()
