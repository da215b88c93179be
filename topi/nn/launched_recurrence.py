"""Recurrences on GPUs, with one kernel launch per step.

A launch synchronises all threads of the device, so that a step may use all of them. A thread block computes NR units of
some batch entries: threads split the depth of the sums (split-K), add up their partial sums, and each then applies the
gates of one unit of one entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from relayc import te
from relayc.te.tir import PrimExpr
from relayc.te.tir.ir_builder import BufferView
from relayc.topi.nn.recurrence import Block, Recurrence, Step

__all__ = ["LaunchedRecurrence"]

_THREADS = 512
"""Threads of a block; tuned for 256 units, where so many still have all weights of a step in flight."""

_BYTES_OF_ENTRIES = 16
"""Bytes of batch entries per thread block: four entries of float32, whose sums of four gates leave registers for
weights in flight."""


class _Own:
    """The sums (entry, gate, lane) of a thread's own entry and lane: a value for each gate."""

    def __init__(self, gates: BufferView) -> None:
        self.gates = gates

    def __getitem__(self, index: tuple[Any, int, Any]) -> PrimExpr:
        return self.gates[index[1]]

    def __setitem__(self, index: tuple[Any, int, Any], value: Any) -> None:
        self.gates[index[1]] = value


class LaunchedRecurrence(Recurrence):
    """The loops of a recurrence with the blocks of a step on thread blocks, which `each_block` launches."""

    slice: Any
    lane: Any
    first: Any
    summed: int
    total: BufferView
    own: BufferView

    @property
    def entries(self) -> int:
        """Batch entries of a thread block."""
        most = max(_BYTES_OF_ENTRIES // self.products.buffer.dtype.nbytes, 1)
        return min(self.batch, most) if isinstance(self.batch, int) else most

    @property
    def slices(self) -> int:
        """The number of threads that split the depth of a sum: a power of two."""
        return 1 << (min(_THREADS // self.lanes, self.depth).bit_length() - 1)

    @contextmanager
    def each_step(self) -> Generator[Step, None, None]:
        """Loop over all steps, for all directions together."""
        with self.ib.for_range(0, self.steps, "step") as number:
            yield self._step(number)

    @contextmanager
    def each_block(self, step: Step) -> Generator[Block, None, None]:
        """Launch a thread block for each block of units and batch entries."""
        ib, tiles = self.ib, -(-self.batch // self.entries)
        with ib.scope():
            group = ib.thread_axis(self.directions * self.blocks * tiles, "blockIdx.x")
            thread = ib.thread_axis(self.slices * self.lanes, "threadIdx.x")
            self.slice, self.lane = ib.let("slice", thread // self.lanes), ib.let("lane", thread % self.lanes)
            self.first = ib.let("first", group % tiles * self.entries)
            block = group // tiles
            yield self._block(step, block // self.blocks, block % self.blocks)

    @contextmanager
    def each_entry(self) -> Generator[Any, None, None]:
        """The entries of a thread block, one for each thread of a lane."""
        ib, slices = self.ib, self.slices
        with ib.for_range(0, -(-self.entries // slices), "turn") as turn:
            place = ib.let("place", turn * slices + self.slice)
            with ib.if_scope(te.all(place < self.entries, self.first + place < self.batch)):
                for gate in range(self.summed):
                    self.own[gate] = self.total[place, gate, self.lane]
                yield ib.let("b", self.first + place)

    @contextmanager
    def each_unit(self, at: Block) -> Generator[tuple[Any, Any], None, None]:
        """The unit of the current thread."""
        yield self.lane, at.number * self.lanes + self.lane

    def sums(self, source: BufferView, copy: Any, at: Block, gates: Sequence[int]) -> Any:
        """A state times the panels of `gates` of one block: NR sums for each entry and gate of the thread block."""
        ib, entries, slices = self.ib, self.entries, self.slices
        self.summed = count = len(gates)
        shared = ib.allocate(self.dtype, (slices, entries, count, self.lanes), "shared", scope="shared")
        self.total = ib.allocate(self.dtype, (entries, count, self.lanes), "total", scope="shared")
        self.own = ib.allocate(self.dtype, count, "own", scope="local")
        sums = ib.allocate(self.dtype, (entries, count), "sums", scope="local")
        places = list(itertools.product(range(entries), range(count)))
        for place in places:
            sums[place] = te.const(0, self.dtype)
        with ib.for_range(0, -(-self.depth // slices), "k") as k:
            unit = ib.let("read", k * slices + self.slice)
            with ib.if_scope(unit < self.depth):
                self._add_products(sums, source, (copy, at.direction), at, gates, unit)
        for place in places:
            shared[(self.slice, *place, self.lane)] = sums[place]
        self._add_up(shared, entries * count * self.lanes)
        return _Own(self.own)

    def _add_up(self, shared: BufferView, count: int) -> None:
        """Add up the partial sums of all slices, `count` sums by as many threads."""
        ib, threads = self.ib, self.slices * self.lanes
        _, _, gates, lanes = shared.buffer.shape
        with ib.for_range(0, -(-count // threads), "turn") as turn:
            item = ib.let("item", turn * threads + self.slice * self.lanes + self.lane)
            with ib.if_scope(item < count):
                place = (item // (gates * lanes), item // lanes % gates, item % lanes)
                whole = ib.allocate(self.dtype, 1, "whole", scope="local")
                whole[0] = te.const(0, self.dtype)
                with ib.for_range(0, self.slices, "slice") as part:
                    whole[0] = whole[0] + shared[(part, *place)]
                self.total[place] = whole[0]

    def _add_products(
        self, sums: BufferView, source: BufferView, state: tuple[Any, Any], at: Block, gates: Sequence[int], unit: Any
    ) -> None:
        """Add the products of a unit of the state to the thread's sums (entry, gate)."""
        ib = self.ib
        panels = [self.weights[at.direction, at.number, gate, unit, self.lane] for gate in gates]
        weights = [ib.let("weight", te.cast(self.dtype, weight)) for weight in panels]
        for entry in range(self.entries):
            b = te.min(self.first + entry, self.batch - 1)  # entries beyond the last are unused
            value = ib.let("value", te.cast(self.dtype, source[(*state, b, unit)]))
            for n, weight in enumerate(weights):
                sums[entry, n] = sums[entry, n] + value * weight
