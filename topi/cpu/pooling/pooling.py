"""Pooling on CPUs: NHWC windows by tiles of columns and vectors of channels, other layouts by vectors of a line."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.common import local_accumulator, parallel
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.norms.packed_transpose import can_pack
from relayc.topi.cpu.pooling.window_lines import WindowLines
from relayc.topi.cpu.pooling.windows import MOST_TAPS, tile_windows
from relayc.topi.cpu.prefetch import LINE_BYTES, elements_ahead, is_streamed, rows_ahead
from relayc.topi.cpu.reductions.narrow_extrema import compare_as_integers
from relayc.topi.cpu.tiling import has_few_fill_buffers, prefetches_to_l1, vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective, likely_extent
from relayc.topi.registry import operations_behind, register_schedule
from relayc.topi.tag import PAD
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target
    from relayc.te.tir import PrimExpr

__all__ = ["schedule_pool"]

_FEW_TAPS = 9
"""Of windows that are reduced at once where few results share what is reduced across lines."""
_VECTORS = 4
"""Of channels in a tile of NHWC images, which is one column wide: memory is read in order then, which is worth more
than what neighbouring columns share (twice as fast as 4 columns of one vector where images exceed the caches)."""

_NEIGHBOURS = 2
"""Columns of NHWC images that share what windows reduce across lines, at least."""

_LONG_LINE = 6
"""Vectors of a line of planes from which on 16-bit floats are compared as integers, or where these are whole vectors:
of parts of vectors of 16 bits, which are much of a short line, LLVM moves single elements."""
_NEAR_VECTORS, _NEAR_VECTORS_OF_LONG = 8, 4
"""Of neighbouring windows a step apart, for which two vectors more are reduced across lines than they are: of lines
that have no more, which need no code for a rest, and of others, whose parts with and without borders take longer to
compile."""
_SEEN_LINES, _FAR_BYTES = 3, 768
"""Where a core waits for few lines: lines of windows that come early by themselves, a step apart; and bytes of lines of
32 bits from which on vectors of cache lines had better ask the second-level cache for them, as higher windows do."""
_FEW_GROUPS = 3
"""Of such vectors in a line, which are written out: most of them have a border."""


@register_schedule("pool", "cpu")
def schedule_pool(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """A reduction over a window for every output; the last data axis is vectorised when the window is not on it.

    The anchor's attribute "axes" holds the dimensions that the window spans.
    """
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    lanes = vector_lanes(target)
    if tuple(anchor.attrs["axes"]) == (1, 2) and len(anchor.axis) == 4 and len(outs) == 1:
        return _schedule_columns(outs, anchor, target)
    if len(anchor.axis) - 1 in anchor.attrs["axes"] and len(outs) == 1:
        if isinstance(extent_of(anchor.axis[-1]), int):
            return _schedule_lines(outs, anchor, target)
        return _schedule_open_lines(outs, anchor, target)
    inline_injective(s, outs, keep=[anchor, *[op for op in operations_behind(outs) if op.tag == "pad"]])
    for op in operations_behind(outs):
        if op.tag == "pad" and op is not out.op:
            *outer, last = s[op].op.axis
            line = s[op].fuse(*outer)
            parallel(s, op.output(0), line, constant_size(op.output(0).shape) * 4.0, lanes)
            vectorize_elements(s, op.output(0), last, last.extent, lanes)
    accumulator = local_accumulator(s, anchor, out)
    *outer, last = s[out].op.axis
    window = constant_size([axis.extent for axis in anchor.reduce_axis])
    line = s[out].fuse(*outer)
    parallel(s, out, line, constant_size(out.shape) * window * 2.0, lanes)
    group = vectorize_elements(s, out, last, last.extent, lanes)
    s[accumulator].compute_at(s[out], group)
    *data, lane = s[accumulator].op.axis
    s[accumulator].reorder(*data, *s[accumulator].op.reduce_axis, lane)
    s[accumulator].vectorize(lane)
    return s


def _schedule_columns(outs: list[te.Tensor], operation: te.Operation, target: Target) -> te.Schedule:
    """Images with the channels last: a column at a time, of several vectors of channels.

    Where that saves work neighbours share what windows have in common, which stays in registers: a tile is a cache line
    of channels of a few columns, of two lines.
    """
    s = te.create_schedule([out.op for out in outs])
    if constant_size([extent_of(operation.axis[-1])]) >= vector_lanes(target):
        operation = compare_as_integers(s, operation)
    shared = WindowLines.of(operation)
    stages: list[te.Tensor] = []
    rows, columns, vectors, operations = 1, 1, _VECTORS, None
    levels = (0, 0) if shared is None else shared.levels(target.num_cores)
    if shared is not None and shared.saves(levels):
        stages, operations = shared.share(s, levels), shared.combined(levels)
        rows, columns = 2 ** levels[0], max(2 ** levels[1], _NEIGHBOURS)
        vectors = -(-LINE_BYTES // (vector_lanes(target) * operation.input_tensors[0].dtype.nbytes))
    out, anchor = s.outputs[0].output(0), s[operation].op
    inline_injective(s, [out], keep=[anchor, *[s[stage].op for stage in stages]])
    accumulator = local_accumulator(s, anchor, out)
    tile, column, channels = tile_windows(
        s, out, accumulator, columns, target, vectors=vectors, rows=rows, operations=operations, divide=False
    )
    for stage in stages:
        s[stage].set_scope("local")
        s[stage].compute_at(s[out], tile)
        _reduce_by_vectors(s, stage)
        for axis in s[stage].op.axis[1:3]:
            s[stage].unroll(axis)
    strides = operation.attrs.get("strides")
    if strides is not None:
        _fetch_next_columns(s, out, stages[0] if stages else accumulator, column, strides, (rows, channels), target)
    return s


def _fetch_next_columns(
    s: te.Schedule, out: te.Tensor, reader: te.Tensor, loop: te.IterVar, strides: tuple[int, int],
    tile: tuple[int, int], target: Target,
) -> None:  # fmt: skip
    """Ask for what a window of `out` has of its own in `reader`, further on: for so many channels of a `tile`.

    That are the last lines of the window, others are in the caches. Behind the end of a line the next one begins.
    `reader` reduces what the rows of a tile have in common, across lines, or whole windows of one row. Bytes are
    too few for each vector of results: asking takes longer than waiting.
    """
    op = s[reader].op
    assert isinstance(op, te.ComputeOp)
    (across, along), (group, channels), (taps, *columns) = strides, tile, op.reduce_axis

    def place(image: te.Tensor, index: Sequence[PrimExpr], row: int, column: int, *i: Any) -> Sequence[Any]:
        x, tap = i[2] if columns else i[2] * along + column, row + (i[1] % group - (group - 1)) * across
        at = {axis.var: v for axis, v in zip(op.axis, (i[0], i[1] // group, x, i[3]), strict=True)}
        at |= dict(zip([k.var for k in op.reduce_axis], (tap, te.const(column)), strict=False))
        ahead = elements_ahead(image.dtype.nbytes, target)
        return (ravel_index([substitute(e, at) for e in index], image.shape) + ahead,)

    for image, index in reads(op):
        last, lines = (
            constant_size([extent_of(taps)]) + (group - 1) * across,
            -(-channels * image.dtype.nbytes // LINE_BYTES),
        )
        if not isinstance(image.op, te.PlaceholderOp) or not is_streamed(image, 1, target) or image.dtype.nbytes == 1:
            continue
        for row, column in itertools.product(range(max(last - across, 0), last), range(along)):
            at = partial(place, image, index, row, column)
            s[out].prefetch_line(image, loop, at, lines=lines, to_l1=prefetches_to_l1(target))


@register_schedule("pool_positions", "cpu")
def schedule_pool_positions(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """The largest value of each window, then the first tap that has it: two passes over an image, both of vectors."""
    lanes, known = vector_lanes(target), isinstance(extent_of(anchor.axis[-1]), int)

    def parts_of(part: int | None) -> te.Schedule:
        s = te.create_schedule([out.op for out in outs])
        pool = next(op for op in anchor.input_tensors if op.op.tag == "pool").op
        inline_injective(s, outs, keep=[anchor, pool])
        for out, operation in zip(outs, (pool, anchor), strict=True):
            _tile_lines(s, s.current(out), operation, (), target, part)
        return s

    s = parts_of(None if known else 2 * lanes)
    if not known:
        s.specialize_small(parts_of(lanes))
    return s


def _schedule_open_lines(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Lines of a length known at run time, by schedules for less and less of it.

    The first part of a line and the last, which is shifted inwards, have code of their own: of lines that are longer
    than a part and a window it is known which of their vectors touch the border.
    """
    lanes, taps = vector_lanes(target), constant_size([axis.extent for axis in anchor.reduce_axis])
    strided = anchor.attrs.get("strides", (1,))[-1] > 1
    many = taps > _FEW_TAPS
    s = _schedule_lines(outs, anchor, target, part=4 * lanes, share=strided or many)
    fewer = _schedule_lines(outs, anchor, target, part=2 * lanes, share=many)
    s.specialize_small(fewer)
    fewer.specialize_small(_schedule_lines(outs, anchor, target, part=lanes, share=many))
    return s


