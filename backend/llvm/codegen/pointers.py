"""Addresses and accesses to memory by address."""

from __future__ import annotations

from relayc.backend.llvm.codegen.convert import convert
from relayc.backend.llvm.codegen.emitter import Emitter
from relayc.backend.llvm.codegen.functions import CTX_DRAWS, string_of
from relayc.backend.llvm.codegen.index import index_of, index_operand
from relayc.backend.llvm.codegen.memory import byte_offset, element_address, from_memory, locate
from relayc.backend.llvm.types import element_bytes, memory_type, register_type
from relayc.te.dtype import dtype
from relayc.te.errors import CompileError
from relayc.te.ir import collect
from relayc.te.tir import BufferLoad, Call, as_int

__all__ = [
    "emit_address_of", "emit_atomic_add", "emit_atomic_max", "emit_copy_bytes", "emit_dlpack_field",
    "emit_handle_add_byte_offset", "emit_load_at", "emit_next_draw", "emit_prefetch", "emit_store_at",
]  # fmt: skip

_DLPACK_FIELDS: dict[str, tuple[int, str]] = {
    "data": (0, "handle"), "device_type": (8, "int32"), "device_id": (12, "int32"), "ndim": (16, "int32"),
    "type_code": (20, "uint8"), "type_bits": (21, "uint8"), "type_lanes": (22, "uint16"), "shape": (24, "handle"),
    "strides": (32, "handle"), "byte_offset": (40, "uint64"),
}  # fmt: skip
"""DLPack's DLTensor: byte offset and type of each field."""


def emit_address_of(e: Emitter, call: Call) -> str:
    """The address of an element of a buffer. Raises CompileError for anything else."""
    load = call.args[0]
    if not isinstance(load, BufferLoad):
        raise CompileError(f"address_of takes an element of a buffer, not {load}")
    return element_address(e, load.buffer, locate(e, load.buffer, load.indices))


def emit_handle_add_byte_offset(e: Emitter, call: Call) -> str:
    """An address so many bytes behind another one."""
    return byte_offset(e, e.value(call.args[0]), index_operand(e, index_of(e, call.args[1])))


def emit_load_at(e: Emitter, call: Call) -> str:
    """The value at so many bytes behind an address."""
    address = byte_offset(e, e.value(call.args[0]), index_operand(e, index_of(e, call.args[1])))
    align = element_bytes(call.dtype)
    value = e.text.value(f"load {memory_type(call.dtype)}, ptr {address}, align {align}")
    return from_memory(e, value, call.dtype)


def emit_store_at(e: Emitter, call: Call) -> str:
    """Store a value at so many bytes behind an address."""
    of, value = call.args[2].dtype, e.value(call.args[2])
    address = byte_offset(e, e.value(call.args[0]), index_operand(e, index_of(e, call.args[1])))
    e.text.effect(f"store {register_type(of)} {value}, ptr {address}, align {element_bytes(of)}")
    return "0"


def emit_copy_bytes(e: Emitter, call: Call) -> str:
    """Copy bytes between memory that doesn't overlap."""
    e.text.module.declare("llvm.memcpy.p0.p0.i64", "void", "ptr, ptr, i64, i1 immarg")
    to, source = e.value(call.args[0]), e.value(call.args[1])
    count = index_operand(e, index_of(e, call.args[2]))
    e.text.effect(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 {count}, i1 false)")
    return "0"


def emit_dlpack_field(e: Emitter, call: Call) -> str:
    """A field of a DLTensor, by its name."""
    offset, dtype_name = _DLPACK_FIELDS[string_of(call.args[1], call)]
    stored = dtype(dtype_name)
    address = byte_offset(e, e.value(call.args[0]), offset)
    value = e.text.value(f"load {memory_type(stored)}, ptr {address}, align {element_bytes(stored)}")
    return convert(e, value, stored, call.dtype)


def emit_prefetch(e: Emitter, call: Call) -> str:
    """Prefetch the cache line of an address; none of memory that non-temporal stores write."""
    if any(load.buffer.data in e.streamed for load in collect(call.args[0], BufferLoad)):
        return "0"
    address = e.value(call.args[0])
    locality, write = (as_int(a) for a in call.args[1:])
    e.text.module.declare("llvm.prefetch.p0", "void", "ptr, i32 immarg, i32 immarg, i32 immarg")
    e.text.effect(f"call void @llvm.prefetch.p0(ptr {address}, i32 {write}, i32 {locality}, i32 1)")
    return "0"


def emit_atomic_add(e: Emitter, call: Call) -> str:
    """Add to a value in memory, atomically; gives the value before."""
    return _atomic(e, call, "fadd" if call.args[1].dtype.is_float else "add")


def emit_atomic_max(e: Emitter, call: Call) -> str:
    """Make a value in memory at least so large, atomically; gives the value before."""
    of = call.args[1].dtype
    return _atomic(e, call, "fmax" if of.is_float else "max" if of.is_int else "umax")


def _atomic(e: Emitter, call: Call, operation: str) -> str:
    pointer, value, kind = e.value(call.args[0]), e.value(call.args[1]), register_type(call.args[1].dtype)
    return e.text.value(f"atomicrmw {operation} ptr {pointer}, {kind} {value} monotonic")


def emit_next_draw(e: Emitter, call: Call) -> str:
    """The number of draws of a random stream so far, which is one more from now on."""
    stream = as_int(call.args[0])
    assert stream is not None, "streams are constants"
    place = byte_offset(e, "%ctx", CTX_DRAWS + 4 * stream)
    drawn = e.text.value(f"load i32, ptr {place}, align 4")
    after = e.text.pure(f"add i32 {drawn}, 1")
    e.text.effect(f"store i32 {after}, ptr {place}, align 4")
    return drawn
