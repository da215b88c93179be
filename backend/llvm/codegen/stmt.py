"""Statements: control flow, scratch memory and parallel regions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import groupby

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.accumulators import AccumulatorEmitter
from relayc.backend.llvm.codegen.calls import CTX_FREE, CTX_PARALLEL, CTX_SHORTAGE, CTX_WORKSPACE
from relayc.backend.llvm.codegen.convert import Machine
from relayc.backend.llvm.codegen.index import Index, is_nonnegative
from relayc.backend.llvm.codegen.regions import (
    Step,
    called_step,
    independent_loops,
    is_region,
    most_tasks,
    outline,
    regions_of,
)  # fmt: skip
from relayc.backend.llvm.codegen.unroll_factor import unroll_factor
from relayc.backend.llvm.types import element_bytes, memory_type
from relayc.te.dtype import INT64
from relayc.te.errors import CompileError
from relayc.te.tir import (
    Allocate,
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
    Var,
    While,
    product,
)

__all__ = ["AssertMessages", "StmtEmitter"]

STACK_BYTES = 64 * 1024
"""Maximum bytes of a stack allocation, as long as a function has no more than `STACK_TOTAL` in all."""
STACK_TOTAL = 256 * 1024

MAX_UNROLLED = 4096
"""Maximum number of statements after unrolling; a larger loop is not unrolled."""

AssertMessages = list[str]


class StmtEmitter(AccumulatorEmitter):
    """Emits the statements of one function. `messages` collects its AssertStmts' messages; None where none are
    allowed."""

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
        """Pointers to memory that no other live pointer aliases."""
        self.stack_left = STACK_TOTAL
        self.workspaces: list[str] = []
        """Addresses of the workspace allocated at this point of the function, in the order of allocation."""
        self.may_leave = False
        """Does the code emitted so far return early when memory for workspace is exhausted?"""

    # Control flow

    def visit_SeqStmt(self, stmt: SeqStmt) -> None:
        for joined, run in groupby(stmt.stmts, self._may_join_region):
            if joined:
                self._region([independent_loops(each) or (each,) for each in run])  # type: ignore[misc]
            else:
                for each in run:
                    self.visit(each)

    def visit_Evaluate(self, stmt: Evaluate) -> None:
        if isinstance(stmt.value, IntImm):
            return
        self.visit(stmt.value)
        if isinstance(stmt.value, Call) and stmt.value.op in ("call_kernel", "call_step"):
            self._leave_after(stmt.value)

    def visit_LetStmt(self, stmt: LetStmt) -> None:
        self.bind(stmt.var, stmt.value)
        self.visit(stmt.body)

    def visit_AttrStmt(self, stmt: AttrStmt) -> None:
        if stmt.key in ("thread_extent", "virtual_thread"):
            raise CompileError(
                f"axis {stmt.subject} is bound to a thread of a GPU, unsupported by the llvm target; "
                "use parallel(axis), or build for cuda"
            )
        if self.parallel and (loops := independent_loops(stmt)):
            self._region([loops])
            return
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
        if self.parallel and is_region(loop):
            self._region([(loop,)])
            return
        if loop.kind is ForKind.VECTORIZED:
            raise CompileError(f"loop {loop.loop_var.name} is still vectorized; run the vectorize pass first")
        if self.parallel and loop.kind is ForKind.SERIAL and (regions := regions_of(loop)):
            self._region([(each,) for each in regions], loop)
            return
        low = self.index(loop.min)
        if extent.value is None and (extent.constant <= 1 or self._is_written_out(loop, extent.constant)):
            for i in range(extent.constant):
                self.run_iteration(loop, self.sum(low, Index(None, i, 0)))
            return
        self.loop(loop, low, self.sum(low, extent))

    def _is_written_out(self, loop: For, extent: int) -> bool:
        return loop.kind is ForKind.UNROLLED and extent * _count_statements(loop.body) <= MAX_UNROLLED

    def run_iteration(self, loop: For, position: Index) -> None:
        """Emit the body once, at a given position."""
        self.wide[loop.loop_var] = position
        if is_nonnegative(loop.min, self.nonnegative):
            self.nonnegative.add(loop.loop_var)
        self.visit(loop.body)

    def loop(self, loop: For, low: Index, high: Index) -> None:
        """Emit the body for each position in [low, high)."""
        if (call := called_step(loop)) is not None:
            self.call_range(call, low, high)
            self._leave_after(call)
            return
        factor = unroll_factor(loop, self.machine.vector_bits)
        if factor > 1 and low.value is None and high.value is None:
            self._unrolled_loop(loop, low.constant, high.constant, factor)
        else:
            self._loop(loop, low, high)

    def _unrolled_loop(self, loop: For, low: int, high: int, factor: int) -> None:
        """Emit a loop unrolled by `factor` with shared base addresses, and a remainder loop."""
        before, self.shares_base = self.shares_base, True
        rest = (high - low) % factor
        self._loop(loop, Index(None, low, 0), Index(None, high - rest, 0), factor)
        self.shares_base = before
        if rest:
            self._loop(loop, Index(None, high - rest, 0), Index(None, high, 0))

    def _loop(self, loop: For, low: Index, high: Index, factor: int = 1) -> None:
        """Emit the loop itself, unrolled by `factor`, which must divide the number of iterations."""
        if low.value is None and high.value is None:
            self.ranges[loop.loop_var] = (low.constant, high.constant)
            if high.constant - low.constant <= factor:
                self._iterations(loop, [Index(None, i, 0) for i in range(low.constant, high.constant)])
                return
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
            self._iterations(loop, [Index(position, i) for i in range(factor)])
            text.goto(latch)
            text.place(latch)
            text.effect(f"%{following} = add nsw i64 {position}, {factor}")
            again = text.value(f"icmp slt i64 %{following}, {stop}")
            text.branch(again, body, done)
        text.place(done)

    def _iterations(self, loop: For, positions: Sequence[Index]) -> None:
        """Emit consecutive iterations, with the accumulators of sums kept apart if there are several."""
        for i, position in enumerate(positions):
            if i:
                self.end_step()
            self.accumulators = []
            self.run_iteration(loop, position)

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
            self.on_stack.add(buffer.data)
            self.visit(stmt.body)
            return
        count = Index(None, size, 0) if isinstance(size, int) else self.index(size)
        nbytes = self.operand(self.product(count, Index(None, size_of, 0)))
        text = self.text
        allocate = text.value(f"load ptr, ptr {self.byte_offset('%ctx', CTX_WORKSPACE)}, align 8")
        pointer = text.value(f"call noalias ptr {allocate}(ptr %ctx, i64 {nbytes})")
        self._leave_unless(text.value(f"icmp ne ptr {pointer}, null"))
        self.env[buffer.data] = pointer
        self.unaliased.add(buffer.data)
        self.workspaces.append(pointer)
        self.visit(stmt.body)
        self._free(self.workspaces.pop())

    def _free(self, pointer: str) -> None:
        release = self.text.value(f"load ptr, ptr {self.byte_offset('%ctx', CTX_FREE)}, align 8")
        self.text.effect(f"call void {release}(ptr %ctx, ptr {pointer})")

    def leave_if_exhausted(self) -> None:
        """Return if what was just called ran out of workspace: what it should have computed is undefined. A host
        function calls nothing after its kernel."""
        if self.messages is None:
            place = self.byte_offset("%ctx", CTX_SHORTAGE)
            nbytes = self.text.value(f"load atomic i64, ptr {place} monotonic, align 8")
            self._leave_unless(self.text.value(f"icmp eq i64 {nbytes}, 0"))

    def _leave_after(self, call: Call) -> None:
        """Return if the kernel just called ran out of workspace, unless it is known to need none."""
        if self.may_exhaust(call):
            self.leave_if_exhausted()

    def _leave_unless(self, condition: str) -> None:
        """Free the function's workspace and return, unless a condition holds."""
        text, self.may_leave = self.text, True
        leave, stay = text.label("leave"), text.label("stay")
        text.branch(condition, stay, leave, likely=True)
        text.place(leave)
        with text.region():
            for pointer in reversed(self.workspaces):
                self._free(pointer)
            text.effect("ret void")
        text.place(stay)

    # Parallel regions

    def _may_join_region(self, stmt: Stmt) -> bool:
        """May this step join a region, because its bounds are known before the preceding steps have run?"""
        if not self.parallel or not is_region(stmt):
            return self.parallel and bool(independent_loops(stmt))
        return self.is_index(stmt.extent) and self.is_index(stmt.min)

    def _region(self, steps: Sequence[Step], around: For | None = None) -> None:
        """Emit consecutive parallel loops, or those that make up the body of a loop `around` them, as one region with a
        barrier after each step."""
        text = self.text
        count = Index(None, len(steps), 0)
        if around is not None:
            count = self.product(self.index(around.extent), count)
        before, self.may_leave = self.may_leave, False
        task, closure = outline(self, steps, around)
        tasks = [most_tasks(self, step) for step in steps]
        most = text.value(f"trunc i64 {reduce(lambda a, b: self.intrinsic('smax', INT64, a, b), tasks)} to i32")
        run = text.value(f"load ptr, ptr {self.byte_offset('%ctx', CTX_PARALLEL)}, align 8")
        text.effect(f"call void {run}(ptr %ctx, ptr @{task}, ptr {closure}, i32 {most}, i64 {self.operand(count)})")
        if self.may_leave:
            self.leave_if_exhausted()
        self.may_leave |= before

    def child(self, text: FunctionText) -> StmtEmitter:
        """An emitter for a function outlined from this one, for the same target; parallel loops in it run serially."""
        inner = StmtEmitter(text, self.machine, None, parallel=False)
        inner.nonnegative = set(self.nonnegative)
        inner.alignment = dict(self.alignment)
        inner.streamed, inner.streaming_stores = self.streamed, self.streaming_stores
        return inner

    def end_nontemporal(self) -> None:
        """Order non-temporal stores before other threads are notified of them."""
        if self.streaming_stores:
            self.text.effect("fence seq_cst")


def _count_statements(body: Stmt) -> int:
    """Stores and calls that `body` runs, counting each remaining loop's body once."""
    if isinstance(body, For) and body.kind is ForKind.UNROLLED and isinstance(body.extent, IntImm):
        return body.extent.value * _count_statements(body.body)
    return sum([_count_statements(s) for s in body.node_children() if isinstance(s, Stmt)]) or 1
