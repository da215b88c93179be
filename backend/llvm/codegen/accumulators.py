"""Sums of products, several steps of which are written out in a row, stay in registers from one to the next."""

from __future__ import annotations

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.calls import CallEmitter
from relayc.backend.llvm.codegen.convert import Machine
from relayc.backend.llvm.codegen.unroll_factor import is_sum, repeated_factor
from relayc.backend.llvm.types import memory_type
from relayc.te.dtype import DType
from relayc.te.ir.structural import structural_equal
from relayc.te.tir import BufferStore, Var

__all__ = ["AccumulatorEmitter"]

_BARRIER = 'asm sideeffect "", "{}~{{memory}}"'
"""No instruction, but none that reads memory is moved past it."""
_MOST = 30
"""Sums that stay in registers, of which a step needs two at least for what it multiplies."""
_PAIR = 2
_LEAST_BITS = 32
"""Of an element: LLVM passes no vectors of smaller ones to assembly on every processor."""
_LENGTHS = (128, 256, 512)
"""Bits of vectors that it does."""


class AccumulatorEmitter(CallEmitter):
    """Keeps the steps of sums apart."""

    def __init__(self, text: FunctionText, machine: Machine) -> None:
        super().__init__(text, machine)
        self.on_stack: set[Var] = set()
        """Pointers of scratch memory that LLVM makes registers of, where it can."""
        self.sums: list[tuple[DType, str, int]] = []
        """Types, addresses and alignments of what was added to in the step before."""
        self.like: list[BufferStore] = []
        """The sums of one number with several vectors that were added to last."""

    def visit_BufferStore(self, store: BufferStore) -> None:
        adds = is_sum(store)
        if adds:
            self._end_pair(store)
        super().visit_BufferStore(store)
        kept = adds and self.shares_addresses and store.buffer.data in self.on_stack
        ramp = self.as_ramp(store.indices[-1]) if kept and store.value.dtype.lanes > 1 else None
        if ramp is not None:
            base, _ = ramp
            self.sums.append((store.value.dtype, self.address(store.buffer, base), self.align_of(store.buffer, base)))

    def _end_pair(self, store: BufferStore) -> None:
        """Finish two sums of the same number before that of `store` is read.

        Of tiles of such pairs LLVM 22 reads the numbers of all rows first on x86, for which there are no registers: two
        to four times the time. Not where a row has one or three, nor where the two are one vector of twice the width.
        """
        if self.like and not structural_equal(repeated_factor(self.like[0]), repeated_factor(store)):
            if len(self.like) == _PAIR and "sse2" in self.machine.features:
                self.text.effect(f"call void {_BARRIER.format('')}()")
            self.like = []
        self.like.append(store)

    def end_step(self) -> None:
        """Finish the step's sums before anything of the next one is read.

        LLVM would read what it has no register for until later, and keep a sum in memory instead. So the sums pass
        through the barrier in registers, if there are enough and LLVM's model of the processor gains; of pairs all do.
        """
        text, pairs, self.like = self.text, len(self.like) == _PAIR, []
        if not ((pairs or self.machine.keeps_sums) and self._are_in_registers()):
            text.effect(f"call void {_BARRIER.format('')}()")
            return
        values = [self._parts(*each) for each in self.sums]
        parts = [part for each in values for part in each]
        (kind,) = {memory_type(of.with_lanes(self._lanes(of))) for of, _, _ in self.sums}
        kinds, operands = f"{{ {', '.join([kind] * len(parts))} }}", ", ".join(f"{kind} {part}" for part in parts)
        through = f"={self.machine.vector_constraint}," * len(parts) + "".join(f"{i}," for i in range(len(parts)))
        passed = text.value(f"call {kinds} {_BARRIER.format(through)}({operands})")
        left = [text.value(f"extractvalue {kinds} {passed}, {i}") for i in range(len(parts))]
        for (of, address, align), before in zip(self.sums, values, strict=True):
            mine, left = left[: len(before)], left[len(before) :]
            whole = self.joined([(part, self._lanes(of)) for part in mine], memory_type(of.element))
            text.effect(f"store {memory_type(of)} {whole}, ptr {address}, align {align}")

    def _are_in_registers(self) -> bool:
        """Are the sums whole registers of one kind, of which there are as many, and that assembly can name?"""
        kinds = {of.with_lanes(self._lanes(of)) for of, _, _ in self.sums}
        whole = all(of.lanes % self._lanes(of) == 0 for of, _, _ in self.sums)
        if not whole or len(kinds) != 1 or not self.machine.vector_constraint:
            return False
        (kind,) = kinds
        count = sum(of.lanes for of, _, _ in self.sums) // kind.lanes
        fits = kind.bits >= _LEAST_BITS and kind.bits * kind.lanes in _LENGTHS
        return fits and 1 < count <= _MOST

    def _lanes(self, of: DType) -> int:
        """Of a vector of type `of`, so many are in one register."""
        return min(of.lanes, self.machine.vector_bits // of.bits)

    def _parts(self, of: DType, address: str, align: int) -> list[str]:
        """The vector at an address, register by register."""
        lanes, element = self._lanes(of), memory_type(of.element)
        whole = self.text.value(f"load {memory_type(of)}, ptr {address}, align {align}")
        return [self.part(whole, element, of.lanes, begin, lanes) for begin in range(0, of.lanes, lanes)]
