"""Which tiles a product of matrices is computed in: a model of one multiprocessor.

A block of threads computes a tile of the result. In one step of the depth its warps multiply, read their operands from
shared memory, and copy the next slices to it; units that work at the same time hide each other's time if enough warps
are resident. The model adds up cycles, takes the blocks that the slowest multiprocessor gets, and ranks tiles by that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from relayc.topi.cuda.cost import Gpu

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = [
    "BANKS",
    "LANES",
    "STATIC_SHARED_BYTES",
    "Choice",
    "MmaTile",
    "Problem",
    "SimtTile",
    "WgmmaTile",
    "architecture",
    "mma_choices",
    "simt_choices",
    "wgmma_choices",
]  # fmt: skip

BANKS = 32
"""Banks of shared memory, of four bytes each."""
LANES = (4, 8)
"""The threads of a warp, down and across a tile."""

_SHARED_BYTES_PER_CYCLE = 128
"""What shared memory gives a multiprocessor in a cycle."""
_L2_BYTES_PER_CYCLE = 32
"""What the second-level cache gives a multiprocessor in a cycle when all of them ask."""
_LINES_BYTES_PER_CYCLE = 40
"""The same where slices are whole lines of 128 bytes (an H200 gave 34 at least to all, 47 to two thirds of them)."""
_STEP_CYCLES = 40
"""A barrier and the wait for copies, once per step of a block."""
_HIDING_WARPS = 8
"""Resident warps from which on a multiprocessor hides the latencies of its own units."""
_RING_CYCLES = 60
"""A division by the number of slices in flight and the addresses behind it, before a warp group can multiply."""
_UNROLLED_STEPS = 16
"""Steps of a loop that the compiler writes out, with known addresses."""
_LAUNCH_CYCLES = 1500
"""A block's way to its first step (two trips to memory) and its end."""

STATIC_SHARED_BYTES = 48 << 10
"""Shared memory that needs no opting in."""
_SLICE = 128
"""The least products of a slice of the depth."""
_STEP_INSTRUCTIONS = 1024
"""Multiply-adds of a thread in a step at most: the loop is unrolled and must stay in the instruction cache."""


class _Tile:
    """What the model of a multiprocessor takes for granted, unless a kind of tiles says otherwise."""

    __slots__ = ()
    hiding_warps: ClassVar[int] = _HIDING_WARPS
    """Resident warps from which on a multiprocessor multiplies without waiting."""
    writing_power: ClassVar[float] = 0.5
    """How the speed of the epilogue grows with resident warps, up to `_HIDING_WARPS`."""

    def ring_cycles(self, steps: int) -> int:
        """What finding the next slice costs in each of `steps`, besides what `step_cycles` has."""
        return 0


@dataclass(frozen=True, slots=True)
class SimtTile(_Tile):
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

    def step_cycles(self, per_cycle: int, nbytes: int) -> float:
        """Cycles of a multiprocessor for one step of a block, its units busy side by side."""
        rows, columns = self.own
        warps = self.threads // 32
        multiply = self.rows * self.columns * self.depth / per_cycle
        read = warps * self.depth * nbytes * (LANES[0] * rows + LANES[1] * columns) / _SHARED_BYTES_PER_CYCLE
        slices = (self.rows + self.columns) * self.depth * nbytes
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


@dataclass(frozen=True, slots=True)
class MmaTile(_Tile):
    """A tile computed by `warps` (down, across), each on `tiles` (down, across) of 16 x 8 by tensor cores.

    `depth` products at a time, `stages` in flight.
    """

    warps: tuple[int, int]
    tiles: tuple[int, int]
    depth: int
    stages: int

    @property
    def rows(self) -> int:
        """Rows of the tile of a block."""
        return self.warps[0] * self.tiles[0] * 16

    @property
    def columns(self) -> int:
        """Columns of the tile of a block."""
        return self.warps[1] * self.tiles[1] * 8

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps[0] * self.warps[1]

    @property
    def registers(self) -> int:
        """About how many registers a thread needs: sums, two sets of operands, addresses."""
        down, across = self.tiles
        return 4 * down * across + 2 * (4 * down + 2 * across) + 40

    def shared_bytes(self, nbytes: int) -> int:
        """Shared memory of a block: slices of elements of `nbytes`, their rows padded by 16 bytes, then the sums."""
        pad = 16 // nbytes
        as_rows = (self.rows + self.columns) * (self.depth + pad)
        as_columns = self.depth * (self.rows + self.columns + 2 * pad)
        return max(self.stages * max(as_rows, as_columns) * nbytes, self.sums_bytes)

    @property
    def sums_bytes(self) -> int:
        """Shared memory of the sums, in rows that meet different banks."""
        return self.rows * (math.ceil(self.columns / BANKS) * BANKS + 8) * 4

    def step_cycles(self, per_cycle: int, nbytes: int) -> float:
        """Cycles of a multiprocessor for one step of a block, its units busy side by side."""
        warps = self.threads // 32
        multiply = self.rows * self.columns * self.depth / per_cycle
        fragments = warps * (self.tiles[0] * 16 + self.tiles[1] * 8) * self.depth * nbytes
        slices = (self.rows + self.columns) * self.depth * nbytes
        shared = (fragments + slices) / _SHARED_BYTES_PER_CYCLE
        return max(multiply, shared, slices / _L2_BYTES_PER_CYCLE) + 0.15 * shared


