"""The visitor: how each node of the loop IR becomes LLVM assembly (`RULES`), and the nodes that take a few lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relayc.backend.llvm.codegen.accumulators import emit_store
from relayc.backend.llvm.codegen.arithmetic import emit_binary, emit_maximum, emit_minimum
from relayc.backend.llvm.codegen.conditions import emit_compare, emit_logical, emit_not, emit_select
from relayc.backend.llvm.codegen.convert import convert
from relayc.backend.llvm.codegen.emitter import Emitter, Rules
from relayc.backend.llvm.codegen.index import bind, index_operand
from relayc.backend.llvm.codegen.intrinsics import emit_call
from relayc.backend.llvm.codegen.loads import emit_load, load_widened
from relayc.backend.llvm.codegen.statements import (
    emit_assert,
    emit_attribute,
    emit_evaluate,
    emit_for,
    emit_if,
    emit_let_stmt,
    emit_sequence,
    emit_while,
)
from relayc.backend.llvm.codegen.vectors import extract_lane, pack_lanes, splat
from relayc.backend.llvm.codegen.workspace import emit_allocate
from relayc.backend.llvm.types import constant, register_type, vector_constant
from relayc.te.errors import CompileError
from relayc.te.tir import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    Allocate,
    And,
    AssertStmt,
    AttrStmt,
    Broadcast,
    BufferLoad,
    BufferStore,
    Call,
    Cast,
    Div,
    Evaluate,
    FloatImm,
    FloorDiv,
    FloorMod,
    For,
    IfThenElse,
    IntImm,
    Let,
    LetStmt,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    Or,
    Ramp,
    Select,
    SeqStmt,
    Shuffle,
    SizeVar,
    Sub,
    Var,
    While,
)

__all__ = ["RULES"]


def emit_variable(e: Emitter, var: Var) -> str:
    held = e.values.get(var)
    if held is not None:
        return held
    wide = e.indices.get(var)
    if wide is None:
        raise CompileError(f"variable {var.name} is used before it has a value")
    if wide.value is None:
        return str(wide.constant)
    value, kind = index_operand(e, wide), register_type(var.dtype)
    return value if kind == "i64" else e.text.pure(f"trunc i64 {value} to {kind}")


def emit_constant(e: Emitter, imm: IntImm | FloatImm) -> str:
    return constant(imm.dtype, imm.value)


def emit_broadcast(e: Emitter, expr: Broadcast) -> str:
    return splat(e.text, e.value(expr.value), expr.dtype)


def emit_ramp(e: Emitter, expr: Ramp) -> str:
    of, kind = expr.dtype, register_type(expr.dtype)
    base = splat(e.text, e.value(expr.base), of)
    if isinstance(expr.stride, IntImm):
        steps = vector_constant(of, [i * expr.stride.value for i in range(of.lanes)])
    else:
        stride = splat(e.text, e.value(expr.stride), of)
        steps = e.text.pure(f"mul {kind} {stride}, {vector_constant(of, list(range(of.lanes)))}")
    return e.text.pure(f"add {kind} {base}, {steps}")


def emit_shuffle(e: Emitter, expr: Shuffle) -> str:
    vectors = [(e.value(v), v.dtype) for v in expr.vectors]
    lanes = [(value, of, i) for value, of in vectors for i in range(of.lanes)]
    if expr.dtype.lanes == 1:
        value, of, i = lanes[expr.indices[0]]
        return extract_lane(e.text, value, of, i)
    if len(vectors) <= 2 and vectors[0][1].lanes > 1 and vectors[0][1] == vectors[-1][1]:
        kind = register_type(vectors[0][1])
        second = vectors[1][0] if len(vectors) == 2 else "poison"
        picks = ", ".join([f"i32 {i}" for i in expr.indices])
        mask = f"<{len(expr.indices)} x i32> <{picks}>"
        return e.text.pure(f"shufflevector {kind} {vectors[0][0]}, {kind} {second}, {mask}")
    return pack_lanes(e.text, [extract_lane(e.text, *lanes[i]) for i in expr.indices], expr.dtype)


def emit_let(e: Emitter, expr: Let) -> str:
    bind(e, expr.var, expr.value)
    return e.value(expr.body)


def emit_cast(e: Emitter, expr: Cast) -> str:
    """A conversion, in one step with the load of what is converted where that pays."""
    inner = expr.value
    widened = load_widened(e, inner, expr.dtype) if isinstance(inner, BufferLoad) else None
    return convert(e, e.value(inner), inner.dtype, expr.dtype) if widened is None else widened


class _Table(dict[type, Callable[[Emitter, Any], Any]]):
    """Class of a node -> the function that emits such nodes."""

    def __missing__(self, node_class: type) -> Callable[[Emitter, Any], Any]:
        return _unsupported


def _unsupported(e: Emitter, node: Any) -> Any:
    raise CompileError(f"the llvm target has no code for {type(node).__name__}: {node}; lower it first")


_EXPRESSIONS = _Table({
    Var: emit_variable,
    SizeVar: emit_variable,
    IntImm: emit_constant,
    FloatImm: emit_constant,
    Cast: emit_cast,
    Let: emit_let,
    Call: emit_call,
    BufferLoad: emit_load,
    # vectors
    Broadcast: emit_broadcast,
    Ramp: emit_ramp,
    Shuffle: emit_shuffle,
    # arithmetic
    Min: emit_minimum,
    Max: emit_maximum,
    **dict.fromkeys((Add, Sub, Mul, Div, Mod, FloorDiv, FloorMod), emit_binary),
    # conditions
    **dict.fromkeys((EQ, NE, LT, LE, GT, GE), emit_compare),
    **dict.fromkeys((And, Or), emit_logical),
    Not: emit_not,
    Select: emit_select,
})  # fmt: skip
_STATEMENTS = _Table({
    SeqStmt: emit_sequence,
    LetStmt: emit_let_stmt,
    BufferStore: emit_store,
    Allocate: emit_allocate,
    Evaluate: emit_evaluate,
    For: emit_for,
    While: emit_while,
    IfThenElse: emit_if,
    AttrStmt: emit_attribute,
    AssertStmt: emit_assert,
})  # fmt: skip
RULES = Rules(_EXPRESSIONS, _STATEMENTS)
"""How each node of the loop IR becomes LLVM assembly."""
