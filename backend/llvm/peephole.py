"""Peepholes: patterns of expressions of the loop IR that become one operation of the code generator.

The operations are intrinsics that only this backend emits. They keep the order of their operands, so that rewriting
changes no order in which values are computed or captured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relayc.backend.llvm.codegen.dots import has_dot2_bfloat16
from relayc.backend.llvm.codegen.machine import Machine
from relayc.te.ir.visitor import post_order
from relayc.te.math import expand_dot2_bfloat16
from relayc.te.tir import (
    LT,
    Add,
    BufferLoad,
    Call,
    Cast,
    FloatImm,
    IntImm,
    Mul,
    PrimExpr,
    PrimFunc,
    Select,
    SizeVar,
    StringImm,
    Sub,
    Var,
)
from relayc.te.tir.intrinsics import INTRINSICS, intrinsic

__all__ = ["PEEPHOLES", "select_instructions"]

_HALF_BITS = 16
"""Bits of float16 and bfloat16."""

intrinsic("add_product", 3, lambda x, a, b: x + a * b, doc="(x, a, b): x + a * b, rounded once")
intrinsic("subtract_product", 3, lambda x, a, b: x - a * b, doc="(x, a, b): x - a * b, rounded once")
intrinsic("product_add", 3, lambda a, b, x: a * b + x, doc="(a, b, x): a * b + x, rounded once")
intrinsic("product_subtract", 3, lambda a, b, x: a * b - x, doc="(a, b, x): a * b - x, rounded once")
intrinsic("round_to_int32", 1, lambda x: np.round(x).astype(np.int32), doc="the nearest integer, ties to even")
intrinsic("all_below", 2, lambda x, limit: np.all(x < limit), doc="(x, limit): are all lanes below the limit?")
intrinsic("blend", 3, np.where, doc="(condition, x, y): x or y, vectors, without a branch")


def _added_to(op: str) -> Callable[..., Any]:
    product = INTRINSICS[op].reference
    assert product is not None
    return lambda x, *pairs: x + product(*pairs)


intrinsic("add_dot4", 3, _added_to("dot4"), doc="(x, a, b): x + dot4(a, b)")
intrinsic("add_dot8", 5, _added_to("dot8"), doc="(x, a, b, c, d): x + dot8(a, b, c, d)")
intrinsic("add_dot2_bfloat16", 3, _added_to("dot2_bfloat16"), doc="(x, a, b): x + dot2_bfloat16(a, b)")


def accumulate_dot_product(expr: Add, machine: Machine) -> PrimExpr | None:
    """x + dot(a, b): one instruction with VNNI, or vdpbf16ps."""
    if not isinstance(expr.a, Call) and not isinstance(expr.b, Call):
        return None
    for product, other in ((expr.b, expr.a), (expr.a, expr.b)):
        if isinstance(product, Call) and product.op in ("dot4", "dot8"):
            return Call(expr.dtype, f"add_{product.op}", (other, *product.args))
        if isinstance(product, Call) and product.op == "dot2_bfloat16":
            x, y = product.args
            if has_dot2_bfloat16(machine, expr.dtype.lanes):
                return Call(expr.dtype, "add_dot2_bfloat16", (other, x, y))
            return expand_dot2_bfloat16(x, y, other)
    return None


def expand_dot_product(call: Call, machine: Machine) -> PrimExpr | None:
    """A dot product of bfloat16 by products of float32, where the processor has no instruction for it."""
    if call.op != "dot2_bfloat16" or has_dot2_bfloat16(machine, call.dtype.lanes):
        return None
    return expand_dot2_bfloat16(*call.args)


def contract_product(expr: Add | Sub, machine: Machine) -> PrimExpr | None:
    """a * b + c, a * b - c or c - a * b: one fused multiply-add.

    16-bit floats are not contracted: their product has to be rounded on its own.
    """
    if not (machine.fma and expr.dtype.is_float and expr.dtype.bits != _HALF_BITS):
        return None
    a, b, adds = expr.a, expr.b, isinstance(expr, Add)
    if isinstance(b, Mul):
        return Call(expr.dtype, "add_product" if adds else "subtract_product", (a, b.a, b.b))
    if isinstance(a, Mul):
        return Call(expr.dtype, "product_add" if adds else "product_subtract", (a.a, a.b, b))
    return None


def round_to_integer(expr: Cast, machine: Machine) -> PrimExpr | None:
    """int32(round(x)) of float32: one instruction on x86, where rounding and converting would be two."""
    inner = expr.value
    if not (isinstance(inner, Call) and inner.op == "round"):
        return None
    is_known = (inner.dtype.element, expr.dtype.element) == ("float32", "int32")
    return Call(expr.dtype, "round_to_int32", inner.args) if is_known else None


def compare_all_lanes(call: Call, machine: Machine) -> PrimExpr | None:
    """likely(vector_reduce_max(x) < limit) of integers: half of the instructions of a full maximum on x86."""
    test = call.args[0] if call.op == "likely" else None
    if not (isinstance(test, LT) and test.a.dtype.is_integral and "sse2" in machine.features):
        return None
    highest = test.a
    if not (isinstance(highest, Call) and highest.op == "vector_reduce_max"):
        return None
    return Call(call.dtype, "all_below", (highest.args[0], test.b))


def blend_by_data(expr: Select, machine: Machine) -> PrimExpr | None:
    """A select between vectors by a scalar that is read: LLVM would branch, which processors can't predict."""
    is_choice = expr.dtype.lanes > 1 and expr.condition.dtype.lanes == 1
    if not is_choice or not any(isinstance(node, BufferLoad) for node in post_order(expr.condition)):
        return None
    return Call(expr.dtype, "blend", (expr.condition, expr.true_value, expr.false_value))


Peephole = Callable[[Any, Machine], PrimExpr | None]
PEEPHOLES: Mapping[type, tuple[Peephole, ...]] = {
    Add: (accumulate_dot_product, contract_product),
    Sub: (contract_product,),
    Cast: (round_to_integer,),
    Call: (expand_dot_product, compare_all_lanes),
    Select: (blend_by_data,),
}
"""Class of a node -> what it may become: the first that gives an expression, which is rewritten in turn."""


_LEAVES = frozenset((Var, SizeVar, IntImm, FloatImm, StringImm))


def select_instructions(function: PrimFunc, machine: Machine) -> PrimFunc:
    """`function` with the patterns replaced, the last step before code is emitted; the same object if it has none."""

    def rewrite(node: Any) -> Any:
        node_class = node.__class__
        if node_class in _LEAVES:
            return node
        for peephole in PEEPHOLES.get(node_class, ()):
            found = peephole(node, machine)
            if found is not None:
                return rewrite(found)
        return node.rebuild(rewrite)

    return function.with_body(rewrite(function.body))
