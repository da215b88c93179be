"""Attention in one kernel on tensor cores: scores and weights never leave the registers.

A block of threads has a block of queries of one head and passes over the keys and values, block by block. Each warp
multiplies its queries, held as fragments, with the keys, turns the scores into weights, and adds their product with
the values to its sums. The weights are relative to the largest score so far; where a block has a larger one, what was
summed before is scaled down (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
"FlashAttention", 2022). Accumulators of scores are distributed over a warp as the left operand of the next product has
to be (`tensor_core`), so weights are rounded in place. Keys and values are copied to shared memory one block ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te.ir import post_order
from relayc.te.rewrite import map_reads
from relayc.te.tir import (
    Buffer,
    BufferLoad,
    Dim,
    PrimExpr,
    ProducerLoad,
    Select,
    Stmt,
    StringImm,
    Var,
    const,
    ir_builder,
)
from relayc.te.tir.ir_builder import BufferView
from relayc.te.tir.ops import call_intrin
from relayc.te.tir.passes.inject_software_pipeline import PIPELINE_SCOPE
from relayc.topi.cuda.attention_tiles import PAD, STAGES, AttentionTile
from relayc.topi.cuda.contraction import Operand, within, zero_filled
from relayc.topi.cuda.cost import VECTOR_BYTES
from relayc.topi.cuda.tensor_core import COLUMNS, ROWS, WARP_COLUMNS, Multiply, address, call
from relayc.topi.groups import inlined
from relayc.topi.utils import ceil_div, num_elements

__all__ = ["FusedAttention"]

_LOG2_E = math.log2(math.e)
_ALL_LANES = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """The parts of attention: operands over (batch, head) and an axis of their own, and the formulas around them.

    `score` is computed from `product`, at its own index; the kernel's result from `normalized`, the mean of the values
    by their weights. `causal`: keys of later positions than the query's are hidden.
    """

    query: Operand
    key: Operand
    value: Operand
    product: te.Tensor
    score: te.ComputeOp
    normalized: te.Tensor
    causal: bool

    def compute(self, out: te.ComputeOp, tile: AttentionTile, instruction: Multiply) -> te.Tensor:
        """The result of `out`, computed by one kernel."""
        operands = [operand.value for operand in (self.query, self.key, self.value)]
        formulas = [*operands, self.score_formula, self.result_formula(out)]
        loads = [n for n in post_order(formulas) if isinstance(n, ProducerLoad)]
        own = (self.product, self.normalized)
        inputs = list(dict.fromkeys([n.producer for n in loads if n.producer not in own]))

        def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            buffers = dict(zip(inputs, ins, strict=True))
            return _Writer(self, out, tile, instruction, buffers, outs[0]).kernel()

        result = out.output(0)
        return te.extern(result.shape, inputs, fill, out.name, str(result.dtype), tag=out.tag)

    @property
    def score_formula(self) -> PrimExpr:
        """A score of its axes and the product."""
        return inlined(self.score.body[0], self.product.op)

    def result_formula(self, out: te.ComputeOp) -> PrimExpr:
        """An element of `out` of its axes and the mean."""
        own = [axis.var for axis in out.axis]
        return self.normalized(*own) if out is self.normalized.op else inlined(out.body[0], self.normalized.op)


@dataclass(frozen=True, slots=True)
class _Block:
    """`lines` lines of `length` elements of an operand, in the order of memory; `across`: a line is along free axes.

    Copied `vector` elements at a time.
    """

    operand: Operand
    free: int
    depth: int
    across: bool
    vector: int

    @staticmethod
    def of(operand: Operand, free: int, depth: int) -> _Block:
        """So many rows or columns, and products, of an operand."""
        along, width = operand.copy_direction(VECTOR_BYTES // operand.value.dtype.nbytes)
        return _Block(operand, free, depth, along == "free", max(width, 1))

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.depth if self.across else self.free

    @property
    def length(self) -> int:
        """Elements of a line."""
        return self.free if self.across else self.depth

    def element(self, batch: Any, free: Any, depth: Any) -> PrimExpr:
        """An element of the operand, zero outside of it."""
        widths = (1, self.vector) if self.across else (self.vector, 1)
        inside = (
            *within(depth, self.operand.depth_size, self.depth, widths[0]),
            *within(free, self.operand.free_size, self.free, widths[1]),
        )
        return zero_filled(self.operand.at(batch, free, depth), *inside)


class _Writer:
    """Writes the kernel."""

    def __init__(
        self, attention: FusedAttention, out: te.ComputeOp, tile: AttentionTile, instruction: Multiply,
        buffers: dict[te.Tensor, Buffer], result: Buffer,
    ) -> None:  # fmt: skip
        self.attention, self.tile, self.instruction = attention, tile, instruction
        self.out, self.buffers, self.result = out, buffers, result
        self.length, self.keys = attention.query.free_size, attention.key.free_size
        self.type, self.wide = instruction.dtype, instruction.wide
        self.lowest = const(float("-inf"), self.wide)
        self.ib = ir_builder.create()

    def read(self, formula: PrimExpr, results: dict[te.Tensor, PrimExpr] | None = None) -> PrimExpr:
        """A formula that reads buffers, and in place of tensors that the kernel computes their present element."""
        computed = results or {}

        def element(load: ProducerLoad) -> PrimExpr:
            held = computed.get(load.producer)
            return BufferLoad(self.buffers[load.producer], load.indices) if held is None else held

        return map_reads(formula, element)

    @contextmanager
    def unrolled(self, **extents: int) -> Generator[tuple[Var, ...]]:
        """Loops whose iterations are written out, so that arrays stay in registers."""
        with ExitStack() as loops:
            ranges = [self.ib.for_range(0, extent, name, "unrolled") for name, extent in extents.items()]
            yield tuple([loops.enter_context(each) for each in ranges])

    def pair(self, vector: bool) -> AbstractContextManager[Var]:
        """A loop over two adjacent elements, as a vector or one by one."""
        return self.ib.for_range(0, 2, "e", "vectorized" if vector else "unrolled")

    def where(self, conditions: Sequence[PrimExpr]) -> AbstractContextManager[None]:
        """The block for when all of the conditions hold."""
        return self.ib.if_scope(te.all(*conditions)) if conditions else nullcontext()

    def registers(self, dtype: str, shape: tuple[int, ...], name: str) -> BufferView:
        """An array of each thread."""
        return self.ib.allocate(dtype, shape, name)

    # -- the kernel

    def kernel(self) -> Stmt:
        """The whole kernel."""
        ib, tile, a = self.ib, self.tile, self.attention
        blocks = ceil_div(self.length, tile.rows)
        heads = num_elements([axis.dom.extent for axis in a.query.batch if axis.dom is not None])
        number = ib.thread_axis(num_elements([heads, blocks]), "blockIdx.x")
        thread = ib.thread_axis(tile.threads, "threadIdx.x")
        self.head = ib.let("head", number // blocks)
        block = number % blocks
        if a.causal:  # those with most keys start first
            block = blocks - 1 - block
        self.first = ib.let("first", block * tile.rows)
        self.thread, lane = thread, thread % 32
        self.warp, self.g, self.t = thread // 32, lane // WARP_COLUMNS, lane % WARP_COLUMNS

        count = tile.fragments
        queries = self.registers(self.type, (count, tile.depth // 16, 2, 2, 2), "queries")
        sums = self.registers(self.wide, (count, tile.width // COLUMNS, 2, 2), "sums")
        top = self.registers(self.wide, (count, 2), "top")
        total = self.registers(self.wide, (count, 2), "total")
        self.load_queries(queries)
        with self.unrolled(i=count, half=2) as (i, half):
            top[i, half], total[i, half] = self.lowest, const(0, self.wide)
            with self.unrolled(j=tile.width // COLUMNS, e=2) as (j, e):
                sums[i, j, half, e] = const(0, self.wide)
        with ib.for_range(0, self.steps(), "step") as step:
            self.step(step * tile.keys, queries, sums, top, total)
        self.write(sums, total)
        return ib.get()

    def steps(self) -> Dim:
        """Blocks of keys that a query of the block attends to."""
        keys = self.keys
        if self.attention.causal:
            keys = te.minimum(keys, self.first + (keys - self.length + self.tile.rows))
        return ceil_div(keys, self.tile.keys)

    def row(self, i: Any, half: Any) -> PrimExpr:
        """The query of fragment `i` of the thread."""
        return self.first + (self.warp * self.tile.fragments + i) * ROWS + half * 8 + self.g

    def load_queries(self, queries: BufferView) -> None:
        """Load the queries' fragments: rows g and g + 8, elements 2 t, 2 t + 1 of either half of 16."""
        operand = self.attention.query
        vector = 2 if operand.vector_width("depth", 2) == 2 else 1
        query = _Block(operand, self.tile.rows, self.tile.depth, False, vector)
        loops = self.unrolled(i=self.tile.fragments, k=self.tile.depth // 16, part=2, half=2)
        with loops as (i, k, part, half), self.pair(vector == 2) as e:
            value = query.element(self.head, self.row(i, half), k * 16 + part * 8 + self.t * 2 + e)
            queries[i, k, part, half, e] = self.read(value)

    def step(self, start: PrimExpr, queries: BufferView, sums: BufferView, top: BufferView, total: BufferView) -> None:
        """Attend to the block of keys from `start` on."""
        tile, a = self.tile, self.attention
        key = _Block.of(a.key, tile.keys, tile.depth)
        value = _Block.of(a.value, tile.width, tile.keys)
        keys = self.copied(key, "keys", lambda free, depth: (start + free, depth))
        values = self.copied(value, "values", lambda free, depth: (free, start + depth))
        scores = self.registers(self.wide, (tile.fragments, tile.keys // COLUMNS, 2, 2), "scores")
        weights = self.registers(self.type, (tile.fragments, tile.keys // 16, 2, 2, 2), "weights")
        with self.unrolled(i=tile.fragments, j=tile.keys // COLUMNS, half=2, e=2) as (i, j, half, e):
            scores[i, j, half, e] = const(0, self.wide)
        self.multiply(queries, key, keys, scores)
        self.finish_scores(scores, start)
        self.weigh(scores, weights, sums, top, total)
        self.multiply(weights, value, values, sums)

    def copied(self, block: _Block, name: str, place: Callable[[Any, Any], tuple[Any, Any]]) -> BufferView:
        """A copy of a block in shared memory, made by all threads one step ahead.

        `place` gives the row or column and the depth in the operand of those in the block.
        """
        ib, vector = self.ib, block.vector
        copy = ib.allocate(self.type, (block.lines, block.length + PAD), name, scope="shared.dyn")
        pieces = block.length // vector
        count, threads = block.lines * pieces, self.tile.threads
        with ib.scope():
            ib.scope_attr(copy.buffer, PIPELINE_SCOPE, STAGES)
            with self.unrolled(round=-(-count // threads)) as (turn,):
                number = turn * threads + self.thread
                with self.where(within(number, count, threads, 1)):
                    line, first = number // pieces, number % pieces * vector
                    with ib.for_range(0, vector, "lane", "vectorized") as lane:
                        free, depth = (first + lane, line) if block.across else (line, first + lane)
                        copy[line, first + lane] = self.read(block.element(self.head, *place(free, depth)))
        return copy

    def multiply(self, left: BufferView, block: _Block, right: BufferView, sums: BufferView) -> None:
        """sums[i, j] += the product of fragments left[i, k] and columns j of a block in shared memory, over all k."""
        ib, tiles = self.ib, block.free // COLUMNS
        load = "rc_load_right_pair" + ("_transposed" if block.across else "")
        stride = (block.length + PAD) * block.operand.value.dtype.nbytes
        with self.unrolled(k=block.depth // 16) as (k,):
            columns = self.registers(self.type, (tiles, 4), "columns")
            with self.unrolled(pair=tiles // 2) as (pair,):
                free, depth = pair * 16 + self.t * 2, k * 16
                own = (depth, free) if block.across else (free, depth)
                places = [address(columns.buffer, (pair * 2 + i, 0)) for i in range(2)]
                ib.emit(call(load, *places, address(right.buffer, own), stride))
            with self.unrolled(i=self.tile.fragments, j=tiles) as (i, j):
                fragments = address(left.buffer, (i, k, 0, 0, 0)), address(columns.buffer, (j, 0))
                ib.emit(call(self.instruction.name, address(sums.buffer, (i, j, 0, 0)), *fragments))

    # -- scores and weights

    def finish_scores(self, scores: BufferView, start: PrimExpr) -> None:
        """Scale and mask the scores.

        Blocks in which all keys exist and every query sees them all need no conditions.
        """
        a, tile, formula = self.attention, self.tile, self.attention.score_formula
        reads = any(isinstance(n, ProducerLoad) and n.producer is not a.product for n in post_order(formula))

        def exists(row: PrimExpr, column: PrimExpr) -> list[PrimExpr]:
            rows = within(row, self.length, tile.rows, 1) if reads else []  # others have zeros for queries
            return [*within(column, self.keys, tile.keys, 1), *rows]

        def anywhere(row: PrimExpr, column: PrimExpr, value: Callable[[PrimExpr], PrimExpr]) -> PrimExpr:
            conditions = exists(row, column)
            choose = te.if_then_else if reads else te.select
            return choose(te.all(*conditions), value(formula), self.lowest) if conditions else value(formula)

        last = start + (tile.keys - 1)
        simple = exists(self.first + (tile.rows - 1), last)
        simple += [last <= self.first + (self.keys - self.length)] if a.causal else []
        if not simple:
            self.map_scores(scores, start, anywhere)
            return
        inside = formula.true_value if a.causal and isinstance(formula, Select) else formula
        with self.ib.if_scope(te.all(*simple)):
            self.map_scores(scores, start, lambda row, column, value: value(inside))
        with self.ib.else_scope():
            self.map_scores(scores, start, anywhere)

    def map_scores(self, scores: BufferView, start: PrimExpr, to: Callable[..., PrimExpr]) -> None:
        """Replace each score by ``to(query, key, value)``; `value` evaluates a formula for it."""
        axes = [axis.var for axis in self.attention.score.axis]
        with self.unrolled(i=self.tile.fragments, j=self.tile.keys // COLUMNS, half=2, e=2) as (i, j, half, e):
            row, column = self.row(i, half), start + j * COLUMNS + self.t * 2 + e
            index = dict(zip(axes, (*self.batch_index(), row, column), strict=True))
            product = {self.attention.product: scores[i, j, half, e]}
            scores[i, j, half, e] = to(row, column, lambda formula: self.read(_at(formula, index), product))

    def batch_index(self) -> tuple[PrimExpr, PrimExpr]:
        """The batch and head of the block."""
        heads = self.attention.score.output(0).shape[1]
        return self.head // heads, self.head % heads

    def weigh(
        self, scores: BufferView, weights: BufferView, sums: BufferView, top: BufferView, total: BufferView
    ) -> None:
        """Turn scores into weights relative to the new largest score, and what was summed before accordingly."""
        ib, tile = self.ib, self.tile
        with self.unrolled(i=tile.fragments, half=2) as (i, half):
            best = self.registers(self.wide, (1,), "best")
            best[0] = top[i, half]
            with self.unrolled(j=tile.keys // COLUMNS, e=2) as (j, e):
                best[0] = te.maximum(best[0], scores[i, j, half, e])
            self.across_columns(best, te.maximum)
            hidden = best[0] == self.lowest  # as yet no key is seen: all weights are 0
            shift = ib.let("shift", te.select(hidden, const(0, self.wide), best[0]))
            scale = ib.let("scale", _exponential(top[i, half] - shift))
            top[i, half] = best[0]
            total[i, half] = total[i, half] * scale
            with self.unrolled(j=tile.width // COLUMNS, e=2) as (j, e):
                sums[i, j, half, e] = sums[i, j, half, e] * scale
            with self.unrolled(k=tile.keys // 16, part=2, e=2) as (k, part, e):
                weight = ib.let("weight", _exponential(scores[i, k * 2 + part, half, e] - shift))
                total[i, half] = total[i, half] + weight
                weights[i, k, part, half, e] = te.cast(self.type, weight)

    def across_columns(self, value: BufferView, combine: Callable[[Any, Any], PrimExpr]) -> None:
        """Combine the values of the threads that share a row, in all of them."""
        other = self.registers(self.wide, (1,), "other")
        for distance in (2, 1):
            lanes = const(_ALL_LANES, "uint32"), value[0], distance, WARP_COLUMNS
            other[0] = call_intrin(self.wide, "warp_shuffle_xor", *lanes)
            value[0] = combine(value[0], other[0])

    # -- the result

    def write(self, sums: BufferView, total: BufferView) -> None:
        """Write the result, two adjacent elements at a time where that many are aligned."""
        ib, a, tile, width = self.ib, self.attention, self.tile, self.attention.value.free_size
        assert isinstance(width, int)
        formula, axes = a.result_formula(self.out), [axis.var for axis in self.out.axis]
        even, out = width % 2 == 0, ib.buffer(self.result)
        with self.unrolled(i=tile.fragments, half=2) as (i, half):
            whole = self.registers(self.wide, (1,), "whole")
            whole[0] = total[i, half]
            self.across_columns(whole, lambda x, y: x + y)
            nothing, one = (const(n, self.wide) for n in (0, 1))
            share = ib.let("share", one / te.select(whole[0] == nothing, one, whole[0]))  # one division for the row
            row = self.row(i, half)
            with self.where(within(row, self.length, tile.rows, 1)), self.unrolled(j=-(-width // COLUMNS)) as (j,):
                first = j * COLUMNS + self.t * 2
                pair = self.where(within(first, width, COLUMNS, 2) if even else [])
                with pair, self.pair(even) as e, self.where([] if even else within(first + e, width, COLUMNS, 1)):
                    index = (*self.batch_index(), row, first + e)
                    at = dict(zip(axes, index, strict=True))
                    mean = te.cast(str(a.normalized.dtype), sums[i, j, half, e] * share)
                    out[index] = self.read(_at(formula, at), {a.normalized: mean})


def _exponential(x: PrimExpr) -> PrimExpr:
    """exp(x) to a few units in the last place of float32, of which 16-bit weights keep at most eleven bits."""
    return call_intrin(x.dtype, "call_extern", StringImm("rc_exp2_approx"), x * const(_LOG2_E, x.dtype))


def _at(formula: PrimExpr, index: dict[Var, PrimExpr]) -> PrimExpr:
    return map_reads(formula, lambda load: load, index)
