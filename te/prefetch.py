"""Software prefetches in the loops of a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc.te.errors import ScheduleError
from relayc.te.operation import ComputeOp
from relayc.te.poly import Poly, number
from relayc.te.rewrite import map_reads
from relayc.te.tir import ops
from relayc.te.tir.buffer import buffer_strides
from relayc.te.tir.expr import BufferLoad, IterVar, PrimExpr, ProducerLoad, Var
from relayc.te.tir.ops import convert, seq
from relayc.te.tir.stmt import Evaluate, For, ForKind, Stmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from relayc.te.nest import StageNest
    from relayc.te.stage import LoopAttrs, Prefetch
    from relayc.te.tensor import Tensor

__all__ = ["prefetches"]

_LINE_BYTES = 64
"""Bytes of a cache line; the step of prefetches."""
_FEW_LINES = 16
"""The most prefetches that are unrolled rather than looped over."""


def prefetches(nest: StageNest, leaf: IterVar, attrs: LoopAttrs) -> Iterator[Stmt]:
    """The prefetches at the start of an iteration of `leaf`, a loop of the nest; single lines come first.

    Raises ScheduleError for a line of a tensor that no stage reads.
    """
    for tensor, wanted in attrs.prefetches:
        if wanted.order is not None:
            yield _in_order(nest, leaf, tensor, wanted, wanted.order)
    for tensor, wanted in reversed(attrs.prefetches):
        if wanted.order is None:
            yield _prefetch(nest, leaf, tensor, wanted)


def _prefetch(nest: StageNest, leaf: IterVar, tensor: Tensor, wanted: Prefetch) -> Stmt:
    """Prefetch every cache line of a region. Indices of later iterations are clamped to the tensor's last element.

    An address that lies `distance` further may lie past the tensor's end: prefetching it has no effect.
    """
    schedule = nest.nests.bounds.schedule
    tensor = schedule.current(tensor) if tensor.op in schedule.stage_map else tensor
    region = nest.nests.bounds.region_read(nest.stage, tensor, leaf, nest.math.dim(wanted.iterations))
    written = region is None
    if region is None:
        region = nest.nests.bounds.region_computed(nest.stage, leaf)
    lines = _LINE_BYTES // tensor.dtype.nbytes
    here = isinstance(wanted.iterations, int) and wanted.iterations == 0
    if here and nest.nests.buffers[tensor].strides is None:
        run = nest.nests.bounds.run_read(nest.stage, tensor, leaf)
        region = min([region, *run], key=lambda r: r.lines(lines))
    loops: list[tuple[Var, Poly]] = []
    indices: list[Poly] = []
    for i, (start, extent) in enumerate(zip(region.mins, region.extents, strict=True)):
        step = lines if i == len(region.mins) - 1 else 1
        var = Var(f"{tensor.name}.line{i}")
        count = nest.math.ceildiv(extent, number(step))
        nest.math.declare(var, count)
        loops.append((var, count))
        index = start if count.const == 1 else start + nest.math.var(var).scale(step)
        if not here:
            index = nest.math.minimum(nest.math.maximum(index, number(0)), nest.math.dim(tensor.shape[i]) - 1)
        indices.append(index)
    indices[-1] = indices[-1] + nest.math.dim(wanted.distance)
    body = _touch(nest, tensor, indices, written, wanted.level)
    for var, count in reversed(loops):
        if count.const != 1:
            few = count.const is not None and count.const <= _FEW_LINES
            body = For(var, ops.const(0), nest.math.expr(count), ForKind.UNROLLED if few else ForKind.SERIAL, body)
    return body


def _in_order(
    nest: StageNest, leaf: IterVar, tensor: Tensor, wanted: Prefetch, order: Callable[..., Sequence[Any]]
) -> Stmt:
    """Prefetch the cache lines at an `order`'s index of the first values of the stage's axes in an iteration."""
    schedule = nest.nests.bounds.schedule
    tensor = schedule.current(tensor) if tensor.op in schedule.stage_map else tensor
    if tensor not in nest.nests.buffers:
        raise ScheduleError(f"stage {nest.stage.name}: prefetch of {tensor.name}, which no stage reads")
    start = {v.var: number(0) for v in nest.leaves[nest.positions[leaf.var] + 1 :]}
    axes = [axis.var for axis in nest.stage.op.root_axes]
    first = [Var(axis.name, axis.dtype) for axis in axes]  # an axis that is a loop counts from 0 inside of others
    *before, end = order(*first)
    loops = {loop.var: value for loop, value in nest.loops.values.items()}
    for axis, var in zip(axes, first, strict=True):
        loops[var] = nest.math.poly(nest.math.expr(nest.values[axis]), start)
    chosen = (*before, end + wanted.distance)
    places = [nest.math.poly(nest.nests.lower(_inlined(nest, convert(i)), loops), {}) for i in chosen]
    shape = [*tensor.shape[: len(places) - 1], ops.product(tensor.shape[len(places) - 1 :])]
    *outer, last = [nest.math.minimum(i, nest.math.dim(d) - 1) for i, d in zip(places, shape, strict=True)]
    last = places[-1] if wanted.past_end else last
    within = _unravelled(nest, tensor, len(outer), last)
    lines = [within[-1] + number(k * _LINE_BYTES // tensor.dtype.nbytes) for k in range(wanted.lines)]
    places = [[*outer, *within[:-1], line] for line in lines]
    return seq(*[_touch(nest, tensor, place, wanted.written, wanted.level) for place in places])


def _unravelled(nest: StageNest, tensor: Tensor, first: int, index: Poly) -> list[Poly]:
    """The place of an element by one index into the dimensions from `first` on.

    Dimensions that have no gaps in between in memory keep one index, into the innermost of them and past its end:
    nothing is divided by their sizes.
    """
    math, innermost = nest.math, len(tensor.shape) - 1
    sizes = [math.dim(d) for d in tensor.shape]
    strides = [math.dim(d) for d in buffer_strides(nest.nests.buffers[tensor])]
    places, size = [number(0)] * len(sizes), number(1)
    for i in range(innermost, first, -1):
        size = size * sizes[i]
        if (strides[i - 1] - strides[i] * sizes[i]).const != 0:
            places[innermost], index = math.floormod(index, size), math.floordiv(index, size)
            innermost, size = i - 1, number(1)
    places[innermost] = index
    return places[first:]


def _inlined(nest: StageNest, index: PrimExpr) -> PrimExpr:
    """An index with the formulas of inlined tensors in place of reads of them, which have no memory."""

    def read(load: ProducerLoad) -> PrimExpr:
        op = load.producer.op
        if load.producer in nest.nests.buffers or not isinstance(op, ComputeOp):
            return load
        values = {axis.var: place for axis, place in zip(op.axis, load.indices, strict=True)}
        return map_reads(op.body[load.producer.value_index], read, values)

    return map_reads(index, read)


def _touch(nest: StageNest, tensor: Tensor, indices: Sequence[Poly], written: bool, level: int) -> Stmt:
    place = BufferLoad(nest.nests.buffers[tensor], nest.nests.indices(tensor, indices))
    address = ops.call_intrin("handle", "address_of", place)
    return Evaluate(ops.call_intrin("int32", "prefetch", address, 3 if level == 1 or written else 2, int(written)))
