"""The walk over a kernel's statements, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relayc.te.errors import CompileError
from relayc.te.ir.node import Node
from relayc.te.ir.visitor import post_order
from relayc.te.tir.expr import BufferLoad, Call, IntImm, IterVar, Let, Logical, PrimExpr, StringImm, Var
from relayc.te.tir.intrinsics import INTRINSICS
from relayc.te.tir.simt_checker.faults import ExternAccess, SimtFault
from relayc.te.tir.simt_checker.lockstep import both
from relayc.te.tir.simt_checker.record import Context, Event, Frame, Grid, Recorder, first_line
from relayc.te.tir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
)

__all__ = ["Walk"]

_AT_ONCE = 1 << 20
"""The most elements (threads x iterations) that are evaluated in one step."""
_ENDLESS = 1 << 12
"""Iterations after which a while loop is assumed to be endless."""
_PERIOD = 12
"""Skipped iterations are a multiple of this: ring buffers of 2, 3, 4 or 6 slots continue as if they had run."""
_BARRIERS = frozenset({"storage_sync", "async_wait", "async_commit"})


class Walk(Recorder):
    """One run over blocks of a kernel."""

    def __init__(
        self, context: Context, name: str, body: Stmt, everything: bool, allowed: set[int],
        needed: frozenset[Var] = frozenset(),
    ) -> None:  # fmt: skip
        super().__init__(context, name, body, everything, allowed, needed)
        x, y, _ = self.dims
        lane = self.tid
        self.positions = {"threadIdx.x": lane % x, "threadIdx.y": lane // x % y, "threadIdx.z": lane // (x * y)}
        self.level = 0
        self.serial: dict[int, bool] = {}
        self.reads_of: dict[int, list[tuple[tuple[Any, ...], PrimExpr]]] = {}
        self.copies: list[tuple[int, Event]] = []
        self.group = 0

    def run(self, blocks: Sequence[Grid]) -> None:
        """Runs blocks one after another."""
        self.bind_parameters()
        for block in blocks:
            self.block, self.block_number = block, len(self.blocks)
            self.blocks.append(block)
            self.phase += 1
            self.step += 1
            self.group, self.copies, self.mask = 0, [], True
            with np.errstate(all="ignore"):  # inactive threads compute, too
                self.walk(self.body)

    def walk(self, stmt: Stmt) -> None:
        """Runs a statement."""
        _STATEMENTS[type(stmt)](self, stmt)

    def walk_seq(self, stmt: SeqStmt) -> None:
        for part in stmt.stmts:
            self.walk(part)

    def walk_attr(self, stmt: AttrStmt) -> None:
        if stmt.key == "thread_extent" and isinstance(stmt.subject, IterVar):
            tag = stmt.subject.thread_tag
            at = self.positions.get(tag)
            self.env[stmt.subject.var] = self.block["xyz".index(tag[-1])] if at is None else at
        self.walk(stmt.body)

    def walk_allocate(self, stmt: Allocate) -> None:
        data = stmt.buffer.data
        memory = self.memories.get(data)
        if memory is None or memory.shadow is None:
            self.memories[data] = self.memory(stmt.buffer, initialized=False, record=True)
        elif not self.frames:
            memory.shadow.forget()
            memory.registers.clear()
        self.walk(stmt.body)

    def walk_let(self, stmt: LetStmt) -> None:
        self.begin(stmt)
        self._define(stmt)
        self.walk(stmt.body)

    def _define(self, node: LetStmt | Let) -> None:
        if node.var in self.steering.variables:
            self.env[node.var] = self.visit(node.value)
        else:
            self.touch(node.value)

    def walk_assert(self, stmt: AssertStmt) -> None:
        self.walk(stmt.body)

    def walk_if(self, stmt: IfThenElse) -> None:
        self.begin(stmt)
        condition, outer = self.visit(stmt.condition), self.mask
        for case, holds in ((stmt.then_case, condition), (stmt.else_case, _negated(condition))):
            if case is None:
                continue
            self.mask = both(outer, holds)
            if self.mask is not True and np.all(self.mask):
                self.mask = True
            if self.mask is True or np.any(self.mask):
                self.walk(case)
        self.mask = outer

    def walk_while(self, stmt: While) -> None:
        outer = self.mask
        for _ in range(_ENDLESS):
            self.begin(stmt)
            self.mask = both(self.mask, self.visit(stmt.condition))
            if not np.any(self.mask):
                break
            self.walk(stmt.body)
        else:
            raise CompileError(f"kernel {self.name}: a while loop does not end; give the `arrays` that decide when it "
                               f"does: {first_line(stmt)}")  # fmt: skip
        self.mask = outer

    def walk_for(self, stmt: For) -> None:
        self.begin(stmt)
        start, extent = self.visit(stmt.min), self.visit(stmt.extent)
        uneven = isinstance(extent, np.ndarray)
        active = extent if not uneven or self.mask is True else np.where(self.mask, extent, 0)
        trips = max(0, int(np.max(active)))
        if trips == 0:
            return
        outer = self.mask
        self.level += 1
        if self._batched(stmt, trips):
            self._all_iterations(stmt, start, extent if uneven else None, trips)
        else:
            for i in self._iterations(stmt, trips):
                self.env[stmt.loop_var] = start + i
                self.mask = both(outer, extent > i) if uneven else outer
                self.walk(stmt.body)
        self.level -= 1
        self.mask = outer

    def _iterations(self, stmt: For, trips: int) -> Iterable[int]:
        """Iterations to run one by one: of a long loop with barriers the ends; skipped writes count as done."""
        limit = self.context.max_iterations
        left_out = max(0, trips - limit) // _PERIOD * _PERIOD
        if self.everything or left_out == 0 or not self._has_barrier(stmt):
            yield from range(trips)
            return
        yield from range(limit // 2)
        yield from range(limit // 2 + left_out, trips)
        for node in post_order(stmt.body):
            memory = self.memories.get(node.buffer.data) if isinstance(node, BufferStore) else None
            if memory is not None and memory.shadow is not None:
                np.minimum(memory.shadow.first_write, self.clock, out=memory.shadow.first_write)

    def _has_barrier(self, stmt: Stmt) -> bool:
        key = id(stmt)
        if key not in self.serial:
            self.serial[key] = any(isinstance(n, Call) and n.op in _BARRIERS for n in post_order(stmt))
        return self.serial[key]

    def _batched(self, stmt: For, trips: int) -> bool:
        """May all iterations be evaluated in one step? Not with barriers, nor where they use values they produce."""
        if self.everything or self._has_barrier(stmt):
            return False
        for node in post_order(stmt.body):
            if isinstance(node, While) or (isinstance(node, BufferStore) and node.buffer.data in self.steering.memory):
                return False
        return self.threads * trips * _volume(stmt.body) <= _AT_ONCE

    def _all_iterations(self, stmt: For, start: Any, extents: Any, trips: int) -> None:
        iteration = self.along(self.level, trips)
        self.env[stmt.loop_var] = start + iteration
        if extents is not None:
            self.mask = both(self.mask, iteration < extents)
        frame = Frame(self.level)
        outer, begin = self.frames, self.clock
        self.frames = (*outer, frame)
        self.walk(stmt.body)
        self.frames = outer
        frame.length = max(1, self.clock - begin)
        self.clock = begin + frame.length * trips
        if not outer:
            events, self.events = self.events, []
            self.settle(events)

    def walk_store(self, stmt: BufferStore) -> None:
        self.begin(stmt)
        outer = self.mask
        data = stmt.buffer.data
        needed = data in self.steering.memory
        if stmt.predicate is not None:
            self.mask = both(self.mask, self.visit(stmt.predicate))
        value = None
        if needed:
            value = self.visit(stmt.value)
        else:
            self.touch(stmt.value)
        index = self.visit(stmt.indices[0])
        self.access(stmt, stmt.buffer, index, writes=True, values=value)
        self.mask = outer

    def walk_evaluate(self, stmt: Evaluate) -> None:
        self.begin(stmt)
        self.touch(stmt.value)

    # -- expressions

    def touch(self, node: PrimExpr) -> None:
        """Record the memory accesses of an expression whose value is not needed."""
        found = self.reads_of.get(id(node))
        if found is None:
            found = self.reads_of[id(node)] = []
            _find_reads(node, (), found)
        for context, access in found:
            outer = self.mask
            for step in context:
                if isinstance(step, Let):
                    self._define(step)
                else:
                    condition, wanted = step
                    holds = self.visit(condition)
                    self.mask = both(self.mask, holds if wanted else _negated(holds))
            if self.mask is True or np.any(self.mask):
                self.visit(access)
            self.mask = outer

    def load(self, node: BufferLoad) -> Any:
        outer = self.mask
        if node.predicate is not None:
            self.mask = both(self.mask, self.visit(node.predicate))
        index = self.visit(node.indices[0])
        memory = self.access(node, node.buffer, index, writes=False)
        values = memory.values
        result: Any = 0
        if values is not None:
            if memory.private:
                index = index * self.threads + self.tid
            if isinstance(index, np.ndarray):
                result = values[np.clip(index, 0, values.size - 1)]
                if node.predicate is not None:
                    result = np.where(self.mask, result, 0).astype(values.dtype)
            else:
                result = values[min(max(index, 0), values.size - 1)] if self.mask is not False else values.dtype.type(0)
        self.mask = outer
        return result

    def effect(self, node: Call) -> Any:
        handler = _CALLS.get(node.op)
        if handler is None:
            if INTRINSICS[node.op].pure:
                raise CompileError(f"kernel {self.name}: the checker does not know the value of {node}")
            raise CompileError(f"kernel {self.name}: the checker does not know what {node.op} does, in {node}")
        return handler(self, node)

    def call_sync(self, node: Call) -> int:
        scope = node.args[0]
        if not np.all(self.mask):
            active = np.broadcast_to(self.mask, self.tid.shape).reshape(-1)
            missing = int(np.flatnonzero(~active)[0])
            raise SimtFault("divergence", self.text(
                f"divergent barrier: {int(active.sum())} of {self.threads} threads reach it, thread "
                f"{self.position(missing)} does not"))  # fmt: skip
        self.step += 1
        if isinstance(scope, StringImm) and scope.value != "warp":
            self.phase += 1
        return 0

    def call_next_draw(self, node: Call) -> int:
        """The access to the program's single draw counter, which is not atomic."""
        active = int(np.broadcast_to(self.mask, self.tid.shape).sum())
        if active > 1:
            raise SimtFault("race", self.text(f"{active} threads count up the number of draws"))
        return 0

    def call_atomic(self, node: Call) -> Any:
        load = self._address(node.args[0])
        self.touch(node.args[1])
        self.access(node, load.buffer, self.visit(load.indices[0]), writes=True, atomic=True)
        return 0

    def call_async_copy(self, node: Call) -> int:
        """The element is undefined from here to the wait: a read in between is a read of uninitialised memory."""
        to, source = self._address(node.args[0]), self._address(node.args[1])
        count, outer = int(self.visit(node.args[2])), self.mask
        self.mask = both(outer, self.visit(node.args[3]))
        if self.mask is True or np.any(self.mask):
            self.access(node, source.buffer, self.visit(source.indices[0]), writes=False, width=count)
        self.mask = outer
        event = self.event_of(node, to.buffer, self.visit(to.indices[0]), True, False, None, count)
        self.queue(replace(event, undefined=True))
        self.copies.append((self.group, event))
        return 0

    def call_async_commit(self, node: Call) -> int:
        self.group += 1
        return 0

    def call_async_wait(self, node: Call) -> int:
        left = int(self.visit(node.args[0]))
        ready = [e for group, e in self.copies if group + left < self.group]
        self.copies = [(group, e) for group, e in self.copies if group + left >= self.group]
        self.settle([replace(event, frames=(), offset=self.tick()) for event in ready])
        return 0

    def call_extern(self, node: Call) -> Any:
        name = node.args[0]
        assert isinstance(name, StringImm), "call_extern begins with a name"
        accesses = self.context.externs.get(name.value)
        if not any(map(_is_address, node.args[1:])):  # a function of values
            for value in node.args[1:]:
                self.touch(value)
            return 0
        if accesses is None:
            raise CompileError(f"kernel {self.name}: say by `externs` what {name.value} does with its arguments")
        values = [0 if _is_address(a) else self.visit(a) for a in node.args[1:]]
        for access in accesses:
            self._extern_access(node, access, values)
        return 0

    def _extern_access(self, node: Call, access: ExternAccess, values: list[Any]) -> None:
        load = self._address(node.args[1 + access.argument])
        if access.warp:
            self._whole_warps(node)
        index = self.visit(load.indices[0])
        if access.offset is not None:
            others = [v for a, v in zip(node.args[1:], values, strict=True) if not _is_address(a)]
            index = index + access.offset(self.tid % 32, others) // load.buffer.dtype.element.nbytes
        for wanted, writes in ((access.reads, False), (access.writes, True)):
            if wanted:
                self.access(node, load.buffer, index, writes=writes, width=access.nbytes)

    def call_shuffle(self, node: Call) -> Any:
        """The value of another lane, which must exist and participate."""
        mask, value, flip, width = (self.visit(a) for a in node.args)
        self._whole_warps(node)
        lane = self.tid % 32
        source = np.where((lane % width) ^ flip < width, self.tid - lane + (lane ^ flip), self.tid)
        lost = (source >= self.threads) | ((np.asarray(mask) >> (source % 32)) & 1 == 0)
        lost = lost if self.mask is True else lost & self.mask
        if lost.any():
            first = int(np.argwhere(lost)[0][0])
            raise SimtFault("divergence", self.text(
                f"shuffle: thread {self.position(first)} reads a lane that does not take part, in {node}"))  # fmt: skip
        if isinstance(value, np.ndarray) and value.shape[0] == self.threads:
            return np.take(value, source.reshape(-1), axis=0)
        return value

    def _whole_warps(self, node: Call) -> None:
        """Raise a fault unless all threads of a warp, or none, reach its operation."""
        if self.mask is True:
            return
        active = np.broadcast_to(self.mask, np.broadcast_shapes(np.shape(self.mask), self.tid.shape))
        lanes = active.reshape(self.threads, -1)
        for first in range(0, self.threads, 32):
            warp = lanes[first : first + 32]
            if (warp.any(0) & ~warp.all(0)).any():
                raise SimtFault("divergence", self.text(
                    f"divergent warp operation: not all threads of the warp of thread {self.position(first)} take "
                    f"part in {node}"))  # fmt: skip

    def call_nothing(self, node: Call) -> int:
        return 0

    def _address(self, node: PrimExpr) -> BufferLoad:
        if isinstance(node, Call) and _is_address(node) and isinstance(node.args[0], BufferLoad):
            return node.args[0]
        raise CompileError(f"kernel {self.name}: expected the address of an element, got {node}")


