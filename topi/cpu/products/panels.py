"""Packing of large weights into panels: whole cache lines are read, transposed in registers and written.

A panel of the plain weights is a matrix (width, K), which becomes (K, width). All sizes but the width are dynamic; K
comes in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayc import te
from relayc.te.tir import PrimExpr, PrimFunc, SizeVar, Var
from relayc.topi.cpu.register_transpose import transpose_in_registers
from relayc.topi.nn.winograd import Matrix, choose_value, sum_of, winograd_matrices

__all__ = ["CHUNK", "panels_by_rows", "winograd_panels"]

CHUNK = 16
"""Elements of 4 bytes in a cache line."""


def panels_by_rows(width: int, lanes: int, name: str) -> PrimFunc:
    """``packed[p, k, j] = rows[p, j, k]``: a kernel of (rows, packed, panels, chunks), where K is CHUNK * chunks.

    `width` and CHUNK are multiples of `lanes`, those of a vector. It runs on one thread.
    """
    panels, chunks = te.size_var("panels"), te.size_var("chunks")
    rows = te.placeholder((panels, width, chunks * CHUNK), "float32", name="rows")
    packed = te.compute((panels, chunks * CHUNK, width), lambda p, k, j: rows(p, j, k), name="packed")
    s = te.create_schedule(packed.op)
    transposed, _, vectors = transpose_in_registers(s, rows, [packed.op], 1, lanes)
    s[transposed].unroll(vectors)
    panel, k, j = s[packed].op.axis
    chunk, within = s[packed].split(k, factor=CHUNK)
    group, step = s[packed].split(within, factor=lanes)
    outer, lane = s[packed].split(j, factor=lanes)
    s[packed].reorder(panel, chunk, outer, group, step, lane)
    s[packed].unroll(group)
    s[packed].unroll(step)
    s[packed].vectorize(lane)
    s[transposed].compute_at(s[packed], group)
    return _kernel(s, [rows, packed], name, panels, chunks)


def winograd_panels(tile: int, kernel: int, width: int, lanes: int, name: str) -> PrimFunc:
    """``packed[p, :, :, i, j] = g @ filters[p, j, i] @ g.T``, computed in float64, with the g of F(tile, kernel).

    A kernel of (filters, packed, panels, chunks): (panels, width, I, R, R) to (panels, A, A, I, width) with R =
    `kernel`, A = tile + R - 1 and I = lanes * chunks. `width` is a multiple of `lanes`. It runs on one thread.
    """
    panels, chunks = te.size_var("panels"), te.size_var("chunks")
    g, taps, size = winograd_matrices(tile, kernel).g, kernel * kernel, tile + kernel - 1
    filters = te.placeholder((panels, width, chunks * (lanes * taps)), "float32", name="filters")

    def column(p: Var, i: Var, a: Var, s: Var, j: Var) -> PrimExpr:
        values = [te.cast("float64", filters(p, j, i * taps + r * kernel + s)) for r in range(kernel)]
        return choose_value(a, _products(g, values))

    halfway = te.compute((panels, chunks * lanes, size, kernel, width), column, name="halfway")

    def element(p: Var, a: Var, b: Var, i: Var, j: Var) -> PrimExpr:
        values = [halfway(p, i, a, s, j) for s in range(kernel)]
        return te.cast("float32", choose_value(b, _products(g, values)))

    packed = te.compute((panels, size, size, chunks * lanes, width), element, name="packed")
    s = te.create_schedule(packed.op)
    transposed, _, vectors = transpose_in_registers(s, filters, [halfway.op], 1, lanes)
    s[transposed].unroll(vectors)
    s[halfway].set_scope("local")
    p, a, b, i, j = s[packed].op.axis
    chunk, step = s[packed].split(i, factor=lanes)
    outer, lane = s[packed].split(j, factor=lanes)
    s[packed].reorder(p, chunk, outer, step, a, b, lane)
    s[packed].unroll(a)
    s[packed].unroll(b)
    s[packed].vectorize(lane)
    s[halfway].compute_at(s[packed], step)
    *_, row, tap, lane = s[halfway].op.axis
    s[halfway].unroll(row)
    s[halfway].unroll(tap)
    s[halfway].vectorize(lane)
    s[transposed].compute_at(s[packed], outer)
    return _kernel(s, [filters, packed], name, panels, chunks)


def _products(g: Matrix, values: Sequence[PrimExpr]) -> list[PrimExpr]:
    """``g @ values``."""
    rows = [sum_of(row, values) for row in g]
    return [row for row in rows if row is not None]  # no row is zero


def _kernel(s: te.Schedule, args: list[te.Tensor], name: str, *sizes: SizeVar) -> PrimFunc:
    function = te.lower(s, args, name=name)[name]
    assert isinstance(function, PrimFunc)
    return function.with_attr("packed_api", False).replace(params=(*function.params, *sizes))
