"""Pooling on CPUs: NHWC windows by tiles of columns and vectors of channels, other layouts by vectors of a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import te
from te.arith import Analyzer
from te.tir import PrimExpr, Reduce, as_dim, as_int
from te.tir.substitute import substitute
from topi.cpu.accesses import reads
from topi.cpu.common import local_accumulator, parallel
from topi.cpu.injective import vectorize_elements
from topi.cpu.prefetch import LINE_BYTES, is_streamed, rows_ahead
from topi.cpu.tiling import vector_lanes
from topi.cpu.windows import MOST_TAPS, tile_windows
from topi.groups import constant_size, extent_of, inline_injective, likely_extent
from topi.registry import operations_behind, register_schedule
from topi.tag import PAD
from topi.utils import ravel_index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backend.target import Target

__all__ = ["schedule_pool"]

_FEW_TAPS = 9
"""Of windows that are reduced at once where few results share what is reduced across lines."""
_VECTORS = 4
"""Of channels in a tile of NHWC images, which is one column wide: memory is read in order then, which is worth more
than what neighbouring columns share (twice as fast as 4 columns of one vector where images exceed the caches)."""


@register_schedule("pool", "cpu")
def schedule_pool(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """A reduction over a window for every output; the last data axis is vectorised when the window is not on it.

    The anchor's attribute "axes" holds the dimensions that the window spans.
    """
    s = te.create_schedule([out.op for out in outs])
    out = outs[0]
    lanes = vector_lanes(target)
    if tuple(anchor.attrs["axes"]) == (1, 2) and len(anchor.axis) == 4 and len(outs) == 1:
        inline_injective(s, outs, keep=[anchor])
        tile_windows(s, out, local_accumulator(s, anchor, out), 1, target, vectors=_VECTORS)
        return s
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
        s.when_small(parts_of(lanes))
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
    s.when_small(fewer)
    fewer.when_small(_schedule_lines(outs, anchor, target, part=lanes, share=many))
    return s


def _border(anchor: te.ComputeOp) -> int:
    """Elements by which the first window of a line begins before the line does; 0 where that isn't known."""
    zeros = {axis.var: te.const(0) for axis in (anchor.axis[-1], anchor.reduce_axis[-1])}
    begins = {as_int(Analyzer().simplify(substitute(index[-1], zeros))) for _, index in reads(anchor)}
    begin = begins.pop() if len(begins) == 1 else None
    return 0 if begin is None else -begin


