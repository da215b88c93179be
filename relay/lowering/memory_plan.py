"""Static memory planning: every intermediate tensor gets an offset in one arena, reused after its last reader.

Greedy by size: the largest tensor is placed first, each at the lowest offset where it overlaps no tensor that is alive
at the same time (Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, found it within
a few percent of the lower bound on common models).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["ALIGNMENT", "Lifetime", "MemoryPlan", "plan_memory"]

ALIGNMENT = 64
"""Alignment in bytes: a cache line, and the widest vector."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Tensor `key` of `nbytes` bytes is written at step `first` and read for the last time at step `last`."""

    key: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`offsets` in bytes by tensor key, `arena_bytes` in all, `live_bytes`: the maximum alive at once."""

    offsets: dict[int, int]
    arena_bytes: int
    live_bytes: int


def _aligned(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT


def plan_memory(lifetimes: Iterable[Lifetime]) -> MemoryPlan:
    """Offsets for tensors such that no two that are alive at the same step overlap."""
    tensors = list(lifetimes)
    occupied = _OccupiedOverTime(max([tensor.last for tensor in tensors], default=0) + 1)
    offsets: dict[int, int] = {}
    arena = 0
    for tensor in sorted(tensors, key=lambda t: (-t.nbytes, t.first, t.key)):
        size = _aligned(tensor.nbytes)
        offsets[tensor.key] = occupied.place(size, tensor.first, tensor.last)
        arena = max(arena, offsets[tensor.key] + size)
    return MemoryPlan(offsets, arena, _most_alive(tensors))


class _Occupied:
    """A set of bytes, as intervals that neither overlap nor touch, in order."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def first_free(self, size: int, offset: int) -> int:
        """The lowest offset, at least `offset`, from which `size` bytes are free."""
        i = bisect_right(self.ends, offset)
        while i < len(self.starts) and self.starts[i] < offset + size:
            offset = max(offset, self.ends[i])
            i += 1
        return offset

    def add(self, start: int, end: int) -> None:
        first, last = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if first < last:
            start, end = min(start, self.starts[first]), max(end, self.ends[last - 1])
        self.starts[first:last], self.ends[first:last] = [start], [end]


class _OccupiedOverTime:
    """The bytes that are occupied at each step: a segment tree over the steps.

    The node of a range of steps has the bytes of the tensors that are alive throughout the range but not throughout the
    range above it (`whole`), and those of all tensors of this node and the ones below (`any`).
    """

    def __init__(self, steps: int) -> None:
        self.steps = 1 << (steps - 1).bit_length()
        self.whole: defaultdict[int, _Occupied] = defaultdict(_Occupied)
        self.any: defaultdict[int, _Occupied] = defaultdict(_Occupied)

    def place(self, size: int, first: int, last: int) -> int:
        """Occupy the lowest `size` bytes that are free in all steps from `first` to `last`; returns their offset."""
        parts = self._parts(first, last)
        above = list(dict.fromkeys([part >> up for part in parts for up in range(1, part.bit_length())]))
        taken = [self.any[part] for part in parts if part in self.any]
        taken += [self.whole[node] for node in above if node in self.whole]
        offset, before = 0, -1
        while offset != before:
            before = offset
            for occupied in taken:
                offset = occupied.first_free(size, offset)
        for node in (*parts, *above):
            self.any[node].add(offset, offset + size)
        for part in parts:
            self.whole[part].add(offset, offset + size)
        return offset

    def _parts(self, first: int, last: int) -> list[int]:
        """The nodes that together are the steps from `first` to `last`; node n is above nodes 2n and 2n + 1."""
        parts: list[int] = []
        low, high = first + self.steps, last + self.steps + 1
        while low < high:
            if low & 1:
                parts.append(low)
                low += 1
            if high & 1:
                high -= 1
                parts.append(high)
            low, high = low >> 1, high >> 1
        return parts


def _most_alive(tensors: list[Lifetime]) -> int:
    changes: dict[int, int] = {}
    for tensor in tensors:
        changes[tensor.first] = changes.get(tensor.first, 0) + _aligned(tensor.nbytes)
        changes[tensor.last + 1] = changes.get(tensor.last + 1, 0) - _aligned(tensor.nbytes)
    alive = most = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most
