"""Regions of several steps: consecutive parallel loops and loops around them, with a barrier after each step."""

from __future__ import annotations

import ctypes
import re
import time
from collections import Counter

import numpy as np
import pytest

from relayc.backend.llvm import pool, pool_code
from relayc.backend.llvm.build import build
from relayc.backend.runtime import register_func, remove_global_func
from relayc.backend.runtime.context import current_context
from relayc.backend.target import Target
from relayc.te.dtype import dtype
from relayc.te.ir import IRModule
from relayc.te.tir import (
    BufferLoad,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    PrimFunc,
    SizeVar,
    StringImm,
    Var,
    call_intrin,
    cast,
    convert,
    decl_buffer,
    seq,
)
from tests.backend.llvm.regions import Parallel, Task, assemble, context, run


@pytest.mark.parametrize(("threads", "tasks"), [(1, 4), (2, 2), (2, 5), (3, 100), (8, 8)])
@pytest.mark.parametrize("steps", [0, 1, 2, 25])
def test_every_chunk_runs_once_and_after_the_previous_step(threads, tasks, steps):
    done: list[list[tuple[int, int, int]]] = [[] for _ in range(steps)]  # appending is atomic, incrementing is not
    early: list[int] = []

    def chunk(i, n, step):
        if step and len(done[step - 1]) != n:
            early.append(step)
        done[step].append((step, i, n))

    run(threads, tasks, chunk, steps)
    assert not early
    seen = Counter(key for keys in done for key in keys)
    chunks = {n for _, _, n in seen}
    assert len(chunks) == (1 if steps else 0)
    assert seen == {(step, i, n): 1 for step in range(steps) for n in chunks for i in range(n)}


def test_threads_sleep_in_a_long_barrier_and_are_woken():
    seen: list[int] = []

    def chunk(i, _n, step):
        if i == step % 2:
            time.sleep(0.003)
        seen.append(step)

    run(2, 2, chunk, 10)
    assert seen == sorted(seen)
    assert len(seen) in (10, 20)


def test_steps_inside_a_region_run_once():
    inner: Counter[tuple[int, int]] = Counter()
    run(2, 2, lambda _i, _n, step: run(2, 4, lambda _j, _m, s: inner.update([(step, s)]), 3), 2)
    assert set(inner) == {(a, b) for a in range(2) for b in range(3)}


