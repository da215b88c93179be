"""The command `serve`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relayc.backend.runtime import check_signature, load_model
from relayc.backend.runtime.artifact import CompiledModel
from relayc.cli.console import Steps, err, guarded
from relayc.cli.models import open_model
from relayc.cli.options import Build, UsageError
from relayc.cli.parameters import Device, Threads, with_build
from relayc.cli.plain import is_onnx

if TYPE_CHECKING:
    from relayc.server import ServedModel

__all__ = ["serve"]

_NEEDED = ("starlette", "uvicorn", "prometheus_client")


@guarded
@with_build
def serve(
    models: Annotated[
        list[str], typer.Argument(help="artifacts, .onnx files, NAME=FILE, folders with NAME/VERSION/model.relayc")
    ],
    host: Annotated[str, typer.Option("--host", help="address to listen on; 0.0.0.0: every one")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="port; 0: any free one")] = 8000,
    instances: Annotated[int, typer.Option("--instances", min=1, help="runs of each model at the same time")] = 1,
    threads: Threads = None,
    max_batch_size: Annotated[
        int, typer.Option("--max-batch-size", min=1, help="join requests to so many rows of the first dimension")
    ] = 1,
    max_delay_ms: Annotated[
        float, typer.Option("--max-delay-ms", min=0, help="how long a request waits for others to join it")
    ] = 2.0,
    queue: Annotated[int, typer.Option("--queue", min=1, help="waiting requests of a model; others get a 429")] = 128,
    timeout: Annotated[float, typer.Option("--timeout", min=0.001, help="seconds that a request may take")] = 60.0,
    max_request_mb: Annotated[float, typer.Option("--max-request-mb", min=0.001, help="largest request")] = 64.0,
    max_held_mb: Annotated[
        float, typer.Option("--max-held-mb", min=0.001, help="requests and responses in memory; others get a 429")
    ] = 512.0,
    connections: Annotated[int, typer.Option("--connections", min=1, help="open connections at the same time")] = 1000,
    drain: Annotated[float, typer.Option("--drain", min=0.001, help="seconds to finish requests at SIGTERM")] = 30.0,
    key: Annotated[
        Path | None, typer.Option("--key", help="PEM file of a public key that artifacts have to be signed with")
    ] = None,
    device: Device = None,
    *,
    how: Build,
) -> None:
    """Serve models by HTTP with the Open Inference Protocol, version 2 (KServe, Triton), until SIGTERM.

    Artifacts hold machine code: serve only those that you trust. Metrics for Prometheus are at /metrics.
    Example: relayc serve resnet50.relayc --port 8000
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"serving needs {', '.join(missing)}: pip install 'relayc[serve]'")
    server = import_module("relayc.server")
    files = server.find_models(models)
    options = server.ModelOptions(instances, queue, max_batch_size, max_delay_ms / 1e3)
    megabyte = 1_000_000
    limits = server.Limits(int(max_request_mb * megabyte), int(max_held_mb * megabyte), timeout, connections, drain)
    repository = server.Repository()
    for file in files:
        runner = server.CompiledRunner(_opened(file.path, key, how), device, threads)
        _announce(repository.add(file.name, runner, file.version, options), file.path)
    server.serve(repository, host, port, limits, lambda url: err.print(f"listening on {url}", soft_wrap=True))


def _opened(path: Path, key: Path | None, how: Build) -> CompiledModel:
    """The model; with a key only a signed artifact."""
    if key is None:
        return open_model(path, how, Steps(quiet=not is_onnx(path)))
    if is_onnx(path):
        raise UsageError(f"{path}: --key takes signed artifacts only; compile the model and sign it")
    return load_model(path, expect_sha256=check_signature(path, key))


def _announce(model: ServedModel, path: Path) -> None:
    text = f"{model.name}, version {model.version}: {path}"
    if model.batch_obstacle is not None:
        text += f" (requests are not joined: {model.batch_obstacle})"
    err.print(text, soft_wrap=True)
