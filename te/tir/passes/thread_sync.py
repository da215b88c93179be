"""Insertion of barriers between conflicting accesses of a block's threads to shared memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relayc.te.errors import LoweringError
from relayc.te.ir.node import Node
from relayc.te.ir.visitor import Mutator, Visitor, collect, post_order
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import EQ, LT, And, BufferLoad, Call, IterVar, PrimExpr, Range, StringImm, Var
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.passes.inject_software_pipeline import EXPLICIT_SYNC
from relayc.te.tir.stmt import AttrStmt, BufferStore, Evaluate, For, IfThenElse, LetStmt, SeqStmt, Stmt, While
from relayc.te.tir.thread_access import Access, AccessTests

__all__ = ["ThreadSync", "thread_sync"]


_Move = Callable[[Access, Var, Range], Access]


@dataclass(slots=True)
class _State:
    """The state at a place in the program: accesses since the last barrier, and whether there has been one."""

    pending: list[Access] = field(default_factory=list)
    synced: bool = False

    def merged(self, other: _State) -> _State:
        """The state where two branches join."""
        known = set(map(id, self.pending))
        pending = self.pending + [a for a in other.pending if id(a) not in known]
        return _State(pending, self.synced and other.synced)


class _MeetsEarlier(Exception):
    """Raised where an access inside a loop or branch conflicts with one before it, with no barrier in between."""


class _Planner(Visitor[None]):
    """Walks a kernel in the order it runs in and finds the statements that need a barrier before them.

    A loop is first walked by itself: twice, the second time after the accesses of the previous iteration, and a third
    time after those of all iterations when no barrier separates them. Then accesses before the loop are checked against
    those in it.
    """

    def __init__(self, kernel: Stmt) -> None:
        axes = _thread_extents(kernel)
        self.written = {store.buffer.data for store in collect(kernel, BufferStore)}
        self.threads = {var: Range(ops.const(0), ops.const(extent)) for var, extent in axes.items() if extent > 1}
        self.inner: dict[Var, Range] = dict(self.threads)
        """ranges of variables that differ among threads: thread axes and divergent loops"""
        self.varying: set[Var] = set(self.threads)
        """variables that may differ among the threads of a block"""
        self.tests = AccessTests(axes)
        for axis in collect(kernel, AttrStmt):
            if _is_thread_extent(axis):
                self.tests.bind(axis.subject.var, Range(ops.const(0), axis.value))
        self.state = _State()
        self.divergent: Stmt | None = None
        """the surrounding divergent statement, which not all threads run alike"""
        self.entering = False
        """whether it is being tested if a loop can be entered with pending accesses, without new barriers"""
        self.explicit: set[Buffer] = set()
        self.marked: set[int] = set()
        self._accesses: dict[int, list[Access]] = {}
        self._moves: dict[tuple[Access, Var, _Move], Access] = {}
        self._relevant: dict[int, bool] = {}

    # -- what differs among the threads

    def uniform(self, *exprs: PrimExpr) -> bool:
        """Are the expressions uniform: of equal value in all threads of the block?"""
        for node in post_order(exprs):
            if isinstance(node, Var) and node in self.varying:
                return False
            if isinstance(node, BufferLoad) and node.buffer.data in self.written:
                return False
            if isinstance(node, Call) and node.op.startswith(("call_", "atomic_", "load_at", "warp_")):
                return False
        return True

    # -- accesses

    def touch(self, stmt: Stmt, parts: Iterable[Node]) -> None:
        """Record the accesses of a statement itself."""
        found = self._accesses.get(id(stmt))
        if found is None:
            found = [access for part in parts for access in self._inside(part)]
            if isinstance(stmt, BufferStore) and _is_shared(stmt.buffer):
                found.append(self._access(stmt.buffer, stmt.indices[0], writes=True))
            self._accesses[id(stmt)] = found
        self.meet(stmt, found)

    def meet(self, stmt: Stmt, accesses: list[Access]) -> None:
        """Put a barrier before a statement whose accesses conflict with pending ones, then add these accesses."""
        if any(self.tests.conflict(before, now) for now in accesses for before in self.state.pending):
            if self.entering:
                raise _MeetsEarlier
            if self.divergent is not None:
                raise LoweringError(_divergence(stmt, self.divergent))
            self.marked.add(id(stmt))
            self.state = _State([], True)
        known = set(map(id, self.state.pending))
        self.state.pending += [a for a in accesses if id(a) not in known]

    def _access(self, buffer: Buffer, index: PrimExpr | None, writes: bool) -> Access:
        if index is not None:
            nodes = list(post_order(index))
            data = any(isinstance(n, BufferLoad | Call) for n in nodes)
            if data or any(isinstance(n, Var) and n in self.varying and n not in self.inner for n in nodes):
                index = None
        return Access.of(buffer, index, writes, dict(self.inner), buffer in self.explicit)

    def _inside(self, part: Node) -> list[Access]:
        """Accesses to shared memory in an expression. A call that gets an address may write anywhere in the buffer."""
        if isinstance(part, Call) and part.op == "async_copy":
            return self._copied(part)
        if isinstance(part, Call) and part.op == "address_of" and isinstance(part.args[0], BufferLoad):
            buffer = part.args[0].buffer
            return [self._access(buffer, None, writes=True)] if _is_shared(buffer) else []
        found = [access for child in part.node_children() for access in self._inside(child)]
        if isinstance(part, BufferLoad) and _is_shared(part.buffer):
            found.append(self._access(part.buffer, part.indices[0], writes=False))
        return found

    def _copied(self, copy: Call) -> list[Access]:
        """The access that an asynchronous copy writes; its source is not shared memory."""
        address, nbytes = copy.args[0], ops.as_int(copy.args[2])
        load = address.args[0] if isinstance(address, Call) and address.op == "address_of" else None
        if not isinstance(load, BufferLoad) or nbytes is None:
            return []
        access = self._access(load.buffer, load.indices[0], writes=True)
        return [access.of_size(nbytes)]

    # -- statements

    def visit(self, node: Node) -> None:
        if id(node) in self.marked:
            self.state = _State([], True)
        if self._is_relevant(node):
            super().visit(node)

    def _is_relevant(self, node: Node) -> bool:
        known = self._relevant.get(id(node))
        if known is None:
            known = self._relevant[id(node)] = any(map(_concerns, post_order(node)))
        return known

    def visit_BufferStore(self, node: BufferStore) -> None:
        self.touch(node, node.node_children())

    def visit_Evaluate(self, node: Evaluate) -> None:
        if not _is_barrier(node):
            self.touch(node, (node.value,))
        elif self.divergent is not None:
            raise LoweringError(_divergence(node, self.divergent))
        else:
            self.state = _State([], True)

    def visit_LetStmt(self, node: LetStmt) -> None:
        self.touch(node, (node.value,))
        if not self.uniform(node.value):
            self.varying.add(node.var)
        self.visit(node.body)

    def visit_AttrStmt(self, node: AttrStmt) -> None:
        if node.key == EXPLICIT_SYNC:
            self.explicit.add(node.subject)
        self.visit(node.body)

    def visit_IfThenElse(self, node: IfThenElse) -> None:
        self.touch(node, (node.condition,))
        if self.uniform(node.condition):
            self.branches(node)
            return
        outer = self.inner
        self.inner = {**outer, **_narrowed(node.condition, outer)} if node.else_case is None else outer
        if self.divergent is None:
            self.without_barriers(node, lambda: self.branches(node))
        else:
            self.branches(node)
        self.inner = outer

    def branches(self, node: IfThenElse) -> None:
        """Both branches. A barrier against earlier accesses stands before the condition, where both branches profit."""
        before = self.state
        cases = [case for case in (node.then_case, node.else_case) if case is not None]
        if self.entering:
            self.enter_all(cases, len(cases) == 2)
            return
        after: list[_State] = []
        for case in cases:
            self.state = _State()
            self.visit(case)
            after.append(self.state)
        if not all(self.can_enter(case, before) for case in cases):
            before = self.barrier_before(node)
        passing = _State(list(before.pending), before.synced)
        ways = [_State(way.pending if way.synced else before.pending + way.pending, before.synced or way.synced)
                for way in after]  # fmt: skip
        self.state = ways[0].merged(ways[1] if len(ways) == 2 else passing)

    def without_barriers(self, node: Stmt, walk: Callable[[], None]) -> None:
        """Walk a divergent statement: needing a barrier inside is an error."""
        if self.entering:
            walk()
            return
        outer, self.state, self.divergent = self.state, _State(), node
        walk()
        inside, self.state, self.divergent = self.state.pending, outer, None
        self.meet(node, inside)

    def visit_For(self, node: For) -> None:
        if self.uniform(node.min, node.extent):
            self.loop(node, node.body, node.loop_var, Range(node.min, node.extent))
            return
        self.varying.add(node.loop_var)
        within = self.tests.bounds(node.min, node.extent)
        if within is not None:
            self.inner[node.loop_var] = within
        if self.divergent is None:
            self.without_barriers(node, lambda: self.loop(node, node.body, None, None))
        else:
            self.loop(node, node.body, None, None)
        self.inner.pop(node.loop_var, None)

    def visit_While(self, node: While) -> None:
        if self.divergent is None and not self.uniform(node.condition):
            self.without_barriers(node, lambda: self.loop(node, node.body, None, None))
        else:
            self.loop(node, node.body, None, None)

    def loop(self, node: Stmt, body: Stmt, var: Var | None, within: Range | None) -> None:
        """All iterations of a loop; `var` runs over `within` alike in all threads, None: nothing is known."""
        trips = None if within is None else ops.as_int(within.extent)
        if var is not None and within is not None:
            self.tests.bind(var, within)
        if self.entering:
            self.enter_all([body], trips is not None and trips > 0)
            return
        before, self.state = self.state, _State()
        self.visit(body)
        if trips != 1:
            self.state = _State(self._moved(Access.before, self.state.pending, var, within), False)
            self.visit(body)
            if not self.state.synced:
                self.state.pending = self._moved(Access.long_before, self.state.pending, var, within)
                self.visit(body)
        pending, synced = self._moved(Access.over, self.state.pending, var, within), self.state.synced
        if not self.can_enter(body, before):
            before = self.barrier_before(node)
        at_least_one = trips is not None and trips > 0
        kept = [] if synced and at_least_one else before.pending
        self.state = _State(kept + pending, before.synced or (synced and at_least_one))

    def can_enter(self, body: Stmt, before: _State) -> bool:
        """Do the barriers inside a body separate it from what was accessed before?"""
        outer, self.entering = self.entering, True
        self.state = _State(list(before.pending), False)
        try:
            self.visit(body)
        except _MeetsEarlier:
            return False
        finally:
            self.entering = outer
        return True

    def enter_all(self, cases: Sequence[Stmt], certain: bool) -> None:
        """While entering: continue into each case. `certain`: one of them runs, so that a barrier in each suffices."""
        before, synced = self.state, certain
        for case in cases:
            self.state = _State(list(before.pending), False)
            self.visit(case)
            synced = synced and self.state.synced
        self.state = _State([], True) if synced else before

    def barrier_before(self, node: Stmt) -> _State:
        """Put a barrier before a loop or condition instead of inside."""
        if self.divergent is not None:
            raise LoweringError(_divergence(node, self.divergent))
        self.marked.add(id(node))
        return _State([], True)

    def _moved(self, move: _Move, accesses: list[Access], var: Var | None, within: Range | None) -> list[Access]:
        """Accesses as another iteration sees them. Results are cached, so that conflict tests on them are, too."""
        if var is None or within is None:
            return accesses
        result: list[Access] = []
        for access in accesses:
            if not access.depends_on(var):
                result.append(access)
                continue
            key = access.origin or access, var, move
            moved = self._moves.get(key)
            if moved is None:
                moved = self._moves[key] = move(access, var, within)
            result.append(moved)
        return list(dict.fromkeys(result))


def _narrowed(condition: PrimExpr, ranges: Mapping[Var, Range]) -> dict[Var, Range]:
    """Ranges that a condition leaves to thread axes: ``axis < n``, ``axis == n`` and several of them together."""
    if isinstance(condition, Call) and condition.op == "likely":
        return _narrowed(condition.args[0], ranges)
    if isinstance(condition, And):
        left = _narrowed(condition.a, ranges)
        return {**left, **_narrowed(condition.b, {**ranges, **left})}
    if not isinstance(condition, LT | EQ):
        return {}
    axis, bound = condition.a, ops.as_int(condition.b)
    within = ranges.get(axis) if isinstance(axis, Var) else None
    extent = None if within is None or not ops.is_zero(within.min) else ops.as_int(within.extent)
    if not isinstance(axis, Var) or bound is None or extent is None or not 0 <= bound < extent:
        return {}
    if isinstance(condition, EQ):
        return {axis: Range(ops.const(bound), ops.const(1))}
    return {axis: Range(ops.const(0), ops.const(max(bound, 1)))}


def _is_shared(buffer: Buffer) -> bool:
    return buffer.scope.startswith("shared")


def _is_barrier(node: Node) -> bool:
    call = node.value if isinstance(node, Evaluate) else None
    if not isinstance(call, Call) or call.op != "storage_sync":
        return False
    scope = call.args[0]
    return isinstance(scope, StringImm) and scope.value == "shared"


def _concerns(node: Node) -> bool:
    """Is a node relevant to barriers?"""
    return (isinstance(node, BufferLoad | BufferStore) and _is_shared(node.buffer)) or _is_barrier(node)


def _divergence(stmt: Stmt, around: Stmt) -> str:
    return (
        f"the threads of a block must wait for each other before\n{stmt}\nbut not all of them come there, because of\n"
        f"{around}\nKeep what they share at a loop outside of conditions on threads"
    )


def _is_thread_extent(node: Node) -> bool:
    return isinstance(node, AttrStmt) and node.key == "thread_extent" and isinstance(node.subject, IterVar)


def _thread_extents(kernel: Stmt) -> dict[Var, int]:
    """The axes of a block's threads, with how many there are; 0 where that is not constant."""
    axes = [n for n in collect(kernel, AttrStmt) if _is_thread_extent(n)]
    block = [n for n in axes if n.subject.thread_tag.startswith("threadIdx")]
    return {n.subject.var: ops.as_int(n.value) or (1 << 30) for n in block}


