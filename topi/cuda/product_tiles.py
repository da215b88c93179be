"""Tile selection for matrix products, by a performance model of one multiprocessor.

A block of threads computes a tile of the result. In one step of the depth its warps multiply, read their operands from
shared memory, and copy the next slices to it; units that work concurrently hide each other's time if enough warps are
resident. The model adds up cycles for the multiprocessor with the most blocks, and ranks tiles by that.
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
    "HIDING_WARPS",
    "L2_BYTES_PER_CYCLE",
    "LANES",
    "LAUNCH_CYCLES",
    "SHARED_BYTES_PER_CYCLE",
    "STATIC_SHARED_BYTES",
    "STEP_CYCLES",
    "Choice",
    "MmaTile",
    "Problem",
    "SimtTile",
    "WgmmaTile",
    "architecture",
    "mma_choices",
    "mma_per_cycle",
    "simt_choices",
    "wgmma_choices",
]  # fmt: skip

BANKS = 32
"""Number of banks of shared memory, of four bytes each."""
LANES = (4, 8)
"""Threads of a warp along the rows and columns of a tile."""

SHARED_BYTES_PER_CYCLE = 128
"""Shared memory bandwidth of a multiprocessor, in bytes per cycle."""
L2_BYTES_PER_CYCLE = 32
"""L2 bandwidth of a multiprocessor when all of them load, in bytes per cycle."""
_LINES_BYTES_PER_CYCLE = 40
"""L2 bandwidth in bytes per cycle where slices are whole 128-byte lines; measured on an H200: 34 at least with all
multiprocessors loading, 47 with two thirds of them."""
STEP_CYCLES = 40
"""Cycles of a barrier and the wait for copies, once per step of a block."""
HIDING_WARPS = 8
"""Resident warps that hide the latencies of a multiprocessor's units."""
_RING_CYCLES = 60
"""Cycles of the division by the number of slices in flight and the address computation, before a warp group
multiplies."""
_UNROLLED_STEPS = 16
"""Maximum steps of a loop that the compiler unrolls, with constant addresses."""
LAUNCH_CYCLES = 1500
"""Cycles of a block's prologue (two round trips to memory) and its end."""

STATIC_SHARED_BYTES = 48 << 10
"""Bytes of shared memory available without opting in."""
_SLICE = 128
"""Minimum depth of a split-K slice."""
_STEP_INSTRUCTIONS = 1024
"""Maximum multiply-adds of a thread in a step: the loop is unrolled and must fit the instruction cache."""


class _Tile:
    """Defaults of the performance model, which a kind of tiles may override."""

    __slots__ = ()
    hiding_warps: ClassVar[int] = HIDING_WARPS
    """Resident warps that hide the latency of multiplications."""
    writing_power: ClassVar[float] = 0.5
    """Exponent of the epilogue's speed in the fraction of `HIDING_WARPS` that is resident."""

    def ring_cycles(self, steps: int) -> int:
        """Cycles per step to locate the next slice in the ring buffer, in addition to `step_cycles`."""
        return 0


