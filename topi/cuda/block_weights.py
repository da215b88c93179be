"""Products with block-quantised weights on GPUs: a few rows read each word once, many multiply tiles of floats.

For a few rows (decoding) a thread reads 16 bytes at a time of the weights as they are stored: one word of four columns
of a panel, so that a warp reads 512 contiguous bytes. It makes floats of the codes in registers, multiplies them with
the rows, and scales the sum over the word. Words of a column are distributed over the threads of a block, whose sums
meet in shared memory. More rows are a product of matrices (`topi/cuda/products.py`), whose weights become floats on
their way to shared memory, or, for very many rows, in a kernel before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, Serves, note, serves_if
from relayc.te.tir import PrimExpr, as_dim, as_int
from relayc.te.tir.ops import bitwise_and, bitwise_or, call_intrin, left_shift, right_shift
from relayc.topi.candidates import Candidate, KernelFacts, schedule_by
from relayc.topi.cuda.common import block_axis, launch, thread_axis
from relayc.topi.cuda.contraction import Contraction, contraction_of, within, zero_filled
from relayc.topi.cuda.cost import BYTES_IN_FLIGHT, Gpu, power_of_two
from relayc.topi.cuda.epilogue import start_schedule
from relayc.topi.cuda.product_tiles import STATIC_SHARED_BYTES
from relayc.topi.cuda.products import schedule_contraction
from relayc.topi.groups import constant_size
from relayc.topi.nn.dense_bits import BlockWeights
from relayc.topi.registry import register_schedule
from relayc.topi.utils import ceil_div

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_dense_bits"]

_FEW_ROWS = 8
"""Most rows whose products are computed while the weights are read; a thread keeps 4 sums of each."""
_MANY_ROWS = 512
"""Rows from which on writing the weights as floats, and reading them again, takes a small part of the product."""
_LARGEST_FLOATS = 256 << 20
"""Bytes of weights as floats that are worth their memory."""
_COLUMNS = 4
"""Columns of a thread: 16 bytes of words."""
_STEPS = 4
"""Words of a column that a thread loads together."""
_LEAST_WORDS = 64
"""Words of a column at a time where there are panels for all multiprocessors: blocks of eight warps, for panels of 16
columns."""
_TOTALS = 4
"""Sums of words that a thread adds after the exchange in shared memory."""
_SECTOR = 32
"""Bytes of memory that are read or written at once."""
_MANTISSA = 23
"""Bits of the fraction of a float32, whose exponent is stored with 127 added."""
_HALF_WORD = 16
"""Bits of a word that fit into a fraction."""


@register_schedule("dense_bits", "cuda")
def schedule_dense_bits(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule a product with block-quantised weights, with its epilogue on the results."""
    return schedule_by(_CANDIDATES, KernelFacts(outs, anchor, target))


def _contraction(facts: KernelFacts) -> Contraction:
    found = contraction_of(facts.anchor)
    assert found is not None, "a product with weights is one of matrices"
    return found


def _weights(facts: KernelFacts) -> BlockWeights:
    found = facts.anchor.attrs["weights"]
    assert isinstance(found, BlockWeights)
    return found


# -- a few rows