class _Placer(Mutator):
    """Puts barriers before marked statements."""

    def __init__(self, marked: set[int]) -> None:
        self.marked = marked

    def visit(self, node: Any) -> Any:
        if isinstance(node, PrimExpr):
            return node
        new = super().visit(node)
        if id(node) not in self.marked:
            return new
        return ops.seq(Evaluate(ops.call_intrin("int32", "storage_sync", "shared")), new)

    def visit_SeqStmt(self, node: SeqStmt) -> Stmt:
        stmts: list[Stmt] = [self.visit(s) for s in node.stmts]
        return node if all(map(operator.is_, stmts, node.stmts)) else ops.seq(stmts)


class _Kernels(Mutator):
    """Transforms each kernel, a statement inside thread axes, by itself."""

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        if not _is_thread_extent(node):
            return node.rebuild(self.visit)
        planner = _Planner(node)
        planner.visit(node)
        return _Placer(planner.marked).visit(node) if planner.marked else node


def thread_sync(func: PrimFunc) -> PrimFunc:
    """The function with barriers: see `ThreadSync`."""
    return func.with_body(_Kernels().visit(func.body))


class ThreadSync(FunctionPass):
    """Puts a barrier ("storage_sync") before each statement that conflicts with an earlier access of another thread.

    Accesses to "shared" and "shared.dyn" memory conflict when both may touch a byte, one of them writes, and no barrier
    stands between them, in one iteration of a loop or across several. Halves and slots of ring buffers, and bytes that
    only one thread touches, are distinguished. Barriers are placed only in uniform control flow; LoweringError says
    where that is impossible. Buffers marked "explicit_sync" are left alone. Buffers must be flat. (TVM: `ThreadSync`.)
    """

    def function(self, func: PrimFunc) -> PrimFunc:
        return thread_sync(func)
