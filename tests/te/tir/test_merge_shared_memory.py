"""Merged shared memory: offsets, sizes, and unchanged results."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te
from relayc.te.errors import LoweringError
from relayc.te.ir import collect
from relayc.te.tir import Allocate, BufferLoad, BufferStore, PrimFunc, SeqStmt
from relayc.te.tir.block_interpreter import BlockInterpreter
from relayc.te.tir.passes.merge_shared_memory import ALIGNMENT, merge_shared_memory
from relayc.te.tir.passes.thread_sync import thread_sync


def chain(count: int, n: int, scope: str = "shared") -> PrimFunc:
    """A chain of `count` buffers, each the previous one reversed: only two are live at a time."""
    a = te.placeholder((4, n), name="a")
    stages = [a]
    for i in range(count):
        stages.append(te.compute((4, n), lambda r, c, t=stages[-1]: t[r, n - 1 - c] + 1.0, name=f"t{i}"))
    out = te.compute((4, n), lambda r, c: stages[-1][r, n - 1 - c], name="out")
    s = te.create_schedule(out.op)
    thread = te.thread_axis((0, n), "threadIdx.x")
    row, column = out.op.axis
    s[out].bind(row, te.thread_axis("blockIdx.x"))
    s[out].bind(column, thread)
    for stage in stages[1:]:
        s[stage].set_scope(scope)
        s[stage].compute_at(s[out], row)
        s[stage].bind(stage.op.axis[1], thread)
    return te.lower(s, [a, out], name="f")["f"]


def shared(func: PrimFunc):
    return [n.buffer for n in collect(func.body, Allocate) if n.buffer.scope.startswith("shared")]


def check(func: PrimFunc, count: int, n: int) -> None:
    a = np.arange(4 * n, dtype="float32").reshape(4, n)
    expected = (a[:, ::-1] if count % 2 == 0 else a) + count
    for backwards in (False, True):
        out = np.zeros_like(a)
        BlockInterpreter({"f": func}, check_uninitialized=True, backwards=backwards)("f", a, out)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_buffers_of_a_chain_reuse_memory_alternately(count):
    func = merge_shared_memory(chain(count, 8))
    (memory,) = shared(func)
    assert memory.scope == "shared" and memory.dtype == "uint8" and memory.shape == (ALIGNMENT + 32,)
    check(thread_sync(func), count, 8)


def test_kernels_without_savings_are_unchanged():
    func = chain(1, 8)
    assert merge_shared_memory(func) is func
    func = chain(2, 8)
    assert merge_shared_memory(func) is func


def test_more_than_the_static_limit_is_dynamic():
    func = merge_shared_memory(chain(2, 8), static_bytes=64)
    (memory,) = shared(func)
    assert memory.scope == "shared.dyn" and memory.shape == (ALIGNMENT + 32,)
    check(thread_sync(func), 2, 8)


def test_dynamic_shared_memory_is_one_allocation():
    func = merge_shared_memory(chain(4, 8, "shared.dyn"))
    (memory,) = shared(func)
    assert memory.scope == "shared.dyn"
    check(thread_sync(func), 4, 8)


def test_buffers_alive_together_never_overlap():
    func = merge_shared_memory(chain(5, 40))
    stores = [n for n in collect(func.body, BufferStore) if n.buffer.scope == "shared"]
    for store in stores:
        for load in collect(store.value, BufferLoad):
            if load.buffer.scope == "shared":
                distance = abs(int(load.buffer.elem_offset) - int(store.buffer.elem_offset))
                assert distance >= 40
    assert len(stores) == 5 and collect(func.body, SeqStmt)


def test_buffers_of_different_types_have_separate_offsets():
    a, b = te.placeholder((8,), "float32", "a"), te.placeholder((8,), "float16", "b")
    left = te.compute((8,), lambda i: a(i) * 2.0, name="left")
    right = te.compute((8,), lambda i: b(i) + te.const(1, "float16"), name="right")
    out = te.compute((8,), lambda i: left(7 - i) + te.cast("float32", right(7 - i)), name="out")
    s = te.create_schedule(out.op)
    for stage in (left, right):
        s[stage].set_scope("shared.dyn")
        s[stage].compute_at(s[out], s[out].leaf_iter_vars[0])
        s[stage].bind(s[stage].op.axis[0], te.thread_axis((0, 8), "threadIdx.x"))
    s[out].bind(out.op.axis[0], te.thread_axis((0, 8), "threadIdx.x"))
    func = thread_sync(merge_shared_memory(te.lower(s, [a, b, out])["main"]))
    (memory,) = shared(func)
    assert memory.shape == (ALIGNMENT + 16,)
    x, y, z = np.arange(8, dtype="float32"), np.arange(8, dtype="float16"), np.zeros(8, "float32")
    BlockInterpreter({"main": func}).call(func, (x, y, z))
    np.testing.assert_array_equal(z, (x * 2 + y + 1)[::-1])


def test_a_size_that_is_not_constant_raises():
    n = te.var("n")
    a = te.placeholder((n, n), name="a")
    t = te.compute((n, n), lambda i, j: a[i, j] + 1.0, name="t")
    out = te.compute((n, n), lambda i, j: t[i, n - 1 - j], name="out")
    s = te.create_schedule(out.op)
    s[out].bind(out.op.axis[0], te.thread_axis("blockIdx.x"))
    s[t].set_scope("shared")
    s[t].compute_at(s[out], out.op.axis[0])
    with pytest.raises(LoweringError, match=r"shared memory t of .* has to be constant"):
        merge_shared_memory(te.lower(s, [a, out], name="f")["f"])