def _schedule_lines(
    outs: list[te.Tensor], operation: te.Operation, target: Target, part: int | None = None, share: bool = True
) -> te.Schedule:
    """Windows that lie along the last axis. With `share` neighbours share what windows reduce across lines."""
    s = te.create_schedule([out.op for out in outs])
    lanes, width = vector_lanes(target), constant_size([extent_of(operation.axis[-1])])
    if width >= _LONG_LINE * lanes or width % (2 * lanes) == 0:
        operation = compare_as_integers(s, operation)
    shared = WindowLines.of(operation) if share else None
    near = shared is not None and part is None and _is_near(shared, target)
    lines = () if shared is None else shared.apply(s, lanes if near else 2 * lanes)
    out, anchor = s.outputs[0].output(0), s[operation].op
    inline_injective(s, [out], keep=[anchor, *[s[t].op for t in lines]])
    _tile_lines(s, out, anchor, lines, target, part, near=near)
    return s


def _is_near(shared: WindowLines, target: Target) -> bool:
    """Are neighbouring windows made of registers by one instruction for each tap along a line?

    Windows a step apart, of lines that have a vector, where processors pick elements of two vectors. With AVX2, which
    takes two or three, only lines of up to 40 gained, long ones lost a third.
    """
    width, lanes = extent_of(shared.anchor.axis[-1]), vector_lanes(target)
    return shared.stride == 1 and constant_size([width]) >= lanes and can_pack(target, lanes, shared.whole.dtype)