@dataclass(frozen=True, slots=True)
class SimtTile(_Tile):
    """A tile computed by `warps` (down, across) of 4 x 8 threads, `depth` products at a time, with `stages` slices in
    flight.

    `parts` is the number of parts (down, across) of the tile in a thread's registers, `vector` the rows and columns of
    each.
    """

    warps: tuple[int, int]
    parts: tuple[int, int]
    vector: tuple[int, int]
    depth: int
    stages: int

    @property
    def rows(self) -> int:
        """Rows of a block's tile."""
        return self.warps[0] * LANES[0] * self.parts[0] * self.vector[0]

    @property
    def columns(self) -> int:
        """Columns of a block's tile."""
        return self.warps[1] * LANES[1] * self.parts[1] * self.vector[1]

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps[0] * self.warps[1]

    @property
    def own(self) -> tuple[int, int]:
        """Rows and columns per thread."""
        return self.parts[0] * self.vector[0], self.parts[1] * self.vector[1]

    @property
    def registers(self) -> int:
        """Estimated registers per thread: accumulators, two sets of operands, addresses."""
        rows, columns = self.own
        return rows * columns + 2 * (rows + columns) + 32

    def shared_bytes(self, nbytes: int) -> int:
        """Bytes of shared memory of a block for elements of `nbytes`."""
        return self.stages * self.depth * (self.rows + self.columns + 8) * nbytes

    def step_cycles(self, per_cycle: int, nbytes: int) -> float:
        """Cycles of a multiprocessor for one step of a block, with its units overlapped."""
        rows, columns = self.own
        warps = self.threads // 32
        multiply = self.rows * self.columns * self.depth / per_cycle
        read = warps * self.depth * nbytes * (LANES[0] * rows + LANES[1] * columns) / SHARED_BYTES_PER_CYCLE
        slices = (self.rows + self.columns) * self.depth * nbytes
        write = slices / SHARED_BYTES_PER_CYCLE
        issue = warps * self.depth * (rows * columns + (rows + columns) / 4) / 4 + slices / 4 / 32 / 4
        return max(multiply, issue, read + write, slices / L2_BYTES_PER_CYCLE) + 0.15 * (read + write)


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
    """A tile computed by `warps` (down, across), each of `tiles` (down, across) of 16 x 8, on tensor cores by
    `mma.sync`.

    It advances `depth` products at a time, with `stages` slices in flight.
    """

    warps: tuple[int, int]
    tiles: tuple[int, int]
    depth: int
    stages: int

    @property
    def rows(self) -> int:
        """Rows of a block's tile."""
        return self.warps[0] * self.tiles[0] * 16

    @property
    def columns(self) -> int:
        """Columns of a block's tile."""
        return self.warps[1] * self.tiles[1] * 8

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps[0] * self.warps[1]

    @property
    def registers(self) -> int:
        """Estimated registers per thread: accumulators, two sets of operands, addresses."""
        down, across = self.tiles
        return 4 * down * across + 2 * (4 * down + 2 * across) + 40

    def shared_bytes(self, nbytes: int) -> int:
        """Bytes of shared memory: slices with rows padded by 16 bytes, later reused for the accumulators."""
        pad = 16 // nbytes
        as_rows = (self.rows + self.columns) * (self.depth + pad)
        as_columns = self.depth * (self.rows + self.columns + 2 * pad)
        return max(self.stages * max(as_rows, as_columns) * nbytes, self.sums_bytes)

    @property
    def sums_bytes(self) -> int:
        """Bytes of shared memory of the accumulators, with rows padded against bank conflicts."""
        return self.rows * (math.ceil(self.columns / BANKS) * BANKS + 8) * 4

    def step_cycles(self, per_cycle: int, nbytes: int) -> float:
        """Cycles of a multiprocessor for one step of a block, with its units overlapped."""
        warps = self.threads // 32
        multiply = self.rows * self.columns * self.depth / per_cycle
        fragments = warps * (self.tiles[0] * 16 + self.tiles[1] * 8) * self.depth * nbytes
        slices = (self.rows + self.columns) * self.depth * nbytes
        shared = (fragments + slices) / SHARED_BYTES_PER_CYCLE
        return max(multiply, shared, slices / L2_BYTES_PER_CYCLE) + 0.15 * shared


