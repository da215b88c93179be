"""Loops written by hand: a statement built up by Python blocks. (TVM: `tvm.tir.ir_builder`.)

For operators without a formula per element, such as sorting::

    def fill(ins, outs):
        ib = ir_builder.create()
        a, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        with ib.for_range(0, n, name="i") as i:
            with ib.if_scope(a[i] > 0):
                out[i] = a[i]
            with ib.else_scope():
                out[i] = 0.0
        return ib.get()

    te.extern((n,), [a], fill, name="relu")
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from relayc.te.dtype import dtype
from relayc.te.errors import CompileError
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, Dim, IterVar, PrimExpr, Range, Var
from relayc.te.tir.ops import cast, convert, seq
from relayc.te.tir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Stmt,
    While,
)

__all__ = ["BufferView", "IRBuilder", "create"]


class BufferView:
    """A buffer whose elements are read by ``view[i, j]`` and written by ``view[i, j] = value``."""

    def __init__(self, builder: IRBuilder, buffer: Buffer) -> None:
        self._builder = builder
        self.buffer = buffer

    def _indices(self, indices: Any) -> tuple[PrimExpr, ...]:
        values = indices if isinstance(indices, tuple) else (indices,)
        if len(values) != len(self.buffer.shape):
            raise CompileError(f"buffer {self.buffer.name} has shape {self.buffer.shape}, but was accessed with "
                               f"{len(values)} indices")  # fmt: skip
        return tuple([convert(i) for i in values])

    def __getitem__(self, indices: Any) -> PrimExpr:
        return BufferLoad(self.buffer, self._indices(indices))

    def __setitem__(self, indices: Any, value: Any) -> None:
        self._builder.emit(BufferStore(self.buffer, cast(self.buffer.dtype, value), self._indices(indices)))


class IRBuilder:
    """Collects statements; blocks nest with ``with``. `get` gives the whole."""

    def __init__(self) -> None:
        self._blocks: list[list[Stmt | Callable[[Stmt], Stmt]]] = [[]]

    def emit(self, stmt: Stmt | PrimExpr) -> None:
        """Add a statement, or a call for its effect."""
        self._blocks[-1].append(stmt if isinstance(stmt, Stmt) else Evaluate(stmt))

    def _wrap_rest(self, wrap: Callable[[Stmt], Stmt]) -> None:
        """Put the rest of the current block inside `wrap`."""
        self._blocks[-1].append(wrap)

    def _close(self) -> Stmt:
        body = ops.no_op()
        for item in reversed(self._blocks.pop()):
            body = seq(item, body) if isinstance(item, Stmt) else item(body)
        return body

    @contextmanager
    def for_range(
        self, begin: Any, end: Any, name: str = "i", kind: str = "serial", *, independent: bool = False
    ) -> Generator[Var]:
        """A loop over [begin, end); `kind` is "serial", "parallel", "vectorized" or "unrolled". Gives the variable.

        `independent`: iterations may run in any order, or in parallel, whatever the kind; GPUs make use of it.
        """
        start, stop = ops.match_types(begin, end)
        var = Var(name, start.dtype)
        self._blocks.append([])
        yield var
        loop_kind = ForKind.SERIAL if kind == "serial" else ForKind(kind)
        notes = {"independent": True} if independent else {}
        self.emit(For(var, start, ops.sub(stop, start), loop_kind, self._close(), notes))

    @contextmanager
    def scope(self) -> Generator[None]:
        """A nested block, which ends the allocations, lets and attributes in it."""
        self._blocks.append([])
        yield
        self.emit(self._close())

    @contextmanager
    def while_loop(self, condition: Any) -> Generator[None]:
        """A loop as long as `condition` holds; it reads its state from buffers."""
        self._blocks.append([])
        yield
        self.emit(While(convert(condition), self._close()))

    @contextmanager
    def if_scope(self, condition: Any) -> Generator[None]:
        """Statements for when `condition` holds."""
        self._blocks.append([])
        yield
        self.emit(IfThenElse(convert(condition), self._close()))

    @contextmanager
    def else_scope(self) -> Generator[None]:
        """Statements for when the condition of the `if_scope` just before does not hold."""
        block = self._blocks[-1]
        last = block[-1] if block else None
        if not isinstance(last, IfThenElse) or last.else_case is not None:
            raise CompileError("else_scope must follow an if_scope directly")
        self._blocks.append([])
        yield
        block[-1] = IfThenElse(last.condition, last.then_case, self._close())

    def let(self, name: str, value: Any) -> Var:
        """A variable that holds `value` in the rest of the block."""
        expr = convert(value)
        var = Var(name, expr.dtype)
        self._wrap_rest(lambda body: LetStmt(var, expr, body))
        return var

    def allocate(self, dtype_: str, shape: Dim | Sequence[Dim], name: str = "buf", scope: str = "local") -> BufferView:
        """Memory for the rest of the block; its contents start undefined."""
        dims = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
        buffer = Buffer(name, [ops.as_dim(d) for d in dims], dtype(dtype_), scope=scope)
        self._wrap_rest(lambda body: Allocate(buffer, body))
        return BufferView(self, buffer)

    def scope_attr(self, subject: Any, key: str, value: Any) -> None:
        """A fact about the rest of the block: an `AttrStmt`."""
        self._wrap_rest(lambda body: AttrStmt(key, subject, convert(value), body))

    def thread_axis(self, extent: Dim, tag: str) -> Var:
        """A thread index: the rest of the block runs on `extent` threads along an axis, such as "threadIdx.x"."""
        axis = IterVar(Range(0, extent), Var(tag), "thread", tag)
        self.scope_attr(axis, "thread_extent", extent)
        return axis.var

    def buffer(self, buffer: Buffer) -> BufferView:
        """A buffer for reading and writing by index."""
        return BufferView(self, buffer)

    def get(self) -> Stmt:
        """The statement built. The builder is used up."""
        if len(self._blocks) != 1:
            raise CompileError(f"{len(self._blocks) - 1} blocks are still open")
        return self._close()


def create() -> IRBuilder:
    """A new builder."""
    return IRBuilder()
