"""Barrier insertion: where barriers are needed, redundant or impossible."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te
from relayc.te.dtype import HANDLE
from relayc.te.errors import LoweringError
from relayc.te.ir import collect, structural_equal
from relayc.te.tir import (
    Allocate,
    AttrStmt,
    BufferLoad,
    BufferStore,
    Call,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterVar,
    PrimExpr,
    PrimFunc,
    Range,
    Stmt,
    Var,
    call_intrin,
    const,
    decl_buffer,
    seq,
)  # fmt: skip
from relayc.te.tir.block_interpreter import BlockInterpreter
from relayc.te.tir.passes.thread_sync import thread_sync

THREADS = 8
TX = IterVar(Range(0, THREADS), Var("tx"), "thread", "threadIdx.x")
BX = IterVar(Range(0, 2), Var("bx"), "thread", "blockIdx.x")
tx, bx = TX.var, BX.var
A, B = decl_buffer((64,), name="A"), decl_buffer((64,), name="B")
S = decl_buffer((THREADS,), name="S", scope="shared")
RING = decl_buffer((2 * THREADS,), name="R", scope="shared")
SYNC = Evaluate(call_intrin("int32", "storage_sync", "shared"))


def load(buffer, index) -> PrimExpr:
    return BufferLoad(buffer, (index if isinstance(index, PrimExpr) else const(index),))


def store(buffer, index, value) -> Stmt:
    return BufferStore(buffer, value, (index if isinstance(index, PrimExpr) else const(index),))


def loop(var: Var, extent: int, *body: Stmt) -> Stmt:
    return For(var, const(0), const(extent), ForKind.SERIAL, seq(*body))


def launch(body: Stmt, *shared) -> PrimFunc:
    for buffer in shared or (S,):
        body = Allocate(buffer, body)
    body = AttrStmt("thread_extent", BX, const(2), AttrStmt("thread_extent", TX, const(THREADS), body))
    handles = Var("A", HANDLE), Var("B", HANDLE)
    return PrimFunc(handles, body, {handles[0]: A, handles[1]: B}, {"global_symbol": "f"})


def check(body: Stmt, expected: Stmt, *shared) -> None:
    got, want = thread_sync(launch(body, *shared)), launch(expected, *shared)
    assert structural_equal(got, want), f"{got}\nexpected\n{want}"


WRITE = store(S, tx, load(A, tx))
MIRROR = store(B, tx, load(S, const(THREADS - 1) - tx))


def test_reading_what_another_thread_wrote():
    check(seq(WRITE, MIRROR), seq(WRITE, SYNC, MIRROR))


def test_an_existing_barrier_is_enough():
    program = launch(seq(WRITE, SYNC, MIRROR))
    assert thread_sync(program) is program


def test_reading_what_the_same_thread_wrote():
    program = launch(seq(WRITE, store(B, tx, load(S, tx))))
    assert thread_sync(program) is program


def test_a_thread_reads_back_its_own_strided_elements():
    wide, k, j = decl_buffer((4 * THREADS,), name="W", scope="shared"), Var("k"), Var("j")
    fill = loop(k, 4, store(wide, tx + k * THREADS, load(A, tx)))
    use = loop(j, 4, store(B, tx, load(wide, tx + j * THREADS)))
    program = launch(seq(fill, use), wide)
    assert thread_sync(program) is program
    across = loop(j, 4, store(B, tx, load(wide, tx * 4 + j)))
    check(seq(fill, across), seq(fill, SYNC, across), wide)


def test_writing_what_others_still_read():
    again = store(S, tx, load(A, tx + 8))
    check(seq(WRITE, MIRROR, again), seq(WRITE, SYNC, MIRROR, SYNC, again))


def test_a_loop_needs_two_barriers():
    k = Var("k")
    check(loop(k, 4, WRITE, MIRROR), loop(k, 4, SYNC, WRITE, SYNC, MIRROR))


def test_a_loop_of_one_trip_needs_one():
    k = Var("k")
    check(loop(k, 1, WRITE, MIRROR), loop(k, 1, WRITE, SYNC, MIRROR))


def test_alternating_halves_need_one_barrier():
    k = Var("k")
    first = store(RING, tx, load(A, tx))
    ahead = store(RING, tx + (k + 1) % 2 * THREADS, load(A, tx + k))
    use = store(B, tx, load(RING, const(THREADS - 1) - tx + k % 2 * THREADS))
    body = seq(first, loop(k, 4, IfThenElse(k + 1 < 4, ahead), use))
    got = thread_sync(launch(body, RING))
    assert calls(got) == 1, got
    check_orders(got)


def test_the_other_half_of_a_buffer_is_no_conflict():
    program = launch(seq(store(RING, tx, load(A, tx)), store(B, tx, load(RING, tx + THREADS))), RING)
    assert thread_sync(program) is program


def test_interleaved_elements_are_no_conflict():
    """Threads 0 and 4 share an element within a statement, but no element of the other statement."""
    even, odd = store(RING, tx % 4 * 4, load(A, tx)), store(RING, tx % 4 * 4 + 2, load(A, tx))
    program = launch(seq(even, odd), RING)
    assert thread_sync(program) is program
    met = store(RING, tx % 4 * 4 + 4, load(A, tx))
    check(seq(even, met), seq(even, SYNC, met), RING)


def test_disjoint_views_of_one_memory_are_no_conflict():
    memory = decl_buffer((128,), "uint8", name="memory", scope="shared.dyn")
    low = decl_buffer((8,), name="low", data=memory.data, scope="shared.dyn")
    high = decl_buffer((8,), name="high", data=memory.data, scope="shared.dyn", elem_offset=8)
    over = decl_buffer((16,), "float16", name="over", data=memory.data, scope="shared.dyn", elem_offset=8)
    fill = store(low, tx, load(A, tx))
    assert calls(thread_sync(launch(seq(fill, store(high, const(7) - tx, load(A, tx))), memory))) == 0
    meets = store(over, const(7) - tx, const(0.0, "float16"))
    assert calls(thread_sync(launch(seq(fill, meets), memory))) == 1


def test_a_uniform_condition_may_contain_a_barrier():
    body = IfThenElse(bx < 1, seq(WRITE, MIRROR))
    check(body, IfThenElse(bx < 1, seq(WRITE, SYNC, MIRROR)))


def test_a_divergent_condition_gets_the_barrier_before_it():
    guarded = IfThenElse(tx < 4, MIRROR)
    check(seq(WRITE, guarded), seq(WRITE, SYNC, guarded))


def test_a_barrier_that_not_all_threads_reach_raises():
    with pytest.raises(LoweringError, match=r"not all of them come there"):
        thread_sync(launch(IfThenElse(tx < 4, seq(WRITE, store(B, tx, load(S, const(3) - tx))))))


def test_conditions_restrict_the_threads_of_an_access():
    program = launch(IfThenElse(tx < 4, seq(WRITE, store(B, tx, load(S, const(7) - tx)))))
    assert thread_sync(program) is program


def test_all_threads_may_write_one_element_after_the_other():
    k = Var("k")
    program = launch(loop(k, 8, store(S, k, load(A, k))))
    assert thread_sync(program) is program


def test_an_explicit_barrier_in_a_divergent_condition_raises():
    with pytest.raises(LoweringError, match=r"not all of them come there"):
        thread_sync(launch(IfThenElse(tx < 4, seq(WRITE, SYNC, MIRROR))))


def test_a_divergent_loop_counts_as_one_statement():
    k = Var("k")
    body = For(k, const(0), tx, ForKind.SERIAL, store(B, tx, load(S, k)))
    check(seq(WRITE, body), seq(WRITE, SYNC, body))
    with pytest.raises(LoweringError):
        thread_sync(launch(For(k, const(0), tx, ForKind.SERIAL, seq(WRITE, MIRROR))))


def test_a_divergent_condition_inside_a_loop_counts():
    k = Var("k")
    guarded = loop(k, 3, IfThenElse(tx + k < THREADS, store(B, tx, load(S, tx + k))))
    check(seq(WRITE, guarded), seq(WRITE, SYNC, guarded))


def test_both_branches_count():
    other = store(S, tx, load(A, tx + 1))
    body = seq(IfThenElse(bx < 1, WRITE, other), MIRROR)
    check(body, seq(IfThenElse(bx < 1, WRITE, other), SYNC, MIRROR))


def test_an_index_from_memory_may_be_anything():
    gather = store(B, tx, load(S, load(A, tx).astype("int32")))
    check(seq(WRITE, gather), seq(WRITE, SYNC, gather))


def test_single_threads_need_no_barriers():
    body = Allocate(S, seq(store(S, 0, load(A, 0)), store(B, 0, load(S, 0))))
    one = IterVar(Range(0, 1), Var("tx"), "thread", "threadIdx.x")
    func = launch(seq()).with_body(AttrStmt("thread_extent", one, const(1), body))
    assert thread_sync(func) is func


def test_two_kernels_need_no_barrier_between_them():
    one, two = launch(WRITE), launch(MIRROR)
    both = one.with_body(seq(one.body, two.body))
    assert thread_sync(both) is both


def calls(func: PrimFunc) -> int:
    return len([c for c in collect(func.body, Call) if c.op == "storage_sync"])


def check_orders(func: PrimFunc) -> None:
    """Check that both thread orders give equal results."""
    results = []
    for backwards in (False, True):
        a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
        BlockInterpreter({"f": func}, check_uninitialized=True, backwards=backwards)("f", a, b)
        results.append(b)
    np.testing.assert_array_equal(*results)


def product(n: int, m: int, depth: int, step: int, double: bool) -> tuple[PrimFunc, int]:
    """A matrix product through tiles of both operands in shared memory."""
    a, b = te.placeholder((n, depth), name="a"), te.placeholder((m, depth), name="b")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="c")
    s = te.create_schedule(c.op)
    local = s.cache_write(c, "local")
    rows, columns = te.thread_axis((0, 4), "threadIdx.y"), te.thread_axis((0, 4), "threadIdx.x")
    i, j = s[c].op.axis
    block_i, i = s[c].split(i, factor=8)
    block_j, j = s[c].split(j, factor=8)
    thread_i, i = s[c].split(i, nparts=4)
    thread_j, j = s[c].split(j, nparts=4)
    s[c].reorder(block_i, block_j, thread_i, thread_j, i, j)
    s[c].bind(block_i, te.thread_axis("blockIdx.y"))
    s[c].bind(block_j, te.thread_axis("blockIdx.x"))
    s[c].bind(thread_i, rows)
    s[c].bind(thread_j, columns)
    s[local].compute_at(s[c], thread_j)
    outer, inner = s[local].split(s[local].op.reduce_axis[0], factor=step)
    s[local].reorder(outer, inner, *s[local].op.axis)
    for operand in (a, b):
        tile = s.cache_read(operand, "shared", [local])
        s[tile].compute_at(s[local], outer)
        y, x = s[tile].split(s[tile].fuse(*s[tile].op.axis), factor=4)
        y, _ = s[tile].split(y, nparts=4)
        s[tile].bind(y, rows)
        s[tile].bind(x, columns)
        if double:
            s[tile].double_buffer()
    return te.lower(s, [a, b, c], name="f")["f"], depth // step


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("depth", [8, 24])
def test_a_tiled_product_is_correct_in_either_thread_order(depth, double):
    func, steps = product(16, 8, depth, 8, double)
    synced = thread_sync(func)
    x = np.random.default_rng(0).standard_normal((16, depth)).astype("float32")
    y = np.random.default_rng(1).standard_normal((8, depth)).astype("float32")
    for backwards in (False, True):
        z = np.full((16, 8), np.nan, "float32")
        BlockInterpreter({"f": synced}, check_uninitialized=True, backwards=backwards)("f", x, y, z)
        np.testing.assert_allclose(z, x @ y.T, rtol=1e-4, atol=1e-5)
    assert calls(synced) <= (1 if steps == 1 else 2)
