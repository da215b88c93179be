"""A server in a process of its own: ``python -m tests.server.server_process FOLDER [NAME=VALUE ...]``.

It serves the models of a folder, and `slow`, which sleeps for as many seconds as its input says. Settings are fields of
`ModelOptions` and `Limits`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np

from relayc.runtime import RunCancelledError, load_model
from relayc.server import (
    CompiledRunner,
    Limits,
    ModelOptions,
    Repository,
    Stop,
    TensorSpec,
    find_models,
    serve,
)

ROOT = Path(__file__).parent.parent.parent


class SlowRunner:
    """Sleeps for the sum of its input in seconds, which is the output, too."""

    platform = "test"
    inputs: Sequence[TensorSpec] = (TensorSpec("seconds", "FP32", (-1, 1)),)
    outputs: Sequence[TensorSpec] = (TensorSpec("slept", "FP32", (-1, 1)),)
    batch_obstacle = None

    def infer(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], stop: Stop) -> list[np.ndarray]:
        ended = threading.Event()
        with stop.ends_by(ended.set):
            if ended.wait(float(inputs["seconds"].sum())):
                raise RunCancelledError("the sleep was ended")
        return [inputs["seconds"]]


@contextmanager
def running(folder: Path, **settings: float) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL of a server with these settings, and its process."""
    command = [sys.executable, "-m", "tests.server.server_process", str(folder)]
    command += [f"{name}={value}" for name, value in settings.items()]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().strip()
        assert url, process.stderr.read()
        yield url, process
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    folder, *given = sys.argv[1:]
    settings = {name: float(value) for name, value in (setting.split("=") for setting in given)}
    cast = {"int": int, "float": float}
    chosen = [
        kind(**{f.name: cast[f.type](settings[f.name]) for f in fields(kind) if f.name in settings})
        for kind in (ModelOptions, Limits)
    ]
    repository = Repository()
    repository.add("slow", SlowRunner(), options=chosen[0])
    for file in find_models([folder]):
        repository.add(file.name, CompiledRunner(load_model(file.path), num_threads=1), file.version, chosen[0])
    serve(repository, port=0, limits=chosen[1], started=lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
