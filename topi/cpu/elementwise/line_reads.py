"""Analysis of how an operation reads its large inputs row by row, and prefetches of them in memory order.

Hardware prefetchers follow sequential reads. They fail where a row (innermost dimension) is read in several parts at
once (halves of a gated unit), and run too short a distance ahead where other inputs come from L2 or arithmetic spaces
reads out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.backend.vector_math import EXPANSIONS
from relayc.te.arith import Analyzer
from relayc.te.ir import post_order
from relayc.te.tir import Call, PrimExpr, Select, as_int, const
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.prefetch import (
    LINE_BYTES,
    elements_ahead,
    has_line_vectors,
    in_memory,
    is_beyond_caches,
    is_streamed,
    rows_ahead,
)
from relayc.topi.cpu.tiling import has_few_fill_buffers
from relayc.topi.groups import constant_size, iterations
from relayc.topi.registry import operations_behind
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target
    from relayc.te.tir import Var

__all__ = ["LineRead", "line_reads", "prefetch_lines_read", "prefetch_where_masked"]

_LARGE_PARTS = 4
"""Inputs of at least this fraction (1/n) of the output's elements are taken to come from memory."""
_PART_OF_L1 = 4
"""Divisor of the L1 size: inputs up to that, read again for each row, cost nothing."""


@dataclass(frozen=True, slots=True)
class LineRead:
    """A large tensor, read at `index`, in terms of the `axes` of an output, row by row.

    Successive rows start `stride` elements apart. From `index` on, `parts` times the length of an output row is read of
    each: adjacent parts that one output row reads together.
    """

    tensor: te.Tensor
    axes: Sequence[te.IterVar]
    index: tuple[PrimExpr, ...]
    stride: int
    parts: int

    def place(self, at: Sequence[PrimExpr]) -> PrimExpr:
        """Return the flat offset, in elements, of what is read where the axes have values `at`."""
        return _flat(self.tensor, self.index, {axis.var: value for axis, value in zip(self.axes, at, strict=True)})

    def through_parts(self, *at: PrimExpr) -> list[PrimExpr]:
        """Return where as much is read, in memory order, through all parts of a row as of a part at `at`."""
        return [self.place(at) + (self.parts - 1) * at[-1]]


def line_reads(op: te.Operation) -> list[LineRead] | None:
    """Return the reads of large inputs, parts of a row merged; None if one is not read in the output's order."""
    elements, width = constant_size(op.output(0).shape), iterations([op.axis[-1]])
    found: dict[te.Tensor, list[tuple[tuple[PrimExpr, ...], int]]] = {}
    for tensor, index in reads(op):
        if _LARGE_PARTS * constant_size(tensor.shape) >= elements:
            stride = _stride(op, tensor, index)
            if stride is None:
                return None
            found.setdefault(tensor, []).append((tuple(index), stride))
    return [read for tensor, places in found.items() for read in _together(op, tensor, places, width)]


