"""The roofline model: peak compute and memory bandwidth of a machine (Williams et al., "Roofline", 2009)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Ceilings", "Work", "instructions_for"]

_NAMED_BY = {"uint8": "int8"}


class Work(Protocol):
    """What a roofline asks of a kernel: operations, the element type that they multiply ("": none), bytes, seconds."""

    @property
    def flops(self) -> float: ...
    @property
    def multiplied(self) -> str: ...
    @property
    def bytes(self) -> float: ...
    @property
    def seconds(self) -> float: ...


def instructions_for(multiplied: str) -> str:
    """The element type that names the instructions for products of this type: those for bytes are "int8"."""
    return _NAMED_BY.get(multiplied, multiplied)


@dataclass(frozen=True)
class Ceilings:
    """Peak GFLOP/s of float32 FMAs on registers, and GB/s (read plus written) of a memory copy.

    `by_type` has the peaks of other element types that the processor has instructions for ("int8", "bfloat16").
    """

    gflops: float
    gbs: float
    by_type: Mapping[str, float] = field(default_factory=dict[str, float])

    def peak(self, multiplied: str) -> float:
        """Peak GFLOP/s for products of an element type; that of float32 without instructions for it."""
        return self.by_type.get(instructions_for(multiplied), self.gflops)

    @property
    def ridge(self) -> float:
        """Arithmetic intensity of the ridge point of float32, in operations per byte."""
        return self.gflops / self.gbs

    def is_compute_bound(self, work: Work) -> bool:
        """Is the work bound by compute rather than by memory bandwidth?"""
        return work.flops / self.peak(work.multiplied) > work.bytes / self.gbs

    def least_seconds(self, work: Work) -> float:
        """Lower bound of the run time in seconds, at the ceiling that bounds this work.

        Work on cached data can take less.
        """
        return max(work.flops / self.peak(work.multiplied), work.bytes / self.gbs) * 1e-9

    def share(self, work: Work) -> float:
        """The fraction of the roofline that the work reached; 1 is the ceiling."""
        return self.least_seconds(work) / work.seconds if work.seconds else 0.0

    def __str__(self) -> str:
        others = [f"{name} {peak:.1f}" for name, peak in self.by_type.items()]
        floats = f"float32 {self.gflops:.1f}" if others else f"{self.gflops:.1f}"
        return f"multiply-adds {', '.join([floats, *others])} GFLOP/s, copy {self.gbs:.1f} GB/s"
