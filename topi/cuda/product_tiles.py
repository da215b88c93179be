"""Which tiles a product of matrices is computed in: a model of one multiprocessor.

A block of threads computes a tile of the result. In one step of the depth its warps multiply, read their operands from
shared memory, and copy the next slices to it; units that work at the same time hide each other's time if enough warps
are resident. The model adds up cycles, takes the blocks that the slowest multiprocessor gets, and ranks tiles by that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from topi.cuda.cost import Gpu

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["SimtTile", "best_simt_tile"]

BANKS = 32
"""Banks of shared memory, of four bytes each."""
LANES = (4, 8)
"""The threads of a warp, down and across a tile."""

_SHARED_BYTES_PER_CYCLE = 128
"""What shared memory gives a multiprocessor in a cycle."""
_L2_BYTES_PER_CYCLE = 32
"""What the second-level cache gives a multiprocessor in a cycle when all of them ask."""
_STEP_CYCLES = 40
"""A barrier and the wait for copies, once per step of a block."""
_LAUNCH_CYCLES = 1500
"""A block's way to its first step (two trips to memory) and its end."""
_HIDING_WARPS = 8
"""Resident warps from which on a multiprocessor hides the latencies of its own units."""

_STATIC_SHARED_BYTES = 48 << 10
"""Shared memory that needs no opting in."""
_STEP_INSTRUCTIONS = 1024
"""Multiply-adds of a thread in a step at most: the loop is unrolled and must stay in the instruction cache."""


@dataclass(frozen=True, slots=True)
class SimtTile:
    """A tile computed by `warps` (down, across) of 4 x 8 threads, `depth` products at a time, `stages` in flight.

    `parts` is the number of parts (down, across) that a thread has in its registers, `vector` the rows and columns of a
    part.
    """

    warps: tuple[int, int]
    parts: tuple[int, int]
    vector: tuple[int, int]
    depth: int
    stages: int

    @property
    def rows(self) -> int:
        """Rows of the tile of a block."""
        return self.warps[0] * LANES[0] * self.parts[0] * self.vector[0]

    @property
    def columns(self) -> int:
        """Columns of the tile of a block."""
        return self.warps[1] * LANES[1] * self.parts[1] * self.vector[1]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps[0] * self.warps[1]

    @property
    def own(self) -> tuple[int, int]:
        """Rows and columns of a thread."""
        return self.parts[0] * self.vector[0], self.parts[1] * self.vector[1]

    @property
    def registers(self) -> int:
        """About how many registers a thread needs: sums, two sets of operands, addresses."""
        rows, columns = self.own
        return rows * columns + 2 * (rows + columns) + 32

    def shared_bytes(self, nbytes: int) -> int:
        """Shared memory of a block for elements of `nbytes`."""
        return self.stages * self.depth * (self.rows + self.columns + 8) * nbytes

    def step_cycles(self, fma_per_cycle: int) -> float:
        """Cycles of a multiprocessor for one step of a block, its units busy side by side."""
        rows, columns = self.own
        warps = self.threads // 32
        multiply = self.rows * self.columns * self.depth / fma_per_cycle
        read = warps * self.depth * 4 * (LANES[0] * rows + LANES[1] * columns) / _SHARED_BYTES_PER_CYCLE
        slices = (self.rows + self.columns) * self.depth * 4
        write = slices / _SHARED_BYTES_PER_CYCLE
        issue = warps * self.depth * (rows * columns + (rows + columns) / 4) / 4 + slices / 4 / 32 / 4
        return max(multiply, issue, read + write, slices / _L2_BYTES_PER_CYCLE) + 0.15 * (read + write)


def _simt_tiles() -> Iterator[SimtTile]:
    warps = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))
    parts = ((1, 1), (1, 2), (2, 1), (2, 2))
    vectors = ((4, 4), (2, 4), (1, 4), (4, 2), (1, 2), (2, 2), (4, 1))
    for w, p, v in product(warps, parts, vectors):
        if p != (1, 1) and 4 not in v:
            continue
        for depth, stages in ((8, 4), (16, 3), (16, 4)):
            tile = SimtTile(w, p, v, depth, stages)
            if math.prod(tile.own) * depth <= _STEP_INSTRUCTIONS:
                yield tile


def fma_per_cycle(target: Target) -> int:
    """float32 multiply-adds of a multiprocessor in a cycle (CUDA C++ Programming Guide, arithmetic throughput)."""
    arch = str(target.get("arch", "sm_80"))
    return 64 if arch.removeprefix("sm_").rstrip("af") in ("75", "80") else 128


def _cycles(tile: SimtTile, gpu: Gpu, fma: int, batch: int, rows: int, columns: int, depth: int, nbytes: int) -> float:
    """The time of the multiprocessor with the most blocks."""
    resident = gpu.resident_blocks(tile.threads, tile.registers, tile.shared_bytes(nbytes))
    if not resident or tile.shared_bytes(nbytes) > _STATIC_SHARED_BYTES:
        return math.inf
    blocks = batch * math.ceil(rows / tile.rows) * math.ceil(columns / tile.columns)
    steps = math.ceil(depth / tile.depth)
    step = tile.step_cycles(fma)
    share = math.ceil(blocks / gpu.processors)
    together = min(resident, share)
    warps = together * tile.threads // 32
    rate = min(1.0, (warps / _HIDING_WARPS) ** 0.5)
    write = tile.rows * tile.columns * 4 / _L2_BYTES_PER_CYCLE
    alone = _LAUNCH_CYCLES + steps * _STEP_CYCLES
    return share * (steps * step + write) / rate + math.ceil(share / together) * alone


def best_simt_tile(
    target: Target, batch: int, rows: int, columns: int, depth: int, nbytes: int = 4
) -> SimtTile:
    """The tile of the least cycles for `batch` products of (rows, depth) by (depth, columns) matrices."""
    gpu, fma = Gpu.of(target), fma_per_cycle(target)
    return min(_simt_tiles(), key=lambda t: (_cycles(t, gpu, fma, batch, rows, columns, depth, nbytes), t.threads))
