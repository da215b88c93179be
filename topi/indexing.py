"""Reads and writes at positions held in tensors (TVM: `topi.transform`, `topi.scatter`).

Positions are brought inside the tensor, so a wrong index reads a wrong element but never foreign memory. Modes:
"clip" limits to [0, n); "wrap" takes the remainder; "numpy" counts negative positions from the end, then limits;
"fast" does not check them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.errors import CompileError
from relayc.te.tir import Buffer, Dim, Let, PrimExpr, Stmt, Var, ir_builder
from relayc.te.tir.ir_builder import BufferView
from relayc.topi.loops import loop_nest
from relayc.topi.tag import INJECTIVE
from relayc.topi.utils import broadcast_index

__all__ = ["SCATTER_REDUCTIONS", "gather", "gather_nd", "rows_updated", "scatter_elements", "scatter_nd", "take",
           "write_rows"]  # fmt: skip


def _added(old: PrimExpr, new: PrimExpr) -> PrimExpr:
    return te.any(old, new) if old.dtype.is_bool else old + new


def _multiplied(old: PrimExpr, new: PrimExpr) -> PrimExpr:
    return te.all(old, new) if old.dtype.is_bool else old * new


SCATTER_REDUCTIONS: dict[str, Callable[[PrimExpr, PrimExpr], PrimExpr]] = {
    "update": lambda old, new: new,
    "add": _added,
    "mul": _multiplied,
    "min": te.minimum,
    "max": te.maximum,
}
"""The combination of a scattered value with the old one, by the name of the reduction. Bools are added by `or`."""


def inside(position: PrimExpr, size: Dim, mode: str) -> PrimExpr:
    """`position` brought into [0, size) by `mode`, as an int32 index."""
    if position.dtype.bits < 32:
        position = te.cast("int32", position)
    if mode == "fast":
        return te.cast("int32", position)
    extent = te.cast(position.dtype, size)
    if mode == "wrap":
        return te.cast("int32", position % extent)
    if mode == "numpy" and not position.dtype.is_uint:
        named = Var("position", position.dtype)  # used twice: let keeps chains of takes small
        position = Let(named, position, named + te.select(named < 0, extent, te.const(0, position.dtype)))
    return te.cast("int32", te.maximum(te.minimum(position, extent - 1), te.const(0, position.dtype)))


def take(x: Tensor, indices: Tensor, axis: int, batch_dims: int = 0, mode: str = "clip") -> Tensor:
    """Slices of x along `axis`: shape ``x.shape[:axis] + indices.shape[batch_dims:] + x.shape[axis + 1:]``."""
    lead = axis + indices.ndim - batch_dims
    shape = (*x.shape[:axis], *indices.shape[batch_dims:], *x.shape[axis + 1 :])

    def body(*i: Any) -> PrimExpr:
        position = indices(*i[:batch_dims], *i[axis:lead])
        return x(*i[:axis], inside(position, x.shape[axis], mode), *i[lead:])

    return te.compute(shape, body, name="take", tag=INJECTIVE)


def gather(
    x: Tensor, axis: int, indices: Tensor, shape: Sequence[Dim] | None = None, mode: str = "numpy"
) -> Tensor:
    """Element (i, j, ...) is x at (i, j, ...) with coordinate `axis` replaced by ``indices[i, j, ...]``.

    The indices broadcast to `shape`, that of the result; by default it is their own.
    """

    def body(*i: Any) -> PrimExpr:
        at = indices(*broadcast_index(i, indices.shape)) if shape is not None else indices(*i)
        return x(*i[:axis], inside(at, x.shape[axis], mode), *i[axis + 1 :])

    return te.compute(tuple(indices.shape if shape is None else shape), body, name="gather", tag=INJECTIVE)


def _tuple_length(indices: Tensor) -> int:
    length = indices.shape[0]
    if not isinstance(length, int):
        raise CompileError(f"{indices.name}: the length of an index tuple must be known at compile time, got {length}")
    return length


def gather_nd(x: Tensor, indices: Tensor, batch_dims: int = 0, mode: str = "numpy") -> Tensor:
    """Slices of x at the coordinate tuples along dimension 0 of `indices`, batch by batch.

    x (B..., X_0, ..., X_{M-1}, rest...), indices (M, B..., Y...): (B..., Y..., rest...).
    """
    depth, lead = _tuple_length(indices), indices.ndim - 1
    shape = (*indices.shape[1:], *x.shape[batch_dims + depth :])

    def body(*i: Any) -> PrimExpr:
        at = [inside(indices(k, *i[:lead]), x.shape[batch_dims + k], mode) for k in range(depth)]
        return x(*i[:batch_dims], *at, *i[lead:])

    return te.compute(shape, body, name="gather_nd", tag=INJECTIVE)


def write_rows(x: Tensor, y: Tensor, begin: Dim, axis: int, begins: Tensor | None = None) -> Tensor:
    """x with rows from `begin` on along `axis` replaced by y, in place: only y is written.

    With integers `begins` (x.shape[0],), entry b of dimension 0 has its rows from ``begins[b]`` on, limited to
    [0, begin].
    """

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        rows, out = ib.buffer(ins[1]), ib.buffer(outs[0])
        with loop_nest(ib, y.shape, independent=True) as i:
            first = begin if begins is None else _limited(ib.buffer(ins[2])[i[0]], begin)
            out[(*i[:axis], i[axis] + first, *i[axis + 1 :])] = rows[i]
        return ib.get()

    inputs = [x, y] if begins is None else [x, y, begins]
    return te.extern(x.shape, inputs, fill, name="write_rows", dtype=x.dtype, tag="default")


def rows_updated(x: Tensor, y: Tensor, begins: Tensor, length: Dim) -> Tensor:
    """x (B, H, C, D) with rows of y (B, H, S, D) from ``begins[b]`` on for entry b, and zeros behind them.

    The result has `length` rows, which are at least C; `begins` (B,) are integers, limited to [0, C].
    """
    room, new = x.shape[2], y.shape[2]

    def row(b: Var, h: Var, t: Var, d: Var) -> PrimExpr:
        at = t - _limited(begins[b], room)
        fresh = te.if_then_else(at < new, y[b, h, at, d], te.const(0, x.dtype))
        return te.if_then_else(at < 0, x[b, h, t, d], fresh)

    return te.compute((y.shape[0], y.shape[1], length, y.shape[3]), row, name="rows_updated", tag=INJECTIVE)


def _limited(position: PrimExpr, most: Dim) -> PrimExpr:
    """`position` brought into [0, most], as an int32 index."""
    limit = te.cast(position.dtype, most)
    return te.cast("int32", te.maximum(te.minimum(position, limit), te.const(0, position.dtype)))


def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str = "update") -> Tensor:
    """A copy of x where element (i, j, ...) of `updates` is combined into coordinate ``indices[i, j, ...]`` of `axis`.

    Updates are made in row-major order. `reduction`: a key of `SCATTER_REDUCTIONS`.
    """

    def target(positions: BufferView, i: Sequence[Any]) -> tuple[Any, ...]:
        return (*i[:axis], inside(positions[tuple(i)], x.shape[axis], "numpy"), *i[axis + 1 :])

    attrs = {"ordered": (axis,), "met_by": lambda i, u: (*i[:axis], *u, *i[axis + 1 :])}
    return _scatter(x, indices, updates, target, reduction, "scatter_elements", attrs)


def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, reduction: str = "update") -> Tensor:
    """A copy of x where the slices `updates` are combined at the coordinate tuples along dimension 0 of `indices`.

    x (X_0, ..., X_{M-1}, rest...), indices (M, Y...), updates (Y..., rest...); updates are made in row-major order.
    """
    depth, lead = _tuple_length(indices), indices.ndim - 1

    def target(positions: BufferView, i: Sequence[Any]) -> tuple[Any, ...]:
        at = [inside(positions[(k, *i[:lead])], x.shape[k], "numpy") for k in range(depth)]
        return (*at, *i[lead:])

    attrs = {"ordered": tuple(range(lead)), "met_by": lambda i, u: (*u, *i[depth:])}
    return _scatter(x, indices, updates, target, reduction, "scatter_nd", attrs)


def _scatter(
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    target: Callable[[BufferView, Sequence[Any]], tuple[Any, ...]],
    reduction: str,
    name: str,
    attrs: Mapping[str, Any],
) -> Tensor:
    """A copy of x with element i of `updates` combined in at ``target(indices, i)``.

    For schedules that run updates in parallel, attributes say which dimensions of `updates` may hold conflicting
    updates of one element ("ordered"), and ``met_by(i, u)``, the update at position u of these that may write element
    i.
    """

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        source, positions, new = (ib.buffer(b) for b in ins)
        out = ib.buffer(outs[0])
        with loop_nest(ib, x.shape) as i:
            out[i] = source[i]
        with loop_nest(ib, updates.shape) as i:
            at = target(positions, i)
            out[at] = SCATTER_REDUCTIONS[reduction](out[at], new[i])
        return ib.get()

    attributes = {**attrs, "target": target, "reduction": reduction}
    return te.extern(x.shape, [x, indices, updates], fill, name=name, dtype=x.dtype, tag="scatter", attrs=attributes)