ORDERED_TASK = """
define void @ordered(ptr %ctx, ptr %counts, i32 %task, i32 %tasks, i64 %step, i32 %threads) {
  %chunks = zext i32 %tasks to i64
  %before = mul i64 %step, %chunks
  %done = load atomic i64, ptr %counts monotonic, align 8
  %late = icmp slt i64 %done, %before
  %late64 = zext i1 %late to i64
  %errors = getelementptr i64, ptr %counts, i64 1
  %e = atomicrmw add ptr %errors, i64 %late64 monotonic
  %sum = getelementptr i64, ptr %counts, i64 2
  %s = atomicrmw add ptr %sum, i64 %step monotonic
  %d = atomicrmw add ptr %counts, i64 1 monotonic
  ret void
}
"""


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_thousands_of_short_steps(threads):
    region = Parallel(pool.parallel_address())
    image = assemble(ORDERED_TASK)
    ordered = ctypes.cast(image.address("ordered"), Task)
    ctx = context(threads)
    for tasks in (threads, 100 * threads):
        steps, chunks = 2000, min(tasks, pool_code.CHUNKS_PER_THREAD * threads)
        for _ in range(3):
            counts = (ctypes.c_int64 * 3)()
            region(ctx.address, ordered, ctypes.addressof(counts), tasks, steps)
            assert list(counts) == [steps * chunks, 0, chunks * steps * (steps - 1) // 2]


# Compiled code


def loop(extent, body, kind=ForKind.SERIAL, start=0):
    i = Var("i", dtype("int32"))
    return For(i, convert(start), convert(extent), kind, body(i))


def function(body, *params):
    handles = [p.data if hasattr(p, "data") else p for p in params]
    return PrimFunc(tuple(handles), body, {p.data: p for p in params if hasattr(p, "data")}, {"global_symbol": "f"})


N = 24


def sums(steps, start=0):
    """Two alternating buffers: every step reads what all threads wrote in the previous one; a second loop adds them
    up."""
    a, total = decl_buffer((2 * N,), "int64", name="A"), decl_buffer((N,), "int64", name="T")

    def step(t):
        now, after = t % 2, 1 - t % 2

        def mix(i):
            both = BufferLoad(a, (now * N + i,)) + BufferLoad(a, (now * N + (i + 7) % N,))
            return BufferStore(a, both % 1000003 + cast("int64", t), (after * N + i,))

        def add(i):
            here = BufferLoad(total, (N - 1 - i,)) + BufferLoad(a, (after * N + i,))
            return BufferStore(total, here, (N - 1 - i,))

        return seq(loop(N, mix, ForKind.PARALLEL), loop(N - 1, add, ForKind.PARALLEL, start=1))

    return loop(steps, step, start=start), a, total


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(("steps", "start"), [(1, 0), (40, 0), (17, 3)])
def test_loops_around_parallel_loops(run_both, threads, steps, start):
    ctx = current_context()
    before = ctx.num_threads
    try:
        ctx._ctx.num_threads = threads
        body, a, total = sums(steps, start)
        data = np.arange(2 * N, dtype="int64")
        for mine, expected in run_both(function(body, a, total), data, np.zeros(N, "int64")):
            np.testing.assert_array_equal(mine, expected)
    finally:
        ctx._ctx.num_threads = before


def row(first, second, third):
    """Three consecutive parallel loops, each reading what all threads wrote in the previous one."""
    a, b, c = (decl_buffer((n,), "int64", name=name) for n, name in zip(LENGTHS, "ABC", strict=True))

    def fill(i):
        return BufferStore(a, BufferLoad(a, (i,)) * 3 + 1, (i,))

    def reverse(i):
        return BufferStore(b, BufferLoad(a, (LENGTHS[0] - 1 - i,)) + cast("int64", i), (i,))

    def spread(i):
        return BufferStore(c, BufferLoad(b, (LENGTHS[1] - 1 - i % LENGTHS[1],)) - BufferLoad(a, (i % 5,)), (i,))

    kind = ForKind.PARALLEL
    return seq(loop(first, fill, kind), loop(second, reverse, kind), loop(third, spread, kind)), a, b, c


LENGTHS = (100, 3, 37)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("known", [True, False])
def test_consecutive_parallel_loops(run_both, threads, known):
    ctx = current_context()
    before = ctx.num_threads
    try:
        ctx._ctx.num_threads = threads
        sizes = () if known else (SizeVar("n"), SizeVar("m"), SizeVar("k"))
        body, a, b, c = row(*(sizes or LENGTHS))
        data = [np.arange(n, dtype="int64") ** 2 for n in LENGTHS]
        numbers = () if known else LENGTHS
        for mine, expected in run_both(function(body, a, b, c, *sizes), *data, *numbers):
            np.testing.assert_array_equal(mine, expected)
    finally:
        ctx._ctx.num_threads = before


def test_consecutive_parallel_loops_may_be_empty(run_both):
    sizes = SizeVar("n"), SizeVar("m"), SizeVar("k")
    body, a, b, c = row(*sizes)
    data = [np.arange(n, dtype="int64") ** 2 for n in LENGTHS]
    for numbers in [(0, 0, 0), (0, 2, 1), (100, 0, 37)]:
        for mine, expected in run_both(function(body, a, b, c, *sizes), *data, *numbers):
            np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize(("lengths", "steps"), [(LENGTHS, [3]), ((100, 1, 37), [1, 1]), ((100, 3, 1), [2])])
def test_consecutive_parallel_loops_are_one_region(lengths, steps):
    """A loop of one iteration is no region and splits the sequence."""
    assert steps_of_regions(*row(*lengths)) == steps


def test_a_loop_with_a_computed_extent_does_not_join_its_producer():
    n, a = decl_buffer((1,), "int64", name="N"), decl_buffer((64,), "int64", name="A")
    first = loop(2, lambda i: BufferStore(n, cast("int64", 5), (convert(0),)), ForKind.PARALLEL)
    second = loop(BufferLoad(n, (convert(0),)), lambda i: BufferStore(a, i, (i,)), ForKind.PARALLEL)
    assert steps_of_regions(seq(first, second), n, a) == [1, 1]


def steps_of_regions(body, *params):
    text = build(IRModule({"f": function(body, *params)}), Target("llvm")).get_source("raw-ll")
    return [int(steps) for steps in re.findall(r"ptr @f\.task.*, i64 (\d+)\)", text)]


@pytest.mark.parametrize("steps", [0, 1, 9])
def test_a_dynamic_number_of_steps(run_both, steps):
    n = SizeVar("n")
    body, a, total = sums(n)
    data = np.arange(2 * N, dtype="int64")
    for mine, expected in run_both(function(body, a, total, n), data, np.zeros(N, "int64"), steps):
        np.testing.assert_array_equal(mine, expected)


def test_a_loop_around_parallel_loops_is_one_region():
    body, a, total = sums(40)
    assert steps_of_regions(body, a, total) == [80]


def test_a_python_function_that_raises_in_a_step():
    register_func("test.steps.callback", lambda step, i: 1 // (7 - step), override=True)
    try:
        def call(t):
            name = StringImm("test.steps.callback")
            return loop(4, lambda i: Evaluate(call_intrin("int32", "call_packed", name, t, i)), ForKind.PARALLEL)

        c = decl_buffer((1,), "int64", name="C")
        f = build(IRModule({"f": function(loop(12, call), c)}), Target("llvm"))["f"]
        with pytest.raises(ZeroDivisionError):
            f(np.zeros(1, "int64"))
    finally:
        remove_global_func("test.steps.callback")
