"""Schedules for hand-written loops: statements of `te.extern` rewritten for threads.

Loops marked independent (`te.tir.ir_builder`) may run in parallel. One that stands alone at the root is a kernel with a
thread for each iteration. Everything else runs in one block: its threads run the same statements, partition the
iterations of independent loops, and synchronise after them; statements outside such loops store from one thread.
Scratch memory becomes device memory, with a part for each thread where it was private to an iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relayc import te
from relayc.te.ir import Mutator, collect
from relayc.te.tir import (
    Allocate,
    AttrStmt,
    Buffer,
    BufferLoad,
    BufferStore,
    Dim,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterVar,
    LetStmt,
    PrimExpr,
    Range,
    SeqStmt,
    Stmt,
    StringImm,
    Var,
    as_dim,
    as_int,
    call_intrin,
    const,
    convert,
    no_op,
    product,
    seq,
)
from relayc.topi.cuda.cost import Gpu
from relayc.topi.groups import constant_size

__all__ = ["rewritten", "schedule_extern"]


def schedule_extern(s: te.Schedule, op: te.ExternOp, gpu: Gpu, by: te.ExternOp | None = None) -> None:
    """Compute `op` on threads, by the loops of `by` where another algorithm suits threads better."""
    source = op if by is None else by
    body = _Launcher(gpu).launch(source.body)
    current = s[op].op
    assert isinstance(current, te.ExternOp)
    new = te.ExternOp(
        op.name, op.tag, op.attrs, current.inputs, source.input_buffers, source.output_buffers, body
    )
    mapping: dict[te.Tensor, te.Tensor] = {}
    s.set_op(s[op], new, mapping)
    s.replace_tensors(mapping, s.stages)


def rewritten(op: te.ExternOp, fill: Callable[[Sequence[Buffer], Sequence[Buffer]], Stmt]) -> te.ExternOp:
    """The operation with other loops."""
    shapes, dtypes = [out.shape for out in op.outputs], [str(out.dtype) for out in op.outputs]
    made = te.extern(shapes, list(op.inputs), fill, name=op.name, dtype=dtypes)[0].op
    assert isinstance(made, te.ExternOp)
    return made


def _is_independent(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and (bool(stmt.annotations.get("independent")) or stmt.kind is ForKind.PARALLEL)


def _is_launched(stmt: Stmt) -> bool:
    """Do the loops have thread bindings already?"""
    return any(node.key == "thread_extent" for node in collect(stmt, AttrStmt))


def _is_private(buffer: Buffer) -> bool:
    return buffer.scope == "local"


class _Launcher:
    """Splits a statement into kernels."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def launch(self, stmt: Stmt) -> Stmt:
        """The statement as a sequence of kernels, inside the allocations that they share."""
        if isinstance(stmt, Allocate) and not _is_private(stmt.buffer):
            return Allocate(stmt.buffer, self.launch(stmt.body))
        if _is_independent(stmt):
            return self._grid(stmt)
        if not isinstance(stmt, SeqStmt):
            return stmt if _is_launched(stmt) else self._block([stmt])
        kernels: list[Stmt] = []
        together: list[Stmt] = []
        for part in stmt.stmts:
            separate = _is_independent(part) or _is_launched(part)
            if separate or (isinstance(part, Allocate) and not _is_private(part.buffer)):
                kernels += [self._block(together)] if together else []
                kernels.append(self.launch(part))
                together = []
            else:
                together.append(part)
        kernels += [self._block(together)] if together else []
        return seq(kernels)

    def _grid(self, stmt: Stmt) -> Stmt:
        """A kernel with a thread for each iteration of a nest of independent loops."""
        loops, body = _nest(stmt)
        total = product([as_dim(loop.extent) for loop in loops])
        if as_int(total) == 0:
            return no_op()
        threads = self.gpu.block_size(constant_size([total]))
        blocks = as_dim((total + (threads - 1)) // threads)
        block, thread = _axis(blocks, "blockIdx.x"), _axis(threads, "threadIdx.x")
        number = Var("number")
        own = _PrivateScratch(number, total)
        body = _bind(loops, number, own.visit(_serial(body)))
        body = LetStmt(number, block.var * threads + thread.var, IfThenElse(number < total, body))
        body = _on(block, _on(thread, body))
        for buffer in own.made.values():
            body = Allocate(buffer, body)
        return body

    def _block(self, stmts: Sequence[Stmt]) -> Stmt:
        """A kernel of one block."""
        body = seq(list(stmts))
        widest = [constant_size([as_dim(loop.extent) for loop in _nest(stmt)[0]]) for stmt in _independent_in(body)]
        threads = self.gpu.whole_warps(max(widest)) if widest else 1
        thread = _axis(threads, "threadIdx.x")
        rewriter = _BlockWide(thread.var, threads)
        body = _on(_axis(1, "blockIdx.x"), _on(thread, rewriter.visit(body)))
        for buffer in rewriter.made:
            body = Allocate(buffer, body)
        return body


def _axis(extent: Dim, tag: str) -> IterVar:
    return IterVar(Range(0, extent), Var(tag), "thread", tag)


def _on(axis: IterVar, body: Stmt) -> Stmt:
    return AttrStmt("thread_extent", axis, convert(axis.extent), body)


def _nest(stmt: Stmt) -> tuple[list[For], Stmt]:
    """The perfectly nested independent loops of a statement, and their body."""
    loops: list[For] = []
    while isinstance(stmt, For) and _is_independent(stmt):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def _independent_in(stmt: Stmt) -> list[For]:
    return [loop for loop in collect(stmt, For) if _is_independent(loop)]


def _bind(loops: Sequence[For], number: PrimExpr, body: Stmt) -> Stmt:
    """`body` for iteration `number` of a loop nest."""
    rest = number
    for i, loop in reversed(list(enumerate(loops))):
        index = rest if i == 0 else rest % loop.extent
        body = LetStmt(loop.loop_var, index + loop.min, body)
        rest = rest // loop.extent
    return body


class _Serial(Mutator):
    """Makes independent and parallel loops inside a thread serial."""

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: For) -> Stmt:
        body = self.visit(node.body)
        if not _is_independent(node):
            return node.replace(body=body)
        return For(node.loop_var, node.min, node.extent, ForKind.SERIAL, body)


