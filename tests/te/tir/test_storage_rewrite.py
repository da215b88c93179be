"""Memory is shared exactly where lifetimes do not overlap."""

from __future__ import annotations

import numpy as np

from relayc.te.dtype import HANDLE
from relayc.te.ir import collect
from relayc.te.operation import thread_axis
from relayc.te.tir import (
    Allocate,
    AttrStmt,
    BufferLoad,
    BufferStore,
    For,
    ForKind,
    PrimFunc,
    Stmt,
    Var,
    cast,
    const,
    decl_buffer,
    seq,
)
from relayc.te.tir.interpreter import interpret
from relayc.te.tir.passes.storage_rewrite import storage_rewrite
from relayc.te.tir.verifier import verify

N = 512


def copy(target, source, addend: float) -> Stmt:
    x = Var("x")
    value = cast(target.dtype, BufferLoad(source, (x,)) + cast(source.dtype, const(addend)))
    return For(x, const(0), const(N), ForKind.SERIAL, BufferStore(target, value, (x,)))


def chain(stages: int, dtypes=("float32",), scope="global") -> PrimFunc:
    """A -> t0 -> t1 -> ... -> B, each stage adding 1."""
    a, b = decl_buffer((N,), name="A"), decl_buffer((N,), name="B")
    temps = [decl_buffer((N,), dtypes[i % len(dtypes)], f"t{i}", scope=scope) for i in range(stages)]
    steps = [copy(target, source, 1.0) for target, source in zip([*temps, b], [a, *temps], strict=True)]
    body: Stmt = steps[-1]
    for temp, step in zip(reversed(temps), reversed(steps[:-1]), strict=True):
        body = Allocate(temp, seq(step, body))
    handles = Var("A", HANDLE), Var("B", HANDLE)
    return PrimFunc(handles, body, {handles[0]: a, handles[1]: b})


def run(func: PrimFunc) -> np.ndarray:
    a, b = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    interpret(func, a, b)
    return b


def test_a_chain_needs_two_buffers():
    func = storage_rewrite(chain(5))
    verify(func)
    assert len(collect(func.body, Allocate)) == 2
    np.testing.assert_array_equal(run(func), np.arange(N) + 6)


def test_a_kernel_reads_and_writes_different_memory():
    """Its threads are at different statements: one must not overwrite memory that another still reads."""
    a, b = decl_buffer((N,), name="A"), decl_buffer((N,), name="B")
    temps = [decl_buffer((N,), name=f"t{i}") for i in range(5)]

    def kernel(target, source) -> Stmt:
        thread, local = thread_axis((0, N), "threadIdx.x"), decl_buffer((1,), name="local", scope="local")
        load = BufferStore(local, BufferLoad(source, (thread.var,)), (const(0),))
        store = BufferStore(target, BufferLoad(local, (const(0),)), (thread.var,))
        return AttrStmt("thread_extent", thread, const(N), Allocate(local, seq(load, store)))

    steps = [kernel(target, source) for target, source in zip([*temps, b], [a, *temps], strict=True)]
    body: Stmt = steps[-1]
    for temp, step in zip(reversed(temps), reversed(steps[:-1]), strict=True):
        body = Allocate(temp, seq(step, body))
    handles = Var("A", HANDLE), Var("B", HANDLE)
    func = storage_rewrite(PrimFunc(handles, body, {handles[0]: a, handles[1]: b}))
    assert len([n for n in collect(func.body, Allocate) if n.buffer.scope == "global"]) == 2
    for launch in collect(func.body, AttrStmt):
        read = {n.buffer.data for n in collect(launch, BufferLoad)}
        written = {n.buffer.data for n in collect(launch, BufferStore)}
        assert len(read & written) == 1  # the local one


def test_types_may_share():
    func = storage_rewrite(chain(4, ("float32", "float64", "int32")))
    verify(func)
    sizes = sorted(a.buffer.shape[0] * a.buffer.dtype.nbytes for a in collect(func.body, Allocate))
    assert sizes == [4 * N, 8 * N]
    np.testing.assert_array_equal(run(func), np.arange(N) + 5)


def test_small_and_local_memory_is_not_shared():
    local = chain(5, scope="local")
    assert storage_rewrite(local) is local
    big = chain(5)
    assert storage_rewrite(big, min_bytes=1 << 20) is big


def test_overlapping_lifetimes_do_not_share_memory():
    a, b = decl_buffer((N,), name="A"), decl_buffer((N,), name="B")
    s, t = decl_buffer((N,), name="s"), decl_buffer((N,), name="t")
    x = Var("x")
    total = BufferStore(b, BufferLoad(s, (x,)) + BufferLoad(t, (x,)), (x,))
    body = seq(copy(s, a, 1.0), copy(t, a, 2.0), For(x, const(0), const(N), ForKind.SERIAL, total))
    handles = Var("A", HANDLE), Var("B", HANDLE)
    func = PrimFunc(handles, Allocate(s, Allocate(t, body)), {handles[0]: a, handles[1]: b})
    assert storage_rewrite(func) is func
