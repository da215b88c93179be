"""The execution context passed to compiled code: thread pool, workspace memory, calls back into Python.

Every compiled function takes a pointer to a `Ctx` first. Compiled code reads the struct's fields in place, so their
order is part of the binary interface. A `Context` owns one; an executor has its own, other calls use their thread's.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from relayc.backend.runtime.checks import as_integer
from relayc.backend.runtime.device import Device, cpu, device_kind_of, get_device_api
from relayc.backend.runtime.dlpack import DLTensor
from relayc.backend.runtime.dtype import from_dlpack_triple
from relayc.backend.runtime.errors import ArgumentError, DeviceError
from relayc.backend.runtime.ndarray import NDArray
from relayc.backend.runtime.registry import get_global_func
from relayc.backend.runtime.threads import (
    num_threads,
    parallel_address,
    setting_version,
    workspace_addresses,
)

__all__ = [
    "ARG_FLOAT",
    "ARG_HANDLE",
    "ARG_INT",
    "ARG_NULL",
    "ARG_STR",
    "ARG_TENSOR",
    "RANDOM_STREAMS",
    "Context",
    "Ctx",
    "current_context",
    "set_random_seed",
]

# Kinds of the 8-byte argument values of packed functions; the numbers are TVM's.
ARG_INT = 0  # int64
ARG_FLOAT = 2  # the bits of a float64
ARG_HANDLE = 3  # an address
ARG_NULL = 4  # None
ARG_TENSOR = 7  # DLTensor*
ARG_STR = 11  # char*, UTF-8, ended by a zero byte

_Task = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int64, ctypes.c_int32
)
_Parallel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _Task, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64)
_AllocWorkspace = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_FreeWorkspace = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_CallPacked = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.POINTER(ctypes.c_int32),
    ctypes.c_int32,
)


RANDOM_STREAMS = 64
"""Streams of random keys of each half: those with a seed, which start at draw 0, and those without."""

_random_seed: int | None = None


def set_random_seed(seed: int | None) -> None:
    """Makes executors created from now on draw the same numbers each time where the model gives no seed.

    With None, the default, each draws others (onnxruntime: `set_seed`). Raises `ArgumentError` for anything but
    integers. On GPUs it has no effect: nodes without a seed draw the same numbers in each process.
    """
    global _random_seed  # noqa: PLW0603 - a setting of the process
    number = None if seed is None else as_integer(seed)
    if number is None and seed is not None:
        raise ArgumentError(f"set_random_seed is {seed!r}; expected an integer, or None")
    _random_seed = number


def _random_starts() -> list[int]:
    """The first draws of the streams without a seed."""
    if _random_seed is None:
        return [int.from_bytes(os.urandom(4), "little") for _ in range(RANDOM_STREAMS)]
    from random import Random  # 1 ms, which a process without a seed does without

    source = Random(_random_seed)
    return [source.getrandbits(32) for _ in range(RANDOM_STREAMS)]


class Ctx(ctypes.Structure):
    """The C struct of the context. All functions take the `Ctx*` first.

    parallel(ctx, task, closure, max_tasks, steps): a fork-join region of `steps` phases with a barrier between them. In
        each phase calls task(ctx, closure, i, n, step, threads) once for every i < n on up to num_threads threads,
        1 <= n <= max_tasks, n the same in all phases. Tasks are partitioned into `threads` contiguous chunks.
    draws: counter of the random draws that artifacts of earlier versions make.
    alloc_workspace(ctx, nbytes): workspace of the calling thread, aligned to 64 bytes, freed in reverse order; null,
        and `shortage` set, when memory is exhausted.
    call_packed(ctx, name, args, kinds, n): calls the global function `name` with n 8-byte values of kinds `ARG_*`;
        0, or -1 when it raised. The exception is raised again where compiled code was entered.
    shortage: bytes that `alloc_workspace` could not get, 0 if there was enough. Compiled code that finds it set returns
        at once, its results undefined; the error is raised where compiled code was entered.
    stream_draws: counters of random draws, one for each stream of keys; functions increment them. Those of the second
        half of the streams start at random (see `set_random_seed`).
    """

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("num_threads", ctypes.c_int32),
        ("draws", ctypes.c_int32),
        ("alloc_workspace", ctypes.c_void_p),
        ("free_workspace", ctypes.c_void_p),
        ("call_packed", ctypes.c_void_p),
        ("shortage", ctypes.c_int64),
        ("stream_draws", ctypes.c_uint32 * (2 * RANDOM_STREAMS)),
    )


class Context:
    """Owner of a `Ctx`, at `address`. Not for concurrent calls.

    `requested` is the number of threads (None: as many as allowed, see `backend.runtime.threads`). `find_function`
    resolves the names that compiled code calls: by default to global functions. `user` names whose kernels run, in
    errors.
    """

    find_function: Callable[[str], Callable[..., Any]]
    user = "a kernel"

    def __init__(self, requested: int | None = None) -> None:
        pool, workspace = parallel_address(), workspace_addresses()
        alloc, free = workspace or (_address_of(_alloc_workspace), _address_of(_free_workspace))
        self._requested = requested
        self._failure: BaseException | None = None
        self.find_function = get_global_func
        self._version = setting_version()
        self._ctx = Ctx(
            _address_of(_serial_parallel) if pool is None else pool,
            num_threads(requested),
            0,
            alloc,
            free,
            _address_of(_call_packed),
            0,
            (ctypes.c_uint32 * (2 * RANDOM_STREAMS))(*[0] * RANDOM_STREAMS, *_random_starts()),
        )
        self.address = ctypes.addressof(self._ctx)
        _contexts[self.address] = self

    @property
    def num_threads(self) -> int:
        """Number of threads that the next call may use."""
        self.refresh()
        return self._ctx.num_threads

    def set_num_threads(self, requested: int | None) -> None:
        """Change the requested number of threads. Raises `ArgumentError` unless it is positive or None."""
        self._ctx.num_threads = num_threads(requested)
        self._requested = requested

    def refresh(self) -> None:
        """Apply a process-wide `set_num_threads` made since the last call."""
        if self._version != setting_version():
            self._version = setting_version()
            self._ctx.num_threads = num_threads(self._requested)

    def begin(self) -> None:
        """Prepare for a run: drop an exception that was recorded after the call it was meant for, and `refresh`."""
        self._failure = None
        if self._version != setting_version():
            self.refresh()

    def fail(self, error: BaseException) -> None:
        """Record the first exception of a Python function called from compiled code.

        Called from another thread, it ends a run that is in a compiled loop.
        """
        if self._failure is None:
            self._failure = error

    def check(self) -> None:
        """Re-raise an exception that a Python function raised during the call that just returned.

        Raises `DeviceError` when memory for a kernel's workspace was exhausted during that call.
        """
        nbytes = self._ctx.shortage
        if nbytes:
            self._ctx.shortage = 0
            self.fail(DeviceError(
                f"out of memory: {self.user} could not allocate {nbytes} bytes of workspace, and did not finish; free "
                "memory, pass smaller inputs, or set fewer threads, each of which may need a workspace of its own"
            ))  # fmt: skip
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


_contexts: weakref.WeakValueDictionary[int, Context] = weakref.WeakValueDictionary()
_of_thread = threading.local()
_host = cpu()


def current_context() -> Context:
    """This thread's context, for calls outside of an executor."""
    context: Context | None = getattr(_of_thread, "context", None)
    if context is None:
        context = _of_thread.context = Context()
    context.refresh()
    return context


