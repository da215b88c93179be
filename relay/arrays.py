"""Large arrays made at compile time: their memory, and copies on several threads.

Packing the weights of a model copies hundreds of megabytes, and a naive copy spends most of its time in page
faults of 4 KiB pages. An `Arena` allocates arrays from a few large blocks, for which numpy requests huge pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from relayc.backend.runtime.threads import in_threads

__all__ = ["ALIGNMENT", "Arena", "Jobs", "concatenated"]

Array = np.ndarray[Any, Any]

ALIGNMENT = 64
"""Alignment of arrays in bytes."""
_HUGE_PAGE = 2 << 20
_MOST_WASTE = 8
"""The part (1 / n) of an allocation that filling its last huge page may add, which takes memory once it is touched."""
_BLOCK = 64 << 20
_PIECE = 1 << 20


class Arena:
    """Allocates uninitialised arrays, aligned to 64 bytes.

    Arrays of at least half a block have memory of their own; others share blocks, each of which lives as long as any
    array in it. `most`, if known, is the total size in bytes to be allocated, give or take the gaps.
    """

    def __init__(self, most: int = _BLOCK) -> None:
        self._block_size = min(most, _BLOCK)
        self._room = np.empty(0, np.uint8)

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array in C order."""
        size = math.prod(shape) * dtype.itemsize
        return self._bytes(size).view(dtype).reshape(shape)

    def _bytes(self, size: int) -> Array:
        if size >= _BLOCK // 2:
            return _block(size)[:size]
        taken = -(-size // ALIGNMENT) * ALIGNMENT
        if len(self._room) < taken:
            self._room = _block(max(taken, self._block_size))
        found, self._room = self._room[:size], self._room[taken:]
        return found


def _block(size: int) -> Array:
    """An allocation of at least `size` bytes, in whole huge pages if that is little more.

    Pages that are never touched take no memory.
    """
    alignment = _HUGE_PAGE if -size % _HUGE_PAGE <= size // _MOST_WASTE else ALIGNMENT
    size = -(-size // alignment) * alignment
    memory = np.empty(size + alignment, np.uint8)
    skip = -memory.ctypes.data % alignment
    return memory[skip : skip + size]


class Jobs:
    """Deferred copies and other work on arrays, run together on several threads."""

    def __init__(self) -> None:
        self._jobs: list[Callable[[], object]] = []
        self._nbytes = 0

    def add(self, job: Callable[[], object], nbytes: int) -> None:
        """Add a job that reads and writes about `nbytes` bytes."""
        self._jobs.append(job)
        self._nbytes += nbytes

    @staticmethod
    def pieces(of: Array) -> Iterator[slice]:
        """Slices of an array along the first dimension, each large enough for a job of its own."""
        rows = len(of)
        step = max(1, rows * _PIECE // max(1, of.nbytes))
        for begin in range(0, rows, step):
            yield slice(begin, min(begin + step, rows))

    def copy(self, into: Array, source: Array) -> None:
        """Copy `source` into an array of its shape, of one dimension or more."""
        for rows in self.pieces(into):
            self.add(lambda rows=rows: np.copyto(into[rows], source[rows]), into[rows].nbytes)

    def run(self) -> None:
        """Run all jobs."""
        jobs, self._jobs = self._jobs, []
        in_threads(lambda job: job(), jobs, self._nbytes)
        self._nbytes = 0


def concatenated(arrays: Sequence[Array], arena: Arena, jobs: Jobs) -> Array:
    """Arrays of one dtype concatenated along axis 0, once `jobs` have run; in Fortran order if all of them are."""
    widths = [len(array) for array in arrays]
    by_columns = all(array.T.flags.c_contiguous for array in arrays)
    shape = (sum(widths), *arrays[0].shape[1:])
    whole = arena.empty(shape[::-1], arrays[0].dtype).T if by_columns else arena.empty(shape, arrays[0].dtype)
    begin = 0
    for array, width in zip(arrays, widths, strict=True):
        into = whole[begin : begin + width]
        jobs.copy(into.T if by_columns else into, array.T if by_columns else array)
        begin += width
    return whole
