"""VECTORIZED loops become vector expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relayc.te.arith import Analyzer
from relayc.te.dtype import INT32, INT64
from relayc.te.ir.node import Node
from relayc.te.ir.visitor import Mutator
from relayc.te.tir import ops
from relayc.te.tir.analysis import contains
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import (
    And,
    Binary,
    Broadcast,
    BufferLoad,
    Call,
    Cast,
    Compare,
    Div,
    FloorDiv,
    FloorMod,
    Let,
    Logical,
    Mod,
    Not,
    Or,
    PrimExpr,
    Ramp,
    Range,
    Select,
    Var,
)  # fmt: skip
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.intrinsics import INTRINSICS
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.passes.rewrite_unsafe_select import can_not_fault
from relayc.te.tir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
)  # fmt: skip
from relayc.te.tir.substitute import substitute

__all__ = ["Vectorize", "vectorize"]

_LANEWISE_CALLS = frozenset(
    n for n, row in INTRINSICS.items() if row.pure and row.reference is not None and not n.startswith("vector_")
) | {"reinterpret"}
_DIVISIONS = (Div, Mod, FloorDiv, FloorMod)
_LOADS = frozenset((BufferLoad,))


class _NotVectorizable(Exception):
    """The body of a loop does something that has no vector form; the loop stays a loop."""


class _LaneRewriter(Mutator):
    """Rewrites the body of one loop with its variable standing for all lanes at once.

    An expression that does not depend on the lane stays scalar; operators bring both sides to vectors when one is.
    `mask` holds the active lanes, None for all: loads and stores under it are predicated. Memory in `own`, private to
    the loop, is widened to hold all lanes (`own` says how many elements): inactive lanes keep their contents, so that
    it may live in registers.
    """

    def __init__(
        self, var: Var, start: PrimExpr, lanes: int, analyzer: Analyzer, own: dict[Buffer, int] | None = None
    ) -> None:
        self.var, self.lanes = var, lanes
        self.own = {} if own is None else own
        self.lane = Ramp(start, ops.make_const(var.dtype, 1), lanes)
        self.analyzer = analyzer
        self.mask: PrimExpr | None = None
        self.vector_vars: dict[Var, Var] = {}
        self.expanded: dict[Buffer, Buffer] = {}
        self.private: set[Buffer] = set()  # widened memory: accesses need no mask

    # ---- expressions

    def widen(self, expr: PrimExpr) -> PrimExpr:
        """The expression in every lane."""
        return ops.broadcast(expr, self.lanes) if expr.dtype.lanes == 1 else expr

    def _both(self, a: PrimExpr, b: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        if a.dtype.lanes == b.dtype.lanes:
            return a, b
        return self.widen(a), self.widen(b)

    def visit_Var(self, node: Var) -> PrimExpr:
        return self.lane if node is self.var else self.vector_vars.get(node, node)

    def index(self, expr: PrimExpr) -> PrimExpr:
        """An index: a Ramp when it is linear in the lane."""
        if expr.dtype is INT32 or expr.dtype is INT64:
            atom = self.analyzer.variable(self.var)
            form = self.analyzer.linear(expr)
            rest = form.without(atom)
            if rest.vars.isdisjoint(self.vector_vars) and self.var not in rest.vars and not form.data:
                stride = form.terms.get(atom, 0)
                base = rest.plus(self.analyzer.linear(self.lane.base), stride)
                scalar = self.analyzer.render(base, expr.dtype)
                return ops.ramp(scalar, stride, self.lanes) if stride else scalar
        return self.visit(expr)

    def visit_Binary(self, node: Binary) -> PrimExpr:
        a, b = self.visit(node.a), self.visit(node.b)
        if a is node.a and b is node.b:
            return node
        if self.mask is not None and isinstance(node, _DIVISIONS) and b.dtype.lanes > 1 and b.dtype.is_integral:
            b = Select(self.mask, b, ops.make_const(b.dtype, 1))  # inactive lanes must not divide by 0
        if a.dtype.is_integral and (a.dtype.lanes == 1) != (b.dtype.lanes == 1):
            ramp = _ramp_arithmetic(node.__class__, a, b)
            if ramp is not None:
                return ramp
        return node.__class__(*self._both(a, b))

    def visit_Compare(self, node: Compare) -> PrimExpr:
        a, b = self.index(node.a), self.index(node.b)
        return node if a is node.a and b is node.b else node.__class__(*self._both(a, b))

    def visit_Logical(self, node: Logical) -> PrimExpr:
        a = self.visit(node.a)
        if a.dtype.lanes == 1:
            b = self.visit(node.b)
            return node if a is node.a and b is node.b else node.__class__(*self._both(a, b))
        if can_not_fault(node.b, self.analyzer):
            return node.__class__(*self._both(a, self.visit(node.b)))
        a, bind = _named(a)
        b = self._under(a if isinstance(node, And) else Not(a), node.b)  # b may read memory that a guards
        return bind(node.__class__(*self._both(a, b)))

    def _under(self, condition: PrimExpr, expr: PrimExpr) -> PrimExpr:
        """`expr` with only those lanes active where a vector condition holds."""
        outer = self.mask
        self.mask = condition if outer is None else And(outer, condition)
        result = self.visit(expr)
        self.mask = outer
        return result

    def visit_Not(self, node: Not) -> PrimExpr:
        a = self.visit(node.a)
        return node if a is node.a else Not(a)

    def visit_Select(self, node: Select) -> PrimExpr:
        condition = self.visit(node.condition)
        a, b = self._both(self.visit(node.true_value), self.visit(node.false_value))
        if condition is node.condition and a is node.true_value and b is node.false_value:
            return node
        if condition.dtype.lanes > 1:
            a, b = self.widen(a), self.widen(b)
        return Select(condition, a, b)

    def visit_Cast(self, node: Cast) -> PrimExpr:
        value = self.visit(node.value)
        return node if value is node.value else Cast(node.dtype.with_lanes(value.dtype.lanes), value)

    def visit_Broadcast(self, node: Broadcast) -> PrimExpr:
        value = self.visit(node.value)
        if value is node.value:
            return node
        raise _NotVectorizable

    def visit_BufferLoad(self, node: BufferLoad) -> PrimExpr:
        buffer, indices, moves = self._element(node.buffer, node.indices)
        predicate = None if node.predicate is None else self.visit(node.predicate)
        if not moves and predicate is node.predicate:
            if self.mask is None or (predicate is None and can_not_fault(node, self.analyzer)):
                return node if indices == node.indices else BufferLoad(buffer, indices)
            indices = (*indices[:-1], self.widen(indices[-1]))
        if node.dtype.lanes > 1:
            raise _NotVectorizable
        if predicate is None and self._has_room(buffer, indices):
            return BufferLoad(buffer, indices, span=node.span)
        return BufferLoad(buffer, indices, self._masked(buffer, predicate), span=node.span)

    def _has_room(self, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> bool:
        """Do all lanes, inactive ones too, access elements of private memory? It is widened for them."""
        index = indices[-1]
        if self.mask is None or buffer not in self.own or not isinstance(index, Ramp):
            return False
        last = self.analyzer.const_upper(ops.add(index.base, ops.mul(index.stride, index.lanes - 1)))
        if last is None or last >= self.own[buffer] + index.lanes or (ops.as_int(index.stride) or -1) < 0:
            return False
        if not self.analyzer.can_prove_less_equal(0, index.base):
            return False
        self.own[buffer] = max(self.own[buffer], last + 1)
        return True

    def _masked(self, buffer: Buffer, predicate: PrimExpr | None) -> PrimExpr | None:
        if buffer in self.private:
            return predicate
        if predicate is None or self.mask is None:
            return self.mask if predicate is None else self.widen(predicate)
        return And(self.mask, self.widen(predicate))

    def _element(self, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> tuple[Buffer, tuple[PrimExpr, ...], bool]:
        """The buffer and indices of an access; whether the lanes touch different elements."""
        new = tuple([self.index(i) for i in indices])
        wide = self.expanded.get(buffer)
        if wide is not None:
            lane = Ramp(ops.make_const(self.var.dtype, 0), ops.make_const(self.var.dtype, 1), self.lanes)
            place = new[0]
            if place.dtype.lanes == 1:
                first = self.analyzer.simplify(ops.mul(place, self.lanes))
                return wide, (Ramp(first, ops.make_const(first.dtype, 1), self.lanes),), True
            return wide, (ops.add(ops.mul(place, self.lanes), ops.cast(place.dtype.element, lane)),), True
        moves = any(i.dtype.lanes > 1 for i in new)
        if moves and (any(i.dtype.lanes > 1 for i in indices) or any(i.dtype.lanes > 1 for i in new[:-1])):
            raise _NotVectorizable  # vectors of vectors; lanes along an outer dimension
        return buffer, new, moves

    def visit_Let(self, node: Let) -> PrimExpr:
        value = self.visit(node.value)
        var = self._vector_var(node.var, value)
        body = self.visit(node.body)
        return node if value is node.value and body is node.body else Let(var, value, body)

    def _vector_var(self, var: Var, value: PrimExpr) -> Var:
        if value.dtype.lanes == 1:
            return var
        wide = self.vector_vars[var] = Var(var.name, value.dtype)
        return wide

    def visit_Call(self, node: Call) -> PrimExpr:
        if node.op == "if_then_else":
            return self._if_then_else(node)
        args = tuple([self.visit(a) for a in node.args])
        if all(a is b for a, b in zip(args, node.args, strict=True)):
            if not INTRINSICS[node.op].pure:
                raise _NotVectorizable
            return node
        if node.op not in _LANEWISE_CALLS or node.dtype.lanes > 1:
            raise _NotVectorizable
        if all(a.dtype.lanes == 1 for a in args):
            return Call(node.dtype, node.op, args, span=node.span)
        return Call(node.dtype.with_lanes(self.lanes), node.op, tuple([self.widen(a) for a in args]), span=node.span)

    def _if_then_else(self, node: Call) -> PrimExpr:
        condition = self.visit(node.args[0])
        if condition.dtype.lanes > 1:
            condition, bind = _named(condition)
            a, b = self._under(condition, node.args[1]), self._under(Not(condition), node.args[2])
            return bind(Select(condition, self.widen(a), self.widen(b)))
        a, b = self._both(self.visit(node.args[1]), self.visit(node.args[2]))
        if condition is node.args[0] and a is node.args[1] and b is node.args[2]:
            return node
        return Call(a.dtype, "if_then_else", (condition, a, b), span=node.span)

    def visit_default(self, node: Node) -> Any:
        new = node.rebuild(self.visit)
        if new is node and isinstance(node, PrimExpr):
            return node
        raise _NotVectorizable

    # ---- statements

    def visit_BufferStore(self, node: BufferStore) -> Stmt:
        buffer, indices, moves = self._element(node.buffer, node.indices)
        if not moves or node.predicate is not None:
            raise _NotVectorizable  # all lanes would store to one element
        value = self.widen(self.visit(node.value))
        if self.mask is not None and self._has_room(buffer, indices):
            value = Select(self.mask, value, BufferLoad(buffer, indices))
            return BufferStore(buffer, value, indices, span=node.span)
        return BufferStore(buffer, value, indices, self._masked(buffer, None), span=node.span)

    def visit_For(self, node: For) -> Stmt:
        start, extent = self.visit(node.min), self.visit(node.extent)
        if start.dtype.lanes > 1 or extent.dtype.lanes > 1:
            raise _NotVectorizable
        return For(node.loop_var, start, extent, node.kind, self.visit(node.body), node.annotations, span=node.span)

    def visit_IfThenElse(self, node: IfThenElse) -> Stmt:
        condition = self.visit(node.condition)
        if condition.dtype.lanes == 1:
            else_case = None if node.else_case is None else self.visit(node.else_case)
            return IfThenElse(condition, self.visit(node.then_case), else_case, span=node.span)
        scalars, vectors = self._split_conjuncts(node.condition)
        if scalars and node.else_case is None:
            inner = IfThenElse(ops.all(*vectors), node.then_case)
            return IfThenElse(ops.all(*scalars), self.visit(inner), span=node.span)
        condition = _without_likely(condition)
        outer = self.mask
        self.mask = condition if outer is None else And(outer, condition)
        stmts = [self.visit(node.then_case)]
        if node.else_case is not None:
            self.mask = Not(condition) if outer is None else And(outer, Not(condition))
            stmts.append(self.visit(node.else_case))
        self.mask = outer
        return ops.seq(stmts)

    def _split_conjuncts(self, condition: PrimExpr) -> tuple[list[PrimExpr], list[PrimExpr]]:
        """The conjuncts that are uniform across lanes, and the others, unchanged."""
        if isinstance(condition, And):
            parts = [self._split_conjuncts(c) for c in (condition.a, condition.b)]
            return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
        return ([condition], []) if self.visit(condition).dtype.lanes == 1 else ([], [condition])

    def visit_SeqStmt(self, node: SeqStmt) -> Stmt:
        return ops.seq([self.visit(s) for s in node.stmts])

    def visit_LetStmt(self, node: LetStmt) -> Stmt:
        value = self.visit(node.value)
        var = self._vector_var(node.var, value)
        return LetStmt(var, value, self.visit(node.body), span=node.span)

    def visit_Allocate(self, node: Allocate) -> Stmt:
        """Each lane gets its own copy: element i of lane l lies at i * lanes + l."""
        if len(node.buffer.shape) != 1 or node.buffer.strides is not None:
            raise _NotVectorizable
        size = ops.as_dim(ops.mul(node.buffer.shape[0], self.lanes))
        wide = self.expanded[node.buffer] = node.buffer.with_(shape=(size,))
        self.private.add(wide)
        return Allocate(wide, self.visit(node.body), span=node.span)

    def visit_While(self, node: While) -> Stmt:
        condition = self.visit(node.condition)
        if condition.dtype.lanes > 1 or self.mask is not None:
            raise _NotVectorizable
        return While(condition, self.visit(node.body), span=node.span)

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        value = self.visit(node.value)
        if value is not node.value or node.key == "thread_extent":
            raise _NotVectorizable
        subject = self.expanded.get(node.subject, node.subject) if isinstance(node.subject, Buffer) else node.subject
        return AttrStmt(node.key, subject, value, self.visit(node.body), span=node.span)

    def visit_Evaluate(self, node: Evaluate) -> Stmt:
        if ops.is_no_op(node):
            return node
        raise _NotVectorizable


def _named(condition: PrimExpr) -> tuple[PrimExpr, Callable[[PrimExpr], PrimExpr]]:
    """A condition as masks have it, and what puts its name around an expression with such masks.

    One that reads memory is a variable: masks of its own reads are parts of it, and copies in the masks of what it
    guards would double with each condition inside another one.
    """
    if not contains(condition, _LOADS):
        return condition, lambda expr: expr
    mask = Var("mask", condition.dtype)
    return mask, lambda expr: Let(mask, condition, expr)


def _ramp_arithmetic(node: type[Binary], a: PrimExpr, b: PrimExpr) -> PrimExpr | None:
    """ramp(x, s) + y = ramp(x + y, s), ramp(x, s) * y = ramp(x * y, s * y), and the like for scalar y"""
    name = node.__name__
    if isinstance(a, Ramp) and name in ("Add", "Sub"):
        return Ramp(node(a.base, b), a.stride, a.lanes)
    if isinstance(b, Ramp) and name == "Add":
        return Ramp(node(a, b.base), b.stride, b.lanes)
    if name == "Mul" and isinstance(a, Ramp):
        return Ramp(ops.mul(a.base, b), ops.mul(a.stride, b), a.lanes)
    if name == "Mul" and isinstance(b, Ramp):
        return Ramp(ops.mul(a, b.base), ops.mul(a, b.stride), b.lanes)
    return None


def _without_likely(condition: PrimExpr) -> PrimExpr:
    if isinstance(condition, Call) and condition.op == "likely":
        return _without_likely(condition.args[0])
    if isinstance(condition, And | Or):
        return condition.__class__(_without_likely(condition.a), _without_likely(condition.b))
    return condition


class _LoopVectorizer(Mutator):
    def __init__(self) -> None:
        self.analyzer = Analyzer()
        self.own: dict[Buffer, int] = {}

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_Allocate(self, node: Allocate) -> Stmt:
        buffer, size = node.buffer, ops.as_int(node.buffer.shape[0])
        if buffer.scope != "local" or len(buffer.shape) > 1 or buffer.strides is not None or size is None:
            return node.rebuild(self.visit)
        self.own[buffer] = size
        body = self.visit(node.body)
        if self.own[buffer] == size:
            return node if body is node.body else node.replace(body=body)
        wide = buffer.with_(shape=(self.own[buffer],))
        return Allocate(wide, substitute(body, {}, {buffer: wide}), span=node.span)

    def visit_For(self, node: For) -> Stmt:
        self.analyzer.bind(node.loop_var, Range(node.min, node.extent))
        loop = node.rebuild(self.visit)
        if loop.kind is not ForKind.VECTORIZED:
            return loop
        lanes = ops.as_int(loop.extent)
        if lanes is not None and lanes > 1:
            try:
                return _LaneRewriter(loop.loop_var, loop.min, lanes, self.analyzer, self.own).visit(loop.body)
            except _NotVectorizable:
                pass
        return loop.replace(kind=ForKind.SERIAL)


def vectorize(func: PrimFunc) -> PrimFunc:
    """The function with every VECTORIZED loop rewritten as vector statements.

    The body must be flat (one index per access). Conditions that differ between lanes become predicates of the loads
    and stores under them. A loop without constant extent, or whose body has no vector form (it stores to one element
    from all lanes, calls an impure function, ...), becomes a serial loop. (TVM: `VectorizeLoop`.)
    """
    return func.with_body(_LoopVectorizer().visit(func.body))


class Vectorize(FunctionPass):
    """VECTORIZED loops become vector expressions, or serial loops where there is no vector form."""

    def function(self, func: PrimFunc) -> PrimFunc:
        return vectorize(func)
