"""Times by which parts of requests have to be done, which a server that is to end brings forward."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

__all__ = ["Deadlines"]


class Deadlines:
    """The time limits in force in an event loop, and the end of them all, once it is known."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._end = float("inf")

    @property
    def seconds_left(self) -> float:
        """Seconds until the end of all limits: infinite while it is not known."""
        return max(0.0, self._end - time.monotonic())

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncGenerator[None]:
        """A context that raises TimeoutError after so many seconds, which may be infinite, or at the end of all."""
        limit = asyncio.timeout(None)
        async with limit:
            self._limits.add(limit)
            self._shorten(limit, min(seconds, self.seconds_left))
            try:
                yield
            finally:
                self._limits.discard(limit)

    def end_within(self, seconds: float) -> None:
        """Let every limit end within so many seconds; in the thread of the event loop."""
        self._end = min(self._end, time.monotonic() + seconds)
        for limit in self._limits:
            self._shorten(limit, seconds)

    def _shorten(self, limit: asyncio.Timeout, seconds: float) -> None:
        when, end = limit.when(), asyncio.get_running_loop().time() + seconds
        if seconds < float("inf") and not limit.expired() and (when is None or end < when):
            limit.reschedule(end)
