"""Plans of pooling on CPUs: the windows of a tile, computed together, and the reductions that they share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from relayc import te
from relayc.te.ir.decisions import note
from relayc.topi.cpu.accesses import Read, reads
from relayc.topi.cpu.common import attach, local_accumulator, parallel, reduce_by_vectors
from relayc.topi.cpu.pooling.window_lines import WindowLines
from relayc.topi.cpu.pooling.windows import MOST_TAPS, tile_windows
from relayc.topi.cpu.prefetch import LINE_BYTES, has_line_vectors, in_sequence, is_streamed, rows_ahead
from relayc.topi.cpu.register_transpose import can_pack
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective, iterations, likely_extent
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["ColumnTiles", "LineTiles", "schedule_windows"]

_VECTORS = 4
"""Vectors of channels in a tile one column wide: memory order is worth more than sharing between adjacent columns
(twice as fast as 4 columns of one vector where images exceed the caches)."""
_NEIGHBOURS = 2
"""Fewest columns of a tile that share partial reductions across lines."""
_VECTORS_OF_LINE = 2
"""Vectors of adjacent windows that are computed together."""
_SHUFFLED_VECTORS, _SHUFFLED_OF_LONG = 8, 4
"""Vectors of adjacent windows that are shuffled in registers, two more with reductions across lines: for lines that
have no more, and for longer ones, whose copies with and without borders take longer to compile."""
_FEW_GROUPS = 3
"""Most groups of such vectors in a line that are unrolled: most of them touch a border."""
_UNROLLED_OF_BUFFER = 8
"""Most vectors of a buffered line that are unrolled: with large strides there are hundreds, of as many taps each."""
_PREFETCHED_LINES, _LONG_LINE_BYTES = 3, 768
"""For cores with few line-fill buffers: the window height, in lines, that the hardware prefetcher covers at stride 1,
and the bytes of a line of 32-bit elements from which on 64-byte vectors prefetch to L2, as higher windows always do."""

_MOST_PREFETCHED = 64
"""Most columns of a window that are prefetched one by one, as code without a loop."""


def schedule_windows(
    s: te.Schedule, operation: te.Operation, lines: WindowLines | None, plan: ColumnTiles | LineTiles, target: Target
) -> None:
    """Schedule the output and the windows `operation` behind it, which share reductions if there are `lines`.

    A plan says how windows are tiled, and which reductions across lines and along them adjacent ones share.
    """
    note("windows", type(plan).__name__, plan)
    shared = () if lines is None else plan.share(s, lines)
    out, anchor = s.outputs[0].output(0), s[operation].op
    inline_injective(s, [out], keep=[anchor, *[s[stage].op for stage in shared]])
    plan.apply(s, out, local_accumulator(s, anchor, out), shared, target)


@dataclass(frozen=True, slots=True)
class ColumnTiles:
    """Tiles of images with channels last: `rows` by `columns` windows, of up to `vectors` vectors of channels.

    `levels`: those by which adjacent windows share reductions, kept in registers, across lines and along them; None
    where each is reduced by itself, in a tile of one column and several vectors. `operations`: those of a window.
    """

    rows: int = 1
    columns: int = 1
    vectors: int = _VECTORS
    levels: tuple[int, int] | None = None
    operations: float | None = None

    @staticmethod
    def of(lines: WindowLines | None, target: Target) -> ColumnTiles:
        """The tiles: a cache line of channels of a few columns where windows save work by sharing reductions."""
        levels = None if lines is None else lines.levels(target.num_cores)
        if lines is None or levels is None:
            return ColumnTiles()
        vectors = -(-LINE_BYTES // (vector_lanes(target) * lines.anchor.input_tensors[0].dtype.nbytes))
        columns = max(2 ** levels[1], _NEIGHBOURS)
        return ColumnTiles(2 ** levels[0], columns, vectors, levels, lines.combined(levels))

    def share(self, s: te.Schedule, lines: WindowLines) -> Sequence[te.Tensor]:
        """Let the windows of a tile read reductions that they share: none without `levels`."""
        return () if self.levels is None else lines.share(s, self.levels)

    def apply(
        self, s: te.Schedule, out: te.Tensor, accumulator: te.Tensor, shared: Sequence[te.Tensor], target: Target
    ) -> None:
        """Schedule `out` by tiles, and what is shared in each of them."""
        tile, column, channels = tile_windows(
            s, out, accumulator, self.columns, target, vectors=self.vectors, rows=self.rows,
            operations=self.operations, divide=False,
        )  # fmt: skip
        for stage in shared:
            _keep_in_registers(s, stage, out, tile)
        self._prefetch(s, out, s[shared[0] if shared else accumulator].op, column, channels, target)

    def _prefetch(
        self, s: te.Schedule, out: te.Tensor, reader: te.Operation, loop: te.IterVar, channels: int, target: Target
    ) -> None:
        """Prefetch, some kilobytes ahead, what a window of `out` reads first, for so many `channels` of a tile.

        Those are the last lines of the window; others are in the caches. Prefetches run on into the next line.
        `reader` reduces, across lines, what the rows of a tile share, or whole windows of one row. 8-bit inputs are not
        prefetched: for so little data that takes longer than the stalls. Nor are windows far apart.
        """
        strides, group = reader.attrs.get("strides", ()), self.rows
        if len(strides) != 2:
            return
        (across, along), (taps, *columns) = strides, reader.reduce_axis
        if across * along > _MOST_PREFETCHED:
            return
        last = iterations([taps]) + (group - 1) * across

        def place(read: Read, row: int, column: int, *i: Any) -> Sequence[Any]:
            x, tap = i[2] if columns else i[2] * along + column, row + (i[1] % group - (group - 1)) * across
            return (read.place((i[0], i[1] // group, x, i[3], tap, te.const(column))[: len(read.axes)]),)

        for image, index in reads(reader):
            nbytes = image.dtype.nbytes
            if not isinstance(image.op, te.PlaceholderOp) or not is_streamed(image, 1, target) or nbytes == 1:
                continue
            read = Read(image, (*reader.axis, *reader.reduce_axis), tuple(index))
            for row, column in itertools.product(range(max(last - across, 0), last), range(along)):
                at, lines = partial(place, read, row, column), -(-channels * nbytes // LINE_BYTES)
                s[out].prefetch(image, loop, replace(in_sequence(image, target), order=at, lines=lines))


@dataclass(frozen=True, slots=True)
class LineTiles:
    """Adjacent windows of a line by `vectors` of `lanes`; taps are strided reads of the input or of what they share.

    Loop partitioning cuts off the lines, and the vectors of a line, that touch the border. Lines longer than `part`
    results, unless that is 0, are computed in such parts. Windows share reductions across lines in a buffer that holds
    those of a part, or in registers, which LLVM shuffles.
    """

    lanes: int
    vectors: int = _VECTORS_OF_LINE
    part: int = 0
    shared: Literal["nothing", "in a buffer", "in registers"] = "nothing"

    @staticmethod
    def of(anchor: te.Operation, lines: WindowLines | None, part: int, target: Target) -> LineTiles:
        """The tiles of windows `anchor`, in parts of so many results.

        Registers serve stride 1 and static lines of at least a vector, with one two-source permute for each tap along a
        line. With AVX2, which needs two or three instructions, only lines of up to 40 elements gained, and long ones
        lost a third.
        """
        lanes, width = vector_lanes(target), iterations([anchor.axis[-1]])
        if lines is None:
            return LineTiles(lanes, part=part)
        if part or lines.stride != 1 or width < lanes or not can_pack(target, lanes, lines.whole.dtype):
            return LineTiles(lanes, part=part, shared="in a buffer")
        vectors = _SHUFFLED_VECTORS if width <= _SHUFFLED_VECTORS * lanes else _SHUFFLED_OF_LONG
        return LineTiles(lanes, vectors, shared="in registers")

    def share(self, s: te.Schedule, lines: WindowLines) -> Sequence[te.Tensor]:
        """Let the windows read reductions across lines."""
        return lines.by_vectors(s, self.lanes * (1 if self.shared == "in registers" else 2))

    def apply(
        self, s: te.Schedule, out: te.Tensor, accumulator: te.Tensor, shared: Sequence[te.Tensor], target: Target
    ) -> None:
        """Schedule `out` by groups of vectors, and what windows share: in each of them, or in each part of a line."""
        *outer, last = s[out].op.axis
        window, in_registers = s[accumulator].op.reduce_axis, self.shared == "in registers"
        if self.part:
            reach = likely_extent(extent_of(window[-1]), 1) // 2  # most padding of a line, usually
            at, group = s[out].split(last, factor=self.part, tail="shift", least=self.part + reach)
            s[out].pragma(at, "loop_partition_hint")
        else:
            at, group = s[out].split(last, nparts=1)
        length, wanted = self.part or iterations([last]), self.vectors * self.lanes
        tail = "shift" if in_registers and length % self.lanes else "guard"
        group, inner = s[out].split(group, factor=min(wanted, length), tail=tail)
        if in_registers and length <= _FEW_GROUPS * wanted:
            s[out].unroll(group)
        s[out].vectorize(inner)
        if len(outer) > 1:
            *planes, line = outer
            plane = s[out].fuse(*planes)
            s[out].pragma(line, "loop_partition_hint")
            parallel(s, out, plane, constant_size(out.shape) * iterations(window) * 2.0, self.lanes)
        s[out].pragma(group, "loop_partition_hint")
        s[accumulator].compute_at(s[out], group)
        reduce_by_vectors(s, accumulator, unrolled=MOST_TAPS)
        if in_registers:
            _keep_in_registers(s, shared[0], out, group)
            _prefetch_lines(s, shared[0], target)
        elif shared:
            self._buffer(s, shared, out, at, target)

    def _buffer(
        self, s: te.Schedule, shared: Sequence[te.Tensor], out: te.Tensor, at: te.IterVar, target: Target
    ) -> None:
        """Reduce windows across lines at loop `at` of `out`, and deinterleave them by phase (see `WindowLines`)."""
        whole, parts = shared[0], shared[-1]
        attach(s, parts, out, at)
        if whole.ndim == out.ndim:  # dynamic length
            windows = s[whole].op.attrs
            apart = windows["strides"][-1] // math.gcd(windows["strides"][-1], windows["dilation"][-1])
            vectors = self.part * apart // (2 * self.lanes)
            reduce_by_vectors(s, whole, lanes=2 * self.lanes, unrolled=MOST_TAPS, loops=vectors > _UNROLLED_OF_BUFFER)
            return
        *_, vectors, lane = s[parts].op.axis
        s[parts].pragma(vectors, "loop_partition_hint")
        _prefetch_lines(s, whole, target)
        reduce_by_vectors(s, whole, unrolled=MOST_TAPS)
        if parts is not whole:
            *outer, phase, _, _ = s[parts].op.axis
            s[parts].reorder(*outer, vectors, phase, lane)
            s[parts].unroll(phase)
            s[parts].vectorize(lane)
            attach(s, whole, parts, vectors)


def _keep_in_registers(s: te.Schedule, stage: te.Tensor, out: te.Tensor, loop: te.IterVar) -> None:
    """Reduce what windows share at a loop of `out`, unrolled for all vectors of a tile."""
    attach(s, stage, out, loop)
    for axis in s[stage].op.axis[1:-1]:
        s[stage].unroll(axis)
    reduce_by_vectors(s, stage, unrolled=MOST_TAPS)


def _prefetch_lines(s: te.Schedule, lines: te.Tensor, target: Target) -> None:
    """Prefetch, in memory order, the lines that later windows read; each vector of a line prefetches its part."""
    op, few, length = s[lines].op, has_few_fill_buffers(target), constant_size(lines.shape[-1:])
    stride, high = op.attrs["strides"][-2], iterations(op.reduce_axis) > _PREFETCHED_LINES
    (image, _), *others = reads(op)
    shape, nbytes, width = image.shape, image.dtype.nbytes, constant_size(image.shape[-1:])
    in_memory = isinstance(image.op, te.PlaceholderOp) and is_streamed(image, width, target)
    if others or not in_memory or (few and stride == 1 and not high):
        return
    far = few and has_line_vectors(target) and (high or (width * nbytes >= _LONG_LINE_BYTES and nbytes >= 4))
    later = rows_ahead(stride * width * nbytes)

    def ahead(*i: Any) -> Sequence[Any]:
        *plane, y, vector, lane = i[: len(shape) + 1]
        return (ravel_index((*plane, (y + later) * stride, 0), shape) + (vector * length + lane) * stride,)

    cache_lines = -(-stride * length * nbytes // LINE_BYTES)
    s[lines].prefetch(image, op.axis[-2], te.Prefetch(0, 2 if far else 1, ahead, cache_lines))
