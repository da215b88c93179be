"""Checks of the positions that gathers and scatters take, as a kernel: one pass over them, in vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, Dim, PrimExpr, Stmt, StringImm, call_intrin, ir_builder
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.topi.loops import loop_nest

__all__ = ["REPORT", "checked_indices"]

REPORT = "runtime.report_index"
"""The function of the runtime that raises the error: (source, axes, position, index, size, shape of the indices...)."""


def checked_indices(indices: Tensor, sizes: Tensor, axes: Sequence[str], source: str) -> Tensor:
    """A copy of `indices`; a position outside of -size to size - 1 ends the run with an error that names `source`.

    `sizes` (int64) are those of the `axes` that the positions are for. Positions for several axes are along dimension
    0. What follows in the run reads the copy, so it has to bear such positions until the run has ended.
    """

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        index, size, out = ib.buffer(ins[0]), ib.buffer(ins[1]), ib.buffer(outs[0])
        is_outside = ib.allocate("int32", 1, "is_outside")
        is_outside[0] = 0

        with loop_nest(ib, indices.shape) as at:
            value = te.cast("int64", index[at])
            out[at] = index[at]
            is_outside[0] = is_outside[0] | te.cast("int32", _outside(value, size[_axis_at(at, axes)]))
        with ib.if_scope(is_outside[0] != 0):
            _report_first(ib, indices.shape, index, size, axes, source)
        return ib.get()

    return te.extern(indices.shape, [indices, sizes], fill, name="checked_indices", dtype=indices.dtype, tag="default")


def _outside(index: PrimExpr, size: PrimExpr) -> PrimExpr:
    return te.any(index < -size, index >= size)


def _axis_at(at: Sequence[Any], axes: Sequence[str]) -> Any:
    """The number of the axis that the position at this index is for."""
    return at[0] if len(axes) > 1 else 0


def _report_first(
    ib: IRBuilder, shape: Sequence[Dim], index: BufferView, size: BufferView, axes: Sequence[str], source: str
) -> None:
    """Find the first position outside of its axis, and pass it to the runtime."""
    found = ib.allocate("int64", 4, "found")  # the next place, and the place, index and size of the first fault
    found[0] = 0
    found[1] = -1

    with loop_nest(ib, shape) as at:
        value, extent = te.cast("int64", index[at]), size[_axis_at(at, axes)]
        with ib.if_scope(te.all(found[1] < 0, _outside(value, extent))):
            found[1] = found[0]
            found[2] = value
            found[3] = extent
        found[0] = found[0] + 1
    dims = [te.cast("int64", te.tir.convert(d)) for d in shape]
    names = (StringImm(REPORT), StringImm(source), StringImm(",".join(axes)))
    ib.emit(call_intrin("int32", "call_packed", *names, found[1], found[2], found[3], *dims))
