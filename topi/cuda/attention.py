"""Attention on GPUs: two matrix products, and the softmax of the scores between them.

The scores are a product with scaling and masks in its epilogue; the weights, exponentials of the scores, take a kernel
that keeps rows of scores in registers; their sums another; and the weighted sum of the values is a product with the
division in its epilogue. Intermediates are in global memory, in the L2 cache as long as they fit. Weights of 16-bit
floats are rounded to the type of the values before they are summed and multiplied, so that tensor cores multiply them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.rewrite import map_reads
from relayc.te.tir import PrimExpr, ProducerLoad, Reduce
from relayc.te.tir.substitute import substitute
from relayc.topi.cuda.contraction import Contraction, contraction_of
from relayc.topi.cuda.cost import Gpu
from relayc.topi.cuda.epilogue import start_schedule
from relayc.topi.cuda.products import schedule_contraction
from relayc.topi.cuda.reduction import schedule_reduction
from relayc.topi.cuda.rows import RowMap
from relayc.topi.cuda.rowwise import schedule_rows
from relayc.topi.cuda.stagewise import schedule_stagewise
from relayc.topi.registry import operations_behind, register_schedule

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["schedule_attention"]

_STAGES = ("attention_product", "attention_score", "attention_max", "attention_exp", "attention_sum")


@register_schedule("attention", "cuda")
def schedule_attention(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Four kernels: scores, weights, sums of weights, mixed values."""
    found = {op.tag: op for op in operations_behind(outs) if op.tag in _STAGES}
    stages = [found[tag] for tag in _STAGES]
    if not all(isinstance(op, te.ComputeOp) for op in (*stages, anchor)):
        return schedule_stagewise(outs, anchor, target)
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
