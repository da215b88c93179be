"""Placement of the pool's workers: suspension of preempted ones with exponential backoff, and migration."""

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
        ("asleep", ctypes.c_int32), ("suspended", ctypes.c_int32), ("core", ctypes.c_int32),
        ("thread_id", ctypes.c_int32), ("preempted", ctypes.c_int32), ("preemptions", ctypes.c_int32),
        ("until", ctypes.c_int64), ("span", ctypes.c_int64), ("rest", ctypes.c_byte * (pool_code.MAILBOX_BYTES - 40)),
    )  # fmt: skip


class OpenPool:
    """A separate pool with its internal symbols exported."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        source = pool_source("linux", process_triple().split("-")[0])
        source = source.replace("internal ", "hidden ").replace("private ", "hidden ")
        source += "define ptr @mailboxes_address() { ret ptr @mailboxes }\n"
        source += "define void @set_suspended() { store i32 1, ptr @suspended ret void }\n"
        image = assemble(source)
        self.parallel = Parallel(image.address("relayc_region"))
        self.suspend = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int64)(image.address("suspend"))
        self.set_suspended = ctypes.CFUNCTYPE(None)(image.address("set_suspended"))
        address = ctypes.CFUNCTYPE(ctypes.c_void_p)(image.address("mailboxes_address"))()
        self.mailboxes = (Mailbox * 8).from_address(address)
        image.keep()
        self.context = Context()

    def run(self, threads: int, tasks: int, body: Body, steps: int = 1) -> None:
        self.context._ctx.num_threads = threads
        self.parallel(self.context.address, task(body), None, tasks, steps)

    def thread_id(self, worker: int) -> int:
        """The thread id of a started worker, which records it when it first runs."""
        for _ in range(10_000):
            if self.mailboxes[worker].thread_id:
                return self.mailboxes[worker].thread_id
            time.sleep(0.001)
        raise AssertionError("the worker did not run")


@pytest.fixture(scope="module")
def open_pool() -> OpenPool:
    return OpenPool()


def test_suspension_of_a_preempted_worker_backs_off_exponentially(open_pool):
    box = open_pool.mailboxes[7]
    now, spans = 10**12, []
    for _ in range(8):
        box.preempted = 1
        open_pool.suspend(7, now)
        assert box.until == now + box.span
        assert box.preempted == 0
        spans.append(box.span)
        now = box.until + worker_placement.BACKOFF_RESET // 2
    first, longest = worker_placement.FIRST_SUSPENSION, worker_placement.MAX_SUSPENSION
    assert spans == [min(first << n, longest) for n in range(8)]
    box.preempted = 1
    open_pool.suspend(7, box.until + worker_placement.BACKOFF_RESET + 1)
    assert box.span == first


def test_a_worker_that_was_not_preempted_is_not_suspended(open_pool):
    open_pool.suspend(7, 10**15)
    assert open_pool.mailboxes[7].until < 10**15


def test_other_threads_steal_the_work_of_a_suspended_worker_until_it_resumes(open_pool):
    threads = 4
    open_pool.run(threads, threads, lambda i, n, _: None)
    boxes = open_pool.mailboxes[1:threads]
    for box in boxes[1:]:
        box.until = time.monotonic_ns() + 10**12
    open_pool.set_suspended()
    numbers = {open_pool.thread_id(n) for n in range(2, threads)}
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


@pytest.mark.parametrize("suspended", [{7}, {3, 5, 6, 7}, set(range(1, 8))])
def test_steps_complete_without_suspended_workers(open_pool, suspended):
    """Also if no active thread is a stealing neighbour of a suspended one."""
    threads = 8
    open_pool.run(threads, threads, lambda i, n, _: None)
    for number in suspended:
        open_pool.mailboxes[number].until = time.monotonic_ns() + 10**12
    open_pool.set_suspended()
    seen: list[tuple[int, int]] = []
    open_pool.run(threads, threads, lambda i, n, step: seen.append((step, i)), 5)
    for number in suspended:
        open_pool.mailboxes[number].until = time.monotonic_ns() - 1
    assert sorted(seen) == [(step, i) for step in range(5) for i in range(threads)]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_worker_on_its_callers_core_is_migrated(open_pool):
    """Pinned to the caller's core, it is migrated by one of the following regions."""
    allowed, core_of_this_thread = os.sched_getaffinity(0), ctypes.CDLL(None).sched_getcpu
    open_pool.run(2, 2, lambda i, n, _: None)
    worker = open_pool.thread_id(1)
    try:
        for _ in range(2000):  # the system may move the caller to another core
            here = core_of_this_thread()
            open_pool.mailboxes[1].until = 0  # it may be suspended
            os.sched_setaffinity(worker, {here})
            for _ in range(3):
                open_pool.run(2, 2, lambda i, n, _: time.sleep(0.001))
            if here not in os.sched_getaffinity(worker):
                return
        raise AssertionError("the worker stayed")
    finally:
        os.sched_setaffinity(worker, allowed)


def test_oversubscribed_threads_are_not_migrated():
    """There is no vacant core: each chunk still runs once, region after region."""
    threads = len(os.sched_getaffinity(0)) + 2 if hasattr(os, "sched_getaffinity") else 4
    for _ in range(worker_placement.MIGRATION_PAUSE + 20):
        seen: list[int] = []
        run(threads, threads, lambda i, n, _, seen=seen: seen.append(i))
        assert sorted(seen) == list(range(threads))