@_Parallel
def _serial_parallel(
    ctx: int, task: Callable[..., None], closure: int | None, _max_tasks: int, steps: int
) -> None:
    for step in range(steps):
        task(ctx, closure, 0, 1, step, 1)


@_AllocWorkspace
def _alloc_workspace(ctx: int, nbytes: int) -> int | None:
    try:
        return get_device_api("cpu").alloc_workspace(_host, nbytes)
    except (DeviceError, MemoryError):
        Ctx.from_address(ctx).shortage = max(nbytes, 1)
        return None


@_FreeWorkspace
def _free_workspace(_ctx: int, handle: int) -> None:
    get_device_api("cpu").free_workspace(_host, handle)


@_CallPacked
def _call_packed(ctx: int, name: bytes, values: Any, kinds: Any, count: int) -> int:
    try:
        find = _contexts[ctx].find_function
        find(name.decode())(*[_argument(values[i], kinds[i]) for i in range(count)])
    except BaseException as error:  # noqa: BLE001 - compiled code can't unwind; the entry raises it again
        _contexts[ctx].fail(error)
        return -1
    return 0


def _argument(value: int, kind: int) -> Any:
    """Convert a packed value to Python. A tensor is borrowed: it must not be used after the call."""
    if kind == ARG_INT:
        return value
    if kind == ARG_FLOAT:
        return ctypes.c_double.from_buffer(ctypes.c_int64(value)).value
    if kind == ARG_TENSOR:
        tensor = DLTensor.from_address(value)
        rank = tensor.ndim
        return NDArray(
            tensor.data or 0,
            tuple(tensor.shape[:rank]),
            from_dlpack_triple(tensor.code, tensor.bits, tensor.lanes),
            Device(device_kind_of(tensor.device_type), tensor.device_id),
            None,
            byte_offset=tensor.byte_offset,
            strides=tuple(tensor.strides[:rank]) if tensor.strides else None,
        )
    if kind == ARG_STR:
        return ctypes.string_at(value).decode()
    if kind == ARG_NULL:
        return None
    if kind == ARG_HANDLE:
        return value
    known = (ARG_INT, ARG_FLOAT, ARG_HANDLE, ARG_NULL, ARG_TENSOR, ARG_STR)
    raise ArgumentError(f"packed argument of kind {kind}; known are {known}")


def _address_of(callback: Any) -> int:
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    return address
