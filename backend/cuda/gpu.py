"""State of a GPU in use by this process: context, streams, memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from relayc.backend.cuda.driver import DriverError, bindings, call, is_gone, probe
from relayc.backend.cuda.staging import Staging
from relayc.backend.runtime.errors import DeviceError

__all__ = ["NON_BLOCKING", "Gpu"]

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: no implicit order with the legacy stream
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class Gpu:
    """A GPU in use: its context, its default stream, user-created streams, and its pinned buffers."""

    def __init__(self, index: int) -> None:
        count, reason = probe()
        if index >= count:
            have = f"this machine has {count} CUDA device{'s' * (count > 1)}, from cuda:0 on" if count else reason
            raise DeviceError(f"there is no device cuda:{index}: {have}")
        self.index = index
        self.ordinal = int(call("cuDeviceGet", index))
        self.context = int(call("cuDevicePrimaryCtxRetain", self.ordinal))
        self.activate()
        self.stream = int(call("cuStreamCreate", NON_BLOCKING))
        self.user_streams: set[int] = set()
        self._parked: deque[tuple[list[int], object]] = deque()  # (events, object kept alive until they have completed)
        self._streams_lock = threading.RLock()  # a garbage collector may free memory while this thread holds it
        self.staging = Staging()
        self.has_pool = bool(self.attribute("MEMORY_POOLS_SUPPORTED"))
        if self.has_pool:
            self._keep_freed_memory()

    def activate(self) -> None:
        """Makes the context current in this thread."""
        call("cuCtxSetCurrent", self.context)

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor)."""
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")

    def attribute(self, name: str) -> int:
        """A device attribute by the end of its name in `CUdevice_attribute`."""
        kind = getattr(bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call("cuDeviceGetAttribute", kind, self.ordinal))

    def create_stream(self) -> int:
        """A stream for a user."""
        stream = int(call("cuStreamCreate", NON_BLOCKING))
        self.user_streams.add(stream)
        return stream

    def free_stream(self, stream: int) -> None:
        """Frees a user's stream, on which nothing is queued any more."""
        with self._streams_lock:
            self.user_streams.discard(stream)
            call("cuStreamDestroy", stream)

    def alloc(self, nbytes: int, stream: int, may_wait: bool) -> int:
        """Allocate memory for work queued on `stream`. If memory is short and `may_wait`, wait for pending work and
        retry."""
        if not self.has_pool:
            return int(call("cuMemAlloc", nbytes))
        try:
            return int(call("cuMemAllocAsync", nbytes, stream))
        except DriverError as error:
            if error.code != _OUT_OF_MEMORY or not may_wait:
                raise
        call("cuCtxSynchronize")
        self.trim_pool()
        return int(call("cuMemAllocAsync", nbytes, stream))

    def free(self, address: int, stream: int) -> None:
        """Free memory in the order of its stream, and after what is queued on user-created streams now."""
        if not self.has_pool:
            call("cuMemFree", address)
            return
        with self._streams_lock:
            home = stream if stream in self.user_streams else self.stream
            for other in (self.stream, *self.user_streams):
                self.order(other, home)
            call("cuMemFreeAsync", address, home)

    def park(self, owner: object, streams: Iterable[int]) -> None:
        """Keep `owner` alive until all that is queued on these and all user-created streams is done."""
        with self._streams_lock:
            events = [self._mark(stream) for stream in {self.stream, *self.user_streams, *streams}]
            self._parked.append((events, owner))
        self.release_parked()

    def release_parked(self) -> None:
        """Release parked objects that no pending work uses any more."""
        with self._streams_lock:
            while self._parked and not any(bindings().cuEventQuery(event)[0] for event in self._parked[0][0]):
                for event in self._parked.popleft()[0]:
                    call("cuEventDestroy", event)

    def _mark(self, stream: int) -> int:
        event = int(call("cuEventCreate", _DISABLE_TIMING))
        call("cuEventRecord", event, stream)
        return event

    def trim_pool(self) -> None:
        """Return the pool's unused memory to the system."""
        if self.has_pool:
            call("cuMemPoolTrimTo", call("cuDeviceGetDefaultMemPool", self.ordinal), 0)

    def order(self, source: int, target: int) -> None:
        """Make work queued later on `target` wait for the work queued on `source` so far."""
        if source != target:
            event = self._mark(source)
            call("cuStreamWaitEvent", target, event, 0)
            call("cuEventDestroy", event)

    def order_across(self, source: int, other: Gpu, target: int) -> None:
        """Order `target`, a stream of another GPU, after `source`; the other GPU's context is current afterwards."""
        self.activate()
        event = self._mark(source)
        other.activate()
        call("cuStreamWaitEvent", target, event, 0)
        call("cuEventDestroy", event)

    def open_peer(self, peer: Gpu) -> None:
        """Enable peer access to the memory of `peer` if the machine supports it; otherwise copies pass through the
        host."""
        if not (peer.has_pool and call("cuDeviceCanAccessPeer", self.ordinal, peer.ordinal)):
            return
        driver = bindings()
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self.ordinal
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        call("cuMemPoolSetAccess", call("cuDeviceGetDefaultMemPool", peer.ordinal), [access], 1)

    def finish(self, stream: int, current: int) -> None:
        """Wait for the work queued on a stream, which may be destroyed already if it isn't the thread's `current` one.

        User-created streams are synchronised when they are freed; another library's by the GPU's default stream when a
        thread switches away from it.
        """
        exists = stream == current or stream in self.user_streams
        self.leave("cuStreamSynchronize", stream if exists else self.stream)

    def leave(self, destroy: str, handle: int) -> None:
        """Release a handle by the driver function `destroy`, unless the driver is gone."""
        if not is_gone():
            with self.aside():
                getattr(bindings(), destroy)(handle)

    @contextmanager
    def aside(self) -> Generator[None]:
        """Make the context current temporarily: a finalizer may run between any two driver calls of the thread."""
        driver = bindings()
        before = driver.cuCtxGetCurrent()[1]
        driver.cuCtxSetCurrent(self.context)
        try:
            yield
        finally:
            driver.cuCtxSetCurrent(before)

    def _keep_freed_memory(self) -> None:
        driver = bindings()
        pool = call("cuDeviceGetDefaultMemPool", self.ordinal)
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        call("cuMemPoolSetAttribute", pool, threshold, driver.cuuint64_t((1 << 64) - 1))
