"""Keeps the accumulators of unrolled dot-product loops in registers across the unrolled steps."""

from __future__ import annotations

from relayc.backend.llvm.codegen.emitter import Emitter
from relayc.backend.llvm.codegen.memory import align_of, element_address
from relayc.backend.llvm.codegen.stores import store_elements
from relayc.backend.llvm.codegen.unroll_factor import broadcast_factor
from relayc.backend.llvm.codegen.vector_index import as_ramp
from relayc.backend.llvm.codegen.vectors import concatenate, extract_part
from relayc.backend.llvm.types import memory_type
from relayc.te.dtype import DType
from relayc.te.ir.structural import structural_equal
from relayc.te.tir import BufferStore, PrimExpr

__all__ = ["emit_store", "end_step"]

_BARRIER = 'asm sideeffect "", "{}~{{memory}}"'
"""An empty inline assembly that memory reads are not moved across."""
_OPERAND_REGISTERS = 2
"""Fewest vector registers that a step needs beside its accumulators. LLVM ends the process where an assembly has more
operands than there are registers."""
_PAIR = 2
_MIN_BITS = 32
"""Minimum bits of an element: LLVM accepts vectors of smaller ones as assembly operands on some processors only."""
_LENGTHS = (128, 256, 512)
"""Bits of the vectors that LLVM accepts as assembly operands."""


def emit_store(e: Emitter, store: BufferStore) -> None:
    """Emit a store; those of accumulations are separated and remembered."""
    factor = _factor(e, store)
    if factor is None:
        e.accumulating = None
    else:
        _end_pair(e, factor)
        e.reads_operands = _is_of_step(e, store)
    store_elements(e, store)
    e.reads_operands = False
    kept = factor is not None and e.shares_base and store.buffer.data in e.on_stack
    ramp = as_ramp(e, store.indices[-1]) if kept and store.value.dtype.lanes > 1 else None
    if ramp is not None:
        base, _ = ramp
        e.accumulators.append(
            (store.value.dtype, element_address(e, store.buffer, base), align_of(e, store.buffer, base))
        )


def _is_of_step(e: Emitter, store: BufferStore) -> bool:
    """Whether an accumulation is one of a step, the first or another one: of those in one local buffer, each elsewhere.

    A step loads each vector that it multiplies once. From memory that the function writes, as panels that it converts,
    LLVM would load it again behind each barrier.
    """
    pointer, of = store.buffer.data, store.value.dtype
    ramp = as_ramp(e, store.indices[-1]) if pointer in e.on_stack and of.lanes > 1 else None
    if ramp is None:
        e.accumulating = None
        return False
    if pointer is not e.accumulating or ramp in e.updated:
        e.accumulating, e.steps = pointer, e.steps + 1
        e.updated.clear()
    e.updated.add(ramp)
    return True


def _factor(e: Emitter, store: BufferStore) -> PrimExpr | None:
    """The broadcast factor of an accumulation, found once for all steps of an unrolled loop."""
    if store not in e.factors:
        e.factors[store] = broadcast_factor(store)
    return e.factors[store]


def _end_pair(e: Emitter, factor: PrimExpr) -> None:
    """Emit a barrier after two accumulations of one factor, before another factor is read.

    For tiles of such pairs, LLVM 22 on x86 hoists the factor loads of all rows, for which there are no registers:
    two to four times slower. Rows of one or three accumulators, or two that are one vector of twice the width, are
    unaffected.
    """
    if e.same_factor and not structural_equal(e.same_factor[0], factor):
        if len(e.same_factor) == _PAIR and "sse2" in e.machine.features:
            e.text.effect(f"call void {_BARRIER.format('')}()")
        e.same_factor = []
    e.same_factor.append(factor)


def end_step(e: Emitter) -> None:
    """Complete the accumulations of a step before anything of the next one is read.

    LLVM would hoist loads for which there is no register, and spill an accumulator instead. So the accumulators
    pass through the barrier in registers, if enough registers exist and LLVM's model of the processor gains from
    it; pairs always do.
    """
    text, pairs, e.same_factor = e.text, len(e.same_factor) == _PAIR, []
    e.accumulating = None
    if not ((pairs or e.machine.pins_accumulators) and _are_in_registers(e)):
        text.effect(f"call void {_BARRIER.format('')}()")
        return
    values = [_parts(e, *each) for each in e.accumulators]
    parts = [part for each in values for part in each]
    (kind,) = {memory_type(of.with_lanes(_lanes(e, of))) for of, _, _ in e.accumulators}
    kinds, operands = text.module.struct([kind] * len(parts)), ", ".join([f"{kind} {part}" for part in parts])
    through = f"={e.machine.vector_constraint}," * len(parts) + "".join([f"{i}," for i in range(len(parts))])
    passed = text.value(f"call {kinds} {_BARRIER.format(through)}({operands})")
    left = [text.value(f"extractvalue {kinds} {passed}, {i}") for i in range(len(parts))]
    for (of, address, align), before in zip(e.accumulators, values, strict=True):
        mine, left = left[: len(before)], left[len(before) :]
        whole = concatenate(e.text, [(part, _lanes(e, of)) for part in mine], memory_type(of.element))
        text.effect(f"store {memory_type(of)} {whole}, ptr {address}, align {align}")


def _are_in_registers(e: Emitter) -> bool:
    """Are the accumulators whole vector registers of one type, within the available number, with an assembly
    constraint?"""
    kinds = {of.with_lanes(_lanes(e, of)) for of, _, _ in e.accumulators}
    whole = all(of.lanes % _lanes(e, of) == 0 for of, _, _ in e.accumulators)
    if not whole or len(kinds) != 1 or not e.machine.vector_constraint:
        return False
    (kind,) = kinds
    count = sum(of.lanes for of, _, _ in e.accumulators) // kind.lanes
    fits = kind.bits >= _MIN_BITS and kind.bits * kind.lanes in _LENGTHS
    return fits and 1 < count <= e.machine.vector_registers - _OPERAND_REGISTERS


def _lanes(e: Emitter, of: DType) -> int:
    """Lanes per register of a vector of type `of`."""
    return min(of.lanes, e.machine.vector_bits // of.bits)


def _parts(e: Emitter, of: DType, address: str, align: int) -> list[str]:
    """The vector at an address, split into registers."""
    lanes, element = _lanes(e, of), memory_type(of.element)
    whole = e.text.value(f"load {memory_type(of)}, ptr {address}, align {align}")
    return [extract_part(e.text, whole, element, of.lanes, begin, lanes) for begin in range(0, of.lanes, lanes)]