def _mma_tiles(nbytes: int) -> Iterator[MmaTile]:
    warps = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))
    tiles = ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4), (2, 8), (4, 8))
    for w, t in product(warps, tiles):
        for depth_bytes, stages in ((32, 4), (64, 3), (64, 4), (128, 3), (128, 4)):
            yield MmaTile(w, t, depth_bytes // nbytes, stages)


@dataclass(frozen=True, slots=True)
class WgmmaTile(MmaTile):
    """A tile computed by groups of four warps, one below the other, each on 64 rows by `wgmma`."""

    hiding_warps: ClassVar[int] = 4
    writing_power: ClassVar[float] = 1.0

    def ring_cycles(self, steps: int) -> int:
        """What finding the next slice costs in each of `steps`: unrolled, and of a power of two slices, nothing."""
        return 0 if steps <= _UNROLLED_STEPS or self.stages.bit_count() == 1 else _RING_CYCLES

    @property
    def registers(self) -> int:
        """About how many registers a thread needs: sums, addresses."""
        return 4 * self.tiles[1] + 40

    def shared_bytes(self, nbytes: int) -> int:
        """Shared memory of a block: slices, then the sums."""
        return max(self.stages * (self.rows + self.columns) * self.depth * nbytes, self.sums_bytes)

    def step_cycles(self, per_cycle: int, nbytes: int) -> float:
        """Cycles of a multiprocessor for one step of a block, its units busy side by side."""
        groups = self.threads // 128
        multiply = self.rows * self.columns * self.depth / per_cycle
        slices = (self.rows + self.columns) * self.depth * nbytes
        read = groups * (64 + self.tiles[1] * 8) * self.depth * nbytes
        shared = (read + slices) / _SHARED_BYTES_PER_CYCLE
        return max(multiply, shared, slices / _LINES_BYTES_PER_CYCLE) + 0.15 * shared


def _wgmma_tiles(nbytes: int) -> Iterator[WgmmaTile]:
    for warps, tiles, stages in product(((4, 1), (8, 1), (4, 2)), (8, 16, 24, 32), (3, 4)):
        yield WgmmaTile(warps, (1, tiles), 128 // nbytes, stages)


def architecture(target: Target) -> int:
    """The compute capability times ten."""
    return int(str(target.get("arch", "sm_80")).removeprefix("sm_").rstrip("af"))


def fma_per_cycle(target: Target) -> int:
    """float32 multiply-adds of a multiprocessor in a cycle (CUDA C++ Programming Guide, arithmetic throughput)."""
    return 64 if architecture(target) in (75, 80) else 128


def mma_per_cycle(target: Target, nbytes: int) -> int:
    """Multiply-adds of a multiprocessor's tensor cores in a cycle by `mma.sync`, for operands of `nbytes`.

    1024 of two bytes on data-centre GPUs, somewhat more on those whose full rate `wgmma` alone reaches; half on others.
    """
    two_bytes = {80: 1024, 90: 1280, 100: 1280, 103: 1280}.get(architecture(target), 512)
    return two_bytes * 2 // nbytes


_WGMMA_PER_CYCLE = 2048
"""Multiply-adds of a multiprocessor's tensor cores in a cycle by `wgmma`, for operands of two bytes."""

Tile = TypeVar("Tile", SimtTile, MmaTile, WgmmaTile)


@dataclass(frozen=True, slots=True)
class Problem:
    """`batch` products of (rows, depth) by (depth, columns) matrices of elements of `nbytes`, on a GPU.

    `whole` says of rows and columns whether tiles must divide them.
    """

    gpu: Gpu
    batch: int
    rows: int
    columns: int
    depth: int
    nbytes: int
    whole: tuple[bool, bool] = (False, False)
    parts: int = 1
    """slices of the depth, which a second kernel adds up"""

    def in_parts(self, parts: int) -> Problem:
        """The problem with its depth in slices."""
        return replace(self, batch=self.batch * parts, depth=math.ceil(self.depth / parts), parts=parts)

    def fits(self, tile: SimtTile | MmaTile) -> bool:
        """Are the tiles whole where they must be?"""
        sizes = ((self.rows, tile.rows), (self.columns, tile.columns))
        return not any(must and size % part for must, (size, part) in zip(self.whole, sizes, strict=True))

    def cycles(self, tile: SimtTile | MmaTile, per_cycle: int) -> float:
        """The time of the multiprocessor with the most blocks, with `per_cycle` multiply-adds in a cycle."""
        shared = tile.shared_bytes(self.nbytes)
        resident = self.gpu.resident_blocks(tile.threads, tile.registers, shared)
        if not resident:
            return math.inf
        blocks = self.batch * math.ceil(self.rows / tile.rows) * math.ceil(self.columns / tile.columns)
        share = max(math.ceil(blocks / self.gpu.processors), 1)
        together = min(resident, share)
        warps = together * tile.threads / 32
        rate = min(1.0, warps / tile.hiding_warps) ** 0.5
        steps = math.ceil(self.depth / tile.depth)
        writing_rate = min(1.0, warps / _HIDING_WARPS) ** tile.writing_power
        write = tile.rows * tile.columns * 4 / _L2_BYTES_PER_CYCLE / writing_rate
        alone = _LAUNCH_CYCLES + steps * (_STEP_CYCLES + tile.ring_cycles(steps))
        own = share * (steps * tile.step_cycles(per_cycle, self.nbytes) / rate + write) + share / together * alone
        return own + (0 if self.parts == 1 else self._adding_up())

    def _adding_up(self) -> float:
        """The time of the kernel that adds up the slices: their bytes, and another launch."""
        elements = self.batch * self.rows * self.columns
        return 2 * _LAUNCH_CYCLES + elements * 4 / _L2_BYTES_PER_CYCLE / self.gpu.processors

    def ranked(self, tiles: Iterable[Tile], per_cycle: int) -> list[Choice[Tile]]:
        """The choices of a tile and a number of slices of the depth that fit, those of the least cycles first.

        Slices are at least `_SLICE` products deep, and groups of channels are not sliced.
        """
        most = 1 if any(self.whole) else max(self.depth // _SLICE, 1)
        problems = [self, *[self.in_parts(p) for p in (2, 3, 4, 6, 8, 12, 16, 24, 32) if p <= most]]
        fitting = [t for t in tiles if self.fits(t)]
        choices = [Choice(t, problem.parts, problem.cycles(t, per_cycle)) for problem in problems for t in fitting]
        possible = [choice for choice in choices if choice.cycles < math.inf]
        return sorted(possible, key=lambda choice: (choice.cycles, choice.parts, choice.tile.threads))


@dataclass(frozen=True, slots=True)
class Choice(Generic[Tile]):
    """A tile, the number of slices of the depth, and the cycles that the model says it takes."""

    tile: Tile
    parts: int
    cycles: float


def simt_choices(target: Target, problem: Problem) -> list[Choice[SimtTile]]:
    """Tiles on ordinary cores, the best first."""
    fitting = [t for t in _simt_tiles() if t.shared_bytes(problem.nbytes) <= STATIC_SHARED_BYTES]
    return problem.ranked(fitting, fma_per_cycle(target))


def mma_choices(target: Target, problem: Problem) -> list[Choice[MmaTile]]:
    """Tiles on tensor cores, the best first."""
    return problem.ranked(_mma_tiles(problem.nbytes), mma_per_cycle(target, problem.nbytes))


def wgmma_choices(problem: Problem) -> list[Choice[WgmmaTile]]:
    """Tiles of groups of four warps on tensor cores, the best first, for operands of two bytes."""
    return problem.ranked(_wgmma_tiles(problem.nbytes), _WGMMA_PER_CYCLE)