def _tile_lines(
    s: te.Schedule, out: te.Tensor, anchor: te.Operation, lines: Sequence[te.Tensor], target: Target,
    part: int | None, *, near: bool = False,
) -> None:  # fmt: skip
    """Vectors of neighbouring windows, whose taps are read with the stride, of `lines` where there are.

    Loop partitioning cuts off the lines, and the vectors of a line, that touch the border. Lines that are longer than
    `part` results are computed in such parts. `near`: what a few vectors read of `lines` is computed for them, and
    stays in registers.
    """
    window = anchor.reduce_axis
    accumulator, lanes = local_accumulator(s, anchor, out), vector_lanes(target)
    *outer, last = s[out].op.axis
    taps, width = constant_size([axis.extent for axis in window]), extent_of(last)
    if part is None:
        at, group = s[out].split(last, nparts=1)
    else:
        least = part + likely_extent(extent_of(window[-1]), 1) // 2  # half a window lies in front, at most, as a rule
        at, group = s[out].split(last, factor=part, tail="shift", least=least)
        s[out].pragma(at, "loop_partition_hint")
    length = constant_size([width] if part is None else [part])
    tail = "shift" if near and length % lanes else "guard"
    vectors = 2 if not near else _NEAR_VECTORS if length <= _NEAR_VECTORS * lanes else _NEAR_VECTORS_OF_LONG
    group, inner = s[out].split(group, factor=min(vectors * lanes, length), tail=tail)
    if near and length <= _FEW_GROUPS * vectors * lanes:
        s[out].unroll(group)
    s[out].vectorize(inner)
    if len(outer) > 1:
        *planes, line = outer
        plane = s[out].fuse(*planes)
        s[out].pragma(line, "loop_partition_hint")
        parallel(s, out, plane, constant_size(out.shape) * taps * 2.0, lanes)
    s[out].pragma(group, "loop_partition_hint")

    s[accumulator].compute_at(s[out], group)
    _reduce_by_vectors(s, accumulator)
    if near:
        _reduce_nearby(s, lines[0], out, group, target)
    elif lines:
        _buffer_lines(s, lines, out, at, target)


