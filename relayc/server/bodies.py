"""Bodies of requests and responses, with a limit on what of them is in memory at one time."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from relayc.server.errors import ServerError
from relayc.server.protocol import InferResponse

__all__ = ["Budget", "Limits", "PartsResponse", "discard_body", "read_body"]

_PART = 1 << 18
"""Bytes handed to the connection at a time; it holds no more for a client that reads slowly."""

_WINDOW = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server.

    request_bytes: the largest body of a request, also when decompressed. held_bytes: requests and responses in memory
    at one time, as they are sent; more requests are refused. timeout: seconds in which a request has to come, wait and
    run, and then its response to go. connections: open connections. drain: seconds that requests in progress have when
    the server is to end.
    """

    request_bytes: int = 64 << 20
    held_bytes: int = 512 << 20
    timeout: float = 60.0
    connections: int = 1000
    drain: float = 30.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ServerError(f"{name} is {getattr(self, name)}; expected more than 0")


class Budget:
    """The bytes that requests and responses hold together, at most `limit` when another request comes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def share(self) -> Share:
        """The part of one request, nothing yet."""
        return Share(self)

    def check(self, nbytes: int) -> None:
        """Raises ServerError, 429, if so many more bytes are too many."""
        if self.held + nbytes > self._limit:
            raise ServerError(
                f"the server holds {self.held} bytes of requests and responses, and {nbytes} more exceed its limit of "
                f"{self._limit}; try again later",
                HTTPStatus.TOO_MANY_REQUESTS,
            )


class Share:
    """What one request holds of a budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self.held = budget, 0

    def take(self, nbytes: int, is_forced: bool = False) -> None:
        """Hold more. Raises ServerError, 429, if it is too much, unless the bytes are there already."""
        if not is_forced:
            self._budget.check(nbytes)
        self.held += nbytes
        self._budget.held += nbytes

    def give_back(self) -> None:
        """Hold nothing any more."""
        self._budget.held -= self.held
        self.held = 0


async def read_body(request: Request, share: Share, limit: int) -> memoryview:
    """The body, decompressed. Its declared length is held before it is read.

    Raises ServerError, 413, for more than `limit` bytes, 429 for more than there is room for, 415 for an unknown
    compression, and ClientDisconnect.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity" and encoding not in _WINDOW:
        raise ServerError(
            f"content-encoding {encoding!r:.40}; expected gzip, deflate or identity", HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        )
    length = declared_length(request)
    if length > limit:
        raise _too_large(f"{length} bytes", limit)
    share.take(length)
    inflate = None if encoding == "identity" else zlib.decompressobj(_WINDOW[encoding])
    body = bytearray()
    async for chunk in request.stream():
        data = chunk if inflate is None else _inflated(inflate, chunk, limit + 1 - len(body))
        if len(body) + len(data) > limit:
            raise _too_large(f"more than {limit} bytes", limit)
        if len(body) + len(data) > share.held:
            share.take(len(body) + len(data) - share.held)
        body += data
    if inflate is not None and not inflate.eof:
        raise ServerError(f"the body is no complete {encoding} stream")
    return memoryview(body).toreadonly()


def declared_length(request: Request) -> int:
    """The length that the request declares, 0 without."""
    return int(request.headers.get("content-length", "0"))  # digits: servers refuse others


def _too_large(found: str, limit: int) -> ServerError:
    message = f"the body has {found}; the server takes at most {limit} (--max-request-mb)"
    return ServerError(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def _inflated(inflate: zlib._Decompress, chunk: bytes, most: int) -> bytes:
    try:
        return inflate.decompress(chunk, most)
    except zlib.error as error:
        raise ServerError(f"the body is not compressed as content-encoding says: {error}") from error


async def discard_body(request: Request, limit: int, seconds: float = 5.0) -> bool:
    """Read what comes of the body and drop it, so that a client that still sends can read the response.

    False if that is more than `limit` bytes or takes more than `seconds`, or the client is gone.
    """
    if declared_length(request) > 2 * limit:
        return False
    count = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                count += len(chunk)
                if count > limit:
                    return False
    except (TimeoutError, ClientDisconnect, RuntimeError):  # RuntimeError: it was being read already
        return False
    return True


class PartsResponse(Response):
    """A response of parts that are sent as the client reads them, within `limit`; then `sent` is called.

    A client that takes longer is disconnected.
    """

    def __init__(
        self, response: InferResponse, headers: Mapping[str, str], limit: AbstractAsyncContextManager[None],
        sent: Callable[[], object],
    ) -> None:  # fmt: skip
        super().__init__(headers={**headers, "content-length": str(response.nbytes)})
        self._parts, self._nbytes, self._limit, self._sent = response.parts, response.nbytes, limit, sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._limit:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                if self._nbytes <= _PART:
                    await send({"type": "http.response.body", "body": b"".join(self._parts)})
                    return
                for part in self._parts:
                    for at in range(0, len(part), _PART):
                        piece = bytes(part[at : at + _PART])
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})  # comes back when the others have gone
        except TimeoutError:
            pass
        finally:
            self._sent()
