"""Reductions along a strided axis on CPUs, line by line: a line is a contiguous run of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.tir import Add, Reduce
from relayc.topi.cpu.accesses import only_variable, reads
from relayc.topi.cpu.common import attach, reduce_by_vectors
from relayc.topi.groups import constant_size, extent_of, iterations

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "add_up_adjacent", "add_up_groups", "add_up_in_registers", "add_up_lines", "even_part", "lines_per_step",
    "partial_results",
]  # fmt: skip

_LINES = 8
"""Lines that a reduction along a strided axis takes at once: partial results are loaded and stored once for all."""
_LONG, _BLOCK = 512, 1024
"""Least lines whose float sums go by blocks, and the most lines of a block. Dynamic sizes count as long."""
_PARTS = 4
"""Blocks of the lines of a single dynamic dimension: they halve the errors of long sums and cost short ones little."""
_LINES_OF_GROUP = 32
"""Lines whose sums are added up where there is little to add up."""
_APART_BYTES, _MOST_APART_BYTES = 8192, 32768
"""Least and most bytes between the lines taken at once, where lines are shorter: the hardware prefetcher follows one
stream per page."""


def add_up_lines(s: te.Schedule, tensor: te.Tensor, lanes: int) -> tuple[te.Tensor, te.IterVar]:
    """Order the loops of a reduction along a strided axis: lines, a few at once, with vectors of columns inside.

    Returns the stage that reads the lines, and its loop over those taken at once.
    """
    lines = iterations(s[tensor].op.reduce_axis)
    if _is_float_sum(s[tensor].op) and lines >= _LONG:
        return _add_up_in_blocks(s, tensor, lanes)
    *data, column = s[tensor].op.axis
    *before, line = s[tensor].op.reduce_axis
    at_once, apart = _lines_apart(extent_of(line), _line_bytes(s[tensor].op))
    lines, group = s[tensor].split(line, factor=at_once * apart)
    each, page = s[tensor].split(group, factor=apart)
    vectors, lane = s[tensor].split(column, factor=lanes)
    s[tensor].reorder(*data, *before, lines, page, vectors, each, lane)
    s[tensor].unroll(each)
    s[tensor].vectorize(lane)
    return tensor, each


def _add_up_in_blocks(s: te.Schedule, tensor: te.Tensor, lanes: int) -> tuple[te.Tensor, te.IterVar]:
    """Add up a few lines at a time in registers, those sums block by block, and the sums of blocks.

    The rounding error of a sum grows with the number of additions in sequence.
    """
    is_static = all(isinstance(extent_of(a), int) for a in s[tensor].op.reduce_axis)
    blocks = _loops_over_blocks(s, tensor)
    if blocks:
        block = partial_results(s, tensor, *blocks)
        (number,) = s[tensor].op.reduce_axis
        _vectorize_columns(s, tensor, [number], lanes)
        attach(s, block, tensor, number)
        if is_static:  # others would only grow the code: their groups of lines are tested anyway
            s[tensor].pragma(number, "loop_partition_hint")
        tensor = block
    line = s[tensor].op.reduce_axis[-1]
    at_once, apart = _lines_apart(extent_of(line), _line_bytes(s[tensor].op))
    lines, group = s[tensor].split(line, factor=at_once * apart)
    each, page = s[tensor].split(group, factor=apart)
    s[tensor].reorder(lines, page, each)
    few = partial_results(s, tensor, *s[tensor].op.reduce_axis[:-1], lines, page)
    over = s[tensor].split(s[tensor].op.reduce_axis[0], factor=apart)
    s[tensor].pragma(over[0], "loop_partition_hint")
    attach(s, few, tensor, _vectorize_columns(s, tensor, over, lanes))
    reduce_by_vectors(s, few, unrolled=_LINES)
    return few, s[few].op.reduce_axis[0]


def add_up_groups(s: te.Schedule, tensor: te.Tensor, lanes: int) -> None:
    """Add up a dynamic number of lines that are few beside what they were computed from, in as little code as possible:
    line by line, and group by group for the sake of rounding errors."""
    *outer, last = s[tensor].op.reduce_axis
    groups = partial_results(s, tensor, *(outer or [s[tensor].split(last, factor=_LINES_OF_GROUP)[0]]))
    (number,) = s[tensor].op.reduce_axis
    _vectorize_columns(s, tensor, [number], lanes)
    attach(s, groups, tensor, number)
    _vectorize_columns(s, groups, s[groups].op.reduce_axis, lanes)


def add_up_adjacent(s: te.Schedule, tensor: te.Tensor, lanes: int) -> None:
    """Add up groups of a few adjacent elements, a vector of groups at a time in registers."""
    groups = extent_of(s[tensor].op.axis[-1])
    if not isinstance(groups, int) or groups == 1:
        return
    total, lanes = s.cache_write(tensor, "local"), min(lanes, 1 << (groups.bit_length() - 1))
    vectors, lane = s[tensor].split(s[tensor].op.axis[-1], factor=lanes, tail="shift")
    s[tensor].vectorize(lane)
    attach(s, total, tensor, vectors)
    _vectorize_columns(s, total, s[total].op.reduce_axis, lanes)


def _vectorize_columns(s: te.Schedule, tensor: te.Tensor, over: Sequence[te.IterVar], lanes: int) -> te.IterVar:
    """Vectorise columns inside of the reduction's loops `over`; returns the loop over vectors."""
    *data, column = s[tensor].op.axis
    vectors, lane = s[tensor].split(column, factor=lanes)
    s[tensor].reorder(*over, *data, vectors, lane)
    s[tensor].vectorize(lane)
    return vectors


