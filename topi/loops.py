"""Loops written by hand, for the bodies of `te.extern`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from te.tir import Allocate, Buffer, BufferLoad, BufferStore, Dim, For, ForKind, PrimExpr, Stmt, Var, convert

__all__ = ["Cell", "loop", "loop_nest"]


def loop(extent: Dim, body: Callable[[PrimExpr], Stmt], name: str = "i", kind: ForKind = ForKind.SERIAL) -> Stmt:
    """`body(i)` for each i below `extent`."""
    var = Var(name)
    return For(var, convert(0), convert(extent), kind, body(var))


def loop_nest(extents: Sequence[Dim], body: Callable[..., Stmt], name: str = "i") -> Stmt:
    """`body(i, j, ...)` for every index of a tensor of shape `extents`, in row-major order."""
    variables = [Var(f"{name}{k}") for k in range(len(extents))]
    stmt = body(*variables)
    for var, extent in zip(reversed(variables), reversed(extents), strict=True):
        stmt = For(var, convert(0), convert(extent), ForKind.SERIAL, stmt)
    return stmt


class Cell:
    """A mutable scalar of a hand-written loop: one element of local memory."""

    def __init__(self, name: str, dtype: str = "int32") -> None:
        self.buffer = Buffer(name, (1,), dtype, scope="local")

    @property
    def value(self) -> PrimExpr:
        """What it holds."""
        return BufferLoad(self.buffer, (convert(0),))

    def store(self, value: PrimExpr) -> Stmt:
        """Put `value` into it."""
        return BufferStore(self.buffer, value, (convert(0),))

    def around(self, body: Stmt) -> Stmt:
        """`body` with the cell alive."""
        return Allocate(self.buffer, body)
