"""Statements: control flow, scratch memory and parallel regions."""

from __future__ import annotations

from backend.llvm.assembly import FunctionText, ModuleText
from backend.llvm.codegen.calls import CTX_FREE, CTX_PARALLEL, CTX_WORKSPACE, CallEmitter
from backend.llvm.codegen.convert import Machine
from backend.llvm.codegen.index import Index, is_nonnegative
from backend.llvm.types import element_bytes, memory_type, register_type
from te.dtype import INT64
from te.errors import CompileError
from te.tir import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IntImm,
    LetStmt,
    SeqStmt,
    Stmt,
    Var,
    While,
    product,
)
from te.tir.analysis import free_variables

__all__ = ["AssertMessages", "StmtEmitter"]

STACK_BYTES = 64 * 1024
"""Scratch memory up to this size lives on the stack, as long as a function has no more than `STACK_TOTAL`."""
STACK_TOTAL = 256 * 1024

MAX_UNROLLED = 4096
"""Statements that an unrolled loop may become; a larger one stays a loop."""

AssertMessages = list[str]


class StmtEmitter(CallEmitter):
    """Emits the statements of one function. `messages` collects what its AssertStmts say; None where none may be."""

    def __init__(
        self, text: FunctionText, machine: Machine, messages: AssertMessages | None, *, parallel: bool = True
    ) -> None:
        super().__init__(text, machine)
        self.messages = messages
        self.parallel = parallel
        self.alignment: dict[Var, int] = {}
        self.streamed: frozenset[Var] = frozenset()
        self.streaming_stores: set[Var] = set()
        self.unaliased: set[Var] = set()
        """Pointers that no other pointer in use leads to the memory of."""
        self.stack_left = STACK_TOTAL

    # Control flow

    def visit_SeqStmt(self, stmt: SeqStmt) -> None:
        for s in stmt.stmts:
            self.visit(s)

    def visit_Evaluate(self, stmt: Evaluate) -> None:
        if not isinstance(stmt.value, IntImm):
            self.visit(stmt.value)

    def visit_LetStmt(self, stmt: LetStmt) -> None:
        self.bind(stmt.var, stmt.value)
        self.visit(stmt.body)

    def visit_AttrStmt(self, stmt: AttrStmt) -> None:
        if stmt.key in ("thread_extent", "virtual_thread"):
            raise CompileError(
                f"axis {stmt.subject} is bound to a thread of a GPU, which the llvm target has not; "
                "use parallel(axis), or build for cuda"
            )
        self.visit(stmt.body)

    def visit_IfThenElse(self, stmt: IfThenElse) -> None:
        condition = self.visit(stmt.condition)
        if condition in ("true", "false"):
            chosen = stmt.then_case if condition == "true" else stmt.else_case
            if chosen is not None:
                self.visit(chosen)
            return
        text = self.text
        then, done = text.label("then"), text.label("endif")
        otherwise = done if stmt.else_case is None else text.label("else")
        text.branch(condition, then, otherwise)
        self._block(then, stmt.then_case, done)
        if stmt.else_case is not None:
            self._block(otherwise, stmt.else_case, done)
        text.place(done)

    def _block(self, label: str, body: Stmt, following: str) -> None:
        self.text.place(label)
        with self.text.region():
            self.visit(body)
        self.text.goto(following)

    def visit_While(self, stmt: While) -> None:
        text = self.text
        test, body, done = text.label("test"), text.label("while"), text.label("endwhile")
        text.goto(test)
        text.place(test)
        with text.region():
            text.branch(self.visit(stmt.condition), body, done)
            text.place(body)
            self.visit(stmt.body)
        text.goto(test)
        text.place(done)

    def visit_AssertStmt(self, stmt: AssertStmt) -> None:
        if self.messages is None:
            raise CompileError(f"a kernel can't fail, so it can't assert: {stmt.message}")
        self.messages.append(stmt.message)
        code, text = len(self.messages), self.text
        condition = self.visit(stmt.condition)
        fail, passed = text.label("fail"), text.label("passed")
        text.branch(condition, passed, fail)
        text.place(fail)
        with text.region():
            for i, arg in enumerate(stmt.args):
                address = self.byte_offset("%error", 8 * i)
                text.effect(f"store i64 {self.operand(self.index(arg))}, ptr {address}, align 8")
        text.effect(f"ret i32 {code}")
        text.place(passed)
        self.visit(stmt.body)

    # Loops

    def visit_For(self, loop: For) -> None:
        extent = self.index(loop.extent)
        if loop.kind is ForKind.PARALLEL and self.parallel and not (extent.value is None and extent.constant <= 1):
            self._parallel_region(loop, extent)
            return
        if loop.kind is ForKind.VECTORIZED:
            raise CompileError(f"loop {loop.loop_var.name} is still vectorized; run the vectorize pass first")
        low = self.index(loop.min)
        if extent.value is None and (extent.constant <= 1 or self._is_written_out(loop, extent.constant)):
            for i in range(extent.constant):
                self.run_iteration(loop, self.sum(low, Index(None, i, 0)))
            return
        self.loop(loop, low, self.sum(low, extent))

    def _is_written_out(self, loop: For, extent: int) -> bool:
        return loop.kind is ForKind.UNROLLED and extent * _count_statements(loop.body) <= MAX_UNROLLED

    def run_iteration(self, loop: For, position: Index) -> None:
        """The body once, at a given position."""
        self.wide[loop.loop_var] = position
        if is_nonnegative(loop.min, self.nonnegative):
            self.nonnegative.add(loop.loop_var)
        self.visit(loop.body)

    def loop(self, loop: For, low: Index, high: Index) -> None:
        """The body for each position in [low, high)."""
        text, start, stop = self.text, self.operand(low), self.operand(high)
        body, done = text.label("for"), text.label("endfor")
        if low.value is not None or high.value is not None:
            ready = text.label("enter")
            text.branch(text.pure(f"icmp slt i64 {start}, {stop}"), ready, done)
            text.place(ready)
        before = text.block
        text.goto(body)
        text.place(body)
        following, latch = text.label("next"), text.label("latch")
        with text.region():
            position = text.value(f"phi i64 [ {start}, %{before} ], [ %{following}, %{latch} ]")
            self.run_iteration(loop, Index(position, 0))
            text.goto(latch)
            text.place(latch)
            text.effect(f"%{following} = add nsw i64 {position}, 1")
            again = text.value(f"icmp slt i64 %{following}, {stop}")
            text.branch(again, body, done)
        text.place(done)

    # Scratch memory

    def visit_Allocate(self, stmt: Allocate) -> None:
        buffer = stmt.buffer
        size = product(buffer.shape)
        size_of = element_bytes(buffer.dtype) * buffer.dtype.lanes
        align = max(buffer.align, 64)
        self.alignment[buffer.data] = align
        if isinstance(size, int) and size * size_of <= min(STACK_BYTES, self.stack_left):
            self.stack_left -= size * size_of
            kind = f"[{max(size, 1)} x {memory_type(buffer.dtype)}]"
            self.env[buffer.data] = self.text.alloca(kind, align)
            self.unaliased.add(buffer.data)
            self.visit(stmt.body)
            return
        count = Index(None, size, 0) if isinstance(size, int) else self.index(size)
        nbytes = self.operand(self.product(count, Index(None, size_of, 0)))
        text = self.text
        allocate = text.value(f"load ptr, ptr {self.byte_offset('%ctx', CTX_WORKSPACE)}, align 8")
        pointer = text.value(f"call noalias ptr {allocate}(ptr %ctx, i64 {nbytes})")
        self.env[buffer.data] = pointer
        self.unaliased.add(buffer.data)
        self.visit(stmt.body)
        release = text.value(f"load ptr, ptr {self.byte_offset('%ctx', CTX_FREE)}, align 8")
        text.effect(f"call void {release}(ptr %ctx, ptr {pointer})")

    # Parallel regions

    def _parallel_region(self, loop: For, extent: Index) -> None:
        text, limit = self.text, self.operand(extent)
        if extent.value is None:
            self._fork(loop, extent, str(loop.most_threads))
            return
        runs, done = text.label("region"), text.label("endregion")
        text.branch(text.pure(f"icmp sgt i64 {limit}, 0"), runs, done)
        with text.region():
            text.place(runs)
            tasks = self.intrinsic("umin", INT64, limit, str(loop.most_threads))
            self._fork(loop, extent, text.value(f"trunc i64 {tasks} to i32"))
            text.goto(done)
        text.place(done)

    def _fork(self, loop: For, extent: Index, tasks: str) -> None:
        text = self.text
        task, closure = outline(self, loop, extent)
        run = text.value(f"load ptr, ptr {self.byte_offset('%ctx', CTX_PARALLEL)}, align 8")
        text.effect(f"call void {run}(ptr %ctx, ptr @{task}, ptr {closure}, i32 {tasks})")

    def child(self, text: FunctionText) -> StmtEmitter:
        """An emitter for a function outlined from this one: the same target, and parallel loops run serially."""
        inner = StmtEmitter(text, self.machine, None, parallel=False)
        inner.nonnegative = set(self.nonnegative)
        inner.alignment = dict(self.alignment)
        inner.streamed, inner.streaming_stores = self.streamed, self.streaming_stores
        return inner

    def end_streaming(self) -> None:
        """Let other threads see what was stored past the caches, before they are told that it is there."""
        if self.streaming_stores:
            self.text.effect("fence seq_cst")


