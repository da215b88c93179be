"""The device API of NVIDIA GPUs.

Each GPU in use has its primary context, shared with every other CUDA library of the process, and a stream of its own
that work is queued on unless a thread sets another. Memory is allocated stream-ordered from the driver's pool, which
keeps freed memory for reuse.

A stream is an integer, the driver's handle: 1 is CUDA's legacy default stream, 2 its per-thread default stream, and
None the current one. Arrays may be freed whatever streams used them; to use one on another stream than the one it was
written on, order the two with `sync_stream_from_to`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from relayc.backend.cuda.driver import DriverError, bindings, call, is_gone, probe
from relayc.backend.cuda.gpu import NON_BLOCKING, Gpu
from relayc.backend.cuda.graph import CapturedGraph, record
from relayc.backend.runtime.device import Device, DeviceAttrKind, get_device_api
from relayc.backend.runtime.device_api import ALLOC_ALIGNMENT, DeviceAPI, WorkspacePool, check_allocation
from relayc.backend.runtime.errors import ArgumentError, DeviceError

__all__ = ["CUDADeviceAPI", "cuda_device_api"]

_LEGACY_STREAM = 1  # CU_STREAM_LEGACY
_EXTERNAL = 1  # CU_EVENT_RECORD_EXTERNAL: recorded anew by every replay
_ALIGNMENT = 256  # bytes; what the driver aligns every allocation to


class CUDADeviceAPI(DeviceAPI):
    """The NVIDIA GPUs. Handles are device addresses; the module documentation describes streams and ordering.

    Every method but `get_attr` raises `DeviceError`, with the reason, where there is no such GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self._gpus: dict[int, Gpu] = {}
        self._opening = threading.Lock()
        self._of_thread = _ThreadState()
        self._home: dict[int, int] = {}  # allocation -> the stream that it is ordered on
        self._peers: set[tuple[int, int]] = set()

    # -- attributes and the active device

    def get_attr(self, device: Device, kind: DeviceAttrKind) -> Any:
        if kind == DeviceAttrKind.EXIST:
            return device.index < probe()[0]
        query = _ATTRIBUTES.get(kind)
        return None if query is None or device.index >= probe()[0] else query(self.gpu(device))

    def gpu(self, device: Device) -> Gpu:
        """The GPU behind a device, its context current. Raises `DeviceError` with the reason if there is none."""
        found = self._gpus.get(device.index)
        if found is None:
            with self._opening:
                found = self._gpus.get(device.index)
                if found is None:
                    found = self._gpus[device.index] = Gpu(device.index)
        found.activate()
        return found

    def opened(self, device: Device) -> Gpu:
        """The GPU behind a device that is in use, whatever context is current."""
        return self._gpus[device.index]

    def forget_gpus(self) -> None:
        """Forget all GPUs in a forked child, where CUDA does not work: later uses raise `DeviceError`."""
        self._gpus = {}
        self._opening = threading.Lock()

    def set_device(self, device: Device) -> None:
        self.gpu(device)

    # -- memory

    def alloc_data_space(self, device: Device, nbytes: int, alignment: int = ALLOC_ALIGNMENT) -> int:
        check_allocation(device, nbytes, alignment, _ALIGNMENT)
        gpu = self.gpu(device)
        stream = self.stream_of(gpu)
        home = stream if stream in gpu.user_streams else gpu.stream
        try:
            handle = gpu.alloc(max(nbytes, 1), home, may_wait=self._of_thread.scratch is None)
        except DriverError as error:
            free = "" if error.is_sticky else f"; {call('cuMemGetInfo')[0]} bytes are free"
            raise DriverError(f"can't allocate {nbytes} bytes on {device}: {error}{free}", error.code) from error
        self._home[handle] = home
        if self._of_thread.scratch is None:
            gpu.order(home, stream)
        return handle

    def free_data_space(self, device: Device, handle: int) -> None:
        if is_gone():
            return
        home = self._home.pop(handle, None)
        if home is None:
            raise DeviceError(f"{handle:#x} on {device} was not allocated here")
        gpu = self.opened(device)
        try:
            with gpu.aside():
                gpu.free(handle, home)
        except DriverError as error:
            if not error.is_sticky:  # in a lost context nothing can be freed, nor need be
                raise

    def release_memory(self, device: Device) -> None:
        """Return freed memory kept for reuse to the system, for other libraries and processes."""
        gpu = self.gpu(device)
        call("cuCtxSynchronize")
        gpu.trim_pool()

    def alloc_workspace(self, device: Device, nbytes: int) -> int:
        scratch = self._of_thread.scratch
        return scratch.alloc(nbytes) if scratch is not None else self.alloc_data_space(device, nbytes)

    def free_workspace(self, device: Device, handle: int) -> None:
        scratch = self._of_thread.scratch
        if scratch is not None:
            scratch.free(handle)
        else:
            self.free_data_space(device, handle)

    def copy_data_from_to(
        self,
        source: int,
        source_offset: int,
        target: int,
        target_offset: int,
        nbytes: int,
        device_from: Device,
        device_to: Device,
        stream: Any = None,
    ) -> None:
        here = device_from if device_from.kind == "cuda" else device_to
        gpu = self.gpu(here)
        queue = self.stream_of(gpu, stream)
        read, written = source + source_offset, target + target_offset
        if nbytes == 0:
            return
        if device_from.kind == device_to.kind:
            if device_from.index == device_to.index:
                call("cuMemcpyDtoDAsync", written, read, nbytes, queue)
            else:
                self._copy_to_peer(gpu, self.gpu(device_to), read, written, nbytes, queue)
            return
        if self._of_thread.scratch is not None:
            raise DeviceError(f"host memory can't be copied to or from {here} while its work is recorded as a graph")
        host = device_to if here == device_from else device_from
        if not get_device_api(host.kind).host_accessible:
            raise DeviceError(f"can't copy between {device_from} and {device_to}; copy by way of the cpu")
        if host.kind == "cuda_host":
            call("cuMemcpyDtoHAsync" if here == device_from else "cuMemcpyHtoDAsync", written, read, nbytes, queue)
            call("cuStreamSynchronize", queue)
        elif here == device_from:
            gpu.staging.download(read, written, nbytes, queue)
        else:
            gpu.staging.upload(read, written, nbytes, queue)

    # -- streams

    def create_stream(self, device: Device) -> int:
        return self.gpu(device).create_stream()

    def free_stream(self, device: Device, stream: Any) -> None:
        if is_gone():
            return
        gpu, handle = self.gpu(device), _handle_of(stream)
        if handle not in gpu.user_streams:
            raise DeviceError(f"stream {stream!r} of {device} was not made by create_stream")
        call("cuStreamSynchronize", handle)
        if self._of_thread.streams.get(device.index) == handle:
            del self._of_thread.streams[device.index]
        gpu.free_stream(handle)

    def set_stream(self, device: Device, stream: Any) -> None:
        gpu = self.gpu(device)
        left = self.stream_of(gpu)
        if left != gpu.stream and left not in gpu.user_streams:
            gpu.order(left, gpu.stream)  # of another library: memory that it used may be freed after it is destroyed
        if stream is None:
            self._of_thread.streams.pop(device.index, None)
        else:
            self._of_thread.streams[device.index] = _handle_of(stream)

    def current_stream(self, device: Device) -> int | None:
        return self._of_thread.streams.get(device.index)

    def stream_of(self, gpu: Gpu, stream: Any = None) -> int:
        """The driver's handle of a stream; that of the current one for None."""
        return self._of_thread.streams.get(gpu.index, gpu.stream) if stream is None else _handle_of(stream)

    def stream_sync(self, device: Device, stream: Any = None) -> None:
        gpu = self.gpu(device)
        try:
            call("cuStreamSynchronize", self.stream_of(gpu, stream))
        except DriverError as error:
            raise DriverError(f"work queued on {device} failed: {error}", error.code) from error
        gpu.release_parked()

    def sync_stream_from_to(self, device: Device, source: Any, target: Any) -> None:
        gpu = self.gpu(device)
        gpu.order(self.stream_of(gpu, source), self.stream_of(gpu, target))

    def keep_until_done(self, device: Device, owner: object) -> None:
        if is_gone():
            return
        try:
            gpu = self.gpu(device)
            gpu.park(owner, () if self._of_thread.scratch is not None else (self.stream_of(gpu),))
        except DriverError as error:
            if not error.is_sticky:  # in a lost context nothing uses it any more
                raise

    def dlpack_stream(self, device: Device) -> int:
        return self.stream_of(self.gpu(device))

    # -- time

    def record_mark(self, device: Device) -> _Event:
        gpu = self.gpu(device)
        return _Event(gpu, self.stream_of(gpu), in_graph=self._of_thread.scratch is not None)

    def seconds_between(self, device: Device, start: _Event, end: _Event) -> float:
        self.gpu(device)
        call("cuEventSynchronize", end.handle)
        return float(call("cuEventElapsedTime", start.handle, end.handle)) * 1e-3

    # -- graphs

    def capture(self, device: Device, submit: Callable[[], object]) -> Callable[[], None] | None:
        gpu, state = self.gpu(device), self._of_thread
        if state.scratch is not None:
            return None  # already recording: what is submitted becomes part of that graph
        scratch = WorkspacePool(self, device, shrink=False)
        outside = state.streams.get(device.index)
        stream = int(call("cuStreamCreate", NON_BLOCKING))
        state.streams[device.index], state.scratch = stream, scratch
        try:
            executable = record(stream, submit)
        finally:
            state.scratch = None
            if outside is None:
                del state.streams[device.index]
            else:
                state.streams[device.index] = outside
            call("cuStreamDestroy", stream)
        call("cuStreamSynchronize", gpu.stream)  # the workspaces are allocated in its order; the graph runs anywhere
        if executable is None:
            return None
        return CapturedGraph(executable, scratch, gpu, self.stream_of)

    def _copy_to_peer(self, gpu: Gpu, peer: Gpu, read: int, written: int, nbytes: int, queue: int) -> None:
        """Copy on the source's stream, ordered with the current streams of both GPUs."""
        other = self.stream_of(peer)
        if (gpu.index, peer.index) not in self._peers:
            gpu.open_peer(peer)
            self._peers.add((gpu.index, peer.index))
        peer.order_across(other, gpu, queue)
        gpu.activate()
        call("cuMemcpyPeerAsync", written, peer.context, read, gpu.context, nbytes, queue)
        gpu.order_across(queue, peer, other)


