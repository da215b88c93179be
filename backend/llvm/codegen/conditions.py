"""Conditions: comparisons, logic, and what is chosen by them."""

from __future__ import annotations

from functools import partial
from operator import and_, or_

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.convert import computed
from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.codegen.index import add_index, index_of, index_operand, is_index, splatted_int
from relayc.backend.llvm.codegen.math import CONTRACTED
from relayc.backend.llvm.codegen.vector_index import COMPARE_INTS, known_outcomes
from relayc.backend.llvm.codegen.vectors import (
    call_overloaded,
    flags_text,
    known_flags,
    slice_lanes,
    splat,
    value_of_branches,
)
from relayc.backend.llvm.types import compute_type, register_type
from relayc.te.dtype import DType, dtype
from relayc.te.tir import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    And,
    Broadcast,
    BufferLoad,
    Call,
    Compare,
    Div,
    FloorDiv,
    FloorMod,
    Let,
    Logical,
    Mod,
    Not,
    PrimExpr,
    Ramp,
    Select,
)

__all__ = [
    "branches_rarely",
    "emit_all_below",
    "emit_assume",
    "emit_blend",
    "emit_compare",
    "emit_if_then_else",
    "emit_likely",
    "emit_logical",
    "emit_not",
    "emit_select",
]  # fmt: skip

_PREDICATES: dict[type, tuple[str, str, str]] = {
    EQ: ("oeq", "eq", "eq"), NE: ("une", "ne", "ne"), LT: ("olt", "slt", "ult"),
    LE: ("ole", "sle", "ule"), GT: ("ogt", "sgt", "ugt"), GE: ("oge", "sge", "uge"),
}  # fmt: skip
_LANES_BELOW = {LT: ("ult", 0), LE: ("ult", 1), GE: ("uge", 0), GT: ("uge", 1)}
"""Comparison -> (predicate between the lane number and the count of lanes below the limit, addend of the count)."""
_HARMLESS = frozenset(("likely", *CONTRACTED))
"""Intrinsics that may be evaluated speculatively."""
_TRUE = ("true", "splat (i1 true)")
_LIKELY = ("likely", "all_below")
"""Intrinsics of conditions that the schedule expects to hold."""
_FALSE = ("false", "splat (i1 false)", "zeroinitializer")


def emit_if_then_else(e: Emitter, call: Call) -> str:
    """The value of one side; only that side is evaluated where evaluating the other one could touch memory."""
    condition = e.value(call.args[0])
    if condition in ("true", "false", "splat (i1 true)"):
        return e.value(call.args[2 if condition == "false" else 1])
    if call.args[0].dtype.lanes > 1:
        return _choose_lanes(e, call, condition)
    if is_harmless(e, call.args[1]) and is_harmless(e, call.args[2]):
        kind = register_type(call.dtype)
        a, b = e.value(call.args[1]), e.value(call.args[2])
        return e.text.pure(f"select i1 {condition}, {kind} {a}, {kind} {b}")
    then, otherwise = (partial(e.value, side) for side in call.args[1:])
    is_likely = _is_likely(call.args[0])
    return value_of_branches(e.text, condition, register_type(call.dtype), then, otherwise, likely=is_likely)


def branches_rarely(expr: PrimExpr) -> bool:
    """Is a value one of two, of which the other one is seldom computed?"""
    while isinstance(expr, Let):
        expr = expr.body
    return isinstance(expr, Call) and expr.op == "if_then_else" and _is_likely(expr.args[0])


def _is_likely(condition: PrimExpr) -> bool:
    return isinstance(condition, Call) and condition.op in _LIKELY


def _choose_lanes(e: Emitter, call: Call, condition: str) -> str:
    """A select in which both sides are evaluated, with memory accesses masked to the lanes that take the side."""
    lanes, outer, kind = call.dtype.lanes, e.mask, register_type(call.dtype)
    flag, pure = f"<{lanes} x i1>", e.text.pure
    values: list[str] = []
    for side, wanted in ((call.args[1], True), (call.args[2], False)):
        if is_harmless(e, side):
            values.append(e.value(side))
            continue
        mask = condition if wanted else pure(f"xor {flag} {condition}, splat (i1 true)")
        if outer is not None and outer[1] == lanes:
            mask = pure(f"and {flag} {mask}, {outer[0]}")
        e.mask = (mask, lanes)
        values.append(e.value(side))
        e.mask = outer
    return pure(f"select {flag} {condition}, {kind} {values[0]}, {kind} {values[1]}")


