"""Thread limits of compiled code, and the addresses of the thread pool's fork-join functions.

The number of threads is the minimum of: the CPU affinity of the process, the whole CPUs of its cgroup quota (v1 or v2,
all ancestors), the environment variable `RELAYC_NUM_THREADS`, `set_num_threads(n)`, and the executor's request. A
fractional CPU of the quota is not used: its thread would be throttled and delay every join.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from relayc.backend.runtime.checks import positive
from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.runtime.registry import get_global_func

__all__ = [
    "array_call_address",
    "available_cpus",
    "cgroup_cpu_quota",
    "in_threads",
    "num_threads",
    "parallel_address",
    "set_num_threads",
    "setting_version",
    "workspace_addresses",
]

_VARIABLE = "RELAYC_NUM_THREADS"
_ARRAY_CALL = "runtime.thread_pool.array_call_address"
_PARALLEL = "runtime.thread_pool.parallel_address"
_WORKSPACE = "runtime.thread_pool.workspace_addresses"

_WORTH_THREADS = 1 << 20
"""Bytes of data movement from which on `in_threads` uses several threads."""

_Item = TypeVar("_Item")

_limit: int | None = None
_version = 0


def num_threads(requested: int | None = None) -> int:
    """The number of threads of one execution that requests `requested` (None: as many as allowed).

    Raises `ArgumentError` for a request or a `RELAYC_NUM_THREADS` that is not a positive integer.
    """
    asked = None if requested is None else positive(requested, "num_threads")
    return min([limit for limit in (available_cpus(), _variable_limit(), _limit, asked) if limit is not None])


def set_num_threads(count: int | None) -> None:
    """Limits the threads of every later execution of this process; None takes the limit away.

    Raises `ArgumentError` for a count that is not a positive integer.
    """
    global _limit, _version  # noqa: PLW0603 - a setting of the process
    _limit = None if count is None else positive(count, "set_num_threads")
    _version += 1


def setting_version() -> int:
    """A version number that changes with every `set_num_threads`."""
    return _version


def available_cpus() -> int:
    """CPUs that this process may keep busy: its affinity within its cgroup quota, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cgroup_cpu_quota()
    return max(1, min(affinity if affinity is not None else 1, int(quota) if quota is not None else 1 << 16))


def in_threads(function: Callable[[_Item], object], items: Sequence[_Item], nbytes: int) -> None:
    """Call `function` with each item, on several threads if `nbytes` of data movement are worth it.

    For work that mostly releases the GIL: array copies, file reads, hashes. The calling thread takes part. The first
    exception is re-raised; remaining calls may be skipped then.
    """
    workers = min(num_threads(), len(items)) if nbytes >= _WORTH_THREADS else 1
    waiting, errors = deque(items), list[BaseException]()

    def work() -> None:
        while True:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            try:
                function(item)
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                errors.append(error)
                waiting.clear()

    threads = [threading.Thread(target=work, name=f"relayc-{i}") for i in range(1, workers)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def parallel_address() -> int | None:
    """The address of the fork-join function of the thread pool (see `context.Ctx`); None when no pool is installed."""
    find = get_global_func(_PARALLEL, allow_missing=True)
    return None if find is None else int(find())


def workspace_addresses() -> tuple[int, int] | None:
    """The addresses of native alloc_workspace and free_workspace functions (see `context.Ctx`); None without any."""
    find = get_global_func(_WORKSPACE, allow_missing=True)
    return None if find is None else find()


def array_call_address() -> int | None:
    """The address of the function that enters compiled code with arrays (see `array_call`); None without one."""
    find = get_global_func(_ARRAY_CALL, allow_missing=True)
    return None if find is None else find()


@lru_cache(maxsize=4)
def cgroup_cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs granted by the tightest cgroup quota of this process and its ancestors; None without one. Read once."""
    found: list[float] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and controllers == "":
            for folder in _ancestors(root / "sys/fs/cgroup", path):
                found += _quota_v2(folder)
        elif "cpu" in controllers.split(","):
            for mount in {controllers, "cpu", "cpu,cpuacct"}:
                for folder in _ancestors(root / "sys/fs/cgroup" / mount, path):
                    found += _quota_v1(folder)
    return min(found, default=None)


def _ancestors(mount: Path, path: str) -> list[Path]:
    """The group's folder and its ancestors. In a container the path may not exist below the mount; the mount does."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quota_v2(folder: Path) -> list[float]:
    words = _read(folder / "cpu.max").split()
    return _ratio(words[0], words[1]) if len(words) == 2 else []


def _quota_v1(folder: Path) -> list[float]:
    return _ratio(_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip())


def _ratio(quota: str, period: str) -> list[float]:
    return [int(quota) / int(period)] if quota.isdigit() and period.isdigit() and int(period) and int(quota) else []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _variable_limit() -> int | None:
    """The limit that the environment sets."""
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return None
    try:
        return positive(int(text), "its value")
    except ValueError as error:
        raise ArgumentError(f"environment variable {_VARIABLE} is {text!r}; expected a positive integer") from error
