"""Reducers: associative and commutative combinations over reduce axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relayc.te.dtype import BOOL, dtype
from relayc.te.errors import CompileError
from relayc.te.tir import ops
from relayc.te.tir.expr import CommReducer, IterVar, PrimExpr, Reduce, Var
from relayc.te.tir.ops import cast, const, convert

__all__ = ["comm_reducer", "max", "min", "prod", "sum"]

Reducer = Callable[..., Any]


def comm_reducer(
    fcombine: Callable[[Any, Any], Any], fidentity: Callable[..., Any], name: str = "reduce"
) -> Reducer:
    """A reducer ``reduce(expr, axis, where=None, init=None)`` made of a combination and its identity.

    `fcombine(x, y)` combines two values, or two tuples; `fidentity(dtype, ...)` gives the identity for the dtypes.
    ``reduce`` of a tuple of expressions gives a tuple, the body of a compute of several outputs. ``reduce(a, b, ...)``
    of plain values combines them directly. (TVM: `te.comm_reducer`.)
    """

    def reduce(expr: Any, *args: Any, axis: Any = None, where: Any = None, init: Any = None) -> Any:
        if axis is None and args:
            if not _is_axis(args[0]):
                return _combine_values(fcombine, (expr, *args))
            axis, args = args[0], args[1:]
        if args:
            raise CompileError(f"{name}: where= and init= are given by name, got {args}")
        if axis is None or not _is_axis(axis):
            raise CompileError(f"{name}: axis={axis} is no axis; expected one made by te.reduce_axis, or a list")
        axes = (axis,) if isinstance(axis, IterVar) else tuple(axis)
        _check_axes(name, axes)
        several = isinstance(expr, tuple | list)
        source = tuple([convert(e) for e in (expr if several else (expr,))])
        starts = () if init is None else _init_values(init, source)
        combiner = _make_combiner(name, fcombine, fidentity, source, several)
        condition = const(True) if where is None else convert(where)
        if not condition.dtype == BOOL:
            raise CompileError(f"{name}: where={condition} is a {condition.dtype}; expected a bool expression")
        results = tuple([Reduce(combiner, source, axes, condition, i, starts) for i in range(len(source))])
        return results if several else results[0]

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"{name}(expr, axis, where=None, init=None): reduction over one axis or a list of them."
    return reduce


def _is_axis(value: Any) -> bool:
    """Is this an axis, or a list of axes?"""
    return all(isinstance(a, IterVar) for a in (value if isinstance(value, tuple | list) else (value,)))


def _combine_values(fcombine: Callable[[Any, Any], Any], values: tuple[Any, ...]) -> Any:
    result = values[0]
    for value in values[1:]:
        result = fcombine(result, value)
    return result


def _check_axes(name: str, axes: tuple[IterVar, ...]) -> None:
    for axis in axes:
        if axis.kind != "reduce":
            raise CompileError(f"{name}: {axis} is a {axis.kind} axis; reduce over axes made by te.reduce_axis")
    if len({id(a) for a in axes}) != len(axes):
        raise CompileError(f"{name}: the same axis is given twice: {', '.join(a.var.name for a in axes)}")


def _init_values(init: Any, source: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
    values = tuple(init) if isinstance(init, tuple | list) else (init,)
    if len(values) != len(source):
        raise CompileError(f"init has {len(values)} values for a reduction of {len(source)}")
    return tuple([cast(s.dtype, v) for s, v in zip(source, values, strict=True)])


def _make_combiner(
    name: str,
    fcombine: Callable[[Any, Any], Any],
    fidentity: Callable[..., Any],
    source: Sequence[PrimExpr],
    several: bool,
) -> CommReducer:
    lhs = tuple([Var(f"x{i}", dtype(e.dtype)) for i, e in enumerate(source)])
    rhs = tuple([Var(f"y{i}", dtype(e.dtype)) for i, e in enumerate(source)])
    result = fcombine(lhs, rhs) if several else (fcombine(lhs[0], rhs[0]),)
    identity = fidentity(*[e.dtype for e in source])
    identities = tuple(identity) if isinstance(identity, tuple | list) else (identity,)
    if len(result) != len(source) or len(identities) != len(source):
        raise CompileError(
            f"{name}: a reduction of {len(source)} values needs as many results and identities, got {len(result)} and "
            f"{len(identities)}"
        )
    results = tuple([convert(r) for r in result])
    for r, e in zip(results, source, strict=True):
        if r.dtype != e.dtype:
            raise CompileError(f"{name}: combining two {e.dtype} gives a {r.dtype}; cast the result")
    return CommReducer(lhs, rhs, results, [cast(e.dtype, v) for v, e in zip(identities, source, strict=True)])


def _lowest(of: str) -> PrimExpr:
    return ops.neg(ops.infinity(of)) if dtype(of).is_float else ops.min_value(of)


def _highest(of: str) -> PrimExpr:
    return ops.infinity(of) if dtype(of).is_float else ops.max_value(of)


sum = comm_reducer(ops.add, lambda t: const(0, t), name="sum")
prod = comm_reducer(ops.mul, lambda t: const(1, t), name="prod")
max = comm_reducer(ops.maximum, _lowest, name="max")
min = comm_reducer(ops.minimum, _highest, name="min")
