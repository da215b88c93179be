"""The fork-join pool: every task once, nested and concurrent regions, forks, idle workers."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from relayc.backend.llvm import pool, pool_code, worker_placement
from relayc.backend.llvm.linking import process_triple
from tests.backend.llvm.regions import Parallel, Task, assemble, context, in_two_python_threads, run, task


@pytest.mark.parametrize(("threads", "tasks"), [(1, 8), (2, 1), (2, 2), (2, 100), (5, 3), (4, 4), (7, 100), (3, 5)])
def test_every_task_runs_once(threads, tasks):
    for _ in range(20):
        seen: list[tuple[int, int]] = []
        run(threads, tasks, lambda i, n, _: seen.append((i, n)))  # noqa: B023
        count = len(seen)
        assert min(threads, tasks) <= count <= tasks
        assert sorted(seen) == [(i, count) for i in range(count)]


@pytest.mark.parametrize(("threads", "tasks", "chunks"), [(2, 9, 8), (3, 7, 6), (2, 100, 16), (4, 4, 4), (3, 2, 2)])
def test_threads_have_equal_numbers_of_chunks(threads, tasks, chunks):
    seen: list[int] = []
    run(threads, tasks, lambda i, n, _: seen.append(n))
    assert seen == [chunks] * chunks


def wait_for_suspended_workers() -> None:
    """Wait until suspended workers are resumed."""
    time.sleep(worker_placement.MAX_SUSPENSION / 1e9)


def test_tasks_run_in_different_threads():
    wait_for_suspended_workers()
    together = threading.Barrier(3)
    passed: list[int] = []
    run(3, 3, lambda i, n, _: passed.append(together.wait(30)))
    assert sorted(passed) == [0, 1, 2]


def test_unclaimed_chunks_are_stolen():
    """The worker stays in its first chunk until the caller has done all others."""
    done: Counter[bool] = Counter()
    caller = threading.get_native_id()
    wait_for_suspended_workers()
    begun, others_done = threading.Event(), threading.Event()

    def chunk(_i, _n, _step):
        mine = threading.get_native_id() == caller
        if mine:
            begun.wait(30)
        else:
            begun.set()
            others_done.wait(30)
        done[mine] += 1
        if done[True] == 15:
            others_done.set()

    run(2, 16, chunk)
    assert done == {True: 15, False: 1}


def test_regions_do_not_wait_for_workers_that_have_not_started():
    """More threads than cores, asleep or not: each chunk once, by any thread."""
    seen: list[int] = []
    for pause in [0, 0.001] * 100:  # some regions find the workers asleep
        run(7, 40, lambda i, n, _: seen.append(i))
        assert sorted(seen) == list(range(len(seen)))
        seen.clear()
        time.sleep(pause)


COUNTING_TASK = """
define void @count(ptr %ctx, ptr %counts, i32 %task, i32 %tasks, i64 %step, i32 %threads) {
  %place = getelementptr i32, ptr %counts, i32 %task
  %before = atomicrmw add ptr %place, i32 1 monotonic
  ret void
}
"""


@pytest.mark.parametrize("threads", [2, 3, 7, 16])
def test_thousands_of_short_regions(threads):
    """Regions end before workers have started, one after the other."""
    run_region = Parallel(pool.parallel_address())
    image = assemble(COUNTING_TASK)
    counting = ctypes.cast(image.address("count"), Task)
    ctx = context(threads)
    for tasks in (threads - 1, threads, 5 * threads, 100 * threads):
        counts = (ctypes.c_int32 * tasks)()
        regions = 500
        for _ in range(regions):
            run_region(ctx.address, counting, ctypes.addressof(counts), tasks, 1)
        chunks = min(tasks, pool_code.CHUNKS_PER_THREAD * threads)
        assert list(counts) == [regions] * chunks + [0] * (tasks - chunks)


def test_different_regions_in_sequence():
    """Workers that start late must not mix up regions with different threads, chunks and steps."""
    run_region = Parallel(pool.parallel_address())
    image = assemble(COUNTING_TASK)
    counting = ctypes.cast(image.address("count"), Task)
    contexts = {threads: context(threads) for threads in range(2, 7)}
    counts = (ctypes.c_int32 * (pool_code.CHUNKS_PER_THREAD * 7))()
    for number in range(5000):
        threads, each, steps = 2 + number % 5, 1 + number % pool_code.CHUNKS_PER_THREAD, 1 + number % 3
        ctypes.memset(counts, 0, ctypes.sizeof(counts))
        run_region(contexts[threads].address, counting, ctypes.addressof(counts), threads * each, steps)
        chunks = threads * each
        assert list(counts) == [steps] * chunks + [0] * (len(counts) - chunks)


def test_a_nested_region_runs_serially_and_once():
    seen: Counter[tuple[int, int, int]] = Counter()
    run(2, 2, lambda i, _n, _s: run(2, 4, lambda j, m, _t: seen.update([(i, j, m)])))
    assert seen == {(0, 0, 1): 1, (1, 0, 1): 1}


@pytest.mark.parametrize(("steps", "times"), [(1, 300), (5, 50)])
def test_two_concurrent_python_threads(steps, times):
    def work():
        tasks: list[int] = []
        run(2, 4, lambda _i, n, _s: tasks.append(n), steps)
        assert len(tasks) == steps * tasks[0]

    in_two_python_threads(work, times)


def _regions_in_child(queue) -> None:
    seen: list[int] = []
    run(3, 3, lambda i, n, _: seen.append(i))
    queue.put((sorted(seen), pool.worker_count()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_workers_of_its_own():
    run(4, 4, lambda i, n, _: None)
    assert pool.worker_count() >= 3
    methods = multiprocessing.get_context("fork")
    queue = methods.Queue()
    child = methods.Process(target=_regions_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=30) == ([0, 1, 2], 2)
    child.join(30)
    assert child.exitcode == 0
    run(4, 4, lambda i, n, _: None)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux tells what a thread of this process does")
def test_idle_workers_sleep():
    """After a bounded spin they sleep in the kernel, in state "S"; other programs may use the cores, so poll."""
    run(4, 4, lambda i, n, _: None)
    for _ in range(200):
        others = [t for t in Path("/proc/self/task").iterdir() if int(t.name) != threading.get_native_id()]
        states = [(t / "stat").read_text().rsplit(")", 1)[1].split()[0] for t in others]
        if len(states) >= 3 and set(states) == {"S"}:
            return
        time.sleep(0.05)
    raise AssertionError(f"workers still run: {states}")


def test_the_process_exits_while_workers_sleep():
    program = (
        "from relayc.backend.llvm import pool\n"
        "from tests.backend.llvm.regions import run\n"
        "run(4, 4, lambda i, n, step: None)\n"
        "print(pool.worker_count())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr


def test_workspace_is_aligned_and_reusable():
    alloc, free = pool.workspace_addresses()
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(alloc)
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(free)
    for size in (0, 1, 63, 4096, 1 << 20):
        addresses = [allocate(None, size) for _ in range(3)]
        assert all(a % 64 == 0 for a in addresses)
        for a in addresses:
            ctypes.memset(a, 0xAB, size)
        for a in reversed(addresses):
            release(None, a)


def test_an_older_version_of_the_pool_is_rejected():
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(process_triple()).create_target_machine(reloc="pic", codemodel="small")
    old = machine.emit_object(llvm.parse_assembly("define void @relayc_parallel() { ret void }"))
    for offered in (old, pool_code.pool_object(process_triple())):
        assert (pool._install_if_complete(offered) is None) == (offered is old)


def test_other_systems_run_serially():
    triple = process_triple()
    serial = pool_code.pool_object(f"{triple.split('-')[0]}-unknown-none")
    made = pool._install(serial)
    seen: list[tuple[int, int, int]] = []
    Parallel(made.parallel)(context(4).address, task(lambda i, n, step: seen.append((i, n, step))), None, 8, 2)
    assert seen == [(0, 1, 0), (0, 1, 1)]
