"""Symbolic evaluation of shape arithmetic.

Exporters compute shapes with tensor operators: Shape, Gather, Concat, Mul, Slice ... Such small tensors are evaluated
symbolically, element by element, so that Reshape or Expand see symbolic sizes and the arithmetic disappears. An element
that can't be followed is computed by the program, and bound to a size variable where a shape needs it; the elements
beside it stay known.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relayc.frontends.onnx.size_elements import (
    FLOAT_RULES,
    INTEGER_RULES,
    REDUCTIONS,
    Element,
    Ratio,
    Unknown,
    cast_element,
    float_element,
)
from relayc.frontends.onnx.sizes import MOST_ROUNDINGS
from relayc.relay import sizes
from relayc.relay.expr import Call, Constant, Expr, TupleGetItem
from relayc.relay.op.base import OpDef
from relayc.relay.op.creation import Sizes
from relayc.relay.op.indexing import CumSum
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.dtype import DType
from relayc.te.tir import PrimExpr

__all__ = ["KnownElements"]

_MAX_ELEMENTS = 256
"""Most elements of tensors that are evaluated symbolically."""

_MOVING = frozenset({
    "reshape", "squeeze", "expand_dims", "concatenate", "stack", "take", "gather", "gather_nd", "strided_slice",
    "transpose", "broadcast_to", "tile", "split", "reverse", "repeat",
})  # fmt: skip
"""Data-movement operators, whose numpy reference works on elements of any type."""

_JOINING = frozenset({"concatenate", "stack"})

_FLOATS = frozenset({"float32", "float64"})
_SIGNED = frozenset({"int32", "int64"})
_UNSIGNED = frozenset({"uint32", "uint64"})
_FOLLOWED = {*_FLOATS, *_SIGNED, *_UNSIGNED, "bool"}
"""Element types that hold sizes exactly."""

_WRAPPING = frozenset({"subtract", "negative"})
"""Operators whose results on unsigned integers are not those on sizes."""


class KnownElements:
    """The elements of the tensors of one import, as far as they are known: see `size_elements`."""

    def __init__(self) -> None:
        self._found: dict[Expr, tuple[np.ndarray, ...]] = {}
        """the elements of computed tensors (of each result) some of which are known, or come from other tensors"""
        self._computed: dict[Expr, np.ndarray] = {}
        """the elements of other computed tensors, none of which is known"""

    def of(self, expr: Expr) -> np.ndarray | None:
        """The elements of a small tensor, an object array of `Element`; None for other values."""
        if isinstance(expr, Constant):
            return _constant_elements(expr.data)
        if isinstance(expr, Call) and isinstance(expr.op, Sizes):
            return _array(expr.op.values, expr.op.shape)
        if isinstance(expr, TupleGetItem) and expr.tuple_value in self._found:
            return self._found[expr.tuple_value][expr.index]
        if expr in self._found:
            return self._found[expr][0]
        if not _is_small(expr.ty):
            return None
        if expr not in self._computed:
            self._computed[expr] = _unknown(expr, expr.tensor_type.static_shape)
        return self._computed[expr]

    def fold(self, call: Call) -> Expr | tuple[Expr, ...] | None:
        """Evaluate an operator to sizes or a constant; None where an element is not known, with the others noted."""
        if not isinstance(call.op, OpDef) or not self._follows(call):
            return None
        results = self._evaluate(call)
        if results is None:
            return None
        fields = call.ty.fields if isinstance(call.ty, TupleType) else (call.ty,)
        folded = [_as_expr(part, ty) for part, ty in zip(results, fields, strict=True)]
        known = tuple([x for x in folded if x is not None])
        if len(known) == len(folded):
            return known if isinstance(call.ty, TupleType) else known[0]
        if any(not isinstance(v, Unknown) or v.source is not call for part in results for v in part.flat):
            self._found[call] = results
        return None

    def _follows(self, call: Call) -> bool:
        """May something be known of the results?"""
        if not all(map(_is_small, call.ty.fields if isinstance(call.ty, TupleType) else (call.ty,))):
            return False
        if call.operator.name in _JOINING and call.dtype.is_int:
            return True
        return any((isinstance(a, Call) and isinstance(a.op, Sizes)) or self._is_noted(a) for a in call.args)

    def _is_noted(self, expr: Expr) -> bool:
        return expr in self._found or (isinstance(expr, TupleGetItem) and expr.tuple_value in self._found)

    def _evaluate(self, call: Call) -> tuple[np.ndarray, ...] | None:
        """The elements of each result; None for an operator that is not followed."""
        op = call.operator
        passed = [self.of(a) for a in call.args]
        if op.name in _MOVING:
            return _moved(call, passed)
        arrays = [a for a in passed if a is not None]
        if len(arrays) < len(passed):
            return None
        if op.name == "where":
            return (_elementwise(call, arrays, _selected),)
        if op.name in ("copy", "cast"):
            return (_elementwise(call, arrays, lambda v: _cast(v, call.args[0].dtype, call.dtype)),)
        if op.name in REDUCTIONS:
            return _reduced(call, arrays[0])
        dtype = str(call.args[0].dtype)
        rules = FLOAT_RULES if dtype in _FLOATS else INTEGER_RULES
        if op.name not in rules or dtype not in _FOLLOWED or (dtype in _UNSIGNED and op.name in _WRAPPING):
            return None
        return (_elementwise(call, arrays, _of_known(rules[op.name])),)


def _is_small(ty: Type) -> bool:
    return isinstance(ty, TensorType) and ty.size is not None and ty.size <= _MAX_ELEMENTS


def _array(values: Sequence[Any], shape: Sequence[int]) -> np.ndarray:
    elements = np.empty(len(values), object)
    elements[:] = values
    return elements.reshape(shape)


def _unknown(source: Expr, shape: Sequence[int]) -> np.ndarray:
    count = int(np.prod(shape, dtype=np.int64))
    return _array([Unknown(source, k) for k in range(count)], shape)


def _constant_elements(data: np.ndarray) -> np.ndarray | None:
    if data.size > _MAX_ELEMENTS or data.dtype.kind not in "iubf":
        return None
    if data.dtype.kind != "f":
        return data.astype(object)
    source = Constant(data)
    values = [float_element(float(v)) for v in data.reshape(-1)]
    return _array([Unknown(source, k) if v is None else v for k, v in enumerate(values)], data.shape)


def _as_expr(values: np.ndarray, ty: Type) -> Expr | None:
    """Known integers or bools as an expression; None for others."""
    assert isinstance(ty, TensorType)
    flat = list(values.reshape(-1))
    if any(isinstance(v, Unknown) for v in flat) or str(ty.dtype) not in (*_SIGNED, "bool"):
        return None
    if any(isinstance(v, PrimExpr) for v in flat):
        return Sizes(values=tuple(flat), shape=values.shape, dtype=str(ty.dtype))()
    return Constant(np.array([int(v) for v in flat], str(ty.dtype)).reshape(values.shape))


def _moved(call: Call, passed: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...] | None:
    op = call.operator
    movable = len(passed) if op.name in _JOINING else 1
    moved, indices = passed[:movable], [a.data for a in call.args[movable:] if isinstance(a, Constant)]
    if any(a is None for a in moved) or len(indices) < len(passed) - movable:
        return None
    if sizes.size_variables(op.attributes().values()):
        return None
    result = op.reference(*moved, *indices)
    parts = result if isinstance(result, tuple | list) else (result,)
    return tuple([np.asarray(part, object) for part in parts])


def _elementwise(call: Call, arrays: Sequence[np.ndarray], rule: Callable[..., Element | None]) -> np.ndarray:
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    operands = [np.broadcast_to(a, shape).reshape(-1) for a in arrays]
    results = [rule(*values) for values in zip(*operands, strict=True)]
    return _array([Unknown(call, k) if v is None else v for k, v in enumerate(results)], shape)


def _of_known(rule: Callable[..., Element | None]) -> Callable[..., Element | None]:
    """The rule for operands of which some are unknown; results that are too large are left to run time."""

    def bounded(*values: Any) -> Element | None:
        result = None if any(isinstance(v, Unknown) for v in values) else rule(*values)
        size = result.over if isinstance(result, Ratio) else result
        return result if not isinstance(size, PrimExpr) or sizes.count_roundings(size) <= MOST_ROUNDINGS else None

    return bounded


def _selected(condition: Element, x: Element, y: Element) -> Element | None:
    if isinstance(condition, bool | np.bool_):
        return x if condition else y
    return x if x is y or (isinstance(x, int) and x == y) else None


def _cast(value: Element, of: DType, to: DType) -> Element | None:
    if isinstance(value, Unknown):
        return value if str(of) in _SIGNED and str(to) in _SIGNED else None
    return cast_element(value, to) if str(to) in _FOLLOWED else None


def _reduced(call: Call, values: np.ndarray) -> tuple[np.ndarray, ...] | None:
    """A reduction, or the running sums, of a vector of sizes."""
    op = call.operator
    if values.ndim != 1 or not values.size or not call.dtype.is_int:
        return None
    combine = _of_known(REDUCTIONS[op.name])
    if not isinstance(op, CumSum):
        shape = call.tensor_type.static_shape
        return (_array([Unknown(call, 0) if (v := _combined(combine, values)) is None else v], [1]).reshape(shape),)
    if op.exclusive or op.reverse:
        return None
    sums = [_combined(combine, values[: k + 1]) for k in range(len(values))]
    return (_array([Unknown(call, k) if v is None else v for k, v in enumerate(sums)], values.shape),)


def _combined(combine: Callable[..., Element | None], values: np.ndarray) -> Element | None:
    *_, last = itertools.accumulate(values, lambda a, b: None if a is None else combine(a, b))
    return None if isinstance(last, Unknown) else last
