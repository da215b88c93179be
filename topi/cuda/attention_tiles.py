"""Tiles of attention in one kernel, ranked by a performance model of one multiprocessor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from relayc.topi.cuda.cost import Gpu
from relayc.topi.cuda.product_tiles import (
    HIDING_WARPS,
    L2_BYTES_PER_CYCLE,
    LAUNCH_CYCLES,
    SHARED_BYTES_PER_CYCLE,
    STEP_CYCLES,
)

__all__ = ["PAD", "STAGES", "AttentionProblem", "AttentionTile"]

PAD = 8
"""Elements of padding after a line of shared memory: eight lines that are read at once lie in different banks."""
_NBYTES = 2
STAGES = 2
"""Blocks of keys and values in shared memory: one in use, one being copied."""
_WEIGHT_CYCLES = 1 / 6
"""Cycles of a multiprocessor for the weight of a score: mask, maximum, exponential (16 a cycle), sum, rounding."""
_MOST_REGISTERS = 240
"""Most estimated registers of a thread, of 255."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """`warps` warps, each with `fragments` times 16 queries, which read `keys` keys at a time.

    Heads are padded with zeros to a `depth` (of queries and keys) and a `width` (of values) that are multiples of 16.
    """

    warps: int
    fragments: int
    keys: int
    depth: int
    width: int

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return 16 * self.fragments * self.warps

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps

    @property
    def registers(self) -> int:
        """Estimated registers per thread: queries, scores, weights, sums; operands of a step; addresses."""
        each = self.depth // 4 + self.keys // 2 + self.keys // 4 + self.width // 2
        return self.fragments * each + self.keys // 4 + 40

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory: keys and values, two blocks of each, in lines along or across a head."""
        along = self.keys * (self.depth + self.width + 2 * PAD)
        across = (self.depth + self.width) * (self.keys + PAD)
        return STAGES * max(along, across) * _NBYTES

    def step_cycles(self, per_cycle: int) -> float:
        """Cycles of a multiprocessor for one block of keys, at `per_cycle` multiply-adds, with its units overlapped."""
        elements = self.keys * (self.depth + self.width)
        multiply = self.rows * elements / per_cycle
        shared = (self.warps + 1) * elements * _NBYTES / SHARED_BYTES_PER_CYCLE
        copied = elements * _NBYTES / L2_BYTES_PER_CYCLE
        return max(multiply, shared, copied) + self.rows * self.keys * _WEIGHT_CYCLES


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """Attention of `batch` heads of `rows` queries to `keys` keys, on a GPU; `depth` and `width` as of tiles."""

    gpu: Gpu
    batch: int
    rows: int
    keys: int
    depth: int
    width: int

    def tiles(self) -> Iterator[AttentionTile]:
        """The tiles whose registers and shared memory suffice, and all of whose warps have queries."""
        for warps, fragments, keys in product((1, 2, 4, 8), (1, 2), (32, 64)):
            tile = AttentionTile(warps, fragments, keys, self.depth, self.width)
            used = warps == 1 or tile.rows - 16 * fragments < self.rows
            if used and tile.registers <= _MOST_REGISTERS and self._resident(tile):
                yield tile

    def _resident(self, tile: AttentionTile) -> int:
        return self.gpu.resident_blocks(tile.threads, tile.registers, tile.shared_bytes)

    def cycles(self, tile: AttentionTile, per_cycle: int) -> float:
        """Cycles of the multiprocessor with the most blocks."""
        blocks = self.batch * math.ceil(self.rows / tile.rows)
        each = max(math.ceil(blocks / self.gpu.processors), 1)
        together = min(self._resident(tile), each)
        rate = min(1.0, together * tile.warps / HIDING_WARPS) ** 0.5
        steps = math.ceil(self.keys / tile.keys)
        write = tile.rows * tile.width * _NBYTES / L2_BYTES_PER_CYCLE
        alone = LAUNCH_CYCLES + steps * STEP_CYCLES
        return each * (steps * tile.step_cycles(per_cycle) / rate + write) + each / together * alone
