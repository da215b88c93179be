"""Integers as bits, and horizontal reductions of vectors."""

from __future__ import annotations

from relayc.backend.llvm.codegen.arithmetic import float_extremum
from relayc.backend.llvm.codegen.convert import computed, convert, rounded
from relayc.backend.llvm.codegen.emitter import Emitter
from relayc.backend.llvm.codegen.vectors import call_overloaded, extract_lane, slice_lanes
from relayc.backend.llvm.types import compute_type, constant, register_type, suffix
from relayc.te.dtype import DType
from relayc.te.tir import Call

__all__ = [
    "BITWISE", "REDUCTIONS", "emit_bitwise", "emit_bitwise_not", "emit_clz", "emit_popcount", "emit_reinterpret",
    "emit_shift_right", "emit_vector_reduce",
]  # fmt: skip

BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "shift_left": "shl"}
REDUCTIONS = {"vector_reduce_add": "add", "vector_reduce_max": "max", "vector_reduce_min": "min"}


def emit_bitwise(e: Emitter, call: Call) -> str:
    """The bits of two integers or booleans combined by and, or, exclusive or; a shift to the left."""
    kind = register_type(call.dtype)
    a, b = e.value(call.args[0]), e.value(call.args[1])
    return e.text.pure(f"{BITWISE[call.op]} {kind} {a}, {b}")


def emit_shift_right(e: Emitter, call: Call) -> str:
    """A shift to the right: the sign bit is repeated for signed types, zeros enter for others."""
    name, kind = "ashr" if call.dtype.is_int else "lshr", register_type(call.dtype)
    return e.text.pure(f"{name} {kind} {e.value(call.args[0])}, {e.value(call.args[1])}")


def emit_bitwise_not(e: Emitter, call: Call) -> str:
    """All bits inverted; of a boolean its one bit."""
    ones = constant(call.dtype, -1) if not call.dtype.is_bool else constant(call.dtype, 1)
    return e.text.pure(f"xor {register_type(call.dtype)} {e.value(call.args[0])}, {ones}")


def emit_popcount(e: Emitter, call: Call) -> str:
    """The number of bits that are set, in each lane."""
    of = call.args[0].dtype
    return convert(e, call_overloaded(e.text, "ctpop", of, e.value(call.args[0])), of, call.dtype)


def emit_clz(e: Emitter, call: Call) -> str:
    """The number of leading zeros, in each lane; for 0 the number of bits of the type."""
    of = call.args[0].dtype
    kind, name = register_type(of), f"llvm.ctlz.{suffix(of)}"
    e.text.module.declare(name, kind, f"{kind}, i1 immarg")
    return convert(e, e.text.pure(f"call {kind} @{name}({kind} {e.value(call.args[0])}, i1 false)"), of, call.dtype)


def emit_reinterpret(e: Emitter, call: Call) -> str:
    """The bits of a value as another type of the same size, pointers included."""
    value, source, target = e.value(call.args[0]), register_type(call.args[0].dtype), register_type(call.dtype)
    if source == target:
        return value
    if "ptr" in (source, target):
        return e.text.pure(f"{'ptrtoint' if source == 'ptr' else 'inttoptr'} {source} {value} to {target}")
    return e.text.pure(f"bitcast {source} {value} to {target}")


def emit_vector_reduce(e: Emitter, call: Call) -> str:
    """The sum, the smallest or the largest lane of a vector; 16-bit floats are reduced in float32."""
    of, operation = call.args[0].dtype, REDUCTIONS[call.op]
    if of.lanes == 1:
        return e.value(call.args[0])
    through = compute_type(of)
    value = computed(e, call.args[0])
    if through.is_float and operation != "add":
        return rounded(e, _reduce_floats(e, value, through, operation), of.element)
    kind, element = register_type(through), register_type(through.element)
    start = f"{element} {constant(through.element, -0.0)}, " if through.is_float else ""
    sign = "" if operation == "add" else "s" if of.is_int else "u"
    name = f"llvm.vector.reduce.{'f' if through.is_float else sign}{operation}.{suffix(through)}"
    e.text.module.declare(name, element, f"{element}, {kind}" if start else kind)
    flags = "reassoc " if through.is_float else ""
    return rounded(e, e.text.pure(f"call {flags}{element} @{name}({start}{kind} {value})"), of.element)


def _reduce_floats(e: Emitter, value: str, of: DType, operation: str) -> str:
    """The extreme lane by tree reduction; a NaN in any lane is the result."""
    ordered = "ogt" if operation == "max" else "olt"
    while of.lanes > 1:
        half = of.lanes // 2
        part = of.element.with_lanes(half)
        low = slice_lanes(e.text, value, of, 0, half)
        high = slice_lanes(e.text, value, of, half, half)
        merged = float_extremum(e, part, ordered, low, high, False)
        if of.lanes % 2:
            rest = extract_lane(e.text, value, of, of.lanes - 1)
            first = float_extremum(e, of.element, ordered, extract_lane(e.text, merged, part, 0), rest, False)
            kind = register_type(part)
            merged = first if half == 1 else e.text.pure(
                f"insertelement {kind} {merged}, {register_type(of.element)} {first}, i64 0"
            )  # fmt: skip
        value, of = merged, part
    return value
