"""Calls of functions: C functions, kernels, packed functions."""

from __future__ import annotations

from relayc.backend.llvm.codegen.convert import convert
from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.codegen.index import add_index, index_of, index_operand
from relayc.backend.llvm.codegen.memory import byte_offset
from relayc.backend.llvm.types import register_type
from relayc.te.dtype import INT32, DType, dtype
from relayc.te.errors import CompileError
from relayc.te.tir import Call, PrimExpr, StringImm

__all__ = [
    "CTX_DRAWS", "CTX_FREE", "CTX_PARALLEL", "CTX_SHORTAGE", "CTX_WORKSPACE", "call_range", "emit_call_extern",
    "emit_call_kernel", "emit_call_packed", "emit_call_packed_args", "emit_call_step", "may_exhaust", "string_of",
]  # fmt: skip

CTX_PARALLEL, CTX_WORKSPACE, CTX_FREE, CTX_CALL_PACKED, CTX_SHORTAGE, CTX_DRAWS = 0, 16, 24, 32, 40, 48
"""Byte offsets in the execution context (see backend/runtime/context.py), the parameter `%ctx` of every function."""
_INT, _FLOAT, _HANDLE, _STRING = 0, 2, 3, 11
"""Type codes of the arguments of packed functions."""


def emit_call_extern(e: Emitter, call: Call) -> str:
    """A call of a C function by its name, without the context."""
    return _call(e, call.dtype, _name(call), [_typed(e, a) for a in call.args[1:]])


def emit_call_kernel(e: Emitter, call: Call) -> str:
    """Call a kernel. Kernels return nothing and can't fail: the call's value is 0."""
    _call(e, dtype("void"), _name(call), [("ptr", "%ctx"), *[_typed(e, a) for a in call.args[1:]]])
    return "0"


def emit_call_step(e: Emitter, call: Call) -> str:
    """Run one iteration of the function that a "call_step" names."""
    one = index_of(e, call.args[-1])
    call_range(e, call, one, add_index(e, one, Index(None, 1, 0)))
    return "0"


def may_exhaust(e: Emitter, call: Call) -> bool:
    """May the kernel that is called run out of workspace? One of another module may."""
    return _name(call) not in e.text.module.finishing


def call_range(e: Emitter, call: Call, first: Index, last: Index) -> None:
    """Run the iterations [first, last) of the function that a "call_step" names."""
    kind = register_type(call.args[-1].dtype)
    bounds = [(kind, e.text.pure(f"trunc i64 {index_operand(e, b)} to {kind}")) for b in (first, last)]
    arguments = [_typed(e, a) for a in call.args[1:-1]]
    _call(e, dtype("void"), _name(call), [("ptr", "%ctx"), *arguments, *bounds])


def _typed(e: Emitter, expr: PrimExpr) -> tuple[str, str]:
    if isinstance(expr, StringImm):
        return "ptr", e.text.module.string(expr.value)
    return register_type(expr.dtype), e.value(expr)


def _call(e: Emitter, of: DType, name: str, args: list[tuple[str, str]]) -> str:
    result = register_type(of)
    e.text.module.declare(name, result, ", ".join([kind for kind, _ in args]))
    line = f"call {result} @{name}({', '.join([f'{kind} {value}' for kind, value in args])})"
    if result == "void":
        e.text.effect(line)
        return "0"
    return e.text.value(line)


def emit_call_packed(e: Emitter, call: Call) -> str:
    """Emit `ctx->call_packed(ctx, name, args, type_codes, n)`: each argument in 8 bytes, with a type code each."""
    values, count = call.args[1:], len(call.args) - 1
    slots = e.text.alloca(f"[{max(count, 1)} x i64]", 8)
    codes = e.text.alloca(f"[{max(count, 1)} x i32]", 4)
    for i, value in enumerate(values):
        kind, operand, code = _packed_argument(e, value)
        e.text.effect(f"store {kind} {operand}, ptr {byte_offset(e, slots, 8 * i)}, align 8")
        e.text.effect(f"store i32 {code}, ptr {byte_offset(e, codes, 4 * i)}, align 4")
    return _call_python(e, call, slots, codes, str(count))


def emit_call_packed_args(e: Emitter, call: Call) -> str:
    """Call a packed function with the caller's argument arrays: (name, args, type_codes, count)."""
    slots, codes, count = (e.value(a) for a in call.args[1:])
    return _call_python(e, call, slots, codes, count)


def _call_python(e: Emitter, call: Call, slots: str, codes: str, count: str) -> str:
    target = e.text.value(f"load ptr, ptr {byte_offset(e, '%ctx', CTX_CALL_PACKED)}, align 8")
    name = e.text.module.string(_name(call))
    result = e.text.value(f"call i32 {target}(ptr %ctx, ptr {name}, ptr {slots}, ptr {codes}, i32 {count})")
    return convert(e, result, INT32, call.dtype) if call.dtype.is_integral else result


def _packed_argument(e: Emitter, value: PrimExpr) -> tuple[str, str, int]:
    of = value.dtype
    if isinstance(value, StringImm):
        return "ptr", e.text.module.string(value.value), _STRING
    if of.is_handle:
        return "ptr", e.value(value), _HANDLE
    if of.is_float:
        return "double", convert(e, e.value(value), of, dtype("float64")), _FLOAT
    return "i64", convert(e, e.value(value), of, dtype("int64")), _INT


def _name(call: Call) -> str:
    return string_of(call.args[0], call)


def string_of(expr: PrimExpr, call: Call) -> str:
    """The text of a call's argument that is a string."""
    if not isinstance(expr, StringImm):
        raise CompileError(f"{call.op} takes a name here, not {expr}")
    return expr.value
