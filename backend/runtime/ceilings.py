"""The two ceilings of a machine, and how near to them work runs (Williams et al., "Roofline", 2009)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Ceilings"]


@dataclass(frozen=True)
class Ceilings:
    """GFLOP/s of float32 multiply-adds from registers, and GB/s (read plus written) of a copy from and to memory."""

    gflops: float
    gbs: float

    @property
    def ridge(self) -> float:
        """Operations per byte from which on the first ceiling is the lower one."""
        return self.gflops / self.gbs

    def is_compute_bound(self, flops: float, nbytes: float) -> bool:
        """Does work of so many operations and bytes meet the multiply-add ceiling first?"""
        return flops > self.ridge * nbytes

    def least_seconds(self, flops: float, nbytes: float) -> float:
        """The time that work of so many operations and bytes takes at the ceiling it meets first.

        Work whose data is in a cache already can take less.
        """
        return max(flops / self.gflops, nbytes / self.gbs) * 1e-9

    def share(self, flops: float, nbytes: float, seconds: float) -> float:
        """How near to its ceiling work ran that took `seconds`: 1 is there."""
        return self.least_seconds(flops, nbytes) / seconds if seconds else 0.0

    def __str__(self) -> str:
        return f"multiply-adds {self.gflops:.1f} GFLOP/s, copy {self.gbs:.1f} GB/s"
