"""Properties of the target that the code generator depends on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of the target that the code generator depends on.

    `fma`: has fused multiply-add. `fast`: LLVM's fast-math flags for every float operation, each followed by a space,
    such as "nnan nsz ". `caches`: bytes of the largest cache; results that exceed it use non-temporal stores; 0 if
    unknown. `features` and `mcpu`: LLVM's names of the processor's features, and of the processor.
    """

    fma: bool = False
    fast: str = ""
    caches: int = 0
    features: frozenset[str] = frozenset()
    mcpu: str = ""

    @property
    def vector_bits(self) -> int:
        """Width of a vector register in bits."""
        return 512 if "avx512f" in self.features else 256 if "avx2" in self.features else 128

    @property
    def vector_constraint(self) -> str:
        """The inline-assembly constraint of a vector register; "" if unknown."""
        return "v" if "sse2" in self.features else "w" if "neon" in self.features else ""

    @property
    def pins_accumulators(self) -> bool:
        """Should accumulators pass through the barrier between unrolled steps in registers?

        With 512-bit vectors, 14 x 2 of them sometimes spill otherwise. Not with LLVM's models of Zen 4 and 5, which
        schedule the loads of a step earlier: there accumulators spill only if they pass through the barrier.
        """
        return self.vector_bits == 512 and not self.mcpu.startswith("znver")
