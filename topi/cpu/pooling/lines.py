"""Pooling along the last dimension on CPUs: vectors of adjacent windows, which may share reductions across lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from relayc import te
from relayc.topi.cpu.common import attach, local_accumulator, parallel, reduce_by_vectors
from relayc.topi.cpu.pooling.window_lines import WindowLines
from relayc.topi.cpu.pooling.windows import MOST_TAPS
from relayc.topi.cpu.prefetch import LINE_BYTES, is_streamed, rows_ahead
from relayc.topi.cpu.register_transpose import can_pack
from relayc.topi.cpu.tiling import has_few_fill_buffers, vector_lanes
from relayc.topi.groups import constant_size, extent_of, iterations, likely_extent
from relayc.topi.tag import PAD
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["LinePlan"]

_VECTORS = 2
"""Vectors of windows that are computed together."""
_SHUFFLED_VECTORS, _SHUFFLED_OF_LONG = 8, 4
"""The same in registers, which take two more vectors of reductions across lines: for lines that have no more, and for
longer ones, whose copies with and without borders take longer to compile."""
_FEW_GROUPS = 3
"""Most groups of such vectors in a line that are unrolled: most of them touch a border."""
_PREFETCHED_LINES, _LONG_LINE_BYTES = 3, 768
"""For cores with few line-fill buffers: the window height, in lines, that the hardware prefetcher covers at stride 1,
and the bytes of a line of 32-bit elements from which on 64-byte vectors prefetch to L2, as higher windows always do."""


@dataclass(frozen=True, slots=True)
class LinePlan:
    """Adjacent windows by `vectors` of `lanes`; their taps are strided reads of the input or of what windows share.

    Loop partitioning cuts off the lines, and the vectors of a line, that touch the border. Lines longer than `part`
    results, unless that is 0, are computed in such parts. Windows share reductions across lines in a buffer that holds
    those of a part, or in registers, which LLVM shuffles.
    """

    lanes: int
    vectors: int = _VECTORS
    part: int = 0
    shared: Literal["nothing", "in a buffer", "in registers"] = "nothing"

    @staticmethod
    def of(anchor: te.Operation, shared: WindowLines | None, part: int, target: Target) -> LinePlan:
        """The plan for windows `anchor`, which share what `shared` says, in parts of so many results.

        Registers serve stride 1 and static lines of at least a vector, with one two-source permute for each tap along a
        line. With AVX2, which needs two or three instructions, only lines of up to 40 elements gained, and long ones
        lost a third.
        """
        lanes, width = vector_lanes(target), iterations([anchor.axis[-1]])
        if shared is None:
            return LinePlan(lanes, part=part)
        if part or shared.stride != 1 or width < lanes or not can_pack(target, lanes, shared.whole.dtype):
            return LinePlan(lanes, part=part, shared="in a buffer")
        vectors = _SHUFFLED_VECTORS if width <= _SHUFFLED_VECTORS * lanes else _SHUFFLED_OF_LONG
        return LinePlan(lanes, vectors, shared="in registers")

    def share(self, s: te.Schedule, shared: WindowLines | None) -> Sequence[te.Tensor]:
        """Let the windows read reductions across lines, which are returned: none where they share nothing."""
        return () if shared is None else shared.apply(s, self.lanes * (1 if self.shared == "in registers" else 2))

    def apply(
        self, s: te.Schedule, out: te.Tensor, anchor: te.Operation, lines: Sequence[te.Tensor], target: Target
    ) -> None:
        """Schedule `out` and the windows `anchor` behind it, which read `lines`."""
        accumulator = local_accumulator(s, anchor, out)
        *outer, last = s[out].op.axis
        taps, length, in_registers = iterations(anchor.reduce_axis), self.part, self.shared == "in registers"
        if self.part:
            reach = likely_extent(extent_of(anchor.reduce_axis[-1]), 1) // 2  # most padding of a line, usually
            at, group = s[out].split(last, factor=self.part, tail="shift", least=self.part + reach)
            s[out].pragma(at, "loop_partition_hint")
        else:
            length = iterations([last])
            at, group = s[out].split(last, nparts=1)
        tail = "shift" if in_registers and length % self.lanes else "guard"
        group, inner = s[out].split(group, factor=min(self.vectors * self.lanes, length), tail=tail)
        if in_registers and length <= _FEW_GROUPS * self.vectors * self.lanes:
            s[out].unroll(group)
        s[out].vectorize(inner)
        if len(outer) > 1:
            *planes, line = outer
            plane = s[out].fuse(*planes)
            s[out].pragma(line, "loop_partition_hint")
            parallel(s, out, plane, constant_size(out.shape) * taps * 2.0, self.lanes)
        s[out].pragma(group, "loop_partition_hint")
        s[accumulator].compute_at(s[out], group)
        reduce_by_vectors(s, accumulator, unrolled=MOST_TAPS)
        if in_registers:
            attach(s, lines[0], out, group)
            _prefetch_lines(s, lines[0], target)
            s[lines[0]].unroll(s[lines[0]].op.axis[-2])
            reduce_by_vectors(s, lines[0], unrolled=MOST_TAPS)
        elif lines:
            self._buffer(s, lines, out, at, target)

    def _buffer(
        self, s: te.Schedule, lines: Sequence[te.Tensor], out: te.Tensor, at: te.IterVar, target: Target
    ) -> None:
        """Reduce windows across lines at loop `at` of `out`, and deinterleave them by phase (see `WindowLines`)."""
        whole, parts = lines[0], lines[-1]
        for tensor in lines:
            s[tensor].set_scope("local")
        s[parts].compute_at(s[out], at)
        if whole.ndim == out.ndim:  # dynamic length
            reduce_by_vectors(s, whole, lanes=2 * self.lanes, unrolled=MOST_TAPS)
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
            s[whole].compute_at(s[parts], vectors)


def _prefetch_lines(s: te.Schedule, lines: te.Tensor, target: Target) -> None:
    """Prefetch, in memory order, the lines that later windows read; each vector of a line prefetches its part."""
    (source,) = lines.op.input_tensors
    image = source.op.input_tensors[0] if source.op.tag == PAD else source
    stride, shape, nbytes, length = lines.op.attrs["stride"], image.shape, image.dtype.nbytes, lines.shape[-1]
    if not isinstance(image.op, te.PlaceholderOp) or not is_streamed(image, constant_size(shape[-1:]), target):
        return
    row, high = constant_size(shape[-1:]) * nbytes, iterations(lines.op.reduce_axis) > _PREFETCHED_LINES
    few = has_few_fill_buffers(target)
    if few and stride == 1 and not high:
        return
    far = few and target.vector_bytes >= LINE_BYTES and (high or (row >= _LONG_LINE_BYTES and nbytes >= 4))
    later = rows_ahead(stride * row)

    def ahead(*i: Any) -> Sequence[Any]:
        *plane, y, vector, lane = i[: len(shape) + 1]
        return (ravel_index((*plane, (y + later) * stride, 0), shape) + (vector * length + lane) * stride,)

    cache_lines = -(-stride * constant_size([length]) * nbytes // LINE_BYTES)
    s[lines].prefetch(image, s[lines].op.axis[-2], te.Prefetch(0, 2 if far else 1, ahead, cache_lines))
