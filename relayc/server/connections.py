"""Connections that do not wait for ever: for a request, or for a client to read."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["timed_protocol"]


class _PromptTransport:
    """A transport that waits a limited time for its client to read: when its buffer is full, and when it closes."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._transport, self._loop, self._seconds = transport, loop, seconds
        self._late: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._transport.close()
        self.watch()

    def watch(self) -> None:
        """Abort the connection if it is not lost, nor read, in time."""
        if self._late is None:
            self._late = self._loop.call_later(self._seconds, self._transport.abort)

    def forget(self) -> None:
        """Let the time begin again with the next `watch`."""
        if self._late is not None:
            self._late.cancel()
            self._late = None


def timed_protocol(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol on h11, which closes a connection whose request does not come in so many seconds, or whose
    client reads nothing in that time.

    h11, and not httptools, which sets no limit to the length of headers. Bodies, and the time between requests, have
    limits of their own.
    """

    class TimedProtocol(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._prompt = _PromptTransport(transport, self.loop, seconds)
            super().connection_made(self._prompt)  # type: ignore[arg-type]
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._prompt.watch()

        def resume_writing(self) -> None:
            if not self._prompt.is_closing():
                self._prompt.forget()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            self._prompt.forget()
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
