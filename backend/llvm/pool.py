"""The fork-join thread pool that runs parallel regions of compiled code.

The pool is compiled code (`backend.llvm.pool_code`) with its own pthreads, which need no Python. Every saved module
contains it, so that running one needs no LLVM. Idle workers spin for some microseconds, because the region of a model's
next kernel follows at once, then sleep in a futex, so that an idle pool uses no CPU. A region is published once, for
all workers to read; as many workers take part as the caller's context allows, and the caller waits until all is done.
Workers are started when a region first needs them and are never stopped.

Each thread has a fixed partition of the region's work, so that it finds in its cache what it wrote there in the
previous region. The partition is cut into chunks: a thread that has finished its own steals the chunks that another has
not started, which may be descheduled. Nobody waits for a worker that has not started at all. Threads are kept on
separate cores, and a worker that is repeatedly preempted by other programs is suspended
(`backend.llvm.worker_placement`). A region may have several steps with a barrier after each
(`backend.llvm.pool_steps`).

Only one region runs at a time: a nested or concurrent one runs serially in its caller. After a fork the child starts
its own workers. Without futexes (systems other than Linux) every region runs serially.
"""

from __future__ import annotations

import ctypes
import os
import threading
from importlib import import_module
from typing import NamedTuple

from relayc.backend.llvm.linking import Image, link, process_triple

__all__ = ["array_call_address", "offer", "parallel_address", "worker_count", "workspace_addresses"]


class _Pool(NamedTuple):
    parallel: int
    alloc_workspace: int
    free_workspace: int
    count_workers: int
    call_with_arrays: int | None
    """None in code of earlier versions"""


_lock = threading.Lock()
_pool: _Pool | None = None
_offered: bytes | None = None


def parallel_address() -> int:
    """The address of `parallel` (see `backend.runtime.context.Ctx`), as registered with the runtime."""
    return _load().parallel


def workspace_addresses() -> tuple[int, int]:
    """The addresses of `alloc_workspace` and `free_workspace`, which need no Python."""
    pool = _load()
    return pool.alloc_workspace, pool.free_workspace


def array_call_address() -> int | None:
    """The address of the function that enters compiled code with arrays (`backend.runtime.array_call`), or None."""
    return _load().call_with_arrays


def worker_count() -> int:
    """Number of workers started so far in this process."""
    return ctypes.CFUNCTYPE(ctypes.c_int32)(_load().count_workers)()


def offer(code: bytes) -> None:
    """Provide an object file of the pool, from compiled code; it is loaded when a pool is first needed."""
    global _offered  # noqa: PLW0603 - one pool for the process
    with _lock:
        _offered = code if _offered is None else _offered


def _load() -> _Pool:
    global _pool, _offered  # noqa: PLW0603 - one pool for the process
    with _lock:
        if _pool is None:
            offered, _offered = _offered, None  # if it is malformed, the next one may be better
            _pool = None if offered is None else _install_if_complete(offered)
            if _pool is None:
                _pool = _install(import_module("relayc.backend.llvm.pool_code").pool_object(process_triple()))
        return _pool


def _install_if_complete(code: bytes) -> _Pool | None:
    """Load a pool; None if it comes from an older version and lacks functions."""
    try:
        return _install(code)
    except KeyError:
        return None


def _install(code: bytes) -> _Pool:
    image = link([code])
    pool = _Pool(
        image.address("relayc_region"), image.address("relayc_alloc_workspace"),
        image.address("relayc_free_workspace"), image.address("relayc_worker_count"),
        _address_if_there(image, "relayc_call_with_arrays"),
    )  # fmt: skip
    os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(image.address("relayc_forget_workers")))
    image.keep()  # workers sleep in this code until the process ends
    return pool


def _address_if_there(image: Image, name: str) -> int | None:
    try:
        return image.address(name)
    except KeyError:
        return None
