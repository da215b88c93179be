"""Stores to flat buffers: scalar and vector, masked or not, scattered, non-temporal."""

from __future__ import annotations

from math import gcd

from relayc.backend.llvm.codegen.conditions import branches_rarely
from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.codegen.instructions import available
from relayc.backend.llvm.codegen.memory import (
    align_of,
    byte_offset,
    element_address,
    element_addresses,
    lane_indices,
    locate,
    mask_vector,
    memory_suffix,
    ramp_addresses,
    to_memory,
)
from relayc.backend.llvm.codegen.nontemporal import LINE_BYTES, divides
from relayc.backend.llvm.codegen.permutes import PERMUTE
from relayc.backend.llvm.codegen.vector_index import as_ramp
from relayc.backend.llvm.codegen.vectors import extend, extract_part, splat, word_vector
from relayc.backend.llvm.types import element_bytes, memory_type
from relayc.te.dtype import DType, dtype
from relayc.te.tir import Buffer, BufferLoad, BufferStore, PrimExpr, Ramp

__all__ = ["end_nontemporal", "store_elements"]

_HALF_BITS = 16
"""Bits of float16 and bfloat16."""
_WIDEST = 8
"""Bytes of the widest integers, which are not truncated."""
_X86_VECTOR_BITS = (256, 512)
"""Bits of vectors that only x86 has registers for."""
_LANES = 16
"""Lanes of 4 bytes in a cache line."""
_OPAQUE = 'asm "", "=v,0"'
"""An empty inline assembly that hides from LLVM that its result is its operand."""


def store_elements(e: Emitter, store: BufferStore) -> None:
    """Write a scalar or vector to a buffer, at one index or at one for each lane."""
    buffer, of = store.buffer, store.value.dtype
    if store.indices[-1].dtype.lanes == 1 and of.lanes == 1:
        _store_scalar(e, store)
        return
    lanes = store.indices[-1].dtype.lanes
    value = e.value(store.value)
    if of.lanes == 1:
        of = of.with_lanes(lanes)
        value = splat(e.text, value, of)
    value, kind = to_memory(e, value, of), memory_type(of)
    mask = None
    if store.predicate is not None:
        mask = mask_vector(e, e.value(store.predicate), store.predicate.dtype.lanes, lanes)
    ramp = as_ramp(e, store.indices[-1]) if len(store.indices) == 1 else None
    if ramp is None:
        _scatter(e, element_addresses(e, buffer, store.indices[-1]), value, of, mask)
        return
    base, stride = ramp
    if stride.value is None and stride.constant == 1:
        _store_contiguous(e, store, base, value, of, mask)
    elif mask is not None:
        _scatter(e, ramp_addresses(e, buffer, base, stride, lanes), value, of, mask)
    else:
        for i, at in enumerate(lane_indices(e, base, stride, lanes)):
            lane = e.text.pure(f"extractelement {kind} {value}, i64 {i}")
            align = align_of(e, buffer, at)
            e.text.effect(
                f"store {memory_type(of.element)} {lane}, ptr {element_address(e, buffer, at)}, align {align}"
            )


def _store_scalar(e: Emitter, store: BufferStore) -> None:
    value = to_memory(e, e.value(store.value), store.value.dtype)
    index = locate(e, store.buffer, store.indices)
    condition = None if store.predicate is None else e.value(store.predicate)
    address, align = element_address(e, store.buffer, index), align_of(e, store.buffer, index)
    line = f"store {memory_type(store.value.dtype)} {value}, ptr {address}, align {align}"
    if condition is None or condition == "true":
        e.text.effect(line)
        return
    then, done = e.text.label("store"), e.text.label("stored")
    e.text.branch(condition, then, done)
    e.text.place(then)
    e.text.effect(line)
    e.text.goto(done)
    e.text.place(done)


