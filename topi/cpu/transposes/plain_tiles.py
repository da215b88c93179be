"""Transposes of tensors that the caches hold, or that no other plan serves: tiles stored where they belong.

Tiles follow the input's rows. Where memory is streamed and output rows are long, they follow those instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from relayc import te
from relayc.te.ir.decisions import Refused
from relayc.topi.cpu.transposes.facts import SHARES, TransposeFacts
from relayc.topi.groups import constant_size

__all__ = ["InputTiles", "OutputTiles"]

_ROWS = 256
"""Elements of an input row that tiles take, one after the other."""
_PLANES = 16
"""Elements of an input row where output rows lie planes apart, so that few streams are written together: a cache line
of float32, a part of one of narrower types, whose rest is then found in the L2 cache."""
_LONG_BYTES = 1024
"""Least bytes of an output row for tiles to follow it, not the input's rows, where memory is streamed."""
_RUN_BYTES = 2048
"""Bytes of an output row that these tiles take before they move on along the input's rows."""
_ROWS_AHEAD = 64
"""Prefetch distance of these tiles in rows of the input."""


@dataclass(frozen=True, slots=True)
class OutputTiles:
    """Tiles of `height` elements of the input's rows that follow the output's rows, `run` elements of each at a time.

    With `lines_first`, input rows are copied first: otherwise they would be evicted before they are used up.
    """

    facts: TransposeFacts
    height: int
    run: int
    lines_first: bool

    @staticmethod
    def of(facts: TransposeFacts) -> OutputTiles | Refused:
        """The tiles to use; refused where the caches hold both tensors, or rows of the output are short."""
        rows, columns, nbytes = facts.rows, facts.columns, facts.out.dtype.nbytes
        both = constant_size(facts.out.shape) * (facts.tensor.dtype.nbytes + nbytes)
        if both <= max(facts.caches.l2, facts.caches.l3):
            return Refused(f"the caches hold both tensors, of {both} bytes")
        if not isinstance(rows, int) or not isinstance(columns, int) or columns * nbytes < _LONG_BYTES:
            return Refused(f"output rows are dynamic or shorter than {_LONG_BYTES} bytes")
        planes = facts.number < facts.out.ndim - 2
        height = max(min(facts.line_of_input, _PLANES) if planes else facts.line_of_input, facts.block)
        conflict = facts.caches.l2 // facts.stride_alignment < 2 * _ROWS_AHEAD
        run = min(_RUN_BYTES // nbytes, columns)
        return OutputTiles(facts, height if rows >= height else facts.block, run, conflict)

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of tiles, outermost first. `at_once` has no effect."""
        facts, out, number = self.facts, self.facts.out, self.facts.number
        source, copy, _, vectors = facts.copied(s, lines_first=self.lines_first)
        axes, width = list(s[out].op.axis), _width(facts)
        row_tile, row_inner = s[out].split(axes[number], factor=self.height, tail="shift")
        group, row = s[out].split(row_inner, factor=facts.block)
        part, within = s[out].split(axes[-1], factor=self.run, tail="shift")
        along, column = s[out].split(within, factor=width, tail="shift")
        tiles = [*axes[:number], *axes[number + 1 : -1], part, row_tile]
        s[out].reorder(*tiles, along, group, row, column)
        stage, loop = (source, s[source].op.axis[facts.position]) if self.lines_first else (copy, vectors)
        if self.lines_first:
            s[source].compute_at(s[out], along)
        facts.prefetch_ahead(s, stage, loop, _ROWS_AHEAD * facts.row_stride)
        s[out].prefetch(out, along, te.Prefetch(width))
        _attach(s, facts, copy, vectors, group, row, column)
        return tiles


@dataclass(frozen=True, slots=True)
class InputTiles:
    """Tiles of a cache line of the output's rows that follow the input's rows, `run` elements of each (0: all)."""

    facts: TransposeFacts
    run: int

    @staticmethod
    def of(facts: TransposeFacts) -> InputTiles:
        """Tiles for any transpose, with runs of even length, enough of them for an even share to each core."""
        rows, out, number = facts.rows, facts.out, facts.number
        if not isinstance(rows, int):
            return InputTiles(facts, 0)
        most = _ROWS if number == out.ndim - 2 else max(_PLANES, facts.line_of_input)
        others = constant_size([*out.shape[:number], *out.shape[number + 1 : -1]])
        others *= -(-constant_size(out.shape[-1:]) // _width(facts))
        parts = max(-(-rows // most), min(-(-SHARES * facts.target.num_cores // others), rows // facts.block))
        return InputTiles(facts, -(-rows // parts // facts.block) * facts.block if parts > 1 else 0)

    def apply(self, s: te.Schedule, at_once: int) -> list[te.IterVar]:
        """Schedule the output; returns the loops outside of tiles, outermost first. `at_once` has no effect."""
        facts, out, number = self.facts, self.facts.out, self.facts.number
        _, copy, _, vectors = facts.copied(s)
        axes, parts = list(s[out].op.axis), list[te.IterVar]()
        row_inner = axes[number]
        if self.run:
            part, row_inner = s[out].split(row_inner, factor=self.run, tail="shift")
            parts = [part]
        group, row = s[out].split(row_inner, factor=facts.block, tail="shift")
        column_outer, column = s[out].split(axes[-1], factor=_width(facts), tail="shift")
        tiles = [*axes[:number], *axes[number + 1 : -1], *parts, column_outer]
        s[out].reorder(*tiles, group, row, column)
        _attach(s, facts, copy, vectors, group, row, column)
        return tiles


def _width(facts: TransposeFacts) -> int:
    """Elements of an output row in a tile: a cache line, or a vector or two."""
    columns, lanes = facts.columns, facts.lanes
    return next(w for w in (max(facts.line, lanes), 2 * lanes, lanes) if not isinstance(columns, int) or w <= columns)


def _attach(
    s: te.Schedule, facts: TransposeFacts, copy: te.Tensor, vectors: te.IterVar,
    group: te.IterVar, row: te.IterVar, column: te.IterVar,
) -> None:  # fmt: skip
    """Transpose a group of rows in registers before it is stored row by row."""
    s[copy].unroll(vectors)
    s[facts.out].unroll(row)
    s[facts.out].vectorize(column)
    s[copy].compute_at(s[facts.out], group)
