"""The roofline model: peak compute and memory bandwidth of a machine (Williams et al., "Roofline", 2009)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Ceilings"]


@dataclass(frozen=True)
class Ceilings:
    """Peak GFLOP/s of float32 FMAs on registers, and GB/s (read plus written) of a memory copy."""

    gflops: float
    gbs: float

    @property
    def ridge(self) -> float:
        """Arithmetic intensity of the ridge point, in operations per byte."""
        return self.gflops / self.gbs

    def is_compute_bound(self, flops: float, nbytes: float) -> bool:
        """Is work of this arithmetic intensity bound by compute rather than by memory bandwidth?"""
        return flops > self.ridge * nbytes

    def least_seconds(self, flops: float, nbytes: float) -> float:
        """Lower bound of the run time in seconds, at the ceiling that bounds this work.

        Work on cached data can take less.
        """
        return max(flops / self.gflops, nbytes / self.gbs) * 1e-9

    def share(self, flops: float, nbytes: float, seconds: float) -> float:
        """The fraction of the roofline reached by work that took `seconds`; 1 is the ceiling."""
        return self.least_seconds(flops, nbytes) / seconds if seconds else 0.0

    def __str__(self) -> str:
        return f"multiply-adds {self.gflops:.1f} GFLOP/s, copy {self.gbs:.1f} GB/s"