class _ThreadState(threading.local):
    """The current stream of each GPU where it is not the default, and the workspaces of the graph being captured."""

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}
        self.scratch: WorkspacePool | None = None


class _Event:
    """A timed event on a stream; in a captured graph, that of the last replay."""

    def __init__(self, gpu: Gpu, stream: int, in_graph: bool) -> None:
        self.handle = 0
        self._gpu = gpu
        self.handle = int(call("cuEventCreate", 0))
        call("cuEventRecordWithFlags", self.handle, stream, _EXTERNAL if in_graph else 0)

    def __del__(self) -> None:
        if self.handle:
            self._gpu.leave("cuEventDestroy", self.handle)


def _handle_of(stream: Any) -> int:
    """The driver's handle of a stream: an integer, or a stream object of torch, cupy, cuda.core and others."""
    if isinstance(stream, int):
        return stream if stream else _LEGACY_STREAM
    if hasattr(stream, "__cuda_stream__"):
        return _handle_of(int(stream.__cuda_stream__()[1]))
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return _handle_of(int(getattr(stream, name)))
    raise ArgumentError(
        f"{stream!r} is not a CUDA stream; expected one made by create_raw_stream, an integer handle, or an object "
        "with __cuda_stream__, cuda_stream or ptr"
    )


def _name_of(gpu: Gpu) -> str:
    return bytes(call("cuDeviceGetName", 256, gpu.ordinal)).split(b"\0")[0].decode()


