"""Static memory planning: every intermediate tensor gets an offset in one arena, reused after its last reader.

Greedy by size: the largest tensor is placed first, each at the lowest offset where it overlaps no tensor that is alive
at the same time (Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, found it within
a few percent of the lower bound on common models).
"""

from __future__ import annotations

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
    alive_at: dict[int, list[tuple[int, int]]] = {}
    offsets: dict[int, int] = {}
    arena = 0
    for tensor in sorted(tensors, key=lambda t: (-t.nbytes, t.first, t.key)):
        size = _aligned(tensor.nbytes)
        steps = range(tensor.first, tensor.last + 1)
        offset = 0
        for start, end in sorted({block for step in steps for block in alive_at.get(step, ())}):
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[tensor.key] = offset
        arena = max(arena, offset + size)
        for step in steps:
            alive_at.setdefault(step, []).append((offset, offset + size))
    return MemoryPlan(offsets, arena, _most_alive(tensors))


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