def outline(outer: StmtEmitter, loop: For, extent: Index) -> tuple[str, str]:
    """Make functions of a parallel loop; returns the task's name and the closure's address.

    Two functions are made. The task, in the pool's calling convention, takes the values that the body uses out of the
    closure and computes its share of the iterations; the body takes them as parameters, so that what LLVM knows of the
    buffers (`noalias`) is not lost on the way through memory.
    """
    module = outer.text.module
    number = module.fresh_number()
    body_name, task_name = f"{outer.text.name}.body{number}", f"{outer.text.name}.task{number}"
    parameters = ["ptr %ctx"]
    inner = outer.child(FunctionText(module, body_name, ""))
    captured: list[tuple[str, str]] = []
    for var in free_variables(loop.body):
        if var is loop.loop_var:
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
    low = outer.index(loop.min)
    captured += [("i64", outer.operand(extent)), ("i64", outer.operand(low))]
    inner.text.set_signature(f"internal void @{body_name}({', '.join(parameters)}, i64 %first, i64 %last) #1")
    inner.unaliased = outer.unaliased
    inner.loop(loop, Index("%first", 0), Index("%last", 0))
    inner.end_streaming()
    inner.text.effect("ret void")
    inner.text.finish()
    _emit_task(module, task_name, body_name, [kind for kind, _ in captured])
    return task_name, _store_closure(outer, captured)


