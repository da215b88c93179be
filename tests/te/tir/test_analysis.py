"""Free variables of loop programs."""

from __future__ import annotations

from te.tir import Allocate, BufferLoad, BufferStore, For, ForKind, Let, LetStmt, Var, const, decl_buffer
from te.tir.analysis import free_variables


def test_free_variables_are_those_used_and_not_defined():
    a, b, scratch = (decl_buffer((8,), "float32", name) for name in ("a", "b", "scratch"))
    n, i, t, u = (Var(name) for name in ("n", "i", "t", "u"))
    store = BufferStore(scratch, BufferLoad(a, (i + t,)), (i,))
    last = BufferStore(b, BufferLoad(scratch, (Let(u, t + 1, u * u),)), (i,))
    body = Allocate(scratch, LetStmt(t, n * 2, For(i, const(0), n, ForKind.SERIAL, store)))
    assert free_variables(body) == [n, a.data]
    assert free_variables(last) == [b.data, scratch.data, t, i]
    assert free_variables(const(1)) == []
