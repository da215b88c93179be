"""The cost model of the CUDA schedules: what a GPU offers, how much of it a launch keeps busy.

All figures come from the target. A launch is a number of thread blocks; a multiprocessor holds as many of them as its
threads, registers, shared memory and block slots allow. The model ranks schedules, it does not predict times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["VECTOR_BYTES", "Gpu", "power_of_two"]

VECTOR_BYTES = 16
"""The widest access of one thread to memory: 128 bits."""

_REGISTER_UNIT = 256
"""Registers are given to warps in units of this many."""
_SHARED_UNIT = 1024
"""Bytes of shared memory that the system takes of each block, and the unit it is given in."""
_BYTES_IN_FLIGHT = 32 << 10
"""Bytes that one multiprocessor must have asked for to keep the memory busy: bandwidth times latency, rounded up."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The limits of a target, read once. Sizes in bytes, registers of 32 bits."""

    processors: int
    warp: int
    block_threads: int
    block_shared: int
    processor_threads: int
    processor_blocks: int
    processor_registers: int
    processor_shared: int

    @staticmethod
    def of(target: Target) -> Gpu:
        """The limits that a target of kind "cuda" names."""
        get = target.get
        return Gpu(
            processors=get("multi-processor-count", 108),
            warp=get("thread-warp-size", 32),
            block_threads=get("max-threads-per-block", 1024),
            block_shared=get("max-shared-memory-per-block", 48 << 10),
            processor_threads=get("max-threads-per-sm", 2048),
            processor_blocks=get("max-blocks-per-sm", 32),
            processor_registers=get("registers-per-sm", 1 << 16),
            processor_shared=get("shared-memory-per-sm", 100 << 10),
        )

    # -- occupancy

    def resident_blocks(self, threads: int, registers: int = 32, shared: int = 0) -> int:
        """Blocks that one multiprocessor holds at a time; 0 when not even one fits.

        `registers` of each thread, `shared` bytes of each block.
        """
        warps = math.ceil(threads / self.warp)
        per_warp = math.ceil(registers * self.warp / _REGISTER_UNIT) * _REGISTER_UNIT
        limits = [
            self.processor_threads // (warps * self.warp),
            self.processor_blocks,
            self.processor_registers // (warps * per_warp),
        ]
        if shared:
            limits.append(self.processor_shared // (math.ceil(shared / _SHARED_UNIT) * _SHARED_UNIT + _SHARED_UNIT))
        return min(limits) if threads <= self.block_threads and shared <= self.block_shared else 0

    # -- choices for memory-bound launches

    def whole_warps(self, threads: int) -> int:
        """`threads` rounded up to warps, at least one and at most a block."""
        return min(max(math.ceil(threads / self.warp), 1) * self.warp, self.block_threads)

    def block_size(self, items: int, largest: int = 256) -> int:
        """Threads of a block for `items` independent items, one thread each.

        Blocks are small enough that every multiprocessor gets one, and large enough that all its threads can be
        resident at once.
        """
        share = self.whole_warps(math.ceil(items / self.processors))
        fewest = self.whole_warps(self.processor_threads // self.processor_blocks)
        return min(max(min(share, largest), fewest), self.whole_warps(items))

    def items_per_thread(self, items: int, threads: int, item_bytes: int) -> int:
        """How many items of `item_bytes` a thread should have in flight, so that the memory is busy.

        No more than leave a block for every multiprocessor.
        """
        resident = max(self.resident_blocks(threads), 1) * threads
        wanted = power_of_two(math.ceil(_BYTES_IN_FLIGHT / (resident * item_bytes)))
        affordable = power_of_two(max(items // (self.processors * resident), 1))
        return max(min(wanted, affordable, 8), 1)


def power_of_two(value: int) -> int:
    """The largest power of two that is at most `value` (1 for 0)."""
    return 1 << max(value, 1).bit_length() - 1
