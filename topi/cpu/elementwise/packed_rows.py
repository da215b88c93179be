"""Permutations of rows of tensors larger than the LLC: attention heads, windows, rows gathered by a table.

Scattered short rows are slow to read, since the hardware prefetcher finds no stream, and slow to write if unaligned,
since their stores can't be non-temporal. So the output is computed in chunks in the input's order, where a cache line
may serve several rows; rows of later chunks are prefetched; and rows that are not whole cache lines are packed in L1
into a chunk of whole lines, which is stored by cache lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.te.tir import PrimExpr, const
from relayc.topi.cpu.accesses import Read, conditions, large_shape, read_of_one
from relayc.topi.cpu.prefetch import LINE_BYTES, level_of, rows_ahead, rows_of_whole_lines
from relayc.topi.groups import constant_size
from relayc.topi.transform import MOST_INTERLEAVED
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["PackedRows"]

Place = Callable[..., Sequence[PrimExpr]]
"""Function from the values of a stage's axes to the index to prefetch."""

_CHUNK_BYTES = 1024
"""Least bytes of the output written at once, to stay in a page for a while. A C prototype was equal from 1 to 4 KB."""
_MOST_IN_VAIN = 4
"""Prefetches past the end of an axis are wasted: in at most one of so many chunks."""
_MOST_APART = 4
"""Most elements of the input from one of a row to the next: beyond that in-register transposes are faster."""
_LEAST_PICKED = 4
"""Fewest elements that shuffles take from each vector of the input, for strided rows."""
_LONGEST_APART = 4096
"""Most elements that such a row spans in the input: they have to stay in L1 for other rows."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Chunks of `out`: `count` indices of axis `number`, with whole dimensions behind it; rows are rows of an input.

    `strides`: distances in that input, in elements, of neighbours along the axes before `number`, and of chunks along
    that. `packed`: a chunk is buffered first, since its rows are not whole cache lines. `level`: of the cache that
    prefetches go to. A row is the last axis of the output, or (`axes_of_row` 2) the last two, which interleave a few
    rows of the input.
    """

    out: te.Tensor
    read: Read
    number: int
    count: int
    strides: tuple[int, ...]
    packed: bool
    axes_of_row: int
    level: int

    @staticmethod
    def of(out: te.Tensor, target: Target) -> PackedRows | Refused:
        """The chunks of an output larger than the LLC whose rows are rows of one input in another order."""
        op, size, shape = out.op, out.dtype.nbytes, large_shape(out, target)
        if isinstance(shape, Refused):
            return shape
        if any(conditions(op)):
            return Refused("the output has padding or joined inputs")
        read = read_of_one(op)
        if isinstance(read, Refused):
            return read
        axes = _axes_of_row(read, shape, size)
        row = math.prod(shape[len(shape) - axes :]) * size
        packed = _chunk(shape, size, target, axes, whole_lines=True) if axes and row % LINE_BYTES else None
        chosen = packed or (_chunk(shape, size, target, axes, whole_lines=False) if axes == 1 else None)
        if chosen is None:
            return Refused("rows are not those of the input, or L1 holds no chunk of whole cache lines of them")
        number, count = chosen
        strides = _strides(read, shape, number + 1)
        if all(s == math.prod(shape[n + 1 :]) for n, s in enumerate(strides) if shape[n] > 1):
            return Refused("rows are in the input's order")
        steps = [stride for n, stride in enumerate(strides) if shape[n] > 1]
        are_permuted = steps != sorted(steps, reverse=True)
        strides[number] *= count
        are_copied = packed is None and are_permuted and _span(read, shape, -1, 1) == 1  # hardware prefetches these
        level = 1 if are_copied else level_of(target)
        return PackedRows(out, read, number, count, tuple(strides), packed is not None, axes, level)

    def apply(self, s: te.Schedule) -> list[te.IterVar]:
        """Schedule the output; returns the loops over chunks, outermost first."""
        out, number = self.out, self.number
        rows = s.cache_write(out, "local") if self.packed else out
        axes = list(s[out].op.axis)
        chunk, within = s[out].split(axes[number], factor=self.count, tail="shift")
        order = self._order()
        loops = [[*axes[:number], chunk][n] for n in order]
        s[out].reorder(*loops, within, *axes[number + 1 :])
        line = LINE_BYTES // out.dtype.nbytes
        if self.packed:
            _, vector = s[out].split(s[out].fuse(within, *axes[number + 1 :]), factor=line)
            s[out].vectorize(vector)
            s[rows].compute_at(s[out], loops[-1])
        row = constant_size(out.shape[-self.axes_of_row :])
        parts = constant_size(out.shape[-1:]) if self.axes_of_row > 1 else 1  # rows of the input in one of the output
        column = s[rows].fuse(*s[rows].op.axis[-self.axes_of_row :])
        vectors, vector = s[rows].split(column, factor=min(line * parts, row), tail="shift")
        s[rows].vectorize(vector)
        ahead = self._ahead(order)
        if ahead is not None:
            later = self.read.later(*ahead)
            places: list[Place] = [lambda *i, part=part: later(*i[:-1], const(part)) for part in range(parts)]
            for place in places if parts > 1 else [self._in_piece(order, ahead[0], later)]:
                s[rows].prefetch(self.read.tensor, vectors, te.Prefetch(0, self.level, place))
        return loops

    def _order(self) -> list[int]:
        """Return the axes up to `number`, which is split into chunks, in the order of the input, outermost first."""
        return sorted(range(self.number + 1), key=lambda n: -self.strides[n])

    def _in_piece(self, order: Sequence[int], number: int, later: Place) -> Place:
        """Return the prefetch place for what is read `later` along axis `number`.

        If that is contiguous, it is prefetched in memory order, at the offset that the computation has reached in the
        current piece: each cache line once, however rows take their elements from it.
        """
        inside = order[order.index(number) + 1 :]
        sizes = [-(-constant_size([self.out.shape[n]]) // self._each(n)) for n in inside]
        behind = [constant_size([d]) for d in self.out.shape[self.number + 1 :]]
        sizes += [self.count, *behind]
        if self.strides[number] != math.prod(sizes):
            return later

        def place(*first: PrimExpr) -> Sequence[PrimExpr]:
            row = first[self.number] % self.count
            begin = [const(0) if n in inside or n > self.number else e for n, e in enumerate(first)]
            if self.number not in inside:
                begin[self.number] = first[self.number] - row
            come = [*[first[n] // self._each(n) for n in inside], row, *first[self.number + 1 :]]
            return (ravel_index(later(*begin), self.read.tensor.shape) + ravel_index(come, sizes),)

        return place

    def _each(self, number: int) -> int:
        """Return the indices along an axis that its loop takes at once."""
        return self.count if number == self.number else 1

    def _ahead(self, order: Sequence[int]) -> tuple[int, int] | None:
        """Return the axis, and the steps along it, to a chunk read some kilobytes later; None if there is none."""
        step = constant_size(self.out.shape[self.number + 1 :]) * self.count * self.read.tensor.dtype.nbytes
        for n in reversed(order):
            each = self._each(n)
            chunks, times = -(-constant_size([self.out.shape[n]]) // each), rows_ahead(step)
            if _MOST_IN_VAIN * times <= chunks:
                return n, times * each
            step *= chunks
        return None


def _chunk(
    shape: Sequence[int], size: int, target: Target, axes: int, *, whole_lines: bool
) -> tuple[int, int] | None:
    """Return the axis and the number of indices along it that make a chunk, perhaps of whole cache lines.

    None if half of L1 holds no such chunk; a single row, the last `axes`, may be longer.
    """
    for number in range(len(shape) - 1 - axes, -1, -1):
        inside = math.prod(shape[number + 1 :]) * size
        if shape[number] * inside % LINE_BYTES == 0 or not whole_lines:
            least = rows_of_whole_lines(inside) if whole_lines else 1
            count = -(-_CHUNK_BYTES // (inside * least)) * least
            even = (n for n in range(count, min(2 * count, shape[number]) + 1, least) if shape[number] % n == 0)
            count = next(even, count)
            if count * inside > target.cache_bytes.l1 // 2 and (whole_lines or number < len(shape) - 2):
                return None
            if count <= shape[number]:
                return number, count
    return None


def _span(read: Read, shape: Sequence[int], number: int, steps: int) -> int | None:
    """Elements of the input from the output's first element to that some steps along an axis; None if data decide."""
    begin = [const(0)] * len(shape)
    end = [*begin]
    end[number] = const(min(steps, shape[number] - 1))
    return read.distance(read, begin, end)


def _axes_of_row(read: Read, shape: Sequence[int], size: int) -> int:
    """Return how many trailing axes make a row that is read from the input at a constant stride; 0 if none do.

    1: elements contiguous or a few apart. 2: some rows of the input, interleaved.
    """
    last = shape[-1] - 1
    step, rest = divmod(_span(read, shape, -1, last) or 0, max(last, 1))
    most = min(_MOST_APART, LINE_BYTES // size // _LEAST_PICKED, _LONGEST_APART // shape[-1])
    if not rest and (step == 1 or last == 0 or 1 < step <= most):
        return 1
    before = shape[-2] - 1
    interleaved = 1 < shape[-1] <= MOST_INTERLEAVED and shape[-1] <= before and len(shape) > 2
    return 2 if interleaved and not rest and _span(read, shape, -2, before) == before else 0


def _strides(read: Read, shape: Sequence[int], count: int) -> list[int]:
    """Return the strides, in elements of the input, along the first `count` axes; all 0 if data-dependent."""
    found = [_span(read, shape, n, 1) for n in range(count)]
    known = [stride for stride in found if stride is not None]
    return known if len(known) == len(found) else [0] * len(found)
