"""The fork-join pool that parallel regions of compiled code run on.

The pool is compiled code (`backend.llvm.pool_code`) with threads of its own (plain pthreads: they need no Python). It
comes with every saved module, so that running one needs no LLVM. Workers wait for the next region: they spin for some
microseconds, because that of a model's next kernel follows at once, then sleep in a futex, so that an idle pool uses no
CPU. A region is told once, for all to read; as many workers take part as the caller's context allows, and the caller,
who waits until all is done. Workers are started when a region first wants them and stay.

Each thread has a share of the region, always the same, so that it finds in its cache what it wrote there in the region
before. The share is cut into chunks: a thread that is done with its own goes on with those that another has not begun,
which the system may have interrupted or never let run. Nobody waits for a worker that has not begun at all. Threads
keep to cores of their own, and regions do without a worker that other programs keep interrupting
(`backend.llvm.worker_placement`). A region may have several steps, after each of which its threads meet
(`backend.llvm.pool_steps`).

Only one region runs at a time: a second one, nested or from another thread, runs serially in its caller. After a fork
the child starts its own workers. Where there is no futex (other systems than Linux) every region runs serially.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from importlib import import_module

from relayc.backend.llvm.linking import link, process_triple

__all__ = ["offer", "parallel_address", "worker_count", "workspace_addresses"]


@dataclass(frozen=True, slots=True)
class _Pool:
    parallel: int
    alloc_workspace: int
    free_workspace: int
    count_workers: int


_lock = threading.Lock()
_pool: _Pool | None = None
_offered: bytes | None = None


def parallel_address() -> int:
    """The address of `parallel` (see `backend.runtime.context.Ctx`); registered for the runtime."""
    return _load().parallel


def workspace_addresses() -> tuple[int, int]:
    """The addresses of `alloc_workspace` and `free_workspace` that need no Python."""
    pool = _load()
    return pool.alloc_workspace, pool.free_workspace


def worker_count() -> int:
    """Workers started so far in this process."""
    return ctypes.CFUNCTYPE(ctypes.c_int32)(_load().count_workers)()


def offer(code: bytes) -> None:
    """An object file of the pool, which came with compiled code: taken when a pool is wanted and there is none yet."""
    global _offered  # noqa: PLW0603 - one pool for the process
    with _lock:
        _offered = code if _offered is None else _offered


def _load() -> _Pool:
    global _pool  # noqa: PLW0603 - one pool for the process
    with _lock:
        if _pool is None:
            _pool = None if _offered is None else _install_if_complete(_offered)
            if _pool is None:
                _pool = _install(import_module("relayc.backend.llvm.pool_code").pool_object(process_triple()))
        return _pool


def _install_if_complete(code: bytes) -> _Pool | None:
    """None for an older version's pool, which lacks functions."""
    try:
        return _install(code)
    except KeyError:
        return None


def _install(code: bytes) -> _Pool:
    image = link([code])
    pool = _Pool(
        image.address("relayc_region"), image.address("relayc_alloc_workspace"),
        image.address("relayc_free_workspace"), image.address("relayc_worker_count"),
    )  # fmt: skip
    os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(image.address("relayc_forget_workers")))
    image.keep()  # workers are parked in this code until the process ends
    return pool
