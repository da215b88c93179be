"""Gathers: loads of elements at any index of each lane.

Processors gather words of 32 or 64 bits; LLVM takes narrower elements one after the other, with a branch for each lane
of a mask. With AVX-512 the aligned words that hold them are gathered here, and shifted. A word may reach beyond the
buffer, but not beyond the page of the element in it.
"""

from __future__ import annotations

from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.codegen.index import index_operand
from relayc.backend.llvm.codegen.lookups import look_up_bytes, look_up_floats
from relayc.backend.llvm.codegen.memory import (
    MIN_LANES,
    element_address,
    element_addresses,
    from_memory,
    memory_suffix,
    ramp_addresses,
)
from relayc.backend.llvm.codegen.vectors import splat
from relayc.backend.llvm.types import element_bytes, memory_type, register_type
from relayc.te.dtype import DType, dtype
from relayc.te.tir import Buffer, PrimExpr

__all__ = ["gather", "gather_ramp"]

_WORD_BYTES = 4
"""Size of the smallest elements that are gathered, as a power of two."""


def gather(e: Emitter, buffer: Buffer, index: PrimExpr, of: DType, mask: str | None) -> str:
    """The elements at a vector index, of the lanes that the mask selects, or of all; zeros in the others."""
    for look_up in (look_up_bytes, look_up_floats):
        found = look_up(e, buffer, index, of)
        if found is not None:
            return found
    if _takes_words(e, of) and index.dtype.bits >= 8 * _WORD_BYTES:
        return _gather_words(e, e.value(buffer.data), e.value(index), index.dtype, of, mask)
    return _gather_at(e, element_addresses(e, buffer, index), of, mask)


def gather_ramp(e: Emitter, buffer: Buffer, base: Index, stride: Index, of: DType, mask: str) -> str:
    """Evenly spaced elements where the mask selects them."""
    if not _takes_words(e, of):
        return _gather_at(e, ramp_addresses(e, buffer, base, stride, of.lanes), of, mask)
    index = dtype("int64").with_lanes(of.lanes)
    steps = ", ".join([f"i64 {i}" for i in range(of.lanes)])
    places = e.text.pure(f"mul {register_type(index)} {splat(e.text, index_operand(e, stride), index)}, <{steps}>")
    return _gather_words(e, element_address(e, buffer, base), places, index, of, mask)


def _gather_at(e: Emitter, addresses: str, of: DType, mask: str | None) -> str:
    kind, lanes = memory_type(of), of.lanes
    name = f"llvm.masked.gather.{memory_suffix(of)}.v{lanes}p0"
    e.text.module.declare(name, kind, f"<{lanes} x ptr>, i32 immarg, <{lanes} x i1>, {kind}")
    operands = (
        f"<{lanes} x ptr> {addresses}, i32 {element_bytes(of)}, "
        f"<{lanes} x i1> {mask or 'splat (i1 true)'}, {kind} zeroinitializer"
    )
    return from_memory(e, e.text.value(f"call {kind} @{name}({operands})"), of)


def _takes_words(e: Emitter, of: DType) -> bool:
    return "avx512bw" in e.machine.features and of.lanes >= MIN_LANES and element_bytes(of) < _WORD_BYTES


def _gather_words(e: Emitter, base: str, places: str, index: DType, of: DType, mask: str | None) -> str:
    """Narrow elements at `places` from an address `base`: gather the words, shift, and narrow them."""
    text, kind, lanes, size = e.text, register_type(index), of.lanes, element_bytes(of)
    ratio = _WORD_BYTES // size
    beyond = text.pure(f"and i64 {text.pure(f'ptrtoint ptr {base} to i64')}, {_WORD_BYTES - 1}")
    start = text.pure(f"getelementptr i8, ptr {base}, i64 {text.pure(f'sub i64 0, {beyond}')}")
    added = text.pure(f"udiv exact i64 {beyond}, {size}")  # element addresses are multiples of their size
    added = added if index.bits == 64 else text.pure(f"trunc i64 {added} to i{index.bits}")
    places = text.pure(f"add {kind} {places}, {splat(text, added, index)}")
    shift, bit = ratio.bit_length() - 1, register_type(index.element)
    words = text.pure(f"ashr {kind} {places}, splat ({bit} {shift})")
    addresses = text.pure(f"getelementptr i32, ptr {start}, {kind} {words}")
    found = _gather_at(e, addresses, dtype("uint32").with_lanes(lanes), mask)
    part = text.pure(f"and {kind} {places}, splat ({bit} {ratio - 1})")
    if index.bits == 64:
        part = text.pure(f"trunc {kind} {part} to <{lanes} x i32>")
    shifts = text.pure(f"mul <{lanes} x i32> {part}, splat (i32 {8 * size})")
    shifted = text.pure(f"lshr <{lanes} x i32> {found}, {shifts}")
    narrow = f"<{lanes} x i{8 * size}>"
    value = text.pure(f"trunc <{lanes} x i32> {shifted} to {narrow}")
    if memory_type(of) != narrow:
        value = text.pure(f"bitcast {narrow} {value} to {memory_type(of)}")
    return from_memory(e, value, of)
