"""Reductions across the threads of a block become shuffles within warps and exchanges through shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relayc.te.errors import LoweringError
from relayc.te.ir.visitor import Mutator
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import BufferLoad, Call, CommReducer, IterVar, PrimExpr, Var
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore, Evaluate, For, ForKind, IfThenElse, LetStmt, Stmt
from relayc.te.tir.substitute import substitute

__all__ = ["LowerThreadAllreduce", "lower_thread_allreduce"]

REDUCE_SCOPE = "reduce_scope"
_TAGS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
_ZERO = (ops.const(0),)


@dataclass(frozen=True)
class _Axis:
    """A thread axis of the block and how many threads it has."""

    var: Var
    extent: int


@dataclass(frozen=True)
class _Group:
    """The threads that reduce together: `count` of them; `rank` counts within the group, `number` the groups.

    `adjacent`: the threads of a group follow each other in the order that warps are cut from.
    """

    count: int
    groups: int
    rank: PrimExpr
    number: PrimExpr
    adjacent: bool
    threads: int

    @staticmethod
    def of(axes: Sequence[_Axis], reduced: set[Var]) -> _Group:
        """The group of the axes in `reduced` (of a block with `axes`, the fastest first)."""
        wide = [axis for axis in axes if axis.extent > 1]
        inside, outside = ([a for a in wide if (a.var in reduced) is own] for own in (True, False))
        rank, count = _linear(inside)
        number, groups = _linear(outside)
        return _Group(count, groups, rank, number, wide[: len(inside)] == inside, count * groups)

    @property
    def linear(self) -> PrimExpr:
        """The number of an adjacent group's thread in the block."""
        assert self.adjacent
        return ops.add(ops.mul(self.number, self.count), self.rank)


def _linear(axes: Sequence[_Axis]) -> tuple[PrimExpr, int]:
    """The position among the threads of some axes, the first axis fastest, and their number."""
    position: PrimExpr = ops.const(0)
    stride = 1
    for axis in axes:
        position = ops.add(position, ops.mul(axis.var, stride))
        stride *= axis.extent
    return position, stride


