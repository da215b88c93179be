"""Large arrays made at compile time: their memory, and copies on several threads.

Packing the weights of a model moves hundreds of megabytes, and most of the time of a naive copy goes to the system's
giving out memory in pages of 4 KiB. An `Arena` hands out pieces of few large blocks, which numpy asks the system to
make of huge pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from backend.runtime.threads import in_threads

__all__ = ["Arena", "Jobs", "concatenated"]

Array = np.ndarray[Any, Any]

ALIGNMENT = 64
_OWN_BLOCK = 8 << 20
_BLOCK = 32 << 20
_PIECE = 1 << 20


class Arena:
    """Uninitialised arrays, aligned to 64 bytes.

    Large ones have memory of their own; others share blocks, each of which lives as long as any array in it. `expected`
    is about how many bytes will be asked for.
    """

    def __init__(self, expected: int = _BLOCK) -> None:
        self._left = expected
        self._room = np.empty(0, np.uint8)

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array in C order."""
        size = math.prod(shape) * dtype.itemsize
        return self._bytes(size).view(dtype).reshape(shape)

    def _bytes(self, size: int) -> Array:
        if size >= _OWN_BLOCK:
            return _aligned(size)
        taken = -(-size // ALIGNMENT) * ALIGNMENT
        if len(self._room) < taken:
            self._room = _aligned(max(taken, min(self._left, _BLOCK)))
        found, self._room = self._room[:size], self._room[taken:]
        self._left -= taken
        return found


def _aligned(size: int) -> Array:
    memory = np.empty(size + ALIGNMENT, np.uint8)
    skip = -memory.ctypes.data % ALIGNMENT
    return memory[skip : skip + size]


class Jobs:
    """Copies and other work on arrays that is put off, to be done together on several threads."""

    def __init__(self) -> None:
        self._jobs: list[Callable[[], object]] = []
        self._nbytes = 0

    def add(self, job: Callable[[], object], nbytes: int) -> None:
        """Work that moves about `nbytes` bytes."""
        self._jobs.append(job)
        self._nbytes += nbytes

    @staticmethod
    def pieces(of: Array) -> Iterator[slice]:
        """The first dimension of an array in parts that are worth a job each."""
        rows = len(of)
        step = max(1, rows * _PIECE // max(1, of.nbytes))
        for begin in range(0, rows, step):
            yield slice(begin, begin + step)

    def copy(self, into: Array, source: Array) -> None:
        """Copy `source` into an array of its shape, of one dimension or more."""
        for rows in self.pieces(into):
            self.add(lambda rows=rows: np.copyto(into[rows], source[rows]), into[rows].nbytes)

    def run(self) -> None:
        """Do all of it."""
        jobs, self._jobs = self._jobs, []
        in_threads(lambda job: job(), jobs, self._nbytes)
        self._nbytes = 0


def concatenated(arrays: Sequence[Array], arena: Arena, jobs: Jobs) -> Array:
    """Matrices of one dtype below each other, once `jobs` have run; stored by columns if they are."""
    widths, depth = [len(array) for array in arrays], arrays[0].shape[1]
    by_columns = all(array.T.flags.c_contiguous for array in arrays)
    shape = (sum(widths), depth)
    whole = arena.empty(shape[::-1], arrays[0].dtype).T if by_columns else arena.empty(shape, arrays[0].dtype)
    begin = 0
    for array, width in zip(arrays, widths, strict=True):
        into = whole[begin : begin + width]
        jobs.copy(into.T if by_columns else into, array.T if by_columns else array)
        begin += width
    return whole
