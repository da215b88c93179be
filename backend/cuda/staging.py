"""Copies between pageable host memory and a GPU through pinned staging buffers.

A GPU accesses pinned memory only. The driver can stage copies itself, but then synchronises the stream first; here an
upload does not block the host unless all buffers are in flight.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque

from relayc.backend.cuda.driver import call

__all__ = ["Staging"]

_PIECE = 1 << 20  # bytes; amortises the calls, and lets host copies overlap transfers
_COUNT = 8
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING


class _Buffer:
    """A pinned staging buffer and the event after which it is free again."""

    def __init__(self) -> None:
        self.address = int(call("cuMemHostAlloc", _PIECE, 0))
        self.event = int(call("cuEventCreate", _DISABLE_TIMING))


class Staging:
    """The pinned staging buffers of one GPU, allocated on first use and kept. Its context must be current in every
    call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ring: deque[_Buffer] = deque()

    def upload(self, source: int, target: int, nbytes: int, stream: int) -> None:
        """Queue a copy of host memory to the device; the host memory may be reused on return."""
        with self._lock:
            for at in range(0, nbytes, _PIECE):
                size = min(_PIECE, nbytes - at)
                buffer = self._next()
                ctypes.memmove(buffer.address, source + at, size)
                call("cuMemcpyHtoDAsync", target + at, buffer.address, size, stream)
                call("cuEventRecord", buffer.event, stream)

    def download(self, source: int, target: int, nbytes: int, stream: int) -> None:
        """Copy device memory to the host, ordered after the work queued on the stream; blocks until done."""
        pending: deque[tuple[_Buffer, int, int]] = deque()

        def finish() -> None:
            buffer, at, size = pending.popleft()
            call("cuEventSynchronize", buffer.event)
            ctypes.memmove(target + at, buffer.address, size)

        with self._lock:
            for at in range(0, nbytes, _PIECE):
                if len(pending) == _COUNT:
                    finish()
                size = min(_PIECE, nbytes - at)
                buffer = self._next()
                call("cuMemcpyDtoHAsync", buffer.address, source + at, size, stream)
                call("cuEventRecord", buffer.event, stream)
                pending.append((buffer, at, size))
            while pending:
                finish()

    def _next(self) -> _Buffer:
        """The least recently used buffer once it is free; a new one while there are few and that one is in flight."""
        if len(self._ring) < _COUNT:
            buffer = _Buffer()
        else:
            buffer = self._ring.popleft()
            call("cuEventSynchronize", buffer.event)
        self._ring.append(buffer)
        return buffer
