"""Where the pool's threads run: which workers stay on the bench, and for how long; which leave a core to others."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

import llvmlite.binding as llvm
import pytest

from relayc.backend.llvm import pool_code, worker_placement
from relayc.backend.llvm.linking import process_triple
from relayc.backend.llvm.pool_code import pool_source
from relayc.backend.runtime.context import Context
from tests.backend.llvm.regions import Body, Parallel, assemble, run, task

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere regions run serially")


class Mailbox(ctypes.Structure):
    _fields_ = (
        ("asleep", ctypes.c_int32), ("away", ctypes.c_int32), ("place", ctypes.c_int32), ("number", ctypes.c_int32),
        ("interrupted", ctypes.c_int32), ("interruptions", ctypes.c_int32),
        ("until", ctypes.c_int64), ("span", ctypes.c_int64), ("rest", ctypes.c_byte * (pool_code.MAILBOX_BYTES - 40)),
    )  # fmt: skip


class OpenPool:
    """A pool of its own, whose inside can be called and seen."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        source = pool_source("linux", process_triple().split("-")[0])
        source = source.replace("internal ", "").replace("private ", "")
        source += "define ptr @mailboxes_address() { ret ptr @mailboxes }\n"
        source += "define void @set_benched() { store i32 1, ptr @benched ret void }\n"
        image = assemble(source)
        self.parallel = Parallel(image.address("relayc_region"))
        self.bench = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int64)(image.address("bench"))
        self.set_benched = ctypes.CFUNCTYPE(None)(image.address("set_benched"))
        address = ctypes.CFUNCTYPE(ctypes.c_void_p)(image.address("mailboxes_address"))()
        self.mailboxes = (Mailbox * 8).from_address(address)
        image.keep()
        self.context = Context()

    def run(self, threads: int, tasks: int, body: Body, steps: int = 1) -> None:
        self.context._ctx.num_threads = threads
        self.parallel(self.context.address, task(body), None, tasks, steps)

    def number_of_worker(self, worker: int) -> int:
        """The system's number of a worker that has been started; it says so itself when it runs first."""
        for _ in range(10_000):
            if self.mailboxes[worker].number:
                return self.mailboxes[worker].number
            time.sleep(0.001)
        raise AssertionError("the worker did not run")


@pytest.fixture(scope="module")
def open_pool() -> OpenPool:
    return OpenPool()


def test_a_worker_that_is_interrupted_again_stays_on_the_bench_for_twice_as_long(open_pool):
    box = open_pool.mailboxes[7]
    now, spans = 10**12, []
    for _ in range(8):
        box.interrupted = 1
        open_pool.bench(7, now)
        assert box.until == now + box.span
        assert box.interrupted == 0
        spans.append(box.span)
        now = box.until + worker_placement.FORGET // 2
    first, longest = worker_placement.FIRST_BENCH, worker_placement.LONGEST_BENCH
    assert spans == [min(first << n, longest) for n in range(8)]
    box.interrupted = 1
    open_pool.bench(7, box.until + worker_placement.FORGET + 1)
    assert box.span == first


def test_a_worker_that_was_not_interrupted_does_not_go_to_the_bench(open_pool):
    open_pool.bench(7, 10**15)
    assert open_pool.mailboxes[7].until < 10**15


def test_others_do_the_share_of_a_worker_on_the_bench_until_it_comes_back(open_pool):
    threads = 4
    open_pool.run(threads, threads, lambda i, n, _: None)
    boxes = open_pool.mailboxes[1:threads]
    for box in boxes[1:]:
        box.until = time.monotonic_ns() + 10**12
    open_pool.set_benched()
    numbers = {open_pool.number_of_worker(n) for n in range(2, threads)}
    for _ in range(20):
        seen: list[tuple[int, int]] = []
        open_pool.run(threads, 20, lambda i, n, _: seen.append((i, threading.get_native_id())))  # noqa: B023
        assert sorted(i for i, _ in seen) == list(range(20))
        assert not numbers & {thread for _, thread in seen}
    for box in boxes:
        box.until = time.monotonic_ns() - 1
    together = threading.Barrier(threads)
    open_pool.run(threads, threads, lambda i, n, _: together.wait(30))
    assert together.broken is False


@pytest.mark.parametrize("away", [{7}, {3, 5, 6, 7}, set(range(1, 8))])
def test_steps_are_finished_without_workers_on_the_bench(open_pool, away):
    """Also where nobody who is there has the number of a neighbour."""
    threads = 8
    open_pool.run(threads, threads, lambda i, n, _: None)
    for number in away:
        open_pool.mailboxes[number].until = time.monotonic_ns() + 10**12
    open_pool.set_benched()
    seen: list[tuple[int, int]] = []
    open_pool.run(threads, threads, lambda i, n, step: seen.append((step, i)), 5)
    for number in away:
        open_pool.mailboxes[number].until = time.monotonic_ns() - 1
    assert sorted(seen) == [(step, i) for step in range(5) for i in range(threads)]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_worker_leaves_the_core_of_its_caller(open_pool):
    """Put beside the caller, it is sent elsewhere by one of the regions that follow."""
    allowed, core_of_this_thread = os.sched_getaffinity(0), ctypes.CDLL(None).sched_getcpu
    open_pool.run(2, 2, lambda i, n, _: None)
    worker = open_pool.number_of_worker(1)
    try:
        for _ in range(2000):  # the system may move the caller: then they aren't beside each other
            here = core_of_this_thread()
            open_pool.mailboxes[1].until = 0  # it may have been interrupted
            os.sched_setaffinity(worker, {here})
            for _ in range(3):
                open_pool.run(2, 2, lambda i, n, _: time.sleep(0.001))
            if here not in os.sched_getaffinity(worker):
                return
        raise AssertionError("the worker stayed")
    finally:
        os.sched_setaffinity(worker, allowed)


def test_more_threads_than_cores_stay_where_they_are():
    """There is no vacant core to send them to: each chunk once all the same, region after region."""
    threads = len(os.sched_getaffinity(0)) + 2 if hasattr(os, "sched_getaffinity") else 4
    for _ in range(worker_placement.CALM + 20):
        seen: list[int] = []
        run(threads, threads, lambda i, n, _, seen=seen: seen.append(i))
        assert sorted(seen) == list(range(threads))