def _is_address(node: PrimExpr) -> bool:
    return isinstance(node, Call) and node.op == "address_of"


def _negated(condition: Any) -> Any:
    return ~condition if isinstance(condition, np.ndarray) else not condition


def _volume(stmt: Node) -> int:
    """The number of iterations of the longest loop nest in a statement."""
    below = 1 if isinstance(stmt, PrimExpr) else max([_volume(c) for c in stmt.node_children()], default=1)
    if not isinstance(stmt, For):
        return below
    return below * (stmt.extent.value if isinstance(stmt.extent, IntImm) else 64)


def _find_reads(
    node: Node, context: tuple[Any, ...], found: list[tuple[tuple[Any, ...], PrimExpr]]
) -> None:
    """The loads and calls with effects in an expression, each with what must hold (and be defined) around it.

    Loads in the index of a load or in a condition are left to the evaluation of those.
    """
    if isinstance(node, BufferLoad):
        found.append((context, node))
    elif isinstance(node, Call) and node.op == "if_then_else":
        condition, a, b = node.args
        found.append((context, condition))
        _find_reads(a, (*context, (condition, True)), found)
        _find_reads(b, (*context, (condition, False)), found)
    elif isinstance(node, Call) and (not INTRINSICS[node.op].pure):
        found.append((context, node))
    elif isinstance(node, Logical):
        _find_reads(node.a, context, found)
        if any(isinstance(n, BufferLoad) for n in post_order(node.b)):
            _find_reads(node.b, (*context, (node.a, node.sign == "and")), found)
    elif isinstance(node, Let):
        found.append(((*context, node), IntImm(node.var.dtype, 0)))
        _find_reads(node.body, (*context,), found)
    else:
        for child in node.node_children():
            _find_reads(child, context, found)


_STATEMENTS: dict[type, Callable[[Walk, Any], None]] = {
    SeqStmt: Walk.walk_seq, AttrStmt: Walk.walk_attr, Allocate: Walk.walk_allocate, LetStmt: Walk.walk_let,
    AssertStmt: Walk.walk_assert, IfThenElse: Walk.walk_if, While: Walk.walk_while, For: Walk.walk_for,
    BufferStore: Walk.walk_store, Evaluate: Walk.walk_evaluate,
}  # fmt: skip

_CALLS: dict[str, Callable[[Walk, Call], Any]] = {
    "storage_sync": Walk.call_sync, "atomic_add": Walk.call_atomic, "atomic_max": Walk.call_atomic,
    "async_copy": Walk.call_async_copy, "async_commit": Walk.call_async_commit,
    "async_wait": Walk.call_async_wait, "call_extern": Walk.call_extern,
    "warp_shuffle_xor": Walk.call_shuffle, "prefetch": Walk.call_nothing,
    "assume": Walk.call_nothing, "next_draw": Walk.call_next_draw,
}  # fmt: skip
