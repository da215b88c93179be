"""Analyses of loop programs."""

from __future__ import annotations

from relayc.te.dtype import dtype
from relayc.te.tir import (
    Allocate,
    BufferLoad,
    BufferStore,
    Call,
    FloorDiv,
    FloorMod,
    For,
    ForKind,
    IntImm,
    Let,
    LetStmt,
    Var,
    call_intrin,
    cast,
    const,
    decl_buffer,
)
from relayc.te.tir.analysis import contains, contents_of, free_variables


def test_free_variables_are_those_used_and_not_defined():
    a, b, scratch = (decl_buffer((8,), "float32", name) for name in ("a", "b", "scratch"))
    n, i, t, u = (Var(name) for name in ("n", "i", "t", "u"))
    store = BufferStore(scratch, BufferLoad(a, (i + t,)), (i,))
    last = BufferStore(b, BufferLoad(scratch, (Let(u, t + 1, u * u),)), (i,))
    body = Allocate(scratch, LetStmt(t, n * 2, For(i, const(0), n, ForKind.SERIAL, store)))
    assert free_variables(body) == [n, a.data]
    assert free_variables(last) == [b.data, scratch.data, t, i]
    assert free_variables(const(1)) == []


def test_contains_finds_nodes_at_any_depth():
    a, i = decl_buffer((8,), "float32", "a"), Var("i")
    body = For(i, const(0), const(8), ForKind.SERIAL, BufferStore(a, BufferLoad(a, (i // 3,)), (i,)))
    assert contains(body, frozenset((FloorDiv, FloorMod)))
    assert contains(body, frozenset((IntImm,)))
    assert not contains(body, frozenset((FloorMod, LetStmt)))
    assert contains(body, frozenset((FloorDiv,)), lambda division: division.b.value == 3)
    assert not contains(body, frozenset((FloorDiv,)), lambda division: division.b.value == 4)


def test_types_in_a_program_are_those_of_its_values_and_buffers():
    a, i = decl_buffer((8,), "float16", "a"), Var("i")
    scratch = decl_buffer((8,), "int8", "scratch")
    store = BufferStore(a, cast("float16", Var("j", dtype("int64"))), (i,))
    assert contents_of(store).dtypes == {"float16", "int32", "int64"}
    assert contents_of(Allocate(scratch, store)).dtypes == {"float16", "int32", "int64", "int8"}
    assert contents_of(BufferStore(scratch, const(1, "int8"), (const(0),))).dtypes == {"int8", "int32"}


def test_contents_of_a_program_are_its_classes_and_intrinsics():
    a, i = decl_buffer((8,), "float32", "a"), Var("i")
    store = BufferStore(a, call_intrin("float32", "exp", BufferLoad(a, (i // 3,))), (i,))
    found = contents_of(For(i, const(0), const(8), ForKind.SERIAL, store))
    assert found.calls == {"exp"}
    assert found.classes == {For, BufferStore, Call, BufferLoad, FloorDiv, Var}
