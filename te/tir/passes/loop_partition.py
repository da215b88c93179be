"""Loops with guards are cut where the guards hold: the hot part runs without them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from relayc.te.arith import Analyzer
from relayc.te.ir.visitor import Mutator, Visitor, post_order
from relayc.te.tir import ops
from relayc.te.tir.analysis import contains
from relayc.te.tir.expr import (
    And,
    BufferLoad,
    Call,
    Compare,
    IntImm,
    IterVar,
    Max,
    Min,
    Not,
    PrimExpr,
    Range,
    Select,
    Var,
)
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.passes.simplify import simplify_stmt
from relayc.te.tir.passes.skip_padding import SKIPS_PADDING
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore, For, ForKind, IfThenElse, LetStmt, SeqStmt, Stmt, While
from relayc.te.tir.substitute import fresh_copy, substitute

__all__ = ["LoopPartition", "loop_partition"]

_HINT = "pragma_loop_partition_hint"
_LAST_APART = "pragma_last_apart"
_VERSIONS = "pragma_loop_versions"
_EXTREMA = frozenset((Min, Max))


@dataclass(frozen=True)
class _Guard:
    """One conjunct of a condition, and the loops between the partitioned loop and the condition."""

    condition: PrimExpr
    inner: Mapping[Var, Range]
    """those loops, outer ones first"""

    @property
    def is_outside_of_dynamic_loop(self) -> bool:
        """Is it decided by loops between, around one of dynamic extent? Beside that one it takes no time, and cutting
        the loops that decide it takes less code than a version of all."""
        extents = [range_.extent for range_ in self.inner.values()]
        deciding = [i for i, var in enumerate(self.inner) if _mentions(self.condition, (var,))]
        return bool(deciding) and any(ops.as_int(extent) is None for extent in extents[deciding[-1] + 1 :])


class _GuardCollector(Visitor[None]):
    """The guards in the body of a loop that depend on its variable: those marked `likely`, or all with a hint.

    `chosen` caches the conditions inside the expressions of stores, which every surrounding loop needs.
    """

    def __init__(self, hinted: bool, chosen: dict[BufferStore, list[PrimExpr]]) -> None:
        self.hinted = hinted
        self.chosen = chosen
        self.inner: dict[Var, Range] = {}
        self.guards: list[_Guard] = []
        self.around: list[_Guard] = []
        """the guards around the current statement, without which it does nothing"""
        self.stores: list[list[_Guard]] = []
        """the guards around each store"""

    def visit_For(self, node: For) -> None:
        self.inner[node.loop_var] = Range(node.min, node.extent)
        self.visit(node.body)
        del self.inner[node.loop_var]

    def visit_IfThenElse(self, node: IfThenElse) -> None:
        known = len(self.guards)
        self._condition(node.condition)
        outside = self.around
        self.around = [*outside, *self.guards[known:]]
        self.visit(node.then_case)
        self.around = outside
        if node.else_case is not None:
            self.visit(node.else_case)

    def visit_SeqStmt(self, node: SeqStmt) -> None:
        for stmt in node.stmts:
            self.visit(stmt)

    def visit_AttrStmt(self, node: AttrStmt) -> None:
        if isinstance(node.subject, IterVar) and node.key in ("thread_extent", "virtual_thread"):
            self.inner[node.subject.var] = Range(0, node.value)
            self.visit(node.body)
            del self.inner[node.subject.var]
        else:
            self.visit(node.body)

    def visit_Allocate(self, node: Allocate) -> None:
        self.visit(node.body)

    def visit_LetStmt(self, node: LetStmt) -> None:
        self.visit(node.body)

    def visit_While(self, node: While) -> None:
        self.visit(node.body)

    def visit_BufferStore(self, node: BufferStore) -> None:
        conditions = self.chosen.get(node)
        if conditions is None:
            conditions = self.chosen[node] = _choices(node)
        for condition in conditions:
            self._condition(condition)
        self.stores.append(self.around)

    def visit_default(self, node: object) -> None:
        """Other statements hold no guards."""
        self.stores.append(self.around)

    def _condition(self, condition: PrimExpr) -> None:
        if isinstance(condition, And):
            self._condition(condition.a)
            self._condition(condition.b)
        elif (isinstance(condition, Call) and condition.op == "likely") or (
            self.hinted and isinstance(condition, Compare)
        ):
            self.guards.append(_Guard(condition, dict(self.inner)))


def _choices(store: BufferStore) -> list[PrimExpr]:
    """The conditions on which the value and the place of a store depend."""
    found: list[PrimExpr] = []
    for node in post_order((store.value, *store.indices)):
        if isinstance(node, Call) and node.op == "if_then_else":
            found.append(node.args[0])
        elif isinstance(node, Select):
            found.append(node.condition)
    return found


class _Assume(Mutator):
    """Replaces condition nodes by their known truth values."""

    def __init__(self, conditions: set[int], truth: bool) -> None:
        self.conditions = conditions
        self.truth = ops.convert(truth)

    def visit(self, node: Any) -> Any:
        return self.truth if id(node) in self.conditions else super().visit(node)


class _Partitioner(Mutator):
    """Outer loops first, so that the inner loops of each part are cut under what is known there."""

    def __init__(self, options: LoopPartition) -> None:
        self.options = options
        self.analyzer = Analyzer()
        self.chosen: dict[BufferStore, list[PrimExpr]] = {}
        self.copies = 1
        self.at_border = False
        """inside the general version of a loop: its guards may fail, and sizes are open"""
        self.cut_vars: set[Var] = set()
        self.lane_vars: set[Var] = set()
        self.thread_vars: set[Var] = set()

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        if node.key != "thread_extent" or not isinstance(node.subject, IterVar):
            return node.rebuild(self.visit)
        axis = node.subject
        self.analyzer.bind(axis.var, Range(0, node.value))
        self.thread_vars.add(axis.var)
        if axis.thread_tag.startswith("blockIdx"):
            # the threads of a block take the same side, so barriers inside stay legal
            body = self._versioned(axis.var, node.body, hinted=False)
            return node if body is node.body else AttrStmt(node.key, axis, node.value, body, span=node.span)
        return node.rebuild(self.visit)

    def visit_IfThenElse(self, node: IfThenElse) -> Stmt:
        copies = self.copies
        with self.analyzer.constraint(node.condition):
            then_case = self.visit(node.then_case)
        if isinstance(node.condition, Call):  # likely: large and small extents have separate loops
            self.copies = copies
        else_case = node.else_case
        if else_case is not None:
            with self.analyzer.constraint(Not(node.condition)):
                else_case = self.visit(else_case)
        if then_case is node.then_case and else_case is node.else_case:
            return node
        return node.replace(then_case=then_case, else_case=else_case)

    def visit_For(self, node: For) -> Stmt:
        self.analyzer.bind(node.loop_var, Range(node.min, node.extent))
        hinted = bool(node.annotations.get(_HINT)) and not (self.at_border and ops.as_int(node.extent) is None)
        if node.annotations.get(_LAST_APART):
            before_last = ops.likely(node.loop_var + 1 < node.min + node.extent)
            last = substitute(fresh_copy(node.body), {node.loop_var: node.min + node.extent - 1})
            body = IfThenElse(before_last, node.body, last)
            node = node.replace(body=body, annotations={k: v for k, v in node.annotations.items() if k != _LAST_APART})
        if node.annotations.get(_VERSIONS):
            var = node.loop_var if node.annotations.get(SKIPS_PADDING) else None
            body = self._versioned(var, node.body, hinted=True)
            return node if body is node.body else node.replace(body=body)
        if node.kind is ForKind.PARALLEL:
            body = self._versioned(node.loop_var, node.body, hinted)
            return node if body is node.body else node.replace(body=body)
        if node.kind is ForKind.VECTORIZED:
            self.lane_vars.add(node.loop_var)
        if node.kind is ForKind.VECTORIZED and ops.as_int(node.extent) is None:
            return node.rebuild(self.visit)
        parts = self._parts(node, hinted)
        if parts is None or (node.kind is ForKind.VECTORIZED and not _are_vectors(parts, node)):
            return node.rebuild(self.visit)
        if any(self._varies_by_thread(part) for part in parts) and (
            node.kind is ForKind.UNROLLED  # registers can't be indexed: a guard in each copy of the body is better
            or _needs_all_threads(node.body)
        ):
            return node.rebuild(self.visit)
        if node.kind is not ForKind.VECTORIZED:
            self.copies += len(parts) - 1
        return ops.seq([self._inside(part) for part in parts])

    def _varies_by_thread(self, part: Stmt) -> bool:
        return isinstance(part, For) and _mentions(part.extent, self.thread_vars)

    def _inside(self, part: Stmt) -> Stmt:
        """A part of a loop with its inner loops cut; the part itself is not cut again."""
        if not isinstance(part, For) or part.loop_var not in self.cut_vars:
            return self.visit(part)
        self.analyzer.bind(part.loop_var, Range(part.min, part.extent))
        return part.rebuild(self.visit)

    def _guards(self, var: Var | None, body: Stmt, hinted: bool) -> tuple[list[_Guard], list[list[_Guard]]]:
        """The guards that depend on `var`, or on anything if it is None: all, and those whose failure disables each
        statement of the body."""
        if self.copies >= self.options.max_copies:
            return [], []
        collector = _GuardCollector(hinted, self.chosen)
        collector.visit(body)
        deciding = collector.guards if var is None else [g for g in collector.guards if _mentions(g.condition, (var,))]
        return deciding, [[g for g in around if g in deciding] for around in collector.stores] if deciding else []

    def _parts(self, loop: For, hinted: bool) -> list[Stmt] | None:
        """The loop cut into the parts before, while and after all guards that can be solved for its variable hold."""
        solved: set[int] = set()
        lows: list[PrimExpr] = []
        highs: list[PrimExpr] = []
        exact = True  # whether each guard fails everywhere outside its bounds
        guards, stores = self._guards(loop.loop_var, loop.body, hinted)
        for guard in guards:
            bound = self.analyzer.deduce_bound(guard.condition, loop.loop_var, guard.inner)
            if bound is None:
                continue
            low = None if bound.min is None else bound.min
            high = None if bound.max is None else ops.add(bound.max, 1)
            if not self._leaves_something(loop, low, high) or self._mentions_lanes(low, high):
                continue
            exact = exact and not _mentions(guard.condition, guard.inner) and not contains(guard.condition, _EXTREMA)
            solved.add(id(guard.condition))
            lows += [] if low is None else [low]
            highs += [] if high is None else [high]
        if not lows and not highs:
            return None
        exact = exact and not lows and all(self.analyzer.can_prove_equal(highs[0], h) for h in highs[1:])
        return self._cut(loop, solved, lows, highs, exact, stores)

    def _mentions_lanes(self, *bounds: PrimExpr | None) -> bool:
        """Does a bound depend on the lane of a vectorized loop around? Such a loop could not become vectors."""
        return any(b is not None and _mentions(b, self.lane_vars) for b in bounds)

    def _leaves_something(self, loop: For, low: PrimExpr | None, high: PrimExpr | None) -> bool:
        """May the part where a guard always holds have an iteration?"""
        end = ops.add(loop.min, loop.extent)
        empty = [ops.less_equal(end, low)] if low is not None else []
        empty += [ops.less_equal(high, loop.min)] if high is not None else []
        empty += [ops.less_equal(high, low)] if low is not None and high is not None else []
        return not any(self.analyzer.can_prove(e) for e in empty)

    def _cut(
        self,
        loop: For,
        solved: set[int],
        lows: list[PrimExpr],
        highs: list[PrimExpr],
        exact: bool,
        stores: list[list[_Guard]],
    ) -> list[Stmt] | None:
        simplify = self.analyzer.simplify
        start, end = simplify(loop.min), simplify(ops.add(loop.min, loop.extent))
        first = start
        for low in lows:
            first = simplify(ops.maximum(first, low))
        first = simplify(ops.minimum(first, end))
        last = end
        for high in highs:
            last = simplify(ops.minimum(last, high))
        last = simplify(ops.maximum(last, first))
        if self.analyzer.can_prove_equal(first, last):
            return None
        hot = _Assume(solved, True).visit(loop.body)
        cold = _Assume(solved, False).visit(loop.body) if exact else loop.body
        idle = self._idle_from(loop, stores) if highs and ops.as_int(simplify(ops.sub(end, last))) is None else None
        if idle is not None:
            end = simplify(ops.maximum(ops.minimum(end, idle), last))
        parts = [self._part(loop, start, first, cold), self._part(loop, first, last, hot),
                 self._part(loop, last, end, cold)]  # fmt: skip
        return [p for p in parts if not ops.is_no_op(p)]

    def _idle_from(self, loop: For, stores: list[list[_Guard]]) -> PrimExpr | None:
        """The first iteration from which on the guards common to all statements prevent every store."""
        found: list[PrimExpr] | None = None
        for around in stores:
            ends: list[PrimExpr] = []
            for guard in around:
                condition = guard.condition
                fails = ops.logical_not(condition.args[0] if isinstance(condition, Call) else condition)
                bound = self.analyzer.deduce_bound(self.analyzer.simplify(fails), loop.loop_var, guard.inner)
                if bound is not None and bound.min is not None and bound.max is None:
                    ends.append(bound.min)
            same = self.analyzer.can_prove_equal
            found = ends if found is None else [e for e in found if any(same(e, other) for other in ends)]
            if not found:
                return None
        return functools.reduce(ops.minimum, found) if found else None

    def _part(self, loop: For, start: PrimExpr, end: PrimExpr, body: Stmt) -> Stmt:
        """The iterations [start, end) of a loop with variables of their own, simplified under that range."""
        extent = self.analyzer.simplify(ops.sub(end, start))
        if isinstance(extent, IntImm) and extent.value <= 0:
            return ops.no_op()
        var = Var(loop.loop_var.name, loop.loop_var.dtype)
        self.cut_vars.add(var)
        if loop.kind is ForKind.VECTORIZED:
            self.lane_vars.add(var)
        own = fresh_copy(body, {loop.loop_var: var})
        return simplify_stmt(For(var, start, extent, loop.kind, own, loop.annotations, span=loop.span), self.analyzer)

    def _versioned(self, var: Var | None, body: Stmt, hinted: bool) -> Stmt:
        """`if (the guards hold whatever the inner loops do): body without guards; else: body`

        For loops that must stay one loop: parallel ones and hardware axes.
        """
        solved: set[int] = set()
        tests: list[PrimExpr] = []
        for guard in self._guards(var, body, hinted)[0]:
            if guard.is_outside_of_dynamic_loop and var is not None:
                continue
            holds = self.analyzer.worst_case(guard.condition, guard.inner)
            if holds is None or (isinstance(holds, IntImm) and not holds.value):
                continue
            solved.add(id(guard.condition))
            with self.analyzer.constraint(ops.all(*tests)):
                implied = self.analyzer.can_prove(holds)
            if not implied:
                tests.append(holds)
        if not solved:
            return self.visit(body)
        hot = _Assume(solved, True).visit(body)
        if not tests:
            return self.visit(hot)
        self.copies += 1
        condition = ops.all(*tests)
        with self.analyzer.constraint(condition):
            then_case = self.visit(simplify_stmt(fresh_copy(hot), self.analyzer))
        outside, self.at_border = self.at_border, True
        with self.analyzer.constraint(Not(condition)):
            else_case = self.visit(simplify_stmt(body, self.analyzer))
        self.at_border = outside
        return IfThenElse(condition, then_case, else_case)


def _are_vectors(parts: list[Stmt], loop: For) -> bool:
    """Is it better to partition a vectorized loop than to mask it?

    A mask is better than two loops or scalar code, except where an index is selected by the lane, which would become a
    gather.
    """
    known = all(not isinstance(part, For) or ops.as_int(part.extent) is not None for part in parts)
    return known and (len(parts) <= 1 or any(_chooses_place(n, loop.loop_var) for n in post_order(loop.body)))


def _chooses_place(node: object, var: Var) -> bool:
    """Is it a load whose index is selected by a condition on `var`?"""
    return isinstance(node, BufferLoad) and any(
        isinstance(n, Select) and _mentions(n.condition, (var,)) for n in post_order(node.indices)
    )


def _needs_all_threads(body: Stmt) -> bool:
    """Does the code contain, or will it need, barriers? Then all threads of a block must run it equally often."""
    for node in post_order(body):
        if isinstance(node, BufferStore) and node.buffer.scope.startswith("shared"):
            return True
        if isinstance(node, Call) and node.op in ("storage_sync", "thread_allreduce"):
            return True
    return False


def _mentions(expr: PrimExpr, variables: Collection[Var]) -> bool:
    return bool(variables) and any(isinstance(n, Var) and n in variables for n in post_order(expr))


def loop_partition(func: PrimFunc, max_copies: int = 16) -> PrimFunc:
    """The function with guarded loops cut into parts: see `LoopPartition`."""
    return LoopPartition(max_copies).function(func)


@dataclass(frozen=True)
class LoopPartition(FunctionPass):
    """Peels the iterations in which a guard may fail off the loops that decide it.

    Guards are the conditions marked `likely`; under a loop with "pragma_loop_partition_hint" also the comparisons in
    `if_then_else`, `Select` and branches (the masks of padding). A serial, unrolled or constant vectorized loop is cut
    in up to three; inner loops of the cold parts are cut again, so that tails become loops of smaller extent. Parallel
    loops and block axes stay one loop with a fast and a general body; in the general one, loops of symbolic extent are
    not cut for the masks of padding, whose tests join others there. Iterations of a loop with "pragma_loop_versions"
    have a fast body without any guards, or without those that depend on its variable where padding is skipped
    (`SkipPadding`), and a general one. "pragma_last_apart" cuts off the last iteration as if it had
    a guard: for one that is shifted inwards or shorter, for example. Extents may be symbolic. At most `max_copies`
    copies of code are made. (TVM: `LoopPartition`.)
    """

    max_copies: int = 16

    def function(self, func: PrimFunc) -> PrimFunc:
        body = _Partitioner(self).visit(func.body)
        return func if body is func.body else func.with_body(body)
