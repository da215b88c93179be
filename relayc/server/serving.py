"""`serve`: the application in a process of its own, until a signal ends it."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from relayc.server.app import Service
from relayc.server.bodies import Limits
from relayc.server.connections import timed_protocol
from relayc.server.repository import Repository

__all__ = ["serve"]

_IDLE_SECONDS = 75
"""Seconds after which a connection without requests is closed; clients that reuse connections close earlier."""

_LAST_SECONDS = 0.5
"""Seconds that clients have to read the answers to requests that a shutdown has ended."""


def serve(
    repository: Repository,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    started: Callable[[str], object] | None = None,
) -> None:
    """Serve the models of `repository` by HTTP until SIGTERM or SIGINT.

    At the signal the server stops to be ready and to listen, finishes the requests that it has, within `limits.drain`
    seconds, and returns. A second signal ends them at once. Port 0 is any free one: `started` is called with the URL.
    Raises OSError when it can't listen there. Clients are not authenticated, nothing is encrypted: that is what a proxy
    in front is for.
    """
    limits = Limits() if limits is None else limits
    service = Service(repository, limits)
    config = uvicorn.Config(
        service.app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        http=timed_protocol(limits.timeout),
        limit_concurrency=limits.connections,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=math.ceil(limits.drain + 2 * _LAST_SECONDS),  # `_end_within` comes first
    )
    with _listening(host, port, config.backlog) as listening:
        bound = listening.getsockname()[1]
        url = f"http://[{host}]:{bound}" if ":" in host else f"http://{host}:{bound}"
        _Server(config, service, limits.drain, lambda: None if started is None else started(url)).run([listening])


def _listening(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens. Its protocol is named: asyncio sets TCP_NODELAY only then, without which answers wait."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(backlog)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"{error.strerror}: {host}, port {port}; say another one, or 0 for any") from error
    return listening


class _Server(uvicorn.Server):
    """uvicorn's server, which drains at the first signal and whose process ends with exit code 0 then."""

    def __init__(
        self, config: uvicorn.Config, service: Service, drain: float, started: Callable[[], object]
    ) -> None:
        super().__init__(config)
        self._service, self._drain, self._started = service, drain, started
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Without a call of uvicorn's, which raises the signal again when all is done."""
        self._service.is_draining = True
        if self._loop is not None:  # a handler of signals runs between any two operations of the loop
            self._loop.call_soon_threadsafe(self._end_within, 0 if self.should_exit else self._drain)
        self.should_exit = True

    def _end_within(self, seconds: float) -> None:
        """Answer all requests in so many seconds, and close the connections of clients that don't read the answers."""
        self._service.deadlines.end_within(seconds)
        asyncio.get_running_loop().call_later(seconds + _LAST_SECONDS, self._abort_connections)

    def _abort_connections(self) -> None:
        for connection in list(self.server_state.connections):
            transport = connection.transport
            if transport is not None:
                transport.abort()
