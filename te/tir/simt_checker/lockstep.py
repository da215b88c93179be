"""Evaluation of expressions for all threads of a block and all iterations of the surrounding loops in one step.

A value is a Python number when it is the same everywhere, else an array with one axis for the threads, one for each
level of loop nesting, and a last one for the lanes of a vector; axes along which it does not vary have length 1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from relayc.te.dtype import DType
from relayc.te.errors import CompileError
from relayc.te.ir.visitor import Visitor
from relayc.te.tir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    Binary,
    Broadcast,
    BufferLoad,
    Call,
    Cast,
    Compare,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Logical,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    PrimExpr,
    Ramp,
    Select,
    Shuffle,
    Sub,
    Var,
)
from relayc.te.tir.intrinsics import INTRINSICS
from relayc.te.tir.values import numpy_dtype

__all__ = ["Lockstep", "Mask", "both"]

Mask = Any
"""Which threads and iterations are active: True for all, or an array of bools."""


def both(a: Mask, b: Any) -> Mask:
    """The conjunction of two masks."""
    if a is True:
        return b if isinstance(b, np.ndarray) else bool(b)
    if isinstance(b, np.ndarray):
        return a & b
    return a if b else False


def _truncated(quotient: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compute(a: Any, b: Any) -> Any:
        exact = np.where(b == 0, 1, b) if isinstance(b, np.ndarray) else b
        floor = a // exact
        towards_zero = floor + ((a % exact != 0) & ((a < 0) != (exact < 0)))
        return quotient(a, towards_zero * exact) if quotient is operator.sub else towards_zero

    return compute


def _safe(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A division without warnings about zero divisors in inactive threads."""
    return lambda a, b: compute(a, np.where(b == 0, 1, b) if isinstance(b, np.ndarray) else b)


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    Add: operator.add, Sub: operator.sub, Mul: operator.mul, FloorDiv: _safe(operator.floordiv),
    FloorMod: _safe(operator.mod), Div: _truncated(operator.floordiv), Mod: _truncated(operator.sub),
    Min: lambda a, b: min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b),
    Max: lambda a, b: max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b),
}  # fmt: skip
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    EQ: operator.eq, NE: operator.ne, LT: operator.lt, LE: operator.le, GT: operator.gt, GE: operator.ge,
}  # fmt: skip


class Lockstep(Visitor[Any]):
    """Evaluates expressions. A subclass says what a load gives (`load`) and a call with effects (`effect`)."""

    def __init__(self, depth: int) -> None:
        self.dimensions = depth + 2
        self.env: dict[Var, Any] = {}
        self.mask: Mask = True

    def load(self, node: BufferLoad) -> Any:
        """The value of a load, under `self.mask`."""
        raise NotImplementedError

    def effect(self, node: Call) -> Any:
        """The value of a call that is not pure."""
        raise NotImplementedError

    def along(self, axis: int, count: int, start: Any = 0) -> Any:
        """start, start + 1, ... along one axis."""
        shape = [1] * self.dimensions
        shape[axis] = count
        return start + np.arange(count).reshape(shape)

    def masked(self, mask: Mask, node: PrimExpr) -> Any:
        """The value of `node` where `mask` holds too; values of loads elsewhere are undefined."""
        outer, self.mask = self.mask, both(self.mask, mask)
        value = self.visit(node)
        self.mask = outer
        return value

    def visit_Var(self, node: Var) -> Any:
        if node not in self.env:
            raise CompileError(f"the checker has no value for {node.name}; give it among `sizes`")
        return self.env[node]

    def visit_IntImm(self, node: IntImm) -> int:
        return node.value

    def visit_FloatImm(self, node: FloatImm) -> Any:
        return numpy_dtype(node.dtype).type(node.value)

    def visit_Cast(self, node: Cast) -> Any:
        value = self.visit(node.value)
        if isinstance(value, int) and node.dtype.is_int:
            return value
        return self.typed(node.dtype, value)

    def typed(self, to: DType, value: Any) -> Any:
        """A value in the numpy type of a type of the IR."""
        return np.asarray(value).astype(numpy_dtype(to.element))[()]

    def visit_Binary(self, node: Binary) -> Any:
        a, b = self.visit(node.a), self.visit(node.b)
        if node.dtype.is_float and isinstance(node, Div):
            return a / b
        return _BINARY[type(node)](a, b)

    def visit_Compare(self, node: Compare) -> Any:
        return _COMPARE[type(node)](self.visit(node.a), self.visit(node.b))

    def visit_Logical(self, node: Logical) -> Any:
        """Evaluate the second operand only where the first does not decide."""
        conjunction = node.sign == "and"
        a = self.visit(node.a)
        if not isinstance(a, np.ndarray):
            return self.visit(node.b) if bool(a) == conjunction else not conjunction
        b = self.masked(a if conjunction else ~a, node.b)
        return a & b if conjunction else a | b

    def visit_Not(self, node: Not) -> Any:
        a = self.visit(node.a)
        return ~a if isinstance(a, np.ndarray) else not a

    def visit_Select(self, node: Select) -> Any:
        condition = self.visit(node.condition)
        return self.choose(condition, self.visit(node.true_value), self.visit(node.false_value))

    def choose(self, condition: Any, a: Any, b: Any) -> Any:
        """`a` where `condition` holds, else `b`."""
        return np.where(condition, a, b) if isinstance(condition, np.ndarray) else (a if condition else b)

    def visit_Let(self, node: Let) -> Any:
        self.env[node.var] = self.visit(node.value)
        return self.visit(node.body)

    def visit_Ramp(self, node: Ramp) -> Any:
        return self.visit(node.base) + self.visit(node.stride) * self.along(-1, node.lanes)

    def visit_Broadcast(self, node: Broadcast) -> Any:
        return self.visit(node.value)

    def visit_Shuffle(self, node: Shuffle) -> Any:
        vectors: list[np.ndarray] = []
        for vector in node.vectors:
            value = np.asarray(self.visit(vector))
            value = value if value.ndim else value.reshape((1,) * self.dimensions)
            vectors.append(np.broadcast_to(value, (*value.shape[:-1], vector.dtype.lanes)))
        common = np.broadcast_shapes(*[v.shape[:-1] for v in vectors])
        joined = np.concatenate([np.broadcast_to(v, (*common, v.shape[-1])) for v in vectors], axis=-1)
        return joined[..., list(node.indices)]

    def visit_BufferLoad(self, node: BufferLoad) -> Any:
        return self.load(node)

    def visit_Call(self, node: Call) -> Any:
        if node.op == "if_then_else":
            condition = self.visit(node.args[0])
            if not isinstance(condition, np.ndarray):
                return self.visit(node.args[1 if condition else 2])
            a, b = self.masked(condition, node.args[1]), self.masked(~condition, node.args[2])
            return np.where(condition, a, b)
        if node.op == "likely":
            return self.visit(node.args[0])
        if node.op == "reinterpret":
            value = np.asarray(self.typed(node.args[0].dtype, self.visit(node.args[0])))
            return value.view(numpy_dtype(node.dtype.element))[()]
        row = INTRINSICS[node.op]
        if not row.pure or row.reference is None:
            return self.effect(node)
        if node.op.startswith("vector_reduce"):
            return row.reference(self.visit(node.args[0]), axis=-1, keepdims=True)
        args = [self.typed(a.dtype, self.visit(a)) for a in node.args]
        return self.typed(node.dtype, row.reference(*args))
