"""The error of the server, which becomes a response."""

from __future__ import annotations

from http import HTTPStatus

from relayc.runtime import RelaycError

__all__ = ["ServerError"]


class ServerError(RelaycError):
    """A request that is not served, or a model that can't be; `status` is the HTTP status of the response."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status