def _driver_version(_gpu: Gpu) -> str:
    version = int(call("cuDriverGetVersion"))
    return f"{version // 1000}.{version % 1000 // 10}"


_Query = Callable[[Gpu], Any]

_ATTRIBUTES: dict[DeviceAttrKind, _Query] = {
    DeviceAttrKind.MAX_THREADS_PER_BLOCK: lambda gpu: gpu.attribute("MAX_THREADS_PER_BLOCK"),
    DeviceAttrKind.WARP_SIZE: lambda gpu: gpu.attribute("WARP_SIZE"),
    # the opt-in limit; the 48 KiB available without opt-in are the same on every GPU
    DeviceAttrKind.MAX_SHARED_MEMORY_PER_BLOCK: lambda gpu: gpu.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    DeviceAttrKind.COMPUTE_VERSION: lambda gpu: ".".join(map(str, gpu.compute_capability)),
    DeviceAttrKind.DEVICE_NAME: _name_of,
    DeviceAttrKind.MAX_CLOCK_RATE: lambda gpu: gpu.attribute("CLOCK_RATE"),
    DeviceAttrKind.MULTI_PROCESSOR_COUNT: lambda gpu: gpu.attribute("MULTIPROCESSOR_COUNT"),
    DeviceAttrKind.MAX_THREAD_DIMENSIONS: lambda gpu: tuple(gpu.attribute(f"MAX_BLOCK_DIM_{axis}") for axis in "XYZ"),
    DeviceAttrKind.MAX_REGISTERS_PER_BLOCK: lambda gpu: gpu.attribute("MAX_REGISTERS_PER_BLOCK"),
    DeviceAttrKind.API_VERSION: lambda _: int(bindings().CUDA_VERSION),
    DeviceAttrKind.DRIVER_VERSION: _driver_version,
    DeviceAttrKind.L2_CACHE_SIZE_BYTES: lambda gpu: gpu.attribute("L2_CACHE_SIZE"),
    DeviceAttrKind.TOTAL_GLOBAL_MEMORY: lambda gpu: int(call("cuDeviceTotalMem", gpu.ordinal)),
    DeviceAttrKind.AVAILABLE_GLOBAL_MEMORY: lambda _: int(call("cuMemGetInfo")[0]),
}


@lru_cache(maxsize=1)
def cuda_device_api() -> CUDADeviceAPI:
    """The process-wide `CUDADeviceAPI`. It exists without a GPU too, to report why there is none."""
    api = CUDADeviceAPI()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=api.forget_gpus)
    return api
