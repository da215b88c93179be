"""Queries on the operations of a fused group, for schedules of all targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from relayc import te
from relayc.te.arith import Analyzer
from relayc.te.index import IndexMath, largest_extent
from relayc.te.ir import post_order
from relayc.te.rewrite import map_reads
from relayc.te.tir import Dim, PrimExpr, ProducerLoad, Var, as_int, convert
from relayc.te.tir.numbering import ValueNumbers
from relayc.te.tir.substitute import substitute
from relayc.topi.registry import operations_behind
from relayc.topi.tag import BROADCAST, ELEMWISE, INJECTIVE, PAD, is_injective as has_injective_tag

__all__ = [
    "LIKELY_BATCHES", "constant_size", "extent_of", "factor_of", "has_gaps", "in_one_loop", "inline_injective",
    "inlined", "is_injective", "is_static", "iterations", "least_extent", "likely_extent", "likely_rows",
    "uses_reduction",
]  # fmt: skip


def is_injective(op: te.Operation) -> bool:
    """Is this operation injective, so that it can be inlined into its readers?"""
    return isinstance(op, te.ComputeOp) and not op.reduce_axis and has_injective_tag(op.tag)


def has_gaps(tensor: te.Tensor) -> bool:
    """Is the tensor written into a larger one, with gaps between its rows?"""
    return "memory_strides" in tensor.op.attrs


def uses_reduction(op: te.Operation) -> bool:
    """Whether a stage is a reduction, or computed from the result of one."""
    return any(o.reduce_axis for o in operations_behind([op.output(0)]) if isinstance(o, te.ComputeOp))


def inline_injective(s: te.Schedule, outs: Sequence[te.Tensor], keep: Sequence[te.Operation] = ()) -> None:
    """Inline every injective operation except the outputs, those to `keep`, and those that no compute reads."""
    ops = operations_behind(outs)
    kept = {id(t.op) for t in outs} | {id(op) for op in keep}
    kept |= {id(t.op) for op in ops if not isinstance(op, te.ComputeOp) for t in op.input_tensors}
    for op in ops:
        if id(op) not in kept and is_injective(op):
            s[op].compute_inline()


def inlined(value: PrimExpr, keep: te.Operation | None = None) -> PrimExpr:
    """`value` with reads of injective operations, but for `keep`, replaced by their formulas.

    An element that is read in several places is one shared expression: where formulas fork and join, as in chains of
    x * sigmoid(x), copies would double with each step.
    """
    numbers = ValueNumbers()
    bodies = dict[object, PrimExpr]()
    formulas = dict[object, PrimExpr]()

    def element(load: ProducerLoad) -> object:
        return load.producer, *[numbers(i) for i in load.indices]

    def inlined_reads(e: PrimExpr) -> list[ProducerLoad]:
        loads = [n for n in post_order(e) if isinstance(n, ProducerLoad)]
        return [load for load in loads if load.producer.op is not keep and is_injective(load.producer.op)]

    def read(load: ProducerLoad) -> PrimExpr:
        return formulas.get(element(load), load)

    pending = inlined_reads(value)
    while pending:
        load = pending[-1]
        place, op = element(load), load.producer.op
        if place not in bodies:
            assert isinstance(op, te.ComputeOp)
            at = {axis.var: i for axis, i in zip(op.axis, load.indices, strict=True)}
            bodies[place] = substitute(op.body[load.producer.value_index], at)
            pending += inlined_reads(bodies[place])
            continue
        if place not in formulas:
            formulas[place] = map_reads(bodies[place], read)
        pending.pop()
    return map_reads(value, read)


def in_one_loop(outs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """The outputs as those of one operation, computed in one loop, where all are injective and of one shape."""
    operations = [op for op in operations_behind(outs) if isinstance(op, te.ComputeOp)]
    alike = all(map(is_injective, operations)) and all(out.shape == outs[0].shape for out in outs)
    if len({id(out.op) for out in outs}) < 2 or not alike:
        return list(outs)
    tags = {op.tag for op in operations}
    tag = next((tag for tag in (PAD, INJECTIVE, BROADCAST) if tag in tags), ELEMWISE)
    return list(te.compute(outs[0].shape, lambda *i: tuple([out(*i) for out in outs]), name="together", tag=tag))


def constant_size(extents: Sequence[Dim], default: int = 1 << 16) -> int:
    """The product of sizes, bounded ones at their largest; all others together count as `default`. For decisions only.
    """
    known = [n for n in map(largest_extent, extents) if n is not None]
    return math.prod(known) * (1 if len(known) == len(extents) else default)


def is_static(shape: Iterable[Dim]) -> bool:
    """Are all sizes constant?"""
    return all(isinstance(d, int) for d in shape)


def least_extent(extent: Dim) -> int:
    """The least value that a size is known to have."""
    arithmetic = IndexMath()
    return arithmetic.bounds(arithmetic.dim(extent))[0] or 0


def factor_of(extent: Dim) -> int:
    """The largest number that is known to divide a size."""
    return extent if isinstance(extent, int) else math.gcd(*IndexMath().dim(extent).terms.values())


def likely_extent(extent: Dim, size: int) -> int:
    """An extent, with symbolic sizes assumed to be `size`. For decisions only."""
    if isinstance(extent, int):
        return extent
    sizes = {v: convert(size) for v in post_order(extent) if isinstance(v, Var)}
    found = as_int(Analyzer().simplify(substitute(extent, sizes)))
    return size if found is None else max(found, 1)


LIKELY_BATCHES, _FEWEST_ROWS_OF_AN_IMAGE = (1, 8), 32
"""Sizes of a batch that are taken to be as likely, and the fewest rows of each image for them to say anything: with
fewer the number of images determines the plan."""


def likely_rows(extents: Sequence[Dim], otherwise: int) -> tuple[int, ...]:
    """The likely numbers of rows of a product, `extents` in all: of one image and of several, where only the size of
    the batch, in the first extent, is dynamic; `otherwise` one. For decisions only.
    """
    if is_static(extents) or not is_static(extents[1:]):
        return (otherwise,)
    image = math.prod(map(factor_of, extents))
    return tuple([n * image for n in LIKELY_BATCHES]) if image >= _FEWEST_ROWS_OF_AN_IMAGE else (otherwise,)


def iterations(axes: Iterable[te.IterVar]) -> int:
    """The number of iterations of loops over axes, by the rule of `constant_size`. For decisions only."""
    return constant_size([extent_of(axis) for axis in axes])


def extent_of(axis: te.IterVar) -> Dim:
    """The extent of an axis."""
    assert axis.dom is not None
    return axis.dom.extent