def _store_closure(outer: StmtEmitter, captured: list[tuple[str, str]]) -> str:
    closure = outer.text.alloca(f"[{len(captured)} x i64]", 8)
    for i, (kind, value) in enumerate(captured):
        outer.text.effect(f"store {kind} {value}, ptr {outer.byte_offset(closure, 8 * i)}, align 8")
    return closure


def _emit_task(module: ModuleText, name: str, body: str, kinds: list[str]) -> None:
    """Task `t` of `n` runs the iterations [t * extent / n, (t + 1) * extent / n)."""
    text = FunctionText(module, name, f"internal void @{name}(ptr %ctx, ptr %closure, i32 %task, i32 %tasks) #0")
    loaded: list[str] = []
    for i, kind in enumerate(kinds):
        address = f"getelementptr i8, ptr %closure, i64 {8 * i}"
        loaded.append(text.value(f"load {kind}, ptr {text.value(address)}, align 8"))
    *values, extent, low = loaded
    task, tasks = text.value("zext i32 %task to i64"), text.value("zext i32 %tasks to i64")
    bounds: list[str] = []
    for number in (task, text.value(f"add i64 {task}, 1")):
        share = text.value(f"udiv i64 {text.value(f'mul i64 {number}, {extent}')}, {tasks}")
        bounds.append(text.value(f"add i64 {share}, {low}"))
    args = [f"{kind} {value}" for kind, value in zip(kinds, values, strict=False)]
    text.effect(f"call void @{body}({', '.join(['ptr %ctx', *args, *[f'i64 {b}' for b in bounds]])})")
    text.effect("ret void")
    text.finish()


def _count_statements(body: Stmt) -> int:
    """Stores and calls that `body` runs, counting other loops once."""
    if isinstance(body, For) and body.kind is ForKind.UNROLLED and isinstance(body.extent, IntImm):
        return body.extent.value * _count_statements(body.body)
    return sum([_count_statements(s) for s in body.node_children() if isinstance(s, Stmt)]) or 1
