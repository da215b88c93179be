"""The plan of a transpose: loops over the output, in one of which a part of the input is transposed in registers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from relayc import te
from relayc.te.tir import IterVar, PrimExpr
from relayc.topi.cpu.prefetch import level_of
from relayc.topi.cpu.register_transpose import transpose_in_registers
from relayc.topi.cpu.transposes.facts import TransposeFacts
from relayc.topi.registry import operations_behind

__all__ = ["SHARES", "Share", "Step", "TransposePlan"]

SHARES = 4
"""Parts of the work for each core, at least, for load balance."""


class Step(NamedTuple):
    """A loop along an `axis` of the output, `by` so many elements of what loops outside of it leave; 0: one by one."""

    axis: int
    by: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What each register tile prefetches: `lines` cache lines of the input, `together` of them contiguous.

    ``place(loop, vector, block, first, *index)`` is the input's index of those from line `first` on, of the tile at a
    vector and a block of the copy in an iteration of its loop; otherwise it is an order of `te.Prefetch`.
    """

    lines: int
    together: int
    place: Callable[..., Sequence[PrimExpr]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TransposePlan:
    """Loops of `steps` over the output, the first `outside` of them outside of its tiles, then loops over elements.

    The transposed copy is made in loop `copied` of the steps, `by_vectors`: all blocks of one before the next. Input
    rows that would be evicted before they are used up are first copied (`lines_first`), in a loop of the steps or, -1,
    for each vector. Elements are computed by parts of `stored`, the last of which is one vector, of a row or of all
    that loops over elements cover (`fused`). `aligned`: tiles along the last axis begin at cache lines of memory. Steps
    that divide nothing are shifted inwards, or have a smaller rest (`tail`).

    A tile may be stored while the next is transposed (`overlaps`), in one loop or by loops `apart`. `ahead` is the
    prefetch distance in the input, 0 for none, and `written_ahead` that in the output; a `share` of a later tile is
    what is prefetched in memory order instead.
    """

    facts: TransposeFacts
    steps: tuple[Step, ...]
    outside: int
    copied: int
    stored: tuple[int, ...] = ()
    fused: bool = False
    aligned: bool = False
    tail: Literal["shift", "guard"] = "shift"
    by_vectors: bool = True
    unrolled: bool = False
    lines_first: int | None = None
    overlaps: Literal["", "together", "apart"] = ""
    ahead: int = 0
    written_ahead: int = 0
    share: Share | None = None

    def apply(self, s: te.Schedule) -> list[IterVar]:
        """Schedule the output; returns the loops outside of tiles, outermost first."""
        facts, out = self.facts, s[self.facts.out]
        loops = [self._along(s, n) for n in range(facts.out.ndim)]
        tiles = [loops[axis].pop(0) for axis, _ in self.steps]
        tiled = {facts.number, facts.out.ndim - 1, *[axis for axis, _ in self.steps]}
        others = [loop for n, rest in enumerate(loops) if n not in tiled for loop in rest]
        elements = [loop for n, rest in enumerate(loops) if n in tiled for loop in rest]
        out.reorder(*others, *tiles, *elements)
        if self.unrolled:
            out.unroll(elements[0])
        column = out.fuse(*elements) if self.fused else elements[-1]
        for count in self.stored:
            _, column = out.split(column, factor=count, tail=self.tail)
        out.vectorize(column)
        if self.overlaps:
            out.pragma(tiles[self.copied], "overlap_iterations", self.overlaps)
        if self.tail == "guard":
            out.pragma(tiles[self.copied], "loop_partition_hint")
        self._copy(s, tiles)
        if self.written_ahead:
            out.prefetch(facts.out, tiles[self.copied - 1], te.Prefetch(self.written_ahead))
        outside = [*others, *tiles[: self.outside]]
        if len(outside) > 1 and not isinstance(facts.out.shape[0], int):  # perhaps a batch of one, which no cores share
            return [out.fuse(*outside[:2]), *outside[2:]]
        return outside

    def _along(self, s: te.Schedule, number: int) -> list[IterVar]:
        """The loops along an axis, outermost first: of its steps, and over the elements that they leave."""
        out, tail = s[self.facts.out], self.tail
        axis, loops = out.op.axis[number], list[IterVar]()
        steps = [by for n, by in self.steps if n == number and by]
        aligned = self.aligned and number == self.facts.out.ndim - 1
        if not aligned and isinstance(axis.extent, int):
            for by in steps:
                loop, axis = out.split(axis, factor=by, tail=tail)
                loops.append(loop)
            return [*loops, axis]
        if aligned:
            tile, *within = out.split_lines(steps[-1], self.facts.line)
            out.unroll(within[0])
        else:
            tile, *within = out.split(axis, factor=steps[-1], tail="shift") if steps else (axis,)
            tail = "guard"  # there may be less than a larger step
        for outer, inner in reversed([*itertools.pairwise(steps)]):
            loop, tile = out.split(tile, factor=max(outer // inner, 1), tail=tail)
            loops.insert(0, loop)
        return [*loops, tile, *within]

    def _copy(self, s: te.Schedule, tiles: Sequence[IterVar]) -> None:
        """Add the transposed copy in a loop of `tiles`, that of input rows before it, and what they prefetch."""
        facts, level = self.facts, level_of(self.facts.target)
        readers = [op for op in operations_behind([facts.out]) if facts.tensor in op.input_tensors]
        source = facts.tensor if self.lines_first is None else s.cache_read(facts.tensor, "local", readers)
        copy, blocks, vectors = transpose_in_registers(s, source, readers, facts.position, facts.lanes)
        if self.by_vectors:
            s[copy].reorder(vectors, blocks)
        if self.unrolled:
            s[copy].unroll(vectors)
        s[copy].compute_at(s[facts.out], tiles[self.copied])
        stage, loop = copy, blocks if self.by_vectors else vectors
        if self.share is not None:
            for first in range(0, self.share.lines, self.share.together):
                count = min(self.share.together, self.share.lines - first)
                place = partial(self.share.place, tiles[self.copied].var, vectors.var, blocks.var, first)
                s[copy].prefetch(facts.tensor, loop, te.Prefetch(0, level, place, count))
        if self.lines_first is not None:
            s[source].vectorize(s[source].op.axis[-1])
            around = copy if self.lines_first < 0 else facts.out
            s[source].compute_at(s[around], vectors if self.lines_first < 0 else tiles[self.lines_first])
            stage, loop = source, s[source].op.axis[facts.position]
        if self.ahead:
            s[stage].prefetch(facts.tensor, loop, te.Prefetch(self.ahead, level))
