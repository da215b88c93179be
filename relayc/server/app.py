"""The server as an ASGI application: the endpoints of the Open Inference Protocol, and metrics."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import relayc
from relayc.backend.runtime.errors import InternalError
from relayc.backend.runtime.log import logger
from relayc.runtime import ArgumentError, RelaycError
from relayc.server.bodies import Budget, Limits, PartsResponse, Share, discard_body, read_body
from relayc.server.deadlines import Deadlines
from relayc.server.errors import ServerError
from relayc.server.metrics import CONTENT_TYPE
from relayc.server.protocol import HEADER_LENGTH, InferRequest, InferResponse, parse_request, write_response
from relayc.server.repository import Repository, ServedModel
from relayc.server.scheduler import Job
from relayc.server.tensors import Array

__all__ = ["Service", "create_app"]

_log = logger().getChild("server")

_CLIENT_GONE = 499
"""The status, by nginx's convention, under which metrics count requests whose client does not wait any more."""
_MODEL = "/v2/models/{name}"
_VERSION = _MODEL + "/versions/{version}"


def create_app(repository: Repository, limits: Limits | None = None) -> Starlette:
    """The application that serves the models of `repository`, and closes it at its end.

    Any ASGI server can run it, and any ASGI application mount it; `serve` does the former.
    """
    return Service(repository, Limits() if limits is None else limits).app