class _Reduction:
    """Emits one reduction: every thread ends with the result in `values`, one register per component of the tuple."""

    def __init__(self, combiner: CommReducer, sources: Sequence[PrimExpr], group: _Group, warp: int) -> None:
        self.combiner = combiner
        self.group = group
        self.warp = warp
        self.allocated: list[Buffer] = []
        self.values = [self.allocate("reduced", e.dtype, 1, "local") for e in sources]
        self.stmts: list[Stmt] = [_set(v, e) for v, e in zip(self.values, sources, strict=True)]

    def allocate(self, name: str, dtype: str, size: int, scope: str) -> Buffer:
        buffer = Buffer(name, (size,), dtype, scope=scope)
        self.allocated.append(buffer)
        return buffer

    def run(self) -> None:
        """Emit the exchange that suits the group."""
        group = self.group
        if group.adjacent and group.count <= self.warp and _is_power(group.count):
            self.butterfly(group.count)
        elif group.adjacent and group.count % self.warp == 0:
            self.across_warps()
        elif group.count <= self.warp:
            self.through_memory(group.count)
        else:
            self.through_memory(self.warp)

    def butterfly(self, width: int) -> None:
        """A butterfly of shuffles in `width` lanes of a warp: after distance d, 2 * d adjacent lanes are equal."""
        others = [self.allocate("other", v.dtype, 1, "local") for v in self.values]
        mask = self.active_lanes()
        distance = width // 2
        while distance:
            for value, other in zip(self.values, others, strict=True):
                lane = ops.call_intrin(value.dtype, "warp_shuffle_xor", mask, _get(value), distance, width)
                self.stmts.append(_set(other, lane))
            self.stmts.append(self.combined(self.values, [_get(v) for v in self.values], [_get(o) for o in others]))
            distance //= 2

    def active_lanes(self) -> PrimExpr:
        """The mask of the active lanes of a warp: all, except in a partial last warp."""
        everyone, rest = ops.const((1 << self.warp) - 1, "uint32"), self.group.threads % self.warp
        if rest == 0:
            return everyone
        last = ops.const((1 << rest) - 1, "uint32")
        full = self.group.threads - rest
        return last if full == 0 else ops.select(ops.less(self.group.linear, full), everyone, last)

    def across_warps(self) -> None:
        """Reduce in each warp, exchange the results through shared memory, and combine them in every warp."""
        self.butterfly(self.warp)
        warps = self.group.count // self.warp
        if warps == 1:
            return
        first = ops.mul(self.group.number, warps)
        boxes = [self.allocate("exchange", v.dtype, self.group.groups * warps, "shared") for v in self.values]
        sender = ops.add(first, ops.floordiv(self.group.rank, self.warp))
        give = ops.seq([BufferStore(b, _get(v), (sender,)) for b, v in zip(boxes, self.values, strict=True)])
        self.stmts.append(IfThenElse(ops.equal(ops.floormod(self.group.rank, self.warp), 0), give))
        width = 1 << (warps - 1).bit_length()
        box = ops.floormod(self.group.rank, width)
        for value, buffer, identity in zip(self.values, boxes, self.combiner.identity, strict=True):
            taken: PrimExpr = BufferLoad(buffer, (ops.add(first, box),))
            if width != warps:
                taken = ops.if_then_else(ops.less(box, warps), taken, identity)
            self.stmts.append(_set(value, taken))
        self.butterfly(width)

    def through_memory(self, width: int) -> None:
        """For groups not made of whole warps: all values through shared memory, `width` partial results, then one.

        The values of a group lie `groups` apart, so that neighbouring threads reach different banks.
        """
        group = self.group
        boxes = self.put_all(group.rank, group.count)
        if group.count > width:
            start = ops.floormod(group.rank, width)
            self.gather(boxes, start, width, group.count)
            boxes = self.put_all(start, width, ops.less(group.rank, width))
        self.gather(boxes, ops.const(0), 1, min(width, group.count))

    def put_all(self, position: PrimExpr, count: int, condition: PrimExpr | None = None) -> list[Buffer]:
        """Store `values` of each thread (where `condition` holds) to its own slot in shared memory."""
        boxes = [self.allocate("exchange", v.dtype, self.group.groups * count, "shared") for v in self.values]
        at = (ops.add(ops.mul(position, self.group.groups), self.group.number),)
        put = ops.seq([BufferStore(b, _get(v), at) for b, v in zip(boxes, self.values, strict=True)])
        self.stmts.append(put if condition is None else IfThenElse(condition, put))
        return boxes

    def gather(self, boxes: Sequence[Buffer], start: PrimExpr, step: int, count: int) -> None:
        """Set `values` to the combination of slots start, start + step, ... of the group, below `count`."""
        self.stmts += [_set(v, e) for v, e in zip(self.values, self.combiner.identity, strict=True)]
        i = Var("i")
        position = ops.add(start, ops.mul(i, step))
        at = (ops.add(ops.mul(position, self.group.groups), self.group.number),)
        body = self.combined(self.values, [_get(v) for v in self.values], [BufferLoad(b, at) for b in boxes])
        if count % step:
            body = IfThenElse(ops.less(position, count), body)
        trips = -(-count // step)
        self.stmts.append(For(i, ops.const(0), ops.const(trips), ForKind.SERIAL, body))

    def combined(self, targets: Sequence[Buffer], a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> Stmt:
        """Store the combination of two tuples; both are read before anything is written."""
        combiner = self.combiner
        operands = dict(zip((*combiner.lhs, *combiner.rhs), (*a, *b), strict=True))
        results = [substitute(result, operands) for result in combiner.result]
        if len(results) == 1:
            return _set(targets[0], results[0])
        held = [Var("combined", result.dtype) for result in results]
        body = ops.seq([_set(t, v) for t, v in zip(targets, held, strict=True)])
        for var, result in reversed(list(zip(held, results, strict=True))):
            body = LetStmt(var, result, body)
        return body


def _get(register: Buffer) -> BufferLoad:
    return BufferLoad(register, _ZERO)


def _set(register: Buffer, value: PrimExpr) -> Stmt:
    return BufferStore(register, value, _ZERO)


def _is_power(count: int) -> bool:
    return count & (count - 1) == 0


class _Lowerer(Mutator):
    def __init__(self, warp: int) -> None:
        self.warp = warp
        self.axes: dict[str, _Axis] = {}

    def visit_PrimExpr(self, node: PrimExpr) -> PrimExpr:
        return node

    def visit_AttrStmt(self, node: AttrStmt) -> Stmt:
        axis = node.subject
        if node.key == "thread_extent" and isinstance(axis, IterVar) and axis.thread_tag in _TAGS:
            extent = ops.as_int(node.value)
            if extent is None:
                return node.rebuild(self.visit)
            outer = dict(self.axes)
            self.axes[axis.thread_tag] = _Axis(axis.var, extent)
            new = node.rebuild(self.visit)
            self.axes = outer
            return new
        if node.key != REDUCE_SCOPE:
            return node.rebuild(self.visit)
        assert isinstance(node.subject, CommReducer) and isinstance(node.body, Evaluate)
        return self.reduction(node.subject, node.body.value)

    def reduction(self, combiner: CommReducer, call: PrimExpr) -> Stmt:
        """``thread_allreduce(size, values..., addresses of the results..., threads...)``"""
        assert isinstance(call, Call) and call.op == "thread_allreduce"
        size = ops.as_int(call.args[0])
        assert size is not None
        sources, addresses = call.args[1 : size + 1], call.args[size + 1 : 2 * size + 1]
        threads = call.args[2 * size + 1 :]
        known = {axis.var for axis in self.axes.values()}
        reduced = {v for v in threads if isinstance(v, Var)}
        if not reduced <= known:
            names = ", ".join(sorted(v.name for v in reduced - known))
            raise LoweringError(f"reduction across {names}: these are not threads of the block, of constant number; "
                                "bind reduce axes to threadIdx")  # fmt: skip
        axes = [self.axes[tag] for tag in _TAGS if tag in self.axes]
        written = _Reduction(combiner, sources, _Group.of(axes, reduced), self.warp)
        if written.group.count > 1:
            written.run()
        for address, value in zip(addresses, written.values, strict=True):
            load = address.args[0] if isinstance(address, Call) else None
            assert isinstance(load, BufferLoad), "results of thread_allreduce are addresses of elements"
            written.stmts.append(BufferStore(load.buffer, _get(value), load.indices))
        body = ops.seq(written.stmts)
        for buffer in reversed(written.allocated):
            body = Allocate(buffer, body)
        return body


def lower_thread_allreduce(func: PrimFunc, warp_size: int = 32) -> PrimFunc:
    """The function with cross-thread reductions written out: see `LowerThreadAllreduce`."""
    return func.with_body(_Lowerer(warp_size).visit(func.body))


@dataclass(frozen=True)
class LowerThreadAllreduce(FunctionPass):
    """`thread_allreduce` becomes code in which every thread of the group ends with the result.

    A group of a power of two of neighbouring threads in one warp exchanges by shuffles alone; a group of whole warps
    does so in each warp and then passes one value per warp through shared memory; any other group puts all its values
    there. The order of the combination is fixed. Barriers are left to `ThreadSync`. (TVM: `LowerThreadAllreduce`.)
    """

    warp_size: int = 32

    def function(self, func: PrimFunc) -> PrimFunc:
        return lower_thread_allreduce(func, self.warp_size)