def _mma_tiles(nbytes: int) -> Iterator[MmaTile]:
    warps = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))
    tiles = ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4), (2, 8), (4, 8))
    for w, t in product(warps, tiles):
        for depth_bytes, stages in ((32, 4), (64, 3), (64, 4), (128, 3), (128, 4)):
            yield MmaTile(w, t, depth_bytes // nbytes, stages)


@dataclass(frozen=True, slots=True)
class WgmmaTile(MmaTile):
    """A tile computed by groups of four warps along the rows, each on 64 rows by `wgmma`."""

    hiding_warps: ClassVar[int] = 4
    writing_power: ClassVar[float] = 1.0

    def ring_cycles(self, steps: int) -> int:
        """Cycles per step to locate the next slice: none if the loop is unrolled or `stages` is a power of two."""
        return 0 if steps <= _UNROLLED_STEPS or self.stages.bit_count() == 1 else _RING_CYCLES

    @property
    def registers(self) -> int:
        """Estimated registers per thread: accumulators, addresses."""
        return 4 * self.tiles[1] + 40

    def shared_bytes(self, nbytes: int) -> int:
        """Bytes of shared memory: slices, later reused for the accumulators."""
        return max(self.stages * (self.rows + self.columns) * self.depth * nbytes, self.sums_bytes)

    def step_cycles(self, per_cycle: int, nbytes: int) -> float:
        """Cycles of a multiprocessor for one step of a block, with its units overlapped."""
        groups = self.threads // 128
        multiply = self.rows * self.columns * self.depth / per_cycle
        slices = (self.rows + self.columns) * self.depth * nbytes
        read = groups * (64 + self.tiles[1] * 8) * self.depth * nbytes
        shared = (read + slices) / SHARED_BYTES_PER_CYCLE
        return max(multiply, shared, slices / _LINES_BYTES_PER_CYCLE) + 0.15 * shared


def _wgmma_tiles(nbytes: int) -> Iterator[WgmmaTile]:
    for warps, tiles, stages in product(((4, 1), (8, 1), (4, 2)), (8, 16, 24, 32), (3, 4)):
        yield WgmmaTile(warps, (1, tiles), 128 // nbytes, stages)


def architecture(target: Target) -> int:
    """The compute capability times ten."""
    return int(str(target.get("arch", "sm_80")).removeprefix("sm_").rstrip("af"))


def fma_per_cycle(target: Target) -> int:
    """float32 multiply-adds of a multiprocessor per cycle (CUDA C++ Programming Guide, arithmetic throughput)."""
    return 64 if architecture(target) in (75, 80) else 128


def mma_per_cycle(target: Target, nbytes: int) -> int:
    """Multiply-adds of a multiprocessor's tensor cores per cycle by `mma.sync`, for operands of `nbytes`.

    1024 for two bytes on data-centre GPUs, somewhat more on those whose full rate only `wgmma` reaches; half on others.
    """
    two_bytes = {80: 1024, 90: 1280, 100: 1280, 103: 1280}.get(architecture(target), 512)
    return two_bytes * 2 // nbytes


_WGMMA_PER_CYCLE = 2048
"""Multiply-adds of a multiprocessor's tensor cores per cycle by `wgmma`, for operands of two bytes."""

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
    """Number of split-K slices, summed by a second kernel."""

    def split_k(self, parts: int) -> Problem:
        """The problem with its depth split into slices."""
        return replace(self, batch=self.batch * parts, depth=math.ceil(self.depth / parts), parts=parts)

    def fits(self, tile: SimtTile | MmaTile) -> bool:
        """Do the tiles divide the sizes that must be whole?"""
        sizes = ((self.rows, tile.rows), (self.columns, tile.columns))
        return not any(must and size % part for must, (size, part) in zip(self.whole, sizes, strict=True))

    def cycles(self, tile: SimtTile | MmaTile, per_cycle: int) -> float:
        """Cycles of the multiprocessor with the most blocks, at `per_cycle` multiply-adds per cycle."""
        shared = tile.shared_bytes(self.nbytes)
        resident = self.gpu.resident_blocks(tile.threads, tile.registers, shared)
        if not resident:
            return math.inf
        blocks = self.batch * math.ceil(self.rows / tile.rows) * math.ceil(self.columns / tile.columns)
        each = max(math.ceil(blocks / self.gpu.processors), 1)
        together = min(resident, each)
        warps = together * tile.threads / 32
        rate = min(1.0, warps / tile.hiding_warps) ** 0.5
        steps = math.ceil(self.depth / tile.depth)
        writing_rate = min(1.0, warps / HIDING_WARPS) ** tile.writing_power
        write = tile.rows * tile.columns * 4 / L2_BYTES_PER_CYCLE / writing_rate
        alone = LAUNCH_CYCLES + steps * (STEP_CYCLES + tile.ring_cycles(steps))
        own = each * (steps * tile.step_cycles(per_cycle, self.nbytes) / rate + write) + each / together * alone
        return own + (0 if self.parts == 1 else self._sum_cycles())

    def _sum_cycles(self) -> float:
        """Cycles of the kernel that sums the slices: their traffic, and another launch."""
        elements = self.batch * self.rows * self.columns
        return 2 * LAUNCH_CYCLES + elements * 4 / L2_BYTES_PER_CYCLE / self.gpu.processors

    def ranked(self, tiles: Iterable[Tile], per_cycle: int) -> list[Choice[Tile]]:
        """The feasible choices of a tile and a split-K factor, by increasing cycles.

        Slices are at least `_SLICE` products deep, and groups of channels are not split.
        """
        most = 1 if any(self.whole) else max(self.depth // _SLICE, 1)
        problems = [self, *[self.split_k(p) for p in (2, 3, 4, 6, 8, 12, 16, 24, 32) if p <= most]]
        fitting = [t for t in tiles if self.fits(t)]
        choices = [Choice(t, problem.parts, problem.cycles(t, per_cycle)) for problem in problems for t in fitting]
        possible = [choice for choice in choices if choice.cycles < math.inf]
        return sorted(possible, key=lambda choice: (choice.cycles, choice.parts, choice.tile.threads))


@dataclass(frozen=True, slots=True)
class Choice(Generic[Tile]):
    """A tile, the split-K factor, and the cycles predicted by the model."""

    tile: Tile
    parts: int
    cycles: float


def simt_choices(target: Target, problem: Problem) -> list[Choice[SimtTile]]:
    """Tiles on CUDA cores, best first."""
    fitting = [t for t in _simt_tiles() if t.shared_bytes(problem.nbytes) <= STATIC_SHARED_BYTES]
    return problem.ranked(fitting, fma_per_cycle(target))


def mma_choices(target: Target, problem: Problem) -> list[Choice[MmaTile]]:
    """Tiles on tensor cores by `mma.sync`, best first."""
    return problem.ranked(_mma_tiles(problem.nbytes), mma_per_cycle(target, problem.nbytes))


def wgmma_choices(problem: Problem) -> list[Choice[WgmmaTile]]:
    """Tiles on tensor cores by `wgmma`, best first, for operands of two bytes."""
    return problem.ranked(_wgmma_tiles(problem.nbytes), _WGMMA_PER_CYCLE)
