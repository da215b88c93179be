"""Keeps the accumulators of unrolled dot-product loops in registers across the unrolled steps."""

from __future__ import annotations

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.calls import CallEmitter
from relayc.backend.llvm.codegen.convert import Machine
from relayc.backend.llvm.codegen.unroll_factor import broadcast_factor, is_accumulation
from relayc.backend.llvm.types import memory_type
from relayc.te.dtype import DType
from relayc.te.ir.structural import structural_equal
from relayc.te.tir import BufferStore, Var

__all__ = ["AccumulatorEmitter"]

_BARRIER = 'asm sideeffect "", "{}~{{memory}}"'
"""An empty inline assembly that memory reads are not moved across."""
_MAX_ACCUMULATORS = 30
"""Maximum number of register accumulators; a step needs at least two more registers, for its operands."""
_PAIR = 2
_MIN_BITS = 32
"""Minimum bits of an element: LLVM accepts vectors of smaller ones as assembly operands on some processors only."""
_LENGTHS = (128, 256, 512)
"""Bits of the vectors that LLVM accepts as assembly operands."""


class AccumulatorEmitter(CallEmitter):
    """Separates the unrolled steps of sums of products."""

    def __init__(self, text: FunctionText, machine: Machine) -> None:
        super().__init__(text, machine)
        self.on_stack: set[Var] = set()
        """Pointers of scratch memory that LLVM may promote to registers."""
        self.accumulators: list[tuple[DType, str, int]] = []
        """Types, addresses and alignments of the accumulators updated in the current step."""
        self.same_factor: list[BufferStore] = []
        """The latest accumulations that multiply the same broadcast factor by several vectors."""

    def visit_BufferStore(self, store: BufferStore) -> None:
        adds = is_accumulation(store)
        if adds:
            self._end_pair(store)
        super().visit_BufferStore(store)
        kept = adds and self.shares_base and store.buffer.data in self.on_stack
        ramp = self.as_ramp(store.indices[-1]) if kept and store.value.dtype.lanes > 1 else None
        if ramp is not None:
            base, _ = ramp
            self.accumulators.append(
                (store.value.dtype, self.address(store.buffer, base), self.align_of(store.buffer, base))
            )

    def _end_pair(self, store: BufferStore) -> None:
        """Emit a barrier after two accumulations of one factor, before the factor of `store` is read.

        For tiles of such pairs, LLVM 22 on x86 hoists the factor loads of all rows, for which there are no registers:
        two to four times slower. Rows of one or three accumulators, or two that are one vector of twice the width, are
        unaffected.
        """
        if self.same_factor and not structural_equal(broadcast_factor(self.same_factor[0]), broadcast_factor(store)):
            if len(self.same_factor) == _PAIR and "sse2" in self.machine.features:
                self.text.effect(f"call void {_BARRIER.format('')}()")
            self.same_factor = []
        self.same_factor.append(store)

    def end_step(self) -> None:
        """Complete the accumulations of a step before anything of the next one is read.

        LLVM would hoist loads for which there is no register, and spill an accumulator instead. So the accumulators
        pass through the barrier in registers, if enough registers exist and LLVM's model of the processor gains from
        it; pairs always do.
        """
        text, pairs, self.same_factor = self.text, len(self.same_factor) == _PAIR, []
        if not ((pairs or self.machine.pins_accumulators) and self._are_in_registers()):
            text.effect(f"call void {_BARRIER.format('')}()")
            return
        values = [self._parts(*each) for each in self.accumulators]
        parts = [part for each in values for part in each]
        (kind,) = {memory_type(of.with_lanes(self._lanes(of))) for of, _, _ in self.accumulators}
        kinds, operands = f"{{ {', '.join([kind] * len(parts))} }}", ", ".join(f"{kind} {part}" for part in parts)
        through = f"={self.machine.vector_constraint}," * len(parts) + "".join(f"{i}," for i in range(len(parts)))
        passed = text.value(f"call {kinds} {_BARRIER.format(through)}({operands})")
        left = [text.value(f"extractvalue {kinds} {passed}, {i}") for i in range(len(parts))]
        for (of, address, align), before in zip(self.accumulators, values, strict=True):
            mine, left = left[: len(before)], left[len(before) :]
            whole = self.concatenate([(part, self._lanes(of)) for part in mine], memory_type(of.element))
            text.effect(f"store {memory_type(of)} {whole}, ptr {address}, align {align}")

    def _are_in_registers(self) -> bool:
        """Are the accumulators whole vector registers of one type, within the available number, with an assembly
        constraint?"""
        kinds = {of.with_lanes(self._lanes(of)) for of, _, _ in self.accumulators}
        whole = all(of.lanes % self._lanes(of) == 0 for of, _, _ in self.accumulators)
        if not whole or len(kinds) != 1 or not self.machine.vector_constraint:
            return False
        (kind,) = kinds
        count = sum(of.lanes for of, _, _ in self.accumulators) // kind.lanes
        fits = kind.bits >= _MIN_BITS and kind.bits * kind.lanes in _LENGTHS
        return fits and 1 < count <= _MAX_ACCUMULATORS

    def _lanes(self, of: DType) -> int:
        """Lanes per register of a vector of type `of`."""
        return min(of.lanes, self.machine.vector_bits // of.bits)

    def _parts(self, of: DType, address: str, align: int) -> list[str]:
        """The vector at an address, split into registers."""
        lanes, element = self._lanes(of), memory_type(of.element)
        whole = self.text.value(f"load {memory_type(of)}, ptr {address}, align {align}")
        return [self.part(whole, element, of.lanes, begin, lanes) for begin in range(0, of.lanes, lanes)]