def _serial(stmt: Stmt) -> Stmt:
    return _Serial().visit(stmt)


class _PrivateScratch(Mutator):
    """Makes scratch memory allocated in each iteration a row, indexed by the iteration, of one allocation."""

    def __init__(self, number: Var, count: Dim) -> None:
        self.number, self.count = number, count
        self.made: dict[Buffer, Buffer] = {}

    def visit_Allocate(self, node: Allocate) -> Stmt:
        if _is_private(node.buffer):
            return node.rebuild(self.visit)
        buffer = node.buffer
        self.made[buffer] = Buffer(buffer.name, (self.count, *buffer.shape), buffer.dtype)
        return self.visit(node.body)

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        indices = tuple([self.visit(i) for i in node.indices])
        made = self.made.get(node.buffer)
        return BufferLoad(node.buffer, indices) if made is None else BufferLoad(made, (self.number, *indices))

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        indices, value = tuple([self.visit(i) for i in node.indices]), self.visit(node.value)
        made = self.made.get(node.buffer)
        return BufferStore(node.buffer, value, indices) if made is None else BufferStore(
            made, value, (self.number, *indices))  # fmt: skip


class _BlockWide(Mutator):
    """Rewrites a statement to be run by all threads of a block."""

    def __init__(self, thread: Var, threads: int) -> None:
        self.thread, self.threads = thread, threads
        self.made: list[Buffer] = []

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_Allocate(self, node: Allocate) -> Stmt:
        if _is_private(node.buffer):
            return node.rebuild(self.visit)
        self.made.append(node.buffer)
        return self.visit(node.body)

    def visit_For(self, node: For) -> Stmt:
        if not _is_independent(node):
            return node.rebuild(self.visit)
        loops, body = _nest(node)
        total = product([as_dim(loop.extent) for loop in loops])
        if as_int(total) == 0:
            return no_op()
        round_, number = Var("round"), Var("number")
        own = _PrivateScratch(number, total)
        body = IfThenElse(number < total, _bind(loops, number, own.visit(_serial(body))))
        self.made += own.made.values()
        body = LetStmt(number, round_ * self.threads + self.thread, body)
        rounds = as_dim((total + (self.threads - 1)) // self.threads)
        return seq(For(round_, const(0), convert(rounds), ForKind.SERIAL, body), _barrier())

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        if _is_private(node.buffer) or self.threads == 1:
            return node
        return seq(_barrier(), IfThenElse(self.thread < 1, node), _barrier())


def _barrier() -> Stmt:
    return Evaluate(call_intrin("int32", "storage_sync", StringImm("shared")))
