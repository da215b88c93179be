"""Pooling on CPUs: NHWC windows by tiles of columns and vectors of channels, other layouts by vectors of a line."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, note
from relayc.te.tir.substitute import substitute
from relayc.topi.candidates import Candidate, KernelFacts, schedule_by
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.common import attach, local_accumulator, parallel
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.pooling.window_lines import WindowLines
from relayc.topi.cpu.pooling.windows import MOST_TAPS, tile_windows
from relayc.topi.cpu.prefetch import LINE_BYTES, in_sequence, is_streamed, rows_ahead
from relayc.topi.cpu.reductions.rewrites import compare_as_float32, compare_as_integers
from relayc.topi.cpu.register_transpose import can_pack
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective, iterations, likely_extent
from relayc.topi.registry import register_schedule
from relayc.topi.tag import PAD
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target
    from relayc.te.tir import PrimExpr

__all__ = ["schedule_pool"]

_FEW_TAPS = 9
"""Most taps of windows that are reduced directly where few results share partial reductions across lines."""
_VECTORS = 4
"""Vectors of channels in a tile of NHWC images, one column wide: memory order is worth more than sharing between
adjacent columns (twice as fast as 4 columns of one vector where images exceed the caches)."""

_NEIGHBOURS = 2
"""Fewest columns of an NHWC tile that share partial reductions across lines."""

_LONG_LINE = 6
"""Vectors of a line of a plane from which on 16-bit floats are compared as integers; shorter lines only if they are
whole vectors, since LLVM moves the elements of partial 16-bit vectors singly."""
_SHUFFLED_VECTORS, _SHUFFLED_OF_LONG = 8, 4
"""Vectors of windows of stride 1 computed together, which take two more vectors of reductions across lines: for lines
that have no more, and for longer ones, whose copies with and without borders take longer to compile."""
_PREFETCHED_LINES, _LONG_LINE_BYTES = 3, 768
"""For cores with few line-fill buffers: the window height, in lines, that the hardware prefetcher covers at stride 1,
and the bytes of a line of 32-bit elements from which on 64-byte vectors prefetch to L2, as higher windows always do."""
_FEW_GROUPS = 3
"""Most groups of such vectors in a line that are unrolled: most of them touch a border."""


@register_schedule("pool", "cpu")
def schedule_pool(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule a reduction over a window for every output; the last data axis is vectorised if no window spans it.

    The anchor's attribute "axes" holds the dimensions that the window spans.
    """
    return schedule_by(_CANDIDATES, KernelFacts(outs, anchor, target))


def _lines(kernel: KernelFacts) -> te.Schedule | Refused:
    if not kernel.has_one_result or len(kernel.anchor.axis) - 1 not in kernel.anchor.attrs["axes"]:
        return Refused("windows do not span the last dimension, or there are several results")
    if not isinstance(extent_of(kernel.anchor.axis[-1]), int):
        return _schedule_dynamic_lines(kernel)
    return _schedule_lines(kernel)


def _channels(kernel: KernelFacts) -> te.Schedule:
    s, outs, anchor, lanes = kernel.create_schedule(), kernel.outs, kernel.anchor, vector_lanes(kernel.target)
    padded = [op for op in kernel.stages if op.tag == "pad"]
    inline_injective(s, outs, keep=[anchor, *padded])
    for op in padded:
        if op is not kernel.out.op:
            *outer, last = s[op].op.axis
            line = s[op].fuse(*outer)
            parallel(s, op.output(0), line, constant_size(op.output(0).shape) * 4.0, lanes)
            vectorize_elements(s, op.output(0), last, last.extent, lanes)
    out, accumulator = kernel.out, local_accumulator(s, anchor, kernel.out)
    *outer, last = s[out].op.axis
    window = iterations(anchor.reduce_axis)
    line = s[out].fuse(*outer)
    parallel(s, out, line, constant_size(out.shape) * window * 2.0, lanes)
    group = vectorize_elements(s, out, last, last.extent, lanes)
    s[accumulator].compute_at(s[out], group)
    _reduce_by_vectors(s, accumulator, unrolled=0)
    return s


