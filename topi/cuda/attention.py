"""Attention on GPUs: one kernel that keeps scores and weights in registers, or four through global memory.

The one kernel multiplies 16-bit floats on tensor cores (`fused_attention`).

Of the four, the first computes the scores, a product with scaling and masks in its epilogue; the second the weights,
exponentials of the scores, with rows of scores in registers; the third their sums; and the last the weighted sum of
the values, a product with the division in its epilogue. Intermediates are in global memory, in the L2 cache as long as
they fit. Weights of 16-bit floats are rounded to the type of the values before they are summed and multiplied, so that
tensor cores multiply them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, note
from relayc.te.rewrite import map_reads
from relayc.te.tir import PrimExpr, ProducerLoad, Reduce, as_dim
from relayc.te.tir.substitute import substitute
from relayc.topi.candidates import KernelFacts, schedule_by
from relayc.topi.cuda.attention_tiles import AttentionProblem, AttentionTile
from relayc.topi.cuda.contraction import Contraction, Operand, contraction_of, factors_of
from relayc.topi.cuda.cost import Gpu
from relayc.topi.cuda.epilogue import start_schedule
from relayc.topi.cuda.fused_attention import FusedAttention
from relayc.topi.cuda.product_tiles import L2_BYTES_PER_CYCLE, LAUNCH_CYCLES, architecture, mma_per_cycle
from relayc.topi.cuda.products import plans_of, schedule_contraction
from relayc.topi.cuda.reduction import schedule_reduction
from relayc.topi.cuda.rows import RowMap
from relayc.topi.cuda.rowwise import schedule_rows
from relayc.topi.cuda.stagewise import schedule_stagewise
from relayc.topi.cuda.tensor_core import Multiply, multiplies
from relayc.topi.groups import constant_size
from relayc.topi.registry import register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_attention"]

_STAGES = ("attention_product", "attention_score", "attention_max", "attention_exp", "attention_sum")

_FEW = 16
"""Rows of a fragment. A dynamic number of at most as many, as in steps of a decoder, has a kernel of its own."""


@register_schedule("attention", "cuda")
def schedule_attention(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """One kernel, or four: scores, weights, sums of weights, mixed values."""
    facts = _Attention(outs, anchor, target)
    return schedule_by((("one kernel", _one_kernel), ("four kernels", _four_kernels), ("stages", _stagewise)), facts)


@dataclass(frozen=True, eq=False)
class _Attention(KernelFacts):
    """Attention, by the stages that `topi.nn.attention` gives it."""

    @cached_property
    def found(self) -> dict[str, te.ComputeOp]:
        """The intermediate stages by tag."""
        return {op.tag: op for op in self.stages if op.tag in _STAGES}

    @cached_property
    def is_whole(self) -> bool:
        """Is every stage a formula still?"""
        return len(self.found) == len(_STAGES) and isinstance(self.anchor, te.ComputeOp)

    @cached_property
    def normalized(self) -> te.ComputeOp | None:
        """The division of the weighted values by the sums of weights, if nothing else reads intermediate results."""
        inner = {id(op) for op in (*self.found.values(), self.anchor)}
        readers = [op for op in self.stages if id(op) not in inner and any(id(t.op) in inner for t in op.input_tensors)]
        read = {t.op.tag for op in readers for t in op.input_tensors if id(t.op) in inner}
        outputs = any(id(out.op) in inner for out in self.outs)
        return readers[0] if len(readers) == 1 and read == {"attention", "attention_sum"} and not outputs else None

    def fused(self) -> FusedAttention | None:
        """The parts of one kernel; None where others read what is inside of it."""
        product, score, normalized = self.found["attention_product"], self.found["attention_score"], self.normalized
        scores, mixed = factors_of(product), factors_of(self.anchor)
        if normalized is None or scores is None or mixed is None or not isinstance(self.anchor, te.ComputeOp):
            return None
        (query, key), (_, value) = scores[1], mixed[1]
        b, h, row, column = product.axis
        own = self.anchor.axis
        at = {own[0].var: b.var, own[1].var: h.var}
        return FusedAttention(
            Operand(query, (b, h), (row,), tuple(product.reduce_axis)),
            Operand(key, (b, h), (column,), tuple(product.reduce_axis)),
            Operand(substitute(value, at), (b, h), (own[3],), tuple(self.anchor.reduce_axis)),
            product.output(0), score, normalized.output(0), bool(self.anchor.attrs["causal"]),
        )  # fmt: skip


def _stagewise(facts: _Attention) -> te.Schedule:
    return schedule_stagewise(facts.outs, facts.anchor, facts.target)


# -- one kernel


def _one_kernel(facts: _Attention) -> te.Schedule | Refused:
    """Scores and weights in registers."""
    if not facts.is_whole:
        return Refused("some of its stages are no formulas")
    parts = facts.fused()
    if parts is None:
        return Refused("its intermediate results are read by other operators")
    instruction = _instruction(parts, facts.target)
    if isinstance(instruction, Refused):
        return instruction
    problem = _problem(facts, parts)
    if isinstance(problem, Refused):
        return problem
    tile = _tile(facts, problem)
    if isinstance(tile, Refused):
        return tile

    def scheduled(tile: AttentionTile) -> te.Schedule:
        inside = [*facts.found.values(), facts.anchor]
        s, out = start_schedule(facts.outs, parts.normalized.op, facts.target, separate=inside)
        s.recompute(out, parts.compute(_compute(s, out), tile, instruction))
        return s

    s, rows = scheduled(tile), parts.query.free_size
    if not isinstance(rows, int):
        few = _fastest(replace(problem, rows=_FEW), facts.target)
        assert few is not None, "there is a tile for more rows"
        note("tiles of few rows", "AttentionTile", few)
        s.specialize_small(scheduled(few), unless=rows > _FEW)
    return s


def _instruction(parts: FusedAttention, target: Target) -> Multiply | Refused:
    """The instruction that multiplies all operands."""
    kinds = {operand.dtype for operand in (parts.query, parts.key, parts.value)}
    if architecture(target) < 80:
        return Refused("tensor cores of this architecture have no mma.sync of 16 rows by 8 columns")
    if len(kinds) > 1 or parts.query.value.dtype.nbytes != 2:
        return Refused(f"its operands are {' and '.join(sorted(kinds))}, not one 16-bit float")
    found = multiplies(kinds.pop(), str(parts.product.dtype))
    return Refused("there is no instruction for its type") if found is None else found


def _problem(facts: _Attention, parts: FusedAttention) -> AttentionProblem | Refused:
    """The sizes by which a tile is chosen."""
    depth, width = parts.query.depth_size, parts.value.free_size
    if not isinstance(depth, int) or not isinstance(width, int):
        return Refused("heads have no constant size")
    batch, heads, rows, keys = parts.product.shape
    padded = [-(-size // 16) * 16 for size in (depth, width)]
    sizes = [constant_size([d]) for d in (as_dim(batch * heads), rows, keys)]
    return AttentionProblem(Gpu.of(facts.target), *sizes, *padded)


def _fastest(problem: AttentionProblem, target: Target) -> AttentionTile | None:
    """The fastest tile by the model; None where heads exceed the registers of a thread."""
    rate = mma_per_cycle(target, 2)
    return min(problem.tiles(), key=lambda tile: problem.cycles(tile, rate), default=None)


def _tile(facts: _Attention, problem: AttentionProblem) -> AttentionTile | Refused:
    """The fastest tile, if it is predicted to be faster than four kernels."""
    tile = _fastest(problem, facts.target)
    if tile is None:
        return Refused(f"heads of {problem.depth} and {problem.width} elements exceed the registers of a thread")
    cycles, others = problem.cycles(tile, mma_per_cycle(facts.target, 2)), _cycles_of_four(facts)
    if cycles > others:
        return Refused(f"{cycles:.3g} cycles predicted, four kernels take {others:.3g}")
    note("tiles", "AttentionTile", tile, cycles=cycles)
    return tile


def _cycles_of_four(facts: _Attention) -> float:
    """The predicted cycles of four kernels: two products, and two passes over scores and weights."""
    product = facts.found["attention_product"]
    products = [plans_of(_contraction(op), facts.target)[0].cycles for op in (product, facts.anchor)]
    scores = constant_size(product.output(0).shape)
    traffic = scores * (4 + 2 + 2) / L2_BYTES_PER_CYCLE / Gpu.of(facts.target).processors
    return sum(products) + traffic + 2 * LAUNCH_CYCLES


# -- four kernels


def _four_kernels(facts: _Attention) -> te.Schedule | Refused:
    """Scores, weights, sums of weights, mixed values."""
    if not facts.is_whole:
        return Refused("some of its stages are no formulas")
    outs, anchor, target = facts.outs, facts.anchor, facts.target
    stages = [facts.found[tag] for tag in _STAGES]
    s, out = start_schedule(outs, anchor, target, separate=stages)
    product, score, largest, weight, total = [op.output(0) for op in stages]
    weights = _rounded_weights(s, anchor, weight, total)
    gpu = Gpu.of(target)

    schedule_contraction(s, score, _contraction(product.op), target)
    inside = [_compute(s, t) for t in ([largest] if weights is weight else [largest, weight])]
    rows = RowMap.of(inside[0], s.current(score))
    assert rows is not None, "scores are reduced row by row"
    schedule_rows(s, s.current(weights), inside, {inside[0]: (s.current(score), rows)}, gpu)
    schedule_reduction(s, _compute(s, total), s.current(total), gpu)
    schedule_contraction(s, out, _contraction(s[anchor].op), target)
    return s


def _compute(s: te.Schedule, tensor: te.Tensor) -> te.ComputeOp:
    """The current operation of a tensor, after rewrites."""
    op = s[tensor].op
    assert isinstance(op, te.ComputeOp)
    return op


def _contraction(op: te.Operation) -> Contraction:
    found = contraction_of(op)
    assert found is not None, f"{op.name} is a product of matrices"
    return found


def _rounded_weights(s: te.Schedule, anchor: te.Operation, weight: te.Tensor, total: te.Tensor) -> te.Tensor:
    """Make sums and weighted values read the weights in the values' type, where that is smaller; returns the new
    weights."""
    value = next(t for t in anchor.input_tensors if t is not weight)
    if value.dtype == weight.dtype:
        return weight

    def body(*index: Any) -> PrimExpr:
        return te.cast(value.dtype, weight(*index))

    rounded = te.compute(weight.shape, body, name="attention_weight", tag="attention_weight")
    for op in sorted((total.op, anchor), key=lambda op: s.stages.index(s[op])):  # the first reader goes first
        assert isinstance(op, te.ComputeOp)
        s.recompute(op.output(0), _reading(op, weight, rounded))
    return rounded


def _reading(op: te.ComputeOp, old: te.Tensor, new: te.Tensor) -> te.Tensor:
    """The sum `op`, reading `new`, converted, in place of `old`."""
    reduction = op.body[0]
    assert isinstance(reduction, Reduce)
    (axis,) = op.reduce_axis
    assert axis.dom is not None
    k = te.reduce_axis((0, axis.dom.extent), name=axis.var.name)

    def read(load: ProducerLoad) -> PrimExpr:
        return te.cast(old.dtype, ProducerLoad(new, load.indices)) if load.producer is old else load

    term = map_reads(reduction.source[0], read)

    def body(*index: Any) -> PrimExpr:
        own = dict(zip([a.var for a in op.axis], index, strict=True))
        return te.sum(substitute(term, {**own, axis.var: k.var}), axis=k)

    return te.compute(op.output(0).shape, body, op.name, op.tag, op.attrs)