def _reduce_nearby(s: te.Schedule, lines: te.Tensor, out: te.Tensor, group: te.IterVar, target: Target) -> None:
    """Reduce windows across lines for each `group` of results, by vectors of registers, which LLVM shuffles."""
    s[lines].set_scope("local")
    s[lines].compute_at(s[out], group)
    _fetch_next_lines(s, lines, target)
    s[lines].unroll(s[lines].op.axis[-2])
    _reduce_by_vectors(s, lines)


def _buffer_lines(s: te.Schedule, lines: Sequence[te.Tensor], out: te.Tensor, at: te.IterVar, target: Target) -> None:
    """Reduce windows across lines at loop `at` of `out`, and take what lies side by side apart: see `WindowLines`."""
    whole, parts = lines[0], lines[-1]
    for tensor in lines:
        s[tensor].set_scope("local")
    s[parts].compute_at(s[out], at)
    if whole.ndim == out.ndim:  # of a length known at run time
        vectors, lane = s[whole].split(s[whole].op.axis[-1], factor=2 * vector_lanes(target))
        s[whole].unroll(vectors)
        _reduce_by_vectors(s, whole, [vectors], lane)
        return
    *_, vectors, lane = s[parts].op.axis
    s[parts].pragma(vectors, "loop_partition_hint")
    _fetch_next_lines(s, whole, target)
    _reduce_by_vectors(s, whole)
    if parts is not whole:
        *outer, phase, _, _ = s[parts].op.axis
        s[parts].reorder(*outer, vectors, phase, lane)
        s[parts].unroll(phase)
        s[parts].vectorize(lane)
        s[whole].compute_at(s[parts], vectors)


def _fetch_next_lines(s: te.Schedule, lines: te.Tensor, target: Target) -> None:
    """Ask in the order of memory for the lines that later windows reach: each vector of a line for its share."""
    (source,) = lines.op.input_tensors
    image = source.op.input_tensors[0] if source.op.tag == PAD else source
    stride, shape, nbytes, length = lines.op.attrs["stride"], image.shape, image.dtype.nbytes, lines.shape[-1]
    if not isinstance(image.op, te.PlaceholderOp) or not is_streamed(image, constant_size(shape[-1:]), target):
        return
    row, high, few = constant_size(shape[-1:]) * nbytes, _taps(lines) > _SEEN_LINES, has_few_fill_buffers(target)
    if few and stride == 1 and not high:
        return
    far = few and target.vector_bytes >= LINE_BYTES and (high or (row >= _FAR_BYTES and nbytes >= 4))
    later = rows_ahead(stride * row)

    def ahead(*i: Any) -> Sequence[Any]:
        *plane, y, vector, lane = i[: len(shape) + 1]
        return (ravel_index((*plane, (y + later) * stride, 0), shape) + (vector * length + lane) * stride,)

    cache_lines = -(-stride * constant_size([length]) * nbytes // LINE_BYTES)
    s[lines].prefetch_line(image, s[lines].op.axis[-2], ahead, lines=cache_lines, to_l1=not far)


def _taps(reduced: te.Tensor) -> int:
    """Of what is reduced for each element of a tensor."""
    assert isinstance(reduced.op, te.ComputeOp)
    return constant_size([extent_of(axis) for axis in reduced.op.reduce_axis])


def _reduce_by_vectors(
    s: te.Schedule, tensor: te.Tensor, outer: Sequence[te.IterVar] = (), lane: te.IterVar | None = None
) -> None:
    """Let the reduction of `tensor` run over its window around vectors of its last axis, or of `lane`, a part of it."""
    *data, last = s[tensor].op.axis
    window, lane = s[tensor].op.reduce_axis, last if lane is None else lane
    s[tensor].reorder(*data, *outer, *window, lane)
    if constant_size([axis.extent for axis in window]) <= MOST_TAPS:
        for axis in window:
            s[tensor].unroll(axis)
    s[tensor].vectorize(lane)
