"""Loop fusion: adjacent loops over the same parts of memory become one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relayc.te.arith import Analyzer
from relayc.te.ir.visitor import Mutator, collect
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import Broadcast, BufferLoad, Call, PrimExpr, Ramp, Range, Var
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import Allocate, BufferStore, For, ForKind, SeqStmt, Stmt
from relayc.te.tir.substitute import substitute

__all__ = ["FUSE", "FuseLoops", "are_independent", "can_fuse", "fuse_loops", "have_equal_ranges", "statements_of"]

FUSE = "pragma_fuse_with_next"
"""The annotation of a loop that may be fused with the next loop in the sequence that has it."""


def have_equal_ranges(a: Stmt, b: Stmt) -> bool:
    """Are they serial loops over the same values?"""
    if not isinstance(a, For) or not isinstance(b, For) or a.kind is not ForKind.SERIAL or b.kind is not a.kind:
        return False
    bounds = [ops.as_int(e) for e in (a.min, a.extent, b.min, b.extent)]
    return None not in bounds and bounds[:2] == bounds[2:]


def are_independent(stmts: Sequence[Stmt], other: Stmt) -> bool:
    """Does neither side write what the other accesses?"""
    return not _shared(stmts, other)


def can_fuse(first: For, second: For) -> bool:
    """Can two loops over the same values be fused?

    Yes, if every iteration of both touches only its own part of the memory that one of them writes: then an iteration
    of the second depends on no other iteration of the first.
    """
    return all(_has_disjoint_parts((first, second), buffer) for buffer in _shared([first], second))


def statements_of(stmt: Stmt, allocated: list[Buffer]) -> Iterator[Stmt]:
    """The statements of a sequence in order; the buffers that it allocates are added to `allocated`."""
    if isinstance(stmt, Allocate):
        allocated.append(stmt.buffer)
        yield from statements_of(stmt.body, allocated)
    elif isinstance(stmt, SeqStmt):
        for s in stmt.stmts:
            yield from statements_of(s, allocated)
    else:
        yield stmt


def _shared(stmts: Sequence[Stmt], other: Stmt) -> set[Var]:
    """The pointers of buffers that one side writes and the other reads or writes."""
    reads, writes = _accessed(stmts)
    other_reads, other_writes = _accessed([other])
    return writes & (other_reads | other_writes) | reads & other_writes


def _accessed(stmts: Sequence[Stmt]) -> tuple[set[Var], set[Var]]:
    """The pointers of buffers that are read, and of those that are written. An allocation does neither."""
    reads = {load.buffer.data for s in stmts for load in _loads(s)}
    return reads, {store.buffer.data for s in stmts for store in collect(s, BufferStore)}


def _loads(stmt: Stmt) -> list[BufferLoad]:
    prefetched = {e for call in collect(stmt, Call) if call.op == "prefetch" for e in collect(call, BufferLoad)}
    return [load for load in collect(stmt, BufferLoad) if load not in prefetched]


def _has_disjoint_parts(loops: Sequence[For], pointer: Var) -> bool:
    """Is there an S such that iteration i of each loop touches only the S elements from i * S + constant on?"""
    analyzer, least, accesses = Analyzer(), dict[Var, PrimExpr](), list[tuple[PrimExpr, Var]]()
    for loop in loops:
        for inner in collect(loop.body, For):
            analyzer.bind(inner.loop_var, Range(inner.min, inner.extent))
            least[inner.loop_var] = inner.min
        touched = [a for a in (*_loads(loop.body), *collect(loop.body, BufferStore)) if a.buffer.data is pointer]
        if any(len(access.indices) != 1 for access in touched):
            return False
        accesses += [(_AnyLane(analyzer, least).visit(access.indices[0]), loop.loop_var) for access in touched]
    strides = {stride for access in accesses if (stride := _stride(*access, analyzer)) is not None}
    if len(strides) != 1:
        return False
    (stride,), (index, var) = strides, accesses[0]
    begin = substitute(index, {**least, var: ops.const(0)})
    bounds = [analyzer.const_bounds(analyzer.simplify(e - i * stride - begin)) for e, i in accesses]
    return max([high for _, high in bounds]) - min([low for low, _ in bounds]) < stride


def _stride(index: PrimExpr, var: Var, analyzer: Analyzer) -> int | None:
    first, second = (substitute(index, {var: ops.const(n)}) for n in (0, 1))
    return ops.as_int(analyzer.simplify(second - first))


class _AnyLane(Mutator):
    """Replaces vector indices (such as those of tensor intrinsics) by the index of any of their lanes."""

    def __init__(self, analyzer: Analyzer, least: dict[Var, PrimExpr]) -> None:
        self.analyzer, self.least = analyzer, least

    def visit_Broadcast(self, node: Broadcast) -> PrimExpr:
        return self.visit(node.value)

    def visit_Ramp(self, node: Ramp) -> PrimExpr:
        lane = Var("lane", node.base.dtype)
        self.analyzer.bind(lane, Range(ops.const(0), ops.const(node.lanes)))
        self.least[lane] = ops.const(0)
        return node.base + lane * node.stride


class _Fuser(Mutator):
    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_For(self, node: For) -> Stmt:
        new = node.rebuild(self.visit)
        return new.replace(body=_with_fused(new.body))


def _with_fused(body: Stmt) -> Stmt:
    """The body of a loop or function, with the marked loops of its sequence fused."""
    allocated: list[Buffer] = []
    stmts = list(statements_of(body, allocated))
    if not any(_is_marked(s) for s in stmts):
        return body
    result = ops.seq(*[_unmarked(s) for s in _fused(stmts)])
    for buffer in reversed(allocated):
        result = Allocate(buffer, result)
    return result


def _fused(stmts: Sequence[Stmt]) -> list[Stmt]:
    result: list[Stmt] = []
    for stmt in stmts:
        at = next((i for i, s in enumerate(result) if _is_marked(s)), None)
        if at is None or not _is_marked(stmt) or not _fits(result[at], stmt):
            result.append(stmt)
            continue
        first, between = result[at], result[at + 1 :]
        if are_independent(between, stmt):
            result[at] = _joined(first, stmt)
        elif are_independent(between, first):  # initialisation of the second loop: zeros to add to
            result[at:] = [*between, _joined(first, stmt)]
        else:
            result.append(stmt)
    return result


def _is_marked(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and FUSE in stmt.annotations


def _fits(first: Stmt, second: Stmt) -> bool:
    assert isinstance(first, For) and isinstance(second, For)
    return have_equal_ranges(first, second) and can_fuse(first, second)


def _joined(first: Stmt, second: Stmt) -> For:
    assert isinstance(first, For) and isinstance(second, For)
    return first.replace(body=ops.seq(first.body, substitute(second.body, {second.loop_var: first.loop_var})))


def _unmarked(stmt: Stmt) -> Stmt:
    if not isinstance(stmt, For):
        return stmt
    return stmt.replace(annotations={key: value for key, value in stmt.annotations.items() if key != FUSE})


def fuse_loops(func: PrimFunc) -> PrimFunc:
    """The function with marked loops fused: see `FuseLoops`."""
    return func.with_body(_with_fused(_Fuser().visit(func.body)))


class FuseLoops(FunctionPass):
    """Loops of a sequence with the pragma "fuse_with_next" are fused, where that is legal.

    They must run over the same values, and memory that one writes and another accesses must consist of disjoint parts,
    one for each iteration. Statements in between must access none of the loops' memory. Buffers must be flat.
    """

    def function(self, func: PrimFunc) -> PrimFunc:
        return fuse_loops(func)
