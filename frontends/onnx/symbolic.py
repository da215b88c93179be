"""Symbolic evaluation of shape arithmetic.

Exporters compute shapes with tensor operators: Shape, Gather, Concat, Mul, Slice ... Such small integer tensors are
evaluated symbolically, element by element, so that Reshape or Expand see symbolic sizes and the arithmetic disappears.
Anything else is computed by the program, and its result bound to a size variable.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relayc.relay import sizes
from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import OpDef
from relayc.relay.op.creation import Sizes
from relayc.te.tir import Dim, PrimExpr

__all__ = ["fold_sizes", "sizes_in"]

_MAX_ELEMENTS = 256
"""Most elements of tensors that are evaluated symbolically."""

_MOVING = frozenset({
    "reshape", "squeeze", "expand_dims", "concatenate", "stack", "take", "gather", "gather_nd", "strided_slice",
    "transpose", "broadcast_to", "tile", "split", "reverse", "repeat",
})  # fmt: skip
"""Data-movement operators, whose numpy reference works on elements of any type."""

_JOINING = frozenset({"concatenate", "stack"})


def sizes_in(expr: Expr) -> np.ndarray | None:
    """The elements of an integer tensor as sizes (an object array), if they are static or symbolic."""
    if isinstance(expr, Constant):
        return expr.data.astype(object) if expr.data.dtype.kind in "iu" and expr.data.size <= _MAX_ELEMENTS else None
    if isinstance(expr, Call) and isinstance(expr.op, Sizes):
        values = np.empty(len(expr.op.values), object)
        values[:] = expr.op.values
        return values.reshape(expr.op.shape)
    return None


def fold_sizes(call: Call) -> Expr | tuple[Expr, ...] | None:
    """Evaluate an operator on sizes, to sizes or a constant; None if that is impossible."""
    op = call.op
    if not isinstance(op, OpDef) or not any(isinstance(a, Call) and isinstance(a.op, Sizes) for a in call.args):
        return None
    passed = [sizes_in(a) for a in call.args]
    if op.name in _MOVING:
        movable = len(passed) if op.name in _JOINING else 1
        if any(g is None for g in passed[:movable]) or not all(isinstance(a, Constant) for a in call.args[movable:]):
            return None
        if sizes.size_variables(op.attributes().values()):
            return None
        indices = [a.data for a in call.args[movable:] if isinstance(a, Constant)]
        return _as_result(op.reference(*passed[:movable], *indices), str(call.args[0].dtype))
    if op.name == "where":
        condition = call.args[0]
        if not isinstance(condition, Constant) or passed[1] is None or passed[2] is None:
            return None
        return _as_expr(np.where(condition.data, passed[1], passed[2]), str(call.dtype))
    if any(g is None for g in passed):
        return None
    arrays = [g for g in passed if g is not None]
    if op.name in _REDUCTIONS:
        return _reduce(call, arrays[0])
    return _elementwise(op, arrays, str(call.dtype)) if op.name in _ELEMENTWISE else None


def _as_result(result: Any, dtype: str) -> Expr | tuple[Expr, ...]:
    if isinstance(result, tuple):
        return tuple([_as_expr(part, dtype) for part in result])
    return _as_expr(np.asarray(result, object), dtype)


def _as_expr(values: np.ndarray, dtype: str) -> Expr:
    flat = list(values.reshape(-1))
    if any(isinstance(v, PrimExpr) for v in flat):
        return Sizes(values=tuple(flat), shape=values.shape, dtype=dtype)()
    return Constant(np.array([int(v) for v in flat], dtype).reshape(values.shape))


def _elementwise(op: OpDef, arrays: Sequence[np.ndarray], dtype: str) -> Expr | None:
    if op.name == "cast" and dtype not in ("int32", "int64"):
        return None
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    operands = [np.broadcast_to(a, shape).reshape(-1) for a in arrays]
    results = [_ELEMENTWISE[op.name](*pair) for pair in zip(*operands, strict=True)]
    if any(r is None for r in results):
        return None
    values = np.empty(len(results), object)
    values[:] = results
    return _as_expr(values.reshape(shape), dtype)


def _reduce(call: Call, values: np.ndarray) -> Expr | None:
    """Reduce a vector of sizes."""
    if values.ndim != 1 or not values.size:
        return None
    result = np.empty(call.tensor_type.static_shape, object)
    result[...] = functools.reduce(_REDUCTIONS[call.operator.name], values)
    return _as_expr(result, str(call.dtype))


def _divide(a: Dim, b: Dim) -> Dim | None:
    """Divide sizes. Floor and truncation agree for a >= 0, which is assumed of a size minus a constant."""
    if not sizes.is_at_least(b, 1 if isinstance(b, int) else 0):
        return None
    if sizes.is_at_least(a, 0) or (isinstance(b, int) and sizes.dims_match(a, sizes.larger(a, 0))):
        return sizes.floor_divide(a, b)
    return None


def _modulo(a: Dim, b: Dim) -> Dim | None:
    quotient = _divide(a, b)
    return None if quotient is None else sizes.add_sizes(a, sizes.product((-1, b, quotient)))


def _decided(holds: Callable[[Dim, Dim], bool], fails: Callable[[Dim, Dim], bool]) -> Callable[[Dim, Dim], bool | None]:
    """A comparison that is decided where it holds, or fails, for all sizes."""
    return lambda a, b: True if holds(a, b) else (False if fails(a, b) else None)


def _above(a: Dim, b: Dim) -> bool:
    return sizes.is_at_least(a, sizes.add_sizes(b, 1))


def _differ(a: Dim, b: Dim) -> bool:
    return _above(a, b) or _above(b, a)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": sizes.add_sizes,
    "subtract": lambda a, b: sizes.add_sizes(a, sizes.product((-1, b))),
    "multiply": lambda a, b: sizes.product((a, b)),
    "divide": _divide,
    "trunc_divide": _divide,
    "floor_divide": _divide,
    "floor_mod": _modulo,
    "trunc_mod": _modulo,
    "minimum": sizes.smaller,
    "maximum": sizes.larger,
    "negative": lambda a: sizes.product((-1, a)),
    "abs": lambda a: a if sizes.is_at_least(a, 0) else None,
    "copy": lambda a: a,
    "cast": lambda a: a,
    "equal": _decided(sizes.dims_equal, _differ),
    "not_equal": _decided(_differ, sizes.dims_equal),
    "less": _decided(lambda a, b: _above(b, a), sizes.is_at_least),
    "less_equal": _decided(lambda a, b: sizes.is_at_least(b, a), _above),
    "greater": _decided(_above, lambda a, b: sizes.is_at_least(b, a)),
    "greater_equal": _decided(sizes.is_at_least, lambda a, b: _above(b, a)),
}

_REDUCTIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "prod": lambda a, b: sizes.product((a, b)),
    "sum": sizes.add_sizes,
    "max": sizes.larger,
    "min": sizes.smaller,
}
