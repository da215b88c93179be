"""Analysis of how an operation reads its large inputs row by row, for prefetches of them in memory order.

Hardware prefetchers follow sequential reads. They fail where a row (innermost dimension) is read in several parts at
once (halves of a gated unit), and run too short a distance ahead where other inputs come from L2 or arithmetic spaces
reads out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relayc import te
from relayc.te.tir import PrimExpr, const
from relayc.topi.cpu.accesses import Read, reads
from relayc.topi.groups import constant_size, iterations

__all__ = ["LineRead", "line_reads"]

_LARGE_PARTS = 4
"""Inputs of at least this fraction (1/n) of the output's elements are taken to come from memory."""


@dataclass(frozen=True, slots=True)
class LineRead(Read):
    """A large tensor, read row by row. Successive rows start `stride` elements apart.

    From `index` on, `parts` times the length of an output row is read of each: adjacent parts that one output row reads
    together.
    """

    stride: int
    parts: int = 1

    def through_parts(self, *at: PrimExpr) -> list[PrimExpr]:
        """Return where as much is read, in memory order, through all parts of a row as of a part at `at`."""
        return [self.place(at) + (self.parts - 1) * at[-1]]


def line_reads(op: te.Operation) -> list[LineRead] | None:
    """Return the reads of large inputs, parts of a row merged; None if one is not read in the output's order."""
    elements, width = constant_size(op.output(0).shape), iterations([op.axis[-1]])
    inside = [const(iterations([axis]) * 3 // 8) for axis in op.axis]  # away from borders and seams of joined tensors
    found: dict[te.Tensor, list[LineRead]] = {}
    for tensor, index in reads(op):
        if _LARGE_PARTS * constant_size(tensor.shape) >= elements:
            read = Read(tensor, op.axis, tuple(index))
            stride = _stride(read, inside)
            if stride is None:
                return None
            found.setdefault(tensor, []).append(LineRead(tensor, op.axis, read.index, stride))
    return [read for parts in found.values() for read in _together(parts, inside, width)]


def _together(parts: Sequence[LineRead], inside: Sequence[PrimExpr], width: int) -> list[LineRead]:
    """Merge the reads of one tensor if they cover whole rows; others stay separate."""
    stride = parts[0].stride
    distances = [parts[0].distance(read, inside, inside) for read in parts]
    if len({read.stride for read in parts}) == 1 and stride % width == 0:
        near = [d for d in distances if d is not None]
        if len(near) == len(parts) and max(near) - min(near) < stride and len(set(near)) >= stride // width:
            return [replace(parts[distances.index(min(near))], parts=stride // width)]
    return list(dict(zip(distances, parts, strict=True)).values())


def _stride(read: Read, inside: Sequence[PrimExpr]) -> int | None:
    """Return the distance, in elements of the tensor, between the reads of successive rows.

    None where it isn't read in the order of the output; elements of pairs may be swapped.
    """

    def apart(number: int, extent: int) -> int | None:
        steps = 2 if number == len(inside) - 1 and extent % 2 == 0 else 1
        distance = read.distance(read, inside, [*inside[:number], inside[number] + steps, *inside[number + 1 :]])
        return None if distance is None or distance % steps else distance // steps

    extents = [iterations([axis]) for axis in read.axes]
    strides = [apart(number, extent) for number, extent in enumerate(extents) if extent > 1]
    known = [stride for stride in strides if stride is not None]
    in_order = len(known) == len(strides) > 1 and known == sorted(known, reverse=True) and abs(known[-1]) == 1
    return known[-2] if in_order else None
