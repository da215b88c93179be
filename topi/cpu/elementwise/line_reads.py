"""Analysis of how an operation reads its large inputs row by row, for prefetches of them in memory order.

Hardware prefetchers follow sequential reads. They fail where a row (innermost dimension) is read in several parts at
once (halves of a gated unit), and run too short a distance ahead where other inputs come from L2 or arithmetic spaces
reads out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.arith import Analyzer
from relayc.te.tir import PrimExpr, as_int, const
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.accesses import reads
from relayc.topi.groups import constant_size, iterations
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from relayc.te.tir import Var

__all__ = ["LineRead", "line_reads"]

_LARGE_PARTS = 4
"""Inputs of at least this fraction (1/n) of the output's elements are taken to come from memory."""


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