def emit_likely(e: Emitter, call: Call) -> str:
    """A guard of the schedule: its condition."""
    return e.value(call.args[0])


def emit_all_below(e: Emitter, call: Call) -> str:
    """Are all lanes of integers below a limit? Maxima of halves, then a comparison to a bit mask."""
    values, limit = call.args
    value, of = e.value(values), values.dtype
    while of.lanes % 2 == 0 and of.bits * of.lanes > e.machine.vector_bits:
        half = of.element.with_lanes(of.lanes // 2)
        low, high = (
            slice_lanes(e.text, value, of, 0, half.lanes),
            slice_lanes(e.text, value, of, half.lanes, half.lanes),
        )
        value, of = call_overloaded(e.text, "smax" if of.is_int else "umax", half, low, high), half
    bound = splat(e.text, e.value(limit), of) if of.lanes > 1 else e.value(limit)
    below = e.text.pure(f"icmp {'slt' if of.is_int else 'ult'} {register_type(of)} {value}, {bound}")
    if of.lanes == 1:
        return below
    word = e.text.pure(f"bitcast <{of.lanes} x i1> {below} to i{of.lanes}")
    return e.text.pure(f"icmp eq i{of.lanes} {word}, -1")


def emit_assume(e: Emitter, call: Call) -> str:
    """A promise to LLVM that a condition holds."""
    e.text.module.declare("llvm.assume", "void", "i1")
    e.text.effect(f"call void @llvm.assume(i1 {e.value(call.args[0])})")
    return "0"


def emit_compare(e: Emitter, expr: Compare) -> str:
    """A comparison; floats that are NaN compare as unequal, and neither less nor greater."""
    ordered, signed, unsigned = _PREDICATES[expr.__class__]
    of = expr.a.dtype
    if of.is_int and of.lanes == 1 and is_index(e, expr.a) and is_index(e, expr.b):
        return _compare_index(e, expr, signed)
    known = _constant_compare(e, expr) if of.is_int and of.lanes > 1 else None
    if known is not None:
        return known
    counted = _lanes_below(e, expr) if of.is_int and of.lanes > 1 else None
    if counted is not None:
        return counted
    kind = register_type(compute_type(of))
    if of.is_float:
        return e.text.pure(f"fcmp {ordered} {kind} {computed(e, expr.a)}, {computed(e, expr.b)}")
    predicate = signed if of.is_int else unsigned
    return e.text.pure(f"icmp {predicate} {kind} {e.value(expr.a)}, {e.value(expr.b)}")


def _lanes_below(e: Emitter, expr: Compare) -> str | None:
    """Compare a ramp of positions with a limit by counting the lanes below it; None for other comparisons.

    The count is compared with narrow lane numbers, as many as fit a register, where masks have no width of their
    own: one instruction for 64 bytes, where 32-bit lanes take four, and three to join the masks.
    """
    lanes, first, limit = expr.a.dtype.lanes, expr.a, expr.b
    bits = 1 << max(e.machine.vector_bits // lanes, 8).bit_length() - 1
    if "avx512bw" not in e.machine.features or bits >= expr.a.dtype.bits or lanes >= 1 << bits:
        return None
    if not isinstance(first, Ramp) or not isinstance(limit, Broadcast) or splatted_int(e, first.stride) != 1:
        return None
    if expr.__class__ not in _LANES_BELOW or not (is_index(e, first.base) and is_index(e, limit.value)):
        return None
    predicate, more = _LANES_BELOW[expr.__class__]
    difference = add_index(e, index_of(e, limit.value), index_of(e, first.base), -1)
    positive = index_operand(e, Index(difference.value, difference.constant + more))
    for name, bound in (("smax", 0), ("smin", lanes)):
        positive = call_overloaded(e.text, name, dtype("int64"), positive, str(bound))
    kind = dtype(f"int{bits}")
    numbers = ", ".join([f"i{bits} {lane}" for lane in range(lanes)])
    count = splat(e.text, e.text.pure(f"trunc i64 {positive} to i{bits}"), kind.with_lanes(lanes))
    return e.text.pure(f"icmp {predicate} <{lanes} x i{bits}> <{numbers}>, {count}")


def _constant_compare(e: Emitter, expr: Compare) -> str | None:
    """The constant result of a comparison of constant vectors, else None."""
    outcomes = known_outcomes(e, expr)
    return None if outcomes is None else flags_text(outcomes)


def _compare_index(e: Emitter, expr: Compare, predicate: str) -> str:
    a, b = index_of(e, expr.a), index_of(e, expr.b)
    if a.value == b.value:
        return "true" if COMPARE_INTS[expr.__class__](a.constant, b.constant) else "false"
    return e.text.pure(f"icmp {predicate} i64 {index_operand(e, a)}, {index_operand(e, b)}")


def emit_logical(e: Emitter, expr: Logical) -> str:
    """And, or: of constants without an instruction."""
    is_and, kind = isinstance(expr, And), register_type(expr.dtype)
    a = e.value(expr.a)
    decided, neutral = (_FALSE, _TRUE) if is_and else (_TRUE, _FALSE)
    if a in decided:
        return a
    if a in neutral:
        return e.value(expr.b)
    if expr.dtype.lanes > 1 or is_harmless(e, expr.b):
        b = e.value(expr.b)
        if b in decided or b in neutral:
            return b if b in decided else a
        first, second = known_flags(a), known_flags(b)
        if first is not None and second is not None:
            return flags_text(list(map(and_ if is_and else or_, first, second)))
        return e.text.pure(f"{'and' if is_and else 'or'} {kind} {a}, {b}")
    return _short_circuit(e, expr.b, a, is_and)


def _short_circuit(e: Emitter, second: PrimExpr, a: str, is_and: bool) -> str:
    text = e.text
    before, more, done = text.block, text.label("more"), text.label("decided")
    text.branch(a, *((more, done) if is_and else (done, more)))
    text.place(more)
    with text.region():
        b = e.value(second)
    last = text.block
    text.goto(done)
    text.place(done)
    return text.value(f"phi i1 [ {'false' if is_and else 'true'}, %{before} ], [ {b}, %{last} ]")


def emit_not(e: Emitter, expr: Not) -> str:
    """The other boolean, in each lane."""
    a = e.value(expr.a)
    if a in ("true", "false"):
        return "false" if a == "true" else "true"
    ones = "true" if expr.dtype.lanes == 1 else "splat (i1 true)"
    return e.text.pure(f"xor {register_type(expr.dtype)} {a}, {ones}")


def emit_select(e: Emitter, expr: Select) -> str:
    """One of two values, both of which are evaluated, by a condition or a vector of them."""
    condition = e.value(expr.condition)
    if condition in _TRUE or condition in _FALSE:
        return e.value(expr.true_value if condition in _TRUE else expr.false_value)
    kind, flag = register_type(expr.dtype), register_type(expr.condition.dtype)
    a, b = e.value(expr.true_value), e.value(expr.false_value)
    return e.text.pure(f"select {flag} {condition}, {kind} {a}, {kind} {b}")


def emit_blend(e: Emitter, call: Call) -> str:
    """One of two vectors by a scalar condition, without a branch."""
    condition = e.value(call.args[0])
    if condition in _TRUE or condition in _FALSE:
        return e.value(call.args[1 if condition in _TRUE else 2])
    a, b = e.value(call.args[1]), e.value(call.args[2])
    return _blended(e.text, condition, a, b, call.dtype)


def _blended(text: FunctionText, condition: str, a: str, b: str, of: DType) -> str:
    """A bitwise select between vectors."""
    pure, bits = text.pure, dtype(f"int{8 * of.element.nbytes}").with_lanes(of.lanes)
    kind, own = register_type(bits), register_type(of)
    there, back = ("zext", "trunc") if of.is_bool else ("bitcast", "bitcast")
    mask = splat(text, pure(f"sext i1 {condition} to {register_type(bits.element)}"), bits)
    first, second = (pure(f"{there} {own} {value} to {kind}") if own != kind else value for value in (a, b))
    chosen = pure(f"and {kind} {mask}, {first}")
    if b != "zeroinitializer":
        unmasked = pure(f"xor {kind} {mask}, splat ({register_type(bits.element)} -1)")
        chosen = pure(f"or {kind} {chosen}, {pure(f'and {kind} {unmasked}, {second}')}")
    return chosen if own == kind else pure(f"{back} {kind} {chosen} to {own}")


def is_harmless(e: Emitter, expr: PrimExpr) -> bool:
    """May this be evaluated speculatively? It has no memory access, no call and no division by data."""
    if isinstance(expr, BufferLoad) or (isinstance(expr, Call) and expr.op not in _HARMLESS):
        return False
    if isinstance(expr, Div | Mod | FloorDiv | FloorMod) and not splatted_int(e, expr.b):
        return expr.dtype.is_float and is_harmless(e, expr.a) and is_harmless(e, expr.b)
    return all(is_harmless(e, child) for child in expr.node_children())  # type: ignore[arg-type]
