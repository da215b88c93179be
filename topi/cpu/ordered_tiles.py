"""Transpositions beyond the caches whose input is read in the order of memory, by blocks of whole lines.

A core reads fastest what lies in one piece: then the processor fetches ahead by itself, beside what is
asked for. So a block of the input's lines, as many as fill two cache lines of each line of the output, is
brought into the second-level cache in order, while the block before is turned there, strip by strip. A part of the next
block is asked for with each tile that is turned in registers, and a part of the strip before is stored past the caches
with each few columns of them: all at once, either would keep the other, and what is turned, waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import te
from te.ir import post_order
from te.tir import PrimExpr, Var
from topi.cpu.accesses import reads
from topi.cpu.prefetch import LINE_BYTES
from topi.cpu.register_transpose import block_of, transpose_in_registers
from topi.groups import constant_size
from topi.registry import operations_behind
from topi.utils import ravel_index

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["OrderedTiles"]

_LINES, _LINES_AND_ONE = 2, 3
"""Cache lines that are written of each of the output's lines at a time; and where one more is turned in vain."""
_BLOCKS_OF_CACHE = 3
"""Blocks that a second-level cache holds: one that is turned, one that arrives, and what else comes along."""
_LONG_LINE_BYTES = 1024
"""Of the input's lines, from which a block is more than what is asked for anyway."""
_SHARED_BYTES = 512
"""Lines apart by multiples of these share sets of the first-level cache, in which a strip would not stay."""
_SHARES = 4
"""Blocks for each core, at least."""


@dataclass(frozen=True, slots=True)
class OrderedTiles:
    """Blocks of `width` places along the last axis of `out`, taken by strips of `height` lines of axis `number`.

    `tensor` is turned into vectors of `lanes`, its dimension `position` lies along the last axis of `out`; `inside` are
    the axes of `out` that run within a block beside. Strips are copied before they are turned (`lines_first`) where
    they share sets of the first-level cache. Lines of `out` that are no whole cache lines are computed from where one
    begins in memory (`as_in_memory`), a cache line further on than the others at most.
    """

    out: te.Tensor
    number: int
    tensor: te.Tensor
    position: int
    lanes: int
    height: int
    width: int
    inside: tuple[int, ...]
    lines_first: bool
    as_in_memory: bool

    @staticmethod
    def of(
        out: te.Tensor, number: int, tensor: te.Tensor, position: int, lanes: int, target: Target
    ) -> OrderedTiles | None:
        """None where lines of the input are short, or a block of them exceeds its part of the second-level cache."""
        shape, behind = list(out.shape), tensor.shape[position + 1 :]
        sizes = [d for d in (*shape, *behind) if isinstance(d, int)]
        size, l2 = constant_size(behind) * tensor.dtype.nbytes, target.cache_bytes.l2
        height, line = LINE_BYTES // tensor.dtype.nbytes, LINE_BYTES // out.dtype.nbytes
        rows, columns = constant_size([shape[number]]), constant_size(shape[-1:])
        if len(sizes) < len(shape) + len(behind) or size < _LONG_LINE_BYTES or rows < 2 * height:
            return None
        as_in_memory = columns % line != 0
        if as_in_memory and "memory_strides" in out.op.attrs:
            return None
        wide = as_in_memory and _BLOCKS_OF_CACHE * _LINES_AND_ONE * line * size <= l2
        width = max((_LINES_AND_ONE if wide else _LINES) * line, lanes)
        if _BLOCKS_OF_CACHE * width * size > l2 or columns < _SHARES * target.num_cores * width:
            return None
        lines_first = size % _SHARED_BYTES == 0
        inside = _axes_inside(out, number, tensor, position)
        return OrderedTiles(out, number, tensor, position, lanes, height, width, inside, lines_first, as_in_memory)

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of a strip, outermost first.

        So many elements are computed `at_once`, at least a cache line of them and at most what a block has of a line.
        """
        out, tensor = self.out, self.tensor
        assert isinstance(out.op, te.ComputeOp)
        axes, line, block = out.op.axis, LINE_BYTES // out.dtype.nbytes, block_of(self.lanes, tensor.dtype)
        strip, row = s[out].split(axes[self.number], factor=self.height, tail="shift")
        group, row = s[out].split(row, factor=block)
        if self.as_in_memory:
            part, vector, column = s[out].split_lines(self.width, line)
            s[out].unroll(vector)
        else:
            part, column = s[out].split(axes[-1], factor=self.width, tail="shift")
            fits = at_once % line == 0 and self.width % at_once == 0
            vector, column = s[out].split(column, factor=at_once if fits else line)
        outside = [axis for n, axis in enumerate(axes[:-1]) if n != self.number and n not in self.inside]
        loops = [*outside, part, *[axes[n] for n in self.inside]]
        s[out].reorder(*loops, strip, group, row, vector, column)
        s[out].vectorize(column)
        s[out].pragma(strip, "overlap_iterations")
        readers = [op for op in operations_behind([out]) if tensor in op.input_tensors]
        source = s.cache_read(tensor, "local", readers) if self.lines_first else tensor
        packed, _, vectors = transpose_in_registers(s, source, readers, self.position, self.lanes)
        s[packed].compute_at(s[out], strip)
        if self.lines_first:
            s[source].compute_at(s[out], strip)
            s[source].vectorize(s[source].op.axis[-1])
        for_columns = self.width * block * tensor.dtype.nbytes // LINE_BYTES
        vectors_of_columns = -(-self._lines_turned() // self.lanes)
        lines = -(-for_columns // vectors_of_columns)
        s[packed].prefetch_line(tensor, vectors, self._in_next_block(vectors.var, lines), lines=lines)
        return loops

    def _lines_turned(self) -> int:
        return self.width + (LINE_BYTES // self.out.dtype.nbytes if self.as_in_memory else 0)

    def _in_next_block(self, vector: Var, lines: int) -> Callable[..., Sequence[PrimExpr]]:
        """Where the next block's cache `lines` begin that are asked for with a `vector` of some columns.

        They lie as far into that block, in memory, as the columns do in theirs, one vector's behind the other's.
        """
        shape, position, last = self.tensor.shape, self.position, len(self.tensor.shape) - 1
        dims = [*[d for d in range(last) if d != position], last, position]  # as the turned copy has them

        def place(*first: PrimExpr) -> Sequence[PrimExpr]:
            index = [e for _, e in sorted(zip(dims, first, strict=True), key=lambda pair: pair[0])]
            turned = self._lines_turned()
            index[position] = index[position] - te.min(vector * self.lanes, turned - self.lanes) + turned
            begin = ravel_index(index[: position + 1], shape[: position + 1]) * constant_size(shape[position + 1 :])
            within = ravel_index(index[position + 1 :], shape[position + 1 :]) * self.width
            return (begin + within + vector * (lines * LINE_BYTES // self.tensor.dtype.nbytes),)

        return place


def _axes_inside(out: te.Tensor, number: int, tensor: te.Tensor, position: int) -> tuple[int, ...]:
    """The axes of `out`, but for `number`, along which the dimensions of `tensor` behind `position` are read."""
    assert isinstance(out.op, te.ComputeOp)
    behind = [i for read, index in reads(out.op) if read is tensor for i in index[position + 1 :]]
    variables = {e for e in post_order(behind) if isinstance(e, Var)}
    return tuple([n for n, axis in enumerate(out.op.axis) if n != number and axis.var in variables])
