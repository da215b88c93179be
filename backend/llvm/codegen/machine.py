"""Properties of the target that the code generator depends on."""

from __future__ import annotations

from dataclasses import dataclass

from relayc.backend.cpu import vector_unit

__all__ = ["Machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of the target that the code generator depends on.

    `fma`: has fused multiply-add. `fast`: LLVM's fast-math flags for every float operation, each followed by a space,
    such as "nnan nsz ". `caches`: bytes of the largest cache; results that exceed it use non-temporal stores; 0 if
    unknown. `features`: LLVM's names of the processor's features. `loads_early`: LLVM's scheduling model of the
    processor moves loads ahead of an unrolled step's multiply-adds.
    """

    fma: bool = False
    fast: str = ""
    caches: int = 0
    features: frozenset[str] = frozenset()
    loads_early: bool = False

    @property
    def vector_bits(self) -> int:
        """Width of a vector register in bits."""
        return 512 if "avx512f" in self.features else 256 if "avx2" in self.features else 128

    @property
    def vector_registers(self) -> int:
        """Number of vector registers."""
        return vector_unit(self.features)[1]

    @property
    def vector_constraint(self) -> str:
        """The inline-assembly constraint of a vector register; "" if unknown."""
        return "v" if "sse2" in self.features else "w" if "neon" in self.features else ""

    @property
    def pins_accumulators(self) -> bool:
        """Should accumulators pass through the barrier between unrolled steps in registers?

        With 512-bit vectors, 14 x 2 of them sometimes spill otherwise. Where LLVM schedules the loads of a step
        earlier they spill only if they pass through the barrier.
        """
        return self.vector_bits == 512 and not self.loads_early
