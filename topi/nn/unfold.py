"""Col2Im: the sum of overlapping windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.dtype import DType
from relayc.te.tir import EQ, Buffer, Dim, PrimExpr, Stmt, as_dim, convert, ir_builder
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.topi.groups import constant_size
from relayc.topi.loops import loop_nest
from relayc.topi.nn.conv import output_sizes
from relayc.topi.utils import accumulator_type, num_elements, ravel_index, unravel_index

__all__ = ["col2im"]

_PARALLEL_WORK = 1 << 16
"""The least elements of windows for which rows of the images run in parallel."""
_FEW_TAPS = 9
"""The most taps along a row whose additions are unrolled."""
_TOGETHER = 8
"""The largest stride for which one vectorised loop interleaves the phases of a row."""


def col2im(
    x: Tensor,
    image: Sequence[Dim],
    block: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    """Images (N, C, image...) that are the sums of their windows x (N, C * taps, windows), in row-major order.

    Row by row: the elements of all windows at one tap are contiguous, and so are their pixels in a row that is sorted
    by phase, the position in a stride. Attribute "for_threads" holds the loops for GPUs.
    """
    counts = output_sizes(image, block, strides, dilation, padding)
    windows = _Windows(tuple(image), tuple(block), tuple(strides), tuple(dilation), tuple(padding), tuple(counts))
    shape = (x.shape[0], as_dim(x.shape[1] // windows.taps), *image)
    wide = te.const(0, accumulator_type(x.dtype)).dtype

    def by_lines(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        columns, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        kind = "parallel" if constant_size(x.shape) >= _PARALLEL_WORK else "serial"
        with ib.for_range(0, num_elements(shape[:-1]), "line", kind, independent=True) as line:
            at = unravel_index(line, shape[:-1])
            _write_line(ib, out, at, _sum_line(ib, columns, at, windows, wide), windows)
        return ib.get()

    def by_element(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        columns, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        with loop_nest(ib, shape, independent=True) as at:
            total = ib.allocate(str(wide), 1, "total")
            total[0] = te.const(0, wide)
            with loop_nest(ib, block, "k") as k, ib.if_scope(windows.cover(at, k)):
                total[0] = total[0] + te.cast(wide, columns[windows.column(at, k)])
            out[at] = total[0]
        return ib.get()

    attrs = {"for_threads": by_element}
    return te.extern(shape, [x], by_lines, name="col2im", dtype=x.dtype, tag="default", attrs=attrs)


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows over an image, `counts` of them along each axis; `padding` is (begin..., end...)."""

    image: tuple[Dim, ...]
    block: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    counts: tuple[Dim, ...]

    @property
    def taps(self) -> int:
        return prod(self.block)

    def _start(self, axis: int, pixel: Any, tap: Any) -> PrimExpr:
        """The start of the window whose `tap` lies at a pixel, relative to the first window's."""
        return convert(pixel + self.padding[axis] - tap * self.dilation[axis])

    def meets(self, axis: int, pixel: Any, tap: Any) -> PrimExpr:
        """Is there a window whose `tap` lies at a pixel, along one axis?"""
        start, stride = self._start(axis, pixel, tap), self.strides[axis]
        return te.all(start >= 0, start < self.counts[axis] * stride, EQ(start % stride, te.const(0)))

    def cover(self, at: Sequence[Any], taps: Sequence[Any]) -> PrimExpr:
        """Is there a window whose `taps` lie at the pixel ``at`` (n, c, ...)?"""
        return te.all(*[self.meets(axis, at[2 + axis], k) for axis, k in enumerate(taps)])

    def column(self, at: Sequence[Any], taps: Sequence[Any], last: Any = None) -> tuple[Any, Any, Any]:
        """The index into x for the pixel ``at`` (n, c, ...) at `taps`; `last`: the window along the last axis."""
        first = [self._start(a, at[2 + a], k) // self.strides[a] for a, k in enumerate(taps[: len(at) - 2])]
        window = first if last is None else [*first, last]
        return at[0], at[1] * self.taps + ravel_index(taps, self.block), ravel_index(window, self.counts)


def _sum_line(
    ib: IRBuilder, columns: BufferView, at: Sequence[Any], windows: _Windows, wide: DType
) -> BufferView:
    """The sums of row (n, c, ...), padding included, with pixels sorted by phase."""
    stride, reach, rank = windows.strides[-1], (windows.block[-1] - 1) * windows.dilation[-1], len(windows.image)
    needed = (windows.image[-1] + (windows.padding[rank - 1] + stride - 1)) // stride
    length = as_dim(te.max(windows.counts[-1] + reach // stride, needed))
    sums = ib.allocate(str(wide), (stride, length), "sums", scope="global")
    with loop_nest(ib, (stride, length)) as i:
        sums[i] = te.const(0, wide)
    with ExitStack() as scopes:
        taps: list[Any] = []
        for axis in range(rank - 1):
            taps.append(scopes.enter_context(ib.for_range(0, windows.block[axis], f"k{axis}")))
            scopes.enter_context(ib.if_scope(windows.meets(axis, at[2 + axis], taps[axis])))
        _add_lines(ib, sums, windows, lambda k, w: te.cast(wide, columns[windows.column(at, [*taps, k], w)]))
    return sums


def _add_lines(
    ib: IRBuilder, sums: BufferView, windows: _Windows, value: Callable[[Any, Any], PrimExpr]
) -> None:
    """Add ``value(k, w)``, the element of window w at tap k of the last axis, for all k and w.

    Few taps are added together where all have a window, so that each sum is loaded and stored once.
    """
    stride, step, size, count = windows.strides[-1], windows.dilation[-1], windows.block[-1], windows.counts[-1]

    def add(tap: Any, begin: Any, end: Any) -> None:
        phase, ahead = ib.let("phase", tap * step % stride), ib.let("ahead", tap * step // stride)
        with ib.for_range(begin, end, "window") as w:
            sums[phase, ahead + w] = sums[phase, ahead + w] + value(tap, w)

    if size > _FEW_TAPS:
        with ib.for_range(0, size, "k") as k:
            add(k, 0, count)
        return
    for phase in range(stride):
        taps = [(k, k * step // stride) for k in range(size) if k * step % stride == phase]
        reach = max((ahead for _, ahead in taps), default=0)
        for k, ahead in taps:
            add(te.const(k), 0, te.min(reach - ahead, count))
        with ib.for_range(reach, te.max(count, reach), "i") as i:
            total = sums[phase, i]
            for k, ahead in taps:
                total = total + value(te.const(k), i - ahead)
            sums[phase, i] = total
        for k, ahead in taps:
            begin = te.max(count, reach) - ahead
            add(te.const(k), begin, te.max(count, begin))


def _write_line(ib: IRBuilder, out: BufferView, at: Sequence[Any], sums: BufferView, windows: _Windows) -> None:
    """Write the pixels of row (n, c, ...) in order: whole strides interleaved, then the remaining pixels."""
    stride, width, begin = windows.strides[-1], windows.image[-1], windows.padding[len(windows.image) - 1]
    first = -begin % stride
    strides = te.max((width - first) // stride, 0)

    def one_by_one(start: Any, end: Any) -> None:
        with ib.for_range(start, end, "i") as i:
            out[(*at, i)] = sums[(i + begin) % stride, (i + begin) // stride]

    one_by_one(0, te.min(first, width))
    with ib.for_range(0, strides, "q") as q:
        if stride <= _TOGETHER:
            for phase in range(stride):
                out[(*at, first + q * stride + phase)] = sums[phase, q + (first + begin) // stride]
        else:
            with ib.for_range(0, stride, "phase") as phase:
                out[(*at, first + q * stride + phase)] = sums[phase, q + (first + begin) // stride]
    one_by_one(te.min(first + strides * stride, width), width)
