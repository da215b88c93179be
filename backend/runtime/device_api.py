"""The interface between the runtime and one kind of device.

A new device implements `DeviceAPI`, registers a function that makes it under "device_api.<kind>", and names its kind
with `register_device_kind`; no file of ours is edited.
"""

from __future__ import annotations

import abc
import bisect
import threading
import time
from collections.abc import Callable
from typing import Any

from relayc.backend.runtime.device import Device, DeviceAttrKind
from relayc.backend.runtime.errors import DeviceError

__all__ = ["ALLOC_ALIGNMENT", "WORKSPACE_PAGE", "DeviceAPI", "WorkspacePool", "check_allocation"]

ALLOC_ALIGNMENT = 64  # bytes; the least alignment of allocations
WORKSPACE_PAGE = 4096  # bytes; workspace requests are rounded up to it


def check_allocation(device: Device, nbytes: int, alignment: int, most: int | None = None) -> None:
    """Raise `DeviceError` for an invalid size or alignment; `most` is the largest alignment of the device.

    Sizes beyond the address space are rejected here: C interfaces of devices would take them modulo 2**64.
    """
    if nbytes >= 1 << 63:
        raise DeviceError(f"out of memory: can't allocate {nbytes} bytes aligned to {alignment} on {device}")
    if nbytes < 0 or alignment < 1 or alignment & (alignment - 1) or (most is not None and alignment > most):
        limit = "" if most is None else f" up to {most}"
        raise DeviceError(
            f"can't allocate {nbytes} bytes aligned to {alignment} on {device}: expected 0 bytes or more, and a power "
            f"of 2{limit}"
        )


class DeviceAPI(abc.ABC):
    """The operations that the runtime needs of one kind of device.

    A *handle* stands for a data space or workspace and is never 0. It is an address where `addressable` is true;
    elsewhere only this API knows what it means and offsets into it are kept apart, as byte offsets.
    Where `host_accessible` is true, the host may read and write at those addresses.
    Compiled code relies on `assumed_alignment` bytes of memory from elsewhere where handles are addresses, and
    everywhere on the alignment of an element.
    A *stream* is whatever `create_stream` returned; None means the stream made current by `set_stream`.
    """

    addressable: bool = True
    host_accessible: bool = False
    assumed_alignment: int = ALLOC_ALIGNMENT

    def __init__(self) -> None:
        self._pools = threading.local()

    # -- attributes and the active device

    @abc.abstractmethod
    def get_attr(self, device: Device, kind: DeviceAttrKind) -> Any:
        """The value of an attribute; None when it can't be queried or does not apply to this device."""

    def set_device(self, device: Device) -> None:  # noqa: B027
        """Makes `device` the active one of this thread, where compiled functions run. Nothing to do by default."""

    # -- memory

    @abc.abstractmethod
    def alloc_data_space(self, device: Device, nbytes: int, alignment: int = ALLOC_ALIGNMENT) -> int:
        """Allocates storage for an operator's input or output and returns its handle; also for 0 bytes.

        `alignment` is a power of two, in bytes. Raises `DeviceError` when memory is short.
        """

    @abc.abstractmethod
    def free_data_space(self, device: Device, handle: int) -> None:
        """Frees a handle of `alloc_data_space`; the behaviour for other handles depends on the device.

        The CPU raises `DeviceError`.
        """

    def alloc_workspace(self, device: Device, nbytes: int) -> int:
        """Allocates scratch of an operator, freed in the reverse order by the same thread.

        By default a `WorkspacePool` over the data space: per thread and device, so no lock is taken.
        """
        return self._pool(device).alloc(nbytes)

    def free_workspace(self, device: Device, handle: int) -> None:
        """Frees a handle of `alloc_workspace`. Raises `DeviceError` for one that this thread did not allocate."""
        self._pool(device).free(handle)

    @abc.abstractmethod
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
        """Copies `nbytes` bytes from handle `source` to handle `target`, offsets in bytes, queued on `stream`.

        Host to device, device to host, or within a device; a handle of "cpu" is a host address. Host memory is not
        used after the call returns.
        """

    # -- streams; the defaults serve a device with a single queue that finishes work before it returns

    def create_stream(self, device: Device) -> Any:
        """A new stream of execution; None on a device with a single queue."""
        return None

    def free_stream(self, device: Device, stream: Any) -> None:  # noqa: B027
        """Frees a stream of `create_stream`."""

    def set_stream(self, device: Device, stream: Any) -> None:  # noqa: B027
        """Makes `stream` current for this thread: copies and compiled functions are submitted to it."""

    def current_stream(self, device: Device) -> Any:
        """The stream made current by `set_stream`; None for the default one."""
        return None

    def stream_sync(self, device: Device, stream: Any = None) -> None:  # noqa: B027
        """Returns when all work submitted to `stream` before this call is done."""

    def sync_stream_from_to(self, device: Device, source: Any, target: Any) -> None:  # noqa: B027
        """Work submitted to `target` after this call waits for what is queued on `source` now."""

    def keep_until_done(self, device: Device, owner: object) -> None:  # noqa: B027
        """Keeps `owner`, whose memory work on this device uses, alive until the work queued now is done.

        By default it is released at once: work is done when a call returns.
        """

    def dlpack_stream(self, device: Device) -> int | None:
        """The current stream as the `stream` argument of `__dlpack__` names it; None for devices without streams."""
        return None

    # -- time; the defaults wait for the device and read the host's clock

    def record_mark(self, device: Device) -> Any:
        """A timestamp in the current stream, for `seconds_between`: devices with events record one and don't wait.

        Within a capture, it is recorded by every replay.
        """
        self.stream_sync(device)
        return time.perf_counter()

    def seconds_between(self, device: Device, start: Any, end: Any) -> float:
        """The seconds between two marks of `record_mark` on the same stream; waits for the second."""
        return end - start

    # -- graphs of work

    def capture(self, device: Device, submit: Callable[[], object]) -> Callable[[], None] | None:
        """Record the work that `submit` queues on the current stream, without running it, as a replayable graph.

        Calling the result queues all of it on the current stream, with the same addresses. None when the device can't
        record it (the default); `submit` must do device work only.
        """
        return None

    def _pool(self, device: Device) -> WorkspacePool:
        pools: dict[int, WorkspacePool] | None = getattr(self._pools, "by_index", None)
        if pools is None:
            pools = self._pools.by_index = {}
        pool = pools.get(device.index)
        if pool is None:
            pool = pools[device.index] = WorkspacePool(self, device)
        return pool


