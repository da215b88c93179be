"""Pooling of images with channels last on CPUs: tiles of windows that may share reductions, vectors of channels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.accesses import reads
from relayc.topi.cpu.common import attach, local_accumulator, reduce_by_vectors
from relayc.topi.cpu.pooling.window_lines import WindowLines
from relayc.topi.cpu.pooling.windows import MOST_TAPS, tile_windows
from relayc.topi.cpu.prefetch import LINE_BYTES, in_sequence, is_streamed
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import inline_injective, iterations
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from relayc.backend.target import Target
    from relayc.te.tir import PrimExpr

__all__ = ["ImagePlan"]

_VECTORS = 4
"""Vectors of channels in a tile one column wide: memory order is worth more than sharing between adjacent columns
(twice as fast as 4 columns of one vector where images exceed the caches)."""
_NEIGHBOURS = 2
"""Fewest columns of a tile that share partial reductions across lines."""


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """Tiles of windows: `rows` by `columns` of them, of up to `vectors` vectors of channels.

    `levels`: those by which adjacent windows share reductions, kept in registers, across lines and along them; None
    where each is reduced by itself, in a tile of one column and several vectors. `operations`: those of a window.
    """

    rows: int = 1
    columns: int = 1
    vectors: int = _VECTORS
    levels: tuple[int, int] | None = None
    operations: float | None = None

    @staticmethod
    def of(anchor: te.Operation, shared: WindowLines | None, target: Target) -> ImagePlan:
        """The plan for windows `anchor`: a cache line of channels of a few columns where sharing saves work."""
        levels = (0, 0) if shared is None else shared.levels(target.num_cores)
        if shared is None or not shared.saves(levels):
            return ImagePlan()
        vectors = -(-LINE_BYTES // (vector_lanes(target) * anchor.input_tensors[0].dtype.nbytes))
        columns = max(2 ** levels[1], _NEIGHBOURS)
        return ImagePlan(2 ** levels[0], columns, vectors, levels, shared.combined(levels))

    def apply(self, s: te.Schedule, operation: te.Operation, shared: WindowLines | None, target: Target) -> None:
        """Schedule the output and the windows `operation` behind it."""
        stages = [] if shared is None or self.levels is None else shared.share(s, self.levels)
        out, anchor = s.outputs[0].output(0), s[operation].op
        inline_injective(s, [out], keep=[anchor, *[s[stage].op for stage in stages]])
        accumulator = local_accumulator(s, anchor, out)
        tile, column, channels = tile_windows(
            s, out, accumulator, self.columns, target, vectors=self.vectors, rows=self.rows,
            operations=self.operations, divide=False,
        )  # fmt: skip
        for stage in stages:
            attach(s, stage, out, tile)
            reduce_by_vectors(s, stage, unrolled=MOST_TAPS)
            for axis in s[stage].op.axis[1:3]:
                s[stage].unroll(axis)
        strides = operation.attrs.get("strides")
        if strides is not None and len(strides) == 2:
            self._prefetch(s, out, stages[0] if stages else accumulator, column, strides, channels, target)

    def _prefetch(
        self, s: te.Schedule, out: te.Tensor, reader: te.Tensor, loop: te.IterVar, strides: tuple[int, int],
        channels: int, target: Target,
    ) -> None:  # fmt: skip
        """Prefetch, some kilobytes ahead, what a window of `out` reads first, for so many `channels` of a tile.

        Those are the last lines of the window; others are in the caches. Prefetches run on into the next line.
        `reader` reduces, across lines, what the rows of a tile share, or whole windows of one row. 8-bit inputs are not
        prefetched: for so little data that takes longer than the stalls.
        """
        op, group = s[reader].op, self.rows
        (across, along), (taps, *columns) = strides, op.reduce_axis
        last = iterations([taps]) + (group - 1) * across

        def place(image: te.Tensor, index: Sequence[PrimExpr], row: int, column: int, *i: Any) -> Sequence[Any]:
            x, tap = i[2] if columns else i[2] * along + column, row + (i[1] % group - (group - 1)) * across
            at = {axis.var: v for axis, v in zip(op.axis, (i[0], i[1] // group, x, i[3]), strict=True)}
            at |= dict(zip([k.var for k in op.reduce_axis], (tap, te.const(column)), strict=False))
            return (ravel_index([substitute(e, at) for e in index], image.shape),)

        for image, index in reads(op):
            nbytes = image.dtype.nbytes
            if not isinstance(image.op, te.PlaceholderOp) or not is_streamed(image, 1, target) or nbytes == 1:
                continue
            for row, column in itertools.product(range(max(last - across, 0), last), range(along)):
                at, lines = partial(place, image, index, row, column), -(-channels * nbytes // LINE_BYTES)
                s[out].prefetch(image, loop, replace(in_sequence(image, target), order=at, lines=lines))
