"""Independent loops as one step: every iteration runs once, and the partition is even."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from relayc.backend.driver import build
from relayc.backend.llvm.codegen.work_partition import partition
from relayc.backend.runtime import nd
from relayc.backend.runtime.context import current_context
from relayc.te.dtype import INT32
from relayc.te.tir import (
    AttrStmt,
    BufferLoad,
    BufferStore,
    For,
    ForKind,
    IntImm,
    PrimFunc,
    Stmt,
    Var,
    as_int,
    const,
    decl_buffer,
    seq,
)

Loops = list[tuple[int, int]]


def ranges(loops: Loops, task: int, tasks: int, threads: int) -> list[range]:
    found = partition(loops, *[const(n, "int64") for n in (task, tasks, threads)])
    bounds = [(as_int(a), as_int(b)) for a, b in found]
    return [range(a, b) for a, b in bounds if a is not None and b is not None]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 3000)), min_size=2, max_size=5),
    st.sampled_from([1, 2, 3, 16]),
    st.integers(1, 8),
)
def test_tasks_run_each_iteration_of_each_loop_once_and_in_order(loops: Loops, threads: int, each: int) -> None:
    loops = sorted(loops, key=lambda loop: -loop[1])
    tasks = threads * each
    seen: list[list[int]] = [[] for _ in loops]
    for task in range(tasks):
        for own, mine in zip(seen, ranges(loops, task, tasks, threads), strict=True):
            own.extend(mine)
    assert [sorted(own) for own in seen] == [list(range(extent)) for extent, _ in loops]


@pytest.mark.parametrize(
    ("loops", "threads", "most"),
    [([(7, 30), (7, 30)], 2, 1.0), ([(2, 2500), (61, 20)], 2, 1.01), ([(122, 2294), (32, 2187), (27, 2000)], 16, 1.07),
     ([(12, 900), (9, 890), (5, 400)], 8, 1.35)],
)  # fmt: skip
def test_the_partition_is_balanced(loops: Loops, threads: int, most: float) -> None:
    work = [sum(len(r) * cycles for r, (_, cycles) in zip(ranges(loops, t, threads, threads), loops, strict=True))
            for t in range(threads)]  # fmt: skip
    assert max(work) <= most * sum(work) / threads
    assert sum(work) == sum(extent * cycles for extent, cycles in loops)


def test_tasks_of_a_thread_follow_the_order_of_loops():
    tasks = [ranges([(8, 10), (8, 10)], task, 8, 2) for task in range(4)]
    assert [[len(r) for r in both] for both in tasks] == [[2, 0], [2, 0], [0, 2], [0, 2]]


def counting(extents: list[int], rounds: int) -> PrimFunc:
    """Loops that count their iterations, all of them one step, `rounds` times in a row."""
    counts = decl_buffer((sum(extents),), "int32", "counts")

    def loop(first: int, extent: int) -> Stmt:
        i = Var("i", INT32)
        count = BufferStore(counts, BufferLoad(counts, (i + first,)) + 1, (i + first,))
        return For(i, IntImm(INT32, 0), IntImm(INT32, extent), ForKind.PARALLEL, count, {"pragma_cycles": 1 + first})

    steps = [AttrStmt("independent", None, const(len(extents)), seq([loop(sum(extents[:k]), extent)
             for k, extent in enumerate(extents)])) for _ in range(rounds)]  # fmt: skip
    return PrimFunc((counts.data,), seq(steps), {counts.data: counts}, {"global_symbol": "counting"})


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("extents", [[1, 5], [7, 7, 2], [100, 1, 3]])
def test_compiled_steps_run_every_iteration(extents: list[int], threads: int) -> None:
    run = build(counting(extents, 3), target="llvm")["counting"]
    counts = nd.array(np.zeros(sum(extents), np.int32))
    context = current_context()
    context._ctx.num_threads = threads  # may exceed the machine's number of threads
    try:
        run(counts)
    finally:
        context.set_num_threads(None)
    assert counts.numpy().tolist() == [3] * sum(extents)


def test_consecutive_steps_are_one_region():
    text = build(counting([4, 6], 3), target="llvm").get_source("raw-ll")
    assert text.count("ptr @counting.task") == 1
    assert "i64 3)" in text
