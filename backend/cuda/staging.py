"""Copies between pageable host memory and a GPU, by way of pinned buffers.

A GPU reads and writes pinned memory only. The driver can copy through pinned memory of its own, but then waits for the
stream first; here the host waits for nothing when it uploads, unless all buffers are under way.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque

from relayc.backend.cuda.driver import call

__all__ = ["Staging"]

_PIECE = 1 << 20  # bytes; long enough to hide the calls, short enough to copy one piece while another is under way
_COUNT = 8
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING


class _Buffer:
    """A pinned piece of memory and the event after which it is free again."""

    def __init__(self) -> None:
        self.address = int(call("cuMemHostAlloc", _PIECE, 0))
        self.event = int(call("cuEventCreate", _DISABLE_TIMING))


class Staging:
    """The pinned buffers of one GPU, made when first used and kept. Its context must be current in every call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ring: deque[_Buffer] = deque()

    def upload(self, source: int, target: int, nbytes: int, stream: int) -> None:
        """Queues the copy of host memory to the device; the host memory is free for other use on return."""
        with self._lock:
            for at in range(0, nbytes, _PIECE):
                size = min(_PIECE, nbytes - at)
                buffer = self._next()
                ctypes.memmove(buffer.address, source + at, size)
                call("cuMemcpyHtoDAsync", target + at, buffer.address, size, stream)
                call("cuEventRecord", buffer.event, stream)

    def download(self, source: int, target: int, nbytes: int, stream: int) -> None:
        """Copies device memory to the host, after what is queued on the stream; returns when it is there."""
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
        """The buffer used longest ago, waited for; a new one while there are few and that one is under way."""
        if len(self._ring) < _COUNT:
            buffer = _Buffer()
        else:
            buffer = self._ring.popleft()
            call("cuEventSynchronize", buffer.event)
        self._ring.append(buffer)
        return buffer