def _columns(kernel: KernelFacts) -> te.Schedule | Refused:
    """Schedule NHWC images one column at a time, with several vectors of channels.

    Where that saves work, adjacent windows share partial reductions, kept in registers: a tile is then a cache line of
    channels of a few columns, of up to two lines.
    """
    operation, target = kernel.anchor, kernel.target
    if tuple(operation.attrs["axes"]) != (1, 2) or len(operation.axis) != 4 or not kernel.has_one_result:
        return Refused("no images with channels last and one result")
    s = kernel.create_schedule()
    if iterations([operation.axis[-1]]) >= vector_lanes(target):
        operation = compare_as_integers(s, operation)
    shared = WindowLines.of(operation)
    stages: list[te.Tensor] = []
    rows, columns, vectors, operations = 1, 1, _VECTORS, None
    levels = (0, 0) if shared is None else shared.levels(target.num_cores)
    if shared is not None and shared.saves(levels):
        stages, operations = shared.share(s, levels), shared.combined(levels)
        rows, columns = 2 ** levels[0], max(2 ** levels[1], _NEIGHBOURS)
        vectors = -(-LINE_BYTES // (vector_lanes(target) * operation.input_tensors[0].dtype.nbytes))
    note("windows", "shared reductions" if stages else "one by one", rows=rows, columns=columns, vectors=vectors)
    out, anchor = s.outputs[0].output(0), s[operation].op
    inline_injective(s, [out], keep=[anchor, *[s[stage].op for stage in stages]])
    accumulator = local_accumulator(s, anchor, out)
    tile, column, channels = tile_windows(
        s, out, accumulator, columns, target, vectors=vectors, rows=rows, operations=operations, divide=False
    )
    for stage in stages:
        attach(s, stage, out, tile)
        _reduce_by_vectors(s, stage)
        for axis in s[stage].op.axis[1:3]:
            s[stage].unroll(axis)
    strides = operation.attrs.get("strides")
    if strides is not None:
        _prefetch_columns(s, out, stages[0] if stages else accumulator, column, strides, (rows, channels), target)
    return s


def _prefetch_columns(
    s: te.Schedule, out: te.Tensor, reader: te.Tensor, loop: te.IterVar, strides: tuple[int, int],
    tile: tuple[int, int], target: Target,
) -> None:  # fmt: skip
    """Prefetch, some kilobytes ahead, what a window of `out` reads first, for a `tile` of (rows, channels).

    Those are the last lines of the window; others are in the caches. Prefetches run on into the next line. `reader`
    reduces, across lines, what the rows of a tile share, or whole windows of one row. 8-bit inputs are not prefetched:
    for so little data that takes longer than the stalls.
    """
    op = s[reader].op
    (across, along), (group, channels), (taps, *columns) = strides, tile, op.reduce_axis

    def place(image: te.Tensor, index: Sequence[PrimExpr], row: int, column: int, *i: Any) -> Sequence[Any]:
        x, tap = i[2] if columns else i[2] * along + column, row + (i[1] % group - (group - 1)) * across
        at = {axis.var: v for axis, v in zip(op.axis, (i[0], i[1] // group, x, i[3]), strict=True)}
        at |= dict(zip([k.var for k in op.reduce_axis], (tap, te.const(column)), strict=False))
        return (ravel_index([substitute(e, at) for e in index], image.shape),)

    for image, index in reads(op):
        last, lines = (
            iterations([taps]) + (group - 1) * across,
            -(-channels * image.dtype.nbytes // LINE_BYTES),
        )
        if not isinstance(image.op, te.PlaceholderOp) or not is_streamed(image, 1, target) or image.dtype.nbytes == 1:
            continue
        for row, column in itertools.product(range(max(last - across, 0), last), range(along)):
            at = partial(place, image, index, row, column)
            s[out].prefetch(image, loop, replace(in_sequence(image, target), order=at, lines=lines))


@register_schedule("pool_positions", "cpu")
def schedule_pool_positions(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Schedule argmax pooling: the maximum of each window, then its first tap that has it, in two vectorised passes."""
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


def _schedule_dynamic_lines(kernel: KernelFacts) -> te.Schedule:
    """Schedule lines of dynamic length, with specialised versions for shorter and shorter lines.

    The first part of a line, and the last, which is shifted inwards, are partitioned off: in lines longer than a part
    and a window it is known which vectors touch the border.
    """
    lanes, strided = vector_lanes(kernel.target), kernel.anchor.attrs.get("strides", (1,))[-1] > 1
    many = iterations(kernel.anchor.reduce_axis) > _FEW_TAPS
    s = _schedule_lines(kernel, part=4 * lanes, share=strided or many)
    fewer = _schedule_lines(kernel, part=2 * lanes, share=many)
    s.specialize_small(fewer)
    fewer.specialize_small(_schedule_lines(kernel, part=lanes, share=many))
    return s


def _schedule_lines(kernel: KernelFacts, part: int | None = None, *, share: bool = True) -> te.Schedule:
    """Schedule windows that span the last axis; with `share` adjacent windows share reductions across lines."""
    s, operation, target = kernel.create_schedule(), kernel.anchor, kernel.target
    lanes, width = vector_lanes(target), iterations([operation.axis[-1]])
    if width >= _LONG_LINE * lanes or width % (2 * lanes) == 0:
        operation = compare_as_integers(s, operation)
    elif not _is_vector_of_float16(operation, target):
        operation = compare_as_float32(s, operation)
    shared = WindowLines.of(operation) if share else None
    shuffled = shared is not None and part is None and _fits_registers(shared, target)
    lines = () if shared is None else shared.apply(s, lanes if shuffled else 2 * lanes)
    out, anchor = s.outputs[0].output(0), s[operation].op
    inline_injective(s, [out], keep=[anchor, *[s[t].op for t in lines]])
    _tile_lines(s, out, anchor, lines, target, part, shuffled=shuffled)
    return s


def _is_vector_of_float16(operation: te.Operation, target: Target) -> bool:
    """True if a line is at most a vector of float16, read at stride 1, that the target compares without conversion."""
    width, strides = iterations([operation.axis[-1]]), operation.attrs.get("strides", (1,))
    native = operation.output(0).dtype == "float16" and not target.features.isdisjoint(("avx512fp16", "fullfp16"))
    return native and strides[-1] == 1 and width <= vector_lanes(target, 2)


def _fits_registers(shared: WindowLines, target: Target) -> bool:
    """True if windows are shuffled from vector registers, with one two-source permute for each tap along a line.

    That takes stride 1 and lines of at least a vector. With AVX2, which needs two or three instructions, only lines of
    up to 40 elements gained, and long ones lost a third.
    """
    width, lanes = extent_of(shared.anchor.axis[-1]), vector_lanes(target)
    return shared.stride == 1 and constant_size([width]) >= lanes and can_pack(target, lanes, shared.whole.dtype)


def _tile_lines(
    s: te.Schedule, out: te.Tensor, anchor: te.Operation, lines: Sequence[te.Tensor], target: Target,
    part: int | None, *, shuffled: bool = False,
) -> None:  # fmt: skip
    """Vectorise adjacent windows, whose taps are strided reads of the input or of `lines`, its reductions across lines.

    Loop partitioning cuts off the lines, and the vectors of a line, that touch the border. Lines longer than `part`
    results are computed in such parts. `shuffled`: what a few vectors read of `lines` stays in registers.
    """
    window = anchor.reduce_axis
    accumulator, lanes = local_accumulator(s, anchor, out), vector_lanes(target)
    *outer, last = s[out].op.axis
    taps, width = iterations(window), extent_of(last)
    if part is None:
        at, group = s[out].split(last, nparts=1)
    else:
        least = part + likely_extent(extent_of(window[-1]), 1) // 2  # at most half a window is padding, usually
        at, group = s[out].split(last, factor=part, tail="shift", least=least)
        s[out].pragma(at, "loop_partition_hint")
    length = constant_size([width] if part is None else [part])
    tail = "shift" if shuffled and length % lanes else "guard"
    vectors = 2 if not shuffled else _SHUFFLED_VECTORS if length <= _SHUFFLED_VECTORS * lanes else _SHUFFLED_OF_LONG
    group, inner = s[out].split(group, factor=min(vectors * lanes, length), tail=tail)
    if shuffled and length <= _FEW_GROUPS * vectors * lanes:
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
    if shuffled:
        _reduce_in_registers(s, lines[0], out, group, target)
    elif lines:
        _buffer_lines(s, lines, out, at, target)


def _reduce_in_registers(s: te.Schedule, lines: te.Tensor, out: te.Tensor, group: te.IterVar, target: Target) -> None:
    """Reduce windows across lines for each `group` of results, in vector registers, which LLVM shuffles."""
    attach(s, lines, out, group)
    _prefetch_lines(s, lines, target)
    s[lines].unroll(s[lines].op.axis[-2])
    _reduce_by_vectors(s, lines)


def _buffer_lines(s: te.Schedule, lines: Sequence[te.Tensor], out: te.Tensor, at: te.IterVar, target: Target) -> None:
    """Reduce windows across lines at loop `at` of `out`, and deinterleave them by phase (see `WindowLines`)."""
    whole, parts = lines[0], lines[-1]
    for tensor in lines:
        s[tensor].set_scope("local")
    s[parts].compute_at(s[out], at)
    if whole.ndim == out.ndim:  # dynamic length
        vectors, lane = s[whole].split(s[whole].op.axis[-1], factor=2 * vector_lanes(target))
        s[whole].unroll(vectors)
        _reduce_by_vectors(s, whole, [vectors], lane)
        return
    *_, vectors, lane = s[parts].op.axis
    s[parts].pragma(vectors, "loop_partition_hint")
    _prefetch_lines(s, whole, target)
    _reduce_by_vectors(s, whole)
    if parts is not whole:
        *outer, phase, _, _ = s[parts].op.axis
        s[parts].reorder(*outer, vectors, phase, lane)
        s[parts].unroll(phase)
        s[parts].vectorize(lane)
        s[whole].compute_at(s[parts], vectors)


def _prefetch_lines(s: te.Schedule, lines: te.Tensor, target: Target) -> None:
    """Prefetch, in memory order, the lines that later windows read; each vector of a line prefetches its part."""
    (source,) = lines.op.input_tensors
    image = source.op.input_tensors[0] if source.op.tag == PAD else source
    stride, shape, nbytes, length = lines.op.attrs["stride"], image.shape, image.dtype.nbytes, lines.shape[-1]
    if not isinstance(image.op, te.PlaceholderOp) or not is_streamed(image, constant_size(shape[-1:]), target):
        return
    row, high, few = constant_size(shape[-1:]) * nbytes, _taps(lines) > _PREFETCHED_LINES, has_few_fill_buffers(target)
    if few and stride == 1 and not high:
        return
    far = few and target.vector_bytes >= LINE_BYTES and (high or (row >= _LONG_LINE_BYTES and nbytes >= 4))
    later = rows_ahead(stride * row)

    def ahead(*i: Any) -> Sequence[Any]:
        *plane, y, vector, lane = i[: len(shape) + 1]
        return (ravel_index((*plane, (y + later) * stride, 0), shape) + (vector * length + lane) * stride,)

    cache_lines = -(-stride * constant_size([length]) * nbytes // LINE_BYTES)
    s[lines].prefetch(image, s[lines].op.axis[-2], te.Prefetch(0, 2 if far else 1, ahead, cache_lines))


def _taps(reduced: te.Tensor) -> int:
    """Return the elements that are reduced for each element of a tensor."""
    return iterations(reduced.op.reduce_axis)


def _reduce_by_vectors(
    s: te.Schedule, tensor: te.Tensor, outer: Sequence[te.IterVar] = (), lane: te.IterVar | None = None,
    unrolled: int = MOST_TAPS,
) -> None:  # fmt: skip
    """Reorder the reduction of `tensor` to run over its window outside of vectors of its last axis, or of `lane`.

    Windows of up to `unrolled` taps are unrolled.
    """
    *data, last = s[tensor].op.axis
    window, lane = s[tensor].op.reduce_axis, last if lane is None else lane
    s[tensor].reorder(*data, *outer, *window, lane)
    if iterations(window) <= unrolled:
        for axis in window:
            s[tensor].unroll(axis)
    s[tensor].vectorize(lane)


_CANDIDATES: tuple[Candidate[KernelFacts], ...] = (
    ("columns of images", _columns),
    ("lines", _lines),
    ("vectors along the last dimension", _channels),
)
