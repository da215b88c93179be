"""The cost model of the CUDA schedules: resources of a GPU, and the occupancy of a launch.

All figures come from the target. A launch is a number of thread blocks; a multiprocessor holds as many of them as its
threads, registers, shared memory and block slots allow. The model ranks schedules, it does not predict times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from relayc.backend.cuda.target import CudaLimits
from relayc.backend.target import Target

__all__ = ["BYTES_IN_FLIGHT", "VECTOR_BYTES", "Gpu", "power_of_two"]

VECTOR_BYTES = 16
"""Bytes of the widest memory access of a thread: 128 bits."""

BYTES_IN_FLIGHT = 32 << 10
"""Bytes in flight per multiprocessor that saturate the memory: bandwidth times latency, rounded up."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A target's properties for schedules: the number of multiprocessors, and the limits of each."""

    processors: int
    limits: CudaLimits

    @staticmethod
    def of(target: Target) -> Gpu:
        """The GPU that a target of kind "cuda" describes."""
        return Gpu(target.get("multi-processor-count"), CudaLimits.of(target))

    # -- occupancy

    def resident_blocks(self, threads: int, registers: int = 32, shared: int = 0) -> int:
        """Blocks that one multiprocessor holds at a time; 0 when not even one can be launched.

        `registers` of each thread, `shared` bytes of each block.
        """
        if threads > self.limits.threads_per_block or shared > self.limits.shared_per_block:
            return 0
        return self.limits.blocks_per_multiprocessor(threads, registers, shared)

    # -- choices for memory-bound launches

    def whole_warps(self, threads: int) -> int:
        """`threads` rounded up to warps, at least one and at most a block."""
        return min(max(math.ceil(threads / self.limits.warp), 1) * self.limits.warp, self.limits.threads_per_block)

    def block_size(self, items: int, largest: int = 256) -> int:
        """Threads of a block for `items` independent items, one thread each.

        Blocks are small enough that every multiprocessor gets one, and large enough that all its threads can be
        resident at once.
        """
        per_processor = self.whole_warps(math.ceil(items / self.processors))
        fewest = self.whole_warps(self.limits.threads_per_sm // self.limits.blocks_per_sm)
        return min(max(min(per_processor, largest), fewest), self.whole_warps(items))

    def items_per_thread(self, items: int, threads: int, item_bytes: int) -> int:
        """Items of `item_bytes` per thread to have in flight, so that they saturate the memory.

        At most as many as leave a block for every multiprocessor.
        """
        resident = max(self.resident_blocks(threads), 1) * threads
        wanted = power_of_two(math.ceil(BYTES_IN_FLIGHT / (resident * item_bytes)))
        affordable = power_of_two(max(items // (self.processors * resident), 1))
        return max(min(wanted, affordable, 8), 1)


def power_of_two(value: int) -> int:
    """The largest power of two that is at most `value` (1 for 0)."""
    return 1 << max(value, 1).bit_length() - 1
