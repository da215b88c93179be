"""Connections that do not wait for ever for a request."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["timed_protocol"]


def timed_protocol(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol on h11, which closes a connection whose request does not come in so many seconds.

    h11, and not httptools, which sets no limit to the length of headers. Bodies, and the time between requests, have
    limits of their own.
    """

    class TimedProtocol(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Let the time run while the head of a request is incomplete."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget()
            elif self._late is None:
                self._late = self.loop.call_later(seconds, self.transport.close)

        def _forget(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return TimedProtocol