def _lines_first(s: te.Schedule, anchor: te.Operation, most: int) -> tuple[te.Tensor, ...]:
    """Let the anchor reduce windows across lines first, then along them, so that neighbours share the former.

    Returns the results of the former, by vectors of up to `most` elements, and, if windows are a few elements apart,
    every so manieth of them side by side, which is what neighbouring windows read. The first vector ends with the
    border: the others begin where the line does, so that they are whole cache lines, if lines of the image are. Lines
    of a length known at run time are not cut. Nothing, and the anchor as it was, for windows of one line or column.
    """
    assert isinstance(anchor, te.ComputeOp)
    *across, along = anchor.reduce_axis
    size, width = extent_of(along), extent_of(anchor.axis[-1])
    several = across and constant_size([extent_of(k) for k in across]) > 1
    if not several or not isinstance(size, int) or size == 1 or anchor.attrs.get("dilation", (0,))[-1] != 1:
        return ()
    stride, (whole,) = anchor.attrs["strides"][-1], anchor.body
    assert isinstance(whole, Reduce)
    taps = [te.reduce_axis((0, extent_of(k)), name=k.var.name) for k in across]
    outer, read = [extent_of(axis) for axis in anchor.axis[:-1]], as_dim((width - 1) * stride + size)
    attrs, names = {"stride": anchor.attrs["strides"][-2]}, [f"{anchor.name}_{n}" for n in ("lines", "parts")]

    def across_lines(line: Sequence[Any], place: Any, inside: PrimExpr | None = None) -> PrimExpr:
        at = {axis.var: v for axis, v in zip(anchor.axis[:-1], line, strict=True)}
        at |= {k.var: tap.var for k, tap in zip(across, taps, strict=True)}
        at |= {anchor.axis[-1].var: te.const(0), along.var: place}  # what lies so far after the first window's start
        source = [substitute(e, at) for e in whole.source]
        if inside is not None:
            terms = zip(source, whole.combiner.identity, strict=True)
            source = [te.if_then_else(inside, e, identity) for e, identity in terms]
        return whole.replace(source=tuple(source), axis=tuple(taps))

    def along_lines(*tensors: te.Tensor, element: Callable[[Sequence[Any], Any], PrimExpr]) -> tuple[te.Tensor, ...]:
        k = te.reduce_axis((0, size), name="k")

        def window(*i: Any) -> PrimExpr:
            return whole.replace(source=(element(i[:-1], i[-1] * stride + k),), axis=(k,))

        s.recompute(anchor.output(0), te.compute((*outer, width), window, name=anchor.name, tag=anchor.tag))
        return tuple([s.current(t) for t in tensors])

    if not isinstance(read, int):
        lines = te.compute((*outer, read), lambda *i: across_lines(i[:-1], i[-1]), name=names[0], attrs=attrs)
        return along_lines(lines, element=lambda line, place: lines(*line, place))
    vector = min(read, most)
    lead = 0 if vector == read else -_border(anchor) % vector
    extent, phases = read + lead, stride if vector % stride == 0 else 1
    groups, each = -(-extent // vector), vector // phases
    widths = [as_dim(tensor.shape[-1]) for tensor, _ in reads(anchor)]
    bordered = all(isinstance(d, int) and read - _border(anchor) > d for d in widths)  # which tests for it already

    def vectors(*i: Any) -> PrimExpr:
        place = i[-2] * vector + i[-1]
        return across_lines(i[:-2], place - lead, None if bordered else place < extent)

    lines = te.compute((*outer, groups, vector), vectors, name=names[0], attrs=attrs)
    if phases == 1:
        return along_lines(
            lines, element=lambda line, place: lines(*line, (place + lead) // vector, (place + lead) % vector)
        )

    def apart(*i: Any) -> PrimExpr:
        return lines(*i[:-3], i[-2], i[-1] * phases + i[-3])

    parts = te.compute((*outer, phases, groups, each), apart, name=names[1])

    def element(line: Sequence[Any], place: Any) -> PrimExpr:
        at = (place + lead) // phases
        return parts(*line, (place + lead) % phases, at // each, at % each)

    return along_lines(lines, parts, element=element)


def _schedule_lines(
    outs: list[te.Tensor], operation: te.Operation, target: Target, part: int | None = None, share: bool = True
) -> te.Schedule:
    """Windows that lie along the last axis. With `share` neighbours share what windows reduce across lines."""
    s = te.create_schedule([out.op for out in outs])
    lines = _lines_first(s, operation, 2 * vector_lanes(target)) if share else ()
    out, anchor = s.outputs[0].output(0), s[operation].op
    inline_injective(s, [out], keep=[anchor, *[s[t].op for t in lines]])
    _tile_lines(s, out, anchor, lines, target, part)
    return s


def _tile_lines(
    s: te.Schedule, out: te.Tensor, anchor: te.Operation, lines: Sequence[te.Tensor], target: Target, part: int | None
) -> None:
    """Vectors of neighbouring windows, whose taps are read with the stride, of `lines` where there are.

    Loop partitioning cuts off the lines, and the vectors of a line, that touch the border. Lines that are longer than
    `part` results are computed in such parts.
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
    group, inner = s[out].split(group, factor=min(2 * lanes, constant_size([width] if part is None else [part])))
    s[out].vectorize(inner)
    if len(outer) > 1:
        *planes, line = outer
        plane = s[out].fuse(*planes)
        s[out].pragma(line, "loop_partition_hint")
        parallel(s, out, plane, constant_size(out.shape) * taps * 2.0, lanes)
    s[out].pragma(group, "loop_partition_hint")

    s[accumulator].compute_at(s[out], group)
    _reduce_by_vectors(s, accumulator)
    if lines:
        _buffer_lines(s, lines, out, at, target)


def _buffer_lines(
    s: te.Schedule, lines: Sequence[te.Tensor], out: te.Tensor, at: te.IterVar, target: Target
) -> None:
    """Reduce windows across lines at loop `at` of `out`, and take what lies side by side apart: see `_lines_first`."""
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
    later = rows_ahead(stride * constant_size(shape[-1:]) * nbytes)

    def ahead(*i: Any) -> Sequence[Any]:
        *plane, y, vector, lane = i[: len(shape) + 1]
        return (ravel_index((*plane, (y + later) * stride, 0), shape) + (vector * length + lane) * stride,)

    cache_lines = -(-stride * constant_size([length]) * nbytes // LINE_BYTES)
    s[lines].prefetch_line(image, s[lines].op.axis[-2], ahead, lines=cache_lines)


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