class Service:
    """The endpoints. While `is_draining`, requests in progress are finished, and others refused; when `deadlines` end,
    those in progress, too."""

    def __init__(self, repository: Repository, limits: Limits) -> None:
        self.is_draining = False
        self.deadlines = Deadlines()
        self._repository, self._limits = repository, limits
        self._budget = Budget(limits.held_bytes)
        repository.metrics.watch_held_bytes(lambda: self._budget.held)
        routes = [
            Route("/v2", self.server_metadata),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            Route("/v2/repository/index", self.index, methods=["POST"]),
            Route("/metrics", self.metrics),
        ]
        for path in (_MODEL, _VERSION):
            routes += [
                Route(path, self.model_metadata),
                Route(path + "/ready", self.model_ready),
                Route(path + "/infer", self.infer, methods=["POST"]),
            ]
        handlers = {ServerError: _refused, HTTPException: _not_found, Exception: _failed}
        self.app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)
        self.app.router.redirect_slashes = False

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        yield
        self.is_draining = True
        await asyncio.to_thread(self._repository.close, min(self._limits.drain, self.deadlines.seconds_left))

    # -- about the server and its models

    async def server_metadata(self, _: Request) -> Response:
        version: str = relayc.__version__
        return JSONResponse({"name": "relayc", "version": version, "extensions": ["binary_tensor_data"]})

    async def live(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(self, _: Request) -> Response:
        return JSONResponse({"ready": not self.is_draining}, self._ready_status)

    @property
    def _ready_status(self) -> HTTPStatus:
        return HTTPStatus.SERVICE_UNAVAILABLE if self.is_draining else HTTPStatus.OK

    async def index(self, _: Request) -> Response:
        return JSONResponse(
            [{"name": m.name, "version": str(m.version), "state": "READY", "reason": ""} for m in self._repository]
        )

    async def metrics(self, _: Request) -> Response:
        return Response(self._repository.metrics.text(), media_type=CONTENT_TYPE)

    def _model(self, request: Request) -> ServedModel:
        """The model that the path names. Raises ServerError, 404, if there is none."""
        return self._repository.find(request.path_params["name"], request.path_params.get("version"))

    async def model_metadata(self, request: Request) -> Response:
        model = self._model(request)
        return JSONResponse(model.metadata(sorted(self._repository.versions(model.name))))

    async def model_ready(self, request: Request) -> Response:
        model = self._model(request)
        return JSONResponse({"name": model.name, "ready": not self.is_draining}, self._ready_status)

    # -- inference

    async def infer(self, request: Request) -> Response:
        start = time.monotonic()
        share = self._budget.share()
        model = None
        status = int(HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            model = self._model(request)
            try:
                async with self.deadlines.within(math.inf):
                    response = await self._answer(request, model, share, start)
            except TimeoutError as error:
                ended = "the server has shut down before the request was done; send it again"
                raise ServerError(ended, HTTPStatus.SERVICE_UNAVAILABLE) from error
            status = int(HTTPStatus.OK)
        except ClientDisconnect:
            status = _CLIENT_GONE
            return Response(status_code=status)
        except ServerError as error:
            status = int(error.status)
            is_late = status == HTTPStatus.REQUEST_TIMEOUT or not self.deadlines.seconds_left
            is_read = not is_late and await discard_body(request, self._limits.request_bytes)
            return _error(str(error), error.status, {} if is_read else {"connection": "close"})
        finally:
            if status != HTTPStatus.OK:
                share.give_back()
            if model is not None:
                model.metrics.answered(status, time.monotonic() - start)
        headers = {"content-type": "application/json"}
        if response.header_length is not None:
            headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(response.header_length)}
        return PartsResponse(response, headers, self.deadlines.within(self._limits.timeout), share.give_back)

    async def _answer(self, request: Request, model: ServedModel, share: Share, start: float) -> InferResponse:
        """Read the request, let the model run, write the response. Raises ServerError and ClientDisconnect."""
        if self.is_draining:
            raise ServerError("the server is shutting down", HTTPStatus.SERVICE_UNAVAILABLE)
        model.scheduler.check_room()
        try:
            async with asyncio.timeout(self._limits.timeout):
                body = await read_body(request, share, self._limits.request_bytes)
        except TimeoutError as error:
            raise ServerError(
                f"the body did not come within {self._limits.timeout} s", HTTPStatus.REQUEST_TIMEOUT
            ) from error
        wanted = parse_request(body, request.headers.get(HEADER_LENGTH), model.runner.inputs, model.runner.outputs)
        results = await self._results(request, model, wanted, start)
        response = write_response(model.name, str(model.version), wanted, results, model.runner.outputs)
        share.take(response.nbytes, is_forced=True)
        return response

    async def _results(
        self, request: Request, model: ServedModel, wanted: InferRequest, start: float
    ) -> Mapping[str, Array]:
        """The outputs of the model. A job whose time is over, or whose client is gone, is cancelled."""
        timeout = min(self._limits.timeout, self._limits.timeout if wanted.timeout is None else wanted.timeout)
        job = Job(wanted.inputs, list(wanted.outputs))
        model.scheduler.submit(job)
        result = asyncio.wrap_future(job.result)
        gone = asyncio.create_task(_until_gone(request))
        try:
            await asyncio.wait(
                (result, gone), timeout=max(0.0, start + timeout - time.monotonic()),
                return_when=asyncio.FIRST_COMPLETED,
            )  # fmt: skip
            if result.done():
                return _outputs(model, result)
            if gone.done():
                raise ClientDisconnect
            raise ServerError(f"the request was not done within {timeout:g} s", HTTPStatus.GATEWAY_TIMEOUT)
        finally:
            gone.cancel()
            if not result.done():
                model.scheduler.cancel(job)
                result.cancel()


def _outputs(model: ServedModel, result: asyncio.Future[dict[str, Array]]) -> Mapping[str, Array]:
    """The outputs of a run that has ended. Raises ServerError for one that failed: with 400 if by its inputs."""
    error = result.exception()
    if error is None:
        return result.result()
    if isinstance(error, ServerError):
        raise error
    if isinstance(error, ArgumentError):
        raise ServerError(str(error)) from error
    if isinstance(error, RelaycError) and not isinstance(error, InternalError):
        raise ServerError(f"model {model.name!r}: {error}", HTTPStatus.INTERNAL_SERVER_ERROR) from error
    _log.error("a run of model %r, version %d, failed", model.name, model.version, exc_info=error)
    what = f"{type(error).__name__}, see the server's log"
    raise ServerError(f"model {model.name!r} failed: {what}", HTTPStatus.INTERNAL_SERVER_ERROR) from error


async def _until_gone(request: Request) -> None:
    """Wait until the client, whose request was read, has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _error(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """An error in the protocol's form."""
    retry = {"retry-after": "1"} if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE) else {}
    return JSONResponse({"error": message}, status, {**retry, **(headers or {})})


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServerError)
    return _error(str(error), error.status)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}; endpoints are those of the Open Inference "
    return _error(message + "Protocol: /v2/models/NAME/infer", error.status_code, error.headers)


async def _failed(_: Request, error: Exception) -> Response:
    """A fault of the server, which logs it."""
    return _error(f"{type(error).__name__}, see the server's log", HTTPStatus.INTERNAL_SERVER_ERROR)
