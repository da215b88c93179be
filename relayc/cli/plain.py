"""What the command does alike with and without rich: which files are models, executors, lines of output, failures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relayc.backend.runtime import RelaycError
from relayc.backend.runtime.errors import InternalError

__all__ = [
    "EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_USAGE", "Latency", "failure", "is_onnx", "output_line", "output_record",
]  # fmt: skip

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT


class Latency(NamedTuple):
    """Percentiles of the time of a run, mean, least and greatest, in milliseconds."""

    p10: float
    p50: float
    p90: float
    p99: float
    mean: float
    min: float
    max: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Latency:
        """The figures of measured times in seconds."""
        figures = [*np.percentile(seconds, [10, 50, 90, 99]), np.mean(seconds), np.min(seconds), np.max(seconds)]
        return Latency(*[float(v) * 1e3 for v in figures])

    @property
    def spread(self) -> float:
        """The distance of the 10th and the 90th percentile, as a share of the median."""
        return (self.p90 - self.p10) / self.p50 if self.p50 else 0.0

    @property
    def runs_per_second(self) -> float:
        """Throughput of runs one after another."""
        return 1e3 / self.mean if self.mean else 0.0


def is_onnx(path: Path) -> bool:
    """Is this an ONNX model, by its suffix? Everything else is taken for an artifact."""
    return path.suffix.lower() in (".onnx", ".pb")


def output_line(name: str, value: np.ndarray) -> str:
    """Name, type and shape of an output."""
    return f"{name}: {'string' if value.dtype.kind == 'U' else value.dtype}{list(value.shape)}"


def output_record(name: str, value: np.ndarray) -> dict[str, Any]:
    """Name, type and shape of an output, for `--json`."""
    return {"name": name, "dtype": "string" if value.dtype.kind == "U" else str(value.dtype), "shape": value.shape}


def failure(error: Exception) -> tuple[str, str]:
    """The kind of an error, and its text for the user: one that is none of the package's is a fault of it."""
    compiler = sys.modules.get("relayc.te.errors")  # an artifact runs without it
    own = () if compiler is None else (compiler.CompileError,)
    text = "\n".join([str(error), *getattr(error, "__notes__", [])])
    if isinstance(error, (*own, RelaycError, OSError, MemoryError)):
        return type(error).__name__, text
    kind = f"{type(error).__name__}: {text}"
    return InternalError.__name__, f"{kind}\n  a fault of relayc; please report it with what --traceback shows"
