"""LLVM assembly text of the loop IR's data types and constants.

The register type and the memory type of a value may differ: a bool is `i1` in a register and a byte in memory. A
bfloat16 is `i16` in both (its arithmetic is done in float32), because few targets support it.
"""

from __future__ import annotations

import math
import struct
from functools import cache

import numpy as np

from relayc.te.dtype import DType, dtype
from relayc.te.errors import CompileError

__all__ = ["compute_type", "constant", "element_bytes", "memory_type", "register_bits",
           "register_type", "suffix", "vector_constant"]  # fmt: skip

_FLOATS = {16: "half", 32: "float", 64: "double"}


@cache
def register_type(of: DType) -> str:
    """The LLVM type of a value of type `of` in a register, such as ``<8 x float>``."""
    if of.lanes > 1:
        return f"<{of.lanes} x {register_type(of.element)}>"
    if of.is_handle:
        return "ptr"
    if of.code == "void":
        return "void"
    if of.is_bool:
        return "i1"
    if of.code == "bfloat":
        return "i16"
    if of.is_float and not of.variant and of.bits in _FLOATS:
        return _FLOATS[of.bits]
    if of.is_integral and of.bits >= 8:
        return f"i{of.bits}"
    raise CompileError(f"the llvm target has no values of type {of}; cast to a wider type first")


@cache
def register_bits(kind: str) -> int:
    """The bits of a value of an LLVM type that `register_type` gives."""
    if kind.startswith("<"):
        lanes, element = kind[1:-1].split(" x ")
        return int(lanes) * register_bits(element)
    return 64 if kind == "ptr" else next((bits for bits, name in _FLOATS.items() if name == kind), 0) or int(kind[1:])


@cache
def memory_type(of: DType) -> str:
    """The LLVM type of a value of type `of` in memory."""
    if not of.is_bool:
        return register_type(of)
    return "i8" if of.lanes == 1 else f"<{of.lanes} x i8>"


@cache
def element_bytes(of: DType) -> int:
    """Distance in bytes between adjacent elements of type `of` in memory."""
    return 8 if of.is_handle else max(1, of.bits // 8)


@cache
def compute_type(of: DType) -> DType:
    """The type that arithmetic on `of` is done in: float32 for 16-bit floats, `of` itself for everything else."""
    return dtype("float32").with_lanes(of.lanes) if of.is_float and of.bits == 16 else of


@cache
def suffix(of: DType) -> str:
    """The name of a type in overloaded intrinsics: ``v8f32``, ``i64``, ``p0``."""
    if of.lanes > 1:
        return f"v{of.lanes}{suffix(of.element)}"
    if of.is_handle:
        return "p0"
    if of.is_float and of.code != "bfloat":
        return f"f{of.bits}"
    return register_type(of)


def constant(of: DType, value: int | float) -> str:
    """A constant as an operand; a vector has it in every lane."""
    if of.lanes > 1:
        return f"splat ({register_type(of.element)} {constant(of.element, value)})"
    if of.is_handle:
        return "null" if value == 0 else f"inttoptr (i64 {int(value)} to ptr)"
    if of.is_bool:
        return "true" if value else "false"
    if not of.is_float:
        return str(int(value))
    if of.code == "bfloat":
        return str(_bfloat_bits(float(value)))
    if of.bits == 16:
        return f"0xH{np.float16(value).view(np.uint16):04X}"
    # LLVM writes a float as the hexadecimal bits of the double of equal value.
    rounded = float(np.float32(value)) if of.bits == 32 else float(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"


def _bfloat_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FC0
    bits = int(np.float32(value).view(np.uint32))
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def vector_constant(of: DType, values: list[int | float]) -> str:
    """A vector constant as an operand."""
    element = of.element
    kind = register_type(element)
    return "<" + ", ".join([f"{kind} {constant(element, v)}" for v in values]) + ">"
