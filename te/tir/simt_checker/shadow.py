"""Shadow memory: for every cell, which thread accessed it last, when, and in which statement.

A cell is as large as the smallest element of the buffers that share the memory. A *phase* is the time between two
barriers of one block (no two blocks share one); a *step* ends at operations that order the threads of a warp, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["NEVER", "Access", "Conflict", "Moment", "Shadow"]

NEVER = np.iinfo(np.int64).max
_NOBODY, _SEVERAL = -1, -2


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment: the numbers of block, phase, step and statement."""

    block: int
    phase: int
    step: int
    statement: int


@dataclass(frozen=True, slots=True)
class Access:
    """Cells touched by threads of one block, element by element, in one statement."""

    cells: np.ndarray
    threads: np.ndarray
    when: Moment
    atomic: bool = False
    values: np.ndarray | None = None  # the written values, where they are tracked


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two accesses of one cell that nothing orders. `other_block` is None when both are of the same block."""

    cell: int
    thread: int
    other_thread: int
    other_statement: int
    other_block: int | None
    other_reads: bool


class Shadow:
    """The state of one piece of memory. Cells of memory that is only read need no record: make none for it."""

    def __init__(self, cells: int, initialized: bool, across_blocks: bool) -> None:
        self.first_write = np.full(cells, -1 if initialized else NEVER, np.int64)
        self.values: np.ndarray | None = None
        self._writer, self._reader, self._reader_warp = (np.full(cells, _NOBODY, np.int32) for _ in range(3))
        self._written, self._read = (_Moments(cells) for _ in range(2))
        self._atomic = np.zeros(cells, bool)
        self._across_blocks = across_blocks
        self._writer_block, self._reader_block = (
            np.full(cells if across_blocks else 0, _NOBODY, np.int32) for _ in range(2)
        )

    def forget(self) -> None:
        """The contents are undefined from here on."""
        self.first_write.fill(NEVER)

    def write_times(self, cells: np.ndarray, times: np.ndarray | int) -> None:
        """Record when cells were written first."""
        if not isinstance(times, np.ndarray):
            self.first_write[cells] = np.minimum(self.first_write[cells], times)
            return
        earlier = times < self.first_write[cells]
        cells, times = cells[earlier], times[earlier]
        order = np.argsort(-times, kind="stable")  # of several times of one cell the earliest is assigned last
        self.first_write[cells[order]] = times[order]

    def read(self, access: Access) -> Conflict | None:
        """Record a read. Gives a conflict with what another thread or block wrote."""
        cells, threads, when = access.cells, access.threads, access.when
        bad = self._unordered(self._written, self._writer, access)
        if bad.any():
            return self._conflict(access, bad, self._written, self._writer, reads=False)
        if self._across_blocks:
            bad = self._other_block(self._writer_block, access)
            if bad.any():
                return self._block_conflict(access, bad, self._written, self._writer_block, reads=False)
            known = self._reader_block[cells]
            self._reader_block[cells] = np.where((known == _NOBODY) | (known == when.block), when.block, _SEVERAL)
        fresh_phase = self._read.phase[cells] != when.phase
        fresh_step = fresh_phase | (self._read.step[cells] != when.step)
        _merge(self._reader, cells, threads, fresh_step)
        _merge(self._reader_warp, cells, threads // 32, fresh_phase)
        self._read.set(cells, when)
        return None

    def write(self, access: Access) -> Conflict | None:
        """Record a write. Gives a conflict with another thread's or block's read, or write of another value."""
        cells, threads, when = access.cells, access.threads, access.when
        bad = self._read_by_others(access)
        if bad.any():
            return self._conflict(access, bad, self._read, self._reader, reads=True)
        bad = self._unordered(self._written, self._writer, access) & self._differs(access)
        if bad.any():
            return self._conflict(access, bad, self._written, self._writer, reads=False)
        if self._across_blocks:
            bad = self._other_block(self._reader_block, access)
            if bad.any():
                return self._block_conflict(access, bad, self._read, self._reader_block, reads=True)
            bad = self._other_block(self._writer_block, access) & self._differs(access)
            if bad.any():
                return self._block_conflict(access, bad, self._written, self._writer_block, reads=False)
            self._writer_block[cells] = when.block
        self._writer[cells] = threads
        self._atomic[cells] = access.atomic
        self._written.set(cells, when)
        if self.values is not None and access.values is not None:
            self.values[cells] = access.values
        twice = (self._writer[cells] != threads) & self._differs(access)
        return self._conflict(access, twice, self._written, self._writer, reads=False) if twice.any() else None

    def _differs(self, access: Access) -> np.ndarray:
        """Where a second write is a fault: with another value, and not both atomic."""
        both_atomic = self._atomic[access.cells] & access.atomic
        if self.values is None or access.values is None:
            return ~both_atomic
        there, new = self.values[access.cells], access.values
        return ~both_atomic & (there != new) & ~((there != there) & (new != new))

    def _unordered(self, moments: _Moments, who: np.ndarray, access: Access) -> np.ndarray:
        """Where the last access was another thread's and neither a barrier nor a step of the same warp came after."""
        last = who[access.cells]
        ordered = (last // 32 == access.threads // 32) & (moments.step[access.cells] != access.when.step)
        return (moments.phase[access.cells] == access.when.phase) & (last != access.threads) & ~ordered

    def _read_by_others(self, access: Access) -> np.ndarray:
        cells = access.cells
        other_warp = self._reader_warp[cells] != access.threads // 32
        other_thread = (self._reader[cells] != access.threads) & (self._read.step[cells] == access.when.step)
        return (self._read.phase[cells] == access.when.phase) & (other_warp | other_thread)

    def _other_block(self, blocks: np.ndarray, access: Access) -> np.ndarray:
        last = blocks[access.cells]
        both_atomic = self._atomic[access.cells] & access.atomic
        return (last != _NOBODY) & (last != access.when.block) & ~both_atomic

    def _conflict(self, access: Access, bad: np.ndarray, moments: _Moments, who: np.ndarray, reads: bool) -> Conflict:
        i = int(np.flatnonzero(bad)[0])
        cell = int(access.cells[i])
        return Conflict(cell, int(access.threads[i]), int(who[cell]), int(moments.statement[cell]), None, reads)

    def _block_conflict(
        self, access: Access, bad: np.ndarray, moments: _Moments, blocks: np.ndarray, reads: bool
    ) -> Conflict:
        i = int(np.flatnonzero(bad)[0])
        cell = int(access.cells[i])
        return Conflict(cell, int(access.threads[i]), -1, int(moments.statement[cell]), int(blocks[cell]), reads)


class _Moments:
    """The last moment at which each cell was accessed."""

    def __init__(self, cells: int) -> None:
        self.phase, self.step, self.statement = (np.full(cells, -1, np.int32) for _ in range(3))

    def set(self, cells: np.ndarray, when: Moment) -> None:
        self.phase[cells] = when.phase
        self.step[cells] = when.step
        self.statement[cells] = when.statement


def _merge(who: np.ndarray, cells: np.ndarray, new: np.ndarray, fresh: np.ndarray) -> None:
    """Record accesses beside known ones, unless these are stale: several different ones become `_SEVERAL`."""
    known = np.where(fresh, _NOBODY, who[cells])
    merged = np.where((known == _NOBODY) | (known == new), new, _SEVERAL).astype(np.int32)
    who[cells] = merged
    several = who[cells] != merged
    who[cells[several]] = _SEVERAL
