"""What the command does alike with and without rich: which files are models, executors, lines of output, failures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relayc.backend.runtime import RelaycError, device
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.errors import InternalError
from relayc.backend.runtime.graph_executor import GraphModule

__all__ = [
    "EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_USAGE", "Latency", "executor_for", "failure", "is_onnx", "output_line",
]  # fmt: skip

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT


class Latency(NamedTuple):
    """Percentiles of the time of a run in milliseconds."""

    p10: float
    median: float
    p90: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Latency:
        """The percentiles of measured times in seconds."""
        return Latency(*[float(v) * 1e3 for v in np.percentile(seconds, [10, 50, 90])])


def is_onnx(path: Path) -> bool:
    """Is this an ONNX model, by its suffix? Everything else is taken for an artifact."""
    return path.suffix.lower() in (".onnx", ".pb")


def executor_for(model: CompiledModel, where: str | None, threads: int | None) -> GraphModule:
    """An executor of `model` on device `where`, "cpu" or "cuda:0"; by default on the kind it was compiled for.

    Raises DeviceError when there is no such device, saying why.
    """
    return GraphModule(model["default"](device(model.graph.device if where is None else where)), threads)


def output_line(name: str, value: np.ndarray) -> str:
    """Name, type and shape of an output."""
    return f"{name}: {'string' if value.dtype.kind == 'U' else value.dtype}{list(value.shape)}"


def failure(error: Exception) -> tuple[str, str]:
    """The kind of an error, and its text for the user: one that is none of the package's is a fault of it."""
    compiler = sys.modules.get("relayc.te.errors")  # an artifact runs without it
    own = () if compiler is None else (compiler.CompileError,)
    text = "\n".join([str(error), *getattr(error, "__notes__", [])])
    if isinstance(error, (*own, RelaycError, OSError, MemoryError)):
        return type(error).__name__, text
    kind = f"{type(error).__name__}: {text}"
    return InternalError.__name__, f"{kind}\n  a fault of relayc; please report it with what --traceback shows"
