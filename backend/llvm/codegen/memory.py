"""Addresses, alignment, masks, and loads of contiguous elements: what loads and stores share."""

from __future__ import annotations

from math import gcd

from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.codegen.index import index_of, index_operand
from relayc.backend.llvm.codegen.vectors import splat
from relayc.backend.llvm.types import element_bytes, memory_type, register_type, suffix
from relayc.te.dtype import DType, dtype
from relayc.te.errors import CompileError
from relayc.te.tir import Buffer, PrimExpr

__all__ = [
    "MIN_LANES", "align_of", "any_lane", "byte_offset", "combined_mask", "element_address", "element_addresses",
    "from_memory", "lane_indices", "load_elements", "locate", "mask_vector", "memory_suffix", "ramp_addresses",
    "register_lanes", "to_memory",
]  # fmt: skip

_LAUNDER = "llvm.launder.invariant.group.p0"
"""An intrinsic that hides an address's derivation from LLVM's loop passes. It emits no instruction."""
MIN_LANES = 8
"""Minimum lanes of vectors loaded by pieces: scalar loads of fewer elements are as fast."""


def byte_offset(e: Emitter, pointer: str, offset: str | int) -> str:
    """A pointer offset by bytes."""
    return pointer if offset in ("0", 0) else e.text.pure(f"getelementptr i8, ptr {pointer}, i64 {offset}")


def element_address(e: Emitter, buffer: Buffer, index: Index) -> str:
    """The address of an element. Not `inbounds`: a partial index, or a masked-off lane, may be out of bounds."""
    base, kind = e.value(buffer.data), memory_type(buffer.dtype)
    if index.value is not None:
        base = e.text.pure(f"getelementptr {kind}, ptr {base}, i64 {index.value}")
        base = _opaque_address(e, base) if e.shares_base else base
    if index.constant:
        base = e.text.pure(f"getelementptr {kind}, ptr {base}, i64 {index.constant}")
    return base


def _opaque_address(e: Emitter, address: str) -> str:
    """An address opaque to LLVM, whose loop strength reduction would consider hundreds of ways to derive it from
    others.

    In long straight-line code that pass would take several times as long as everything else.
    """
    e.text.module.declare(_LAUNDER, "ptr", "ptr")
    return e.text.pure(f"call ptr @{_LAUNDER}(ptr {address})")


def locate(e: Emitter, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> Index:
    """The index of a scalar access."""
    if len(indices) != 1:
        raise CompileError(f"buffer {buffer.name} is accessed with {len(indices)} indices; flatten it first")
    return index_of(e, indices[0])


def align_of(e: Emitter, buffer: Buffer, index: Index) -> int:
    """The known alignment in bytes of an element's address: a power of two."""
    size = element_bytes(buffer.dtype)
    known = e.alignment.get(buffer.data, size)
    offset = index.multiple * size
    return gcd(known, offset) if offset else known


def load_elements(e: Emitter, buffer: Buffer, index: Index, of: DType) -> str:
    """Load consecutive elements as a value of type `of`.

    What nothing writes is loaded once, and so is a vector that a step of accumulations multiplies.
    """
    address, align = element_address(e, buffer, index), align_of(e, buffer, index)
    load = f"load {memory_type(of)}, ptr {address}, align {align}"
    if buffer.data in e.constant:
        return from_memory(e, e.text.pure(load), of)
    of_step = e.reads_operands and of.lanes > 1 and buffer.data is not e.accumulating
    return from_memory(e, e.text.pure(load, f"{e.steps} ") if of_step else e.text.value(load), of)


def from_memory(e: Emitter, value: str, of: DType) -> str:
    """Convert a value from its memory type to its register type."""
    return e.text.pure(f"trunc {memory_type(of)} {value} to {register_type(of)}") if of.is_bool else value


def to_memory(e: Emitter, value: str, of: DType) -> str:
    """Convert a value from its register type to its memory type."""
    return e.text.pure(f"zext {register_type(of)} {value} to {memory_type(of)}") if of.is_bool else value


def register_lanes(e: Emitter, of: DType) -> int:
    """Elements of this type in a vector register, at least `MIN_LANES`."""
    return max(e.machine.vector_bits // (8 * element_bytes(of)), MIN_LANES)


def lane_indices(e: Emitter, base: Index, stride: Index, lanes: int) -> list[Index]:
    """The index of each lane of a ramp."""
    if stride.value is None:
        step = stride.constant
        return [Index(base.value, base.constant + i * step, base.factor) for i in range(lanes)]
    found = [base]
    for _ in range(lanes - 1):
        last = found[-1]
        value = e.text.pure(f"add nsw i64 {last.value or 0}, {stride.value}")
        found.append(Index(value, last.constant + stride.constant))
    return found


def combined_mask(e: Emitter, predicate: PrimExpr | None, lanes: int) -> str | None:
    """The mask of the lanes of an access, by its predicate and by the lanes that are active; None for all."""
    own = None if predicate is None else mask_vector(e, e.value(predicate), predicate.dtype.lanes, lanes)
    if e.mask is None or e.mask[1] != lanes:
        return own
    if own is None:
        return e.mask[0]
    return e.text.pure(f"and <{lanes} x i1> {own}, {e.mask[0]}")


def mask_vector(e: Emitter, value: str, have: int, lanes: int) -> str | None:
    """A condition of `have` lanes as a mask; None if it is always true."""
    if value in ("true", "splat (i1 true)"):
        return None
    return value if have == lanes else splat(e.text, value, dtype("bool").with_lanes(lanes))


def any_lane(e: Emitter, mask: str, lanes: int) -> str:
    """Is any lane of a mask true?"""
    name = f"llvm.vector.reduce.or.v{lanes}i1"
    e.text.module.declare(name, "i1", f"<{lanes} x i1>")
    return e.text.pure(f"call i1 @{name}(<{lanes} x i1> {mask})")


def ramp_addresses(e: Emitter, buffer: Buffer, base: Index, stride: Index, lanes: int) -> str:
    """The addresses of evenly spaced elements, as a vector."""
    kind, steps = memory_type(buffer.dtype), ", ".join([f"i64 {i}" for i in range(lanes)])
    step = splat(e.text, index_operand(e, stride), dtype("int64").with_lanes(lanes))
    offsets = e.text.pure(f"mul <{lanes} x i64> {step}, <{steps}>")
    return e.text.pure(f"getelementptr {kind}, ptr {element_address(e, buffer, base)}, <{lanes} x i64> {offsets}")


def element_addresses(e: Emitter, buffer: Buffer, index: PrimExpr) -> str:
    """The addresses of the elements at a vector index, as a vector."""
    value, base = e.value(index), e.value(buffer.data)
    return e.text.pure(f"getelementptr {memory_type(buffer.dtype)}, ptr {base}, {register_type(index.dtype)} {value}")


def memory_suffix(of: DType) -> str:
    """The name of a memory type in overloaded intrinsics."""
    return f"v{of.lanes}i8" if of.is_bool else suffix(of)