@dataclass(frozen=True, slots=True)
class _FewRows:
    """How a block computes `rows` by a panel of columns: `words` of a column at a time, `steps` of them in flight."""

    rows: int
    words: int
    steps: int

    @staticmethod
    def of(gpu: Gpu, rows: int, weights: BlockWeights) -> _FewRows:
        """Threads that together have enough words in flight to keep the memory busy, but each has a few to read."""
        panels, height, width = [constant_size([d]) for d in weights.codes.shape]
        most = min(gpu.limits.threads_per_block * _COLUMNS // width, STATIC_SHARED_BYTES // (rows * (width + 4) * 4))
        step_bytes = panels * width * weights.codes.dtype.nbytes * _STEPS
        wanted = max(gpu.processors * BYTES_IN_FLIGHT // step_bytes, _LEAST_WORDS)
        words = power_of_two(min(most, wanted, max(height // _STEPS, _TOTALS)))
        return _FewRows(rows, words, min(_STEPS, -(-height // words)))


def _few_rows(facts: KernelFacts) -> te.Schedule | Refused:
    rows = as_int(_contraction(facts).rows)
    if rows is None or rows > _FEW_ROWS:
        return Refused(f"{_contraction(facts).rows} rows; at most {_FEW_ROWS} are multiplied while weights are read")
    fits = _has_groups(facts)
    return _reading_once(facts, rows) if fits else fits


def _any_rows(facts: KernelFacts) -> te.Schedule | Refused:
    rows = _contraction(facts).rows
    if isinstance(rows, int):
        return Refused(f"{rows} rows in every run")
    if not (fits := _has_groups(facts)):
        return fits
    one, few, many = _reading_once(facts, 1), _reading_once(facts, _FEW_ROWS), _tiles(facts)
    few.specialize_small(one, unless=rows > 1)
    many.specialize_small(few, unless=rows > _FEW_ROWS)
    return many


def _has_groups(facts: KernelFacts) -> Serves | Refused:
    width = _weights(facts).width
    return serves_if(width % _COLUMNS == 0, f"panels of {width} columns; groups of {_COLUMNS} are read")


def _reading_once(facts: KernelFacts, rows: int) -> te.Schedule:
    s, out = start_schedule(facts.outs, facts.anchor, facts.target)
    c, weights = _contraction(facts), _weights(facts)
    plan = _FewRows.of(Gpu.of(facts.target), rows, weights)
    note("words", "of a panel, by all threads", plan)
    stages = _Stages.of(c, weights, plan)
    result = facts.result
    s.recompute(result, te.compute(result.shape, stages.total(c), name=c.op.name, tag=c.op.tag))
    if s[out] is s[facts.anchor]:
        total = s.cache_write(s.current(out), "local")
        out = s.current(out)
    else:
        total = s.current(result)
        s[total].set_scope("local")
    block, row = _bind_output(s, out, total, c, weights.width, plan)
    stages.schedule(s, out, block, weights)
    s[total].compute_at(s[out], row)
    return s


def _bind_output(
    s: te.Schedule, out: te.Tensor, total: te.Tensor, c: Contraction, width: int, plan: _FewRows
) -> tuple[te.IterVar, te.IterVar]:
    """A block for each panel and tile of rows, the threads of a row of the block for a column."""
    stage = s[out]
    batch, rows, columns = c.loops(s, out)
    tile, row = stage.split(rows, factor=plan.rows, tail="predicate")
    panel, lane = stage.split(columns, factor=width, tail="predicate")
    stage.reorder(batch, tile, panel, lane, row)
    stage.bind(stage.fuse(batch, tile), block_axis("y"))
    stage.bind(panel, block_axis("x"))
    stage.bind(lane, thread_axis(width, "y"))
    stage.unroll(row)
    thread = thread_axis(plan.words // _TOTALS, "x")
    stage.env_threads([thread])
    stage.set_store_predicate(thread.var == 0)
    (word,) = s[total].op.reduce_axis
    some, across = s[total].split(word, factor=plan.words // _TOTALS)
    s[total].unroll(some)
    s[total].bind(across, thread_axis(plan.words // _TOTALS, "x"))
    return panel, row


@dataclass(frozen=True, slots=True)
class _Stages:
    """The stages of a block. Their first dimensions are (step, t), for word step * `plan.words` + t of a column."""

    partial: te.Tensor
    """sums over the steps: (t, row, panel, column)"""
    sums: te.Tensor
    """products summed over a word"""
    values: te.Tensor
    """floats of codes"""
    codes: te.Tensor
    scales: te.Tensor
    zeros: te.Tensor | None
    data: te.Tensor
    plan: _FewRows

    @staticmethod
    def of(c: Contraction, weights: BlockWeights, plan: _FewRows) -> _Stages:
        panels, height, width = [constant_size([d]) for d in weights.codes.shape]
        each, per_block = weights.depth // height, height // weights.blocks
        steps = -(-height // plan.words)
        rows = as_dim(ceil_div(c.rows, plan.rows) * plan.rows)

        def held(tensor: te.Tensor, words: int, name: str) -> te.Tensor:
            """What the step's word of a thread needs of the tensor, zeros beyond the last word."""

            def body(step: Any, t: Any, panel: Any, lane: Any) -> PrimExpr:
                word = step * plan.words + t
                return zero_filled(tensor(panel, word // words, lane), *within(word, height, plan.words, 1))

            return te.compute((steps, plan.words, panels, width), body, name=name)

        codes, scales = held(weights.codes, 1, "held_codes"), held(weights.scales, per_block, "held_scales")
        zeros = None if weights.zeros is None else held(weights.zeros, per_block, "held_zeros")

        def datum(step: Any, t: Any, row: Any, j: Any) -> PrimExpr:
            word = step * plan.words + t
            inside = (*within(row, c.rows, plan.rows, 1), *within(word, height, plan.words, 1))
            return zero_filled(c.left.at(0, row, word * each + j), *inside)

        data = te.compute((steps, plan.words, rows, each), datum, name="held_data")
        j = te.reduce_axis((0, each), name="j")

        def value(step: Any, t: Any, at: Any, panel: Any, lane: Any) -> PrimExpr:
            zero = None if zeros is None else zeros(step, t, panel, lane)
            return _value(weights, codes(step, t, panel, lane), at, zero)

        values = te.compute((steps, plan.words, each, panels, width), value, name="values")

        def of_word(step: Any, t: Any, row: Any, panel: Any, lane: Any) -> PrimExpr:
            return te.sum(te.cast("float32", data(step, t, row, j)) * values(step, t, j, panel, lane), axis=j)

        sums = te.compute((steps, plan.words, rows, panels, width), of_word, name="word_sums")
        step = te.reduce_axis((0, steps), name="step")

        def of_thread(t: Any, row: Any, panel: Any, lane: Any) -> PrimExpr:
            scale = te.cast("float32", scales(step, t, panel, lane))
            return te.sum(sums(step, t, row, panel, lane) * scale, axis=step)

        partial = te.compute((plan.words, rows, panels, width), of_thread, name="partial")
        return _Stages(partial, sums, values, codes, scales, zeros, data, plan)

    def total(self, c: Contraction) -> Any:
        """The body of the result: the sum over the words that threads have."""
        t, width = te.reduce_axis((0, self.plan.words), name="t"), self.partial.shape[3]

        def body(*index: Any) -> PrimExpr:
            _, row, column = c.position(index)
            return te.sum(self.partial(t, row, column // width, column % width), axis=t)

        return body

    def schedule(self, s: te.Schedule, out: te.Tensor, block: te.IterVar, weights: BlockWeights) -> None:
        """The sums of a block, computed in registers and left in shared memory."""
        own = s.cache_write(self.partial, "local")
        partial = s.current(self.partial)
        stage = s[partial]
        stage.set_scope("shared")
        stage.compute_at(s[out], block)
        t, row, panel, lane = stage.op.axis
        stage.storage_align(t, 8, 4)  # lanes that add words of a column read different banks
        group, column = stage.split(lane, factor=_COLUMNS)
        stage.reorder(panel, t, group, row, column)
        fused = stage.fuse(t, group)
        across, along = stage.split(fused, factor=self.plan.words // _TOTALS)
        stage.bind(across, thread_axis(weights.width, "y"))
        stage.bind(along, thread_axis(self.plan.words // _TOTALS, "x"))
        stage.unroll(row)
        stage.vectorize(column)

        s[own].compute_at(stage, along)
        *_, row, panel, column = s[own].op.axis
        outer, inner = s[own].split(s[own].op.reduce_axis[0], factor=self.plan.steps)
        s[own].reorder(outer, inner, row, panel, column)
        for axis in (inner, row, column):
            s[own].unroll(axis)
        for held in (self.codes, self.scales, self.zeros):
            if held is not None:
                s[held].set_scope("local")
                s[held].compute_at(s[own], outer)
                s[held].unroll(s[held].op.axis[0])
                s[held].vectorize(s[held].op.axis[-1])
        self._schedule_words(s, own, inner)
        if weights.table is not None:
            table = s.cache_read(weights.table, "shared", [self.values])
            s[table].compute_at(s[out], block)
            _, element = s[table].split(s[table].op.axis[0], factor=weights.width)
            s[table].bind(element, thread_axis(weights.width, "y"))
            thread = thread_axis(self.plan.words // _TOTALS, "x")
            s[table].env_threads([thread])
            s[table].set_store_predicate(thread.var == 0)

    def _schedule_words(self, s: te.Schedule, own: te.Tensor, inner: te.IterVar) -> None:
        """The products of a word, four codes at a time, each of which becomes a float once for all rows."""
        sums = self.sums
        s[sums].set_scope("local")
        s[sums].compute_at(s[own], inner)
        *_, row, panel, column = s[sums].op.axis
        some, j = s[sums].split(s[sums].op.reduce_axis[0], factor=_COLUMNS)
        s[sums].reorder(some, j, row, panel, column)
        for axis in (some, j, row, column):
            s[sums].unroll(axis)
        s[self.values].set_scope("local")
        s[self.values].compute_at(s[sums], j)
        s[self.values].unroll(s[self.values].op.axis[-1])
        s[self.data].set_scope("local")
        s[self.data].compute_at(s[sums], some)
        s[self.data].unroll(s[self.data].op.axis[2])
        s[self.data].vectorize(s[self.data].op.axis[3])


def _value(weights: BlockWeights, word: PrimExpr, j: Any, zero: PrimExpr | None) -> PrimExpr:
    """Code j of a word less its zero point, or the value in the table that it stands for, as float32.

    A code is masked where it lies in the mantissa of a float of 2^23, which a multiplication and an addition bring to
    its value, exactly: conversions of integers run at a quarter of the rate of integer operations before sm_90.
    """
    position = j % 4 * 8 + (j // 4 % 2 * 4 if weights.bits == 4 else 0)
    mask = (1 << weights.bits) - 1
    if weights.table is not None:
        return weights.table(bitwise_and(right_shift(word, position), mask))
    half, shift = right_shift(word, position // _HALF_WORD * _HALF_WORD), position % _HALF_WORD
    inside = bitwise_and(half, left_shift(te.const(mask, "int32"), shift))
    large = call_intrin("float32", "reinterpret", bitwise_or(inside, _power_bits(_MANTISSA)))
    unit, offset = [call_intrin("float32", "reinterpret", _power_bits(e)) for e in (-shift, _MANTISSA - shift)]
    if zero is None:
        return large * unit - (offset + te.const(float(1 << (weights.bits - 1)), "float32"))
    return large * unit - offset - te.cast("float32", zero)


def _power_bits(exponent: Any) -> PrimExpr:
    """The bits of 2^exponent as a float32."""
    return left_shift(te.const(127, "int32") + exponent, _MANTISSA)


# -- many rows


def _tiles(facts: KernelFacts) -> te.Schedule:
    """Weights become floats of the data's type on their way to the shared memory of each tile."""
    s, out = start_schedule(facts.outs, facts.anchor, facts.target)
    schedule_contraction(s, out, _of_words(_contraction(facts), _weights(facts)), facts.target)
    return s


def _floats_before(facts: KernelFacts) -> te.Schedule | Refused:
    """Weights become floats of the data's type in a kernel of their own, before a product of two matrices."""
    c, target = _contraction(facts), facts.target
    rows, nbytes = as_int(c.rows), constant_size([c.columns, c.depth]) * c.left.value.dtype.nbytes
    if rows is None or rows < _MANY_ROWS:
        return Refused(f"{c.rows} rows; from {_MANY_ROWS} on writing and reading floats costs little")
    if nbytes > _LARGEST_FLOATS:
        return Refused(f"{nbytes >> 20} MiB of floats exceed {_LARGEST_FLOATS >> 20}")
    s, out = start_schedule(facts.outs, facts.anchor, target)
    words = _of_words(c, _weights(facts)).right
    floats = te.compute((c.columns, c.depth), lambda n, k: words.at(0, n, k), name="floats")
    (column,), (k,) = c.right.free, c.right.depth
    schedule_contraction(s, out, replace(c, right=replace(c.right, value=floats(column.var, k.var))), target)
    stage = s[floats]
    n, k = stage.op.axis
    word, lane = stage.split(k, factor=words.packed)
    (n, column), (word, inner) = stage.split(n, factor=_SECTOR // 4), stage.split(word, factor=4)
    stage.reorder(n, word, inner, column, lane)  # a warp reads whole sectors, and writes whole sectors
    launch(s, floats, (n, word, inner, column), Gpu.of(target).block_size(constant_size(floats.shape) // words.packed))
    stage.vectorize(lane)
    return s


def _of_words(c: Contraction, weights: BlockWeights) -> Contraction:
    """The contraction with weights as words are unpacked: as `_value` has them, rounded to the type of the data."""
    (column,), (k,) = [[axis.var for axis in group] for group in (c.right.free, c.right.depth)]
    each = 32 // weights.bits
    panel, lane, block = column // weights.width, column % weights.width, k // (weights.depth // weights.blocks)
    zero = None if weights.zeros is None else weights.zeros(panel, block, lane)
    value = _value(weights, weights.codes(panel, k // each, lane), k % each, zero) * weights.scale(panel, block, lane)
    return replace(c, right=replace(c.right, value=te.cast(c.left.dtype, value), packed=each))


_CANDIDATES: list[Candidate[KernelFacts]] = [
    ("a few rows, words read once", _few_rows),
    ("versions for one, a few and many rows", _any_rows),
    ("floats of all weights before the product", _floats_before),
    ("floats of the weights of a tile", _tiles),
]
