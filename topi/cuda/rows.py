"""Kernels over the rows of a tensor: reductions along rows, and elementwise operations on their results.

A *row* is the input of one result of a reduction, a *column* the position in it; rows and columns may each span several
dimensions (see `RowMap`). A block has R rows of T threads. If columns are contiguous, the threads of a row are adjacent
(threadIdx.x runs along columns), otherwise those of adjacent rows are. A thread has C chunks of V columns::

    column = (chunk * T + thread) * V + lane

so that the V lanes are one vector access and the threads of a row read a whole chunk together. Rows of up to
`MAX_REGISTERS` columns per thread are read once and stay in registers (`Plan.registers`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import note
from relayc.te.tir import Dim, PrimExpr, ProducerLoad, Var, as_int, product
from relayc.te.tir.expr import Add, Mul
from relayc.topi.cuda.common import block_axis, thread_axis
from relayc.topi.cuda.cost import VECTOR_BYTES, Gpu, power_of_two
from relayc.topi.groups import constant_size
from relayc.topi.utils import ravel_index, same_dim, unravel_index

__all__ = [
    "MAX_REGISTERS", "Plan", "RowMap", "bind_results", "bind_rows", "hold_rows", "memory_order", "plan_rows",
    "reduce_rows",
]  # fmt: skip

MAX_REGISTERS = 16
"""Maximum columns of a row that a thread keeps in registers."""

_CHUNKS = 4
"""Chunks per thread where there are enough rows: loads in flight, against threads that synchronise."""

_SMALL_BLOCK = 128
"""Threads of a block that has several rows."""

_STREAMING_THREADS = 256
"""Threads per row that is too long for their registers."""


@dataclass(frozen=True, slots=True)
class RowMap:
    """The split of a tensor's dimensions of `shape` into rows and columns.

    `groups[d]` is 0 if dimension d belongs to the row, the dimension's size if it belongs to the column, and g if the
    row is index // g and the column index % g.
    """

    shape: tuple[Dim, ...]
    groups: tuple[Dim, ...]

    @staticmethod
    def of(op: te.ComputeOp, tensor: te.Tensor) -> RowMap | None:
        """The row map by which the reduction `op` reads `tensor`; None if it does not read row by row."""
        loads = [e for e in post_order(op.body) if isinstance(e, ProducerLoad) and e.producer is tensor]
        reduced = {axis.var: axis.extent for axis in op.reduce_axis}
        found = [_group_of(index, dim, reduced) for index, dim in zip(loads[0].indices, tensor.shape, strict=True)]
        groups = tuple([g for g in found if g is not None])
        met = [e for e in post_order(loads[0].indices) if isinstance(e, Var) and e in reduced]
        if len(groups) < len(found) or len(met) != len(reduced) or len(set(met)) != len(met):
            return None
        return RowMap(tuple(tensor.shape), groups)

    @property
    def column_shape(self) -> list[Dim]:
        """The sizes of the column's dimensions, in memory order."""
        return [g for g in self.groups if g != 0]

    @property
    def columns(self) -> Dim:
        """Columns of a row."""
        return product(self.column_shape)

    @property
    def row_shape(self) -> list[Dim]:
        """The sizes of the row's dimensions, in memory order."""
        pairs = zip(self.shape, self.groups, strict=True)
        return [d if g == 0 else d // g for d, g in pairs if g == 0 or not same_dim(d, g)]  # type: ignore[operator]

    @property
    def grouped(self) -> bool:
        """Is a dimension split between row and column?"""
        return any(g != 0 and not same_dim(d, g) for d, g in zip(self.shape, self.groups, strict=True))

    @property
    def along_memory(self) -> bool:
        """Are adjacent columns contiguous in memory?"""
        sizes = [i for i, d in enumerate(self.shape) if as_int(d) != 1]
        return not sizes or self.groups[sizes[-1]] != 0

    def split(self, index: Sequence[Any]) -> tuple[list[Any], Any]:
        """The row and the column of an element."""
        rows: list[Any] = []
        columns: list[Any] = []
        for value, dim, group in zip(index, self.shape, self.groups, strict=True):
            if group == 0:
                rows.append(value)
            elif same_dim(dim, group):
                columns.append(value)
            else:
                rows.append(value // group)
                columns.append(value % group)
        return rows, ravel_index(columns, self.column_shape)

    def join(self, rows: Sequence[Any], column: Any) -> list[Any]:
        """The index of the element of a row at a column."""
        row, columns = iter(rows), iter(unravel_index(column, self.column_shape))
        index: list[Any] = []
        for dim, group in zip(self.shape, self.groups, strict=True):
            if group == 0:
                index.append(next(row))
            elif same_dim(dim, group):
                index.append(next(columns))
            else:
                index.append(next(row) * group + next(columns))
        return index


def _group_of(index: PrimExpr, dim: Dim, reduced: Mapping[Var, Dim]) -> Dim | None:
    """The entry of `RowMap.groups` for a dimension read at `index`; None for another form of index."""
    if isinstance(index, Var):
        return 0 if index not in reduced else dim if same_dim(dim, reduced[index]) else None
    if as_int(index) is not None:
        return 0
    if not isinstance(index, Add) or not isinstance(index.a, Mul) or not isinstance(index.b, Var):
        return None
    size = as_int(index.a.b)
    return size if size is not None and index.b in reduced and as_int(reduced[index.b]) == size else None


@dataclass(frozen=True, slots=True)
class Plan:
    """The distribution of rows over threads; the module documentation defines R, T, C and V."""

    rows: int
    """R, rows per block."""
    threads: int
    """T, threads per row."""
    chunks: int
    """C, chunks per thread; an estimate if the number of columns is symbolic."""
    lanes: int
    """V, lanes of a vector access."""
    registers: bool
    """Does a thread keep its columns of a row in registers?"""
    along_memory: bool
    """Does threadIdx.x run along the columns?"""
    exact: bool
    """Is the number of columns constant, and C * T * V?"""

    def scalar(self) -> Plan:
        """This plan without vectorisation."""
        return replace(self, chunks=self.chunks * self.lanes, lanes=1)

    @property
    def chunk(self) -> int:
        """Columns per chunk."""
        return self.threads * self.lanes

    def row_thread(self) -> te.IterVar:
        """The thread axis over the rows of a block."""
        return thread_axis(self.rows, "y" if self.along_memory else "x")

    def column_thread(self) -> te.IterVar:
        """The thread axis over the columns of a row."""
        return thread_axis(self.threads, "x" if self.along_memory else "y")


def plan_rows(gpu: Gpu, rows: int, columns: Dim, itemsize: int, *, along_memory: bool, hold: bool) -> Plan:
    """Plan for `rows` rows (an estimate if symbolic) of elements of at most `itemsize` bytes.

    `hold`: is every column needed more than once, so that it is worth a register?
    """
    plan = _plan_along(gpu, rows, columns, itemsize, hold) if along_memory else _plan_across(gpu, rows, columns, hold)
    note("rows", "threads along a row" if along_memory else "adjacent threads on adjacent rows", plan)
    return plan


def _plan_along(gpu: Gpu, rows: int, columns: Dim, itemsize: int, hold: bool) -> Plan:
    """Plan with adjacent threads on adjacent columns."""
    known = as_int(columns)
    length = constant_size([columns])
    lanes = 1 if known is None else math.gcd(VECTOR_BYTES // itemsize, max(known, 1))
    many_rows = rows >= 2 * gpu.processors
    each = max(MAX_REGISTERS // lanes, 1) if hold else 2 * _CHUNKS
    vectors = math.ceil(length / lanes)
    threads = min(_round_up_power(math.ceil(vectors / (each if many_rows else 1))), gpu.limits.threads_per_block)
    registers = hold and known is not None and math.ceil(vectors / threads) * lanes <= MAX_REGISTERS
    if hold and not registers:
        lanes = math.gcd(lanes, max(4 // itemsize, 1))
        vectors = math.ceil(length / lanes)
    threads = threads if registers else min(threads, _STREAMING_THREADS if many_rows else gpu.limits.threads_per_block)
    return Plan(
        _rows_of_block(gpu, rows, threads), threads, max(math.ceil(vectors / threads), 1), lanes, registers, True,
        known is not None and known % (threads * lanes) == 0,
    )  # fmt: skip


def _plan_across(gpu: Gpu, rows: int, columns: Dim, hold: bool) -> Plan:
    """Plan with adjacent threads on adjacent rows; several threads take one row when there are too few rows."""
    wanted = gpu.processors * gpu.limits.threads_per_sm // 2
    known = as_int(columns)
    length = (1 << 16) if known is None else known
    threads = min(power_of_two(wanted // max(rows, 1)), power_of_two(length // _CHUNKS), gpu.limits.warp)
    block = max(gpu.limits.warp, _SMALL_BLOCK // threads)
    across = min(block, max(gpu.limits.warp // threads, _round_up_power(rows)))
    chunks = max(math.ceil(length / threads), 1)
    registers = hold and known is not None and chunks <= MAX_REGISTERS
    return Plan(across, threads, chunks, 1, registers, False, known is not None and length % threads == 0)


def _rows_of_block(gpu: Gpu, rows: int, threads: int) -> int:
    """Rows per block, with `threads` threads each: whole warps, and a block for every multiprocessor."""
    least = max(gpu.limits.warp // threads, 1)
    return max(min(_SMALL_BLOCK // threads, power_of_two(rows // gpu.processors)), least)


def _round_up_power(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


# -- schedules of single stages


def bind_rows(s: te.Schedule, out: te.Tensor, rows: RowMap, plan: Plan) -> te.IterVar:
    """Bind the loops of `out`, a tensor of the mapped shape, to threads; returns the loop to compute statistics at."""
    stage = s[out]
    outer: list[te.IterVar] = []
    inner: list[te.IterVar] = []
    for axis, dim, group in zip(stage.op.axis, rows.shape, rows.groups, strict=True):
        if group == 0:
            outer.append(axis)
        elif same_dim(dim, group):
            inner.append(axis)
        else:
            row, column = stage.split(axis, factor=group)
            outer.append(row)
            inner.append(column)
    stage.reorder(*outer, *inner)
    column = stage.fuse(*inner)
    block, row = stage.split(stage.fuse(*outer), factor=plan.rows)
    chunk, thread = stage.split(column, factor=plan.chunk)
    thread, lane = stage.split(thread, factor=plan.lanes)
    stage.reorder(block, row, thread, chunk, lane)
    stage.bind(block, block_axis())
    stage.bind(row, plan.row_thread())
    stage.bind(thread, plan.column_thread())
    if plan.registers:
        stage.unroll(chunk)
    if plan.lanes > 1:
        stage.vectorize(lane)
    return thread


def bind_results(s: te.Schedule, out: te.Tensor, plan: Plan) -> te.IterVar:
    """Bind the loops of `out`, one element per row, to threads; returns the loop to compute the reduction at."""
    stage = s[out]
    block, row = stage.split(stage.fuse(*stage.op.axis), factor=plan.rows)
    stage.bind(block, block_axis())
    stage.bind(row, plan.row_thread())
    if plan.threads > 1:
        thread = plan.column_thread()
        stage.env_threads([thread])
        stage.set_store_predicate(thread.var == 0)
    return row


def reduce_rows(s: te.Schedule, result: te.Tensor, order: Sequence[te.IterVar], plan: Plan) -> te.IterVar:
    """Bind the loops of a reduction to the threads of a row; returns the loop over chunks. `order`: its axes in memory
    order."""
    stage = s[result]
    stage.set_scope("local")
    stage.reorder(*order)
    chunk, thread = stage.split(stage.fuse(*order), factor=plan.chunk)
    thread, lane = stage.split(thread, factor=plan.lanes)
    if plan.threads > 1:
        stage.bind(thread, plan.column_thread())
    if plan.registers:
        stage.unroll(chunk)
    else:
        chunk, some = stage.split(chunk, factor=_CHUNKS)
        stage.reorder(chunk, some, thread, lane)
        stage.unroll(some)
        chunk = some
    stage.unroll(lane)
    return chunk


def memory_order(op: te.ComputeOp, tensor: te.Tensor) -> list[te.IterVar]:
    """The reduce axes of `op` in the order of the dimensions of `tensor` that they index."""
    load = next(e for e in post_order(op.body) if isinstance(e, ProducerLoad) and e.producer is tensor)
    met = [e for e in post_order(load.indices) if isinstance(e, Var)]
    return sorted(op.reduce_axis, key=lambda axis: next(i for i, v in enumerate(met) if v is axis.var))


def hold_rows(
    s: te.Schedule, tensor: te.Tensor, readers: Sequence[te.Operation], rows: RowMap, plan: Plan
) -> te.Tensor:
    """A copy of `tensor` in registers, each thread its columns, read by `readers` in its place."""
    width, threads, lanes = as_int(rows.columns), plan.threads, plan.lanes
    assert width is not None

    def element(source: te.Tensor, *index: Any) -> PrimExpr:
        *row, chunk, thread, lane = index
        vector = chunk * threads + thread
        value = source(*rows.join(row, vector * lanes + lane))
        return value if plan.exact else te.if_then_else(vector < width // lanes, value, te.const(0, value.dtype))

    def place(*index: Any) -> Sequence[Any]:
        row, column = rows.split(index)
        return *row, column // plan.chunk, column // lanes % threads, column % lanes

    shape = (*rows.row_shape, plan.chunks, threads, lanes)
    held = s.cache_read_packed(tensor, "local", readers, shape, element, place)
    *_, chunk, _, lane = s[held].op.axis
    s[held].unroll(chunk)
    if lanes > 1:
        s[held].vectorize(lane)
    return held
