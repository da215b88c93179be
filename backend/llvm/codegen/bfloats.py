"""Rounding to bfloat16 by the processor's instruction, where it exists."""

from __future__ import annotations

from functools import partial, reduce

from relayc.backend.llvm.codegen.legalize import VectorLegalizer
from relayc.te.dtype import DType

__all__ = ["BfloatEmitter"]

_FEATURES = {"avx512bf16", "avx512dq"}
_LANES = 16
"""Lanes of a vector register of float32."""
_AT_ONCE = (16, 32, 64, 128)
"""Lanes that one branch covers: all are computed before it and stay in registers. LLVM would pass vectors of other
lengths than powers of two out of the branch lane by lane."""
_DENORMAL = 0x20
"""The class mask of denormals in `vfpclassps`."""


class BfloatEmitter(VectorLegalizer):
    """Rounds two registers by one instruction, which treats denormals as zero: vectors that have some take a slow
    path."""

    def _round_bfloat(self, value: str, source: DType, target: DType) -> str:
        if not self.machine.features.issuperset(_FEATURES) or source.lanes not in _AT_ONCE:
            return super()._round_bfloat(value, source, target)
        registers = [self.part(value, "float", source.lanes, i, _LANES) for i in range(0, source.lanes, _LANES)]
        by_integers = partial(super()._round_bfloat, value, source, target)
        kind, rounded = f"<{target.lanes} x i16>", self._rounded_pairs(registers)

        def with_zeros() -> str:
            return self.one_of(self._none_denormal(registers), kind, lambda: rounded, by_integers, likely=True)

        return self.one_of(self._all_nonzero(rounded, target.lanes), kind, lambda: rounded, with_zeros, likely=True)

    def _all_nonzero(self, rounded: str, lanes: int) -> str:
        """Are the exponents of all rounded lanes nonzero? One test per two registers, and usually sufficient."""
        width, words = min(lanes, 2 * _LANES), list[str]()
        of = f"<{width} x i16>"
        for begin in range(0, lanes, width):
            part = self.part(rounded, "i16", lanes, begin, width)
            exponents = self.text.pure(f"and {of} {part}, splat (i16 {0x7F80})")
            zeros = self.text.pure(f"icmp eq {of} {exponents}, zeroinitializer")
            words.append(self.text.pure(f"bitcast <{width} x i1> {zeros} to i{width}"))
        any_of = reduce(lambda a, b: self.text.pure(f"or i{width} {a}, {b}"), words)
        return self.text.pure(f"icmp eq i{width} {any_of}, 0")

    def _none_denormal(self, registers: list[str]) -> str:
        of, flags, name = f"<{_LANES} x float>", f"<{_LANES} x i1>", "llvm.x86.avx512.fpclass.ps.512"
        self.text.module.declare(name, flags, f"{of}, i32")
        found = [self.text.pure(f"call {flags} @{name}({of} {x}, i32 {_DENORMAL})") for x in registers]
        any_of = found[0]
        for other in found[1:]:
            any_of = self.text.pure(f"or {flags} {any_of}, {other}")
        word = self.text.pure(f"bitcast {flags} {any_of} to i{_LANES}")
        return self.text.pure(f"icmp eq i{_LANES} {word}, 0")

    def _rounded_pairs(self, registers: list[str]) -> str:
        of, both, name = f"<{_LANES} x float>", 2 * _LANES, "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        self.text.module.declare(name, f"<{both} x bfloat>", f"{of}, {of}")
        if len(registers) == 1:
            rounded = self.text.pure(f"fptrunc {of} {registers[0]} to <{_LANES} x bfloat>")
            return self.text.pure(f"bitcast <{_LANES} x bfloat> {rounded} to <{_LANES} x i16>")
        parts: list[tuple[str, int]] = []
        for low, high in zip(registers[::2], registers[1::2], strict=True):
            pair = self.text.pure(f"call <{both} x bfloat> @{name}({of} {high}, {of} {low})")
            parts.append((self.text.pure(f"bitcast <{both} x bfloat> {pair} to <{both} x i16>"), both))
        return self.concatenate(parts, "i16")