def _loops_over_blocks(s: te.Schedule, tensor: te.Tensor) -> list[te.IterVar]:
    """Return the loops over blocks of lines; empty where one block is enough.

    A block is whole dimensions from the last one on, and a part of the next. A dynamic dimension is a whole one, or if
    there is no other divided into a few parts: each group of lines would have to be tested in blocks of fixed length.
    """
    axes, room = list(s[tensor].op.reduce_axis), _BLOCK
    while axes and room > 1:
        length = extent_of(axes[-1])
        if isinstance(length, int) and length > room:
            axes[-1], _ = s[tensor].split(axes[-1], factor=even_part(length, room))
            return axes
        if not isinstance(length, int) and len(axes) == 1:
            groups = s[tensor].split(axes[0], factor=_LINES)[0] if room == _BLOCK else axes[0]
            return [s[tensor].split(groups, nparts=_PARTS)[0]]
        room //= max(constant_size([length]), 1)
        axes.pop()
    return axes


def partial_results(s: te.Schedule, tensor: te.Tensor, *axes: te.IterVar) -> te.Tensor:
    """Factor (`rfactor`) a reduction into partial results for each iteration of the loops over `axes`: the first ones.
    """
    made = s.rfactor(tensor, s[tensor].fuse(*axes))
    return made if isinstance(made, te.Tensor) else made[0]


def _is_float_sum(op: te.Operation) -> bool:
    assert isinstance(op, te.ComputeOp)
    reduction = op.body[0]
    assert isinstance(reduction, Reduce)
    return op.num_outputs == 1 and isinstance(reduction.combiner.result[0], Add) and reduction.dtype.is_float


def even_part(length: te.Dim, most: int) -> int:
    """Return the largest divisor of `length` up to `most`, or `most`, with a shorter last part, if that is far less."""
    if not isinstance(length, int):
        return most
    divisor = next(n for n in range(most, 0, -1) if length % n == 0)
    return divisor if 2 * divisor >= most else most


def _line_bytes(op: te.Operation) -> int:
    """Return the stride in bytes of the last reduction axis, in the largest tensor that is read along it."""
    line, column = op.reduce_axis[-1].var, op.axis[-1].var
    found = [
        constant_size(tensor.shape[n + 1 :]) * tensor.dtype.nbytes
        for tensor, index in reads(op)
        for n, i in enumerate(index[:-1])
        if only_variable(index[-1]) is column and line in post_order((i,))
    ]
    return max(found, default=_APART_BYTES)


def _lines_apart(lines: te.Dim, nbytes: int) -> tuple[int, int]:
    """Return how many lines to take at once, and their distance in lines."""
    at_once = lines_per_step(lines)
    if not isinstance(lines, int) or nbytes >= _APART_BYTES:
        return at_once, 1
    fitting = [
        (n, apart)
        for n in range(_LINES, 3, -1)
        for apart in range(-(-_MOST_APART_BYTES // nbytes), 1, -1)
        if lines % (n * apart) == 0 and nbytes * apart <= _MOST_APART_BYTES
    ]
    far = [(n, apart) for n, apart in fitting if nbytes * apart >= _APART_BYTES]
    return max(far or fitting, default=(at_once, 1), key=lambda pair: (pair[0], pair[1] if not far else -pair[1]))


def add_up_in_registers(s: te.Schedule, tensor: te.Tensor, lanes: int) -> list[te.Tensor]:
    """Reduce a few vectors of columns along a strided axis in register accumulators; returns the stages that takes.

    Even and odd lines have accumulators of their own, to hide the latency of additions.
    """
    stages, line = [tensor], s[tensor].op.reduce_axis[-1]
    apart = lines_per_step(extent_of(line))
    if len(s[tensor].op.reduce_axis) == 1 and s[tensor].op.num_outputs == 1 and apart % 2 == 0:
        _, half = s[tensor].split(line, factor=2)
        stages.insert(0, partial_results(s, tensor, half))
        s[tensor].unroll(s[tensor].op.reduce_axis[0])
        apart //= 2
    for stage in stages:
        *data, column = s[stage].op.axis
        vectors, lane = s[stage].split(column, factor=lanes)
        s[stage].unroll(vectors)
        s[stage].vectorize(lane)
        if stage is stages[0]:
            *before, line = s[stage].op.reduce_axis
            lines, each = s[stage].split(line, factor=apart)
            s[stage].reorder(*before, lines, each, *data, vectors, lane)
            s[stage].unroll(each)
            for axis in data:
                s[stage].unroll(axis)
        else:
            (over,) = s[stage].op.reduce_axis
            s[stage].reorder(*data, over, vectors, lane)
    return stages


def lines_per_step(lines: te.Dim) -> int:
    """Return the unroll factor over lines: a divisor of `lines` if there is one, enough to hide latencies."""
    if not isinstance(lines, int):
        return _LINES
    return next((n for n in range(_LINES, 3, -1) if lines % n == 0), min(lines, _LINES))