def _store_contiguous(e: Emitter, store: BufferStore, base: Index, value: str, of: DType, mask: str | None) -> None:
    buffer, index = store.buffer, store.indices[-1]
    kind, address, align = memory_type(of), element_address(e, buffer, base), align_of(e, buffer, base)
    if mask is None:
        if align % LINE_BYTES and buffer.data in e.streamed and isinstance(index, Ramp):
            align = LINE_BYTES if divides(LINE_BYTES // element_bytes(of.element), index.base) else align
        if is_nontemporal(e, buffer, of, align):
            store_nontemporal(e, buffer, value, kind, of, address, align)
        else:
            _store_registers(e, store, value, of, address, align)
        return
    if buffer.data in e.streamed and align % LINE_BYTES and transposes_lines(e, of):
        rotated, parts = parts_by_lines(e, value, address, mask)
        for line, chosen in parts:
            _store_masked(e, rotated, line, LINE_BYTES, of, chosen)
    else:
        _store_masked(e, value, address, align, of, mask)


def _store_registers(e: Emitter, store: BufferStore, value: str, of: DType, address: str, align: int) -> None:
    """Store a vector, of several registers in the order of their addresses.

    LLVM stores the last register first. Cache lines written in falling order cost a processor up to a third of its
    bandwidth (Emerald Rapids, 8 MB). What is on the stack should become registers: vectors are stored there, and copied
    from there by a loop, whole. So are results of rare branches, or too many instructions would part such a branch from
    an equal one of another result, as of sine and cosine, which LLVM joins.
    """
    size, width, value_of = element_bytes(of.element), e.machine.vector_bits, store.value
    each, is_local = width // (8 * size), store.buffer.data in e.on_stack or _copies(e, value_of)
    if width not in _X86_VECTOR_BITS or of.lanes % each or is_local or branches_rarely(value_of):
        each = of.lanes
    kind, element = memory_type(of.with_lanes(each)), memory_type(of.element)
    for begin in range(0, of.lanes, each):
        part, at = extract_part(e.text, value, element, of.lanes, begin, each), byte_offset(e, address, begin * size)
        e.text.effect(f"store {kind} {part}, ptr {at}, align {gcd(align, begin * size)}")


def _copies(e: Emitter, value: PrimExpr) -> bool:
    """Is it a vector on the stack, at a place that varies? LLVM makes one copy of a loop over such vectors."""
    if not isinstance(value, BufferLoad) or value.buffer.data not in e.on_stack:
        return False
    ramp = as_ramp(e, value.indices[-1])
    return ramp is None or ramp[0].value is not None


def _store_masked(e: Emitter, value: str, address: str, align: int, of: DType, mask: str) -> None:
    element, size = memory_type(of.element), element_bytes(of.element)
    if "avx512f" not in e.machine.features or element[0] != "i" or size == _WIDEST:
        _masked_store(e, value, address, align, of, mask)
        return
    each = LINE_BYTES // size
    for begin in range(0, of.lanes, each):
        lanes, at = min(each, of.lanes - begin), byte_offset(e, address, begin * size)
        part = _hidden(e, extract_part(e.text, value, element, of.lanes, begin, lanes), of.with_lanes(lanes))
        chosen = extract_part(e.text, mask, "i1", of.lanes, begin, lanes)
        _masked_store(e, part, at, gcd(align, begin * size), of.with_lanes(lanes), chosen)


def _hidden(e: Emitter, value: str, of: DType) -> str:
    """Integers of which LLVM does not know that they are the low bits of wider ones.

    Where a constant mask chooses a single one, LLVM (22.1) stores the wide one with AVX-512, up to seven bytes too
    many.
    """
    element, size = memory_type(of.element), element_bytes(of.element)
    width = next(register for register in (16, 32, LINE_BYTES) if register >= size * of.lanes) // size
    kind = f"<{width} x {element}>"
    whole = extend(e.text, value, element, of.lanes, width)
    return extract_part(e.text, e.text.pure(f'call {kind} asm "", "=v,0"({kind} {whole})'), element, width, 0, of.lanes)


def _masked_store(e: Emitter, value: str, address: str, align: int, of: DType, mask: str) -> None:
    kind, flags, name = memory_type(of), f"<{of.lanes} x i1>", f"llvm.masked.store.{memory_suffix(of)}.p0"
    e.text.module.declare(name, "void", f"{kind}, ptr, i32 immarg, {flags}")
    e.text.effect(f"call void @{name}({kind} {value}, ptr {address}, i32 {align}, {flags} {mask})")


def _scatter(e: Emitter, addresses: str, value: str, of: DType, mask: str | None) -> None:
    kind, lanes = memory_type(of), of.lanes
    name = f"llvm.masked.scatter.{memory_suffix(of)}.v{lanes}p0"
    e.text.module.declare(name, "void", f"{kind}, <{lanes} x ptr>, i32 immarg, <{lanes} x i1>")
    e.text.effect(
        f"call void @{name}({kind} {value}, <{lanes} x ptr> {addresses}, i32 {element_bytes(of)}, "
        f"<{lanes} x i1> {mask or 'splat (i1 true)'})"
    )


def is_nontemporal(e: Emitter, buffer: Buffer, of: DType, align: int) -> bool:
    """Is a vector store at an address of this alignment emitted as a non-temporal one?"""
    whole_lines = of.lanes * element_bytes(of.element) % LINE_BYTES == 0 and align % LINE_BYTES == 0
    return buffer.data in e.streamed and whole_lines


def store_nontemporal(e: Emitter, buffer: Buffer, value: str, kind: str, of: DType, address: str, align: int) -> None:
    """Store a vector, of memory type `kind`, to an address for which `is_nontemporal` holds."""
    e.streaming_stores.add(buffer.data)
    e.text.module.metadata["!0"] = "!{i32 1}"
    parts = [(value, kind)]
    if of.is_float and of.bits == _HALF_BITS:
        parts = _as_integers(e, value, kind, of)
    for n, (part, words) in enumerate(parts):
        size = of.lanes * element_bytes(of.element) // len(parts)
        at = e.text.pure(f"getelementptr inbounds i8, ptr {address}, i64 {n * size}") if n else address
        e.text.effect(f"store {words} {part}, ptr {at}, align {gcd(align, n * size)}, !nontemporal !0")


def transposes_lines(e: Emitter, of: DType) -> bool:
    """Is such a vector one cache line, whose lanes one instruction permutes?"""
    return of == dtype("float32").with_lanes(_LANES) and _LANES in available(PERMUTE["float"], e.machine)


def parts_by_lines(e: Emitter, value: str, address: str, mask: str) -> tuple[str, list[tuple[str, str]]]:
    """Split an unaligned masked store into two aligned ones: the rotated vector, and (address, mask) for each cache
    line.

    A processor fetches both lines of a store that straddles them, whatever the mask, and would have to evict one of
    them to store it non-temporally. A part without active lanes uses the address of the other one.
    """
    pure, places, row = e.text.pure, word_vector(_LANES), available(PERMUTE["float"], e.machine)[_LANES]
    within = pure(f"and i64 {pure(f'ptrtoint ptr {address} to i64')}, {LINE_BYTES - 1}")
    first = pure(f"trunc i64 {pure(f'lshr i64 {within}, 2')} to i32")
    lanes = ", ".join([f"i32 {i}" for i in range(_LANES)])
    from_first = pure(f"sub {places} <{lanes}>, {splat(e.text, first, dtype('int32').with_lanes(_LANES))}")
    rotated = row.emit(e.text, row, value, from_first)
    line = pure(f"getelementptr i8, ptr {address}, i64 {pure(f'sub i64 0, {within}')}")
    lines = line, pure(f"getelementptr i8, ptr {line}, i64 {LINE_BYTES}")
    masks = _masks_by_lines(e, mask, pure(f"trunc i32 {first} to i{_LANES}"))
    empty = [pure(f"icmp eq i{_LANES} {part}, 0") for part in masks]
    chosen = [pure(f"select i1 {empty[n]}, ptr {lines[1 - n]}, ptr {lines[n]}") for n in (0, 1)]
    flags = [pure(f"bitcast i{_LANES} {part} to <{_LANES} x i1>") for part in masks]
    return rotated, list(zip(chosen, flags, strict=True))


def _masks_by_lines(e: Emitter, mask: str, first: str) -> tuple[str, str]:
    """Rotate the bits of a mask by a number of lanes; returns those of the first and of the second cache line."""
    pure, word = e.text.pure, f"i{_LANES}"
    bits, rotation = pure(f"bitcast <{_LANES} x i1> {mask} to {word}"), f"llvm.fshl.{word}"
    e.text.module.declare(rotation, word, f"{word}, {word}, {word}")
    rotated = pure(f"call {word} @{rotation}({word} {bits}, {word} {bits}, {word} {first})")
    here = pure(f"and {word} {rotated}, {pure(f'shl {word} -1, {first}')}")
    return here, pure(f"xor {word} {rotated}, {here}")


def _as_integers(e: Emitter, value: str, kind: str, of: DType) -> list[tuple[str, str]]:
    """Reinterpret 16-bit floats as vectors of int32, since LLVM has no non-temporal store of the former, opaquely:
    LLVM would otherwise undo the bitcast where the values were computed.

    float16 is stored by narrower vectors, since no instruction produces full ones and concatenating halves would
    cost more.
    """
    words, width = of.lanes // 2, e.machine.vector_bits
    value = e.text.pure(f"bitcast {kind} {value} to {word_vector(words)}")
    if width not in _X86_VECTOR_BITS:
        return [(value, word_vector(words))]
    each = (min(_X86_VECTOR_BITS) if of.element == "float16" else width) // 32
    found: list[tuple[str, str]] = []
    for begin in range(0, words, each):
        vector, part = word_vector(each), extract_part(e.text, value, "i32", words, begin, each)
        found.append((e.text.pure(f"call {vector} {_OPAQUE}({vector} {part})"), vector))
    return found


def end_nontemporal(e: Emitter) -> None:
    """Order non-temporal stores before other threads are notified of them."""
    if e.streaming_stores:
        e.text.effect("fence seq_cst")
