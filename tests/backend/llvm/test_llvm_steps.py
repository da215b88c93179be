"""Regions of several steps: loops around parallel loops, whose threads meet after each step."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import Counter

import llvmlite.binding as llvm
import numpy as np
import pytest

from backend.llvm import pool, pool_code
from backend.llvm.build import build
from backend.llvm.linking import link, process_triple
from backend.runtime import register_func, remove_global_func
from backend.runtime.context import Context, current_context
from backend.target import Target
from te.dtype import dtype
from te.ir import IRModule
from te.tir import (
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

Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int64)
Steps = ctypes.CFUNCTYPE(None, ctypes.c_void_p, Task, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64)


def run(threads: int, tasks: int, steps: int, body) -> None:
    context = Context()
    context._ctx.num_threads = threads
    Steps(pool.parallel_steps_address())(context.address, Task(body), None, tasks, steps)


@pytest.mark.parametrize(("threads", "tasks"), [(1, 4), (2, 2), (2, 5), (3, 100), (8, 8)])
@pytest.mark.parametrize("steps", [0, 1, 2, 25])
def test_every_chunk_of_every_step_runs_once_and_after_the_step_before(threads, tasks, steps):
    done: Counter[int] = Counter()
    seen: Counter[tuple[int, int, int]] = Counter()
    early: list[int] = []

    def chunk(_ctx, _data, i, n, step):
        if step and done[step - 1] != n:
            early.append(step)
        seen[step, i, n] += 1
        done[step] += 1

    run(threads, tasks, steps, chunk)
    assert not early
    chunks = {n for _, _, n in seen}
    assert len(chunks) == (1 if steps else 0)
    assert seen == {(step, i, n): 1 for step in range(steps) for n in chunks for i in range(n)}


def test_threads_that_wait_long_for_a_step_sleep_and_are_woken():
    seen: list[int] = []

    def chunk(_ctx, _data, i, _n, step):
        if i == step % 2:
            time.sleep(0.003)
        seen.append(step)

    run(2, 2, 10, chunk)
    assert seen == sorted(seen)
    assert len(seen) in (10, 20)


def test_steps_inside_a_region_and_in_two_python_threads_run_once():
    counts = [0, 0]

    def work(k):
        for _ in range(50):
            steps: list[int] = []
            run(2, 4, 5, lambda c, d, i, n, s, steps=steps: steps.append(n))
            assert len(steps) == 5 * steps[0]
            counts[k] += 1

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert counts == [50, 50]
    inner: Counter[tuple[int, int]] = Counter()
    region = Steps(pool.parallel_steps_address())

    def outer(ctx, _data, _i, _n, step):
        region(ctx, Task(lambda c, d, j, m, s: inner.update([(step, s)])), None, 4, 3)

    run(2, 2, 2, outer)
    assert set(inner) == {(a, b) for a in range(2) for b in range(3)}


ORDERED_TASK = """
define void @ordered(ptr %ctx, ptr %counts, i32 %task, i32 %tasks, i64 %step) {
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
    region = Steps(pool.parallel_steps_address())
    machine = llvm.Target.from_triple(process_triple()).create_target_machine(reloc="pic", codemodel="small")
    image = link([machine.emit_object(llvm.parse_assembly(ORDERED_TASK))])
    task = ctypes.cast(image.address("ordered"), Task)
    context = Context()
    context._ctx.num_threads = threads
    for tasks in (threads, 100 * threads):
        steps, chunks = 2000, min(tasks, pool_code.CHUNKS * threads)
        for _ in range(3):
            counts = (ctypes.c_int64 * 3)()
            region(context.address, task, ctypes.addressof(counts), tasks, steps)
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
    """Two buffers in turns: every step reads what all threads wrote in the one before; another loop adds them up."""
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
    context = current_context()
    before = context.num_threads
    try:
        context._ctx.num_threads = threads
        body, a, total = sums(steps, start)
        data = np.arange(2 * N, dtype="int64")
        for mine, expected in run_both(function(body, a, total), data, np.zeros(N, "int64")):
            np.testing.assert_array_equal(mine, expected)
    finally:
        context._ctx.num_threads = before


@pytest.mark.parametrize("steps", [0, 1, 9])
def test_as_many_steps_as_an_argument_says(run_both, steps):
    n = SizeVar("n")
    body, a, total = sums(n)
    data = np.arange(2 * N, dtype="int64")
    for mine, expected in run_both(function(body, a, total, n), data, np.zeros(N, "int64"), steps):
        np.testing.assert_array_equal(mine, expected)


def test_a_loop_around_parallel_loops_is_one_region():
    body, a, total = sums(40)
    text = build(IRModule({"f": function(body, a, total)}), Target("llvm")).get_source("raw-ll")
    assert text.count("switch i64") == 1
    assert text.count("i64 80)") == 1  # steps of the region


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