class WorkspacePool:
    """Scratch memory of one thread on one device, kept for reuse. Source: TVM's `WorkspacePool`.

    Requests are rounded up to pages. The smallest free block that fits is taken; when none fits, the largest free one
    is replaced by one of the wanted size, so the pool stays as small as the deepest nest of requests; with `shrink`
    false it stays as well, for those who have noted its address. Freeing the block allocated last takes constant time.
    """

    def __init__(self, api: DeviceAPI, device: Device, shrink: bool = True) -> None:
        self._api = api
        self._device = device
        self._shrink = shrink
        self._free: list[tuple[int, int]] = []  # (bytes, handle), ascending
        self._taken: list[tuple[int, int]] = []  # in the order of allocation

    def alloc(self, nbytes: int) -> int:
        """A handle of at least `nbytes` bytes. Raises `DeviceError` for a negative size or when memory is short."""
        if nbytes < 0:
            raise DeviceError(f"workspace of {nbytes} bytes on {self._device}: expected 0 or more")
        wanted = max(1, -(-nbytes // WORKSPACE_PAGE)) * WORKSPACE_PAGE
        at = bisect.bisect_left(self._free, (wanted, 0))
        if at < len(self._free):
            block = self._free.pop(at)
        else:
            if self._free and self._shrink:
                self._api.free_data_space(self._device, self._free.pop()[1])
            block = (wanted, self._api.alloc_data_space(self._device, wanted))
        self._taken.append(block)
        return block[1]

    def free(self, handle: int) -> None:
        """Takes a block back. Raises `DeviceError` for a handle that is not out."""
        for at in range(len(self._taken) - 1, -1, -1):
            if self._taken[at][1] == handle:
                bisect.insort(self._free, self._taken.pop(at))
                return
        raise DeviceError(f"workspace {handle:#x} on {self._device} is not one that this thread allocated")

    def release(self) -> None:
        """Gives all free blocks back to the device."""
        while self._free:
            self._api.free_data_space(self._device, self._free.pop()[1])

    def __del__(self) -> None:
        self.release()