def _together(
    op: te.Operation, tensor: te.Tensor, places: Sequence[tuple[tuple[PrimExpr, ...], int]], width: int
) -> list[LineRead]:
    """Merge the reads of one tensor if they cover whole rows; others stay separate."""
    first, stride = places[0]
    distances = [_distance(op, tensor, first, index) for index, _ in places]
    if len({stride for _, stride in places}) == 1 and stride % width == 0:
        near = [d for d in distances if d is not None]
        if len(near) == len(places) and max(near) - min(near) < stride and len(set(near)) >= stride // width:
            lowest = places[distances.index(min(near))][0]
            return [LineRead(tensor, op.axis, lowest, stride, stride // width)]
    apart = dict(zip(distances, places, strict=True))
    return [LineRead(tensor, op.axis, index, stride, 1) for index, stride in apart.values()]


def _flat(tensor: te.Tensor, index: Sequence[PrimExpr], at: Mapping[Var, PrimExpr]) -> PrimExpr:
    return ravel_index([substitute(i, at) for i in index], tensor.shape)


def _inside(op: te.Operation) -> dict[Var, PrimExpr]:
    """Return an index away from borders and from seams of joined tensors, often at halves and thirds."""
    return {axis.var: const(iterations([axis]) * 3 // 8) for axis in op.axis}


def _distance(
    op: te.Operation, tensor: te.Tensor, first: Sequence[PrimExpr], second: Sequence[PrimExpr]
) -> int | None:
    at = _inside(op)
    return as_int(Analyzer().simplify(_flat(tensor, second, at) - _flat(tensor, first, at)))


def _stride(op: te.Operation, tensor: te.Tensor, index: Sequence[PrimExpr]) -> int | None:
    """Return the distance, in elements of `tensor`, between the reads of successive rows of `op`.

    None where it isn't read in the order of the output; elements of pairs may be swapped.
    """
    analyzer, at = Analyzer(), _inside(op)

    def apart(axis: te.IterVar) -> int | None:
        steps = 2 if axis is op.axis[-1] and iterations([axis]) % 2 == 0 else 1
        later = {**at, axis.var: at[axis.var] + steps}
        distance = as_int(analyzer.simplify(_flat(tensor, index, later) - _flat(tensor, index, at)))
        return None if distance is None or distance % steps else distance // steps

    strides = [apart(axis) for axis in op.axis if iterations([axis]) > 1]
    known = [stride for stride in strides if stride is not None]
    in_order = len(known) == len(strides) > 1 and known == sorted(known, reverse=True) and abs(known[-1]) == 1
    return known[-2] if in_order else None


def prefetch_lines_read(
    s: te.Schedule, out: te.Tensor, loop: te.IterVar, elements: int, target: Target, *, several_vectors: bool
) -> None:
    """Prefetch later inputs in each iteration of `loop`, which computes so many `elements` of a row.

    On cores with few line-fill buffers, inputs of which only a part of each row is read are prefetched alone, to L2:
    hardware prefetchers fetch what lies between such runs, too, or stop at each.

    Otherwise, where the output exceeds the caches and rows are `several_vectors`, all are, in memory order, through all
    parts of a row. Where rows are not whole cache lines, so that stores can't be non-temporal and read before they
    write, the output is prefetched for writing, too; with little arithmetic only for 64-byte vectors, whose stores
    cross cache lines.
    """
    few, far = has_few_fill_buffers(target), several_vectors and is_beyond_caches(out, target)
    if not few and not far:
        return
    inputs, size, width = line_reads(out.op) or (), out.dtype.nbytes, constant_size(out.shape[-1:])

    def leaves_lines(read: LineRead) -> bool:
        return (read.stride - read.parts * width) * read.tensor.dtype.nbytes >= LINE_BYTES

    runs = [read for read in inputs if leaves_lines(read) and is_streamed(read.tensor, 1, target)]
    if runs and few:
        _prefetch(s, out, loop, elements, runs, target, level=2)
        return
    whole, long_vectors = width * size % LINE_BYTES == 0, has_line_vectors(target)
    fetched = (whole or not long_vectors) and _are_fetched(out.op, inputs, target)
    if not inputs or fetched or not far:
        return
    _prefetch(s, out, loop, elements, inputs, target)
    if not whole:
        ahead = elements_ahead(size, target)
        s[out].prefetch(out, loop, te.Prefetch(ahead, 1, in_memory(out), _lines(out, elements), written=True))


def prefetch_where_masked(s: te.Schedule, out: te.Tensor, loop: te.IterVar, elements: int, target: Target) -> None:
    """Prefetch later inputs of non-temporal stores if 64-byte vectors are selected from, and so loaded by masks."""
    if is_beyond_caches(out, target) and _reads_by_masks(out.op, target):
        _prefetch(s, out, loop, elements, line_reads(out.op) or (), target)


def _prefetch(
    s: te.Schedule, out: te.Tensor, loop: te.IterVar, elements: int, inputs: Sequence[LineRead], target: Target,
    *, level: int = 1,
) -> None:  # fmt: skip
    """Prefetch what `inputs` read some kilobytes after `elements` of a row, through all parts of their rows."""
    width = constant_size(out.shape[-1:])
    for read in inputs:
        size, in_order = read.tensor.dtype.nbytes, read.stride == width
        ahead = elements_ahead(size, target) if in_order else rows_ahead(read.stride * size) * read.stride

        lines = _lines(read.tensor, read.parts * elements)
        s[out].prefetch(read.tensor, loop, te.Prefetch(ahead, level, read.through_parts, lines))


def _reads_by_masks(op: te.Operation, target: Target) -> bool:
    nodes = [e for body in _bodies(op) for e in post_order(body)]
    return has_line_vectors(target) and any(isinstance(e, Select) for e in nodes)


def _are_fetched(op: te.Operation, inputs: Sequence[LineRead], target: Target) -> bool:
    """True if the hardware prefetcher covers the inputs: sequential rows, with little other work.

    It detects no streams in masked loads, by which 64-byte vectors that are selected from are read (Zen 5).
    """
    large = {read.tensor for read in inputs}
    others = sum(constant_size(t.shape) * t.dtype.nbytes for t in {t for t, _ in reads(op)} - large)
    nodes = [e for body in _bodies(op) for e in post_order(body)]
    busy = _reads_by_masks(op, target) or any(isinstance(e, Call) and e.op in EXPANSIONS for e in nodes)
    return all(r.parts == 1 for r in inputs) and not busy and others <= target.cache_bytes.l1 // _PART_OF_L1


def _bodies(op: te.Operation) -> list[tuple[PrimExpr, ...]]:
    """Return the bodies of all operations that are inlined into `op`."""
    return [tuple(o.body) for o in operations_behind([op.output(0)]) if isinstance(o, te.ComputeOp)]


def _lines(tensor: te.Tensor, elements: int) -> int:
    return -(-elements * tensor.dtype.nbytes // LINE_BYTES)
